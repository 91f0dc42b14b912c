"""What the tests of the stand-in engine start, ask and end: real processes on the loopback.

Most of a start is Python's own, and the same each time: one process has all that read already, and each start is a
fork of it that runs the program from its first line. ``Machine.alone`` starts one without.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

STANDIN = Path(__file__).parents[2] / "lab" / "standin"
PYTHON = "/usr/bin/python3"
PROXY = STANDIN / "ascend" / "load_balance_proxy_server_example.py"
# Generous: other jobs may share the cores.
LIMIT = 30.0


FORKS = """
import contextlib, http.client, http.server, itertools, json, os, runpy, select, signal, sys, threading, uuid

sys.path.insert(0, sys.argv[1])
import vllm_standin.main, vllm_standin.ray_cli


def say(**what):
    print(json.dumps(what), flush=True)


def start(argv, folder, env, output):
    pid = os.fork()
    if pid:
        say(started=pid)
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(woken), os.close(wakes)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY)):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
    sys.exit()


woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(wakes)
asked = b""
while True:
    ready, _, _ = select.select([0, woken], [], [])
    if woken in ready:
        os.read(woken, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                say(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))
    if 0 in ready:
        part = os.read(0, 65536)
        if not part:
            sys.exit()
        *orders, asked = (asked + part).split(b"\\n")
        for order in orders:
            if order == b"end":
                sys.exit()
            start(**json.loads(order))
"""


class Forks:
    """The process that has everything read, and the ends of those that it has started."""

    def __init__(self) -> None:
        read, self.orders = os.pipe()
        self.answers, write = os.pipe()
        pipes = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
        os.posix_spawn(PYTHON, [PYTHON, "-c", FORKS, str(STANDIN)], os.environ, file_actions=pipes)
        os.close(read)
        os.close(write)
        self.heard = b""
        self.started: list[int] = []
        self.codes: dict[int, int] = {}
        atexit.register(self.end)

    def start(self, argv: list[str], folder: Path, env: dict[str, str], output: Path) -> Fork:
        order = {"argv": argv, "folder": str(folder), "env": env, "output": str(output)}
        os.write(self.orders, json.dumps(order).encode() + b"\n")
        deadline = time.monotonic() + LIMIT
        while not self.started:
            assert time.monotonic() < deadline, "nothing was started"
            self.listen(1)
        return Fork(self, self.started.pop())

    def listen(self, seconds: float) -> None:
        """Take in what it has to say, and wait for that as long."""
        if not select.select([self.answers], [], [], seconds)[0]:
            return
        part = os.read(self.answers, 65536)
        assert part, "the process that starts all others has ended"
        *lines, self.heard = (self.heard + part).split(b"\n")
        for what in map(json.loads, lines):
            if "started" in what:
                self.started.append(what["started"])
                self.codes.pop(what["started"], None)  # of an earlier process with this id
            else:
                self.codes[what["ended"]] = what["code"]

    def end(self) -> None:
        os.write(self.orders, b"end\n")  # gevent, which pyinfra brings, does not close a pipe at once
        while os.read(self.answers, 65536):
            pass


@cache
def forks() -> Forks:
    return Forks()


class Fork:
    """As much of subprocess.Popen as is needed here."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self.forks, self.pid = forks, pid
        self.code: int | None = None

    def poll(self, seconds: float = 0) -> int | None:
        if self.code is None:
            self.forks.listen(seconds)
            self.code = self.forks.codes.pop(self.pid, None)
        return self.code

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll(0.5)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Process:
    """One process, its output in a file."""

    def __init__(self, argv: list[str], folder: Path, alone: bool, **env: str) -> None:
        inherited = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
        settings = {"VLLM_STANDIN_LOAD_S": "0", "VLLM_STANDIN_IMPORT_S": "0", "VLLM_STANDIN_EXIT_S": "0.1"}
        settings |= {"VLLM_STANDIN_DEV": str(folder / "dev")}
        self.output = folder / f"{time.monotonic_ns()}.log"
        self.process: subprocess.Popen[bytes] | Fork
        with self.output.open("w") as file:
            if alone:
                self.process = subprocess.Popen(
                    argv, cwd=folder, env={**inherited, **settings, **env}, stdout=file, stderr=subprocess.STDOUT
                )
                return
        words = argv[1:] if argv[0] == PYTHON else argv
        self.process = forks().start(words, folder, {**inherited, **settings, **env}, self.output)

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

    def run(self, *argv: str, alone: bool = False, **env: str) -> Process:
        process = Process(list(argv), self.folder, alone, **env)
        self.started.append(process)
        return process

    def alone(self, *argv: str, **env: str) -> Process:
        """A start as on a host: nothing is read before."""
        return self.run(*argv, alone=True, **env)

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
