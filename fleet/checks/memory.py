"""Weights, cache and activations against the devices' memory."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan


def weights_fill_memory(plan: Plan) -> Iterator[Finding]:
    """BF16 weights on eight 64 GB devices leave next to nothing for the cache."""
    weights = plan.recipe.model.weights_gb
    if plan.recipe.platform != "ascend-a2" or plan.recipe.model.quantization or weights is None:
        return
    for instance in plan.instances:
        memory = 64 * sum(len(m.devices) for m in instance.members)
        if weights > 0.85 * memory:
            yield warning(
                "MEMORY-WEIGHTS",
                f"{plan.fleet.recipe} {instance.name}",
                f"{weights:g} GB of weights on {memory} GB of device memory leave little for the cache",
                "use two hosts, or the w8a8 weights",
                "each NPU uses about 3.4 GB idle; vllm-ascend's own BF16 test on A2 takes two hosts",
                "vllm-ascend nightly test Qwen3-235B-A22B-A2",
            )


CHECKS = (weights_fill_memory,)
