"""Data parallelism over hosts: the head waits for the others' ranks, the others connect and stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any, NoReturn

from . import wire
from .parallel import Parallel
from .settings import Refused, Version, log, refuse, seconds, version, version_text

READY_TIMEOUT_READ: Version = (0, 14, 0)
HANDSHAKE_SECONDS = 300.0


class Head:
    """The side that serves the API, and that all ranks report to."""

    def __init__(self, own: Parallel, expert: bool) -> None:
        self.own = own
        self.shared = shared_of(own, expert)
        # Host of each remote rank that has reported.
        self.hosts: dict[int, str] = {}
        self.ready: set[int] = set()
        self.changed = asyncio.Event()
        self.fault: Refused | None = None
        self.lost = False
        self.server: asyncio.Server | None = None

    async def open(self, sock: Any) -> None:
        """Start to listen for the others."""
        self.server = await asyncio.start_server(self._member, sock=sock)

    async def wait(self) -> None:
        """Until all remote ranks are ready; ends with the real engine's texts otherwise."""
        needed = self.own.size - self.own.local
        limit = ready_timeout()
        deadline = asyncio.get_running_loop().time() + limit
        while len(self.ready) < needed and self.fault is None:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                refuse("TimeoutError", timeout_text())
            self.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), left)
        if self.fault is not None:
            raise self.fault

    async def _member(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await wire.receive(reader, 10)
            if hello is None or "hello" not in hello:
                return
            fault = self._complaint(hello)
            if fault:
                self.fault = self.fault or Refused(f"RuntimeError: {fault}")
                self.changed.set()
                return
            await self._keep(hello, reader, writer)
        finally:
            writer.close()

    async def _keep(self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One member, from its arrival until it is lost; its ranks are never taken by another."""
        ranks = range(hello["start"], hello["start"] + hello["local"])
        self.hosts |= dict.fromkeys(ranks, hello["host"])
        log(f"stand-in: data-parallel ranks {list(ranks)} of {hello['host']} have connected")
        with contextlib.suppress(OSError):
            await wire.send(writer, {"init": True})
            if await wire.receive(reader) is not None:
                self.ready |= set(ranks)
                self.changed.set()
                await wire.receive(reader)
        log(f"stand-in: lost the data-parallel ranks {list(ranks)} of {hello['host']}", "ERROR")
        self.lost = True

    def _complaint(self, hello: dict[str, Any]) -> str | None:
        """What is wrong with a member, in the real engine's words where it has some."""
        ranks = range(hello["start"], hello["start"] + hello["local"])
        for rank in ranks:
            if rank >= self.own.size:
                return f"Message from engine with unexpected data parallel rank: {rank}"
            if rank in self.own.ranks:
                return f"HELLO message from remote engine {rank}, expected it to be local"
            if rank in self.hosts:
                return f"Unexpected HELLO message for remote engine {rank} in CONNECTED state."
        if hello["headless"] and self.own.external:
            return f"Remote engine {ranks[0]} must not use --headless in external or hybrid dp lb mode"
        if not hello["headless"] and not self.own.external:
            return f"Remote engine {ranks[0]} must use --headless unless in external or hybrid dp lb mode"
        if hello["shared"] != self.shared:
            return (
                f"Configuration mismatch detected for engine {ranks[0]}. All DP workers must have identical "
                "configurations for parameters that affect collective communication (e.g., enable_eplb, "
                f"eplb_config.log_balancedness). Worker hash: {hello['shared']}, Expected hash: {self.shared}. "
                "Please ensure all workers are started with the same command-line arguments."
            )
        return None


async def join(own: Parallel, host: str, expert: bool, load: Callable[[], Any]) -> None:
    """Connect to the head, load, report; returns when the head is gone, which the real one takes no notice of."""
    hello = {"hello": 1, "start": own.start, "local": own.local, "headless": own.headless, "host": host}
    hello["shared"] = shared_of(own, expert)
    limit = seconds("VLLM_STANDIN_HANDSHAKE_S", HANDSHAKE_SECONDS)
    reader, writer = await _connect(own, limit)
    await wire.send(writer, hello)
    if await wire.receive(reader) is None:
        # What was sent is lost: a head that comes back does not hear of this one.
        log("stand-in: the head does not answer", "WARNING")
        await asyncio.sleep(limit)
        _no_response(limit)
    await load()
    await wire.send(writer, {"ready": True})
    log(f"stand-in: ranks {list(own.ranks)} are ready")
    await wire.receive(reader)
    log("stand-in: the head is gone; like the real engine, this one neither exits nor reconnects", "WARNING")


def shared_of(own: Parallel, expert: bool) -> dict[str, Any]:
    """What must be the same on all hosts."""
    return {
        "version": version_text(),
        "tensor": own.tensor,
        "pipeline": own.pipeline,
        "size": own.size,
        "expert_parallel": expert,
    }


def ready_timeout() -> float:
    """How long a head waits: the variable is read from 0.14 on."""
    read = version() >= READY_TIMEOUT_READ
    return float(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S") or 600) if read else 600.0


def timeout_text() -> str:
    """How a front end ends that has waited for its engines in vain."""
    if version() < (0, 17, 0):
        # The words run together up to 0.13.
        gap = "" if version() < (0, 14, 0) else " "
        return f"Timed out waiting for engines to send{gap}initial message on input socket."
    return (
        "Timed out waiting for engine core processes to start. This is often caused by slow weight loading for large "
        f"models. Waited {ready_timeout():g}s (configured by VLLM_ENGINE_READY_TIMEOUT_S). To increase the timeout, "
        "set the environment variable: VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"
    )


def _no_response(limit: float) -> NoReturn:
    refuse("RuntimeError", f"Did not receive response from front-end process within {limit / 60:g} minutes")


async def _connect(own: Parallel, limit: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while loop.time() < deadline:
        try:
            return await asyncio.wait_for(asyncio.open_connection(own.address or "127.0.0.1", own.rpc_port), 5)
        except (asyncio.TimeoutError, OSError):
            await asyncio.sleep(0.2)
    _no_response(limit)
