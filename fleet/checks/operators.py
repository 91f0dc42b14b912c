"""Fused operators against quantisation, role and size."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan


def fused_mc2_on_prefill(plan: Plan) -> Iterator[Finding]:
    """VLLM_ASCEND_ENABLE_FUSED_MC2=2 is meant for decode."""
    for instance in plan.of_role("prefill"):
        if str(instance.spec.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2")) == "2":
            yield warning(
                "ENV-FUSED-MC2",
                f"{plan.fleet.recipe} {instance.name}",
                "VLLM_ASCEND_ENABLE_FUSED_MC2=2 is for decode only",
                "set it to 1 or leave it out on prefill",
                source="vllm-ascend envs.py, 0.13 to 0.22",
            )


CHECKS = (fused_mc2_on_prefill,)
