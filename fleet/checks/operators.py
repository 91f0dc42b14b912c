"""Fused operators against weights, role, size and machine.

vllm-ascend ascend_forward_context.py and envs.py, 0.13 to HEAD: mode 1 (dispatch_ffn_combine) takes w8a8 weights on A3
and up to 32 devices of experts (16 before #5788), mode 2 is for decode; elsewhere the operator is left out, or hangs.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet.checks import look
from fleet.findings import Finding, warning
from fleet.topology import Instance, Plan

ENV, KEY = "VLLM_ASCEND_ENABLE_FUSED_MC2", "enable_fused_mc2"
# From here on the key of additional_config is read, and goes before the variable.
KEY_READ = Version("0.20.2rc1")
# Most devices of experts in mode 1, from this release on.
SIZES = ((Version("0.0"), 16), (Version("0.13.0"), 32), (Version("0.24"), 64))


def _mode(plan: Plan, instance: Instance) -> tuple[int, str]:
    """The mode, 0 for none, and what sets it."""
    plugin = plan.recipe.engine.vllm_ascend
    extra = instance.spec.args.get("additional-config")
    if isinstance(extra, dict) and KEY in extra and (plugin is None or Version(plugin) >= KEY_READ):
        return look.number(int(extra[KEY]) if isinstance(extra[KEY], bool) else extra[KEY]) or 0, KEY
    value = instance.spec.env.get(ENV)
    return (1 if look.on(value) else look.number(value) or 0), ENV


def on_prefill(plan: Plan) -> Iterator[Finding]:
    """Mode 2 is meant for decode."""
    for instance in plan.of_role("prefill"):
        mode, name = _mode(plan, instance)
        if mode == 2:
            yield warning(
                "ENV-FUSED-MC2",
                f"{plan.fleet.recipe} {instance.name}",
                f"{name}=2 is for decode only",
                "set it to 1 or leave it out on prefill",
                source="vllm-ascend envs.py, 0.13 to 0.22",
            )


def without_its_weights(plan: Plan) -> Iterator[Finding]:
    """The operator computes on w8a8 weights; with others a start hangs after the graphs are compiled."""
    for where, instance in look.roles(plan):
        mode, name = _mode(plan, instance)
        if mode and plan.recipe.platform.startswith("ascend") and plan.recipe.model.quantization is None:
            yield warning(
                "FUSED-MC2-WEIGHTS",
                where,
                f"{name}={mode} is for w8a8 weights, the recipe's are not quantised",
                "leave it out, or use w8a8 weights with quantization: ascend",
                "the start hangs with: No available shared memory broadcast block found in 60 seconds",
                "vllm-ascend issues 7154 and 3717",
            )


def beyond_its_size(plan: Plan) -> Iterator[Finding]:
    """Mode 1 takes so many devices of experts."""
    plugin = plan.recipe.engine.vllm_ascend
    if plugin is None:
        return
    most = [size for since, size in SIZES if Version(plugin) >= since][-1]
    for where, instance in look.roles(plan):
        mode, name = _mode(plan, instance)
        size = look.expert_parallel_size(instance.spec)
        if mode == 1 and size > most:
            yield warning(
                "FUSED-MC2-SIZE",
                where,
                f"{name}=1 takes experts over {most} devices with vllm-ascend {plugin}, here are {size}",
                "leave it out, or make tensor x data parallel size smaller",
                "the operator is passed over, or fails across hosts",
                "vllm-ascend ascend_forward_context.py; pull request 5788",
            )


def on_another_machine(plan: Plan) -> Iterator[Finding]:
    """The vendor's page: on A3 only."""
    if plan.recipe.platform != "ascend-a2":
        return
    for where, instance in look.roles(plan):
        mode, name = _mode(plan, instance)
        if mode:
            yield warning(
                "FUSED-MC2-MACHINE",
                where,
                f"{name}={mode} is for Atlas A3, the recipe is for A2",
                "leave it out",
                "A2 takes another path through the experts, and may refuse this one",
                "vllm-ascend tutorial for Qwen3-235B-A22B",
            )


CHECKS = (on_prefill, without_its_weights, beyond_its_size, on_another_machine)
