"""Images against machine family, engine, CANN, CUDA and driver."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet.findings import Finding, warning
from fleet.topology import Plan


def image_needs_new_driver(plan: Plan) -> Iterator[Finding]:
    """vllm/vllm-openai without suffix is built on CUDA 13 from 0.20.0 on."""
    images = {u.image for u in plan.units if u.image}
    if plan.recipe.platform != "nvidia" or plan.recipe.engine.version < Version("0.20.0"):
        return
    for image in sorted(i for i in images if "-cu" not in i and "vllm-openai" in i):
        yield warning(
            "IMAGE-CUDA",
            plan.fleet.recipe,
            f"{image} is built on CUDA 13.0, which needs a driver of the R580 class",
            f"set engine.image: {image}-cu129 for older drivers",
            "from 0.20.0 on the tag without a suffix is CUDA 13",
            "vLLM release notes 0.20.0",
        )


CHECKS = (image_needs_new_driver,)
