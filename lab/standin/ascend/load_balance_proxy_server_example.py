"""A stand-in of vllm-ascend's load-balancing proxy, with the behaviour of its release 0.13, defects included.

One file with the name and the arguments of the original, which lies in the images. Its defects are the point: a
decode that fails gives HTTP 200 and nothing, a prefill's 4xx is retried and becomes a bare 500, nothing dead is ever
taken out, and it knows neither /health nor /v1/models.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROUTES = ("/v1/completions", "/v1/chat/completions")
KINDS = ("prefill", "decode")


def main(argv: list[str]) -> int:
    """Serve until a signal."""
    options = parse(argv)
    print("stand-in of load_balance_proxy_server_example.py, no real proxy", flush=True)
    pools = Pools(options)
    server = Server((options.host, options.port), Handler)
    server.pools = pools
    threading.Thread(target=pools.listen, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    sizes = [len(pools.servers[kind]) for kind in KINDS]
    print(f"Initialized {sizes[0]} prefill clients and {sizes[1]} decode clients.", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The original's arguments; unambiguous beginnings of them count, as argparse has it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--prefiller-hosts", nargs="+", default=["localhost"])
    parser.add_argument("--prefiller-ports", type=int, nargs="+", default=[8001])
    parser.add_argument("--decoder-hosts", nargs="+", default=["localhost"])
    parser.add_argument("--decoder-ports", type=int, nargs="+", default=[8002])
    parser.add_argument("--max-retries", type=int, default=3)
    parser.add_argument("--retry-delay", type=float, default=0.001)
    parser.add_argument("--max-waiting-retries", type=int, default=3)
    parser.add_argument("--waiting-retry-interval", type=float, default=10)
    options = parser.parse_args(argv)
    if len(options.prefiller_hosts) != len(options.prefiller_ports):
        raise ValueError("Number of prefiller hosts must match number of prefiller ports")
    if len(options.decoder_hosts) != len(options.decoder_ports):
        raise ValueError("Number of decoder hosts must match number of decoder ports")
    return options


class Backend:
    """One instance, and how busy the proxy takes it to be."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.load = 0.0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def key(self) -> str:
        """What makes two the same: all names of the loopback are one."""
        return f"{self.host.replace('localhost', '0.0.0.0').replace('127.0.0.1', '0.0.0.0')}:{self.port}"

    def call(self, path: str, body: dict[str, Any] | None, request_id: str) -> http.client.HTTPResponse:
        """Ask the instance, without a limit of time, as the original does."""
        connection = http.client.HTTPConnection(self.host, self.port)
        headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}", "X-Request-Id": request_id}
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, json.dumps(body), headers)
        return connection.getresponse()


class Pools:
    """The instances of both kinds, and those that are waited for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.servers = {
            "prefill": [Backend(*p) for p in zip(options.prefiller_hosts, options.prefiller_ports, strict=True)],
            "decode": [Backend(*p) for p in zip(options.decoder_hosts, options.decoder_ports, strict=True)],
        }
        self.waiting: dict[str, tuple[str, Backend, int]] = {}

    def pick(self, kind: str, load: float) -> Backend:
        """The least busy, the first of equals; whether it lives is not asked."""
        with self.lock:
            if not self.servers[kind]:
                raise RuntimeError(f"No {kind} servers available")
            chosen = min(self.servers[kind], key=lambda server: server.load)
            chosen.load += load
            return chosen

    def release(self, server: Backend, load: float) -> None:
        """Take a request's weight off again."""
        with self.lock:
            server.load -= load

    def add(self, kind: str, added: list[Backend]) -> tuple[list[str], list[str]]:
        """Take in those that answer, wait for the others; one that is there already is left out without a word."""
        done: list[str] = []
        waits: list[str] = []
        for server in added:
            if alive(server):
                self._insert(kind, server)
                done.append(str(server))
            else:
                self.waiting[str(server)] = (kind, server, 0)
                waits.append(str(server))
        return done, waits

    def remove(self, kind: str, gone: list[Backend]) -> None:
        """Take out."""
        keys = {server.key for server in gone}
        with self.lock:
            self.servers[kind] = [server for server in self.servers[kind] if server.key not in keys]

    def listen(self) -> None:
        """Look again and again for those that did not answer, and give up on them."""
        while True:
            for name, (kind, server, tries) in list(self.waiting.items()):
                print(f"Checking instance {name}...", flush=True)
                if alive(server):
                    self._insert(kind, server)
                    self.waiting.pop(name)
                elif tries + 1 == self.options.max_waiting_retries:
                    print(f"Instance {name} was not added to the proxy.", flush=True)
                    self.waiting.pop(name)
                else:
                    self.waiting[name] = (kind, server, tries + 1)
            time.sleep(self.options.waiting_retry_interval)

    def names(self, kind: str) -> list[str]:
        """Who is in."""
        return [str(server) for server in self.servers[kind]]

    def _insert(self, kind: str, server: Backend) -> None:
        with self.lock:
            if server.key not in {known.key for known in self.servers[kind]}:
                self.servers[kind].append(server)


