"""Every shipped inventory against the environment and command line of the documents it comes from.

``data/seeds`` holds the documents' scripts as printed there. What a document leaves open (addresses, the
interface, ports) is filled in literally; everything in which a unit differs from its script stands in a list
here, with the reason. Units that no document spells out are written out whole.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet import ROOT
from fleet.topology import Plan, Unit
from tasks.guard import plan_of

SEEDS = Path(__file__).parent / "data" / "seeds"
FLAG = "(no value)"

PREFILL, DECODE_1, DECODE_2 = "10.10.0.11", "10.10.0.12", "10.10.0.13"
OPEN = {
    "prefill_node_1_ip": PREFILL,
    "decode_node_1_ip": DECODE_1,
    "decode_node_2_ip": DECODE_2,
    "prefill_node_dp_port": "13389",
    "decode_node_dp_port": "13390",
}

# name of a variable or option -> (value, reason)
Extra = dict[str, tuple[object, str]]
# name -> (value in the document, value here, reason)
Instead = dict[str, tuple[object, object, str]]

READY = "from 0.14 the engine gives up after 600 s of loading, which is short for 470 GB"
DRAIN = "requests in flight are finished at a stop; the argument exists from 0.18"
FROM_0_20 = {"env": {"VLLM_ENGINE_READY_TIMEOUT_S": ("3600", READY)}, "options": {"--shutdown-timeout": (60, DRAIN)}}
BF16 = {
    "quantization": "the weights are not quantized: the document says to leave it out",
    "name": "the BF16 weights of the same document",
}


def on_one_interface(address: str) -> dict[str, dict[str, tuple[object, ...]]]:
    return {
        "env": {"VLLM_HOST_IP": (address, "the engine else takes the address of the default route")},
        "env_instead": {
            "HCCL_SOCKET_IFNAME": (
                f"<interface of {address}>",
                f"=<interface of {address}>",
                "HCCL matches prefixes: eth1 would take eth10 too",
            )
        },
    }


@dataclass(frozen=True)
class Seeded:
    """One unit that a document's script describes, and what it has besides, instead, or not."""

    inventory: str
    host: str
    unit: str
    script: str
    env: Extra = field(default_factory=dict)
    options: Extra = field(default_factory=dict)
    env_instead: Instead = field(default_factory=dict)
    options_instead: Instead = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


SEEDED = [
    Seeded("h100-baseline", "10.20.0.11", "vllm-serve-0", "h100-baseline", **FROM_0_20),
    Seeded("h100", "10.20.0.11", "vllm-serve-0", "h100", **FROM_0_20),
    Seeded("a3-128k", "10.10.0.11", "vllm-serve-0", "single-node-128k"),
    Seeded("a2-128k", "10.10.0.11", "vllm-serve-0", "single-node-128k"),
    Seeded(
        "a3-bf16",
        "10.10.0.11",
        "vllm-serve-0",
        "single-node-128k",
        options_instead={
            "model": ("vllm-ascend/Qwen3-235B-A22B-w8a8", "Qwen/Qwen3-235B-A22B", BF16["name"]),
            "--tensor-parallel-size": (8, 16, "470 GB of weights want all sixteen devices"),
        },
        left_out={"--quantization": BF16["quantization"]},
    ),
    Seeded(
        "a2-bf16",
        "10.10.0.11",
        "vllm-serve-0",
        "single-node-128k",
        options_instead={
            "model": ("vllm-ascend/Qwen3-235B-A22B-w8a8", "Qwen/Qwen3-235B-A22B", BF16["name"]),
            "--max-model-len": (133000, 8192, "470 GB of weights leave next to nothing of 8 x 64 GB for the cache"),
        },
        left_out={
            "--quantization": BF16["quantization"],
            "--hf-overrides": "8192 tokens fit the model's own window, yarn would only cost accuracy",
        },
    ),
    Seeded("a3-single", "10.10.0.11", "vllm-serve-0", "a3-single"),
    Seeded("a3-pd", PREFILL, "vllm-prefill-0", "a3-pd-prefill-0", **on_one_interface(PREFILL)),
    Seeded("a3-pd", DECODE_1, "vllm-decode-0", "a3-pd-decode-0", **on_one_interface(DECODE_1)),
    Seeded("a3-pd", DECODE_2, "vllm-decode-0", "a3-pd-decode-1", **on_one_interface(DECODE_2)),
]


