"""What a container is given besides its devices."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan

# Ray warns below this, and collectives of eight workers fill less (Ray's object store; gpustack issue 5014).
SHM_LEAST = 10 * 2**30
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


def shm_small(plan: Plan) -> Iterator[Finding]:
    """1 GB of shared memory is little for several workers."""
    given = plan.recipe.shm_size
    small = int(given[:-1]) * UNITS[given[-1]] < SHM_LEAST and plan.recipe.platform != "cpu"
    if small and any(u.runtime == "docker" and u.kind != "proxy" for u in plan.units):
        yield warning(
            "SHM-SMALL",
            plan.fleet.recipe,
            "shm_size 1g is what the vendor's page shows, its own tests use 15 GB"
            if given == "1g"
            else f"shm_size {given} is less than 10 GB",
            "set shm_size: 16g",
            "collectives fail with Error while creating shared memory segment",
            "vllm-ascend CI template; gpustack issue 5014",
        )


CHECKS = (shm_small,)
