"""Addresses and interfaces that somebody wrote by hand, where each host's own is derived; names that look alike."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Plan

ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST")
INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")
# Interfaces that lead nowhere outside the host.
INSIDE = ("docker", "veth", "virbr")


def written_by_hand(plan: Plan) -> Iterator[Finding]:
    """One address for several hosts, none, or one that only the host itself reaches."""
    own = {node.name: node.address for node in plan.fleet.nodes}
    users: dict[tuple[str, str], list[str]] = {}
    for units in look.engines(plan).values():
        for unit in units:
            for name in ADDRESSES:
                if name in unit.env and unit.env[name] != own[unit.host]:
                    users.setdefault((name, unit.env[name]), []).append(unit.host)
            for name in INTERFACES:
                if name in unit.env and _leads_nowhere(unit.env[name]):
                    users.setdefault((name, unit.env[name]), []).append(unit.host)
    for (name, value), hosts in users.items():
        if name in INTERFACES:
            what = f"{name} is {value or 'empty'}"
            why = "peers are then not found, or looked for where they are not"
        elif not value or value.startswith(LOOPBACK):
            what = f"{name} is {value or 'empty'}, which no other host reaches"
            why = "peers connect to themselves, and fail or compute everything again"
        elif len(hosts) > 1 or value in own.values():
            what = f"{name} is {value} on {hosts[0]}" + (f" and on {hosts[1]}" if len(hosts) > 1 else "")
            why = "each host needs its own"
        else:
            continue  # another of the host's own addresses
        mend = "leave it out: it is derived from the host's address"
        yield error("ENV-ADDRESS", look.hosts(plan, hosts), what, mend, why, "vLLM issue 27083; HCCL guide, EI0001")


def _leads_nowhere(interface: str) -> bool:
    """Whether a variable names no interface, or one inside the host; ``=`` before it makes the name exact."""
    name = interface.strip().lstrip("=")
    return not name or name == "lo" or name.startswith(INSIDE)


def names_alike(plan: Plan) -> Iterator[Finding]:
    """Names that differ in upper and lower case only are one name to DNS."""
    seen: dict[str, str] = {}
    for node in plan.fleet.nodes:
        other = seen.setdefault(node.name.lower(), node.name)
        if other != node.name:
            yield warning(
                "HOST-NAMES",
                plan.fleet.source,
                f"{node.name} and {other} differ in upper and lower case only",
                "give hosts names that differ",
                "they are one name to DNS and to known_hosts, so both may lead to the same host",
            )


CHECKS = (written_by_hand, names_alike)
