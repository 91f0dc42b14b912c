"""`vllm serve` from its first line to its last: what is checked, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from . import arguments, group, host
from .api import Api
from .arguments import Args
from .context import max_model_len
from .engine import DEAD, Engine
from .http import serve_with
from .kvconfig import Transfer, transfer
from .parallel import Parallel, parallel
from .ports import bind_api, bind_zmq, hold_hccl
from .ray_link import RayLink
from .settings import Refused, log, refuse, seconds, traceback_of, version, version_text
from .transfer import Peer

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
JSON_ARGUMENTS = ("hf_overrides", "kv_transfer_config", "additional_config", "rope_scaling")
SHUTDOWN_TIMEOUT_READ = (0, 18, 0)
# Signals that came while it loaded.
SWALLOWED: list[int] = []


def main(argv: list[str]) -> int:
    """The command `vllm`; its exit status is the real one's."""
    if argv[:1] in (["--version"], ["-v"]):
        print(version_text())
        return 0
    if argv[:1] != ["serve"]:
        word = argv[0] if argv else ""
        print(f"vllm: error: argument subparser: invalid choice: {word!r} (stand-in: serve only)", file=sys.stderr)
        return 2
    log(f"stand-in for vLLM {version_text()}, no real engine; pid {os.getpid()}")
    # The real one is killed by a signal as long as it imports.
    time.sleep(seconds("VLLM_STANDIN_IMPORT_S", 0.2))
    signal.signal(signal.SIGTERM, _swallow)
    try:
        args, complaints = arguments.parse(argv[1:])
        if complaints:
            return _complain(complaints[0])
        return asyncio.run(Instance(args).run())
    except Refused as refused:
        traceback_of(refused.last_line)
        return refused.code
    except KeyboardInterrupt:
        return 130


def _complain(first: arguments.Complaint) -> int:
    if first.code == 1:
        traceback_of(first.line)
    else:
        print(first.line, file=sys.stderr)
    return first.code


def _swallow(number: int, frame: Any) -> None:
    SWALLOWED.append(number)
    # Not by print, which the signal may have interrupted.
    os.write(2, b"stand-in: SIGTERM while loading is swallowed, as by the real engine\n")


