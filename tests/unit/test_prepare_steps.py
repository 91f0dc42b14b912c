"""How a step is run on a host: heard to its end, alone, and to its end also where nobody hears it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.prepare.common import Source, Step
from tasks import edge, steps, transport


def locally(command: Any, *, stdin: str | None = None, **_: object) -> tuple[bool, list[str], list[str]]:
    """In place of a host."""
    done = subprocess.run(["sh", "-c", str(command)], input=stdin or "", text=True, capture_output=True, timeout=30)
    return done.returncode == 0, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(edge, "run_here", locally)
    monkeypatch.setattr(edge, "current_host", lambda: SimpleNamespace(name="a", print_prefix=""))
    monkeypatch.setattr(steps, "LOCK", str(tmp_path / "lock"))
    steps.seen.clear()
    yield


def test_both_streams_the_end_and_the_input_are_heard() -> None:
    ran = steps.run("cat; echo two >&2; exit 3", 10, "one\n")
    assert (ran.done, ran.lines, ran.locked, ran.lost) == (False, ["one", "two"], False, False)
    assert steps.run("true", 10).done


def test_a_step_that_takes_too_long_is_ended_and_said_so() -> None:
    ran = steps.run("sleep 20", 1)
    assert (ran.done, ran.lines) == (False, ["it was ended after 1 s"])


def test_a_script_of_whatever_end_is_no_lock_of_another_run() -> None:
    assert not steps.run("exit 75", 10).locked


def test_what_another_run_did_since_the_host_was_looked_at_stops_this_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("other ended\n")
    assert steps.run("touch " + str(tmp_path / "done"), 10).locked
    assert not (tmp_path / "done").exists()
    steps.seen["a"] = "other ended"  # looked at again
    assert steps.run("true", 10).done
    assert steps.run("true", 10).done, "what this run did itself does not stop it"
    assert (tmp_path / "lock").read_text() == f"{transport.ME} ended\n"


def test_what_a_step_writes_is_for_all_to_read(tmp_path: Path) -> None:
    """Root's umask is 077 on some systems."""
    before = os.umask(0o077)
    try:
        steps.run(f"mkdir {tmp_path}/folder; touch {tmp_path}/file", 10)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("folder", "file")] == [0o755, 0o644]


def test_a_script_that_is_too_long_for_a_command_is_said_so_and_not_sent(tmp_path: Path) -> None:
    ran = steps.run(f"touch {tmp_path}/done; : '{'x' * steps.LONGEST}'", 10)
    assert (ran.done, ran.lost, ran.locked, (tmp_path / "done").exists()) == (False, False, False, False)
    assert "as a command" in ran.lines[-1]
    # What is just short enough is taken by Linux, with sudo and the login's shell around it.
    most = steps.LONGEST - 5000
    ran = steps.run(f": {'x' * most}; echo yes", 10)
    assert ran.lines == ["yes"]


def test_a_file_is_put_in_its_place_with_the_label_of_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From /var/tmp it comes with user_tmp_t, which services may not read."""
    said: list[str] = []
    upload = tmp_path / "a.run"
    upload.write_text("12345")
    (tmp_path / "came").write_text("12345")
    monkeypatch.setattr(steps, "_sent", lambda *_: str(tmp_path / "came"))
    monkeypatch.setattr(steps, "_full", lambda *_: "")
    (tmp_path / "bin").mkdir()
    for name in ("restorecon", "chown"):
        tool = tmp_path / "bin" / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\ntest {name} = chown\n')
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    its: Any = SimpleNamespace(name="a")
    path = f"{tmp_path}/there/a.run"
    assert steps._bring(its, Source(path, "a.run", upload, 5), lambda *f: said.append(str(f)) or [])
    assert Path(path).read_text() == "12345"
    assert (said, (tmp_path / "calls").read_text().splitlines()[-1]) == ([], f"restorecon -F {path}")


def test_a_file_that_went_away_here_is_told_and_nothing_is_run(tmp_path: Path) -> None:
    said: list[str] = []
    its: Any = SimpleNamespace(name="a")
    source = Source(f"{tmp_path}/there", "a.run", tmp_path / "a.run", 5, "0" * 64)
    step = Step("a", f"touch {tmp_path}/ran", sources=(source,))
    assert not steps.take(its, step, lambda *found: [said.append(f.line()) for f in found])
    assert said == [
        f"error: {tmp_path}/a.run: cannot read: no such file or directory; mend its rights, or run as who may read it "
        "[BUNDLE-READ]"
    ]
    assert not (tmp_path / "ran").exists()


def test_what_only_asks_needs_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("other begun\n")
    assert steps.run("true", 10, claims=False).done
    assert (tmp_path / "lock").read_text() == "other begun\n"


def test_a_lost_connection_is_known_by_the_missing_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "run_here", lambda *_, **__: (False, ["half"], []))
    ran = steps.run("true", 10)
    assert (ran.done, ran.lines, ran.lost) == (False, ["half"], True)


def test_a_step_goes_on_where_nobody_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a control machine that is gone: what writes into nothing would be ended half way."""
    commands: list[str] = []

    def keep(command: Any, **_: object) -> tuple[bool, list[str], list[str]]:
        commands.append(str(command))
        return True, ["@@ ended 0"], []

    monkeypatch.setattr(edge, "run_here", keep)
    end = tmp_path / "end"
    steps.run(f"for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done; echo yes >{end}", 10)
    child = subprocess.Popen(["sh", "-c", commands[0]], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert child.stdout
    child.stdout.readline()
    child.stdout.close()
    deadline = time.monotonic() + 10
    while not end.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.wait(10)
    assert end.read_text() == "yes\n"
    assert (tmp_path / "lock").read_text() == f"{transport.ME} ended\n"


@pytest.mark.parametrize(
    ("free_uploads", "free_kept", "there", "full"),
    [(500, 5000, 0, "/tmpdisk"), (500, 5000, 600, ""), (5000, 500, 0, "/var"), (5000, 5000, 0, "")],
)
def test_a_disk_that_has_no_room_is_named(free_uploads: int, free_kept: int, there: int, full: str) -> None:
    lines = [
        f"has {there * 1024}",
        f"room tmpfs 9999 1 {free_uploads} 1% /tmpdisk",
        f"room sda 9999 1 {free_kept} 1% /var",
    ]
    assert steps._full(lines, 1000 * 1024) == full
