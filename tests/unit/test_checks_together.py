"""What must fit between hosts and roles: transfers, collectives, addresses, operators."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.checks import check_plan
from fleet.findings import Finding
from tests.unit.plans import lay

PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, quantization: ascend, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
shared:
  env: {LD_LIBRARY_PATH: '/x/mooncake:$LD_LIBRARY_PATH'}
roles:
  prefill: {tensor_parallel_size: 8, data_parallel_size: 2, args: {enable-expert-parallel: true}}
  decode: {tensor_parallel_size: 4, data_parallel_size: 4, args: {enable-expert-parallel: true}}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
"""
PD = PD.replace("shared:\n  env: {", "shared:\n  env: {HCCL_BUFFSIZE: 1024, ")
NIXL = """
title: t
source: s
platform: nvidia
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.19.1}
shm_size: 16g
roles: {prefill: {tensor_parallel_size: 4}, decode: {tensor_parallel_size: 8}}
kv_transfer: {connector: NixlConnector}
"""
TWO = """
title: t
source: s
platform: ascend-a2
model: {name: org/model, quantization: ascend, max_position_embeddings: 40960, weights_gb: 240}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
shared: {env: {HCCL_CONNECT_TIMEOUT: 400}}
roles: {serve: {tensor_parallel_size: 8, data_parallel_size: 2}}
"""
BOTH = ["10.0.0.1", "10.0.0.2"]
ALWAYS = {"PORT-EPHEMERAL"}


def found(text: str, data: dict[str, Any] | None = None) -> list[Finding]:
    roles = {"serve": BOTH} if "serve" in text else {"prefill": BOTH[:1], "decode": BOTH[1:]}
    return [f for f in check_plan(lay(text, data or {}, **roles)) if f.rule not in ALWAYS]


@pytest.mark.parametrize("text", [PD, NIXL, TWO])
def test_healthy_twins(text: str) -> None:
    assert found(text) == []


# ---- prefill and decode


@pytest.mark.parametrize(
    ("prefill", "decode", "told"),
    [
        (8, 4, None),
        (4, 4, None),
        (16, 1, None),
        (4, 8, ("error", "decode's tensor_parallel_size 8 is more than prefill's 4")),
        (6, 4, ("warning", "prefill's tensor_parallel_size 6 is no multiple of decode's 4")),
    ],
)
def test_a_decode_rank_pulls_from_whole_prefill_ranks(prefill: int, decode: int, told: tuple[str, str] | None) -> None:
    text = PD.replace("tensor_parallel_size: 8, data_parallel_size: 2", f"tensor_parallel_size: {prefill}")
    text = text.replace("tensor_parallel_size: 4, data_parallel_size: 4", f"tensor_parallel_size: {decode}")
    assert [(f.severity, f.what) for f in found(text) if f.rule == "TRANSFER-TENSOR"] == ([told] if told else [])


def test_a_decode_has_no_pipeline_stages() -> None:
    (finding,) = found(PD.replace("4, data_parallel_size: 4", "4, pipeline_parallel_size: 4"))
    assert (finding.rule, finding.severity) == ("TRANSFER-PIPELINE", "error")
    assert found(PD.replace("8, data_parallel_size: 2", "8, pipeline_parallel_size: 2")) == []


@pytest.mark.parametrize(("prefill", "decode", "told"), [(8192, 8192, 0), (8192, 40960, 0), (40960, 8192, 1)])
def test_decode_takes_what_prefill_takes(prefill: int, decode: int, told: int) -> None:
    text = PD.replace("args: {", f"args: {{max-model-len: {prefill}, ", 1)
    head, tail = text.split("  decode:")
    tail = tail.replace("args: {", f"args: {{max-model-len: {decode}, ")
    assert [f.rule for f in found(f"{head}  decode:{tail}")] == ["TRANSFER-CONTEXT"] * told


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("block-size: 64", "block-size is 64 on prefill and not set on decode"),
        ("kv-cache-dtype: fp8", "kv-cache-dtype is fp8 on prefill and not set on decode"),
    ],
)
def test_both_sides_lay_out_the_cache_alike(argument: str, what: str) -> None:
    (finding,) = found(NIXL.replace("prefill: {", f"prefill: {{args: {{{argument}}}, "))
    assert (finding.rule, finding.severity, finding.what) == ("TRANSFER-CACHE", "warning", what)
    assert found(NIXL.replace("roles:", f"shared: {{args: {{{argument}}}}}\nroles:")) == []


def test_both_sides_say_different_things_of_the_cache() -> None:
    text = NIXL.replace("prefill: {", "prefill: {args: {block-size: 64}, ")
    (finding,) = found(text.replace("decode: {", "decode: {args: {block-size: 128, dtype: auto}, "))
    assert (finding.severity, finding.what) == ("error", "block-size is 64 on prefill and 128 on decode")


