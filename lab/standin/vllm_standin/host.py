"""What of this machine the engine depends on: its devices, its interfaces, its addresses."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from .settings import log, refuse

KINDS = {"davinci": ("NPU", "ASCEND_RT_VISIBLE_DEVICES"), "nvidia": ("GPU", "CUDA_VISIBLE_DEVICES")}


def devices() -> tuple[str, int] | None:
    """Kind and number of the devices that this process may use; None where the machine has none to count."""
    folder = Path(os.environ.get("VLLM_STANDIN_DEV", "/dev"))
    for prefix, (kind, variable) in KINDS.items():
        found = {int(m[1]) for node in folder.glob(f"{prefix}*") if (m := re.fullmatch(rf"{prefix}(\d+)", node.name))}
        if not found:
            continue
        visible = os.environ.get(variable)
        if visible is not None:
            found &= {int(part) for part in visible.split(",") if part.strip().isdigit()}
        return kind, len(found)
    return None


def check_devices(world: int, local_ranks: int) -> None:
    """Refuse more workers than devices. world is tensor times pipeline of one data-parallel rank."""
    here = devices()
    if here is None:
        log("stand-in: no device nodes on this machine, devices are not checked")
        return
    kind, count = here
    if world > count:
        refuse(
            "ValueError",
            f"World size ({world}) is larger than the number of available {kind}s ({count}) in this node. If this is "
            "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately.",
        )
    if world * local_ranks > count:
        refuse("AssertionError", f"DP adjusted local rank {count} is out of bounds for {count} devices.")


def is_local(address: str) -> bool:
    """Whether an address can be bound on this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def check_network() -> None:
    """Refuse addresses and interfaces that this machine does not have, where the environment names them."""
    own = os.environ.get("VLLM_HOST_IP")
    if own and not is_local(own):
        refuse("zmq.error.ZMQError", f"Cannot assign requested address (addr='tcp://{own}:0')")
    hccl = os.environ.get("HCCL_IF_IP")
    if hccl and not is_local(hccl):
        _invalid_variable("HCCL_IF_IP", hccl, "an IP address of this host")
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        for interface in filter(None, os.environ.get(name, "").split(",")):
            if interface not in _interfaces():
                refuse(
                    "RuntimeError",
                    "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
                    f"Unable to find address for: {interface} ({name})",
                )
    for name in ("HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        pattern = os.environ.get(name)
        if pattern and not matching(pattern, _interfaces()):
            if name.startswith("NCCL"):
                refuse("RuntimeError", f"NCCL error: internal error; Bootstrap : no socket interface found ({pattern})")
            refuse(
                "RuntimeError",
                f"[EI0001] set ifname to [{pattern}] by HCCL_SOCKET_IFNAME, but not found in the environment; "
                "get host ip fail by socket Ifname",
            )


def matching(pattern: str, interfaces: list[str]) -> list[str]:
    """The interfaces that a pattern of HCCL or NCCL names: prefixes, =exact, ^not, ^=not exactly, by comma."""
    negated = pattern.startswith("^")
    pattern = pattern[1:] if negated else pattern
    exact = pattern.startswith("=")
    words = (pattern[1:] if exact else pattern).split(",")
    return [
        name
        for name in interfaces
        if negated != any(name == word if exact else bool(word) and name.startswith(word) for word in words)
    ]


def host_ip() -> str:
    """The address that this engine gives to others: VLLM_HOST_IP, else that of the default route."""
    named = os.environ.get("VLLM_HOST_IP")
    if named:
        return named
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("8.8.8.8", 80))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _invalid_variable(name: str, value: str, expected: str) -> None:
    refuse(
        "RuntimeError",
        f"Config_Error_Invalid_Environment_Variable(EI0001): Value {value} for environment variable {name} is invalid. "
        f"Expected value : {expected}.",
    )
