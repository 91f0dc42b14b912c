"""Variables that somebody wrote by hand, against what vLLM, vllm-ascend and HCCL read."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from fleet.checks.environment import CHECKS
from fleet.findings import Finding
from fleet.flags import known
from tests.unit.plans import lay

ROLE = "r serve"


def told(
    written: str, vllm: str = "0.13.0", ascend: str | None = None, platform: str = "ascend-a3", **data: Any
) -> list[Finding]:
    """What is said of the environment that a recipe writes; data is the inventory's."""
    text = f"""
title: t
source: s
platform: {platform}
model: {{name: org/model, max_position_embeddings: 40960}}
engine: {{vllm: {vllm}, vllm_ascend: {ascend or vllm}}}
roles:
  serve: {{tensor_parallel_size: 8, env: {written}}}
"""
    plan = lay(text, data, serve=["10.0.0.1", "10.0.0.2"])
    return [finding for check in CHECKS for finding in check(plan)]


@pytest.mark.parametrize(
    "env",
    [
        "{VLLM_USE_MODELSCOPE: true, VLLM_LOGGING_LEVEL: DEBUG, VLLM_WORKER_MULTIPROC_METHOD: spawn}",
        "{VLLM_ASCEND_ENABLE_FLASHCOMM1: 1, VLLM_ASCEND_ENABLE_FUSED_MC2: 2}",
        "{VLLM_VERSION: 0.13.0}",  # vllm-ascend's, without its prefix
        "{VLLM_DIST_IDENT: x}",  # read outside of vllm/envs.py
        "{VLLM_LAB_NIXL_POLL_US: 5000, VLLM_STANDIN_VERSION: 0.13.0}",
        "{OMP_NUM_THREADS: 1, TASK_QUEUE_ENABLE: 1, PYTORCH_NPU_ALLOC_CONF: x, HF_HUB_OFFLINE: 1, ASCEND_ANYTHING: 1}",
        "{HCCL_BUFFSIZE: 1024, HCCL_OP_EXPANSION_MODE: AIV, HCCL_EVENT_TIMEOUT: 7200, HCCL_NOBODY_KNOWS: 1}",
    ],
)
def test_what_is_read_or_not_known_to_be_unread(env: str) -> None:
    assert told(env) == []


@pytest.mark.parametrize(
    ("name", "vllm", "who", "why", "mend"),
    [
        (
            "VLLM_USE_V1",
            "0.13.0",
            "vLLM 0.13.0",
            "last in 0.11.0, gone by 0.11.1",
            "remove it, since there is no other",
        ),
        (
            "VLLM_ATTENTION_BACKEND",
            "0.18.0",
            "vLLM 0.18.0",
            "last in 0.14.1, gone by 0.15.0",
            "use --attention-backend",
        ),
        ("VLLM_ALL2ALL_BACKEND", "0.23.0", "vLLM 0.23.0", "last in 0.15.1, gone by 0.16.0", "use --all2all-backend"),
        ("VLLM_ENGINE_READY_TIMEOUT_S", "0.11.0", "vLLM 0.11.0", "vLLM has it from 0.14.0 on", "remove it"),
        ("VLLM_USE_MODELSCOP", "0.13.0", "vLLM 0.13.0", "no version is known to read it", "write VLLM_USE_MODELSCOPE"),
        ("VLLM_ZZZ", "0.13.0", "vLLM 0.13.0", "no version is known to read it", "remove it"),
        (
            "VLLM_ASCEND_ENABLE_PREFETCH_MLP",
            "0.18.0",
            "vllm-ascend 0.18.0",
            "it was read up to 0.17.0rc1",
            "use weight_prefetch_config in additional-config",
        ),
        ("VLLM_ASCEND_ENABLE_FUSED_MC2", "0.12.0", "vllm-ascend 0.12.0", "it is read from 0.13.0rc1 on", "remove it"),
        (
            "VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE",  # stands in documents, and in no source
            "0.18.0",
            "vllm-ascend 0.18.0",
            "no version is known to read it",
            "",
        ),
        (
            "HCCL_BUFFERSIZE",
            "0.13.0",
            "HCCL",
            "no version is known to read it",
            "write HCCL_BUFFSIZE",
        ),
    ],
)
def test_what_nothing_reads(name: str, vllm: str, who: str, why: str, mend: str) -> None:
    (finding,) = told(f"{{{name}: 1}}", vllm)
    assert (finding.rule, finding.severity, finding.where) == ("ENV-UNREAD", "warning", ROLE)
    assert finding.what == f"{who} does not read {name}, it has no effect"
    assert finding.why == why
    assert finding.mend.startswith(mend)


