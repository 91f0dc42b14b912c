"""Command lines against tables. Messages are those that the real parsers of 0.32.0 printed (Python 3.11)."""

from typing import Any

import pytest

from fleet.flags.parse import Fault, Parsed, parse
from fleet.flags.table import Table, load


@pytest.fixture(scope="module")
def table() -> Table:
    return load("0.32.0")


def told(table: Table, *words: str) -> list[str]:
    return [f.line for f in parse(table, ["m", *words]).faults]


def test_nothing_given(table: Table) -> None:
    assert parse(table, []) == Parsed({}, ())


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        ("--tensor_parallel_size 4", "tensor_parallel_size", 4),
        ("--tensor-par 4", "tensor_parallel_size", 4),
        ("--max-num-seqs=-4", "max_num_seqs", -4),
        ("-tp 8", "tensor_parallel_size", 8),
        ("-tp=8", "tensor_parallel_size", 8),
        ("-t 8", "tensor_parallel_size", 8),
        ("--enable-expert-parallel", "enable_expert_parallel", True),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--max-model-len 64k", "max_model_len", 64000),
        ("--max-model-len auto", "max_model_len", -1),
        ("--max-num-batched-tokens 8K", "max_num_batched_tokens", 8192),
        ("--kv-cache-memory-bytes 64M", "kv_cache_memory_bytes", 67108864),
        ("--seed 7", "seed", 7),
        ("--data-parallel-rank 0", "data_parallel_rank", 0),
        ("--gpu-memory-utilization=0.9", "gpu_memory_utilization", 0.9),
        ("--uds None", "uds", None),
        ("--served-model-name a b", "served_model_name", ["a", "b"]),
        ("--middleware a --middleware b", "middleware", ["a", "b"]),
        ("--hf-token", "hf_token", True),
        ("--quantization ascend", "quantization", "ascend"),
        ("-q awq", "quantization", "awq"),
        ("--moe-backend DEEP-GEMM", "moe_backend", "deep_gemm"),
        ("--device-ids 0,GPU-x", "device_ids", [0, "GPU-x"]),
        ("-O3", "optimization_level", "3"),
        ("-O 2", "optimization_level", "2"),
        ("-cc.mode=none", "compilation_config", {"mode": "none"}),
        ("--compilation-config.cudagraph_mode NONE", "compilation_config", {"cudagraph_mode": "NONE"}),
        ('--compilation-config {"mode":1}', "compilation_config", {"mode": 1}),
        (
            "--additional-config.a.b 1k --additional-config.c+ x,y",
            "additional_config",
            {"a": {"b": 1000}, "c": ["x", "y"]},
        ),
        ('--kv-transfer-config {"kv_connector_extra_config":{"bytes":80m}}', "kv_transfer_config", None),
        ("--config there.yaml", "config", "there.yaml"),
        ("--lora-modules a=b", "lora_modules", [{"name": "a", "path": "b"}]),
    ],
)
def test_accepted(table: Table, words: str, dest: str, value: Any) -> None:
    parsed = parse(table, ["m", *words.split()])
    assert parsed.faults == ()
    expected = {"kv_connector_extra_config": {"bytes": 80_000_000}} if dest == "kv_transfer_config" else value
    assert parsed.values == {"model": "m", dest: expected}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--foo bar", "vllm: error: unrecognized arguments: --foo bar"),
        ("-tp8", "vllm: error: unrecognized arguments: -tp8"),
        ("--no-headless", "vllm: error: unrecognized arguments: --no-headless"),
        ("--foo.bar 3", 'vllm: error: unrecognized arguments: --foo {"bar": 3}'),
        ("--max-num-seqs many", "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'"),
        ("--port", "vllm serve: error: argument --port: expected one argument"),
        ("--served-model-name", "vllm serve: error: argument --served-model-name: expected at least one argument"),
        (
            "--dtype x",
            "vllm serve: error: argument --dtype: invalid choice: 'x' "
            "(choose from 'auto', 'bfloat16', 'float', 'float16', 'float32', 'half')",
        ),
        (
            "--max-lora-rank 9",
            "vllm serve: error: argument --max-lora-rank: invalid choice: 9 "
            "(choose from 1, 8, 16, 32, 64, 128, 256, 320, 512)",
        ),
        (
            "--safetensors-load-strategy x",
            "vllm serve: error: argument --safetensors-load-strategy: invalid choice: 'x' "
            "(choose from 'eager', 'lazy', 'prefetch', 'torchao', None)",
        ),
        ("-dp x", "vllm serve: error: argument --data-parallel-size/-dp: invalid int value: 'x'"),
        (
            "--enable-expert-parallel=true",
            "vllm serve: error: argument --enable-expert-parallel/--no-enable-expert-parallel/-ep: "
            "ignored explicit argument 'true'",
        ),
        (
            "--max-model-len 64q",
            "vllm serve: error: argument --max-model-len: invalid human_readable_int_or_auto value: '64q'",
        ),
        (
            "--max-num-batched-tokens 1.5K",
            "vllm serve: error: argument --max-num-batched-tokens: Decimals are not allowed with binary suffixes "
            "like K. Did you mean to use 1.5k instead?",
        ),
        (
            "--data-parallel-size-l",
            "vllm serve: error: argument --data-parallel-size-local/-dpl: expected one argument",
        ),
        ("--allowed-origins x", "vllm serve: error: argument --allowed-origins: invalid loads value: 'x'"),
        ("--lora-modules ab", "vllm serve: error: Invalid JSON format for --lora-modules: ab"),
        (
            '--lora-modules {"name":"c"}',
            'vllm serve: error: Invalid fields for --lora-modules: {"name":"c"} - '
            "LoRAModulePath.__init__() missing 1 required positional argument: 'path'",
        ),
        ("--model", "IndexError: list index out of range"),
        ("-cc.mode", "IndexError: list index out of range"),
        ("--help", "--help prints the help and ends"),
    ],
)
def test_refused(table: Table, words: str, line: str) -> None:
    assert told(table, *words.split())[0] == line


