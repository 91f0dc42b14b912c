"""What a container is given besides its devices."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan


def shm_small(plan: Plan) -> Iterator[Finding]:
    """1 GB of shared memory is little for several workers."""
    if plan.recipe.shm_size == "1g" and any(u.runtime == "docker" and u.kind != "proxy" for u in plan.units):
        yield warning(
            "SHM-SMALL",
            plan.fleet.recipe,
            "shm_size 1g is what the vendor's page shows, its own tests use 15 GB",
            "set shm_size: 16g",
            "collectives fail with Error while creating shared memory segment",
            "vllm-ascend CI template; gpustack issue 5014",
        )


CHECKS = (shm_small,)
