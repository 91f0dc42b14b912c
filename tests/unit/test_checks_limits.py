"""What the engine's parser takes and its configuration refuses: bounds, pairs of arguments, names of parsers."""

from __future__ import annotations

import pytest

from fleet.checks.limits import CHECKS
from fleet.findings import Finding
from fleet.flags import known
from tests.unit.plans import lay


def told(args: str, vllm: str = "0.19.1", platform: str = "nvidia", tensor: int = 8) -> list[Finding]:
    text = f"""
title: t
source: s
platform: {platform}
model: {{name: org/model, max_position_embeddings: 40960, num_attention_heads: 64, num_key_value_heads: 4}}
engine: {{vllm: "{vllm}", vllm_ascend: "{vllm}"}}
roles:
  serve: {{tensor_parallel_size: {tensor}, args: {args}}}
"""
    return [finding for check in CHECKS for finding in check(lay(text, {}, serve=["10.0.0.1", "10.0.0.2"]))]


@pytest.mark.parametrize(
    ("args", "vllm"),
    [
        ("{}", "0.11.0"),
        ("{gpu-memory-utilization: 1, max-num-seqs: 1, max-num-batched-tokens: 1}", "0.13.0"),
        ("{gpu-memory-utilization: '0.90', max-model-len: auto}", "0.20.0"),
        ("{max-model-len: -1}", "0.20.0"),
        ("{max-num-batched-tokens: 2048, max-num-seqs: 256, max-model-len: 8192}", "0.19.1"),
        ("{max-num-batched-tokens: 8192, max-model-len: 8k, no-enable-chunked-prefill: true}", "0.19.1"),
        ("{enable-auto-tool-choice: true, tool-call-parser: hermes, reasoning-parser: qwen3}", "0.11.0"),
        ("{enable-auto-tool-choice: true, tool-call-parser: own, tool-parser-plugin: /p.py}", "0.19.1"),
        ("{tool-call-parser: own}", "0.19.1"),  # looked up with --enable-auto-tool-choice only
        ("{enable-auto-tool-choice: true, tool-call-parser: new_one}", "0.99.0"),  # it may be new
        ("{enable-auto-tool-choice: true, tool-call-parser: inkling}", "0.25.1"),  # no list between 0.24 and 0.26
        ("{enable-eplb: true, enable-expert-parallel: true}", "0.19.1"),
        ("{decode-context-parallel-size: 2}", "0.19.1"),
        ("{prefill-context-parallel-size: 1}", "0.19.1"),
    ],
)
def test_what_the_engine_starts_with(args: str, vllm: str) -> None:
    assert told(args, vllm) == []


@pytest.mark.parametrize(
    ("args", "rule", "what", "mend"),
    [
        ("{gpu-memory-utilization: 92}", "ARG-BOUNDS", "--gpu-memory-utilization is 92, vLLM takes", "write 0.92"),
        ("{gpu-memory-utilization: 1.2}", "ARG-BOUNDS", "--gpu-memory-utilization is 1.2", "write a part of 1"),
        ("{gpu-memory-utilization: .nan}", "ARG-BOUNDS", "--gpu-memory-utilization is nan", "write a part of 1"),
        ("{max-num-seqs: 0}", "ARG-BOUNDS", "--max-num-seqs is 0", "write 1 or more"),
        ("{max-num-batched-tokens: -1}", "ARG-BOUNDS", "--max-num-batched-tokens is -1", "write 1 or more"),
        ("{max-model-len: 0}", "ARG-BOUNDS", "--max-model-len is 0", "write 1 or more"),
        (
            "{max-num-batched-tokens: 128, max-num-seqs: 256}",
            "ARG-TOGETHER",
            "--max-num-batched-tokens 128 is less than --max-num-seqs 256",
            "set max-num-batched-tokens to 256 or more",
        ),
        (
            "{max-num-batched-tokens: 2k, max-model-len: 8k, enable-chunked-prefill: false}",
            "ARG-TOGETHER",
            "--max-num-batched-tokens 2000 is less than --max-model-len 8000, without chunked prefill",
            "leave no-enable-chunked-prefill out",
        ),
        ("{enable-auto-tool-choice: true}", "ARG-TOGETHER", "is without --tool-call-parser", "add tool-call-parser"),
        ("{enable-log-outputs: true}", "ARG-TOGETHER", "is without --enable-log-requests", "add enable-log-requests"),
        ("{enable-eplb: true}", "ARG-TOGETHER", "is without --enable-expert-parallel", "add enable-expert-parallel"),
        (
            "{enable-auto-tool-choice: true, tool-call-parser: hermes2}",
            "ARG-PARSER",
            "vLLM 0.19.1 has no --tool-call-parser hermes2",
            "write hermes",
        ),
        ("{reasoning-parser: deepseek-r1}", "ARG-PARSER", "no --reasoning-parser deepseek-r1", "write deepseek_r1"),
        (
            "{decode-context-parallel-size: 3}",
            "ARG-TOGETHER",
            "tensor_parallel_size 8 does not divide",
            "choose a size",
        ),
        (
            "{decode-context-parallel-size: 4}",
            "ARG-TOGETHER",
            "is more than tensor_parallel_size 8 / 4",
            "leave it out",
        ),
        ("{prefill-context-parallel-size: 2}", "DEVICES-CONTEXT", "needs 16 devices for each", "leave it out"),
    ],
)
def test_what_the_engine_refuses(args: str, rule: str, what: str, mend: str) -> None:
    (finding,) = told(args)
    assert (finding.rule, finding.severity, finding.where) == (rule, "error", "r serve")
    assert what in finding.what
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("name", "vllm", "why"),
    [
        ("gemma4", "0.18.0", "vLLM has it from 0.19.0 on; the engine ends at once"),
        ("minimax", "0.30.0", "last in 0.23.0; the engine ends at once"),
    ],
)
def test_a_parser_of_another_version(name: str, vllm: str, why: str) -> None:
    (finding,) = told(f"{{enable-auto-tool-choice: true, tool-call-parser: {name}}}", vllm)
    assert (finding.rule, finding.why) == ("ARG-PARSER", why)


def test_another_versions_table_only_warns() -> None:
    assert [f.severity for f in told("{max-num-seqs: 0}", "0.99.0")] == ["warning"]


def test_the_lists_are_in_order() -> None:
    lists = known.registries()
    assert lists.versions == sorted(lists.versions, key=lambda v: [int(part) for part in v.split(".")])
    spans = [*lists.tools.values(), *lists.reasoning.values(), *lists.quantisation.values()]
    assert {v for span in spans for v in (span.first, span.last) if v} <= set(lists.versions)
