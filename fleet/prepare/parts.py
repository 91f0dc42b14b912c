"""All parts of the preparation, as one: what to ask a host, and who judges the answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fleet.bundle import Bundle
from fleet.findings import Finding
from fleet.inventory import Node
from fleet.prepare import ascend, base, cann, common, containers, firewall, images, nvidia, sources
from fleet.prepare.common import Step, Work
from fleet.snapshot import MARK
from fleet.stacks import Stack
from fleet.topology import Plan

# In the order in which they are looked after.
PARTS: dict[str, ModuleType] = {
    "sources": sources,
    "base": base,
    "ascend": ascend,
    "nvidia": nvidia,
    "cann": cann,
    "containers": containers,
    "images": images,
    "firewall": firewall,
}


def question(plan: Plan, node: Node) -> str:
    """The shell text that asks a host for all of it."""
    parts = [f"export LC_ALL=C; echo '{MARK} uid'; id -u", *common.sections(plan, node)]
    return "\n".join([*parts, *(text for module in PARTS.values() for text in module.sections(plan, node))])


def work(plan: Plan, node: Node, sections: Mapping[str, list[str]], bundle: Bundle | None, stack: Stack | None) -> Work:
    """One host with all that its answer says."""
    states: dict[str, Any] = {name: module.parse(sections) for name, module in PARTS.items()}
    return Work(plan, node, common.parse(sections), states, bundle, stack)


def refuse(name: str, its: Work) -> list[Finding]:
    """What stops a part before it changes anything."""
    return list(PARTS[name].refuse(its))


def steps(name: str, its: Work) -> list[Step]:
    """What a part has to change."""
    return list(PARTS[name].steps(its))


def prove(names: tuple[str, ...], its: Work) -> list[Finding]:
    """What is still not as it should be, once these parts are done."""
    return [finding for name in names for finding in PARTS[name].prove(its)]


def between(names: tuple[str, ...], plan: Plan, works: Mapping[str, Work]) -> list[Finding]:
    """What does not agree over hosts."""
    modules = [PARTS[name] for name in names if hasattr(PARTS[name], "between")]
    return [finding for module in modules for finding in module.between(plan, works)]


def pending(its: Work) -> tuple[str, ...]:
    """Why the host must be restarted before what was installed runs: as noted, or as its state shows."""
    shown = [module.pending(its) for module in PARTS.values() if hasattr(module, "pending")]
    return tuple(dict.fromkeys([*its.host.reboot, *(why for why in shown if why)]))
