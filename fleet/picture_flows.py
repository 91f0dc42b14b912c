"""Who talks to whom in a plan: what the arrows of its picture stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fleet.topology import Instance, Plan, Set, Unit

# In this order their lines lie beside each other, and the legend names them.
FlowKind = Literal["requests", "kv", "rpc", "ray", "watch"]
Route = Literal["outer", "between", "down"]
KINDS: tuple[FlowKind, ...] = ("requests", "kv", "rpc", "ray", "watch")
CLIENTS = "clients"


@dataclass(frozen=True)
class Flow:
    """Every source to every target, by ``Unit.at``. Without a source, the targets talk to each other.

    An ``outer`` flow leads round the hosts, since it enters frames from outside; one ``between`` lies between the
    columns; one ``down`` goes to the next unit of the same host.
    """

    kind: FlowKind
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    route: Route = "between"


def flows(plan: Plan) -> list[Flow]:
    """All flows of a plan, from the clients on down."""
    found = [Flow("requests", (CLIENTS,), _entries(plan), route="outer"), *_routed(plan)]
    for one in plan.sets:
        found.append(Flow("kv", _engines(plan, one.prefill), _engines(plan, one.decode)))
    for instance in plan.instances:
        if instance.is_group:
            found += _inside(plan, instance)
    return [flow for flow in found if flow.targets]


def _entries(plan: Plan) -> tuple[str, ...]:
    return _at(u for u in plan.units if u.kind == "proxy") or _heads(plan, plan.instances)


def _routed(plan: Plan) -> list[Flow]:
    """From the entries to the instances, by the routers between them."""
    entries = tuple(u for u in plan.units if u.kind == "proxy")
    routers = tuple(u for u in plan.units if u.kind == "router")
    if not entries:
        return []
    if plan.sets and routers:
        to_routers = Flow("requests", _at(entries), _at(routers), route="outer")
        return [to_routers, *(_of_set(plan, one, _router_of(one, routers)) for one in plan.sets)]
    if plan.sets:
        return [_of_set(plan, one, entries) for one in plan.sets]
    found = [Flow("requests", (e.at,), (r.at,), route="down") for e in entries for r in routers if r.host == e.host]
    return [*found, Flow("requests", _at(routers or entries), _heads(plan, plan.instances))]


def _router_of(one: Set, routers: tuple[Unit, ...]) -> tuple[Unit, ...]:
    return tuple(r for r in routers if r.instance.endswith(f"-{one.index}"))


def _of_set(plan: Plan, one: Set, routers: tuple[Unit, ...]) -> Flow:
    return Flow("requests", _at(routers), _heads(plan, one.instances))


def _inside(plan: Plan, instance: Instance) -> list[Flow]:
    """What the hosts of one instance say to each other."""
    found = []
    units = [u for u in plan.units if u.instance == instance.name]
    if rays := [u for u in units if u.kind == "ray"]:
        found.append(Flow("ray", _at(rays[:1]), _at(rays[1:])))
    elif "rpc" in units[0].ports:
        found.append(Flow("rpc", _at(units[:1]), _at(units[1:])))
    return [*found, Flow("watch", (), _at(u for u in units if u.group))]


def _engines(plan: Plan, instances: tuple[Instance, ...]) -> tuple[str, ...]:
    names = {i.name for i in instances}
    return _at(u for u in plan.units if u.kind == "engine" and u.instance in names)


def _heads(plan: Plan, instances: tuple[Instance, ...]) -> tuple[str, ...]:
    heads = {(i.name, i.head.name) for i in instances}
    return _at(u for u in plan.units if u.kind == "engine" and (u.instance, u.host) in heads)


def _at(units: Iterable[Unit]) -> tuple[str, ...]:
    return tuple(u.at for u in units)
