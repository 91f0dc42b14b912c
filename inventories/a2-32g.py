"""Qwen3-235B-A22B w8a8 over two Atlas 800 A2 with 32 GB a device."""

serve = ["10.10.0.11", "10.10.0.12"]
