"""Qwen3-235B-A22B in BF16 on one Atlas 800 A3 (64 GB a device)."""

serve = ["10.10.0.11"]
