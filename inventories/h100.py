"""Qwen3-235B-A22B in BF16 on one HGX H100, tuned for throughput."""

serve = ["10.20.0.11"]
