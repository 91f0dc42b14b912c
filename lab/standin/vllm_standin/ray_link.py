"""How the engine sees its Ray cluster: which nodes there are, and that one has left."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from . import host, wire
from .settings import log, refuse, seconds

POLL_SECONDS = 0.5


def cluster_file() -> Path:
    """Where a node's `ray start` leaves the address of its cluster."""
    return Path(os.environ.get("VLLM_STANDIN_RAY_FILE", "/tmp/ray/ray_current_cluster"))


def cluster_address() -> tuple[str, int] | None:
    """RAY_ADDRESS, or what this node's `ray start` left."""
    text = os.environ.get("RAY_ADDRESS", "")
    if not text or text == "auto":
        try:
            text = cluster_file().read_text().strip()
        except OSError:
            return None
    name, _, port = text.rpartition(":")
    return (name, int(port)) if name and port.isdigit() else None


async def nodes(address: tuple[str, int]) -> list[dict[str, Any]] | None:
    """The cluster's nodes; None where nothing answers."""
    answer = await wire.ask(*address, {"status": True}, 2.0)
    return None if answer is None else list(answer.get("nodes", []))


class RayLink:
    """The executor's view of the cluster."""

    def __init__(self, devices: int, node_count: int) -> None:
        self.devices = devices
        self.node_count = node_count
        self.seen: set[str] = set()
        self.lost = False

    async def wait(self) -> None:
        """Until the cluster has what the placement group needs."""
        address = cluster_address()
        found = await nodes(address) if address else None
        if found is None:
            log("Started a local Ray instance. (stand-in: no cluster was found)", "WARNING")
        here = host.devices()
        if here is not None and here[1] == 0:
            refuse("ValueError", f"Current node has no {here[0]} available. Make sure you have at least 1 {here[0]}.")
        limit = seconds("VLLM_STANDIN_PG_WAIT_S", 1800)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        while not self._enough(found or self._alone(here)):
            if loop.time() > deadline:
                refuse(
                    "ValueError",
                    f"Cannot provide a placement group requiring {self.devices} devices within {limit:g} seconds. See "
                    "`ray status` and `ray list nodes` to make sure the cluster has enough resources.",
                )
            log("Waiting for creating a placement group. Check `ray status` and `ray list nodes`")
            await asyncio.sleep(POLL_SECONDS)
            found = await nodes(address) if address else None
        self.seen = {node["id"] for node in found or []}

    async def until_lost(self) -> None:
        """Return when a node that runs workers has left."""
        address = cluster_address()
        while self.seen and address:
            await asyncio.sleep(POLL_SECONDS)
            found = await nodes(address)
            if found is None or not self.seen <= {node["id"] for node in found}:
                log("stand-in: a Ray node has left: ray.exceptions.ActorDiedError", "ERROR")
                self.lost = True
                return
        await asyncio.Event().wait()

    def _enough(self, found: list[dict[str, Any]]) -> bool:
        counts = [node.get("devices") for node in found]
        if any(count is None for count in counts):
            return len(found) >= self.node_count
        return sum(int(count or 0) for count in counts) >= self.devices

    def _alone(self, here: tuple[str, int] | None) -> list[dict[str, Any]]:
        return [{"id": "local", "devices": None if here is None else here[1]}]
