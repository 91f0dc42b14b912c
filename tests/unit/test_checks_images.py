"""Images and versions against each other: one plan that breaks each rule, and healthy twins."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.checks import check_plan
from fleet.findings import Finding
from tests.unit.plans import lay

A3 = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, quantization: ascend, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
roles: {serve: {tensor_parallel_size: 8}}
"""
TWO = A3.replace("{tensor_parallel_size: 8}", "{tensor_parallel_size: 16, data_parallel_size: 2}")
NVIDIA = """
title: t
source: s
platform: nvidia
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.19.1}
shm_size: 16g
roles: {serve: {tensor_parallel_size: 8}}
"""
PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.23.0, vllm_ascend: 0.23.0}
shm_size: 16g
roles: {prefill: {tensor_parallel_size: 16}, decode: {tensor_parallel_size: 16}}
kv_transfer: {connector: MooncakeConnectorV1, port: 20000}
"""
ASCEND = "quay.io/ascend/vllm-ascend"


def found(text: str, data: dict[str, Any], *hosts: str) -> list[Finding]:
    roles = {"prefill": ["10.0.0.1"], "decode": ["10.0.0.2"]} if "prefill" in text else {}
    plan = lay(text, data, **(roles or {"serve": list(hosts) or ["10.0.0.1"]}))
    return [f for f in check_plan(plan) if f.rule.startswith(("IMAGE-", "VERSION-"))]


def with_image(text: str, image: str) -> str:
    return text.replace("engine: {", f"engine: {{image: '{image}', ")


@pytest.mark.parametrize(
    ("text", "image", "rules"),
    [
        (A3, f"{ASCEND}:v0.13.0-a3", []),
        (A3, f"m.example.org/{ASCEND}:v0.13.0-a3-openeuler", []),
        (A3, f"{ASCEND}@sha256:abc", []),
        (A3, "registry.local/own-engine:7", []),
        (A3, f"{ASCEND}:v0.13.0", ["IMAGE-FAMILY"]),
        (A3.replace("-a3", "-a2"), f"{ASCEND}:v0.13.0", []),
        (A3.replace("-a3", "-a2"), f"{ASCEND}:v0.13.0-a3", ["IMAGE-FAMILY"]),
        (A3, f"{ASCEND}:v0.13.0-310p", ["IMAGE-FAMILY"]),
        (A3, "vllm/vllm-openai:v0.13.0", ["IMAGE-FAMILY"]),
        (NVIDIA, f"{ASCEND}:v0.19.1rc1", ["IMAGE-FAMILY"]),
        (A3, f"{ASCEND}:v0.18.0-a3", ["IMAGE-VERSION"]),
        (NVIDIA, "vllm/vllm-openai:v0.19.1-cu130", []),
        (NVIDIA, "vllm/vllm-openai:v0.18.0", ["IMAGE-VERSION"]),
        (NVIDIA, "vllm/vllm-openai:latest", ["IMAGE-ROLLING"]),
        (NVIDIA, "vllm/vllm-openai", ["IMAGE-ROLLING"]),
        (NVIDIA, "vllm/vllm-openai:nightly@sha256:abc", []),
        (A3, f"{ASCEND}:nightly-a3", ["IMAGE-ROLLING"]),
        (A3, f"{ASCEND}:main-a3", ["IMAGE-ROLLING"]),
        (A3, f"{ASCEND}:nightly-releases-v0.13.0-a3", ["IMAGE-ROLLING"]),
        (A3, f"{ASCEND}:v0.13.0rc2-a3", ["IMAGE-VERSION", "IMAGE-BAD"]),
    ],
)
def test_an_image_that_the_recipe_names(text: str, image: str, rules: list[str]) -> None:
    assert [f.rule for f in found(with_image(text, image), {})] == rules


def test_an_image_of_another_family_as_a_line() -> None:
    (finding,) = found(A3, {"image": f"{ASCEND}:v0.13.0"})
    assert finding.line() == (
        "error: fleet.py: quay.io/ascend/vllm-ascend:v0.13.0 is made for ascend-a2, the recipe is for ascend-a3 "
        "(the start ends with: the socversion of bin package does not match the current device socversion); "
        "choose the tag with the suffix -a3 [IMAGE-FAMILY]"
    )


def test_the_host_that_has_an_image_of_its_own_is_named() -> None:
    data = {"of": {"10.0.0.2": {"image": f"{ASCEND}:latest-a3"}}}
    (finding,) = found(A3, data, "10.0.0.1", "10.0.0.2")
    assert (finding.rule, finding.severity, finding.where) == ("IMAGE-ROLLING", "warning", "fleet.py 10.0.0.2")


def test_an_image_that_nobody_could_start() -> None:
    (finding,) = [f for f in found(with_image(A3, f"{ASCEND}:v0.13.0rc2-a3"), {}) if f.rule == "IMAGE-BAD"]
    assert (finding.severity, finding.mend) == ("error", "use the tag v0.13.0-a3")
    assert finding.source == "vllm-ascend issue 6242"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (f"{ASCEND}:v0.13.0-a3", []),
        (f"m.example.org/{ASCEND}:v0.13.0-a3", []),  # the same one through a mirror
        (f"{ASCEND}:v0.18.0-a3", ["error"]),
        (f"{ASCEND}@sha256:abc", ["warning"]),  # it may be the same one
    ],
)
def test_hosts_of_one_instance_run_one_image(other: str, told: list[str]) -> None:
    data = {"image": f"{ASCEND}:v0.13.0-a3", "of": {"10.0.0.2": {"image": other}}}
    its = found(TWO, data, "10.0.0.1", "10.0.0.2")
    assert [f.severity for f in its if f.rule == "IMAGE-DIFFERS"] == told


def test_replicas_may_run_two_images() -> None:
    data = {"of": {"10.0.0.2": {"image": f"{ASCEND}@sha256:abc"}}}
    assert found(A3, data, "10.0.0.1", "10.0.0.2") == []


def test_prefill_and_decode_of_one_set_run_one_image() -> None:
    assert found(PD, {}) == []
    (finding,) = found(PD, {"of": {"10.0.0.2": {"image": f"{ASCEND}@sha256:abc"}}})
    assert (finding.rule, finding.where) == ("IMAGE-DIFFERS", "fleet.py set-0")
    assert finding.what == "10.0.0.1 runs vllm-ascend v0.23.0-a3, 10.0.0.2 runs vllm-ascend sha256:abc"


@pytest.mark.parametrize(
    ("vllm", "vllm_ascend", "told"),
    [
        ("0.13.0", "0.13.0", None),
        ("0.13.0", "0.13.0rc1", None),
        ("0.14.1", "0.14.0rc1", None),
        ("0.14.0", "0.14.0rc1", "is built for vLLM 0.14.1, the recipe says vLLM 0.14.0"),
        ("0.18.0", "0.13.0", "is built for vLLM 0.13.0, the recipe says vLLM 0.18.0"),
        ("0.25.1", "0.25.1rc1", None),  # not in the table, and nothing speaks against it
        ("0.26.0", "0.25.1rc1", "is built for vLLM 0.25, the recipe says vLLM 0.26.0"),
    ],
)
def test_the_plugin_and_its_engine(vllm: str, vllm_ascend: str, told: str | None) -> None:
    text = A3.replace("{vllm: 0.13.0, vllm_ascend: 0.13.0}", f"{{vllm: {vllm}, vllm_ascend: {vllm_ascend}}}")
    its = [f for f in found(text, {}) if f.rule == "VERSION-PAIR"]
    assert [f.what for f in its] == ([f"vllm-ascend {vllm_ascend} {told}"] if told else [])


def test_the_mend_of_a_pair_is_the_newest_release() -> None:
    (finding,) = [f for f in found(A3, {"engine_version": "0.18.0"}) if f.rule == "VERSION-PAIR"]
    assert finding.mend == "set engine.vllm_ascend: 0.18.0"


def test_a_transfer_needs_a_newer_cann() -> None:
    text = PD.replace("0.23.0", "0.9.1").replace("20000", "36000")
    (finding,) = [f for f in found(text, {}) if f.rule == "VERSION-TRANSFER"]
    assert finding.severity == "error"
    assert finding.what == "MooncakeConnectorV1 needs CANN 8.3.RC1, the image of vllm-ascend 0.9.1 has 8.2.RC1"


@pytest.mark.parametrize(
    ("engine", "platform", "value", "told"),
    [
        ("0.23.0", "ascend-a3", 1, None),
        ("0.20.2rc1", "ascend-a3", 1, None),
        ("0.18.0", "ascend-a3", 1, "needs CANN 9.0, the image of vllm-ascend 0.18.0 has 8.5.1"),
        ("0.18.0", "ascend-a3", 0, None),
        ("0.23.0", "ascend-a2", 1, "is for Atlas A3, the recipe is for ascend-a2"),
        ("0.31.0", "ascend-a3", 1, None),  # unknown here
    ],
)
def test_fabric_memory(engine: str, platform: str, value: int, told: str | None) -> None:
    text = A3.replace("ascend-a3", platform).replace("vllm_ascend: 0.13.0", f"vllm_ascend: {engine}")
    text = text.replace("{tensor_parallel_size: 8}", f"{{env: {{ASCEND_ENABLE_USE_FABRIC_MEM: {value}}}}}")
    its = [f for f in found(text, {}) if f.rule == "VERSION-FABRIC-MEM"]
    assert [f.what for f in its] == ([f"ASCEND_ENABLE_USE_FABRIC_MEM {told}"] if told else [])
    assert {f.severity for f in its} <= {"error"}
