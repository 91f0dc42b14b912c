"""Modules copied into the engines' environments; they run there, never in vllm-fleet."""
