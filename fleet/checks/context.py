"""The context asked for against the model's own and yarn's."""

from __future__ import annotations

from collections.abc import Iterator

from fleet import engine
from fleet.findings import Finding, error, warning
from fleet.topology import Plan


def context_beyond_yarn(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than yarn's factor times the model's window."""
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        limit = engine.yarn_context(plan.recipe.model, instance.spec)
        if wanted and limit and wanted > limit:
            yield warning(
                "CONTEXT-YARN",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than yarn's {limit}",
                f"set max-model-len to {limit} or a larger factor",
                "the engine refuses it at start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set",
                "vLLM config/model.py, read at 0.13.0 and 0.30.0",
            )


def context_beyond_model(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than the model's own, and nothing extends it."""
    own = plan.recipe.model.max_position_embeddings
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        if wanted and wanted > own and instance.spec.yarn is None:
            yield error(
                "CONTEXT-MODEL",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than the model's {own}",
                f"set max-model-len to {own}, or add yarn: {{factor: {-(-wanted // own)}}}",
                "the engine refuses it at start",
            )


CHECKS = (context_beyond_yarn, context_beyond_model)
