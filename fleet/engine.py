"""What differs between vLLM versions: which arguments exist, how they are spelled, what they mean.

The releases at which something changed are data, each with its source; everything else asks here.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from fleet.recipe import Argument, Model, Role

# First release with the argument (read from the argument classes of the wheels on either side).
ADDED = {
    "headless": Version("0.9.0"),
    "api-server-count": Version("0.9.1"),
    "async-scheduling": Version("0.10.0"),
    "kv-cache-memory-bytes": Version("0.10.2"),
    "nnodes": Version("0.11.1"),
    "moe-backend": Version("0.17.0"),
    "shutdown-timeout": Version("0.18.0"),
}
# First release without it.
REMOVED = {
    "rope-scaling": Version("0.11.1"),  # vllm PR 28006
    "rope-theta": Version("0.11.1"),
    "disable-log-requests": Version("0.17.0"),
    "swap-space": Version("0.18.0"),
}
# From here on --hf-overrides takes transformers' key rope_parameters; before, rope_scaling.
ROPE_PARAMETERS = Version("0.12.0")
# From here on the engine no longer multiplies the context by yarn's factor: max_position_embeddings must say it
# (config/model.py puts yarn among the types whose factor stays 1; 0.29.0 still multiplies).
YARN_NOT_MULTIPLIED = Version("0.30.0")
# From here on a start rank of 0 is "given", and giving it switches to another balancing mode
# (arg_utils.py tests `is not None`; 0.27.0 tests truth).
START_RANK_ZERO_GIVEN = Version("0.28.0")
# From here on vllm-ascend registers its Mooncake connector by name, and the old module is gone (0.14.0rc1).
MOONCAKE_BY_NAME = Version("0.14.0")
MOONCAKE_MODULE = "vllm_ascend.distributed.mooncake_connector"
READY_TIMEOUT = Version("0.14.0")


def exists(argument: str, version: Version) -> bool:
    """Whether this version has the argument (without dashes); unknown names are taken to exist."""
    added, removed = ADDED.get(argument), REMOVED.get(argument)
    return (added is None or version >= added) and (removed is None or version < removed)


def start_rank_zero_is_harmless(version: Version) -> bool:
    """Whether ``--data-parallel-start-rank 0`` on a head leaves the balancing mode alone."""
    return version < START_RANK_ZERO_GIVEN


def reads_ready_timeout(version: Version) -> bool:
    """Whether VLLM_ENGINE_READY_TIMEOUT_S is read; the default of 600 s is too short for large weights."""
    return version >= READY_TIMEOUT


def mooncake_module(version: Version) -> str | None:
    """Module path that the transfer block must name, or None where the connector is known by name."""
    return MOONCAKE_MODULE if version < MOONCAKE_BY_NAME else None


def yarn_context(model: Model, role: Role) -> int | None:
    """Longest context that the model's yarn gives, in tokens; None without yarn."""
    if role.yarn is None:
        return None
    return int(role.yarn.factor * original_context(model))


def original_context(model: Model) -> int:
    """The window that yarn's factor multiplies, in tokens."""
    return model.original_max_position_embeddings or model.max_position_embeddings


def context_args(version: Version, model: Model, role: Role) -> dict[str, Argument]:
    """Arguments that extend the context, in this version's spelling; none where the model's own is enough."""
    wanted = role.max_model_len
    if role.yarn is None or (wanted is not None and wanted <= model.max_position_embeddings):
        return {}
    factor: Any = role.yarn.factor
    rope: dict[str, Any] = {"rope_type": "yarn"}
    if version >= ROPE_PARAMETERS and model.rope_theta is not None:
        rope["rope_theta"] = _plain(model.rope_theta)
    rope |= {"factor": _plain(factor), "original_max_position_embeddings": original_context(model)}
    if exists("rope-scaling", version):
        return {"rope-scaling": rope}
    overrides: dict[str, Any] = {"rope_parameters" if version >= ROPE_PARAMETERS else "rope_scaling": rope}
    if version >= YARN_NOT_MULTIPLIED:
        overrides["max_position_embeddings"] = yarn_context(model, role)
    return {"hf-overrides": overrides}


def args_of(version: Version, model: Model, role: Role) -> dict[str, Argument]:
    """The role's own arguments that this version has, with the context's among them."""
    args: dict[str, Argument] = {k: v for k, v in role.args.items() if exists(k, version)}
    for name, value in context_args(version, model, role).items():
        own = args.get(name)
        args[name] = {**value, **own} if isinstance(own, dict) and isinstance(value, dict) else value
    return args


def _plain(number: float) -> float | int:
    """4.0 as 4, as people write it."""
    return int(number) if float(number).is_integer() else number
