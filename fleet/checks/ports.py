"""Ports against each other and against what else takes them."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet.findings import Finding, warning
from fleet.topology import Plan, platform_of


def kv_port_in_direct_range(plan: Plan) -> Iterator[Finding]:
    """AscendDirect takes random ports in [20000, 20000 + 1000 x devices) up to Mooncake 0.3.7.post2."""
    transfer = plan.recipe.kv_transfer
    if transfer is None or transfer.connector != "MooncakeConnectorV1":
        return
    stride = 1000 if plan.recipe.engine.version < Version("0.18.0") else 100
    for instance in plan.instances:
        devices = instance.head.settings.device_indices(platform_of(plan.recipe).devices_per_host)
        end = 20000 + stride * (max(devices) + 1)
        if instance.kv_port is not None and 20000 <= instance.kv_port < end:
            yield warning(
                "PORT-KV-DIRECT",
                f"{plan.fleet.recipe} {instance.name}",
                f"kv port {instance.kv_port} lies in 20000-{end - 1}, from which AscendDirect takes ports at random",
                f"set kv_transfer.port to {max(end, 36000)} or above",
                "a start then fails now and then with Address already in use",
                "vllm-ascend PD guide; vllm-ascend issue 8938",
            )


CHECKS = (kv_port_in_direct_range,)
