"""What the engine's parser takes and its configuration then refuses: sizes out of bounds, arguments that need another.

Read in vLLM's cli_args.py and config/ (cache, scheduler, parallel, model), 0.11.0 to 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from fleet.checks import look
from fleet.checks.arguments import ENDS, Line, lines, once
from fleet.findings import Finding, error
from fleet.flags import known
from fleet.topology import Instance, Plan

# Least, as a whole number; these may not be 0 either.
COUNTS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
REFUSES = "the engine refuses it at start"
# From here on the model's heads are held against decode context parallelism (config/model.py).
HEADS_OF_CONTEXT = Version("0.13.0")


def out_of_bounds(plan: Plan) -> Iterator[Finding]:
    """Numbers that no engine can serve with."""
    for line in lines(plan):
        values = line.parsed.values
        share = values.get("gpu_memory_utilization")
        if isinstance(share, (int, float)) and not 0 < share <= 1:
            mend = f"write {share / 100:g}" if 10 <= share <= 100 else "write a part of 1, such as 0.9"
            what = f"--gpu-memory-utilization is {share:g}, vLLM takes more than 0 and at most 1"
            yield line.fault("ARG-BOUNDS", what, mend, REFUSES)
        for name in COUNTS:
            given = values.get(name)
            automatic = name == "max_model_len" and given == -1
            if type(given) is int and given < 1 and not automatic:
                yield line.fault("ARG-BOUNDS", f"{_option(name)} is {given}", "write 1 or more", REFUSES)


def batches(plan: Plan) -> Iterator[Finding]:
    """A step must hold a token of each sequence, and without chunks a whole prompt."""
    for line, instance in _by_role(plan):
        values = line.parsed.values
        tokens, seqs = (values.get(name) for name in ("max_num_batched_tokens", "max_num_seqs"))
        if not isinstance(tokens, int) or tokens < 1:
            continue
        if isinstance(seqs, int) and tokens < seqs:
            what = f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {seqs}"
            yield line.fault("ARG-TOGETHER", what, f"set max-num-batched-tokens to {seqs} or more", REFUSES)
        context = instance.spec.max_model_len
        if values.get("enable_chunked_prefill") is False and context is not None and tokens < context:
            what = f"--max-num-batched-tokens {tokens} is less than --max-model-len {context}, without chunked prefill"
            mend = f"leave no-enable-chunked-prefill out, or set max-num-batched-tokens to {context}"
            yield line.fault("ARG-TOGETHER", what, mend, REFUSES)


def needs_another(plan: Plan) -> Iterator[Finding]:
    """A switch without the argument that it works on."""
    for line in lines(plan):
        values = line.parsed.values
        if values.get("enable_auto_tool_choice") and not values.get("tool_call_parser"):
            mend = "add tool-call-parser: the one of the model, as hermes for Qwen3"
            yield line.fault("ARG-TOGETHER", "--enable-auto-tool-choice is without --tool-call-parser", mend, ENDS)
        if values.get("enable_log_outputs") and not values.get("enable_log_requests"):
            what = "--enable-log-outputs is without --enable-log-requests"
            yield line.fault("ARG-TOGETHER", what, "add enable-log-requests: true", ENDS)
        if values.get("enable_eplb") and not values.get("enable_expert_parallel"):
            what = "--enable-eplb is without --enable-expert-parallel"
            yield line.fault("ARG-TOGETHER", what, "add enable-expert-parallel: true", REFUSES)


def parsers(plan: Plan) -> Iterator[Finding]:
    """Names of parsers that this version does not have; a plugin that is named may bring its own."""
    for line in lines(plan):
        values = line.parsed.values
        if values.get("enable_auto_tool_choice") and not values.get("tool_parser_plugin"):
            yield from _unknown_parser(line, "tool_call_parser", values)
        if not values.get("reasoning_parser_plugin"):
            yield from _unknown_parser(line, "reasoning_parser", values)


def _unknown_parser(line: Line, dest: str, values: dict[str, Any]) -> Iterator[Finding]:
    name = values.get(dest)
    if not isinstance(name, str) or not name:
        return
    lists = known.registries()
    told = lists.why_not(lists.tools if dest == "tool_call_parser" else lists.reasoning, name, line.version)
    if told is not None:
        why, mend = told
        yield line.fault("ARG-PARSER", f"vLLM {line.version} has no {_option(dest)} {name}", mend, f"{why}; {ENDS}")


def decode_context(plan: Plan) -> Iterator[Finding]:
    """Decode context parallelism shares out the tensor-parallel ranks, and copies of the cache's heads among them."""
    for line, instance in _by_role(plan):
        values, tensor = line.parsed.values, instance.spec.tensor_parallel_size
        size = values.get("decode_context_parallel_size")
        if not isinstance(size, int) or size < 2 or (values.get("prefill_context_parallel_size") or 1) != 1:
            continue
        name = f"--decode-context-parallel-size {size}"
        if tensor % size:
            what = f"tensor_parallel_size {tensor} does not divide by {name}"
            yield line.fault("ARG-TOGETHER", what, f"choose a size that divides {tensor}", REFUSES)
            continue
        model = plan.recipe.model
        heads, cached = model.num_attention_heads, model.num_key_value_heads
        grouped = heads is not None and cached is not None and cached < heads  # others may be of one latent
        if grouped and cached and plan.recipe.engine.version >= HEADS_OF_CONTEXT and tensor // cached < size:
            what = f"{name} is more than tensor_parallel_size {tensor} / {cached} heads of the cache"
            yield line.fault("ARG-TOGETHER", what, "leave it out, or take a larger tensor_parallel_size", REFUSES)


def prefill_context(plan: Plan) -> Iterator[Finding]:
    """Prefill context parallelism multiplies the devices of a rank; the plan gives those of its own sizes."""
    for line, instance in _by_role(plan):
        size = line.parsed.values.get("prefill_context_parallel_size")
        if isinstance(size, int) and size > 1:
            spec = instance.spec
            gives = spec.tensor_parallel_size * spec.pipeline_parallel_size
            yield error(
                "DEVICES-CONTEXT",
                line.where,
                f"--prefill-context-parallel-size {size} needs {gives * size} devices for each data-parallel rank, "
                f"the plan gives it {gives}",
                "leave it out, and spread over tensor_parallel_size, data_parallel_size or pipeline_parallel_size",
                "the engine refuses to start with fewer devices than ranks",
                "vLLM config/parallel.py",
            )


def _by_role(plan: Plan) -> Iterator[tuple[Line, Instance]]:
    first = dict(look.roles(plan))
    for line in lines(plan):
        yield line, first[line.where]


def _option(dest: str) -> str:
    return "--" + dest.replace("_", "-")


CHECKS = tuple(
    once(check) for check in (out_of_bounds, batches, needs_another, parsers, decode_context, prefill_context)
)
