"""Finding and ending processes that belong to a directory of ours.

A process is ours when its command line names the directory, or when its root directory lies in it (a program that
ran under chroot). Nothing is ever ended by name.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from lab.errors import LabError

PROC = Path("/proc")


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty when it is gone or a kernel thread."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").rstrip("\0").split("\0") if raw else []


def is_within(path: str, directory: Path) -> bool:
    """Whether an argument or path is the directory itself or lies below it."""
    text = str(directory)
    return path == text or path.startswith(text + "/")


def belongs_to(pid: int, directory: Path) -> bool:
    """Whether the process names the directory in its arguments or has its root directory inside."""
    values = [argument.partition("=")[2] if "=" in argument else argument for argument in command_line(pid)]
    if any(is_within(value, directory) for value in values):
        return True
    try:
        root = str((PROC / str(pid) / "root").readlink())
    except OSError:
        return False
    return is_within(root, directory)


def processes_of(directory: Path, program: str = "") -> list[int]:
    """All processes, other than this one and its ancestors, that belong to the directory.

    With `program` only those that run it: a person's pager on a file in there is none of our business.
    """
    mine = ancestors()
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    found = [pid for pid in pids if pid not in mine and belongs_to(pid, directory)]
    return sorted(pid for pid in found if not program or runs(pid, program))


def runs(pid: int, program: str) -> bool:
    """Whether the process is the named program."""
    argv = command_line(pid)
    return bool(argv) and argv[0].rpartition("/")[2] == program


def ancestors() -> set[int]:
    """This process and everything above it: a shell that was given our path as an argument is not a leftover."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = parent(pid)
    return found


def parent(pid: int) -> int:
    """The parent of a process, 0 when it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    # The second field is the name in brackets and may hold spaces; the parent is the second field after it.
    return int(stat.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its parent to notice counts as gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def kill_all(pids: Iterable[int], directory: Path, timeout: float = 15.0) -> None:
    """Send SIGKILL to those of the processes that still belong to the directory and wait until they are gone.

    The check is repeated just before the signal, because a number may have been given to another process.
    Raises LabError when one is left after `timeout` seconds.
    """
    wanted = [pid for pid in pids if is_alive(pid) and belongs_to(pid, directory)]
    for pid in wanted:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_gone(wanted, timeout)


def wait_gone(pids: Iterable[int], timeout: float) -> None:
    """Wait until none of the processes is alive; LabError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    left = list(pids)
    while left:
        left = [pid for pid in left if not reap(pid) and is_alive(pid)]
        if left and time.monotonic() > deadline:
            raise LabError(
                f"process {left[0]} of the lab is still there {timeout:.0f} s after SIGKILL; see /proc/{left[0]}/stack"
            )
        if left:
            time.sleep(0.02)


def reap(pid: int) -> bool:
    """Collect the process if it is a child of ours that has ended; true when it was."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