@pytest.mark.parametrize("case", SEEDED, ids=lambda case: f"{case.inventory}-{case.host}")
def test_environment_is_the_documents(case: Seeded) -> None:
    seed, _ = read_script(case.script, case.host)
    expected = dict(seed)
    for name, (theirs, ours, _why) in case.env_instead.items():
        assert expected[name] == theirs
        expected[name] = ours
    expected |= {name: value for name, (value, _why) in case.env.items()}
    assert dict(unit_of(case.inventory, case.host, case.unit).env) == expected


@pytest.mark.parametrize("case", SEEDED, ids=lambda case: f"{case.inventory}-{case.host}")
def test_command_line_is_the_documents(case: Seeded) -> None:
    _, seed = read_script(case.script, case.host)
    expected = dict(seed)
    transfer = expected.get("--kv-transfer-config")
    if isinstance(transfer, dict):  # a peer that came back under its old id would be read at its old addresses
        expected["--kv-transfer-config"] = {**transfer, "engine_id": f"{transfer['engine_id']}-<start>"}
    for name, (theirs, ours, _why) in case.options_instead.items():
        assert expected[name] == theirs
        expected[name] = ours
    for name in case.left_out:
        del expected[name]
    expected |= {name: value for name, (value, _why) in case.options.items()}
    assert options_of(unit_of(case.inventory, case.host, case.unit).argv) == expected


def test_the_proxy_of_a3_pd_is_the_documents() -> None:
    _, seed = read_script("a3-pd-proxy", PREFILL)
    assert seed == {
        "model": "load_balance_proxy_server_example.py",
        "--port": 12347,
        "--prefiller-hosts": PREFILL,
        "--prefiller-port": 8000,  # argparse takes it for --prefiller-ports
        "--decoder-hosts": DECODE_1,
        "--decoder-ports": 8000,
    }
    proxy = unit_of("a3-pd", PREFILL, "vllm-proxy")
    assert proxy.argv == (
        *("python", "load_balance_proxy_server_example.py"),
        *("--host", "0.0.0.0"),  # its own default is localhost
        *("--port", "12347"),
        *("--prefiller-hosts", "10.10.0.11", "--prefiller-ports", "8000"),
        *("--decoder-hosts", "10.10.0.12", "--decoder-ports", "8000"),
    )
    assert dict(proxy.env) == {}
    assert dict(proxy.ports) == {"api": 12347}
    assert proxy.image == "quay.io/ascend/vllm-ascend:v0.13.0-a3"
    assert proxy.workdir == "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1"


# ---- units that no document spells out