def test_the_variables_of_another_family_are_told() -> None:
    (finding,) = told("{VLLM_ASCEND_ENABLE_FLASHCOMM1: 1}", platform="nvidia")
    assert finding.line().startswith(
        "warning: r serve: vLLM 0.13.0 does not read VLLM_ASCEND_ENABLE_FLASHCOMM1, it has no effect "
        "(it is vllm-ascend's, and this is nvidia); remove it"
    )
    (finding,) = told("{HCCL_BUFFSIZE: 1}", platform="nvidia")
    assert (finding.rule, finding.why) == ("ENV-UNREAD", "it is Ascend's, and this is nvidia")


def test_each_role_tells_a_variable_once_and_the_inventory_once() -> None:
    where = [f.where for f in told("{VLLM_USE_V1: 1}", env={"VLLM_USE_V1": "0"})]
    assert where == ["r serve", "fleet.py 10.0.0.1, 10.0.0.2"]


def test_one_host_is_named() -> None:
    (finding,) = told("{}", of={"10.0.0.2": {"env": {"VLLM_USE_V1": "1"}}})
    assert finding.where == "fleet.py 10.0.0.2"


def test_what_the_planner_derives_is_not_judged() -> None:
    assert told("{}", vllm="0.11.0") == []


@pytest.mark.parametrize(("vllm", "ascend"), [("0.9.1", "0.9.1"), ("0.40.0", "0.40.0")])
def test_versions_outside_of_the_lists_are_not_guessed_at(vllm: str, ascend: str) -> None:
    assert told("{VLLM_ASCEND_WHAT_IS_THIS: 1}", vllm, ascend) == []


# ---- vllm-ascend's list


def test_the_plugins_releases_are_in_order() -> None:
    versions = [Version(v) for v in known.plugin().versions]
    assert versions == sorted(versions)


def test_every_span_of_the_plugin_names_releases_of_the_list() -> None:
    plugin = known.plugin()
    for name, span in {**plugin.keys, **plugin.variables}.items():
        ends = [plugin.versions.index(v) for v in (span.first, span.last) if v is not None]
        assert ends == sorted(ends), name


@pytest.mark.parametrize(
    ("version", "judged_by"),
    [("0.13.0", "0.13.0"), ("0.18.1", "0.18.0"), ("0.13.0rc1", "0.13.0rc1"), ("0.9.1", None), ("0.30.0", "0.25.1rc1")],
)
def test_a_release_that_is_not_listed_is_judged_by_the_one_before(version: str, judged_by: str | None) -> None:
    assert known.plugin().judged_by(version) == judged_by


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("NCCL_DEBG", "NCCL_DEBUG"),
        ("UCX_TSL", "UCX_TLS"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("GLOO_SOCKET_IFNANE", "GLOO_SOCKET_IFNAME"),
        ("TASK_QUEUE_ENBLE", "TASK_QUEUE_ENABLE"),
        ("NCCL_DEBUGG", "NCCL_DEBUG"),
    ],
)
def test_a_variable_one_letter_from_another_librarys(name: str, close: str) -> None:
    (finding,) = told(f"{{{name}: 1}}")
    assert (finding.rule, finding.severity, finding.mend) == ("ENV-UNREAD", "warning", f"write {close}")


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_IB_SL2", "ASCEND_A5_ENABLE", "MY_OWN", "DEBUG", "NCCL_MIN_XYAS"])
def test_a_variable_that_may_be_anybodys(name: str) -> None:
    assert told(f"{{{name}: 1}}") == []


def test_known_variables_are_no_slips_of_each_other() -> None:
    others = known.variables().others
    assert [n for n in others if known.one_letter_off(n, [o for o in others if o == n])] == []


@pytest.mark.parametrize(
    ("env", "what", "mend"),
    [
        ("{VLLM_USE_DEEP_GEMM: true}", "VLLM_USE_DEEP_GEMM is true", "write 1"),
        ("{VLLM_USE_DEEP_GEMM: 'no'}", "VLLM_USE_DEEP_GEMM is no", "write 0"),
        ("{VLLM_USE_DEEP_GEMM: ''}", "VLLM_USE_DEEP_GEMM is empty", "write a whole number"),
    ],
)
def test_a_word_where_the_engine_reads_a_number(env: str, what: str, mend: str) -> None:
    (finding,) = told(env)
    assert (finding.rule, finding.severity) == ("ENV-KIND", "error")
    assert (finding.what, finding.mend) == (f"{what}, the engine reads a whole number", mend)


@pytest.mark.parametrize(
    "env", ["{VLLM_USE_DEEP_GEMM: 1}", "{VLLM_USE_MODELSCOPE: true}", "{VLLM_LOGGING_LEVEL: INFO}"]
)
def test_values_that_the_engine_reads(env: str) -> None:
    assert told(env) == []


def test_the_plugins_switches_are_numbers_too() -> None:
    (finding,) = told("{VLLM_ASCEND_ENABLE_FLASHCOMM1: true}", platform="ascend-a3")
    assert (finding.rule, finding.mend) == ("ENV-KIND", "write 1")
