"""Qwen3-235B-A22B w8a8 on six Atlas 800 A3: two sets of one prefill and two decode hosts behind one front door."""

prefill = ["10.10.0.11", "10.10.0.14"]
decode = ["10.10.0.12", "10.10.0.13", "10.10.0.15", "10.10.0.16"]
proxy = ["10.10.0.11"]