RAY_HEAD = {
    "HCCL_IF_IP": "10.10.0.11",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.11>",
    "VLLM_HOST_IP": "10.10.0.11",
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
    "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "HCCL_BUFFSIZE": "1024",
    "OMP_PROC_BIND": "false",
    "OMP_NUM_THREADS": "1",
    "TASK_QUEUE_ENABLE": "1",
}
RAY_WORKER = RAY_HEAD | {
    "HCCL_IF_IP": "10.10.0.12",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.12>",
    "VLLM_HOST_IP": "10.10.0.12",
}
A2_32G_HEAD = {
    "HCCL_IF_IP": "10.10.0.11",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.11>",
    "VLLM_HOST_IP": "10.10.0.11",
    "VLLM_USE_MODELSCOPE": "true",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "HCCL_BUFFSIZE": "1024",
    "OMP_PROC_BIND": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_ASCEND_ENABLE_FLASHCOMM1": "1",
    "TASK_QUEUE_ENABLE": "1",
}
A2_32G_SECOND = A2_32G_HEAD | {
    "HCCL_IF_IP": "10.10.0.12",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.12>",
    "VLLM_HOST_IP": "10.10.0.12",
}
CURRENT_PREFILL = {
    "HCCL_IF_IP": "10.10.0.11",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.11>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.11>",
    "VLLM_HOST_IP": "10.10.0.11",
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "HCCL_CONNECT_TIMEOUT": "400",
    "OMP_PROC_BIND": "false",
    "OMP_NUM_THREADS": "1",
    "TASK_QUEUE_ENABLE": "1",
    "LD_LIBRARY_PATH": "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages/mooncake:$LD_LIBRARY_PATH",
    "HCCL_BUFFSIZE": "512",
}
CURRENT_DECODE_1 = CURRENT_PREFILL | {
    "HCCL_IF_IP": "10.10.0.12",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.12>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.12>",
    "VLLM_HOST_IP": "10.10.0.12",
    "HCCL_BUFFSIZE": "1024",
}
CURRENT_DECODE_2 = CURRENT_DECODE_1 | {
    "HCCL_IF_IP": "10.10.0.13",
    "GLOO_SOCKET_IFNAME": "<interface of 10.10.0.13>",
    "TP_SOCKET_IFNAME": "<interface of 10.10.0.13>",
    "HCCL_SOCKET_IFNAME": "=<interface of 10.10.0.13>",
    "VLLM_HOST_IP": "10.10.0.13",
}
LAB = {"VLLM_ENGINE_READY_TIMEOUT_S": "600", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
LAB_PREFILL = {
    "GLOO_SOCKET_IFNAME": "<interface of 10.231.77.10>",
    "TP_SOCKET_IFNAME": "<interface of 10.231.77.10>",
    "VLLM_HOST_IP": "10.231.77.10",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.231.77.10",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
    "UCX_NET_DEVICES": "<interface of 10.231.77.10>",
    "UCX_TLS": "tcp,self,sm",
    "VLLM_LAB_NIXL_POLL_US": "5000",
    **LAB,
}


def at(address: str, port: int = 5600) -> dict[str, str]:
    """What of the transfer differs from one instance to the next."""
    own = {name: value.replace("10.231.77.10", address) for name, value in LAB_PREFILL.items()}
    return own | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}


LAB_BOUND = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
LAB_GROUP = {name: LAB_PREFILL[name] for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "VLLM_HOST_IP")} | LAB
LAB_GROUP_2 = {name: value.replace("10.231.77.10", "10.231.77.11") for name, value in LAB_GROUP.items()}
LAB_RAY = {
    "TORCHDYNAMO_DISABLE": "1",
    "RAY_OVERRIDE_RESOURCES": '{"NPU": 1}',
    "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.01",
}
LAB_COMMAND = """
    vllm serve lab/tiny-qwen3-moe --host 0.0.0.0 --port 8000 --seed 1024 --max-model-len 2048 --max-num-seqs 8
    --kv-cache-memory-bytes 64M --enforce-eager --enable-expert-parallel --served-model-name qwen3
    --shutdown-timeout 30
"""
LAB_TRANSFER = """
    --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}'
"""

