"""What the checks of NPUs and GPUs share: which devices, which hosts work together, and who differs from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

from fleet import sizes
from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import scope
from fleet.topology import Plan

Value = TypeVar("Value", bound=Hashable)


class Process(Protocol):
    """A process on a device; ``pid`` is the host's, memory in MiB."""

    @property
    def pid(self) -> int: ...
    @property
    def memory(self) -> int | None: ...


Holder = TypeVar("Holder", bound=Process)

SMALL = 512  # MiB; a process that has less than this is no engine

# GiB that an engine needs on a device beside its weights, at the very least: activations, graphs and some cache.
LEAST_ROOM = 2.0


def used(plan: Plan, node: Node) -> tuple[int, ...]:
    """Indices of the host's devices on which the plan runs something."""
    members = [m for i in scope.instances(plan, node) for m in i.members if m.node is node]
    return tuple(sorted({index for member in members for index in member.devices}))


def together(plan: Plan, node: Node) -> bool:
    """Whether the host's devices speak with those of another host, or hand over a cache by Mooncake."""
    its = scope.instances(plan, node)
    mooncake = plan.recipe.kv_transfer is not None and plan.recipe.kv_transfer.connector.startswith("Mooncake")
    return any(i.is_group for i in its) or (bool(its) and mooncake)


def companies(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Hosts that work together, by the name of their set, or of the instance where it is in none."""
    found = {s.name: tuple(m.node.name for i in s.instances for m in i.members) for s in plan.sets}
    in_sets = {i.name for s in plan.sets for i in s.instances}
    for instance in plan.instances:
        if instance.name not in in_sets:
            found[instance.name] = tuple(m.node.name for m in instance.members)
    return {name: tuple(dict.fromkeys(hosts)) for name, hosts in found.items() if len(set(hosts)) > 1}


def groups(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The hosts of each instance that spans several."""
    return {i.name: tuple(m.node.name for m in i.members) for i in plan.instances if i.is_group}


def odd(values: Mapping[str, Value | None]) -> list[tuple[str, Value, str, Value]]:
    """(host, its value, a host of the others, theirs) of each host that differs from most; unknown values count not."""
    known = {host: value for host, value in values.items() if value is not None}
    if len(set(known.values())) < 2:
        return []
    usual = Counter(known.values()).most_common(1)[0][0]  # of equally many the first
    other = next(host for host, value in known.items() if value == usual)
    return [(host, value, other, usual) for host, value in known.items() if value != usual]


def differing(
    hosts: Mapping[str, tuple[str, ...]],
    values: Mapping[str, Value | None],
    say: Callable[[str, Value, str, Value, str], Finding],
) -> list[Finding]:
    """A finding for each host that differs from those it works with: ``say(host, its, other, theirs, company)``."""
    found: dict[str, Finding] = {}
    for company, names in hosts.items():
        for host, its, other, theirs in odd({name: values[name] for name in names if name in values}):
            found.setdefault(host, say(host, its, other, theirs, company))
    return list(found.values())


def named(indices: Iterable[int]) -> str:
    """``device 3`` or ``devices 0-3, 7``."""
    numbers = sorted(set(indices))
    return f"device {numbers[0]}" if len(numbers) == 1 else f"devices {span(numbers)}"


def processes(pids: Iterable[tuple[int, str]]) -> str:
    """``process 101 (python)``, or ``processes 101, 102, 103 and 5 more (python)``."""
    its = dict(sorted(pids))
    names = ", ".join(sorted(set(its.values())))
    shown = ", ".join(str(pid) for pid in list(its)[:3])
    more = f" and {len(its) - 3} more" if len(its) > 3 else ""
    return f"process{'es' if len(its) > 1 else ''} {shown}{more} ({names})"


def by_size(others: Iterable[Holder]) -> list[tuple[Callable[..., Finding], list[Holder]]]:
    """Processes of others that stop a run, and those that are told and no more: with a small context on each device."""
    its = list(others)
    large = {p.pid for p in its if p.memory is None or p.memory >= SMALL}
    parts = [(error, [p for p in its if p.pid in large]), (warning, [p for p in its if p.pid not in large])]
    return [(say, part) for say, part in parts if part]


def alike(texts: Mapping[int, str]) -> list[tuple[str, str]]:
    """(devices, text): devices of which the same is said, together."""
    by_text: dict[str, list[int]] = {}
    for index in sorted(texts):
        by_text.setdefault(texts[index], []).append(index)
    return [(named(indices), text) for text, indices in by_text.items()]


def tight(plan: Plan, node: Node, memory: Mapping[int, int | None]) -> tuple[str, str] | None:
    """(what is too little, what the plan counts on), where this host's devices are smaller than that; in MiB a device.

    Where they are as the plan takes them to be, its own check has told what there is to tell.
    """
    platform = plan.recipe.platform
    counted = plan.recipe.device_memory_gb or sizes.USUAL_GB.get(platform)
    for instance in scope.instances(plan, node):
        mine = [size for m in instance.members if m.node is node for i in m.devices if (size := memory.get(i))]
        if not mine or plan.recipe.model.weights_gb is None:
            continue
        smallest = min(mine)
        if counted and smallest > 0.97 * counted * sizes.MIB_PER_GB[platform]:
            continue
        share, _ = sizes.weights(plan.recipe.model, instance.spec)
        part = look.utilisation(plan.recipe.engine.version, instance.spec)
        usable = sizes.usable(smallest / 1024, part, platform)
        if usable - share < LEAST_ROOM:
            said = f"the weights take {share:.1f} GiB of the {usable:.1f} GiB that the engine may use on each device"
            return said, f"the recipe counts on {counted:g} GB a device" if counted else "it needs 2 GiB besides"
    return None
