"""Failures that follow from arguments and variables of another version."""

from __future__ import annotations

from collections.abc import Callable

from fleet.checks import check_plan
from fleet.findings import Finding
from tests.unit.coverage.case import Case
from tests.unit.plans import lay


def found(rule: str, role: str, vllm: str = "0.13.0", platform: str = "nvidia") -> Callable[[], list[Finding]]:
    """Findings of this rule for a recipe with one role."""

    def findings() -> list[Finding]:
        text = f"""
title: t
source: s
platform: {platform}
model: {{name: org/model, max_position_embeddings: 40960}}
engine: {{vllm: {vllm}, vllm_ascend: {vllm}}}
shm_size: 16g
roles:
  serve: {{tensor_parallel_size: 8, {role}}}
"""
        return [finding for finding in check_plan(lay(text, {}, serve=["10.0.0.1"])) if finding.rule == rule]

    return findings


CASES: tuple[Case, ...] = (
    # --rope-theta went in the release that took --rope-scaling, which a recipe cannot write: it follows from yarn
    Case(
        26,
        "VERSION-ARGUMENT",
        found("VERSION-ARGUMENT", "args: {rope-theta: 1000000}", "0.13.0"),
        found("VERSION-ARGUMENT", "args: {rope-theta: 1000000}", "0.11.0"),
    ),
    Case(
        26,
        "ARG-UNKNOWN",
        found("ARG-UNKNOWN", "args: {guided-decoding-backend: xgrammar}", "0.13.0"),
        found("ARG-UNKNOWN", "args: {guided-decoding-backend: xgrammar}", "0.11.2"),
    ),
    Case(
        27,
        "ARG-ROPE-KEY",
        found("ARG-ROPE-KEY", "args: {hf-overrides: {rope_scaling: {rope_type: yarn, factor: 4}}}", "0.33.0"),
        found("ARG-ROPE-KEY", "args: {hf-overrides: {rope_parameters: {rope_type: yarn, factor: 4}}}", "0.33.0"),
    ),
    Case(
        28,
        "ARG-UNKNOWN",
        found("ARG-UNKNOWN", "args: {all2all-backend: pplx}", "0.11.0"),
        found("ARG-UNKNOWN", "args: {all2all-backend: pplx}", "0.13.0"),
    ),
    # a name that HCCL does not read leaves the buffer at its 200 MB
    Case(
        34,
        "ENV-UNREAD",
        found("ENV-UNREAD", "env: {HCCL_BUFFERSIZE: 1024}", platform="ascend-a3"),
        found("ENV-UNREAD", "env: {HCCL_BUFFSIZE: 1024}", platform="ascend-a3"),
    ),
)
