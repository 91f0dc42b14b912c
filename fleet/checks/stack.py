"""The row of the catalogue that a plan names, against its engine; and the bundle that it names, before a machine is
touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from fleet import bundle, stacks, versions
from fleet.checks.images import images
from fleet.findings import Finding, FleetError, error, warning
from fleet.stacks import Stack
from fleet.topology import Plan


def row(plan: Plan) -> Iterator[Finding]:
    """The row is there, made for this machine family, and holds against the tables of versions."""
    try:
        stack = stacks.of_plan(plan)
    except FleetError as exc:
        named = (
            f if f.rule != "CATALOGUE-NAME" else replace(f, where=f"{_where(plan)} {f.where}") for f in exc.findings
        )
        yield from named
        return
    if stack is None:
        return
    if stack.platform != plan.recipe.platform:
        what = f"catalogue {stack.name} is for {stack.platform}, the recipe is for {plan.recipe.platform}"
        yield error("CATALOGUE-PLATFORM", _where(plan), what, "name a row of this machine family, see fleet catalogue")
        return
    yield from stacks.check(stack)
    yield from _engine(plan, stack)
    yield from _images(plan, stack)


def _where(plan: Plan) -> str:
    """Who names the row."""
    return plan.fleet.source if plan.fleet.settings.catalogue else plan.fleet.recipe


def _engine(plan: Plan, stack: Stack) -> Iterator[Finding]:
    """The recipe's engine is the row's; an error where the row's driver does not carry the recipe's CANN."""
    engine = plan.recipe.engine
    key, wanted, its = "vllm", engine.vllm, stack.vllm
    if engine.vllm_ascend and stack.vllm_ascend:
        key, wanted, its = "vllm_ascend", engine.vllm_ascend, stack.vllm_ascend
    if Version(wanted) == Version(its):
        return
    cann = versions.cann_of(wanted) if key == "vllm_ascend" else None
    driver = stack.driver.version if stack.driver else None
    if cann and driver and versions.driver_fits(cann, driver) is False:
        what = f"{key} {wanted} needs CANN {cann}, which the HDK {driver} of catalogue {stack.name} does not carry"
        mend = f"name a row for {key} {wanted}, see fleet catalogue"
        yield error("CATALOGUE-DRIVER", _where(plan), what, mend, "the engine does not start")
        return
    what = f"the engine is {key} {wanted}, catalogue {stack.name} is for {its}"
    mend = f"name a row for {key} {wanted}, see fleet catalogue; or a recipe for {its}"
    yield warning("CATALOGUE-ENGINE", _where(plan), what, mend, "nobody says that these versions go together")


def _images(plan: Plan, stack: Stack) -> Iterator[Finding]:
    """The row's driver runs the images of the plan."""
    branch = stack.gpu_driver.branch if stack.gpu_driver else None
    for name in images(plan):
        cuda = versions.cuda_of(name, plan.recipe.engine.vllm) if plan.recipe.platform == "nvidia" else None
        least = versions.driver_branch_for(cuda) if cuda else None
        if branch is not None and least is not None and branch < least:
            what = f"{name} needs a driver of branch {least}, catalogue {stack.name} installs {branch}"
            mend = f"name a row with that driver, or set image: {stack.image}"
            source = "CUDA compatibility guide"
            yield error("CATALOGUE-DRIVER", _where(plan), what, mend, "the engine ends with CUDA error 803", source)


def brought(plan: Plan) -> Iterator[Finding]:
    """A bundle that is named is a folder whose SHA256SUMS can be read, and lists what is there.

    Only what prepares hosts needs it, and ends with it.
    """
    folders = {node.settings.bundle: None for node in plan.fleet.nodes if node.settings.bundle}
    for folder in folders:
        try:
            bundle.read(Path(folder))
        except FleetError as exc:
            yield from (replace(finding, severity="warning") for finding in exc.findings)


CHECKS = (row, brought)
