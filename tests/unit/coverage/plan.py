"""Failures that the plan alone gives away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fleet import sharing
from fleet.checks import check_plan
from fleet.findings import Finding, FleetError
from fleet.recipe import load
from tests.unit.coverage.case import Case
from tests.unit.plans import lay

ONE = """
title: t
source: s
platform: ascend-a3
model: {name: org/Model-235B-w8a8, quantization: ascend, max_position_embeddings: 40960, weights_gb: 240}
engine: {vllm: 0.18.0, vllm_ascend: 0.18.0}
shm_size: 16g
shared: {env: {HCCL_BUFFSIZE: 1024, HCCL_CONNECT_TIMEOUT: 400}}
roles: {serve: {tensor_parallel_size: 16, args: {enable-expert-parallel: true}}}
"""
TWO = ONE.replace("tensor_parallel_size: 16", "tensor_parallel_size: 16, data_parallel_size: 2")
RAY = ONE.replace("tensor_parallel_size: 16", "tensor_parallel_size: 16, pipeline_parallel_size: 2, executor: ray")
HALF = ONE.replace("tensor_parallel_size: 16", "tensor_parallel_size: 8")
PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/Model-235B-w8a8, quantization: ascend, max_position_embeddings: 40960, weights_gb: 240}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
shared: {env: {LD_LIBRARY_PATH: '/x/mooncake:$LD_LIBRARY_PATH'}}
roles:
  prefill: {tensor_parallel_size: 16}
  decode: {tensor_parallel_size: 16}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
"""
NVIDIA = """
title: t
source: s
platform: nvidia
model: {name: org/Model-235B, max_position_embeddings: 40960, weights_gb: 470}
engine: {vllm: 0.19.1}
device_memory_gb: 80
shm_size: 16g
roles: {serve: {tensor_parallel_size: 8}}
"""
NIXL = NVIDIA.replace("serve: {tensor_parallel_size: 8}", "prefill: {}, decode: {}").replace("470", "40") + (
    "kv_transfer: {connector: NixlConnector}\n"
)
IMAGE = "quay.io/ascend/vllm-ascend"
PAIR = ["10.0.0.1", "10.0.0.2"]


def told(text: str, rule: str, hosts: int, data: dict[str, Any]) -> Iterable[Finding]:
    """What the rule finds in the plan, a refusal to plan included."""
    groups = {"prefill": PAIR[:1], "decode": PAIR[1:]} if "prefill: {" in text else {"serve": PAIR[:hosts]}
    try:
        found: Iterable[Finding] = check_plan(lay(text, data, **groups))
    except FleetError as refused:
        found = refused.findings
    return [f for f in found if f.rule == rule]


def recipe(
    failure: int, rule: str, text: str, before: str, after: str, hosts: int = 1, data: dict[str, Any] | None = None
) -> Case:
    """Planted in the recipe."""
    assert text.count(before) == 1, (rule, before)
    broken = text.replace(before, after)
    return Case(
        failure, rule, lambda: told(broken, rule, hosts, data or {}), lambda: told(text, rule, hosts, data or {})
    )


def inventory(failure: int, rule: str, text: str, own: dict[str, Any], hosts: int = 2) -> Case:
    """Planted in what the inventory says of the last host."""
    data = {"of": {PAIR[hosts - 1]: own}}
    return Case(failure, rule, lambda: told(text, rule, hosts, data), lambda: told(text, rule, hosts, {}))


def env(failure: int, rule: str, text: str, variables: str, hosts: int = 1) -> Case:
    """Planted by variables of the recipe."""
    return recipe(failure, rule, text, "shared: {env: {", f"shared: {{env: {{{variables}, ", hosts)


