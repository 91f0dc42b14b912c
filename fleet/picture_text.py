"""The words of a picture: what is written at a host and a unit, and how wide it will be.

A picture has no font of its own, so widths are those of DejaVu Sans, the widest of what viewers commonly take.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from fleet.inventory import Node, span
from fleet.ports import handshake_ports
from fleet.topology import Instance, Plan, Unit

BIG, SMALL = 13, 12
FAMILIES = {"ascend-a2": "Atlas 800 A2", "ascend-a3": "Atlas 800 A3", "nvidia": "NVIDIA HGX", "cpu": "CPU"}
_WIDTHS = {
    0.33: "ijlI.,:;'|!",
    0.43: "frt()[]-/ ",
    0.66: "bdghknopquxyvTFELYZJPSRKX+=<>0123456789",
    0.82: "wABCDGHNOQUV~#",
    1.0: "mMW@%",
}
_EM = {char: width for width, chars in _WIDTHS.items() for char in chars}


def width(text: str, size: float, bold: bool = False) -> float:
    """How wide the text is at most, in the units of its size."""
    return sum(_em(char) for char in text) * size * (1.1 if bold else 1.0)


def _em(char: str) -> float:
    if char in _EM:
        return _EM[char]
    return 1.05 if unicodedata.east_asian_width(char) in "WF" else 0.66 if char.islower() else 0.8


def fit(text: str, room: float, size: float, bold: bool = False, keep_end: bool = False) -> str:
    """The text, shortened with ... where there is no room; a name that differs in its end keeps that too."""
    if width(text, size, bold) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        tail = kept // 3 if keep_end else 0
        short = text[: kept - tail] + "..." + text[len(text) - tail :]
        if width(short, size, bold) <= room:
            return short
    return "..."


def wrap(parts: Iterable[str], room: float, size: float, joint: str = ", ") -> list[str]:
    """The parts joined into as few lines as they need; one that fits no line is shortened."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{joint}{part}" if lines else part
        if lines and width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fit(part, room, size))
    return lines


def counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def title(plan: Plan) -> str:
    """What is served, by how much."""
    engines = [counted(len(plan.of_role("serve")), "instance")] if plan.of_role("serve") else []
    engines += [f"{len(its)} {role}" for role in ("prefill", "decode") if (its := plan.of_role(role))]
    sets = f" in {len(plan.sets)} sets" if len(plan.sets) > 1 else ""
    service = f"service {plan.fleet.settings.service}: " if plan.fleet.settings.service else ""
    return f"{service}{', '.join(engines)}{sets} on {counted(len(plan.fleet.nodes), 'host')}"


def sizes(instance: Instance) -> str:
    """``TP4 x DP8``; what is one is left out."""
    spec = instance.spec
    named = (
        ("TP", spec.tensor_parallel_size),
        ("PP", spec.pipeline_parallel_size),
        ("DP", spec.data_parallel_size),
    )
    return " x ".join(f"{word}{size}" for word, size in named if size > 1) or "TP1"


def short_name(plan: Plan, unit: Unit, with_service: bool) -> str:
    """The unit's name without what all have in common."""
    service = plan.fleet.settings.service
    name = unit.name.removeprefix("vllm-").removeprefix(f"{service}-")
    return f"{service} {name}" if with_service else name


def host_lines(plan: Plan, node: Node, room: float) -> list[tuple[str, str]]:
    """Name, address and machine family, as lines of a left and a right end."""
    what = FAMILIES[plan.recipe.platform]
    if node.name == node.address:
        return [(node.name, what)]
    name = fit(node.name, room, BIG, bold=True, keep_end=True)
    address = fit(node.address, room, SMALL, keep_end=True)
    if width(f"{address}  {what}", SMALL) <= room:
        return [(name, ""), (address, what)]
    return [(name, ""), (address, ""), (what, "")]


def host_room(node: Node) -> float:
    """What name and address need."""
    return max(width(node.name, BIG, bold=True), width(node.address, SMALL))


def duty(plan: Plan, unit: Unit) -> str:
    """What the unit does beside its name: its ranks, or what kind of router it is."""
    instance = plan.instance(unit.instance)
    if instance is None:
        program = unit.argv[0]
        return {"haproxy": "HAProxy", "vllm-router": "vllm-router"}.get(program, "vllm-ascend")
    if unit.kind == "ray":
        return "head" if unit.role == "ray-head" else "worker"
    member = next(m for m in instance.members if m.node.name == unit.host)
    if instance.spec.executor == "ray" and instance.is_group:
        return sizes(instance)
    ranks = range(member.start_rank, member.start_rank + member.local_size)
    per_rank = f"TP{instance.spec.tensor_parallel_size}"
    if instance.spec.pipeline_parallel_size > 1:
        per_rank += f" x PP{instance.spec.pipeline_parallel_size}"
    return f"rank{'s' * (len(ranks) > 1)} {span(ranks)}, {per_rank}"


def place(plan: Plan, unit: Unit) -> str:
    """On which devices, and in what it runs."""
    if unit.inside:
        return "in the container of Ray's head"
    how = "Docker" if unit.runtime == "docker" else "native"
    if not unit.serves_model:
        return ("entry for clients, " if unit.kind == "proxy" else "router, ") + how
    word = "NPU" if plan.recipe.platform.startswith("ascend") else "GPU"
    what = f"{word}s {span(unit.device_indices)}" if plan.recipe.platform != "cpu" else "CPU"
    headless = ", no API" if "--headless" in unit.argv else ""
    return f"{what}, {how}{headless}"


def ports(plan: Plan, unit: Unit) -> list[tuple[str, str]]:
    """Purpose and number of each port; the handshakes of a transfer have one for every rank and device."""
    instance = plan.instance(unit.instance)
    found = []
    for purpose, port in unit.ports.items():
        handshakes = handshake_ports(instance) if instance and purpose == "kv" else range(0)
        last = f"-{handshakes[-1]}" if len(handshakes) > 1 else ""
        found.append((purpose, f"{port}{last}"))
    return found
