"""Versions of the engine's parts against each other: the vendors' tables are in files/versions/."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet import versions
from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Plan

# MooncakeConnectorV1 over AscendDirect (vllm-ascend issue 5635).
ASCEND_DIRECT_CANN = "8.3"


def plugin_and_engine(plan: Plan) -> Iterator[Finding]:
    """vllm-ascend patches one release of vLLM; the recipe names another."""
    engine = plan.recipe.engine
    if engine.vllm_ascend is None or not plan.recipe.platform.startswith("ascend"):
        return
    row = versions.release_of(engine.vllm_ascend)
    if row is None and Version(engine.vllm_ascend).release[:2] == engine.version.release[:2]:
        return
    if row is not None and Version(row.vllm) == engine.version:
        return
    mends = versions.releases_for(engine.vllm)
    belongs = f"vLLM {row.vllm}" if row else f"vLLM {'.'.join(map(str, Version(engine.vllm_ascend).release[:2]))}"
    yield warning(
        "VERSION-PAIR",
        plan.fleet.recipe,
        f"vllm-ascend {engine.vllm_ascend} is built for {belongs}, the recipe says vLLM {engine.vllm}",
        f"set engine.vllm_ascend: {mends[0]}" if mends else f"set engine.vllm to that of {belongs}",
        "the image brings its own vLLM, and the arguments are written for the recipe's; installed apart, they break",
        "vllm-ascend versioning policy",
    )


def transfer_and_cann(plan: Plan) -> Iterator[Finding]:
    """AscendDirect needs CANN 8.3.RC1."""
    transfer, plugin = plan.recipe.kv_transfer, plan.recipe.engine.vllm_ascend
    cann = versions.cann_of(plugin) if plugin else None
    if transfer is None or transfer.connector != "MooncakeConnectorV1" or cann is None:
        return
    if not versions.cann_at_least(cann, ASCEND_DIRECT_CANN):
        yield error(
            "VERSION-TRANSFER",
            plan.fleet.recipe,
            f"MooncakeConnectorV1 needs CANN 8.3.RC1, the image of vllm-ascend {plugin} has {cann}",
            "use vllm-ascend 0.11.0 or newer",
            "transfers fail with status 103900, Failed to connect",
            "vllm-ascend issue 5635",
        )


def fabric_memory(plan: Plan) -> Iterator[Finding]:
    """Mooncake over fabric memory is for A3, and needs CANN 9.0 besides a driver that only a host can show."""
    floor, plugin = versions.floor_of("fabric-mem"), plan.recipe.engine.vllm_ascend
    for where, instance in look.roles(plan):
        if not look.on(instance.spec.env.get("ASCEND_ENABLE_USE_FABRIC_MEM")):
            continue
        cann = versions.cann_of(plugin) if plugin else None
        what = None
        if plan.recipe.platform != "ascend-a3":
            what = f"ASCEND_ENABLE_USE_FABRIC_MEM is for Atlas A3, the recipe is for {plan.recipe.platform}"
        elif cann and floor.cann and not versions.cann_at_least(cann, floor.cann):
            what = f"ASCEND_ENABLE_USE_FABRIC_MEM needs CANN {floor.cann}, the image of vllm-ascend {plugin} has {cann}"
        if what:
            yield error(
                "VERSION-FABRIC-MEM",
                where,
                what,
                "remove the variable, or use vllm-ascend 0.20.2rc1 or newer on A3",
                f"memory is not registered (207000); it also needs HDK {floor.hdk_alone}, or {floor.hdk} with "
                f"Mooncake {floor.mooncake}",
                floor.source,
            )


CHECKS = (plugin_and_engine, transfer_and_cann, fabric_memory)
