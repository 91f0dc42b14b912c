"""Several services on one host: what each takes there, and where two of them would meet.

Services of one host are inventories of their own, each with its ``service`` name, its ``devices`` and its ports
(``port_offset``): they are deployed, upgraded and removed without a look at each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from fleet import ports
from fleet.findings import Finding, error
from fleet.inventory import Node, span
from fleet.topology import Plan


@dataclass(frozen=True)
class Claims:
    """What a service takes on one host: device indices, and ports with what uses each."""

    service: str
    devices: frozenset[int] = frozenset()
    ports: Mapping[int, str] = field(default_factory=dict)

    @property
    def called(self) -> str:
        return f"service {self.service}" if self.service else "the service without a name"


def claims(plan: Plan, node: Node) -> Claims:
    """What the plan takes on this host."""
    devices: set[int] = set()
    used: dict[int, str] = {}
    for unit in plan.units_of(node.name):
        devices |= set(unit.device_indices) if plan.recipe.platform != "cpu" else set()
        used |= {port: unit.name for port in unit.ports.values()}
    for instance in plan.instances:
        if any(m.node is node for m in instance.members):
            used |= {p: f"{instance.name}'s handshakes" for p in ports.handshake_ports(instance) if p not in used}
    if own := ports.platform_ports(plan, node):
        used |= dict.fromkeys(*own)
    return Claims(plan.fleet.settings.service, frozenset(devices), used)


def read_claims(manifest: str) -> Claims | None:
    """The claims in a manifest; None for one that cannot be read."""
    try:
        data = json.loads(manifest)
        used = {int(port): str(user) for port, user in data.get("ports", {}).items()}
        devices = data.get("devices", [])
        if not isinstance(devices, list) or not all(type(d) is int for d in devices):
            return None
        return Claims(str(data.get("service", "")), frozenset(devices), used)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def meetings(where: str, mine: Claims, other: Claims) -> list[Finding]:
    """Devices and ports that both want on one host."""
    found = []
    devices = sorted(mine.devices & other.devices)
    if devices:
        what = f"{_counted('device', devices)} belong{'s' * (len(devices) == 1)} to {other.called} too"
        mend = "give each service its own with devices = '0-7' and devices = '8-15'"
        found.append(error("PLAN-SHARING", where, what, mend))
    both = sorted(set(mine.ports) & set(other.ports))
    if both:
        what = f"{_counted('port', both)} ({mine.ports[both[0]]}) {'is' if len(both) == 1 else 'are'} taken"
        what += f" by {other.called} ({other.ports[both[0]]})"
        found.append(error("PLAN-SHARING", where, what, "give one of the inventories another port_offset"))
    return found


def between(plans: Sequence[Plan]) -> list[Finding]:
    """Where the services of several inventories would meet on a host, by its address."""
    found = []
    for one, two in combinations(plans, 2):
        addresses = {node.address: node for node in two.fleet.nodes}
        for node in one.fleet.nodes:
            other = addresses.get(node.address)
            if other is None:
                continue
            where = f"{one.fleet.source} and {two.fleet.source} {node.name}"
            if one.fleet.settings.service == two.fleet.settings.service:
                what = "both are the same service, so each would replace the other"
                found.append(error("PLAN-SHARING", where, what, "name one: service = 'chat'"))
            else:
                found += meetings(where, claims(one, node), claims(two, other))
    return found


def _counted(word: str, numbers: Sequence[int]) -> str:
    """``devices 8-11, 14``."""
    return f"{word}{'s' * (len(numbers) > 1)} {span(numbers)}"
