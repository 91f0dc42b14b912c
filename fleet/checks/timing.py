"""How long things may take: starts against the weights' size, drains against what stops first."""

from __future__ import annotations

from collections.abc import Iterator

from fleet import engine
from fleet.checks import look
from fleet.findings import Finding, warning
from fleet.topology import Plan

# A disk, or a shared mount that several hosts read at once, in GB/s; and what a start needs besides, in seconds.
SLOW_DISK = 0.5
BESIDES = 120
READY = "VLLM_ENGINE_READY_TIMEOUT_S"


def start_too_short(plan: Plan) -> Iterator[Finding]:
    """Reading the weights alone may take longer than the run waits."""
    weights, limit = plan.recipe.model.weights_gb, plan.recipe.start_timeout_seconds
    if weights is None or plan.recipe.platform == "cpu":
        return
    needed = round(weights / SLOW_DISK + BESIDES)
    if limit < needed:
        yield warning(
            "START-TIMEOUT",
            plan.fleet.recipe,
            f"start_timeout_seconds {limit} is less than {weights:g} GB / {SLOW_DISK:g} + {BESIDES} s = {needed} s",
            f"set start_timeout_seconds: {-(-needed // 600) * 600} or more",
            "a start from a slow or shared disk is given up while it still loads",
        )


def engine_gives_up_first(plan: Plan) -> Iterator[Finding]:
    """The engine waits for its ranks as long as this variable says; derived, it is start_timeout_seconds."""
    if not engine.reads_ready_timeout(plan.recipe.engine.version):
        return
    envs = look.first_env(plan)
    for where, instance in look.roles(plan):
        given = look.number(envs[instance.name].get(READY))
        if given is not None and given < plan.recipe.start_timeout_seconds:
            yield warning(
                "START-READY",
                where,
                f"{READY} is {given}, start_timeout_seconds is {plan.recipe.start_timeout_seconds}",
                "leave the variable out: it is derived from start_timeout_seconds",
                "the engine gives up with: Timed out waiting for engines to send initial message",
                "vLLM issues 35547 and 35616",
            )


def drain_longer_than_door(plan: Plan) -> Iterator[Finding]:
    """What requests pass through stops sooner than the engines drain."""
    doors = [u for u in plan.units if not u.serves_model]
    if doors and plan.recipe.drain_seconds > min(u.stop_seconds for u in doors):
        first = min(doors, key=lambda u: u.stop_seconds)
        yield warning(
            "STOP-DRAIN",
            plan.fleet.recipe,
            f"drain_seconds is {plan.recipe.drain_seconds}, {first.name} is given {first.stop_seconds} s to stop",
            f"set drain_seconds to {first.stop_seconds} or less",
            "when its host is restarted, requests end there before the engines have answered them",
        )


CHECKS = (start_too_short, engine_gives_up_first, drain_longer_than_door)
