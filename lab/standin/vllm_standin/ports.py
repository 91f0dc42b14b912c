"""Ports, taken for real and refused in the words of whoever would take them."""

from __future__ import annotations

import errno
import os
import socket

from .settings import refuse


def bind_zmq(address: str, port: int) -> socket.socket:
    """A listening socket where the real engine has one of ZeroMQ's."""
    try:
        return bind(address, port)
    except OSError as error:
        text = {errno.EADDRINUSE: "Address already in use", errno.EADDRNOTAVAIL: "Cannot assign requested address"}
        what = text.get(error.errno or 0, error.strerror or str(error))
        refuse("zmq.error.ZMQError", f"{what} (addr='tcp://{address}:{port}')")


def bind(address: str, port: int, listen: bool = True) -> socket.socket:
    """A bound socket; listening at once, or later, until which the port refuses connections."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        result.bind((address, port))
        if listen:
            result.listen(256)
    except OSError:
        result.close()
        raise
    result.setblocking(False)
    return result


def bind_api(host: str, port: int) -> socket.socket:
    """The API's port, taken early as the real one does and listened on when the engine is ready."""
    try:
        return bind(host or "0.0.0.0", port, listen=False)
    except OSError as error:
        refuse("OSError", f"[Errno {error.errno}] {error.strerror}")


def hold_hccl() -> socket.socket | None:
    """The host port of HCCL's root, on HCCL_IF_IP: one of a range, or exactly the base port."""
    address = os.environ.get("HCCL_IF_IP")
    if not address:
        return None
    ports = hccl_ports()
    for port in ports:
        try:
            return bind(address, port)
        except OSError:
            continue
    refuse(
        "RuntimeError",
        f"Communication_Error_Bind_IP_Port(EI0019): Failed to bind the IP port. The IP address {address} and port "
        f"{ports[-1]} have already been bound, socket type[2]. Please check the port status and whether the port is "
        "being used by other process.",
    )


def hccl_ports() -> list[int]:
    """The ports that may be taken, in their order."""
    ranges = os.environ.get("HCCL_HOST_SOCKET_PORT_RANGE", "")
    if ranges == "auto":
        return [0]
    if not ranges:
        return [int(os.environ.get("HCCL_IF_BASE_PORT", "60000"))]
    result: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or (last and not last.strip().isdigit()) or int(last or first) < int(first):
            refuse(
                "RuntimeError",
                f"Config_Error_Invalid_Environment_Variable(EI0001): Value {ranges} for environment variable "
                "HCCL_HOST_SOCKET_PORT_RANGE is invalid.",
            )
        result += range(int(first), int(last or first) + 1)
    return result