def test_mooncakes_library_is_found_by_its_variable() -> None:
    bare = PD.replace(", LD_LIBRARY_PATH: '/x/mooncake:$LD_LIBRARY_PATH'", "")
    (finding,) = found(bare)
    assert (finding.rule, finding.where) == ("TRANSFER-LIBRARY", "r prefill and decode")
    assert found(bare.replace("0.13.0", "0.23.0")) == []  # installed as a package


# ---- collectives


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("HCCL_CONNECT_TIMEOUT: 60", "HCCL_CONNECT_TIMEOUT is 60, HCCL takes 120 to 7200"),
        ("HCCL_CONNECT_TIMEOUT: 10m", "HCCL_CONNECT_TIMEOUT is 10m, HCCL takes 120 to 7200"),
        ("HCCL_BUFFSIZE: 0", "HCCL_BUFFSIZE is 0, HCCL takes 1 or more"),
        ("HCCL_IF_BASE_PORT: 65530", "HCCL_IF_BASE_PORT is 65530, HCCL takes 1024 to 65520"),
        ("HCCL_RDMA_TIMEOUT: 4", "HCCL_RDMA_TIMEOUT is 4, HCCL takes 5 to 20"),
    ],
)
def test_what_hccl_refuses(variable: str, what: str) -> None:
    text = TWO.replace("HCCL_CONNECT_TIMEOUT: 400", "X: 1" if "CONNECT" in variable else "HCCL_CONNECT_TIMEOUT: 400")
    its = [f for f in found(text.replace("env: {", f"env: {{{variable}, ")) if f.rule == "HCCL-BOUNDS"]
    assert [(f.severity, f.what) for f in its] == [("error", what)]


@pytest.mark.parametrize(
    ("shared", "prefill", "told"),
    [
        ("HCCL_INTRA_ROCE_ENABLE: 1", "X: 1", []),
        ("HCCL_INTRA_ROCE_ENABLE: 1, HCCL_INTRA_PCIE_ENABLE: 0", "X: 1", []),
        ("X: 1", "HCCL_INTRA_ROCE_ENABLE: 0", []),
        ("X: 1", "HCCL_INTRA_ROCE_ENABLE: 1", ["HCCL_INTRA_ROCE_ENABLE, decode has neither"]),
        ("HCCL_INTRA_ROCE_ENABLE: 1, HCCL_INTRA_PCIE_ENABLE: 1", "X: 1", ["are both 1", "are both 1"]),
        ("HCCL_INTRA_PCIE_ENABLE: 1", "X: 1", ["is 1 on Atlas A3", "is 1 on Atlas A3"]),
    ],
)
def test_links_inside_a_host(shared: str, prefill: str, told: list[str]) -> None:
    text = PD.replace("env: {", f"env: {{{shared}, ").replace("prefill: {", f"prefill: {{env: {{{prefill}}}, ")
    its = found(text)
    assert [(f.rule, f.severity) for f in its] == [("HCCL-INTRA", "error")] * len(told)
    assert all(word in f.what for f, word in zip(its, told, strict=True))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"HCCL_BUFFSIZE": 512}, "HCCL_BUFFSIZE is not set on 10.0.0.1 and 512 on 10.0.0.2"),
        ({"HCCL_CONNECT_TIMEOUT": 600}, "HCCL_CONNECT_TIMEOUT is 400 on 10.0.0.1 and 600 on 10.0.0.2"),
        ({"VLLM_ASCEND_ENABLE_NZ": 0}, "VLLM_ASCEND_ENABLE_NZ is not set on 10.0.0.1 and 0 on 10.0.0.2"),
        ({"HCCL_SOCKET_IFNAME": "=ens1"}, None),  # a host's own
        ({"OMP_NUM_THREADS": 4}, None),
    ],
)
def test_ranks_of_one_instance_agree(own: dict[str, Any], told: str | None) -> None:
    its = found(TWO, {"of": {"10.0.0.2": {"env": own}}})
    assert [(f.rule, f.severity, f.what) for f in its] == ([("HCCL-DIFFERS", "warning", told)] if told else [])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("400", "120"), True),
        (("HCCL_CONNECT_TIMEOUT: 400", "X: 1"), True),
        (("X: 1", "X: 2"), False),
        (("weights_gb: 240", "weights_gb: 60"), False),
    ],
)
def test_hosts_with_large_weights_wait_longer(change: tuple[str, str], told: bool) -> None:
    text = TWO.replace(*change)
    text = text.replace("HCCL_CONNECT_TIMEOUT: 400", "X: 1") if "60" in change[1] else text
    assert [f.rule for f in found(text)] == ["HCCL-TIMEOUT"] * told


@pytest.mark.parametrize(
    ("size", "parallel", "told"),
    [("1024", "true", 0), ("512", "true", 0), ("400", "true", 2), ("400", "false", 0)],
)
def test_experts_over_many_devices_need_a_buffer(size: str, parallel: str, told: int) -> None:
    text = PD.replace("HCCL_BUFFSIZE: 1024", f"HCCL_BUFFSIZE: {size}")
    text = text.replace("enable-expert-parallel: true", f"enable-expert-parallel: {parallel}")
    assert [f.rule for f in found(text)] == ["HCCL-BUFFER"] * told


