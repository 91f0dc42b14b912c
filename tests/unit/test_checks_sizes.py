"""Memory with its arithmetic, weights, times, loads, ports and listeners. Broken plans and healthy twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet import sizes, yamlfile
from fleet.checks import check_plan
from fleet.findings import Finding
from fleet.recipe import Recipe
from tests.unit.plans import lay

A2 = """
title: t
source: s
platform: ascend-a2
model:
  name: org/Model-235B
  max_position_embeddings: 40960
  weights_gb: 400
  experts_gb: 380
  num_hidden_layers: 94
  num_attention_heads: 64
  num_key_value_heads: 4
  head_dim: 128
  hidden_size: 4096
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
roles: {serve: {tensor_parallel_size: 8, args: {max-model-len: 8192}}}
"""
NVIDIA = A2.replace("ascend-a2", "nvidia").replace("{vllm: 0.13.0, vllm_ascend: 0.13.0}", "{vllm: 0.19.1}")
NVIDIA = NVIDIA.replace("shm_size", "device_memory_gb: 80\nshm_size")


def found(text: str, data: dict[str, Any] | None = None, *hosts: Any, **roles: list[Any]) -> list[Finding]:
    return list(check_plan(lay(text, data or {}, **(roles or {"serve": list(hosts) or ["10.0.0.1"]}))))


def rules(text: str, *changes: tuple[str, str]) -> list[str]:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return [f.rule for f in found(text)]


# ---- memory


@pytest.mark.parametrize(
    ("text", "changes", "told"),
    [
        (A2, [], []),
        (NVIDIA, [], []),
        (A2, [("weights_gb: 400", "weights_gb: 460")], ["MEMORY-WEIGHTS"]),
        (A2, [("weights_gb: 400", "weights_gb: 520")], ["MEMORY-FIT"]),
        (A2, [("weights_gb: 400", "weights_gb: 520"), ("args: {", "args: {cpu-offload-gb: 20, ")], []),
        (A2, [("shm_size", "device_memory_gb: 32\nshm_size")], ["MEMORY-FIT"]),
        (A2, [("args: {", "args: {gpu-memory-utilization: 0.6, ")], ["MEMORY-FIT"]),
        (A2, [("max-model-len: 8192", "max-model-len: 40960"), ("8, args", "8, env: {HCCL_BUFFSIZE: 3000}, args")], []),
        (A2, [("args: {", "args: {max-num-batched-tokens: 131072, ")], ["MEMORY-CONTEXT"]),
        (
            A2,
            [("args: {", "args: {max-num-batched-tokens: 131072, num-gpu-blocks-override: 9, ")],
            [],
        ),
        (NVIDIA, [("weights_gb: 400", "weights_gb: 640")], ["MEMORY-FIT"]),
        (NVIDIA, [("weights_gb: 400", "weights_gb: 640"), ("device_memory_gb: 80", "device_memory_gb: 141")], []),
        (NVIDIA, [("weights_gb: 400", "weights_gb: 600"), ("args: {", "args: {kv-cache-memory-bytes: 1G, ")], []),
        (NVIDIA.replace("nvidia", "cpu"), [("device_memory_gb: 80\n", "")], []),
    ],
)
def test_what_fits(text: str, changes: list[tuple[str, str]], told: list[str]) -> None:
    if "cpu" in text:
        text = text.replace("tensor_parallel_size: 8, ", "")
    assert rules(text, *changes) == told


def test_weights_that_do_not_fit_as_a_line() -> None:
    (finding,) = found(A2.replace("weights_gb: 400", "weights_gb: 520"))
    assert finding.line() == (
        "error: r serve: 60.5 GiB of weights a device (520 GB / 8) are more than the 57.6 GiB that the engine may use "
        "(64.0 GiB x 0.9, at most what an idle device has free: 60.7; device_memory_gb taken as 64) "
        "(the engine ends with: Available KV cache memory is negative, or out of memory while it loads); "
        "use two hosts, or the w8a8 weights [MEMORY-FIT]"
    )


def test_a_context_that_does_not_fit_as_a_line() -> None:
    text = A2.replace("max-model-len: 8192", "max-model-len: 40960, max-num-batched-tokens: 65536")
    (finding,) = found(text)
    assert (finding.rule, finding.severity) == ("MEMORY-CONTEXT", "warning")
    assert finding.what == (
        "weights 46.6 (400 GB / 8) + cache 1.8 (40960 tokens x 47 KiB) + activations 10.0 + buffers 0.4 = "
        "58.8 GiB a device are more than the 57.6 GiB that the engine may use "
        "(64.0 GiB x 0.9, at most what an idle device has free: 60.7; device_memory_gb taken as 64)"
    )


def test_an_nvidia_device_of_unknown_memory_is_only_warned_of() -> None:
    text = NVIDIA.replace("device_memory_gb: 80\n", "").replace("weights_gb: 400", "weights_gb: 640")
    (finding,) = found(text)
    assert (finding.rule, finding.severity) == ("MEMORY-FIT", "warning")
    assert "device_memory_gb taken as 80" in finding.what


def test_weights_that_are_quantised_while_they_load_are_only_warned_of() -> None:
    text = NVIDIA.replace("weights_gb: 400", "weights_gb: 640\n  quantization: fp8")
    assert [(f.rule, f.severity) for f in found(text)] == [("MEMORY-FIT", "warning")]


@pytest.mark.parametrize(
    ("sizes_of", "gib", "how"),
    [
        ("tensor_parallel_size: 8", 46.57, "400 GB / 8"),
        ("tensor_parallel_size: 8, pipeline_parallel_size: 2, executor: ray", 23.28, "400 GB / 16"),
        ("tensor_parallel_size: 4, data_parallel_size: 4", 26.78, "380 GB / 16 + 20 GB / 4"),
    ],
)
def test_how_weights_are_spread(sizes_of: str, gib: float, how: str) -> None:
    recipe = _recipe(A2.replace("tensor_parallel_size: 8", sizes_of))
    on_device, said = sizes.weights(recipe.model, recipe.role("serve"))
    assert (round(on_device, 2), said) == (gib, how)


def test_weights_of_unknown_experts_are_at_least_so_much() -> None:
    recipe = _recipe(A2.replace("tensor_parallel_size: 8", "data_parallel_size: 8").replace("experts_gb: 380", ""))
    assert sizes.weights(recipe.model, recipe.role("serve"))[1] == "at least 400 GB / 8"


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ("tensor_parallel_size: 1", 94 * 4 * 128 * 2 * 2),
        ("tensor_parallel_size: 4", 94 * 1 * 128 * 2 * 2),
        ("tensor_parallel_size: 8", 94 * 1 * 128 * 2 * 2),
        ("tensor_parallel_size: 8, pipeline_parallel_size: 2", 47 * 1 * 128 * 2 * 2),
    ],
)
def test_bytes_of_a_token(args: str, size: int) -> None:
    recipe = _recipe(A2.replace("tensor_parallel_size: 8", args))
    assert sizes.cache_bytes_per_token(recipe.model, recipe.role("serve")) == size


def _recipe(text: str) -> Recipe:
    return Recipe.model_validate(yamlfile.parse(text, Path("r.yaml")).data)


# ---- weights


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("org/Model-235B", "org/Model-235B-w8a8")], "the name of org/Model-235B-w8a8 says w8a8"),
        ([("org/Model-235B", "org/Model-235B-W4A8"), ("weights_gb: 400", "weights_gb: 130")], "says W4A8"),
        ([("org/Model-235B", "org/Model-235B-w8a8, quantization: ascend".replace(", ", "\n  "))], None),
        (
            [("org/Model-235B", "org/Model-235B\n  quantization: ascend"), ("weights_gb: 400", "weights_gb: 430")],
            "430 GB for 235 billion parameters are 1.8 bytes each, not one",
        ),
        ([("org/Model-235B", "org/Model-235B\n  quantization: ascend"), ("weights_gb: 400", "weights_gb: 240")], None),
    ],
)
def test_weights_and_quantisation(changes: list[tuple[str, str]], told: str | None) -> None:
    text = A2
    for before, after in changes:
        text = text.replace(before, after)
    its = [f.what for f in found(text) if f.rule == "WEIGHTS-QUANTISED"]
    assert len(its) == (told is not None)
    assert told is None or told in its[0]


@pytest.mark.parametrize(("size", "told"), [(8, []), (4, []), (6, ["WEIGHTS-HEADS"])])
def test_heads_divide(size: int, told: list[str]) -> None:
    text = A2.replace("tensor_parallel_size: 8", f"tensor_parallel_size: {size}").replace("weights_gb: 400", "")
    assert [f.rule for f in found(text.replace("experts_gb: 380", ""))] == told


@pytest.mark.parametrize(("value", "told"), [("true", 1), ("1", 1), ("false", 0), ("0", 0)])
def test_weights_that_every_rank_would_download(value: str, told: int) -> None:
    text = A2.replace("args: {", f"env: {{VLLM_USE_MODELSCOPE: {value}}}, args: {{")
    assert [f.rule for f in found(text)] == ["WEIGHTS-MODELSCOPE"] * told


# ---- times


@pytest.mark.parametrize(("limit", "told"), [(920, []), (919, ["START-TIMEOUT"]), (3600, [])])
def test_a_start_has_time_to_read_the_weights(limit: int, told: list[str]) -> None:
    its = found(f"start_timeout_seconds: {limit}\n{A2}")
    assert [f.rule for f in its] == told
    if told:
        assert its[0].what == "start_timeout_seconds 919 is less than 400 GB / 0.5 + 120 s = 920 s"
        assert its[0].mend == "set start_timeout_seconds: 1200 or more"


@pytest.mark.parametrize(("value", "told"), [(3600, []), (7200, []), (600, ["START-READY"])])
def test_the_engine_waits_as_long_as_the_run(value: int, told: list[str]) -> None:
    text = A2.replace("args: {", f"env: {{VLLM_ENGINE_READY_TIMEOUT_S: {value}}}, args: {{")
    assert [f.rule for f in found(text.replace("0.13.0", "0.18.0"))] == told
    assert "START-READY" not in [f.rule for f in found(text)]  # 0.13.0 does not read it


@pytest.mark.parametrize(
    ("seconds", "door", "told"), [(60, True, []), (120, True, []), (180, True, ["STOP-DRAIN"]), (180, False, [])]
)
def test_a_drain_is_no_longer_than_the_doors_stop(seconds: int, door: bool, told: list[str]) -> None:
    roles = {"serve": ["10.0.0.1"]} | ({"proxy": ["10.0.0.1"]} if door else {})
    assert [f.rule for f in found(f"drain_seconds: {seconds}\n{A2}", **roles)] == told


# ---- load, containers, ports, listeners


@pytest.mark.parametrize(
    ("seqs", "asked", "hosts", "told"),
    [(128, 128, 1, []), (128, 129, 1, ["LOAD-SEQS"]), (128, 256, 2, []), (None, 9999, 1, [])],
)
def test_the_engines_take_what_the_workload_sends(seqs: int | None, asked: int, hosts: int, told: list[str]) -> None:
    text = A2.replace("args: {", f"args: {{max-num-seqs: {seqs}, ") if seqs else A2
    text += f"workload: {{args: {{max-concurrency: {asked}}}}}\n"
    its = found(text, {}, *[f"10.0.0.{n}" for n in range(1, hosts + 1)])
    assert [f.rule for f in its] == told


@pytest.mark.parametrize(
    ("size", "told"),
    [("16g", []), ("10g", []), ("10240m", []), ("8g", ["SHM-SMALL"]), ("512m", ["SHM-SMALL"]), ("1g", ["SHM-SMALL"])],
)
def test_shared_memory(size: str, told: list[str]) -> None:
    assert rules(A2, ("shm_size: 16g", f"shm_size: {size}")) == told


def test_ports_that_the_kernel_may_have_given_away() -> None:
    text = A2.replace("tensor_parallel_size: 8", "tensor_parallel_size: 8, data_parallel_size: 2, rpc_port: 54951")
    its = [f for f in found(text, {}, "10.0.0.1", "10.0.0.2") if f.rule == "PORT-EPHEMERAL"]
    assert [f.line() for f in its] == [
        "warning: fleet.py: ports 54951 (rpc), 60000-60031 (HCCL) lie in 32768-60999, from which the kernel takes "
        "ports at random (a start then fails now and then with Address already in use (EI0019, EI0020)); "
        "add them to net.ipv4.ip_local_reserved_ports of the hosts: 54951,60000-60031 [PORT-EPHEMERAL]"
    ]


@pytest.mark.parametrize(("port", "told"), [(8000, []), (32767, []), (32768, ["PORT-EPHEMERAL"]), (61000, [])])
def test_a_port_of_the_api(port: int, told: list[str]) -> None:
    assert rules(A2, ("tensor_parallel_size: 8", f"tensor_parallel_size: 8, port: {port}")) == told


@pytest.mark.parametrize(
    ("address", "told"),
    [("10.0.0.1", 0), ("192.168.7.1", 0), ("fd00::1", 0), ("100.64.0.1", 0), ("8.8.4.4", 1), ("2600::1", 1)],
)
def test_engines_on_public_addresses(address: str, told: int) -> None:
    its = found(A2, {}, ("host", address))
    assert [(f.rule, f.where) for f in its] == [("SECURITY-OPEN", "fleet.py host")] * told


def test_many_public_hosts_are_one_finding() -> None:
    (finding,) = found(A2, {}, *[(f"n{i}", f"8.8.4.{i}") for i in range(1, 9)])
    assert finding.where == "fleet.py n1, n2, n3 and 5 more"
    assert finding.mend.endswith("and set api_keys for the front door")


# ---- context


@pytest.mark.parametrize(
    ("version", "env", "why"),
    [
        ("0.13.0", "X: 1", "the engine refuses it at start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set"),
        (
            "0.13.0",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN: 1",
            "the engine starts, and what lies beyond it is nonsense",
        ),
        (
            "0.31.0",
            "X: 1",
            "vLLM 0.31.0 refuses it at start, unless hf-overrides has max_position_embeddings or "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set",
        ),
    ],
)
def test_what_each_version_does_with_the_seeds_context(version: str, env: str, why: str) -> None:
    text = A2.replace("0.13.0", version).replace("max-model-len: 8192", "max-model-len: 163841")
    text = text.replace("args: {", f"yarn: {{factor: 4}}, env: {{{env}}}, args: {{")
    assert [f.why for f in found(text) if f.rule == "CONTEXT-YARN"] == [why]


@pytest.mark.parametrize(
    ("change", "severities"),
    [
        ("args: {", ["error"]),
        ("env: {VLLM_ALLOW_LONG_MAX_MODEL_LEN: 1}, args: {", ["warning"]),
        ("args: {hf-overrides: {max_position_embeddings: 81920}, ", []),
        ("args: {hf-overrides: {architectures: [X]}, ", ["error"]),
        ("args: {hf-overrides: '{\"max_position_embeddings\": 81920}', ", []),
        ("args: {hf-overrides.max_position_embeddings: 81920, ", []),
        ("args: {hf-overrides: {text_config: {rope_parameters: {rope_type: yarn, factor: 2}}}, ", []),
        ("args: {hf-overrides: '{no JSON', ", ["error"]),
    ],
)
def test_a_context_beyond_the_models_own(change: str, severities: list[str]) -> None:
    text = A2.replace("max-model-len: 8192", "max-model-len: 81920").replace("args: {", change)
    assert [f.severity for f in found(text) if f.rule == "CONTEXT-MODEL"] == severities


@pytest.mark.parametrize(
    ("written", "told"), [("133k", ["CONTEXT-MODEL"]), ("'81920'", ["CONTEXT-MODEL"]), ("40k", [])]
)
def test_a_context_written_as_the_engine_reads_it(written: str, told: list[str]) -> None:
    its = rules(A2, ("max-model-len: 8192", f"max-model-len: {written}"))
    assert [rule for rule in its if rule.startswith("CONTEXT")] == told


def test_no_yarn_is_advised_that_no_model_bears() -> None:
    its = found(A2.replace("max-model-len: 8192", "max-model-len: 999999999"))
    assert [f.mend for f in its if f.rule == "CONTEXT-MODEL"] == ["set max-model-len to 40960"]


@pytest.mark.parametrize(("version", "told"), [("0.19.1", ["MEMORY-FIT"]), ("0.20.0", [])])
def test_a_version_takes_its_own_share_of_the_memory(version: str, told: list[str]) -> None:
    text = NVIDIA.replace("0.19.1", version).replace("weights_gb: 400", "weights_gb: 625")
    assert [f.rule for f in found(text) if f.rule == "MEMORY-FIT"] == told


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"])
def test_a_cache_of_latents_is_not_counted_by_heads(name: str) -> None:
    text = A2.replace("num_key_value_heads: 4", "num_key_value_heads: 64").replace("8192", "40960")
    assert "MEMORY-CONTEXT" in rules(text)
    assert "MEMORY-CONTEXT" not in rules(text, ("org/Model-235B", name))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("ascend", "it is vllm-ascend's, and this is nvidia; the engine refuses it"),
        ("fp9", "no version has it; the engine refuses it"),
        ("bitblas", "last in 0.15.1; the engine refuses it"),
        ("fp8", None),
        ("compressed-tensors", None),
    ],
)
def test_ways_to_quantise(method: str, told: str | None) -> None:
    its = found(NVIDIA.replace("  weights_gb", f"  quantization: {method}\n  weights_gb"))
    assert [f.why for f in its if f.rule == "WEIGHTS-METHOD"] == ([told] if told else [])
