"""What keeps the units of an instance together, as processes on this machine's loopback addresses."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fleet import ROOT

PROGRAM = ROOT / "files/group/group.py"
PYTHONS = sorted({p for p in (sys.executable, shutil.which("python3", path="/usr/bin:/bin")) if p})
NAMES = ("a", "b", "c")
LIMIT = 8.0  # of any wait here
SETTINGS = "0123456789ab"


@dataclass
class Member:
    """One host: its program's process, and what it has printed."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> list[str]:
        return self.log.read_text().splitlines()

    def engine(self) -> str | None:
        """The epoch with which it started its engine."""
        found = re.findall(
            r"^group: all \d members are here, epoch ([0-9a-f]{12})$", self.log.read_text(), re.MULTILINE
        )
        return found[-1] if found else None

    def ends(self) -> int:
        return self.process.wait(LIMIT)

    def folder(self) -> Path:
        """What systemd keeps for it while it starts it again."""
        return self.log.parent / f"run-{self.name}"

    def state(self) -> list[str]:
        """Phase, since when, and why, as it tells whoever asks on the host."""
        file = self.folder() / "group"
        return file.read_text().rstrip("\n").split(" ", 2) if file.exists() else ["", "", ""]

    def deaths(self) -> list[float]:
        file = self.folder() / "deaths"  # the settings, then the times
        return [float(word) for word in file.read_text().partition("\n")[2].split()] if file.exists() else []


@dataclass
class Net:
    """Three members on 127.0.0.1 to 127.0.0.3, and a systemctl that writes down what it is asked."""

    folder: Path
    program: Path
    port: int
    members: dict[str, Member] = field(default_factory=dict)
    starts: int = 0

    def start(
        self,
        name: str,
        *engine: str,
        python: str = sys.executable,
        settings: str = SETTINGS,
        cut_from: str = "",
        program: Path | None = None,
    ) -> Member:
        """``cut_from``: a member that this one does not reach, though that one reaches it."""
        config = self.folder / f"{name}.json"
        places = {n: (f"127.0.0.{i}", self.port) for i, n in enumerate(NAMES, 1)}
        peers = [[n, place[0], 1 if n == cut_from else place[1]] for n, place in places.items() if n != name]
        data = {"unit": f"vllm-{name}.service", "me": name, "kill_seconds": 0.3, "settings": settings}
        config.write_text(json.dumps({**data, "listen": places[name], "peers": peers}))
        runtime = self.folder / f"run-{name}"
        runtime.mkdir(exist_ok=True)
        self.starts += 1
        log = self.folder / f"{name}.{self.starts}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [python, str(program or self.program), str(config), *engine],
                env={
                    **os.environ,
                    "PATH": f"{self.folder}:{os.environ['PATH']}",
                    "RUNTIME_DIRECTORY": str(runtime),
                },
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.members[name] = Member(name, process, log)
        return self.members[name]

    def start_all(self, *engine: str) -> tuple[Member, Member, Member]:
        a, b, c = (self.start(name, *engine) for name in NAMES)
        until(lambda: all(m.engine() for m in (a, b, c)))
        return a, b, c

    def asked_of_systemd(self) -> list[str]:
        log = self.folder / "systemctl.log"
        return log.read_text().splitlines() if log.exists() else []

    def end(self) -> None:
        for member in self.members.values():
            for number in (signal.SIGCONT, signal.SIGTERM):
                if member.process.poll() is None:
                    member.process.send_signal(number)
        for member in self.members.values():
            try:
                member.process.wait(2)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait(2)


