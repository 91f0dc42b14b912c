"""Qwen3-235B-A22B w8a8 on three Atlas 800 A3: one prefill, two decode, the proxy beside prefill."""

prefill = ["10.10.0.11"]
decode = ["10.10.0.12", "10.10.0.13"]
proxy = ["10.10.0.11"]
