"""Whether what is left of a fleet can still serve."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from fleet.topology import Instance, Plan, Set


def unserved(plan: Plan, lost: AbstractSet[str]) -> str:
    """The role or duty for which nothing whole is left without the lost hosts, or nothing."""
    if plan.sets:
        for role in ("prefill", "decode"):
            if not any(_is_whole(i, lost) for i in plan.of_role(role)):
                return role
        if not any(_serves(s, lost, plan) for s in plan.sets):
            return "a whole set"
    elif not any(_is_whole(i, lost) for i in plan.instances):
        return "serve"
    proxies = {u.host for u in plan.units if u.kind == "proxy"}
    return "proxy" if proxies and proxies <= lost else ""


def _serves(one: Set, lost: AbstractSet[str], plan: Plan) -> bool:
    """One whole instance of each role, and the router before them where it is not the entry."""
    routed = any(u.kind == "router" for u in plan.units)
    whole = all(any(_is_whole(i, lost) for i in its) for its in (one.prefill, one.decode))
    return whole and not (routed and one.router_host.name in lost)


def _is_whole(instance: Instance, lost: AbstractSet[str]) -> bool:
    return not any(m.node.name in lost for m in instance.members)
