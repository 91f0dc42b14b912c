"""Weights, cache and activations against the devices' memory, with the arithmetic in the finding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet import sizes
from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Instance, Plan

# For a warning on devices whose memory the recipe does not say.
ASSUMED_GB = 80.0
# Who sets the cache's size by hand has done the arithmetic.
BY_HAND = ("kv-cache-memory-bytes", "num-gpu-blocks-override", "cpu-offload-gb")
# Models whose cache holds one small latent a token, whatever config.json says of heads.
LATENT = re.compile(r"deepseek-?(v[23]|r1)|kimi-?k2|glm-5", re.IGNORECASE)


def weights_fill_memory(plan: Plan) -> Iterator[Finding]:
    """Weights that take nearly all of the devices leave next to nothing for the cache."""
    total, memory = plan.recipe.model.weights_gb, _memory_gb(plan)
    if total is None or memory is None:
        return
    for _, instance in look.roles(plan):
        devices = sum(len(m.devices) for m in instance.members)
        by_hand = any(name in instance.spec.args for name in BY_HAND)
        if 0.85 * memory * devices < total and not by_hand and _room(plan, instance, memory) >= 0:
            yield warning(
                "MEMORY-WEIGHTS",
                f"{plan.fleet.recipe} {instance.name}",
                f"{total:g} GB of weights on {memory * devices:g} GB of device memory leave little for the cache",
                _more(plan, instance),
                "each NPU uses about 3.4 GB idle; vllm-ascend's own BF16 test on A2 takes two hosts"
                if plan.recipe.platform.startswith("ascend")
                else "the cache takes what is left of gpu-memory-utilization",
                "vllm-ascend nightly test Qwen3-235B-A22B-A2",
            )


def weights_do_not_fit(plan: Plan) -> Iterator[Finding]:
    """The weights of one device against what the engine may use of it: the cache would be below zero."""
    memory = _memory_gb(plan)
    if plan.recipe.model.weights_gb is None or memory is None:
        return
    for where, instance in look.roles(plan):
        if _room(plan, instance, memory) >= 0 or "cpu-offload-gb" in instance.spec.args:
            continue
        on_device, how = sizes.weights(plan.recipe.model, instance.spec)
        told = error if _is_certain(plan) else warning
        yield told(
            "MEMORY-FIT",
            where,
            f"{on_device:.1f} GiB of weights a device ({how}) are more than the {_usable_said(plan, instance, memory)}",
            _more(plan, instance),
            "the engine ends with: Available KV cache memory is negative, or out of memory while it loads"
            + (", unless it makes them smaller as it loads them" if _quantises(plan) else ""),
            "vllm-ascend issues 9372 and 7308",
        )


def context_does_not_fit(plan: Plan) -> Iterator[Finding]:
    """Weights, activations, buffers and the cache of one full context; without room for it no engine starts."""
    memory, model = _memory_gb(plan), plan.recipe.model
    if model.weights_gb is None or memory is None:
        return
    envs = look.first_env(plan)
    for where, instance in look.roles(plan):
        spec = instance.spec
        if sizes.cache_bytes_per_token(model, spec) is None or any(name in spec.args for name in BY_HAND):
            continue
        if LATENT.search(model.name):
            continue
        context = spec.max_model_len or model.max_position_embeddings
        batched = look.number(spec.args.get("max-num-batched-tokens")) or look.DEFAULT_BATCHED_TOKENS
        needs = sizes.need(plan.recipe, spec, envs[instance.name], context, batched)
        if _room(plan, instance, memory) < 0 or needs.total <= _usable(plan, instance, memory):
            continue
        buffers = f" + buffers {needs.buffers:.1f}" if needs.buffers else ""
        yield warning(
            "MEMORY-CONTEXT",
            where,
            f"weights {needs.weights:.1f} ({needs.weights_how}) + cache {needs.cache:.1f} ({needs.cache_how}) + "
            f"activations {needs.activations:.1f}{buffers} = {needs.total:.1f} GiB a device are more than the "
            f"{_usable_said(plan, instance, memory)}",
            f"lower max-model-len or max-num-batched-tokens, or {_more(plan, instance)}",
            "the engine refuses to start where not even one full context fits; an estimate, good to a few GiB",
            "vllm-ascend issues 9372 and 7308",
        )


def _memory_gb(plan: Plan) -> float | None:
    """GB of one device, as its vendor names it; None where devices have no memory of their own."""
    if plan.recipe.platform == "cpu":
        return None
    return plan.recipe.device_memory_gb or sizes.USUAL_GB.get(plan.recipe.platform, ASSUMED_GB)


def _gib(plan: Plan, memory: float) -> float:
    return memory * sizes.MIB_PER_GB[plan.recipe.platform] / 1024


def _is_certain(plan: Plan) -> bool:
    """Whether the devices' memory is known, and the weights lie in it as they lie on disk."""
    if plan.recipe.platform.startswith("ascend"):
        return True
    return plan.recipe.device_memory_gb is not None and not _quantises(plan)


def _quantises(plan: Plan) -> bool:
    """Whether the engine may quantise BF16 weights while it loads them."""
    return plan.recipe.platform == "nvidia" and plan.recipe.model.quantization is not None


def _utilisation(plan: Plan, instance: Instance) -> float:
    if "kv-cache-memory-bytes" in instance.spec.args:
        return 1.0  # gpu-memory-utilization is then not read
    return look.utilisation(plan.recipe.engine.version, instance.spec)


def _usable(plan: Plan, instance: Instance, memory: float) -> float:
    return sizes.usable(_gib(plan, memory), _utilisation(plan, instance), plan.recipe.platform)


def _room(plan: Plan, instance: Instance, memory: float) -> float:
    """GiB that the weights leave on a device."""
    return _usable(plan, instance, memory) - sizes.weights(plan.recipe.model, instance.spec)[0]


def _usable_said(plan: Plan, instance: Instance, memory: float) -> str:
    """``60.7 GiB that the engine may use (64.0 GiB x 0.95, 3.3 in use when idle)``."""
    idle = sizes.IDLE_MIB.get(plan.recipe.platform, 0.0) / 1024
    said = f"{_gib(plan, memory):.1f} GiB x {_utilisation(plan, instance):g}"
    if idle:
        said += f", at most what an idle device has free: {_gib(plan, memory) - idle:.1f}"
    if plan.recipe.device_memory_gb is None:
        said += f"; device_memory_gb taken as {memory:g}"
    return f"{_usable(plan, instance, memory):.1f} GiB that the engine may use ({said})"


def _more(plan: Plan, instance: Instance) -> str:
    mend = "use two hosts" if len(instance.members) == 1 else "spread it over more hosts"
    if plan.recipe.model.quantization:
        return mend
    return f"{mend}, or the {'w8a8' if plan.recipe.platform.startswith('ascend') else 'quantised'} weights"


CHECKS = (weights_fill_memory, weights_do_not_fit, context_does_not_fit)
