"""Prefill and decode against each other: what one hands over, the other must be able to take."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Instance, Plan

# From here on the images install Mooncake as a package; before, its library lies where only this variable finds it.
MOONCAKE_PACKAGED = Version("0.23.0")
# Arguments that fix the form of the cache.
CACHE_FORM = ("block-size", "kv-cache-dtype", "dtype")


def _sides(plan: Plan) -> tuple[Instance, Instance] | None:
    """The first instance of each side."""
    prefill, decode = plan.of_role("prefill")[:1], plan.of_role("decode")[:1]
    return (prefill[0], decode[0]) if prefill and decode else None


def _is_mooncake(plan: Plan) -> bool:
    return plan.recipe.kv_transfer is not None and plan.recipe.kv_transfer.connector == "MooncakeConnectorV1"


def tensor_sizes(plan: Plan) -> Iterator[Finding]:
    """MooncakeConnectorV1: one decode rank pulls from whole prefill ranks (mooncake_connector.py, 0.11 to HEAD)."""
    sides = _sides(plan)
    if sides is None or not _is_mooncake(plan):
        return
    ours, theirs = (side.spec.tensor_parallel_size for side in sides)
    where = f"{plan.fleet.recipe} decode"
    source = "vllm-ascend mooncake_connector.py"
    if ours < theirs:
        what = f"decode's tensor_parallel_size {theirs} is more than prefill's {ours}"
        mend = f"lower decode's to {ours} and raise its data_parallel_size instead"
        yield error("TRANSFER-TENSOR", where, what, mend, "the connector refuses it at start", source)
    elif ours % theirs:
        what = f"prefill's tensor_parallel_size {ours} is no multiple of decode's {theirs}"
        mend = "choose sizes of which one divides the other"
        yield warning("TRANSFER-TENSOR", where, what, mend, "decode would pull parts of heads", source)
    if sides[1].spec.pipeline_parallel_size > 1:
        what = f"decode's pipeline_parallel_size is {sides[1].spec.pipeline_parallel_size}"
        mend = "set it to 1, and raise tensor_parallel_size or data_parallel_size instead"
        why = "the connector hands the cache to a decode without pipeline stages only"
        yield error("TRANSFER-PIPELINE", where, what, mend, why, source)


def contexts(plan: Plan) -> Iterator[Finding]:
    """What prefill accepts, decode must accept too."""
    sides = _sides(plan)
    if sides is None:
        return
    ours, theirs = (side.spec.max_model_len or plan.recipe.model.max_position_embeddings for side in sides)
    if theirs < ours:
        yield warning(
            "TRANSFER-CONTEXT",
            f"{plan.fleet.recipe} decode",
            f"decode's max-model-len {theirs} is less than prefill's {ours}",
            "give both sides the same",
            "a longer request is computed by prefill and then refused by decode",
        )


def cache_forms(plan: Plan) -> Iterator[Finding]:
    """Blocks are copied as they are."""
    sides = _sides(plan)
    if sides is None:
        return
    for name in CACHE_FORM:
        ours, theirs = (_given(side, name) for side in sides)
        if ours != theirs:
            # what is not set may be the same by default
            yield (warning if None in (ours, theirs) else error)(
                "TRANSFER-CACHE",
                f"{plan.fleet.recipe} decode",
                f"{name} is {_said(ours)} on prefill and {_said(theirs)} on decode",
                f"write {name} once, under shared",
                "blocks of the cache are copied as they are, so both sides must lay them out alike",
            )


def _given(side: Instance, name: str) -> str | None:
    """An argument as it is written; ``auto`` is what an unset one is."""
    value = side.spec.args.get(name)
    return None if value in (None, "auto") else str(value)


def _said(value: str | None) -> str:
    return value or "not set"


def library(plan: Plan) -> Iterator[Finding]:
    """Up to 0.22 Mooncake's library is found by LD_LIBRARY_PATH only."""
    plugin = plan.recipe.engine.vllm_ascend
    if not _is_mooncake(plan) or plugin is None or Version(plugin) >= MOONCAKE_PACKAGED:
        return
    envs = look.first_env(plan)
    lacking = [i.role for _, i in look.roles(plan) if "mooncake" not in envs[i.name].get("LD_LIBRARY_PATH", "")]
    if lacking:
        path = "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages/mooncake"
        yield warning(
            "TRANSFER-LIBRARY",
            f"{plan.fleet.recipe} {' and '.join(lacking)}",
            "LD_LIBRARY_PATH does not name Mooncake's folder",
            f"set LD_LIBRARY_PATH: {path}:$LD_LIBRARY_PATH under shared.env",
            "the connector then fails with ImportError: ascend_transport.so",
            "vllm-ascend issue 6949",
        )


CHECKS = (tensor_sizes, contexts, cache_forms, library)
