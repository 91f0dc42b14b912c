"""What opens a host to others, or runs code of others."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleet.checks import look
from fleet.findings import Finding, warning
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
    serving = {name for i in plan.instances for name in (m.node.name for m in i.members)}
    public = [n for n in plan.fleet.nodes if n.name in serving and ipaddress.ip_address(n.address).is_global]
    if public:
        keys = bool(plan.fleet.settings.api_keys)
        port = plan.instances[0].api_port
        yield warning(
            "SECURITY-OPEN",
            look.hosts(plan, [n.name for n in public]),
            f"the engines listen on port {port} of public addresses, and ask for no key"
            + (" (only the front door does)" if keys else ""),
            f"let a firewall close port {port} to all but the fleet"
            + ("" if keys else ", and set api_keys for the front door"),
            "anybody who reaches the port can use the model, and the engine's other paths too",
            "vLLM security guide",
        )


CHECKS = (unchecked_code, open_to_the_world)
