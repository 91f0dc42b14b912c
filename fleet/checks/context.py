"""The context asked for against the model's own and yarn's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet import engine
from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Instance, Plan

# Keys of --hf-overrides that say how long the context is.
LENGTHS = ("max_position_embeddings", "rope_parameters", "rope_scaling", "model_max_length")
# No model keeps its wits over more.
MOST_YARN = 8
ALLOW = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
SOURCE = "vLLM config/model.py, read at 0.11.0, 0.13.0, 0.18.0, 0.23.0 and 0.31.0"


def context_beyond_yarn(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than yarn's factor times the model's window.

    Every version refuses it (_get_and_verify_max_len): up to 0.29 it multiplies the original window by the factor, from
    0.30 on it takes max_position_embeddings as the overrides give it. The variable turns the refusal into a warning.
    """
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        limit = engine.yarn_context(plan.recipe.model, instance.spec)
        given = look.overrides(instance.spec).get("max_position_embeddings")
        if wanted and limit and wanted > limit:
            yield warning(
                "CONTEXT-YARN",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than yarn's {limit}",
                f"set max-model-len to {limit} or a larger factor",
                _why(plan, instance, isinstance(given, int) and given >= wanted),
                SOURCE,
            )


def _why(plan: Plan, instance: Instance, overridden: bool) -> str:
    """What this version does with a context that is longer than it can know to be good."""
    version = plan.recipe.engine.version
    if look.on(instance.spec.env.get(ALLOW)) or (overridden and version >= engine.YARN_NOT_MULTIPLIED):
        return "the engine starts, and what lies beyond it is nonsense"
    if version >= engine.YARN_NOT_MULTIPLIED:
        return (
            f"vLLM {version} refuses it at start, unless hf-overrides has max_position_embeddings or {ALLOW}=1 is set"
        )
    return f"the engine refuses it at start, unless {ALLOW}=1 is set"


def context_beyond_model(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than the model's own, and nothing extends it."""
    own = plan.recipe.model.max_position_embeddings
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        if wanted and wanted > own and instance.spec.yarn is None and not _extends(look.overrides(instance.spec)):
            allowed = look.on(instance.spec.env.get(ALLOW))
            factor = -(-wanted // own)
            yarn = f", or add yarn: {{factor: {factor}}}" if factor <= MOST_YARN else ""
            yield (warning if allowed else error)(
                "CONTEXT-MODEL",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than the model's {own}",
                f"set max-model-len to {own}{yarn}",
                _why(plan, instance, False) if allowed else "the engine refuses it at start",
                SOURCE,
            )


def _extends(overrides: dict[str, Any]) -> bool:
    """Whether they change how long the model's context is, or that of the text model inside it."""
    inside = [one for one in overrides.values() if isinstance(one, dict)]
    return any(key in one for one in (overrides, *inside) for key in LENGTHS)


CHECKS = (context_beyond_yarn, context_beyond_model)
