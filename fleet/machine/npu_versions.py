"""Driver, firmware, CANN and features of NPUs: which versions go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet import versions
from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import common
from fleet.machine.npu_table import State
from fleet.topology import Plan, Unit

PAIRS = "driver and firmware of one HDK release list"


def judge(plan: Plan, node: Node, state: State) -> Iterator[Finding]:
    """One host's versions."""
    yield from _firmware(plan, node, state)
    units = [u for u in plan.units_of(node.name) if u.serves_model]
    hdk = state.driver
    if hdk is None or not units:
        return
    release = _release(plan, units[0])
    if stop := _cann(node.name, release, hdk):
        yield stop
        return
    yield from _floors(plan, node.name, units, release, hdk)


def _firmware(plan: Plan, node: Node, state: State) -> Iterator[Finding]:
    """``Compatibility`` of npu-smi's board query; UNKNOWN and NOT SUPPORT say nothing."""
    size = 2 if state.dies else 1
    cards = {index // size for index in common.used(plan, node)}
    bad = sorted(card for card, board in state.boards.items() if card in cards and board.compatibility == "NOK")
    if bad:
        board = state.boards[bad[0]]
        which = f"card {bad[0]}" if len(bad) == 1 else f"cards {span(bad)}"
        yield error(
            "NPU-FIRMWARE",
            node.name,
            f"driver {board.driver} and firmware {board.firmware} do not fit on {which}",
            f"install {PAIRS}; over an older one firmware first, then driver",
            "npu-smi info -t board says Compatibility NOK",
            "npu-smi user guide; CANN installation guide",
        )


def _release(plan: Plan, unit: Unit) -> str | None:
    """The version of vllm-ascend that a unit runs."""
    tag = versions.image(unit.image).version if unit.image else None
    return str(tag) if tag else plan.recipe.engine.vllm_ascend


def _cann(host: str, release: str | None, hdk: str) -> Finding | None:
    """The host's driver against the CANN of the image."""
    cann = versions.cann_of(release) if release else None
    if cann is None or versions.driver_fits(cann, hdk) is not False:
        return None
    rule = versions.drivers_of(cann)
    return error(
        "NPU-CANN",
        host,
        f"driver {hdk} does not carry CANN {cann} of vllm-ascend {release}",
        f"install HDK {rule}" if rule else "install a newer HDK",
        "the engine ends with DrvMngGetConsoleLogLevel failed, or hcclCommInitRootInfoConfig code 1",
        rule.source if rule else "",
    )


def _floors(plan: Plan, host: str, units: list[Unit], release: str | None, hdk: str) -> Iterator[Finding]:
    """Features of the plan that need a newer HDK than the host has."""
    for feature in _features(plan, units):
        floor = versions.floor_of(feature)
        if floor.hdk is None or _enough(floor, release, hdk):
            continue
        least = f"{floor.hdk_alone}, or {floor.hdk} with Mooncake {floor.mooncake}" if floor.hdk_alone else floor.hdk
        say = warning if feature == "kv-pool-a2" else error
        what = f"{floor.says} needs HDK {least}, this is {hdk}"
        yield say("NPU-HDK", host, what, "install a newer HDK, or do without", "", floor.source)


def _enough(floor: versions.Floor, release: str | None, hdk: str) -> bool:
    """Whether the HDK will do, alone or with the Mooncake of this release."""
    if not floor.hdk_alone or not floor.mooncake:
        return versions.cann_at_least(hdk, floor.hdk or "0")
    row = versions.release_of(release) if release else None
    newer = row is None or row.mooncake is None or versions.cann_at_least(row.mooncake, floor.mooncake)
    return versions.cann_at_least(hdk, floor.hdk_alone) or (newer and versions.cann_at_least(hdk, floor.hdk or "0"))


def _features(plan: Plan, units: list[Unit]) -> list[str]:
    """What the plan asks for that not every HDK has."""

    def has(name: str) -> bool:
        return any(str(u.env.get(name, "")).lower() not in ("", "0", "false") for u in units)

    found = []
    if has("ASCEND_ENABLE_USE_FABRIC_MEM"):
        found.append("fabric-mem")
    if any("FULL_AND_PIECEWISE" in word for u in units for word in u.argv):
        found.append("full-and-piecewise")
    if plan.recipe.platform == "ascend-a2" and has("MOONCAKE_CONFIG_PATH"):
        found.append("kv-pool-a2")
    return found


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """One driver on all hosts that work together."""

    def say(host: str, its: str, other: str, theirs: str, company: str) -> Finding:
        return error(
            "NPU-DRIVER",
            host,
            f"driver {its}, {other} has {theirs}",
            f"install one HDK on all hosts of {company}",
            "hosts of one super node must have the same driver",
            "Huawei Cloud aics_bp_0103",
        )

    return common.differing(common.companies(plan), {h: s.driver for h, s in states.items()}, say)
