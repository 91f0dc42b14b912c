"""A stand-in for the real engine: as strict about its configuration, and without a model.

Runs with nothing but Python's standard library, from Python 3.10 on; imports nothing from vllm-fleet.
"""