def alive(server: Backend) -> bool:
    """Whether an instance serves its models."""
    try:
        return server.call("/v1/models", None, "").status == 200
    except OSError:
        return False


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 1024
    pools: Pools


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Only /healthcheck, which asks nobody."""
        pools = self.server.pools
        if self.path == "/healthcheck":
            counts = {f"{kind}_instances": len(pools.servers[kind]) for kind in KINDS}
            self._json(200, {"status": "ok", **counts})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Completions, and changes of the lists."""
        length = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(length)
        if self.path not in (*ROUTES, "/instances/add", "/instances/remove"):
            self._json(404, {"detail": "Not Found"})
            return
        try:
            if self.path in ROUTES:
                self._complete(json.loads(raw), length)
            else:
                self._json(200, self._adjust(json.loads(raw)))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            print(f"Error occurred in disagg prefill proxy server - {self.path} endpoint\n{error!r}", flush=True)
            self._send(500, b"Internal Server Error", "text/plain; charset=utf-8")

    def _complete(self, body: dict[str, Any], length: int) -> None:
        """The prompt at a prefill, then the answer from a decode, passed on as it comes."""
        pools, request_id = self.server.pools, str(uuid.uuid4())
        weight = length / 4.0 * 0.0345 + 120.0745
        # A prefill that fails keeps the weight of its request for ever, as in the original.
        prefill = pools.pick("prefill", weight)
        params = _prefilled(prefill, self.path, body, request_id, pools.options).get("kv_transfer_params")
        pools.release(prefill, weight)
        if params:
            body["kv_transfer_params"] = params
        decode = pools.pick("decode", length)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in _decoded(decode, self.path, body, request_id, pools.options):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
        finally:
            pools.release(decode, length)
        self.wfile.write(b"0\r\n\r\n")

    def _adjust(self, body: dict[str, Any]) -> dict[str, Any]:
        pools, mode = self.server.pools, self.path.rsplit("/", 1)[1]
        kind, listed = body.get("type", ""), body.get("instances", [])
        if isinstance(listed, str):
            listed = [listed]
        # Exactly host:port; anything else is a 500 there too.
        changed = [Backend(host, int(port)) for host, port in (one.split(":") for one in listed)]
        if kind not in KINDS:
            supported = "Only support 'InstanceType.PREFILL' and 'InstanceType.DECODE'."
            return {"error": f"Instance type {kind} is not supported. {supported}"}
        message = f"{mode} {kind} instances: {[str(server) for server in changed]}."
        if mode == "add":
            done, waits = pools.add(kind, changed)
            if waits:
                message = f"{mode} {kind} instances: {done}. Instances {waits} are waiting to be added."
        else:
            pools.remove(kind, changed)
        return {"message": message, **{f"current_{kind}_instances": pools.names(kind) for kind in KINDS}}

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Uvicorn's line of a request."""
        print(f"INFO:     {self.client_address[0]} - {format % args}", flush=True)


def _prefilled(
    server: Backend, path: str, body: dict[str, Any], request_id: str, options: argparse.Namespace
) -> dict[str, Any]:
    """The prefill's answer to one token of the request; tried again whatever the fault is."""
    nobody = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    params: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False, **nobody, "aborted_request": []}
    asked = {**body, "kv_transfer_params": params, "stream": False, "max_tokens": 1, "min_tokens": 1}
    asked.pop("stream_options", None)
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    for attempt in itertools.count(1):
        try:
            response = server.call(path, asked, request_id)
            answer = response.read()
            if response.status >= 400:
                raise RuntimeError(f"{response.status} from {server}: {answer[:200]!r}")
            return dict(json.loads(answer))
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            print(f"Attempt {attempt} failed for {path}: {error}", flush=True)
            if attempt >= options.max_retries:
                raise
            time.sleep(options.retry_delay * 2 ** (attempt - 1))
    raise AssertionError


def _decoded(
    server: Backend, path: str, body: dict[str, Any], request_id: str, options: argparse.Namespace
) -> Iterator[bytes]:
    """The decode's answer in parts; its faults end the answer and are told to nobody but the log."""
    for attempt in range(1, options.max_retries + 1):
        begun = False
        try:
            response = server.call(path, body, request_id)
            if response.status >= 400:
                raise RuntimeError(f"{response.status} from {server}: {response.read()[:200]!r}")
            while part := response.read1(65536):
                begun = True
                yield part
            return
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            if begun:
                print(f"Streaming to client interrupted after response started: {error}", flush=True)
                return
            print(f"Attempt {attempt} failed for streaming {path}: {error}", flush=True)
            time.sleep(options.retry_delay * 2 ** (attempt - 1))
    print(f"Error during streaming from decoder http://{server}/v1: the request {request_id} is aborted", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
