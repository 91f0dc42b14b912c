"""Accelerators, whatever the platform: the module of the plan's family is asked, and a plan for CPUs has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fleet.findings import Finding
from fleet.inventory import Node
from fleet.machine import gpu, npu
from fleet.topology import Plan

State: TypeAlias = npu.State | gpu.State


def sections(plan: Plan, node: Node, whole: bool = True) -> list[str]:
    """The parts of one host's snapshot: shell text that asks the family's tools, each call bounded in time.

    Unless the ``whole`` is wanted, what takes long and a running service proves is left out.
    """
    if plan.recipe.platform == "nvidia":
        return gpu.sections(plan, node)
    return npu.sections(plan, node, whole) if plan.recipe.platform.startswith("ascend") else []


def parse(sections: Mapping[str, list[str]]) -> State | None:
    """What a host answered; None where it was asked for no device."""
    if gpu.FIRST in sections:
        return gpu.parse(sections)
    return npu.parse(sections) if npu.FIRST in sections else None


def judge(plan: Plan, node: Node, state: State | None, ours: frozenset[int], serving: bool = False) -> list[Finding]:
    """What is wrong with one host's devices. ``ours`` are the processes of this plan's units and containers; those
    on the devices are ``state.pids``. ``serving`` is whether an engine of the plan runs: memory in use is then most
    likely its own, also where the vendor's tool does not list what runs in a container."""
    if isinstance(state, npu.State):
        return npu.judge(plan, node, state, ours, serving)
    return gpu.judge(plan, node, state, ours, serving) if state else []


def between(plan: Plan, states: Mapping[str, State | None]) -> list[Finding]:
    """What does not agree over the hosts that work together; ``states`` is by host name."""
    npus = {name: state for name, state in states.items() if isinstance(state, npu.State)}
    gpus = {name: state for name, state in states.items() if isinstance(state, gpu.State)}
    return npu.between(plan, npus) + gpu.between(plan, gpus)
