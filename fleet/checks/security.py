"""What opens a host to others, or runs code of others."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan


def unchecked_code(plan: Plan) -> Iterator[Finding]:
    """Code that comes with the weights is run."""
    if any(i.spec.args.get("trust-remote-code") for i in plan.instances):
        yield warning(
            "SECURITY-REMOTE-CODE",
            plan.fleet.recipe,
            "trust-remote-code runs code that comes with the weights",
            "remove it where the engine knows the model, as it does Qwen3",
        )


CHECKS = (unchecked_code,)
