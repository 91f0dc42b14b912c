"""All checks of machines, as one: what to ask a host besides the snapshot's own questions, and what to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.findings import Finding
from fleet.inventory import Node
from fleet.machine import devices, docker, host, network, owners, weights
from fleet.topology import Plan


@dataclass(frozen=True)
class Machine:
    """What each module read from a host's answer."""

    owners: owners.State = field(default_factory=owners.State)
    host: host.State = field(default_factory=host.State)
    network: network.State = field(default_factory=network.State)
    docker: docker.State | None = None
    weights: weights.State = field(default_factory=weights.State)
    devices: devices.State | None = None


def sections(plan: Plan, node: Node, whole: bool = True) -> list[str]:
    """Shell text, each part beginning with the mark of its section; what takes long only where the ``whole`` is
    wanted, or the service does not run."""
    asking = (owners, host, network, docker, weights)
    return [part for module in asking for part in module.sections(plan, node)] + devices.sections(plan, node, whole)


def parse(found: Mapping[str, list[str]]) -> Machine:
    """What the sections say."""
    return Machine(
        owners=owners.parse(found),
        host=host.parse(found),
        network=network.parse(found),
        docker=docker.parse(found),
        weights=weights.parse(found),
        devices=devices.parse(found),
    )


def judge(plan: Plan, node: Node, machine: Machine) -> list[Finding]:
    """What is wrong with one host."""
    ours = owners.processes(plan, node, machine.owners)
    return [
        *host.judge(plan, node, machine.host),
        *network.judge(plan, node, machine.network),
        *network.walled(plan, node, machine.network, machine.host.active or frozenset()),
        *docker.judge(plan, node, machine.docker),
        *weights.judge(plan, node, machine.weights),
        *devices.judge(plan, node, machine.devices, ours, owners.serving(plan, node, machine.owners)),
    ]


def between(plan: Plan, machines: Mapping[str, Machine]) -> list[Finding]:
    """What does not agree over hosts."""
    return [
        *host.between(plan, {name: m.host for name, m in machines.items()}),
        *network.between(plan, {name: m.network for name, m in machines.items()}),
        *devices.between(plan, {name: m.devices for name, m in machines.items()}),
    ]