def test_ambiguous(table: Table) -> None:
    assert told(table, "--max-lo", "3") == [
        "vllm serve: error: ambiguous option: --max-lo could match "
        "--max-log-len, --max-logprobs, --max-loras, --max-lora-rank, --max-lora-cls-labels"
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            '{"kv_role":"zz","kv_port":"x","foo":1}',
            "3 validation errors for KVTransferConfig\nkv_role\n"
            "  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' "
            "[type=literal_error, input_value='zz', input_type=str]\nkv_port\n"
            "  Input should be a valid integer, unable to parse string as an integer "
            "[type=int_parsing, input_value='x', input_type=str]\nfoo\n"
            "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]",
        ),
        (
            '{"engine_id":0}',
            "1 validation error for KVTransferConfig\nengine_id\n"
            "  Input should be a valid string [type=string_type, input_value=0, input_type=int]",
        ),
        (
            "[1]",
            "1 validation error for KVTransferConfig\n"
            "  Input should be an object [type=dataclass_type, input_value=[1], input_type=list]",
        ),
    ],
)
def test_keys_of_configurations(table: Table, value: str, text: str) -> None:
    parsed = parse(table, ["m", "--kv-transfer-config", value])
    assert parsed.faults == (Fault(f"argument --kv-transfer-config: {text}"),)
    assert "kv_transfer_config" not in parsed.values


def test_all_faults_are_told_in_the_order_of_argparse(table: Table) -> None:
    assert told(table, "--foo", "--port", "x", "--seed", "--max-num-seqs", "many", "-tp", "2") == [
        "vllm serve: error: argument --port: invalid int value: 'x'",
        "vllm serve: error: argument --seed: expected one argument",
        "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        "vllm: error: unrecognized arguments: --foo",
    ]


def test_values_are_read_past_a_fault(table: Table) -> None:
    assert parse(table, ["m", "--seed", "-tp", "2", "--port", "x"]).values == {"model": "m", "tensor_parallel_size": 2}


def test_model_as_an_option(table: Table) -> None:
    assert parse(table, ["-tp", "2", "--model", "x"]) == Parsed({"model": "x", "tensor_parallel_size": 2}, ())
    assert told(table, "--model", "x") == ["vllm: error: unrecognized arguments: m"]
    assert (
        parse(load("0.11.0"), ["--model", "x"]).faults[0].text.startswith("ValueError: With `vllm serve`, you should")
    )


def test_served_name_needs_the_model_first(table: Table) -> None:
    (fault,) = parse(table, ["--served-model-name", "a"]).faults
    assert fault.prog == ""
    assert fault.line.startswith("ValueError: `model` should be provided as the first positional argument")


def test_task_comes_with_a_hint(table: Table) -> None:
    (line,) = told(table, "--task", "embed")
    assert line.startswith(
        "vllm: error: unrecognized arguments: --task embed\n\nHint: --task is not a vllm serve option."
    )


def test_older_versions() -> None:
    assert parse(load("0.11.0"), ["m", "-O3"]).values["compilation_config"] == {"level": 3}
    assert parse(load("0.11.0"), ["m", "--disable-log-requests"]).deprecated == ("--disable-log-requests",)
    assert told(load("0.13.0"), "--shutdown-timeout", "60") == [
        "vllm: error: unrecognized arguments: --shutdown-timeout 60"
    ]
    # Before 0.18 keys that a class lacks were dropped silently.
    assert told(load("0.11.0"), "--kv-transfer-config", '{"foo":1}') == []


def test_after_two_dashes(table: Table) -> None:
    assert told(table, "--", "--port") == ["vllm: error: unrecognized arguments: --port"]
