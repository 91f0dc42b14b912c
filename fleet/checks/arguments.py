"""Arguments against the flag table of the engine's version."""

from __future__ import annotations

from collections.abc import Iterator

from fleet import engine
from fleet.findings import Finding, warning
from fleet.topology import Plan


def argument_left_out(plan: Plan) -> Iterator[Finding]:
    """An argument that this version does not have is not passed on."""
    version = plan.recipe.engine.version
    for name in plan.recipe.roles:
        for argument in plan.recipe.role(name).args:
            if not engine.exists(argument, version):
                yield warning(
                    "VERSION-ARGUMENT",
                    f"{plan.fleet.recipe} {name}",
                    f"vLLM {version} has no --{argument}; it is left out",
                    "remove it from the recipe, or choose a version that has it",
                )


CHECKS = (argument_left_out,)
