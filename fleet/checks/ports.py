"""Ports against each other and against what else takes them."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet import ports
from fleet.checks import look
from fleet.findings import Finding, warning
from fleet.inventory import span
from fleet.topology import Plan, platform_of

# Linux gives outgoing connections a port from here (net.ipv4.ip_local_port_range).
EPHEMERAL = range(32768, 61000)


def kv_port_in_direct_range(plan: Plan) -> Iterator[Finding]:
    """AscendDirect takes random ports in [20000, 20000 + 1000 x devices) up to Mooncake 0.3.7.post2."""
    transfer = plan.recipe.kv_transfer
    if transfer is None or transfer.connector != "MooncakeConnectorV1":
        return
    stride = 1000 if plan.recipe.engine.version < Version("0.18.0") else 100
    inside: list[tuple[str, int, int]] = []
    for instance in plan.instances:
        devices = instance.head.settings.device_indices(platform_of(plan.recipe).devices_per_host)
        end = 20000 + stride * (max(devices) + 1)
        if instance.kv_port is not None and 20000 <= instance.kv_port < end:
            inside.append((instance.name, instance.kv_port, end))
    if inside:
        ports_of = ", ".join(str(port) for _, port, _ in inside[:4]) + (", ..." if len(inside) > 4 else "")
        end = max(end for _, _, end in inside)
        yield warning(
            "PORT-KV-DIRECT",
            f"{plan.fleet.recipe} {look.listed([name for name, _, _ in inside])}",
            f"kv port{'s' * (len(inside) > 1)} {ports_of} lie{'s' * (len(inside) == 1)} in 20000-{end - 1}, "
            "from which AscendDirect takes ports at random",
            f"set kv_transfer.port to {max(end, 36000)} or above",
            "a start then fails now and then with Address already in use",
            "vllm-ascend PD guide; vllm-ascend issue 8938",
        )


def in_ephemeral_range(plan: Plan) -> Iterator[Finding]:
    """Ports that an outgoing connection of the host may have taken before the engine starts.

    HCCL's own lie there by default, which a host tells better: it is named here beside what somebody chose.
    """
    used: dict[str, set[int]] = {}
    for unit in plan.units:
        for purpose, port in unit.ports.items():
            used.setdefault(purpose, set()).add(port)
    for instance in plan.instances:
        used.setdefault("kv", set()).update(ports.handshake_ports(instance))
    if not any(port in EPHEMERAL for its in used.values() for port in its):
        return
    together = {m.node.name for i in plan.instances if i.is_group or i.kv_port is not None for m in i.members}
    for node in plan.fleet.nodes:
        own = ports.platform_ports(plan, node) if node.name in together else None
        if own:
            used.setdefault(own[1], set()).update(own[0])
    taken = {purpose: sorted(port for port in its if port in EPHEMERAL) for purpose, its in used.items()}
    found = {purpose: its for purpose, its in taken.items() if its}
    said = ", ".join(f"{span(its)} ({purpose})" for purpose, its in sorted(found.items(), key=lambda i: i[1]))
    every = span(sorted({port for its in found.values() for port in its})).replace(" ", "")
    yield warning(
        "PORT-EPHEMERAL",
        plan.fleet.source,
        f"ports {said} lie in {EPHEMERAL.start}-{EPHEMERAL.stop - 1}, from which the kernel takes ports at random",
        f"add them to net.ipv4.ip_local_reserved_ports of the hosts: {every}",
        "a start then fails now and then with Address already in use (EI0019, EI0020)",
        "vllm-ascend PD guide; kernel documentation, ip-sysctl",
    )


CHECKS = (kv_port_in_direct_range, in_ephemeral_range)