WHOLE = {
    ("a2-32g", "10.10.0.11", "vllm-serve-0"): (
        A2_32G_HEAD,
        """
        vllm serve vllm-ascend/Qwen3-235B-A22B-w8a8 --host 0.0.0.0 --port 8000
        --tensor-parallel-size 8 --data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-start-rank 0
        --data-parallel-address 10.10.0.11 --data-parallel-rpc-port 13389
        --seed 1024 --max-num-seqs 16 --max-model-len 8192 --max-num-batched-tokens 2048 --enable-expert-parallel
        --trust-remote-code --gpu-memory-utilization 0.9 --no-enable-prefix-caching
        --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' --async-scheduling
        --quantization ascend --served-model-name qwen3
        """,
    ),
    ("a2-32g", "10.10.0.12", "vllm-serve-0"): (
        A2_32G_SECOND,
        """
        vllm serve vllm-ascend/Qwen3-235B-A22B-w8a8 --host 0.0.0.0 --port 8000 --headless
        --tensor-parallel-size 8 --data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-start-rank 1
        --data-parallel-address 10.10.0.11 --data-parallel-rpc-port 13389
        --seed 1024 --max-num-seqs 16 --max-model-len 8192 --max-num-batched-tokens 2048 --enable-expert-parallel
        --trust-remote-code --gpu-memory-utilization 0.9 --no-enable-prefix-caching
        --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' --async-scheduling
        --quantization ascend --served-model-name qwen3
        """,
    ),
    ("a2-ray", "10.10.0.11", "vllm-ray-serve-0"): (
        RAY_HEAD,
        """
        ray start --head --port=6379 --node-ip-address=10.10.0.11 --include-dashboard=false
        --disable-usage-stats --block
        """,
    ),
    ("a2-ray", "10.10.0.12", "vllm-ray-serve-0"): (
        RAY_WORKER,
        "ray start --address=10.10.0.11:6379 --node-ip-address=10.10.0.12 --block",
    ),
    ("a2-ray", "10.10.0.11", "vllm-serve-0"): (
        RAY_HEAD,
        """
        vllm serve Qwen/Qwen3-235B-A22B --host 0.0.0.0 --port 8000 --tensor-parallel-size 8
        --pipeline-parallel-size 2 --distributed-executor-backend ray --seed 1024 --max-num-seqs 25
        --max-model-len 8192 --enable-expert-parallel --trust-remote-code --gpu-memory-utilization 0.9
        --served-model-name qwen3
        """,
    ),
    ("a3-pd-current", PREFILL, "vllm-prefill-0"): (
        CURRENT_PREFILL,
        """
        vllm serve vllm-ascend/Qwen3-235B-A22B-w8a8 --host 0.0.0.0 --port 8000
        --tensor-parallel-size 8 --data-parallel-size 2 --data-parallel-size-local 2 --data-parallel-start-rank 0
        --data-parallel-address 10.10.0.11 --data-parallel-rpc-port 13389
        --seed 1024 --max-model-len 40960 --enable-expert-parallel --trust-remote-code --gpu-memory-utilization 0.9
        --no-enable-prefix-caching --max-num-seqs 24 --max-num-batched-tokens 16384 --enforce-eager
        --additional-config '{"enable_flashcomm1": true, "enable_fused_mc2": 1}'
        --quantization ascend --served-model-name qwen3 --shutdown-timeout 60
        --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer", "kv_port": "36000",
          "engine_id": "0-<start>", "kv_connector_extra_config": {"use_ascend_direct": true,
          "prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 8, "tp_size": 4}}}'
        """,
    ),
    ("a3-pd-current", DECODE_1, "vllm-decode-0"): (
        CURRENT_DECODE_1,
        """
        vllm serve vllm-ascend/Qwen3-235B-A22B-w8a8 --host 0.0.0.0 --port 8000
        --tensor-parallel-size 4 --data-parallel-size 8 --data-parallel-size-local 4 --data-parallel-start-rank 0
        --data-parallel-address 10.10.0.12 --data-parallel-rpc-port 13390
        --seed 1024 --max-model-len 40960 --enable-expert-parallel --trust-remote-code --gpu-memory-utilization 0.9
        --no-enable-prefix-caching --max-num-seqs 128 --max-num-batched-tokens 512
        --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'
        --additional-config '{"enable_flashcomm1": true, "enable_fused_mc2": 1}'
        --quantization ascend --served-model-name qwen3 --shutdown-timeout 60
        --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer", "kv_port": "36100",
          "engine_id": "1-<start>", "kv_connector_extra_config": {"use_ascend_direct": true,
          "prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 8, "tp_size": 4}}}'
        """,
    ),
    ("a3-pd-current", DECODE_2, "vllm-decode-0"): (
        CURRENT_DECODE_2,
        """
        vllm serve vllm-ascend/Qwen3-235B-A22B-w8a8 --host 0.0.0.0 --port 8000 --headless
        --tensor-parallel-size 4 --data-parallel-size 8 --data-parallel-size-local 4 --data-parallel-start-rank 4
        --data-parallel-address 10.10.0.12 --data-parallel-rpc-port 13390
        --seed 1024 --max-model-len 40960 --enable-expert-parallel --trust-remote-code --gpu-memory-utilization 0.9
        --no-enable-prefix-caching --max-num-seqs 128 --max-num-batched-tokens 512
        --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'
        --additional-config '{"enable_flashcomm1": true, "enable_fused_mc2": 1}'
        --quantization ascend --served-model-name qwen3 --shutdown-timeout 60
        --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer", "kv_port": "36100",
          "engine_id": "1-<start>", "kv_connector_extra_config": {"use_ascend_direct": true,
          "prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 8, "tp_size": 4}}}'
        """,
    ),
    ("a3-pd-current", PREFILL, "vllm-proxy"): (
        {},
        """
        python load_balance_proxy_server_example.py --host 0.0.0.0 --port 12347
        --prefiller-hosts 10.10.0.11 --prefiller-ports 8000 --decoder-hosts 10.10.0.12 --decoder-ports 8000
        """,
    ),
    ("lab", "lab-0", "vllm-serve-0"): (LAB, LAB_COMMAND),
    ("lab", "lab-1", "vllm-serve-1"): (LAB, LAB_COMMAND),
    ("lab", "lab-0", "vllm-front-door"): ({}, "haproxy -Ws -f /etc/vllm-fleet/current/proxy/haproxy.cfg"),
    ("lab-pd", "lab-0", "vllm-prefill-0"): (LAB_PREFILL, LAB_COMMAND + LAB_TRANSFER),
    ("lab-pd", "lab-1", "vllm-decode-0"): (at("10.231.77.11", 5700), LAB_COMMAND + LAB_TRANSFER),
    ("lab-pd", "lab-0", "vllm-router"): (
        {},
        """
        vllm-router --host 0.0.0.0 --port 8080 --vllm-pd-disaggregation
        --prefill http://10.231.77.10:8000 --decode http://10.231.77.11:8000
        --prefill-policy round_robin --decode-policy round_robin
        --health-check-interval-secs 2 --health-failure-threshold 2
        --health-success-threshold 1 --worker-startup-check-interval 1 --worker-startup-timeout-secs 30
        --prometheus-host 127.0.0.1 --prometheus-port 29000
        """,
    ),
    ("lab-2p2d", "lab-0", "vllm-prefill-0"): (LAB_PREFILL | LAB_BOUND, LAB_COMMAND + LAB_TRANSFER),
    ("lab-2p2d", "lab-2", "vllm-prefill-1"): (at("10.231.77.12", 5700) | LAB_BOUND, LAB_COMMAND + LAB_TRANSFER),
    ("lab-2p2d", "lab-1", "vllm-decode-0"): (at("10.231.77.11", 5800) | LAB_BOUND, LAB_COMMAND + LAB_TRANSFER),
    ("lab-2p2d", "lab-3", "vllm-decode-1"): (at("10.231.77.13", 5900) | LAB_BOUND, LAB_COMMAND + LAB_TRANSFER),
    ("lab-2p2d", "lab-0", "vllm-router"): (
        {},
        """
        vllm-router --host 0.0.0.0 --port 8080 --vllm-pd-disaggregation
        --prefill http://10.231.77.10:8000 --prefill http://10.231.77.12:8000
        --decode http://10.231.77.11:8000 --decode http://10.231.77.13:8000
        --prefill-policy round_robin --decode-policy power_of_two
        --health-check-interval-secs 2 --health-failure-threshold 2
        --health-success-threshold 1 --worker-startup-check-interval 1 --worker-startup-timeout-secs 30
        --prometheus-host 127.0.0.1 --prometheus-port 29000
        """,
    ),
    ("lab-dp", "lab-0", "vllm-serve-0"): (
        LAB_GROUP | LAB_BOUND,
        """
        vllm serve lab/tiny-qwen3-moe --host 0.0.0.0 --port 8000
        --data-parallel-size 2 --data-parallel-size-local 1
        --data-parallel-address 10.231.77.10 --data-parallel-rpc-port 13389
        --seed 1024 --max-model-len 2048 --max-num-seqs 8
        --kv-cache-memory-bytes 64M --enforce-eager --enable-expert-parallel --api-server-count 1
        --served-model-name qwen3 --shutdown-timeout 30
        """,
    ),
    ("lab-dp", "lab-1", "vllm-serve-0"): (
        LAB_GROUP_2 | {"VLLM_CPU_OMP_THREADS_BIND": "1"},
        """
        vllm serve lab/tiny-qwen3-moe --host 0.0.0.0 --port 8000 --headless
        --data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-start-rank 1
        --data-parallel-address 10.231.77.10 --data-parallel-rpc-port 13389
        --seed 1024 --max-model-len 2048 --max-num-seqs 8
        --kv-cache-memory-bytes 64M --enforce-eager --enable-expert-parallel
        --served-model-name qwen3 --shutdown-timeout 30
        """,
    ),
    ("lab-ray", "lab-0", "vllm-ray-serve-0"): (
        LAB_GROUP | LAB_RAY,
        """
        ray start --head --port=6379 --node-ip-address=10.231.77.10 --include-dashboard=false
        --disable-usage-stats --block
        """,
    ),
    ("lab-ray", "lab-1", "vllm-ray-serve-0"): (
        LAB_GROUP_2 | LAB_RAY,
        "ray start --address=10.231.77.10:6379 --node-ip-address=10.231.77.11 --block",
    ),
    ("lab-ray", "lab-0", "vllm-serve-0"): (
        LAB_GROUP | LAB_RAY,
        """
        vllm serve lab/tiny-qwen3-moe --host 0.0.0.0 --port 8000 --tensor-parallel-size 2
        --distributed-executor-backend ray --seed 1024 --max-model-len 2048 --max-num-seqs 8
        --kv-cache-memory-bytes 64M --enforce-eager --enable-expert-parallel --served-model-name qwen3
        --shutdown-timeout 30
        """,
    ),
}


