"""How checks look at a plan: role by role where a fault is the recipe's, so that a hundred replicas tell it once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from fleet.recipe import Role
from fleet.topology import Instance, Plan, Unit

# What an unset argument stands for (vLLM's defaults since 0.9, for an API server on devices of 64 GB and more).
DEFAULT_UTILISATION = 0.9
DEFAULT_BATCHED_TOKENS = 8192
# From this release on gpu_memory_utilization is more by default (config/cache.py).
MORE_UTILISATION = (Version("0.20.0"), 0.92)


def roles(plan: Plan) -> Iterator[tuple[str, Instance]]:
    """``recipe role`` and the first instance of each role of the recipe."""
    for name in plan.recipe.roles:
        for instance in plan.of_role(name)[:1]:
            yield f"{plan.fleet.recipe} {name}", instance


def engines(plan: Plan) -> dict[str, list[Unit]]:
    """Units that serve the model, by instance: one of each host, its environment is that of its ranks."""
    found: dict[str, list[Unit]] = {}
    for unit in plan.units:
        if unit.serves_model:
            its = found.setdefault(unit.instance, [])
            if all(other.host != unit.host for other in its):
                its.append(unit)
    return found


def first_env(plan: Plan) -> dict[str, Mapping[str, str]]:
    """The environment of each instance's first host."""
    return {name: units[0].env for name, units in engines(plan).items()}


def number(value: object) -> int | None:
    """An argument or variable as a whole number."""
    try:
        return int(str(value))
    except ValueError:
        return None


def overrides(spec: Role) -> dict[str, Any]:
    """--hf-overrides, given as a mapping, as text, or by paths into it."""
    given = spec.args.get("hf-overrides")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    found = dict(given) if isinstance(given, dict) else {}
    for name, value in spec.args.items():
        head, _, path = name.partition(".")
        if head == "hf-overrides" and path:
            key, *below = path.split(".")
            for part in reversed(below):
                value = {part: value}
            found[key] = {**found[key], **value} if isinstance(value, dict) and key in found else value
    return found


def utilisation(version: Version, spec: Role) -> float:
    """--gpu-memory-utilization, or what it is by default; what the engine refuses is told elsewhere."""
    since, more = MORE_UTILISATION
    default = more if version >= since else DEFAULT_UTILISATION
    given = fraction(spec.args.get("gpu-memory-utilization"), default)
    return given if 0 < given <= 1 else default


def fraction(value: object, default: float) -> float:
    """An argument as a number that may have a point."""
    try:
        return float(str(value))
    except ValueError:
        return default


def on(value: object) -> bool:
    """Whether a variable or argument switches something on."""
    return str(value).strip().lower() in ("1", "true", "yes", "on")


def expert_parallel_size(spec: Role) -> int:
    """Devices that the experts are spread over; 1 where expert parallelism is off."""
    if not on(spec.args.get("enable-expert-parallel")):
        return 1
    return spec.tensor_parallel_size * spec.data_parallel_size


def listed(names: list[str]) -> str:
    """Three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def hosts(plan: Plan, names: list[str]) -> str:
    """Where something is said of these hosts."""
    return f"{plan.fleet.source} {listed(names)}"
