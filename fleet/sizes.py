"""What one device must hold, in GiB: weights, a full context's cache, activations, buffers; and what it has.

Estimates from config.json's numbers, good to a few GiB: they tell what cannot fit, not what throughput there will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.recipe import Model, PlatformName, Recipe, Role

GIB = 2**30
# Vendor's GB to MiB: Ascend 64 GB is 65536 MiB (npu-smi), NVIDIA 80 GB is 81559 MiB (nvidia-smi).
MIB_PER_GB = {"ascend-a2": 1024.0, "ascend-a3": 1024.0, "nvidia": 81559 / 80}
# The family's usual device; for NVIDIA none is taken for granted.
USUAL_GB = {"ascend-a2": 64.0, "ascend-a3": 64.0}
# What an NPU uses with nothing running (npu-smi: 3418 of 65536 MB); an H100 has 0 of 81559 MiB.
IDLE_MIB = {"ascend-a2": 3418.0, "ascend-a3": 3418.0}
# Bytes that a forward pass holds for a token and a channel of the hidden state: measured runs lie between 20 and 60.
ACTIVATION_BYTES = 40
# HCCL allocates twice HCCL_BUFFSIZE for each communicator; tensor parallel, and another where experts are spread.
HCCL_BUFFER_MB = 200


@dataclass(frozen=True)
class Need:
    """What one device holds, in GiB."""

    weights: float
    weights_how: str
    cache: float
    cache_how: str
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + self.buffers


def usable(memory: float, utilisation: float, platform: PlatformName) -> float:
    """What the engine may use of a device's GiB: its share, and no more than is free."""
    return min(memory * utilisation, memory - IDLE_MIB.get(platform, 0.0) / 1024)


def weights(model: Model, spec: Role) -> tuple[float, str]:
    """GiB of weights on one device, and how they come about.

    Routed experts are spread over tensor x data parallel ranks, with expert parallelism and without (vLLM's
    data-parallel guide); everything else is whole on each data-parallel rank.
    """
    total = model.weights_gb or 0.0
    stages, tensor, data = spec.pipeline_parallel_size, spec.tensor_parallel_size, spec.data_parallel_size
    if data == 1:
        return total * 1e9 / GIB / (tensor * stages), f"{total:g} GB / {tensor * stages}"
    experts = min(model.experts_gb or 0.0, total)
    if not experts:  # what is not known to be experts may be: at least this much
        return total * 1e9 / GIB / (tensor * stages * data), f"at least {total:g} GB / {tensor * stages * data}"
    each = experts / (tensor * stages * data) + (total - experts) / (tensor * stages)
    how = f"{experts:g} GB / {tensor * stages * data} + {total - experts:g} GB / {tensor * stages}"
    return each * 1e9 / GIB, how


def cache_bytes_per_token(model: Model, spec: Role) -> int | None:
    """Bytes of key-value cache that one token takes on one device; None where the model's shape is not known."""
    layers, heads, size = model.num_hidden_layers, model.num_key_value_heads, model.head_dim
    if layers is None or heads is None or size is None:
        return None
    each = 1 if str(spec.args.get("kv-cache-dtype", "")).startswith(("fp8", "int8")) else 2
    own_heads = max(1, heads // spec.tensor_parallel_size)
    return -(-layers // spec.pipeline_parallel_size) * own_heads * size * 2 * each


def need(recipe: Recipe, spec: Role, env: Mapping[str, str], context: int, batched_tokens: int) -> Need:
    """What one device must hold for one request of full context."""
    model = recipe.model
    on_device, how = weights(model, spec)
    per_token = cache_bytes_per_token(model, spec)
    activations = batched_tokens * (model.hidden_size or 0) * ACTIVATION_BYTES / GIB
    buffers = 0.0
    if recipe.platform.startswith("ascend") and per_token is not None:
        size = env.get("HCCL_BUFFSIZE", "")
        groups = 2 if spec.args.get("enable-expert-parallel") else 1
        buffers = groups * 2 * (int(size) if size.isdigit() else HCCL_BUFFER_MB) / 1024
    cache = (per_token or 0) * context / GIB
    return Need(on_device, how, cache, f"{context} tokens x {(per_token or 0) / 1024:g} KiB", activations, buffers)
