"""What opens a host to others, or runs code of others."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleet.checks import look
from fleet.findings import Finding, warning
from fleet.inventory import Node, span
from fleet.prepare import wall
from fleet.topology import Plan


def unchecked_code(plan: Plan) -> Iterator[Finding]:
    """Code that comes with the weights is run."""
    if any(i.spec.args.get("trust-remote-code") for i in plan.instances):
        yield warning(
            "SECURITY-REMOTE-CODE",
            plan.fleet.recipe,
            "trust-remote-code runs code that comes with the weights",
            "remove it where the engine knows the model, as it does Qwen3",
        )


def open_to_the_world(plan: Plan) -> Iterator[Finding]:
    """An engine's own port asks for no key: on a public address anybody may use it, whatever stands before it."""
    settings = plan.fleet.settings
    serving = {name for i in plan.instances for name in (m.node.name for m in i.members)}
    public = [n for n in _public(plan) if n.name in serving]
    behind = any(u.kind == "proxy" for u in plan.units)
    if public and not (settings.firewall and (behind or settings.api_networks)):
        keys = bool(settings.api_keys)
        port = plan.instances[0].api_port
        yield warning(
            "SECURITY-OPEN",
            look.hosts(plan, [n.name for n in public]),
            f"the engines listen on port {port} of public addresses, and ask for no key"
            + (" (only the front door does)" if keys else ""),
            f"let a firewall close port {port} to all but the fleet"
            + (" (firewall = True)" if behind else " (firewall = True, with api_networks)")
            + ("" if keys else ", and set api_keys for the front door"),
            "anybody who reaches the port can use the model, and the engine's other paths too",
            "vLLM security guide",
        )


def open_api(plan: Plan) -> Iterator[Finding]:
    """Where clients come in, nothing asks who they are: behind a firewall that was asked for, or on public addresses.

    Engines on public addresses without anything before them are told by ``open_to_the_world``.
    """
    settings = plan.fleet.settings
    if settings.firewall and settings.api_networks:
        return
    entries = [n for n in plan.fleet.nodes if wall.client_ports(plan, n)]
    at = span(sorted({port for n in entries for port in wall.client_ports(plan, n)}))
    if settings.firewall:
        what = f"the firewall leaves API port {at} open to everybody" + (", who needs no key" * (not settings.api_keys))
        mend = "name the networks of your clients: api_networks = ['10.0.0.0/8']"
        yield warning("SECURITY-API-OPEN", plan.fleet.source, what, mend, source="vLLM security guide")
        return
    public = [n for n in _public(plan) if n in entries]
    if public and not settings.api_keys and any(u.kind == "proxy" for u in plan.units):
        what = f"port {at} of public addresses is the API, and asks for no key"
        mend = "set api_keys and tls_certificate, or firewall = True with api_networks"
        where = look.hosts(plan, [n.name for n in public])
        yield warning("SECURITY-API-OPEN", where, what, mend, source="vLLM security guide")


def keys_in_plain(plan: Plan) -> Iterator[Finding]:
    """A key that crosses the network as it is belongs to whoever listens."""
    settings = plan.fleet.settings
    if settings.api_keys and not settings.tls_certificate:
        what = "clients send their API keys over plain HTTP"
        mend = "set tls_certificate; where something else encrypts on the way, waive this rule"
        why = "whoever sees the traffic has the key"
        yield warning("SECURITY-PLAIN-KEYS", plan.fleet.source, what, mend, why)


def networks_of_nobody(plan: Plan) -> Iterator[Finding]:
    """Who reads the inventory would think that others are kept out."""
    settings = plan.fleet.settings
    if settings.api_networks and not settings.firewall:
        what = "api_networks is given and firewall is off, so the API is open to everybody"
        yield warning("SECURITY-NETWORKS", plan.fleet.source, what, "set firewall = True, or take api_networks out")


def _public(plan: Plan) -> list[Node]:
    return [n for n in plan.fleet.nodes if ipaddress.ip_address(n.address).is_global]


CHECKS = (unchecked_code, open_to_the_world, open_api, keys_in_plain, networks_of_nobody)
