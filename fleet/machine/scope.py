"""What of a plan a host has, as the checks of machines need it."""

from __future__ import annotations

from fleet import ports
from fleet.inventory import Node
from fleet.topology import Instance, Plan, Unit


def engines(plan: Plan, node: Node) -> tuple[Unit, ...]:
    """The host's units that serve the model."""
    return tuple(u for u in plan.units_of(node.name) if u.serves_model)


def in_docker(plan: Plan, node: Node) -> tuple[Unit, ...]:
    """The host's units that have a container of their own."""
    return tuple(u for u in plan.units_of(node.name) if u.runtime == "docker" and not u.inside)


def natives(plan: Plan, node: Node) -> tuple[Unit, ...]:
    """The host's units that serve the model outside a container."""
    return tuple(u for u in engines(plan, node) if u.runtime == "native")


def instances(plan: Plan, node: Node) -> tuple[Instance, ...]:
    """The instances that run on the host, wholly or with a part."""
    return tuple(i for i in plan.instances if any(m.node is node for m in i.members))


def works_with_others(plan: Plan, node: Node) -> bool:
    """Whether the host's engines talk to engines of other hosts: an instance over several, or a KV transfer."""
    its = instances(plan, node)
    return any(i.is_group for i in its) or (bool(its) and plan.recipe.kv_transfer is not None)


def peer_ports(plan: Plan, node: Node) -> tuple[int, ...]:
    """Ports that engines of the host listen at for other engines, in order: none of them is for clients."""
    found: set[int] = set()
    for instance in instances(plan, node):
        found |= set(ports.handshake_ports(instance))
        if instance.is_group:
            found.add(instance.group_port)
            found |= {instance.rpc_port} if instance.head is node else set()
            found |= set(own[0]) if (own := ports.platform_ports(plan, node)) else set()
    return tuple(sorted(found))
