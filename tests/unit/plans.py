"""Fleets and plans for tests, from a recipe's text and groups of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet import inventory, yamlfile
from fleet.plan import plan
from fleet.recipe import Recipe
from fleet.topology import Plan


def fleet_of(data: dict[str, Any], **groups: list[Any]) -> inventory.Fleet:
    """Each host is its address, or a name with one; ``data`` is every host's, ``of`` in it a host's own."""
    shared = {key: value for key, value in data.items() if key != "of"}
    own = data.get("of", {})
    pairs = {role: [h if isinstance(h, tuple) else (h, h) for h in hosts] for role, hosts in groups.items()}
    merged = {
        n: {"recipe": "r", "address": at, **shared, **own.get(n, {})} for hosts in pairs.values() for n, at in hosts
    }
    return inventory.build("fleet.py", {role: [n for n, _ in hosts] for role, hosts in pairs.items()}, merged)


def lay(text: str, data: dict[str, Any], **groups: list[Any]) -> Plan:
    """The plan of a recipe's text over ``fleet_of``."""
    return plan(fleet_of(data, **groups), Recipe.model_validate(yamlfile.parse(text, Path("r.yaml")).data))
