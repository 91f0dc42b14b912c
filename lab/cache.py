"""The lab's cache: everything slow is made once, atomically, under one directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.mounts import remove_tree
from lab.processes import kill_all, processes_of

LOCK_WAIT_S = 1800.0


def cache_dir() -> Path:
    """$VLLM_FLEET_CACHE, or ~/.cache/vllm-fleet. Not created here."""
    named = os.environ.get("VLLM_FLEET_CACHE")
    return Path(named).absolute() if named else Path.home() / ".cache" / "vllm-fleet"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, made by `build(temporary directory)` and renamed into place if it is not there yet.

    A crashed run leaves only NAME.tmp-PID, which the next run finds and removes. A file lock lets one run build
    while the others wait for it (30 minutes at most).
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent / f".{target.name}.lock"):
        if target.exists():
            return target
        remove_leftovers(target)
        temporary = target.parent / f"{target.name}.tmp-{os.getpid()}"
        try:
            build(temporary)
            temporary.rename(target)
        except BaseException:
            discard(temporary)
            raise
    return target


def remove_leftovers(target: Path) -> None:
    """Remove half-made copies of `target`. Call it with the lock held: then no living run owns one."""
    for leftover in target.parent.glob(f"{target.name}.tmp-*"):
        discard(leftover)


def discard(path: Path) -> None:
    """End what still works in the directory (children of a run that was killed), then delete it with its mounts."""
    kill_all(processes_of(path), path)
    remove_tree(path)


@contextmanager
def lock(path: Path, wait_s: float = LOCK_WAIT_S, what: str = "the lab's cache") -> Iterator[None]:
    """Hold an exclusive file lock; the kernel drops it when the process dies.

    Raises LabError when another run still holds it after `wait_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        deadline = time.monotonic() + wait_s
        while not try_lock(handle.fileno()):
            if time.monotonic() > deadline:
                raise LabError(
                    f"another run (process {holder(path)}) still works on {what} ({path}); wait for it or end it"
                )
            time.sleep(0.1)
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def try_lock(descriptor: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: Path) -> str:
    """The process that wrote its number into the lock file."""
    return path.read_text().strip() or "unknown"


def need_disk(path: Path, gigabytes: float, what: str) -> None:
    """Raise LabError when the file system of `path` has less than `gigabytes` (10^9 bytes) free."""
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free / 1e9
    if free < gigabytes:
        raise LabError(
            f"{what} needs {gigabytes:.1f} GB in {path}, which has {free:.1f} GB free; "
            "make room or point VLLM_FLEET_CACHE elsewhere"
        )
