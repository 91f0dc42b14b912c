"""vLLM general plugin of the lab: lets NIXL's progress thread sleep between polls.

NIXL's UCX backend polls with a delay of 0, which costs one whole core per engine, even an idle one; its Python API
leaves no way to say otherwise. On two cores requests then take up to half a minute. With VLLM_LAB_NIXL_POLL_US set to
a number of microseconds (5000 is a good one) every agent is created with that delay. Without it nothing changes.
"""

from __future__ import annotations

import importlib
import os
import sys
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
            return


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