@pytest.mark.parametrize(("inventory", "host", "unit"), WHOLE, ids="-".join)
def test_environment_is_exactly(inventory: str, host: str, unit: str) -> None:
    environment, _ = WHOLE[inventory, host, unit]
    assert dict(unit_of(inventory, host, unit).env) == environment


@pytest.mark.parametrize(("inventory", "host", "unit"), WHOLE, ids="-".join)
def test_command_line_is_exactly(inventory: str, host: str, unit: str) -> None:
    _, command = WHOLE[inventory, host, unit]
    argv = unit_of(inventory, host, unit).argv
    assert [plain(word) for word in argv] == [plain(word) for word in shlex.split(command)]


SETS = [("10.10.0.11", "10.10.0.12", "10.10.0.13"), ("10.10.0.14", "10.10.0.15", "10.10.0.16")]


@pytest.mark.parametrize("k", [0, 1])
def test_a_set_of_a3_2p4d_is_a3_pd_but_for_addresses_ids_and_ports(k: int) -> None:
    """One more prefill before it: decode's ids and ports move by one."""
    moved = dict(zip((PREFILL, DECODE_1, DECODE_2), SETS[k], strict=True))
    for host, name, index in ((PREFILL, "prefill", k), (DECODE_1, "decode", 2 + k), (DECODE_2, "decode", 2 + k)):
        before, after = (
            json.dumps([unit.argv, dict(unit.env), unit.image, unit.devices, unit.mounts])
            for unit in (
                unit_of("a3-pd", host, f"vllm-{name}-0"),
                unit_of("a3-2p4d", moved[host], f"vllm-{name}-{k}"),
            )
        )
        was = 0 if name == "prefill" else 1
        changes = {
            f'\\"engine_id\\":\\"{was}-<start>\\"': f'\\"engine_id\\":\\"{index}-<start>\\"',
            str(30000 + 100 * was): str(30000 + 100 * index),
            str(13389 + was): str(13389 + index),
        }
        for old, new in changes.items():
            assert old in before
            before = before.replace(old, new)
        assert re.sub("|".join(map(re.escape, moved)), lambda m: moved[m[0]], before) == after


