"""What the tests of the stand-in engine start, ask and end: real processes on the loopback."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STANDIN = Path(__file__).parents[2] / "lab" / "standin"
PYTHON = "/usr/bin/python3"
PROXY = STANDIN / "ascend" / "load_balance_proxy_server_example.py"
# Generous: other jobs may share the cores.
LIMIT = 30.0


class Process:
    """One process, its output in a file."""

    def __init__(self, argv: list[str], folder: Path, **env: str) -> None:
        inherited = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
        settings = {"VLLM_STANDIN_LOAD_S": "0", "VLLM_STANDIN_IMPORT_S": "0", "VLLM_STANDIN_EXIT_S": "0.1"}
        settings |= {"VLLM_STANDIN_DEV": str(folder / "dev")}
        self.output = folder / f"{time.monotonic_ns()}.log"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                argv, cwd=folder, env={**inherited, **settings, **env}, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def last_line(self) -> str:
        return self.text.splitlines()[-1]

    def wait(self) -> int:
        return self.process.wait(LIMIT)

    def runs(self) -> bool:
        return self.process.poll() is None

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def says(self, text: str) -> None:
        until(lambda: text in self.text or not self.runs())
        assert text in self.text, self.text

    def end(self) -> None:
        if self.runs():
            self.process.kill()
        self.process.wait(LIMIT)


class Machine:
    """Starts processes in a folder with a model, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Process] = []
        (folder / "m").mkdir()
        (folder / "m" / "config.json").write_text('{"max_position_embeddings": 40960}')

    def run(self, *argv: str, **env: str) -> Process:
        process = Process(list(argv), self.folder, **env)
        self.started.append(process)
        return process

    def serve(self, *argv: str, **env: str) -> Process:
        return self.run(str(STANDIN / "bin" / "vllm"), "serve", "m", *argv, **env)

    def api(self, *argv: str, host: str = "127.0.0.1", **env: str) -> tuple[Process, Api]:
        api = Api(host, free_port(host))
        return self.serve("--host", host, "--port", str(api.port), *argv, **env), api

    def refusal(self, *argv: str, **env: str) -> tuple[int, str]:
        """How a start ends that is refused; one that is not says 'accepted'."""
        process = self.serve("--port", str(free_port()), *argv, **{"VLLM_STANDIN_DIE": "accepted", **env})
        return process.wait(), process.text

    def end(self) -> None:
        for process in self.started:
            process.end()


class Api:
    """A client of one server."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def ask(self, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                data = body if isinstance(body, (str, bytes)) else json.dumps(body)
                connection.request("POST", path, data, {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def up(self) -> None:
        until(lambda: self.health() == 200)

    def health(self) -> int:
        try:
            return self.ask("/health")[0]
        except OSError:
            return 0

    def complete(self, prompt: str = "hello there", tokens: int = 3, **more: Any) -> tuple[int, str]:
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens, **more})

    def text(self, prompt: str = "hello there", tokens: int = 3) -> str:
        status, answer = self.complete(prompt, tokens)
        assert status == 200, answer
        return str(json.loads(answer)["choices"][0]["text"])

    def metric(self, name: str) -> float:
        line = next(line for line in self.ask("/metrics")[1].splitlines() if line.startswith(name))
        return float(line.rsplit(" ", 1)[1])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def taken(host: str = "127.0.0.1") -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind((host, 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def mooncake(role: str, port: int, engine: str, prefill: tuple[int, int] = (1, 1), **more: Any) -> str:
    """The transfer block of one side; sizes are tensor and data."""
    sizes = {"prefill": dict(zip(("tp_size", "dp_size"), prefill, strict=True)), "decode": {"tp_size": 1, "dp_size": 1}}
    block = {"kv_connector": "MooncakeConnectorV1", "kv_role": role, "kv_port": str(port), "engine_id": engine}
    return json.dumps({**block, "kv_connector_extra_config": sizes, **more})