def test_the_default_buffer_is_small() -> None:
    its = found(PD.replace("HCCL_BUFFSIZE: 1024, ", ""))
    assert [f.what for f in its] == ["HCCL_BUFFSIZE is 200 MB for experts over 16 devices"] * 2


# ---- addresses and names


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("GLOO_SOCKET_IFNAME: ''", "GLOO_SOCKET_IFNAME is empty"),
        ("HCCL_SOCKET_IFNAME: '=lo'", "HCCL_SOCKET_IFNAME is =lo"),
        ("HCCL_SOCKET_IFNAME: docker0", "HCCL_SOCKET_IFNAME is docker0"),
        ("HCCL_SOCKET_IFNAME: '^docker0,lo'", None),
        ("HCCL_IF_IP: 10.0.0.1", "HCCL_IF_IP is 10.0.0.1 on 10.0.0.2"),
        ("HCCL_IF_IP: 10.9.0.1", "HCCL_IF_IP is 10.9.0.1 on 10.0.0.1 and on 10.0.0.2"),
        ("VLLM_HOST_IP: 127.0.0.1", "VLLM_HOST_IP is 127.0.0.1, which no other host reaches"),
        ("GLOO_SOCKET_IFNAME: bond0", None),
    ],
)
def test_an_address_written_by_hand(env: str, told: str | None) -> None:
    its = found(TWO.replace("env: {", f"env: {{{env}, "))
    assert [(f.rule, f.severity, f.what) for f in its] == ([("ENV-ADDRESS", "error", told)] if told else [])


def test_a_host_may_have_another_address_of_its_own() -> None:
    own = {h: {"env": {"HCCL_IF_IP": h.replace("10.0", "10.9")}} for h in BOTH}
    assert found(TWO, {"of": own}) == []


def test_a_side_channel_on_localhost() -> None:
    (finding,) = found(NIXL.replace("decode: {", "decode: {env: {VLLM_NIXL_SIDE_CHANNEL_HOST: localhost}, "))
    assert (finding.rule, finding.where) == ("ENV-ADDRESS", "fleet.py 10.0.0.2")


def test_names_that_dns_takes_for_one() -> None:
    replicas = TWO.replace(", data_parallel_size: 2", "")
    hosts = [("npu-a", "10.0.0.1"), ("NPU-A", "10.0.0.2")]
    (finding,) = [f for f in check_plan(lay(replicas, {}, serve=hosts)) if f.rule == "HOST-NAMES"]
    assert finding.what == "NPU-A and npu-a differ in upper and lower case only"


# ---- fused operators

FUSED = PD.replace("env: {", "env: {VLLM_ASCEND_ENABLE_FUSED_MC2: 1, ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([], []),
        ([("FUSED_MC2: 1", "FUSED_MC2: 2")], ["ENV-FUSED-MC2"]),
        ([("FUSED_MC2: 1", "FUSED_MC2: 0"), ("quantization: ascend, ", "")], []),
        ([("quantization: ascend, ", "")], ["FUSED-MC2-WEIGHTS"] * 2),
        ([("vllm_ascend: 0.13.0", "vllm_ascend: 0.13.0rc1")], []),
    ],
)
def test_the_fused_operator_by_its_variable(changes: list[tuple[str, str]], told: list[str]) -> None:
    text = FUSED
    for before, after in changes:
        text = text.replace(before, after)
    assert [f.rule for f in found(text)] == told


def test_experts_over_more_devices_than_the_operator_takes() -> None:
    text = FUSED.replace("4, data_parallel_size: 4", "4, data_parallel_size: 16")
    hosts = {"prefill": ["10.0.1.1"], "decode": [f"10.0.0.{n}" for n in range(1, 5)]}
    its = [f for f in check_plan(lay(text, {}, **hosts)) if f.rule == "FUSED-MC2-SIZE"]
    assert [f.what for f in its] == [
        "VLLM_ASCEND_ENABLE_FUSED_MC2=1 takes experts over 32 devices with vllm-ascend 0.13.0, here are 64"
    ]


@pytest.mark.parametrize(("version", "told"), [("0.18.0", []), ("0.20.2rc1", ["ENV-FUSED-MC2"])])
def test_the_key_counts_where_it_is_read(version: str, told: list[str]) -> None:
    text = PD.replace("0.13.0", version).replace("args: {", "args: {additional-config: {enable_fused_mc2: 2}, ")
    assert [f.rule for f in found(text) if f.rule.startswith("ENV-FUSED")] == told


def test_the_fused_operator_is_for_a3() -> None:
    its = found(TWO.replace("env: {", "env: {VLLM_ASCEND_ENABLE_FUSED_MC2: 1, "))
    assert [f.rule for f in its] == ["FUSED-MC2-MACHINE"]