def refused(text: str) -> Iterable[Finding]:
    """What reading the recipe's file finds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "r.yaml"
        path.write_text(text)
        try:
            load(path)
        except FleetError as exc:
            return exc.findings
    return ()


def beside(offset: int) -> Iterable[Finding]:
    """Two services on the two halves of one host, the second with this offset of its ports."""
    first = lay(HALF, {"service": "chat", "devices": "0-7"}, serve=PAIR[:1])
    second = lay(HALF, {"service": "code", "devices": "8-15", "port_offset": offset}, serve=PAIR[:1])
    return sharing.between([first, second])


CASES: tuple[Case, ...] = (
    recipe(3, "HCCL-TIMEOUT", TWO, "HCCL_CONNECT_TIMEOUT: 400", "HCCL_CONNECT_TIMEOUT: 120", 2),
    env(4, "ENV-ADDRESS", TWO, "HCCL_SOCKET_IFNAME: ''", 2),
    env(5, "ENV-ADDRESS", TWO, "HCCL_SOCKET_IFNAME: docker0", 2),
    env(6, "ENV-ADDRESS", TWO, "GLOO_SOCKET_IFNAME: lo", 2),
    Case(8, "PLAN-SHARING", lambda: beside(0), lambda: beside(1000)),
    recipe(8, "PLAN-PORTS", TWO, "data_parallel_size: 2", "data_parallel_size: 2, rpc_port: 60016", 2),
    inventory(9, "IMAGE-DIFFERS", TWO, {"image": f"{IMAGE}:v0.23.0-a3"}),
    recipe(12, "HCCL-INTRA", PD, "  prefill: {", "  prefill: {env: {HCCL_INTRA_ROCE_ENABLE: 1}, "),
    recipe(13, "PORT-KV-DIRECT", PD, "port: 36000", "port: 35900"),
    recipe(16, "VERSION-TRANSFER", PD, "vllm_ascend: 0.13.0", "vllm_ascend: 0.9.1"),
    recipe(17, "TRANSFER-LIBRARY", PD, "/x/mooncake:", ""),
    recipe(
        18,
        "VERSION-FABRIC-MEM",
        ONE.replace("env: {", "env: {ASCEND_ENABLE_USE_FABRIC_MEM: 1, ").replace("0.18.0", "0.23.0"),
        "vllm_ascend: 0.23.0",
        "vllm_ascend: 0.18.0",
    ),
    Case(
        24,
        "RECIPE-KEY",
        lambda: refused(PD.replace("port: 36000", "port: 36000, config: {engine_id: '0'}")),
        lambda: refused(PD),
    ),
    recipe(24, "TRANSFER-TENSOR", PD, "  prefill: {tensor_parallel_size: 16}", "  prefill: {tensor_parallel_size: 8}"),
    recipe(25, "ENV-ADDRESS", NIXL, "decode: {", "decode: {env: {VLLM_NIXL_SIDE_CHANNEL_HOST: localhost}"),
    recipe(
        29,
        "FUSED-MC2-WEIGHTS",
        ONE.replace("env: {", "env: {VLLM_ASCEND_ENABLE_FUSED_MC2: 1, "),
        "org/Model-235B-w8a8, quantization: ascend",
        "org/Model-235B",
    ),
    recipe(
        30,
        "IMAGE-ROLLING",
        ONE.replace("engine: {", f"engine: {{image: '{IMAGE}:v0.18.0-a3', "),
        ":v0.18.0-a3",
        ":nightly-a3",
    ),
    inventory(33, "IMAGE-DIFFERS", RAY, {"image": f"{IMAGE}:v0.23.0-a3"}),
    recipe(34, "HCCL-BUFFER", ONE, "HCCL_BUFFSIZE: 1024", "HCCL_BUFFSIZE: 200"),
    inventory(36, "HCCL-DIFFERS", TWO, {"env": {"HCCL_BUFFSIZE": 512}}),
    inventory(37, "IMAGE-BAD", ONE, {"image": f"{IMAGE}:v0.13.0rc2-a3"}, hosts=1),
    recipe(38, "VERSION-PAIR", f"runtime: native\n{ONE}", "vllm: 0.18.0", "vllm: 0.17.0"),
    env(39, "START-READY", ONE, "VLLM_ENGINE_READY_TIMEOUT_S: 600"),
    env(44, "WEIGHTS-MODELSCOPE", ONE, "VLLM_USE_MODELSCOPE: true"),
    recipe(48, "MEMORY-FIT", NVIDIA, "weights_gb: 470", "weights_gb: 640"),
    recipe(50, "SHM-SMALL", ONE, "shm_size: 16g", "shm_size: 1g"),
)