def until(holds: Callable[[], object], seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Net]:
    """With the program as it is shipped."""
    yield from _net(tmp_path, PROGRAM)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    """With the shipped program, much faster."""
    text = PROGRAM.read_text()
    for name, value in (("POLL_SECONDS", 0.05), ("ANSWER_SECONDS", 0.2), ("SILENT_SECONDS", 0.7)):
        text, count = re.subn(rf"^{name} = [0-9.]+$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "group.py").write_text(text)
    yield from _net(tmp_path, tmp_path / "group.py")


def _net(folder: Path, program: Path) -> Iterator[Net]:
    systemctl = folder / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >> {folder}/systemctl.log\n')
    systemctl.chmod(0o755)
    made = Net(folder, program, free_port())
    yield made
    made.end()


def free_port() -> int:
    """One that is free on all three addresses, below those that the kernel gives to connections."""
    start = 20000 + os.getpid() % 10000
    return next(p for p in range(start, 32000) if all(_is_free(f"127.0.0.{i}", p) for i in (1, 2, 3)))


def _is_free(address: str, port: int) -> bool:
    try:
        with socket.create_server((address, port)):
            return True
    except OSError:
        return False


class Pretender:
    """Another host's program, as far as others see it: it proposes to start with all that are there."""

    def __init__(self, net: Net, name: str, address: str, starts: bool) -> None:
        self.net, self.name, self.starts = net, name, starts
        self.listener = socket.create_server((address, net.port))
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(LIMIT)  # none is left where pyinfra replaces threads by its own
        self.listener.close()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", self.net.port)) as to_a:
                    theirs = json.loads(to_a.makefile().readline())
                tokens = sorted([theirs["token"], "token-b", "token-c"])
                epoch = hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:12]
                mine = {"member": self.name, "settings": theirs["settings"], "token": f"token-{self.name}"}
                mine |= {"proposal": epoch, "epoch": epoch if self.starts else "", "dead": False}
                connection.sendall(json.dumps(mine).encode() + b"\n")


def engine_of(member: Member) -> int:
    """The process that it started."""
    found = Path(f"/proc/{member.process.pid}/task").glob("*/children")
    (child,) = (int(pid) for path in found for pid in path.read_text().split())
    return child


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be asked for its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- meeting


def test_nobody_starts_before_all_are_there(net: Net) -> None:
    a, b = net.start("a", "sleep", "30"), net.start("b", "sleep", "30")
    until(lambda: all("group: waiting for c: its unit does not run" in m.said() for m in (a, b)))
    time.sleep(0.3)
    assert (a.engine(), b.engine()) == (None, None)
    c = net.start("c", "sleep", "30")
    until(lambda: a.engine() and b.engine() and c.engine())
    assert a.engine() == b.engine() == c.engine()
    assert [m.state()[::2] for m in (a, b, c)] == [["running", a.engine()]] * 3


def test_a_host_is_told_what_its_member_waits_for_and_since_when(net: Net) -> None:
    begin = int(time.time())
    a = net.start("a", "sleep", "30")
    until(lambda: a.state()[2] == "b: its unit does not run; c: its unit does not run")
    assert a.state()[0] == "waiting"
    assert begin <= int(a.state()[1]) <= time.time()
    net.start("b", "sleep", "30")
    until(lambda: a.state()[2] == "c: its unit does not run")


def test_members_with_other_settings_are_waited_for(net: Net) -> None:
    a, b = net.start("a", "sleep", "30"), net.start("b", "sleep", "30")
    c = net.start("c", "sleep", "30", settings="ba9876543210")
    until(lambda: all("group: waiting for c has other settings" in m.said() for m in (a, b)))
    until(lambda: "group: waiting for a has other settings; b has other settings" in c.said())
    time.sleep(0.3)
    assert [m.engine() for m in (a, b, c)] == [None, None, None]
    c.process.terminate()
    assert c.ends() == 0
    c = net.start("c", "sleep", "30")
    until(lambda: a.engine() and b.engine() and c.engine())
    assert a.engine() == b.engine() == c.engine()


def test_a_member_that_stops_late_has_not_been_away_all_the_time(net: Net) -> None:
    """A run gives up on a member whose unit does not run for a minute; stopping may take longer than that."""
    a = net.start("a", "sleep", "30")
    others = [net.start(name, "sleep", "30", settings="ba9876543210") for name in ("b", "c")]
    until(lambda: a.state()[2] == "b has other settings; c has other settings")
    begin = int(a.state()[1])
    time.sleep(2.1)
    others[1].process.terminate()
    until(lambda: a.state()[2] == "b has other settings; c: its unit does not run")
    assert int(a.state()[1]) >= begin + 2


