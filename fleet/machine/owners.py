"""Which processes, ports and containers of a host are vllm-fleet's own: they are never foreign, whatever holds what.

Ours are the units that systemd has from /etc/vllm-fleet (of this service or another of the host), the plan's own, and
the containers of their names. A unit's name alone says nothing: anybody may call a unit or a container vllm-something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.inventory import Node
from fleet.topology import ROOT, Plan

_CONTAINER = re.compile(r"docker[-/]([0-9a-f]{12,64})")


@dataclass(frozen=True)
class State:
    """``groups`` are processes by control group, of units called vllm-* and of containers; ``linked`` the units that
    belong to a release; ``containers`` names by id, None where Docker was not asked."""

    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)
    linked: frozenset[str] = frozenset()
    containers: Mapping[str, str] | None = None


def sections(plan: Plan, node: Node) -> list[str]:
    """One pass over /proc, and the links of systemd's folder."""
    return [
        "echo '@@ linked'; ls -l /etc/systemd/system 2>/dev/null | "
        f"sed -n 's#.* \\(vllm-[^ /]*\\)\\.service -> {ROOT}/.*#\\1#p'",
        "echo '@@ groups'; grep -Hs -e '/vllm-[^/]*\\.service' -e 'docker[-/][0-9a-f]' /proc/[0-9]*/cgroup | "
        'awk -F: \'{split($1, p, "/"); if (!(($NF, p[3]) in s)) {s[$NF, p[3]]; g[$NF] = g[$NF] " " p[3]}} '
        "END {for (n in g) print n g[n]}'",
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered; ``containers`` is the section of ``fleet.machine.docker``."""
    groups = {}
    for line in sections.get("groups", []):
        group, *pids = line.split()
        groups[group] = frozenset(int(pid) for pid in pids if pid.isdigit())
    names = {}
    for line in sections.get("containers", []):
        identity, _, rest = line.partition("|")
        names[identity] = rest.partition("|")[0].lstrip("/")
    return State(groups, frozenset(sections.get("linked", [])), names if "containers" in sections else None)


def own_units(plan: Plan, node: Node, state: State) -> frozenset[str]:
    """Names of units that are ours."""
    return state.linked | {u.name for u in plan.units_of(node.name)}


def is_ours(group: str, units: frozenset[str], state: State) -> bool:
    """Whether a control group is that of one of the units, or of one of their containers."""
    if container := _CONTAINER.search(group):
        if not state.containers:  # a container that Docker does not list: it did not answer, which is told by itself
            return state.containers is not None
        return any(i.startswith(container[1]) and name in units for i, name in state.containers.items())
    unit = re.search(r"/(vllm-[^/]*)\.service", group)
    return bool(unit) and unit[1] in units if unit else False


def processes(plan: Plan, node: Node, state: State) -> frozenset[int]:
    """Ids of the processes that are ours."""
    units = own_units(plan, node, state)
    return frozenset(pid for group, pids in state.groups.items() if is_ours(group, units, state) for pid in pids)


def serving(plan: Plan, node: Node, state: State) -> bool:
    """Whether an engine of the plan runs on the host, or is just being started."""
    engines = frozenset(unit.name for unit in plan.units_of(node.name) if unit.serves_model)
    return any(pids and is_ours(group, engines, state) for group, pids in state.groups.items())
