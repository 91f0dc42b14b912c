"""Qwen3-235B-A22B in BF16 over two Atlas 800 A2 with Ray."""

ray_head = ["10.10.0.11"]
ray_worker = ["10.10.0.12"]