class Instance:
    """One process of `vllm serve`, with everything that its arguments and environment say checked."""

    def __init__(self, args: Args) -> None:
        for name in JSON_ARGUMENTS:
            args.mapping(name)
        self.args = args
        self.model = str(args.get("model_tag") or args.get("model") or DEFAULT_MODEL)
        names = args.get("served_model_name") or [self.model]
        self.names = [names] if isinstance(names, str) else list(names)
        self.expert = bool(args.get("enable_expert_parallel", False))
        self.max_model_len = max_model_len(args, self.model)
        self.own: Parallel = parallel(args)
        if not self.own.ray:
            host.check_devices(self.own.world, self.own.local)
        host.check_network()
        self.transfer: Transfer | None = transfer(args, self.own, host.host_ip())
        self.stop = asyncio.Event()
        self.exit_code = 0
        self.ray: RayLink | None = None
        self.held: list[Any] = []

    async def run(self) -> int:
        """Load, serve, end."""
        if self.own.headless:
            return await self._run_headless()
        loop = asyncio.get_running_loop()
        api_socket = bind_api(str(self.args.get("host") or ""), self.args.integer("port", 8000))
        head = group.Head(self.own, self.expert) if self.own.is_head else None
        await self._open_head(head)
        self.held.append(hold_hccl())
        if self.own.ray:
            self.ray = RayLink(self.own.world * self.own.size, self.own.pipeline)
            await self.ray.wait()
        peer = await self._open_peer(head.hosts if head else {})
        if head and self.own.spans_hosts:
            await asyncio.gather(self._load(), head.wait())
        elif self.own.spans_hosts:
            await self._join_as_peer()
        else:
            await self._load()
        engine = Engine(self.args.integer("max_num_seqs", 256) * self.own.size, peer)
        engine.lost = lambda: bool((head and head.lost) or (self.ray and self.ray.lost))
        engine.on_death = lambda: self._die(loop, engine)
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self.stop.set)
        await self._serve(engine, api_socket)
        return self.exit_code

    async def _run_headless(self) -> int:
        loop = asyncio.get_running_loop()
        # Without an API server, the main process ends at a signal at any time.
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        await self._open_peer({})
        joining = asyncio.ensure_future(group.join(self.own, host.host_ip(), self.expert, self._load))
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
        else:
            joining.cancel()
        await stopping
        log("stand-in: stopped")
        return 0

    async def _open_head(self, head: group.Head | None) -> None:
        """The port for the other ranks; the real one takes it only where there are others."""
        address = self.own.address
        if head is None or self.own.size == 1 or self.own.ray:
            return
        if address and not host.is_local(address):
            refuse(
                "zmq.error.ZMQError",
                f"Cannot assign requested address (addr='tcp://{address}:{self.own.rpc_port}')",
            )
        if self.own.spans_hosts:
            await head.open(bind_zmq(address or "127.0.0.1", self.own.rpc_port))

    async def _join_as_peer(self) -> None:
        """External load balancing: a node with an API of its own, which still reports to the first."""
        loaded = asyncio.Event()

        async def load() -> None:
            await self._load()
            loaded.set()

        self.held.append(asyncio.ensure_future(group.join(self.own, host.host_ip(), self.expert, load)))
        await loaded.wait()

    async def _open_peer(self, hosts: dict[int, str]) -> Peer | None:
        if self.transfer is None:
            return None
        peer = Peer(self.transfer, self.own, self.model, hosts)
        await peer.open(peer.bind())
        return peer

    async def _load(self) -> None:
        """What takes the real engine its minutes."""
        log(f"Initializing a V1 LLM engine (v{version_text()}) with config: model={self.model!r}")
        log(
            f"world_size={self.own.world} data_parallel_size={self.own.size} local={self.own.local} "
            f"tensor_parallel_size={self.own.tensor} max_model_len={self.max_model_len}"
        )
        if self.transfer:
            log(f"Creating v1 connector with name: {self.transfer.connector} and engine_id: {self.transfer.engine_id}")
        log(f"Starting to load model {self.model}...")
        await asyncio.sleep(seconds("VLLM_STANDIN_LOAD_S", 1))
        last_line = os.environ.get("VLLM_STANDIN_DIE")
        if last_line:
            raise Refused(last_line)
        if os.environ.get("VLLM_STANDIN_HANG") == "1":
            log("stand-in: hangs, as it was told to")
            await asyncio.Event().wait()
        if SWALLOWED and not self.own.headless:
            # The real one's engine is lost with the signal, and its front end waits for it until the timeout.
            await asyncio.sleep(group.ready_timeout())
            refuse("TimeoutError", group.timeout_text())
        log("Model loading took 0.0000 GiB memory")
        log("init engine (profile, create kv cache, warmup model) took 0.00 s")

    async def _serve(self, engine: Engine, api_socket: Any) -> None:
        api = Api(engine, self.names, self.model, self.max_model_len)
        try:
            server = await asyncio.start_server(serve_with(api), sock=api_socket, backlog=2048, limit=2**20)
        except OSError as error:
            refuse("OSError", f"[Errno {error.errno}] {error.strerror}")
        bound = api_socket.getsockname()
        log(f"Starting vLLM API server 0 on http://{bound[0]}:{bound[1]}")
        log("Application startup complete.")
        watch = asyncio.ensure_future(self._watch_ray(engine))
        await self.stop.wait()
        if not engine.dead:
            await self._drain(engine)
        watch.cancel()
        server.close()
        log("Application shutdown complete.")
        if self.exit_code:
            raise Refused(f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD}")

    async def _drain(self, engine: Engine) -> None:
        """End at once, or let what runs finish, while /health stays 200 and new requests are refused."""
        engine.draining = True
        limit = float(self.args.get("shutdown_timeout", 0)) if version() >= SHUTDOWN_TIMEOUT_READ else 0.0
        log(f"stand-in: shutting down, requests may take {limit:g} s")
        if limit > 0:
            try:
                await asyncio.wait_for(engine.idle.wait(), limit)
            except asyncio.TimeoutError:
                log("stand-in: the shutdown timeout is over", "WARNING")
        engine.abort()
        # What was cut still gets its last bytes, and what arrives now its 500.
        await asyncio.sleep(seconds("VLLM_STANDIN_EXIT_S", 0.3))

    def _die(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        """The engine is found dead: /health says so for a while, then the process ends."""
        log(DEAD, "ERROR")
        self.exit_code = 1
        engine.abort()
        loop.call_later(seconds("VLLM_STANDIN_DEAD_S", 3), self.stop.set)

    async def _watch_ray(self, engine: Engine) -> None:
        """Ray tells of a lost node by itself."""
        if self.ray is None:
            return
        await self.ray.until_lost()
        if not engine.dead:
            engine.dead = True
            self._die(asyncio.get_running_loop(), engine)
