"""Carrying out one step on a host: bring its files, run it once and bounded, read what it said."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from paramiko import SSHException
from pyinfra.api.command import StringCommand

from fleet import bundle
from fleet.findings import Finding, FleetError, error
from fleet.prepare import common, reboots
from fleet.prepare.common import Outcome, Source, Step, Work
from tasks import edge, transport

# Says findings; what stops the host comes back.
Say = Callable[..., list[Finding]]
LOCK = common.LOCK
STILL_SECONDS = 20.0
TRIES = 3
BACK_SECONDS = 120.0
# Linux takes 128 KiB as one argument; sudo and the login's shell have the command as one, and quote it once more.
LONGEST = 128 * 1024 - 1024

# By host: what stood in LOCK when it was looked at.
seen: dict[str, str] = {}
_sums: dict[Path, str] = {}


@dataclass(frozen=True)
class Ran:
    """What came of a script on the host."""

    done: bool  # it ended with 0
    lines: list[str]
    locked: bool = False  # another run is at work there, or was since the host was looked at
    lost: bool = False  # no word of its end: the connection, or the host, is gone


def take(its: Work, step: Step, say: Say) -> bool:
    """Bring what the step needs, run it, read what it said."""
    try:
        if not all(_bring(its, source, say) for source in step.sources if source.upload):
            return False
    except FleetError as exc:  # a file here that cannot be read
        say(*exc.findings)
        return False
    if edge.changes_are_detected():
        edge.tell(step.name)
    with still(step.name):
        ran = run(step.script, step.seconds, step.stdin)
    if ran.locked:
        say(locked(its.name))
        return False
    if ran.lost:
        what = f"{step.name}: the connection was lost before its end"
        say(error("PREPARE-LOST", its.name, what, "see that the host is up, and run again: it goes on from there"))
        return False
    if step.read:
        outcome = step.read(ran.done, ran.lines)
    else:
        outcome = Outcome() if ran.done else Outcome((common.failed(its.name, step, ran.lines),))
    if outcome.reboot:
        run(reboots.note(outcome.reboot), 30)
    if say(*outcome.findings):
        return False
    return not step.confirm or _confirmed(its, step, say)


def locked(name: str) -> Finding:
    """Another run is at work on the host."""
    what = "another run prepares this host, or what a cut run began there goes on"
    return error("PREPARE-LOCKED", name, what, "wait until it has ended, and run again")


def run(script: str, seconds: int, stdin: str | None = None, claims: bool = True) -> Ran:
    """Run a script as root to its end, also where nobody hears it any more: half an installation is worse.

    ``claims``: alone on the host, and only if no other run has changed anything since the host was looked at.
    """
    claim = ended = ""
    if claims:
        was = shlex.quote(seen.get(edge.current_host().name, ""))
        claim = (
            f"exec 9>>{LOCK}; flock -w 5 9 && was=$(cat {LOCK}) || {{ echo '@@ locked'; exit; }}\n"
            f"case $was in {transport.ME}*|{was}) ;; *) echo '@@ locked'; exit;; esac\n"
            f"echo {transport.ME} begun >{LOCK}\n"
        )
        ended = f"echo {transport.ME} ended >{LOCK}\n"
    # Root's own umask may be 077: what is installed and written is for all to read. Who writes a secret says so.
    text = (
        f"( {claim}umask 022\ntimeout -k 30 {seconds} sh -c {shlex.quote(script)} 2>&1 9>&-; rc=$?\n"
        f"test $rc -ne 124 || echo 'it was ended after {seconds} s'\n"
        f'{ended}echo "@@ ended $rc" ){" </dev/null" * (stdin is None)} 2>&1 | '
        # Goes on reading where the connection is gone, which would else end what writes.
        "{ if tee -p </dev/null >/dev/null 2>&1; then exec tee -p /dev/null; else exec cat; fi; }"
    )
    # As an argument it is there as a whole or not at all, which is not so with what comes over a stream.
    command = f"sh -c {shlex.quote(text)}"
    size = len(shlex.quote(command).encode())
    if size > LONGEST:
        return Ran(False, [f"its script has {size} bytes as a command, and {LONGEST} are the most; tell its authors"])
    _, output, faults = edge.run_here(StringCommand(command), stdin=stdin)
    end = next((line for line in reversed(output) if line.startswith(("@@ ended ", "@@ locked"))), "")
    lines = [line for line in [*output, *faults] if line != end]
    return Ran(end == "@@ ended 0", lines, end == "@@ locked", not end)


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
    name = f"{wanted[:16]}-{source.name}"
    ran = run(f"echo '{wanted}  {source.path}' | sha256sum -c --status - && exit 0\n{_room(name)}", 600, claims=False)
    if ran.done:
        return True
    if _sum_of(source.upload) != wanted:
        what = f"{source.upload} is not what its checksum says"
        say(error("PREPARE-UPLOAD", its.name, what, "copy it again from where it came"))
        return False
    if full := _full(ran.lines, source.size):
        what = f"{full} has no room for {source.name}, {source.size / 1e9:.2f} GB"
        say(error("PREPARE-UPLOAD", its.name, what, "free some space there, and run again"))
        return False
    there = _sent(its, source, name, say)
    if not there:
        return False
    folder, at, came = shlex.quote(source.path.rpartition("/")[0]), shlex.quote(source.path), shlex.quote(there)
    part = f"{at}.part"
    place = (
        f"mkdir -p {folder} && mv -f {came} {part} && chown root:root {part} && chmod 644 {part} || exit 1\n"
        f"echo '{wanted}  {source.path}.part' | sha256sum -c --status - || "
        f"{{ rm -f {part}; echo 'it arrived damaged'; exit 3; }}\n"
        f"sync -d {part} 2>/dev/null; mv -f {part} {at} || exit 1\n"
        # What is moved keeps the label of where it came from, which services of a host with SELinux may not read.
        f"( PATH=$PATH:/usr/sbin:/sbin; restorecon -F {at} ) 2>/dev/null || true"
    )
    ran = run(place, 1800)
    if ran.locked:
        say(locked(its.name))
    elif not ran.done:
        why = "the connection was lost" if ran.lost else ran.lines[-1] if ran.lines else "no reason given"
        what = f"{source.name} could not be put in its place: {why}"
        say(error("PREPARE-UPLOAD", its.name, what, "mend that, and run again"))
    return ran.done


def _room(name: str) -> str:
    """Shell text that tells how much room there is where a file passes, and what of it is there already."""
    return (
        f"stat -c 'has %s' {transport.UPLOADS}-*/{shlex.quote(name)} 2>/dev/null\n"
        f"k={common.KEPT}; test -d $k || k=/var/lib\n"
        f'for p in {transport.UPLOADS.rpartition("/")[0]} $k; do echo "room $(df -Pk $p | sed -n 2p)"; done; exit 1'
    )


def _full(lines: Sequence[str], size: int) -> str:
    """The mount point that has no room for a file of this size; empty where there is some."""
    words = [line.split() for line in lines]
    has = max((int(w[1]) for w in words if w[:1] == ["has"] and w[1].isdigit()), default=0)
    rooms = [(w[-1], int(w[4]) * 1024) for w in words if w[:1] == ["room"] and len(w) > 6 and w[4].isdigit()]
    uploads = rooms[0][0] if rooms else ""
    return next((at for at, free in rooms if free < size - has * (at == uploads)), "")


def _sent(its: Work, source: Source, name: str, say: Say) -> str:
    """Where the file lies on the host now, not yet proved; empty where it did not come, which was said.

    A connection that is lost on the way is made again, and what has come is kept.
    """
    assert source.upload
    began = shown = time.monotonic()
    size = max(source.size, 1)
    before: int | None = None

    def tell(done: int) -> None:
        nonlocal shown, before
        now = time.monotonic()
        before = done if before is None else before
        if now - shown > 5:
            shown, rate = now, (done - before) / (now - began)
            left = (size - done) / max(rate, 1)
            edge.tell(f"{source.name}: {100 * done // size} %, {rate / 1e6:.0f} MB/s, {left:.0f} s left")

    for attempt in range(1, TRIES + 1):
        try:
            return transport.upload(edge.current_host(), source.upload, name, tell)
        except transport.BusyError:
            say(locked(its.name))
            return ""
        except (OSError, SSHException, EOFError) as exc:
            why = str(exc) or "the connection was lost"
            if not transport.is_alive(edge.current_host()):
                why = "the connection was lost"
                if attempt < TRIES and not edge.reconnect(BACK_SECONDS):
                    edge.tell(f"{source.name}: the connection was lost; it goes on")
                    continue
            what, mend = f"{source.name} could not be brought there: {why}", "mend that, and run again: it goes on"
            say(error("PREPARE-UPLOAD", its.name, what, mend))
            return ""
    return ""


def _sum_of(path: Path) -> str:
    if path not in _sums:
        _sums[path] = bundle.digest(path, lambda _: time.sleep(0))  # others go on meanwhile
    return _sums[path]


def _confirmed(its: Work, step: Step, say: Say) -> bool:
    """Over a new connection: the change has not cut the host off."""
    why = edge.reconnect(20)
    if not why:
        ran = run(step.confirm, 60)
        why = "" if ran.done else (ran.lines or ["no reason given"])[-1]
    if why:
        what = f"{step.name}: it could not be confirmed over a new connection"
        mend = "the host takes it back by itself within a minute; see what it would have closed"
        edge.reconnect(90)
        say(error("PREPARE-CONFIRM", its.name, what, mend, why))
    return not why
