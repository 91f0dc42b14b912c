"""Qwen3-235B-A22B in BF16 on one HGX H100: the published baseline."""

serve = ["10.20.0.11"]