@pytest.mark.parametrize("order", ["abc", "cba"])
def test_where_one_sees_only_one_of_two_others_nobody_starts(net: Net, order: str) -> None:
    """b does not reach c; a and c reach all."""
    for name in order:
        net.start(name, "sleep", "30", cut_from="c" if name == "b" else "")
    a, b, c = (net.members[name] for name in NAMES)
    until(lambda: all(m.state()[2] == "b does not see all yet" for m in (a, c)))
    until(lambda: b.state()[2] == "c: its unit does not run")
    time.sleep(0.5)
    assert [m.engine() for m in (a, b, c)] == [None, None, None]
    assert [m.process.poll() for m in (a, b, c)] == [None, None, None]
    b.process.terminate()
    assert b.ends() == 0
    b = net.start("b", "sleep", "30")  # the cable is in again
    until(lambda: a.engine() and b.engine() and c.engine())
    assert a.engine() == b.engine() == c.engine()


def test_a_member_that_meets_and_never_starts_is_lost(net: Net) -> None:
    """It announced the same proposal, and then lost sight of another before it could start."""
    with Pretender(net, "b", "127.0.0.2", starts=False), Pretender(net, "c", "127.0.0.3", starts=True):
        a = net.start("a", "sleep", "30")
        until(a.engine)
        begin = time.monotonic()
        assert a.ends() == 75
    assert time.monotonic() - begin > 0.6
    assert a.said()[-1] == "group: b has not started: ending the engine, to start again with all"
    assert a.deaths() == []


def test_one_that_is_told_to_stop_while_it_waits_ends_well_and_starts_nothing(net: Net) -> None:
    a = net.start("a", "touch", str(net.folder / "started"))
    until(a.said)
    a.process.terminate()
    assert a.ends() == 0
    assert not (net.folder / "started").exists()
    assert a.said() == ["group: waiting for b: its unit does not run; c: its unit does not run"]


def test_a_busy_port_is_one_line(net: Net) -> None:
    with socket.create_server(("127.0.0.1", net.port)):
        a = net.start("a", "sleep", "30")
        assert a.ends() == 1
    assert a.said() == [f"group: cannot listen on 127.0.0.1 port {net.port}: [Errno 98] Address already in use"]


