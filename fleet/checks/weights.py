"""The weights against how they are quantised, cut and found."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.checks import look
from fleet.checks.arguments import table_for
from fleet.findings import Finding, error, warning
from fleet.flags import known
from fleet.topology import Plan

# What a model's name says of weights that vllm-ascend reads with quantization: ascend only.
QUANTISED = re.compile(r"w[48]a(8|16)", re.IGNORECASE)
PARAMETERS = re.compile(r"[-_]([0-9]+(?:\.[0-9]+)?)B(?![a-z0-9])", re.IGNORECASE)


def quantisation(plan: Plan) -> Iterator[Finding]:
    """``--quantization ascend`` goes with quantised weights, and with none other."""
    model = plan.recipe.model
    if not plan.recipe.platform.startswith("ascend"):
        return
    says = QUANTISED.search(model.name)
    if says and model.quantization is None:
        yield warning(
            "WEIGHTS-QUANTISED",
            plan.fleet.recipe,
            f"the name of {model.name} says {says[0]}, and quantization is not set",
            "set model.quantization: ascend",
            "older releases then load the weights as if they were whole, and fail",
            "vllm-ascend tutorial for Qwen3-235B-A22B",
        )
    size = PARAMETERS.search(model.name)
    if model.quantization == "ascend" and not says and size and model.weights_gb:
        bytes_each = model.weights_gb / float(size[1])
        if bytes_each > 1.8:
            yield warning(
                "WEIGHTS-QUANTISED",
                plan.fleet.recipe,
                f"{model.weights_gb:g} GB for {size[1]} billion parameters are {bytes_each:.1f} bytes each, not one",
                "remove model.quantization, or name the w8a8 weights",
                "the engine looks for quant_model_description.json and does not find it",
                "vllm-ascend tutorial for Qwen3-235B-A22B",
            )


def method(plan: Plan) -> Iterator[Finding]:
    """``--quantization`` names a method that this version has; Ascend's plugin has its own."""
    name, table = plan.recipe.model.quantization, table_for(plan)
    if name is None or plan.recipe.platform.startswith("ascend") or table[0] is None:
        return
    lists, version = known.registries(), plan.recipe.engine.vllm
    told = lists.why_not(lists.quantisation, name, version)
    if told is not None:
        why, mend = told
        if name == "ascend":
            why, mend = f"it is vllm-ascend's, and this is {plan.recipe.platform}", "use weights for this family"
        tell = error if table[1] else warning
        what = f"vLLM {version} has no way to quantise called {name}"
        yield tell("WEIGHTS-METHOD", plan.fleet.recipe, what, mend, f"{why}; the engine refuses it", lists.source)


def heads(plan: Plan) -> Iterator[Finding]:
    """Tensor parallelism cuts attention by heads (vLLM config/model.py, verify_with_parallel_config)."""
    total = plan.recipe.model.num_attention_heads
    for where, instance in look.roles(plan):
        size = instance.spec.tensor_parallel_size
        if total and total % size:
            yield error(
                "WEIGHTS-HEADS",
                where,
                f"{total} attention heads do not divide by tensor_parallel_size {size}",
                f"choose a size that divides {total}",
                "the engine refuses it at start",
                "vLLM config/model.py",
            )


def fetched_by_every_rank(plan: Plan) -> Iterator[Finding]:
    """VLLM_USE_MODELSCOPE is for downloading; weights under weights_dir are read from there."""
    for _, instance in look.roles(plan):
        if look.on(instance.spec.env.get("VLLM_USE_MODELSCOPE")) and instance.spec.tensor_parallel_size > 1:
            yield warning(
                "WEIGHTS-MODELSCOPE",
                plan.fleet.recipe,
                "VLLM_USE_MODELSCOPE is on, and the weights are read from weights_dir",
                "remove it, and bring the weights there before the start",
                "where they are missing, every rank of every host begins to download them",
                "vLLM issue 13962",
            )
            return


CHECKS = (quantisation, method, heads, fetched_by_every_rank)
