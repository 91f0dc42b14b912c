"""Which ports a plan uses on each host, which it must keep clear of, and where two things would meet.

Sources: vLLM and vllm-ascend defaults; HCCL environment reference (host 60000-60031, device 16666); Ray's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from fleet.findings import Finding, error
from fleet.inventory import Fleet, Node
from fleet.recipe import Recipe, Role
from fleet.topology import Instance, Plan, Unit, platform_of

API_PORT = 8000
NIXL_PORT = 5600
RAY_PORT = 6379
# The members of an instance over several hosts tell each other there that they live.
GROUP_PORT = 7390
# A set's router, and the cache-aware one, where the front door stands before them.
ROUTER_PORT = 8200
ROUTER_METRICS_PORT = 29000
# Handshake ports of one instance lie in [kv_port, kv_port + world size); instances are spaced at least this far.
KV_PORT_STRIDE = 100
# Ray's client server, on its head; its workers take the ports above.
RAY_CLIENT_PORT = 10001
RAY_WORKER_PORTS = range(10002, 20000)


def kv_stride(roles: Iterable[Role]) -> int:
    """How far apart the handshake ports of two instances are: room for the largest, in whole hundreds."""
    largest = max((role.world_size for role in roles), default=1)
    return max(KV_PORT_STRIDE, math.ceil(largest / KV_PORT_STRIDE) * KV_PORT_STRIDE)


def kv_base(recipe: Recipe, fleet: Fleet) -> int | None:
    """The first handshake port of the whole service, or None where nothing is transferred."""
    if recipe.kv_transfer is None:
        return None
    return (recipe.kv_transfer.port or NIXL_PORT) + fleet.settings.port_offset


def handshake_ports(instance: Instance) -> range:
    """Every rank and device of the instance has a handshake port of its own."""
    if instance.kv_port is None:
        return range(0)
    return range(instance.kv_port, instance.kv_port + instance.spec.world_size)


def reserved_on(plan: Plan, node: Node) -> Iterator[tuple[range, str]]:
    """Ports of a host that belong to something which the plan does not place."""
    units = [u for u in plan.units_of(node.name) if u.serves_model]
    if own := platform_ports(plan, node):
        yield own
    if any(u.kind == "ray" for u in units) and not node.settings.port_offset:
        yield RAY_WORKER_PORTS, "Ray's workers"
    yield range(22, 23), "sshd"


def platform_ports(plan: Plan, node: Node) -> tuple[range, str] | None:
    """Ports that the machine family's own software takes on a host for this service, and whose they are."""
    units = [u for u in plan.units_of(node.name) if u.serves_model]
    if not units:
        return None
    return platform_of(plan.recipe).own_ports(units[0].device_indices if node.settings.shares_host else ())


def conflicts(plan: Plan) -> list[Finding]:
    """Ports that do not exist, that two units of one host want, or that are reserved there."""
    return [*_too_high(plan), *_shared(plan), *_in_handshakes(plan), *_in_reserved(plan)]


def _finding(plan: Plan, host: str, what: str, mend: str) -> Finding:
    return error("PLAN-PORTS", f"{plan.fleet.source} {host}", what, mend)


def _too_high(plan: Plan) -> Iterator[Finding]:
    """One finding for each purpose: the ports of many instances run out together."""
    beyond: dict[str, list[tuple[Unit, int]]] = {}
    for unit in plan.units:
        for purpose, port in unit.ports.items():
            if port > 65535:
                beyond.setdefault(purpose, []).append((unit, port))
    for purpose, its in beyond.items():
        unit, port = its[0]
        what = f"{unit.name} would need port {port} for {purpose}{_and_more(its)}"
        yield _finding(plan, unit.host, what, "lower the base port, or split the inventory")
    last = [(i, p[-1]) for i in plan.instances if (p := handshake_ports(i)) and p.start <= 65535 < p[-1]]
    if last:
        instance, port = last[0]
        what = f"{instance.name} would need handshake ports up to {port}{_and_more(last)}"
        yield _finding(plan, instance.head.name, what, "lower kv_transfer.port, or split the inventory")


def _and_more(found: Sequence[object]) -> str:
    return f", and {len(found) - 1} more beyond 65535" if len(found) > 1 else ""


def _shared(plan: Plan) -> Iterator[Finding]:
    taken: dict[tuple[str, int], tuple[Unit, str]] = {}
    for unit in plan.units:
        for purpose, port in unit.ports.items():
            other, its = taken.setdefault((unit.host, port), (unit, purpose))
            if (other, its) != (unit, purpose):
                what = f"{unit.name} and {other.name} both want port {port}"
                if other is unit:
                    what = f"{unit.name} wants port {port} both for {its} and for {purpose}"
                mend = "give one of them another port (proxy.port or port of the role in the recipe)"
                yield _finding(plan, unit.host, what, mend)


def _in_handshakes(plan: Plan) -> Iterator[Finding]:
    for instance in plan.instances:
        handshakes = handshake_ports(instance)
        for unit in (u for m in instance.members for u in plan.units_of(m.node.name) if handshakes):
            for purpose, port in unit.ports.items():
                if port in handshakes and (unit.instance, purpose) != (instance.name, "kv"):
                    what = f"{unit.name} wants port {port}, a handshake port of {instance.name}"
                    mend = f"choose one outside {handshakes.start}-{handshakes.stop - 1}"
                    yield _finding(plan, unit.host, what, mend)


def _in_reserved(plan: Plan) -> Iterator[Finding]:
    for node in plan.fleet.nodes:
        for ports, owner in reserved_on(plan, node):
            for unit in plan.units_of(node.name):
                for purpose, port in unit.ports.items():
                    if port in ports:
                        what = f"{unit.name} wants port {port} for {purpose}, which belongs to {owner}"
                        mend = f"choose one outside {ports.start}-{ports.stop - 1}"
                        yield _finding(plan, node.name, what, mend)
            for instance in plan.instances_of(node.name):
                own = handshake_ports(instance)
                if own.start < ports.stop and ports.start < own.stop:
                    what = f"handshake ports {own.start}-{own.stop - 1} of {instance.name} meet those of {owner}"
                    yield _finding(
                        plan, node.name, what, f"set kv_transfer.port outside {ports.start}-{ports.stop - 1}"
                    )
