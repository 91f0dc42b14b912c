"""Failures that the devices of a host show before the start: planted in what the simulators answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.findings import Finding
from fleet.topology import Plan
from tests.unit.answers import judge
from tests.unit.coverage.case import Case
from tests.unit.plans import lay

ASCEND = """\
title: t
source: s
platform: {platform}
model: {{ name: m, max_position_embeddings: 40960, weights_gb: 60 }}
engine: {{ vllm: {version}, vllm_ascend: {version} }}
roles: {{ serve: {{ tensor_parallel_size: 2, data_parallel_size: {hosts}{env} }} }}
"""
H100 = """\
title: t
source: s
platform: nvidia
model: { name: m, max_position_embeddings: 40960, weights_gb: 470 }
engine: { vllm: 0.20.0 }
roles: { serve: { tensor_parallel_size: 8 } }
"""


def plan_of(platform: str, hosts: int = 2, version: str = "0.18.0", env: str = "") -> Plan:
    """One instance over two hosts, or on one, with two devices of each."""
    text = ASCEND.format(platform=platform, version=version, hosts=hosts, env=f", env: {{ {env} }}" if env else "")
    return lay(text, {"devices": "0-1"}, serve=[("a", "10.0.0.1"), ("b", "10.0.0.2")][:hosts])


def told(plan: Plan, changes: dict[str, Any] | None = None, **kept: Any) -> Callable[[], list[Finding]]:
    """The findings of hosts with these changes."""
    return lambda: judge(plan, changes, **kept)


def case(
    failure: int, rule: str, plan: Plan, changes: dict[str, Any], well: dict[str, Any] | None = None, **kept: Any
) -> Case:
    """Planted by ``changes``; without them, or with ``well`` instead, all is well."""
    return Case(failure, rule, told(plan, changes, **kept), told(plan, well))


A2, A3, A2_PAIR, A3_PAIR = plan_of("ascend-a2", 1), plan_of("ascend-a3", 1), plan_of("ascend-a2"), plan_of("ascend-a3")
FABRIC = plan_of("ascend-a3", 1, "0.23.0", "ASCEND_ENABLE_USE_FABRIC_MEM: 1")
POOL = plan_of("ascend-a2", 1, "0.18.0", "MOONCAKE_CONFIG_PATH: /etc/mooncake.json")
H100_PLAN = lay(H100, {}, serve=[("a", "10.0.0.1")])

TLS_ON = {"devices": {"*": {"tls": 1}}}
LEFT = {"devices": {"*": {"hbm_used": 51200}}}
OTHERS = {"devices": {"0": {"processes": [{"pid": 4711, "name": "python3", "memory": 41000}], "hbm_used": 44400}}}
NO_FABRIC = {
    "fabric_manager_active": False,
    "devices": {"*": {"fabric_state": "Not Started", "fabric_status": "N/A"}},
}

CASES: tuple[Case, ...] = (
    case(1, "NPU-POD", A3_PAIR, {"b": {"super_pod_id": 7}}),
    case(2, "NPU-TLS", A2_PAIR, {"b": TLS_ON}, {"all": TLS_ON}),
    case(10, "NPU-HCCN-CONF", A2_PAIR, {"b": {"hccn_conf": False}}),
    case(11, "NPU-SDID", A3_PAIR, {"b": {"server_index": 0}}),
    case(18, "NPU-HDK", FABRIC, {"a": {"driver_version": "25.3.RC1"}}, {"a": {"driver_version": "26.0.RC1"}}),
    case(19, "NPU-HDK", POOL, {"a": {"driver_version": "25.3.RC1"}}),
    case(30, "NPU-CANN", A2, {"a": {"driver_version": "24.1.rc3"}}, {"a": {"driver_version": "25.3.RC1"}}),
    case(31, "NPU-DCMI", A3, {"a": {"dcmi_error": -8005}}),
    case(46, "NPU-LEAK", A3, {"a": LEFT}),
    case(48, "NPU-PROCESS", A2, {"a": OTHERS}),
    case(53, "GPU-FABRIC", H100_PLAN, {"a": NO_FABRIC}),
)
