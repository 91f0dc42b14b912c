"""`ray start` and `ray status`: a cluster is the head and the connections that it holds."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import signal
import sys
import uuid
from typing import Any, NoReturn

from . import host, wire
from .ray_link import cluster_address, cluster_file, nodes
from .settings import log, seconds

RAY_VERSION = os.environ.get("VLLM_STANDIN_RAY_VERSION", "2.52.0")
PYTHON_VERSION = "3.11.13"
SWITCHES = "head block disable-usage-stats"
VALUES = (
    "port node-ip-address address include-dashboard dashboard-host dashboard-port num-gpus num-cpus resources temp-dir "
    "object-manager-port node-manager-port min-worker-port max-worker-port ray-client-server-port object-store-memory"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"Usage: ray start [OPTIONS]\nTry 'ray start --help' for help.\n\nError: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(argv: list[str]) -> int:
    """The command `ray`."""
    if argv[:1] == ["--version"]:
        print(f"ray, version {RAY_VERSION}")
        return 0
    if argv[:1] == ["status"]:
        return asyncio.run(_status())
    if argv[:1] != ["start"]:
        print(
            f"Usage: ray [OPTIONS] COMMAND [ARGS]...\n\nError: No such command '{' '.join(argv[:1])}'.", file=sys.stderr
        )
        return 2
    options = _options(argv[1:])
    print(f"stand-in for Ray {RAY_VERSION}", flush=True)
    own = options.node_ip_address or host.host_ip()
    if not host.is_local(own):
        print(
            f"RuntimeError: Can't find a `node_ip_address.json` file; {own} is no address of this host", file=sys.stderr
        )
        return 1
    if not options.block:
        if os.fork():
            return 0
        os.setsid()
    try:
        return asyncio.run(_head(own, int(options.port or 6379)) if options.head else _worker(own, options.address))
    except KeyboardInterrupt:
        return 130


def _options(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="ray start", add_help=False, allow_abbrev=False)
    for name in SWITCHES.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name in VALUES.split():
        parser.add_argument(f"--{name}")
    options, rest = parser.parse_known_args(argv)
    if rest:
        parser.error(f"No such option: {rest[0]}")
    if options.head == bool(options.address):
        parser.error("Either --head or --address must be given, and not both")
    return options


def _node(own: str) -> dict[str, Any]:
    here = host.devices()
    kind = here[0] if here else "NPU"
    return {"id": uuid.uuid4().hex * 2, "ip": own, "kind": kind, "devices": here[1] if here else None}


async def _head(own: str, port: int) -> int:
    known: dict[str, dict[str, Any]] = {}
    stop = _stop_event()
    node = _node(own)
    known[node["id"]] = node

    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined: str | None = None
        try:
            while (message := await wire.receive(reader)) is not None:
                if "status" in message:
                    await wire.send(writer, {"nodes": list(known.values())})
                elif message.get("ray") != RAY_VERSION:
                    await wire.send(writer, {"error": _mismatch(str(message.get("ray")))})
                    return
                else:
                    joined = str(message["node"]["id"])
                    known[joined] = message["node"]
                    await wire.send(writer, {"ok": True})
        except OSError:
            pass
        finally:
            if joined:
                known.pop(joined, None)
                log(f"stand-in: Ray node {joined[:8]} has left")
            writer.close()

    try:
        server = await asyncio.start_server(member, own, port)
    except OSError:
        print(
            f"ConnectionError: Ray is trying to start at {own}:{port}, but is already running at {own}:{port}. "
            "Please specify a different port using the `--port` flag of `ray start` command.",
            file=sys.stderr,
        )
        return 1
    _remember(own, port)
    print("Ray runtime started.", flush=True)
    await stop.wait()
    server.close()
    return 0


async def _worker(own: str, address: str) -> int:
    name, _, port = address.rpartition(":")
    stop = _stop_event()
    node = _node(own)
    joined = await _join(name, int(port or 6379), node, stop)
    if joined is None:
        print(f"ray.exceptions.RpcError: Failed to connect to GCS at address {address}", file=sys.stderr)
        return 0 if stop.is_set() else 1
    reader, answer = joined
    if "error" in answer:
        print(answer["error"], file=sys.stderr)
        return 1
    _remember(name, int(port or 6379))
    print("Ray runtime started.", flush=True)
    gone = asyncio.ensure_future(wire.receive(reader))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({gone, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        return 0
    stopped.cancel()
    await asyncio.sleep(seconds("VLLM_STANDIN_RAY_GONE_S", 5))
    print(
        "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=1]\nRemaining processes will be killed.",
        file=sys.stderr,
    )
    return 1


async def _join(
    name: str, port: int, node: dict[str, Any], stop: asyncio.Event
) -> tuple[asyncio.StreamReader, dict[str, Any]] | None:
    """Try to reach the head for as long as the real one does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds("VLLM_STANDIN_RAY_CONNECT_S", 30)
    while loop.time() < deadline and not stop.is_set():
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(name, port), 5)
            await wire.send(writer, {"node": node, "ray": RAY_VERSION})
            answer = await wire.receive(reader, 5)
            if answer is not None:
                # The connection is the membership: it must not be collected.
                _KEPT.append(writer)
                return reader, answer
        except (asyncio.TimeoutError, OSError):
            pass
        await asyncio.sleep(0.2)
    return None


_KEPT: list[asyncio.StreamWriter] = []


async def _status() -> int:
    address = cluster_address()
    found = await nodes(address) if address else None
    if found is None:
        print(
            "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to by setting "
            "`--address` flag or `RAY_ADDRESS` environment variable.",
            file=sys.stderr,
        )
        return 1
    line = "-" * 63
    print(f"======== Autoscaler status: {datetime.datetime.now()} ========\nNode status\n{line}\nActive:")
    for node in found:
        print(f" 1 node_{node['id']}")
    print(f"Pending:\n (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n{line}\nTotal Usage:")
    counts = [int(node["devices"]) for node in found if node.get("devices") is not None]
    if counts:
        print(f" 0.0/{float(sum(counts))} {found[0]['kind']}")
    print("\nTotal Demands:\n (no resource demands)")
    return 0


def _remember(name: str, port: int) -> None:
    file = cluster_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{name}:{port}")


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _mismatch(other: str) -> str:
    return (
        f"RuntimeError: Version mismatch: The cluster was started with:\n    Ray: {RAY_VERSION}\n    Python: "
        f"{PYTHON_VERSION}\nThis process was started with:\n    Ray: {other}\n    Python: {PYTHON_VERSION}"
    )