GOOD = {"member": "b", "settings": "", "token": "t", "proposal": "", "epoch": "", "dead": False}
GARBAGE = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "list": b"[]\n",
    "number": b"7\n",
    "nothing": b"",
    "newline": b"\n",
    "no-text": b"\xff\n",
    "zeros": b"\0" * 5000,
    "deep": b"[" * 100_000,
    "deep-in-member": b'{"member": ' + b"[" * 100_000,
    "long": b"x" * 1_000_000,
    "long-number": b"9" * 4095 + b"\n",
    "half": b'{"member": "b", "token": "t"',
    "other-member": json.dumps({**GOOD, "member": "x"}).encode() + b"\n",
    "no-token": b'{"member": "b"}\n',
    **{
        f"{key}-is-{type(value).__name__}": json.dumps({**GOOD, key: value}).encode() + b"\n"
        for key in ("settings", "token", "proposal", "epoch", "member")
        for value in (7, None, ["t"], {})
    },
    **{f"without-{key}": json.dumps({k: v for k, v in GOOD.items() if k != key}).encode() for key in list(GOOD)[:5]},
}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The shipped program, less patient."""
    spec = importlib.util.spec_from_file_location("group", PROGRAM)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.__dict__["ANSWER_SECONDS"] = 0.3
    return made


def answers(program: ModuleType, answer: Callable[[socket.socket], object]) -> Any:
    """What the program makes of a peer that answers so; in good time whatever it does."""
    with socket.create_server(("127.0.0.2", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            with connection, contextlib.suppress(OSError):
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        begin = time.monotonic()
        found = program.ask(("b", "127.0.0.2", other.getsockname()[1]))
        assert time.monotonic() - begin < 1.5
        thread.join(LIMIT)
    return found


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_no_answer_of_a_member(program: ModuleType, answer: bytes) -> None:
    assert answers(program, lambda c: c.sendall(answer)) in ("refused", "silent")


def test_a_members_own_answer_is_one_also_in_parts(program: ModuleType) -> None:
    text = json.dumps(GOOD).encode() + b"\n"
    assert answers(program, lambda c: [c.sendall(text[n : n + 9]) for n in range(0, len(text), 9)]) == GOOD


@pytest.mark.parametrize("drop", [b" ", b'{"a":', b"[", b"\0"])
def test_one_that_drips_is_silent_in_time(program: ModuleType, drop: bytes) -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(100):
            connection.sendall(drop)
            time.sleep(0.05)

    assert answers(program, drip) == "silent"


def test_one_that_says_nothing_is_silent_in_time(program: ModuleType) -> None:
    assert answers(program, lambda connection: connection.recv(1)) == "silent"


def test_where_nobody_listens_a_member_is_refused(program: ModuleType) -> None:
    assert program.ask(("b", "127.0.0.2", 1)) == "refused"


@pytest.mark.parametrize("answer", [GARBAGE["http"], GARBAGE["deep"], GARBAGE["without-token"], b""])
def test_whoever_else_listens_there_is_no_member(net: Net, answer: bytes) -> None:
    with socket.create_server(("127.0.0.2", net.port)) as other:
        other.settimeout(LIMIT)
        a = net.start("a", "sleep", "30")
        connection, _ = other.accept()
        connection.sendall(answer)
        connection.close()
        until(a.said)
    assert a.engine() is None
    assert re.match(r"group: waiting for b: (its unit does not run|127\.0\.0\.2 does not answer); c", a.said()[0])


# ---- one ends


def test_when_an_engine_dies_the_others_end_theirs_and_all_meet_again(real: Net) -> None:
    """With the program as it is shipped: its own polls and tries."""
    a, b, c = real.start_all("sh", "-c", f"sleep 60 & echo $! >> {real.folder}/pids; wait")
    first = a.engine()
    assert first == b.engine() == c.engine()
    until(lambda: len((real.folder / "pids").read_text().splitlines()) == 3)
    sleeps = [int(pid) for pid in (real.folder / "pids").read_text().split()]
    os.kill(engine_of(b), signal.SIGKILL)
    assert b.ends() == 137
    assert b.said()[-1] == "group: the engine ended with 137"
    again = real.start("b", "sleep", "30")  # systemd's, most often sooner than the others could notice
    assert (a.ends(), c.ends()) == (75, 75)
    ended = r"group: (b has started anew|the engine of b has ended): ending the engine, to start again with all"
    assert re.fullmatch(ended, a.said()[-1])
    assert sorted(real.asked_of_systemd()) == [f"reset-failed vllm-{name}.service" for name in NAMES]
    assert len([pid for pid in sleeps if alive(pid)]) <= 1  # what was left where the engine itself was killed
    for pid in sleeps:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    others = [real.start(name, "sleep", "30") for name in ("a", "c")]
    until(lambda: all(m.engine() for m in (again, *others)))
    epochs = {m.engine() for m in (again, *others)}
    assert len(epochs) == 1
    assert epochs != {first}


@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [
        ("exit 3", 3, "the engine ended with 3"),
        ("exit 0", 0, "the engine ended with 0"),
        ("kill -TERM $$", 143, "the engine ended with 143"),
    ],
)
def test_the_one_whose_engine_ended_passes_its_code_on(net: Net, engine: str, code: int, said: str) -> None:
    a = net.start("a", "sh", "-c", f"until [ -e {net.folder}/go ]; do sleep 0.02; done; {engine}")
    b, c = (net.start(name, "sleep", "30") for name in ("b", "c"))
    until(lambda: a.engine() and b.engine() and c.engine())
    (net.folder / "go").touch()
    assert a.ends() == code
    assert a.said()[-1] == f"group: {said}"
    assert (b.ends(), c.ends()) == (75, 75)
    for member in (b, c):
        assert re.search(r"\b(a is gone|the engine of a has ended)\b.*: ending the engine, to", member.said()[-1])
    assert sorted(net.asked_of_systemd()) == [f"reset-failed vllm-{name}.service" for name in NAMES]
    assert [len(m.deaths()) for m in (a, b, c)] == [1, 0, 0]


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@pytest.mark.parametrize(
    ("before", "code", "count"),
    [
        ([-40, -30, -20], 3, 4),
        ([-40, -30, -20, -10], 78, 5),
        ([-7100, -7000, -6900, -10], 78, 5),
        ([-9000, -7300, -30, -20, -10], 3, 4),  # two hours are past
    ],
    ids=["fourth", "fifth", "over-two-hours", "forgotten"],
)
def test_the_fifth_death_within_two_hours_is_the_last(net: Net, before: list[int], code: int, count: int) -> None:
    (net.folder / "run-a").mkdir()
    now = boot_time()
    (net.folder / "run-a/deaths").write_text(f"{SETTINGS}\n" + " ".join(str(now + seconds) for seconds in before))
    a = net.start("a", "sh", "-c", f"until [ -e {net.folder}/go ]; do sleep 0.02; done; exit 3")
    b, c = (net.start(name, "sleep", "30") for name in ("b", "c"))
    until(lambda: a.engine() and b.engine() and c.engine())
    (net.folder / "go").touch()
    assert a.ends() == code
    last = ["group: that was the 5th time within two hours: staying down"] if code == 78 else []
    said = a.said()
    assert said[said.index("group: the engine ended with 3") :] == ["group: the engine ended with 3", *last]
    assert len(a.deaths()) == count
    assert abs(a.deaths()[-1] - boot_time()) < LIMIT
    assert (b.ends(), c.ends()) == (75, 75)
    assert (b.deaths(), c.deaths()) == ([], [])


def test_a_count_that_cannot_be_read_begins_anew(net: Net) -> None:
    (net.folder / "run-a").mkdir()
    (net.folder / "run-a/deaths").write_text(f"{SETTINGS}\n1 2 3 4 many")
    a, _, _ = net.start_all("sleep", "30")
    os.kill(engine_of(a), signal.SIGKILL)
    assert a.ends() == 137
    assert len(a.deaths()) == 1


def test_deaths_under_other_settings_do_not_count(net: Net) -> None:
    (net.folder / "run-a").mkdir()
    (net.folder / "run-a/deaths").write_text("other\n" + " ".join([str(boot_time())] * 4))
    a, b, _ = net.start_all("sleep", "30")
    assert "died" not in b.state()[2], "systemd may start a new release before the run that brought it does"
    os.kill(engine_of(a), signal.SIGKILL)
    assert a.ends() == 137
    assert len(a.deaths()) == 1


def test_deaths_are_counted_from_start_to_start(net: Net) -> None:
    for count, code in ((1, 137), (2, 137), (3, 137)):
        a, b, c = net.start_all("sleep", "30")
        os.kill(engine_of(a), signal.SIGKILL)
        assert (a.ends(), b.ends(), c.ends()) == (code, 75, 75)
        assert [len(m.deaths()) for m in (a, b, c)] == [count, 0, 0]


def test_an_engine_that_ends_after_anothers_is_not_counted(net: Net) -> None:
    """Ranks die of their head's death before their member has noticed it: b polls slowly."""
    patient = net.folder / "patient.py"
    patient.write_text(net.program.read_text().replace("\nSILENT_SECONDS = 0.7\n", "\nSILENT_SECONDS = 15.0\n"))
    a, c = (net.start(name, "sleep", "30", program=patient) for name in ("a", "c"))
    b = net.start("b", "sleep", "30", program=PROGRAM)
    until(lambda: a.engine() and b.engine() and c.engine())
    engine = engine_of(b)
    os.kill(engine_of(a), signal.SIGKILL)
    assert a.ends() == 137
    os.kill(engine, signal.SIGKILL)
    assert b.ends() == 75
    assert b.said()[-1] == "group: the engine ended with 137 after another member had: starting again with all"
    assert [len(m.deaths()) for m in (a, b)] == [1, 0]
    assert "reset-failed vllm-b.service" in net.asked_of_systemd()


