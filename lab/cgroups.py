"""A cgroup of its own for each host.

systemd in a host takes the cgroup it finds itself in as its root. Hosts started from one shell would share that
root, see each other's services as processes without a number, and wait forever for them to stop.
"""

from __future__ import annotations

import time
from pathlib import Path

from lab.errors import LabError
from lab.mounts import TABLE, unescape

PARENT = "vllm-fleet"


def unified_root(table: str) -> Path | None:
    """Where the version 2 hierarchy is mounted; None on a machine without one."""
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(unescape(fields[1]))
    return None


def path_of(host: str) -> Path | None:
    """The host's cgroup, there or not; None without a version 2 hierarchy."""
    root = unified_root(TABLE.read_text())
    return root / PARENT / host if root else None


def make(host: str) -> Path | None:
    """Make the host's cgroup and return it; None when the machine has none to give."""
    path = path_of(host)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    return path


def kill(host: str, timeout: float = 15.0) -> None:
    """End everything in the host's cgroup and remove it. Raises LabError when something is left."""
    path = path_of(host)
    if path is None or not path.exists():
        return
    deadline = time.monotonic() + timeout
    while is_populated(path):
        if (path / "cgroup.kill").exists():
            (path / "cgroup.kill").write_text("1")
        if time.monotonic() > deadline:
            raise LabError(
                f"host {host}: processes are left in {path} after {timeout:.0f} s; see its cgroup.procs files"
            )
        time.sleep(0.02)
    remove(path)


def is_populated(path: Path) -> bool:
    """Whether a process lives in the cgroup or below it."""
    try:
        return "populated 1" in (path / "cgroup.events").read_text()
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Remove an empty cgroup with all below it, and the common parent with the last one."""
    for folder in sorted((entry for entry in path.rglob("*") if entry.is_dir()), reverse=True):
        folder.rmdir()
    path.rmdir()
    if not any(entry.is_dir() for entry in path.parent.iterdir()):
        path.parent.rmdir()
