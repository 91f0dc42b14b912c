"""One JSON object a line over TCP: what the stand-ins say to each other."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """One message."""
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader, timeout: float | None = None) -> dict[str, Any] | None:
    """The next message; None when the other side is gone, silent, or no stand-in."""
    try:
        line = await asyncio.wait_for(reader.readline(), timeout)
        found = json.loads(line) if line else None
    except (asyncio.TimeoutError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


async def ask(host: str, port: int, message: dict[str, Any], timeout: float) -> dict[str, Any] | None:
    """Ask once on a connection of its own; None without an answer."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout)
    except (asyncio.TimeoutError, OSError):
        return None
    try:
        await send(writer, message)
        return await receive(reader, timeout)
    except OSError:
        return None
    finally:
        writer.close()
