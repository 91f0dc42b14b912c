"""Carrying out one step on a host: bring its files, run it once and bounded, read what it said."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from paramiko import SSHException
from pyinfra.api.command import StringCommand

from fleet.findings import Finding, error
from fleet.prepare import common, reboots
from fleet.prepare.common import Outcome, Source, Step, Work
from tasks import edge, transport

# Says findings; what stops the host comes back.
Say = Callable[..., list[Finding]]
LOCK = "/run/lock/vllm-fleet-prepare"
LOCKED = 75
STILL_SECONDS = 20.0

_sums: dict[Path, str] = {}


def take(its: Work, step: Step, say: Say) -> bool:
    """Bring what the step needs, run it, read what it said."""
    for source in step.sources:
        if source.upload and not _bring(its, source, say):
            return False
    if edge.changes_are_detected():
        edge.tell(step.name)
    with still(step.name):
        done, lines, locked = run(step.script, step.seconds, step.stdin)
    if locked:
        what, mend = "another run prepares this host", "wait until it has ended, and run again"
        say(error("PREPARE-LOCKED", its.name, what, mend))
        return False
    if step.read:
        outcome = step.read(done, lines)
    else:
        outcome = Outcome() if done else Outcome((common.failed(its.name, step, lines),))
    if outcome.reboot:
        run(reboots.note(outcome.reboot), 30, None)
    if say(*outcome.findings):
        return False
    return not step.confirm or _confirmed(its, step, say)


def run(script: str, seconds: int, stdin: str | None) -> tuple[bool, list[str], bool]:
    """Run a script as root: whether it ended well, its lines, whether another run held the host."""
    inner = (
        f"exec 9>{LOCK}; flock -w 5 9 || exit {LOCKED}; timeout -k 30 {seconds} sh -c {shlex.quote(script)} 2>&1 9>&-"
    )
    inner += f"; rc=$?; test $rc -ne 124 || echo 'it was ended after {seconds} s'; exit $rc"
    text = f'( {inner} ){" </dev/null" * (stdin is None)}; echo "@@ ended $?"'
    wrapped = f"sh -c {shlex.quote(text)}"
    _, output, faults = edge.run_here(StringCommand(wrapped), stdin=stdin)
    ended = next((line for line in reversed(output) if line.startswith("@@ ended ")), "")
    lines = [line for line in [*output, *faults] if not line.startswith("@@ ended ")]
    return ended == "@@ ended 0", lines, ended == f"@@ ended {LOCKED}"


@contextmanager
def still(name: str) -> Iterator[None]:
    """Say now and then that a long step goes on."""
    started, prefix, ended = time.monotonic(), edge.current_host().print_prefix, threading.Event()

    def say() -> None:
        while not ended.wait(STILL_SECONDS):
            click.echo(f"{prefix}{name}: {time.monotonic() - started:.0f} s", err=True)

    threading.Thread(target=say, daemon=True).start()  # pyinfra makes it a greenlet
    try:
        yield
    finally:
        ended.set()


def _bring(its: Work, source: Source, say: Say) -> bool:
    """Upload a file, prove it, and put it in its place; what is right there already is not sent again."""
    assert source.upload
    wanted = source.sha256 or _sum_of(source.upload)
    if _sum_of(source.upload) != wanted:
        what = f"{source.upload} is not what its checksum says"
        say(error("PREPARE-UPLOAD", its.name, what, "copy it again from where it came"))
        return False
    check = f"echo '{wanted}  {source.path}' | sha256sum -c --status -"
    if run(check, 600, None)[0]:
        return True
    began = shown = time.monotonic()
    size = max(source.size, 1)

    def tell(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > 5:
            shown, rate = now, done / (now - began)
            left = (size - done) / max(rate, 1)
            edge.tell(f"{source.name}: {100 * done // size} %, {rate / 1e6:.0f} MB/s, {left:.0f} s left")

    try:
        there = transport.upload(edge.current_host(), source.upload, f"{wanted[:16]}-{source.name}", tell)
    except (OSError, SSHException, EOFError) as exc:
        what = f"{source.name} could not be brought there: {str(exc) or type(exc).__name__}"
        say(error("PREPARE-UPLOAD", its.name, what, "free some space in /var/tmp, or mend the connection; run again"))
        return False
    folder, at = shlex.quote(source.path.rpartition("/")[0]), shlex.quote(source.path)
    place = (
        f"mkdir -p {folder} && mv -f {shlex.quote(there)} {at}.part && "
        f"chown root:root {at}.part && chmod 644 {at}.part "
        f"&& {{ echo '{wanted}  {source.path}.part' | sha256sum -c --status - || "
        f"{{ rm -f {at}.part; echo 'it arrived damaged'; exit 3; }}; }} && mv -f {at}.part {at}"
    )
    done, lines, _ = run(place, 900, None)
    if not done:
        what = f"{source.name} could not be put in its place: {lines[-1] if lines else 'no reason given'}"
        say(error("PREPARE-UPLOAD", its.name, what, "free some space in /var, and run again"))
    return done


def _sum_of(path: Path) -> str:
    if path not in _sums:
        _sums[path] = transport.sum_of(path)
    return _sums[path]


def _confirmed(its: Work, step: Step, say: Say) -> bool:
    """Over a new connection: the change has not cut the host off."""
    why = edge.reconnect(20)
    if not why:
        done, lines, _ = run(step.confirm, 60, None)
        why = "" if done else (lines or ["no reason given"])[-1]
    if why:
        what = f"{step.name}: it could not be confirmed over a new connection"
        mend = "the host takes it back by itself within a minute; see what it would have closed"
        edge.reconnect(90)
        say(error("PREPARE-CONFIRM", its.name, what, mend, why))
    return not why
