"""Qwen3-235B-A22B w8a8 on one Atlas 800 A2."""

serve = ["10.10.0.11"]
