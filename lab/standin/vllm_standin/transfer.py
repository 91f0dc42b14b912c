"""Prefill and decode apart: the handshake on real ports, and what a decode remembers of a prefill."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import uuid
from typing import Any

from . import wire
from .kvconfig import MOONCAKE, NIXL, Transfer
from .parallel import Parallel
from .ports import bind_zmq
from .settings import Refused, log, refuse, traceback_of, version, version_text

BLOCK = 128


class Peer:
    """One instance's side of the transfer."""

    def __init__(self, config: Transfer, own: Parallel, model: str, hosts: dict[int, str] | None = None) -> None:
        self.config = config
        self.own = own
        # Another on every start, like the port and the addresses that a real transfer engine takes.
        self.boot = uuid.uuid4().hex
        self.compat = hashlib.sha256(f"{version_text()} {model}".encode()).hexdigest()
        self.hosts = hosts if hosts is not None else {}
        self.known: dict[tuple[str, int], str] = {}
        self.turn = 0
        self.servers: list[asyncio.Server] = []

    def bind(self) -> list[socket.socket]:
        """The handshake ports of the ranks that run here, in the real engine's words where one is taken."""
        try:
            return [bind_zmq(self.config.host, port) for port in self._ports()]
        except Refused as refused:
            if self.config.connector != MOONCAKE:
                raise
            # The thread that listens dies first; the worker that waits for it ends the engine.
            log(f"Mooncake KVCacheSendingThread exception: {refused.last_line.split(': ', 1)[1]}", "ERROR")
            traceback_of(refused.last_line)
            if version() < (0, 13, 0):
                raise
            refuse("RuntimeError", f"KV Cache sending/receiving thread failed to start. ({refused.last_line})")

    async def open(self, socks: list[socket.socket]) -> None:
        """Answer the others from now on."""
        for sock in socks:
            rank, index = self._whose(sock.getsockname()[1])
            self.servers.append(await asyncio.start_server(self._answerer(rank, index), sock=sock))

    def params(self, prompt_tokens: int) -> dict[str, Any]:
        """What a prefill hands to the decode, for the next data-parallel rank in turn."""
        rank = self.turn % self.own.size
        self.turn += 1
        result: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.config.id_of(rank, self.own.size),
            "remote_block_ids": list(range(1, -(-prompt_tokens // BLOCK) + 1)),
            "remote_host": self.hosts.get(rank, self.config.host),
            "remote_port": self.config.port_of(rank, self.own.world),
        }
        if self.config.connector == MOONCAKE:
            result |= {"remote_pcp_size": 1, "remote_dcp_size": 1, "last_token_id": 1}
            result |= {"remote_multi_nodes_meta_mapping": {}, "num_prompt_blocks": len(result["remote_block_ids"])}
            if version() >= (0, 20, 0):
                result |= {"remote_request_id": uuid.uuid4().hex, "remote_ptp_size": self.own.tensor}
        else:
            result |= {"remote_request_id": uuid.uuid4().hex, "tp_size": self.own.tensor}
        return result

    async def pull(self, params: dict[str, Any]) -> str | None:
        """Fetch what a prefill has computed; why it failed, or None."""
        try:
            host, port, engine = params["remote_host"], int(params["remote_port"]), params["remote_engine_id"]
            request = params["remote_request_id"] if self._names_requests() else ""
        except KeyError as error:
            return f"KeyError: {error}"
        except (TypeError, ValueError):
            return f"Got invalid KVTransferParams: {params}"
        if (engine, port) not in self.known:
            fault = await self._meet(host, port, engine)
            if fault:
                return fault
        return await self._read(host, port, engine, request)

    async def _meet(self, host: str, port: int, engine: str) -> str | None:
        """The handshake, once for each engine id and port. Nothing forgets it: see _read."""
        meta = await wire.ask(host, port, {"get_meta": True}, 1.0)
        if meta is None:
            return f"Failed to receive data from {host}:{port} after 3 retries: Receive timeout"
        if self.config.connector == NIXL:
            enforced = self.config.extra.get("enforce_handshake_compat", True)
            if enforced and meta["compat"] != self.compat:
                return (
                    f"NIXL compatibility hash mismatch. Local: {self.compat}, Remote: {meta['compat']}. Prefill and "
                    "decode instances have incompatible configurations. This may be due to: different vLLM versions, "
                    "models, dtypes, KV cache layouts, attention backends, etc."
                )
            if meta["engine_id"] != engine:
                return f"Remote NIXL agent engine ID mismatch. Expected {engine},received {meta['engine_id']}."
        local = {self.config.id_of(rank, self.own.size) for rank in self.own.ranks}
        if meta["engine_id"] in local:
            return f"Conflict engine id {meta['engine_id']} with local engine id {meta['engine_id']}."
        expected = self.config.extra.get("prefill")
        if expected and {"tp_size": meta["tp"], "dp_size": meta["dp"]} != {
            k: int(expected[k]) for k in expected if k in ("tp_size", "dp_size")
        }:
            return f"stand-in: the prefill runs tp {meta['tp']} dp {meta['dp']}, this decode expects {expected}"
        self.known[meta["engine_id"], port] = meta["boot"]
        return None

    async def _read(self, host: str, port: int, engine: str, request: str) -> str | None:
        """The transfer itself, to the address that the handshake gave.

        vllm-ascend keeps that address by engine id and port for ever, and does not drop it after a failure: a prefill
        that restarts under a fixed engine id, or two that share one, are read at an address that is no longer theirs.
        """
        boot = self.known.get((engine, port))
        answer = await wire.ask(host, port, {"read": boot, "request": request}, 1.0)
        if answer is None or not answer.get("ok"):
            return "Mooncake transfer failed, ret: -1" if self.config.connector == MOONCAKE else "NIXL transfer failed"
        return None

    def _names_requests(self) -> bool:
        return self.config.connector == NIXL or version() >= (0, 20, 0)

    def _ports(self) -> list[int]:
        """Of all local ranks; of Mooncake's two sides only the prefill listens."""
        if self.config.connector == MOONCAKE:
            if self.config.role == "kv_consumer":
                return []
            world = self.own.world
            return [self.config.port_of(rank, world) + i for rank in self.own.ranks for i in range(world)]
        return [self.config.port_of(rank, 1) for rank in self.own.ranks] if self.config.connector == NIXL else []

    def _whose(self, port: int) -> tuple[int, int]:
        step = self.own.world if self.config.connector == MOONCAKE else 1
        return divmod(port - self.config.port, step)

    def _answerer(self, rank: int, index: int) -> Any:
        meta = {
            "engine_id": self.config.id_of(rank, self.own.size),
            "boot": self.boot,
            "compat": self.compat,
            "version": version_text(),
            "tp": self.own.tensor,
            "dp": self.own.size,
            "index": index,
            "pid": os.getpid(),
        }

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                question = await wire.receive(reader, 5)
                if question and "get_meta" in question:
                    await wire.send(writer, meta)
                elif question:
                    await wire.send(writer, {"ok": question.get("read") == self.boot})
            except OSError:
                pass
            finally:
                writer.close()

        return answer
