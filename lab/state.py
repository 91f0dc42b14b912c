"""What a lab knows about itself, on disk before and after each step, so that `down` can clean up after any death."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.errors import LabError

FORMAT = 1


@dataclass(frozen=True)
class HostState:
    """One host as last written down. `phase` is new, booting, up or off; `since` is Unix time in seconds."""

    name: str
    address: str
    phase: str = "new"
    pid: int = 0
    since: float = 0.0


@dataclass(frozen=True)
class LabState:
    """A whole lab as last written down. `access` is the folder of its key, known_hosts, ssh_config and inventory."""

    name: str
    subnet: str
    bridge: str
    access: str
    docker: bool = False
    mounts: dict[str, str] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=list)
    rootfs: str = ""
    hosts: list[HostState] = field(default_factory=list)

    def host(self, name: str) -> HostState:
        """The named host. Raises LabError with the names that exist."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts) or "none; run `fleet lab up`"
        raise LabError(f"lab {self.name} has no host {name!r}; its hosts: {known}")

    def with_host(self, changed: HostState) -> LabState:
        """A copy in which the host of that name is replaced."""
        return replace(self, hosts=[changed if host.name == changed.name else host for host in self.hosts])


def dump(state: LabState) -> str:
    """The state as JSON, stable and readable."""
    return json.dumps({"format": FORMAT, **asdict(state)}, indent=2, sort_keys=True) + "\n"


def parse(text: str, where: str = "state.json") -> LabState:
    """The state that `dump` wrote. Raises LabError when the text is something else."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data.pop("format") != FORMAT:
            raise ValueError("another version of vllm-fleet wrote it")
        data["hosts"] = [HostState(**host) for host in data["hosts"]]
        return LabState(**data)
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise LabError(f"{where} is not a lab's state ({reason}): `fleet lab down` cleans up without it") from None


def load(path: Path) -> LabState | None:
    """The state on disk; None when there is none. Raises LabError for one that cannot be read."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return parse(text, str(path))


def save(path: Path, state: LabState) -> None:
    """Write the state so that a reader sees the old one or the new one, never half of one."""
    write_atomically(path, dump(state))


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file under a temporary name and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)
