"""vLLM general plugin of the lab: lets NIXL, and workers that wait for it, sleep between their looks.

NIXL's UCX backend polls with a delay of 0, which costs one whole core per engine, even an idle one; its Python API
leaves no way to say otherwise. A worker whose requests all wait for a transfer looks without a pause as well. On two
cores requests then take up to half a minute, and now and then minutes. With VLLM_LAB_NIXL_POLL_US set to a number of
microseconds (5000 is a good one) both sleep that long in between. Without it nothing changes.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

VARIABLE = "VLLM_LAB_NIXL_POLL_US"
# nixl is a thin package that imports the build for one CUDA version; only the one that imports is of interest.
MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")


def register() -> None:
    """Entry point of the group vllm.general_plugins; called in every process of the engine, so it must not fail."""
    text = os.environ.get(VARIABLE, "")
    if not text.isdigit():
        return
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except Exception as reason:
            print(f"vllm_lab_nixl: {name} is not used: {reason}", file=sys.stderr)
            continue
        if hasattr(module, "nixlBind"):
            slow_down(module.nixlBind, int(text))
            break
    try:
        rest_between_looks(int(text))
    except Exception as reason:  # another layout in an older or newer vLLM
        print(f"vllm_lab_nixl: workers look without a pause: {reason!r}", file=sys.stderr)


def slow_down(bindings: Any, delay_us: int) -> None:
    """Replace the bindings' agent constructor by one that sets the progress thread's delay first."""
    create = bindings.nixlAgent
    if getattr(create, "lab_delay_us", None) is not None:
        return

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = delay_us
        return create(name, config)

    agent.lab_delay_us = delay_us  # type: ignore[attr-defined]
    bindings.nixlAgent = agent


def rest_between_looks(delay_us: int) -> None:
    """Let a worker sleep before each step that only looks whether a transfer is done.

    Such steps follow each other without a pause; the thread that greets the other engine then gets the interpreter's
    lock, and a core, so seldom that a first request took 9 to 27 s and once more than 100 s; so it takes about 1 s.
    """
    mixin = importlib.import_module("vllm.v1.worker.kv_connector_model_runner_mixin").KVConnectorModelRunnerMixin
    look = mixin.kv_connector_no_forward
    if getattr(look, "lab_delay_us", None) is not None:
        return

    def rested(*args: Any, **keywords: Any) -> Any:
        time.sleep(delay_us / 1e6)
        return look(*args, **keywords)

    rested.lab_delay_us = delay_us  # type: ignore[attr-defined]
    mixin.kv_connector_no_forward = staticmethod(rested)
