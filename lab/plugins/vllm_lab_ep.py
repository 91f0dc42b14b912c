"""vLLM general plugin of the lab: a mixture-of-experts model on several data- or expert-parallel ranks of CPU hosts.

vLLM's CPU backend starts with such a group, says that it is healthy, and dies at the first request, for two reasons:

* its communicator has no gather and no reduce-scatter for parts of unequal length (`all_gatherv`, `reduce_scatterv`),
  which is how tokens travel to the ranks that hold their experts and back: NotImplementedError;
* its experts ignore the map from global to local expert numbers and read beyond their weights: segmentation fault.

Both are added here with torch.distributed and without an eye on speed. On other platforms, and where vLLM has a method
itself, nothing changes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator"
EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"


def register() -> None:
    """Entry point of the group vllm.general_plugins; called in every process of the engine, so it must not fail."""
    try:
        if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
            return
        add_collectives(importlib.import_module(COMMUNICATOR).CpuCommunicator)
        respect_expert_map(importlib.import_module(EXPERTS).CPUUnquantizedExperts)
    except Exception as reason:  # another layout in an older or newer vLLM
        print(f"vllm_lab_ep: experts stay on one rank: {reason!r}", file=sys.stderr)


def add_collectives(communicator: Any) -> None:
    """Give the communicator class the collectives that it does not define itself."""
    for function in (all_gatherv, reduce_scatterv, reduce_scatterv_into_output):
        if function.__name__ not in vars(communicator):
            setattr(communicator, function.__name__, function)


def all_gatherv(group: Any, tensors: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """The ranks' rows one after another, `sizes[i]` of rank i; of each tensor when given several."""
    if dim != 0:
        raise NotImplementedError(f"all_gatherv along dimension {dim}")
    if isinstance(tensors, (list, tuple)):
        return [gather_rows(group, tensor, sizes) for tensor in tensors]
    return gather_rows(group, tensors, sizes)


def gather_rows(group: Any, tensor: Any, sizes: list[int] | None) -> Any:
    """Gather by padding to the longest part: gloo sends parts of one length only."""
    import torch  # type: ignore[import-not-found]

    if group.world_size == 1:
        return tensor
    rows = sizes or [tensor.shape[0]] * group.world_size
    padded = tensor.new_zeros((max(rows), *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in rows]
    torch.distributed.all_gather(parts, padded, group=group.device_group)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def reduce_scatterv(group: Any, tensor: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """This rank's part of the sum over all ranks: sum everything, keep `sizes[rank]` rows."""
    import torch

    if group.world_size == 1:
        return tensor
    # A copy, since the sum is made in place; movedim takes a negative dimension as it is.
    total = tensor.movedim(dim, 0).contiguous().clone()
    rows = sizes or [total.shape[0] // group.world_size] * group.world_size
    torch.distributed.all_reduce(total, group=group.device_group)
    start = sum(rows[: group.rank_in_group])
    return total[start : start + rows[group.rank_in_group]].movedim(0, dim).contiguous()


def reduce_scatterv_into_output(
    group: Any, tensor: Any, output: Any, dim: int = -1, sizes: list[int] | None = None
) -> Any:
    """The same, into a tensor that the caller brings."""
    output.copy_(reduce_scatterv(group, tensor, dim, sizes))
    return output


def respect_expert_map(experts: Any) -> None:
    """Make the experts compute with local numbers, and give tokens of other ranks' experts no weight."""
    original = experts.apply
    if getattr(original, "lab_expert_map", False):
        return
    signature = inspect.signature(original)  # callers mix positions and names, and versions add parameters

    def apply(*given: Any, **named: Any) -> Any:
        call = signature.bind(*given, **named).arguments
        expert_map, ids = call["expert_map"], call["topk_ids"]
        if expert_map is not None:
            local = expert_map[ids.long()].to(ids.dtype)
            elsewhere = local < 0
            call["topk_weights"] = call["topk_weights"].masked_fill(elsewhere, 0.0).contiguous()
            call["topk_ids"] = local.masked_fill(elsewhere, 0).contiguous()
        return original(**call)

    apply.lab_expert_map = True  # type: ignore[attr-defined]
    experts.apply = apply