def test_an_engine_that_ignores_the_signal_is_ended_with_all_it_started(net: Net) -> None:
    stubborn = (
        f"trap '' TERM; (trap '' TERM; echo grand >> {net.folder}/up; while :; do sleep 0.1; done) & "
        f"echo $! $$ >> {net.folder}/pids; while :; do sleep 0.1; done"
    )
    a = net.start("a", "sh", "-c", stubborn)
    b, c = (
        net.start("b", "sh", "-c", f"until [ -e {net.folder}/go ]; do sleep 0.02; done; exit 1"),
        net.start("c", "sleep", "30"),
    )
    until(lambda: (net.folder / "up").exists() and (net.folder / "pids").exists())
    pids = [int(pid) for pid in (net.folder / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    until(lambda: b.engine() and c.engine())
    (net.folder / "go").touch()
    assert (b.ends(), c.ends(), a.ends()) == (1, 75, 75)
    until(lambda: not any(alive(pid) for pid in pids), 1)


def test_what_an_engine_leaves_behind_is_ended_too(net: Net) -> None:
    """It ends itself at the signal; its worker does not."""
    leaving = f"(trap '' TERM; while :; do sleep 0.1; done) & echo $! > {net.folder}/worker; trap 'exit 0' TERM; wait"
    a = net.start("a", "sh", "-c", leaving)
    b, c = (net.start(name, "sleep", "30") for name in ("b", "c"))
    until(lambda: (net.folder / "worker").exists() and b.engine() and c.engine())
    os.kill(engine_of(b), signal.SIGKILL)
    assert a.ends() == 75
    until(lambda: not alive(int((net.folder / "worker").read_text())), 1)


def test_a_member_that_starts_anew_at_once_is_noticed(net: Net) -> None:
    a, b, c = net.start_all("sleep", "30")
    b.process.kill()
    b.process.wait(LIMIT)
    net.start("b", "sleep", "30")
    assert (a.ends(), c.ends()) == (75, 75)
    assert re.fullmatch(r"group: b (has started anew|is gone): ending .*", a.said()[-1])  # gone, where it took long


def test_a_member_that_vanishes_without_a_word_is_told_after_a_while(net: Net) -> None:
    a, b, c = net.start_all("sleep", "30")
    b.process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    assert (a.ends(), c.ends()) == (75, 75)
    assert time.monotonic() - begin > 0.6
    for member in (a, c):
        assert "b has not answered for 0 s" in member.said()[-1]


def test_a_member_that_is_silent_for_a_moment_is_waited_for(net: Net) -> None:
    a, b, c = net.start_all("sleep", "30")
    b.process.send_signal(signal.SIGSTOP)
    time.sleep(0.4)
    b.process.send_signal(signal.SIGCONT)
    time.sleep(0.6)
    assert [m.process.poll() for m in (a, b, c)] == [None, None, None]


# ---- a stop


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ("trap 'echo drained; exit 7' TERM; echo up; while :; do sleep 0.05; done", 7),
        ("trap 'echo drained; exit 0' TERM; echo up; while :; do sleep 0.05; done", 0),
        ("echo up; exec sleep 30", 143),
    ],
    ids=["own-code", "clean", "killed"],
)
def test_a_stop_reaches_the_engine_and_its_code_is_passed_on(net: Net, engine: str, code: int) -> None:
    a = net.start("a", "sh", "-c", engine)
    net.start("b", "sleep", "30")
    net.start("c", "sleep", "30")
    until(lambda: "up" in a.said())
    a.process.terminate()
    assert a.ends() == code
    assert ("drained" in a.said()) is (code != 143)
    assert "reset-failed vllm-a.service" not in net.asked_of_systemd()


# ---- whichever Python a host has


@pytest.mark.parametrize("python", PYTHONS)
def test_any_python_of_this_machine_runs_it(net: Net, python: str) -> None:
    a, b, c = (net.start(name, "sh", "-c", "sleep 0.2; exit 4", python=python) for name in NAMES)
    assert {m.ends() for m in (a, b, c)} <= {4, 75}
    assert {m.engine() for m in (a, b, c)} == {a.engine()}
    assert a.engine()


@pytest.mark.parametrize("program", ["files/group/group.py", "files/proxy/door.py"])
def test_an_old_python_reads_it_and_it_needs_nothing_besides(program: str) -> None:
    tree = ast.parse((ROOT / program).read_text(), feature_version=(3, 7))
    imported = {alias.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    imported |= {str(n.module).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
