"""A recipe's workload against the published result it carries."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.checks import look
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


def more_requests_than_places(plan: Plan) -> Iterator[Finding]:
    """--max-num-seqs counts for each data-parallel rank; requests beyond it wait, which the figures then show."""
    asked = plan.recipe.workload.args.get("max-concurrency") if plan.recipe.workload else None
    its = plan.of_role("decode") or plan.of_role("serve")
    if not isinstance(asked, int) or not its:
        return
    spec = its[0].spec
    seqs = look.number(spec.args.get("max-num-seqs"))
    places = (seqs or 0) * spec.data_parallel_size * len(its)
    if seqs and places < asked:
        yield warning(
            "LOAD-SEQS",
            f"{plan.fleet.recipe} {its[0].role}",
            f"max-num-seqs {seqs} x data parallel {spec.data_parallel_size} x {len(its)} instances is {places}, "
            f"the workload has max-concurrency {asked}",
            f"set max-num-seqs to {-(-asked // (spec.data_parallel_size * len(its)))} or more",
            "the others wait, and their wait counts in TTFT and TPOT",
            "vllm-ascend tutorial for Qwen3-235B-A22B",
        )


CHECKS = (workload_and_reference_differ, accuracy_of_another_version, more_requests_than_places)
