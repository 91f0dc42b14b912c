"""One ssh connection to a host that many commands share: 0.03 s for each, where one of its own costs 0.4 s."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

OPEN_S = 10.0
# What a socket's path may have, less what ssh adds to it while it makes one.
LONGEST = 108 - 20


class Connections:
    """Connections by host, each held by an ssh of its own, whose socket lies in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, subprocess.Popen[bytes]] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def options(self, ssh: Sequence[str], name: str) -> list[str]:
        """Arguments that let ssh take the host's connection, which is opened; none where the host is not reached."""
        path = self.folder / f"ssh-{name}"
        if len(str(path)) > LONGEST:
            return []
        with self._locks[name]:
            held = self._held.get(name)
            if held is None or held.poll() is not None:
                held = self._held[name] = self._open(ssh, path, name)
        return ["-S", str(path)] if held.poll() is None else []

    def _open(self, ssh: Sequence[str], path: Path, name: str) -> subprocess.Popen[bytes]:
        path.unlink(missing_ok=True)
        quiet = subprocess.DEVNULL
        held = subprocess.Popen([*ssh, "-M", "-N", "-S", path, name], stdin=quiet, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + OPEN_S
        while held.poll() is None and not path.exists():
            if time.monotonic() > deadline:
                held.kill()
                held.wait()
            time.sleep(0.01)
        return held

    def close(self, name: str) -> None:
        """Before a host goes down without a word: ssh would wait for it."""
        with self._locks[name]:
            if held := self._held.pop(name, None):
                held.kill()
                held.wait()
            (self.folder / f"ssh-{name}").unlink(missing_ok=True)

    def close_all(self) -> None:
        """All connections."""
        for name in list(self._held):
            self.close(name)
