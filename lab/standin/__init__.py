"""Test doubles of `vllm`, `ray` and vllm-ascend's proxy, for topologies that need hardware that nobody has here."""