def test_every_unit_of_every_inventory_is_held_here() -> None:
    held = {(c.inventory, c.host, c.unit) for c in SEEDED} | set(WHOLE) | {("a3-pd", PREFILL, "vllm-proxy")}
    for k, (prefill, *decode) in enumerate(SETS):
        held |= {("a3-2p4d", prefill, f"vllm-prefill-{k}"), ("a3-2p4d", prefill, f"vllm-proxy-{k}")}
        held |= {("a3-2p4d", host, f"vllm-decode-{k}") for host in decode}
    held.add(("a3-2p4d", SETS[0][0], "vllm-front-door"))
    shipped = {
        (path.stem, unit.host, unit.name)
        for path in (ROOT / "inventories").glob("*.py")
        for unit in plan_for(path.stem).units
    }
    assert shipped == held


# ---- beside the command line

A3_DEVICES = (
    *("/dev/davinci0", "/dev/davinci1", "/dev/davinci2", "/dev/davinci3"),
    *("/dev/davinci4", "/dev/davinci5", "/dev/davinci6", "/dev/davinci7"),
    *("/dev/davinci8", "/dev/davinci9", "/dev/davinci10", "/dev/davinci11"),
    *("/dev/davinci12", "/dev/davinci13", "/dev/davinci14", "/dev/davinci15"),
    *("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
)
SEED_MOUNTS = (
    "/usr/local/dcmi:/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi:/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/",
    "/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info:/etc/ascend_install.info",
)


@pytest.mark.parametrize(
    ("host", "unit", "ports"),
    [
        (PREFILL, "vllm-prefill-0", {"api": 8000, "rpc": 13389, "kv": 30000}),
        (DECODE_1, "vllm-decode-0", {"api": 8000, "rpc": 13390, "group": 7390, "kv": 30100}),
        (DECODE_2, "vllm-decode-0", {"group": 7390, "kv": 30100}),
    ],
)
def test_a3_pd_containers(host: str, unit: str, ports: dict[str, int]) -> None:
    found = unit_of("a3-pd", host, unit)
    assert found.runtime == "docker"
    assert found.image == "quay.io/ascend/vllm-ascend:v0.13.0-a3"
    assert found.devices == A3_DEVICES
    assert found.mounts == (*SEED_MOUNTS, "/etc/hccn.conf:/etc/hccn.conf", "/mnt/models:/mnt/models:ro")
    assert dict(found.ports) == ports
    assert found.shm_size == "1g"


def test_h100_container() -> None:
    found = unit_of("h100", "10.20.0.11", "vllm-serve-0")
    assert found.image == "vllm/vllm-openai:v0.20.0"
    assert found.docker_options == ("--gpus", '"device=0,1,2,3,4,5,6,7"')
    assert found.devices == (
        *("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"),
        *("/dev/nvidia4", "/dev/nvidia5", "/dev/nvidia6", "/dev/nvidia7"),
        *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    )
    assert found.mounts == ("/mnt/models:/mnt/models:ro",)
    assert dict(found.ports) == {"api": 8000}
    assert found.shm_size == "16g"


def test_an_a3_instance_of_eight_devices_takes_the_first_eight_and_no_cluster_mounts() -> None:
    found = unit_of("a3-128k", "10.10.0.11", "vllm-serve-0")
    assert found.devices == (*A3_DEVICES[:8], *A3_DEVICES[16:])
    assert found.mounts == (*SEED_MOUNTS, "/mnt/models:/mnt/models:ro")


def test_images_name_the_machine_family() -> None:
    assert unit_of("a2-128k", "10.10.0.11", "vllm-serve-0").image == "quay.io/ascend/vllm-ascend:v0.13.0"
    assert unit_of("a3-128k", "10.10.0.11", "vllm-serve-0").image == "quay.io/ascend/vllm-ascend:v0.13.0-a3"


@pytest.mark.parametrize(
    ("inventory", "order"),
    [
        (
            "a3-pd",
            (
                ("vllm-decode-0@10.10.0.13",),
                ("vllm-prefill-0@10.10.0.11", "vllm-decode-0@10.10.0.12"),
                ("vllm-proxy@10.10.0.11",),
            ),
        ),
        (
            "a2-ray",
            (("vllm-ray-serve-0@10.10.0.11",), ("vllm-ray-serve-0@10.10.0.12",), ("vllm-serve-0@10.10.0.11",)),
        ),
        ("a2-32g", (("vllm-serve-0@10.10.0.12",), ("vllm-serve-0@10.10.0.11",))),
        (
            "a3-2p4d",
            (
                ("vllm-decode-0@10.10.0.13", "vllm-decode-1@10.10.0.16"),
                (
                    *("vllm-prefill-0@10.10.0.11", "vllm-prefill-1@10.10.0.14"),
                    *("vllm-decode-0@10.10.0.12", "vllm-decode-1@10.10.0.15"),
                ),
                ("vllm-proxy-0@10.10.0.11", "vllm-proxy-1@10.10.0.14"),
                ("vllm-front-door@10.10.0.11",),
            ),
        ),
        ("lab", (("vllm-serve-0@lab-0", "vllm-serve-1@lab-1"), ("vllm-front-door@lab-0",))),
        ("lab-pd", (("vllm-prefill-0@lab-0", "vllm-decode-0@lab-1"), ("vllm-router@lab-0",))),
        (
            "lab-2p2d",
            (
                (
                    *("vllm-prefill-0@lab-0", "vllm-prefill-1@lab-2"),
                    *("vllm-decode-0@lab-1", "vllm-decode-1@lab-3"),
                ),
                ("vllm-router@lab-0",),
            ),
        ),
        ("lab-dp", (("vllm-serve-0@lab-1",), ("vllm-serve-0@lab-0",))),
        ("lab-ray", (("vllm-ray-serve-0@lab-0",), ("vllm-ray-serve-0@lab-1",), ("vllm-serve-0@lab-0",))),
        ("h100", (("vllm-serve-0@10.20.0.11",),)),
    ],
)
def test_start_order(inventory: str, order: tuple[tuple[str, ...], ...]) -> None:
    assert plan_for(inventory).start_order == order


@pytest.mark.parametrize(
    ("inventory", "figures"),
    [
        ("h100", {"output_tokens_per_s": 1812.0, "requests_per_s": 6.98, "ttft_p99_ms": 10526.9, "tpot_mean_ms": 53.9}),
        ("h100-baseline", {"output_tokens_per_s": 759.0, "requests_per_s": 2.92, "duration_s": 342.1}),
        ("a3-single", {"requests": 720, "concurrency": 144, "ttft_mean_ms": 4717.45, "output_tokens_per_s": 2761.72}),
        ("a3-pd", {"requests": 2880, "concurrency": 576, "tpot_mean_ms": 52.07, "output_tokens_per_s": 8593.44}),
    ],
)
def test_reference_results_are_the_published_ones(inventory: str, figures: dict[str, float]) -> None:
    reference = plan_for(inventory).recipe.reference
    assert reference is not None
    assert reference.results.items() >= figures.items()


# ---- reading a script


def plan_for(inventory: str) -> Plan:
    return plan_of(str(ROOT / "inventories" / f"{inventory}.py"))


def unit_of(inventory: str, host: str, name: str) -> Unit:
    return next(u for u in plan_for(inventory).units if (u.host, u.name) == (host, name))


def read_script(name: str, host: str) -> tuple[dict[str, str], dict[str, object]]:
    """Environment and options of a document's script, with what it leaves open filled in."""
    text = (SEEDS / f"{name}.sh").read_text().replace("\\\n", " ")
    for word, value in {**OPEN, "${ifname}": f"<interface of {host}>"}.items():
        text = text.replace(word, value)
    # a value with spaces is one word once it stands for a real interface
    words = shlex.split(text.replace(f"<interface of {host}>", f"'<interface of {host}>'"), comments=True)
    environment = {}
    while words[0] == "export" or re.match(r"\w+=", words[0]):
        if words.pop(0) == "export":
            variable, _, value = words.pop(0).partition("=")
            environment[variable] = value
    return environment, options_of(words)


def options_of(words: tuple[str, ...] | list[str]) -> dict[str, object]:
    """``vllm serve NAME --x 1 --flag`` as {model: NAME, --x: 1, --flag: FLAG}; a repeated option must agree."""
    start = next(i for i, word in enumerate(words) if word.startswith("--"))
    options: dict[str, object] = {"model": words[start - 1]}
    name = ""
    for word in words[start:]:
        if word.startswith("--"):
            name = word
            options.setdefault(name, FLAG)
        else:
            value = plain(word)
            assert options[name] in (FLAG, value), f"{name} is given twice and differs"
            options[name] = value
    return options


def plain(word: str) -> object:
    """JSON as data and numbers as numbers, so that spelling does not count."""
    try:
        return json.loads(word)
    except ValueError:
        return word
