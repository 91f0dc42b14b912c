"""vLLM plugin of the lab: Ray, and tensor or pipeline parallelism over several hosts, on vLLM's CPU backend.

Three things are missing there, and are added here; Ray and vLLM's Ray executor themselves stay as they are.

* Each platform names the Ray resource that stands for one of its devices ("GPU", on Ascend "NPU"); the CPU platform
  names none and so "does not support ray". Here it gets "NPU", one of the few names for which Ray tells a worker which
  unit it was given. A host says how many workers it takes: RAY_OVERRIDE_RESOURCES='{"NPU": 1}' before `ray start`.
* Ranks of one group talk through shared memory when they agree on a name that is made of a port number. So ranks on
  different hosts agree, and then wait for each other's memory without end. Here the name has the host's in it.
* A later stage of a pipeline receives into a buffer that only a warm-up makes, and without torch.compile (which needs a
  C++ compiler) the CPU backend skips the warm-up: AssertionError at the first request. Here the buffer is made before.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

RESOURCE = "NPU"


def platform() -> None:
    """Entry point of the group vllm.platform_plugins; brings no platform of its own.

    It is called when a process first asks for its platform. General plugins come too late: a Ray worker is asked for
    its devices before it loads them.
    """
    try:
        cpu = importlib.import_module("vllm.platforms.cpu").CpuPlatform
        cpu.ray_device_key = cpu.ray_device_key or RESOURCE
    except Exception as reason:  # another layout in an older or newer vLLM
        print(f"vllm_lab_ray: no Ray on CPU hosts: {reason!r}", file=sys.stderr)


def register() -> None:
    """Entry point of the group vllm.general_plugins; called in every process of the engine, so it must not fail."""
    try:
        if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
            return
        module = importlib.import_module("vllm.distributed.device_communicators.cpu_communicator")
        name_by_host(module._CPUSHMDistributed, os.uname().nodename)
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():  # a Ray worker; others are spared the seconds of this import
            make_buffer_early(importlib.import_module("vllm.v1.worker.cpu_model_runner").CPUModelRunner)
    except Exception as reason:
        print(f"vllm_lab_ray: ranks stay on one host: {reason!r}", file=sys.stderr)


def name_by_host(shared_memory: Any, host: str) -> None:
    """Make the name of a group's shared memory differ between hosts; ranks without a common name use gloo."""
    original = shared_memory.make_group_name
    if getattr(original, "lab_by_host", False):
        return

    def make_group_name(communicator: Any) -> str:
        return f"{original(communicator)}-{host}"

    make_group_name.lab_by_host = True  # type: ignore[attr-defined]
    shared_memory.make_group_name = staticmethod(make_group_name)


def make_buffer_early(runner: Any) -> None:
    """Make the model runner create a pipeline stage's receive buffer together with its cache."""
    original = runner.initialize_kv_cache
    if getattr(original, "lab_buffer", False):
        return

    def initialize_kv_cache(self: Any, *given: Any, **named: Any) -> Any:
        group = importlib.import_module("vllm.distributed").get_pp_group()
        if not group.is_first_rank and self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return original(self, *given, **named)

    initialize_kv_cache.lab_buffer = True  # type: ignore[attr-defined]
    runner.initialize_kv_cache = initialize_kv_cache
