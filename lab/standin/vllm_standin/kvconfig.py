"""--kv-transfer-config: what a version refuses in it, and what follows from it."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

from .arguments import Args
from .parallel import Parallel
from .settings import Version, refuse, version

MOONCAKE = "MooncakeConnectorV1"
NIXL = "NixlConnector"
OLD_MODULE = "vllm_ascend.distributed.mooncake_connector"
NEW_MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector"
MODULE_MOVED: Version = (0, 14, 0)
# From here on a module path that is given is imported; before, a connector that is known by name wins
# (vLLM's kv_connector/factory.py: 0.19.1 and 0.20.0).
PATH_WINS: Version = (0, 20, 0)
# kv_load_failure_policy: absent, then "recompute", from here on "fail" (vLLM's config/kv_transfer.py).
FAIL_BY_DEFAULT: Version = (0, 17, 0)
# vLLM's configuration classes forbid unknown keys from here on.
EXTRA_FORBIDDEN: Version = (0, 16, 0)
RANKS_GONE: Version = (0, 32, 0)
# Before, a failed transfer was logged and the request went on with whatever was in its cache blocks.
FAILURES_REPORTED: Version = (0, 20, 0)
ROLES = ("kv_producer", "kv_consumer", "kv_both")
CONNECTORS = (
    *(MOONCAKE, NIXL, "MooncakeConnector", "MooncakeLayerwiseConnector", "MooncakeHybridConnector", "MultiConnector"),
    *("ExampleConnector", "SharedStorageConnector", "LMCacheConnectorV1", "OffloadingConnector", "P2pNcclConnector"),
    *("MooncakeConnectorStoreV1", "AscendStoreConnector", "UCMConnector"),
)
KEYS = {
    *("kv_connector", "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_role", "kv_ip", "kv_port"),
    *("kv_connector_extra_config", "kv_connector_module_path", "enable_permute_local_kv", "kv_load_failure_policy"),
    *("kv_rank", "kv_parallel_size"),
}


@dataclass(frozen=True)
class Transfer:
    """One side of a key-value transfer."""

    connector: str
    role: str
    engine_id: str
    # Of the first data-parallel rank, on `host`.
    port: int
    host: str
    extra: dict[str, Any]
    # What becomes of a request whose transfer failed: fail, recompute, or go on as if nothing had been.
    on_failure: str

    def id_of(self, rank: int, size: int) -> str:
        """The engine id of one data-parallel rank, which the real engine makes unique."""
        return f"{self.engine_id}_dp{rank}" if size > 1 else self.engine_id

    def port_of(self, rank: int, world: int) -> int:
        """The first handshake port of a rank."""
        return self.port + rank * (world if self.connector == MOONCAKE else 1)


def transfer(args: Args, own: Parallel, host: str) -> Transfer | None:
    """The transfer's configuration, or the refusal that the real engine ends with; None without one."""
    config = args.mapping("kv_transfer_config")
    if not config:
        return None
    _check_keys(config)
    name, role = config.get("kv_connector"), config.get("kv_role")
    if role is not None and role not in ROLES:
        refuse("ValueError", f"Unsupported kv_role: {role}. Supported roles are {ROLES}")
    if name is not None and role is None:
        refuse("ValueError", f"Please specify kv_role when kv_connector is set, supported roles are {ROLES}")
    if name is None or role is None:
        return None
    _check_module(name, config.get("kv_connector_module_path"))
    extra = dict(config.get("kv_connector_extra_config") or {})
    port = _number(config.get("kv_port", 14579))
    if name == MOONCAKE:
        _check_sizes(extra, role, own)
    elif name == NIXL:
        host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
        port = _number(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"))
    return Transfer(
        connector=name,
        role=role,
        engine_id=str(config.get("engine_id") or uuid.uuid4()),
        port=port,
        host="127.0.0.1" if host == "localhost" else host,
        extra=extra,
        on_failure=_on_failure(name, config.get("kv_load_failure_policy")),
    )


def _on_failure(name: str, policy: str | None) -> str:
    if name == MOONCAKE and version() < FAILURES_REPORTED:
        return "ignore"
    return policy or ("fail" if version() >= FAIL_BY_DEFAULT else "recompute")


def _check_keys(config: dict[str, Any]) -> None:
    allowed = KEYS - {"kv_rank", "kv_parallel_size"} if version() >= RANKS_GONE else KEYS
    unknown = [key for key in config if key not in allowed]
    if unknown and version() >= EXTRA_FORBIDDEN:
        lines = "".join(f"\n{key}\n  Unexpected keyword argument [type=unexpected_keyword_argument]" for key in unknown)
        many = "s" if len(unknown) > 1 else ""
        refuse(
            "pydantic_core._pydantic_core.ValidationError",
            f"{len(unknown)} validation error{many} for KVTransferConfig{lines}",
        )


def _check_module(name: str, module: str | None) -> None:
    """vllm-ascend registers its connectors by name in every version since 0.11; a path is read from 0.20 on."""
    if name in CONNECTORS and version() < PATH_WINS:
        return
    if module is not None and not module:
        refuse("ValueError", "kv_connector_module_path cannot be an empty string.")
    if module is None:
        if name not in CONNECTORS:
            refuse("ValueError", f"Unsupported connector type: {name}")
        return
    right = NEW_MODULE if version() >= MODULE_MOVED else OLD_MODULE
    if module != right:
        known = module.startswith("vllm_ascend.")
        refuse("ModuleNotFoundError", f"No module named '{module if known else module.split('.')[0]}'")
    # MooncakeConnectorV1 is what the registry calls it; in its module the class is MooncakeConnector.
    refuse("AttributeError", f"Class {name} not found in {module}")


def _check_sizes(extra: dict[str, Any], role: str, own: Parallel) -> None:
    sizes: dict[str, dict[str, int]] = {}
    for side in ("prefill", "decode"):
        block = extra.get(side) or {}
        for key in ("tp_size", "dp_size"):
            if key not in block:
                refuse("AssertionError", f'assert "{key}" in {side}_parallel_config.keys()')
        sizes[side] = {key: _number(block[key]) for key in ("tp_size", "dp_size")}
    prefill, decode = sizes["prefill"], sizes["decode"]
    if prefill["tp_size"] < decode["tp_size"]:
        refuse(
            "ValueError",
            f"prefill_tp_size: {prefill['tp_size']} must be greater than or equal to the decode_tp_size: "
            f"{decode['tp_size']}",
        )
    if _number((extra.get("decode") or {}).get("pp_size", 1)) != 1:
        refuse("AssertionError", "decode pp size must be 1")
    mine = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(role)
    if mine and sizes[mine] != {"tp_size": own.tensor, "dp_size": own.size}:
        refuse(
            "ValueError",
            f"stand-in: kv_connector_extra_config says {mine} {sizes[mine]}, but this one runs tp_size {own.tensor}, "
            f"dp_size {own.size}: the real engine starts, and its transfers fail",
        )


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        refuse("ValueError", f"invalid literal for int() with base 10: {value!r}")
