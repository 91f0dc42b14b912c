"""A recipe's workload against the published result it carries."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan


def workload_and_reference_differ(plan: Plan) -> Iterator[Finding]:
    """The published table reports another load than the published script asks for."""
    workload, reference = plan.recipe.workload, plan.recipe.reference
    if workload is None or reference is None:
        return
    for argument, figure in (("num-prompts", "requests"), ("max-concurrency", "concurrency")):
        asked, reported = workload.args.get(argument), reference.results.get(figure)
        if isinstance(asked, int) and reported is not None and asked != reported:
            yield warning(
                "REFERENCE-LOAD",
                plan.fleet.recipe,
                f"workload has {argument} {asked}, the reference was reported for {reported:g}",
                "compare figures with care",
                "the source disagrees with itself",
            )


def accuracy_of_another_version(plan: Plan) -> Iterator[Finding]:
    """An accuracy figure measured with another version is no target for this one."""
    reference = plan.recipe.reference
    measured = str(reference.accuracy.get("measured_with", "")) if reference else ""
    version = plan.recipe.engine.vllm_ascend or plan.recipe.engine.vllm
    if measured and version not in measured:
        yield warning(
            "REFERENCE-VERSION",
            plan.fleet.recipe,
            f"the accuracy figure was measured with {measured}, this recipe runs {version}",
            "measure once with this version before using it as a limit",
        )


CHECKS = (workload_and_reference_differ, accuracy_of_another_version)
