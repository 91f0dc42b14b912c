"""What the lab's stand-in packages share: how the scenario steers them, and what they leave on a host.

`install` of the scenario says what happens. A power cut happens once: the installer ends itself by KILL, in the
middle of its files or before them, and the next run goes through; `lab.hardware.steer` arms it again.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.sim import store
from lab.sim.layout import Files
from lab.sim.store import ROOT, Document

CUT = ROOT / "var/lib/vllm-lab/cut-done"
LOCK = ROOT / "run/vllm-lab-install.lock"


class Refused(Exception):
    """What an installer says instead of doing its work, and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def main(arguments: Sequence[str]) -> int:
    """`install ascend|cann FILE JSON OPTIONS` for the .run files, `install gpu ...` for Debian packages.

    FILE is the package's path, so that the list of processes shows it as it shows the vendor's.
    """
    from lab.sim import ascend_run, cann_run, gpu_packages

    kind, rest = arguments[0], list(arguments[1:])
    if kind == "gpu":
        return gpu_packages.main(rest)
    run = {"ascend": ascend_run.main, "cann": cann_run.main}[kind]
    return run(json.loads(rest[1]), rest[2:])


def wrong_arch(package: str, machine: str) -> str:
    return (
        f"ERR_NO:0x0001;ERR_DES:the architecture of the run package arch:{package} "
        f"is inconsistent with that of the current environment {machine}."
    )


class Steering:
    """The scenario's `install`, for one package."""

    def __init__(self, kind: str) -> None:
        self.scenario = store.scenario()
        told = self.scenario["install"]
        meant = told["only"] in (None, kind)
        self.reboot = bool(meant and told["reboot"])
        self.busy = bool(meant and told["busy"])
        self.chips_not_ready = bool(meant and told["chips_not_ready"])
        self.cut_at = told["cut_at"] if meant else None
        self.fail: str | None = told["fail"] if meant else None
        self.firmware_at_once = told["firmware_counts"] == "at once"
        self.seconds = float(told["seconds"])
        self.arch = str(told["arch"] or os.uname().machine)
        self.tools = [str(tool) for tool in told["tools"]]
        self.headers = bool(told["headers"])

    def may_be_cut(self, here: str) -> None:
        """End by KILL where the scenario says so; once."""
        if self.cut_at == here and not CUT.exists():
            CUT.parent.mkdir(parents=True, exist_ok=True)
            CUT.touch()
            os.sync()
            os.kill(os.getpid(), signal.SIGKILL)

    def pause(self) -> None:
        """A quarter of the time that it takes."""
        time.sleep(self.seconds / 4)


@contextmanager
def alone() -> Iterator[bool]:
    """True when no other package is being installed."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def parse(arguments: Sequence[str], modes: Sequence[str], modifiers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The mode and the modifiers with their values. Raises ValueError with what is wrong."""
    found: dict[str, str] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        takes_value = name in ("--install-path", "--install-username", "--install-usergroup")
        if name not in (*modes, *modifiers) or bool(equals) != takes_value or (takes_value and not value):
            raise ValueError(f"Unrecognized parameters: {word}")
        if name in found:
            raise ValueError(f"Unrecognized parameters: {word} is there twice")
        found[name] = value
    chosen = [name for name in found if name in modes]
    if len(chosen) != 1:
        raise ValueError("Unrecognized parameters" if not chosen else f"Unrecognized parameters: {' '.join(chosen)}")
    mode = chosen[0]
    if mode in ("--version", "--uninstall", "--check") and len(found) > 1:
        raise ValueError(f"Unrecognized parameters: {mode} stands alone")
    if ("--install-username" in found) != ("--install-usergroup" in found):
        raise ValueError("Unrecognized parameters: --install-username and --install-usergroup go together")
    return mode, {name: value for name, value in found.items() if name != mode}


# Files


def lay(files: Files) -> None:
    """Write a package's files."""
    for path, (text, mode) in files.items():
        target = ROOT / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(target.name + ".vllm-lab-new")
        new.write_text(text)
        new.chmod(mode)
        new.replace(target)


def link(path: str, target: str) -> None:
    """Make `path` a link to `target`, whatever stood there."""
    place = ROOT / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.exists():
        place.unlink()
    place.symlink_to(target)


def read_info(path: str) -> dict[str, str]:
    """A file of KEY=VALUE lines; empty when it is not there."""
    file = ROOT / path.lstrip("/")
    if not file.exists():
        return {}
    pairs = (line.partition("=") for line in file.read_text().splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


# What is installed, as the simulators read it


def note(part: str, new: str | None, *, after_boot: bool) -> None:
    """Write down a version that counts from now on, or from the next boot."""
    installed = store.read(store.INSTALLED)
    old = store.scenario()[f"{part}_version"]
    installed[part] = {"old": old, "new": new, "boot": store.boot_id() if after_boot else ""}
    write_installed(installed)


def write_installed(installed: Document) -> None:
    """For the host, and for containers that have the driver's folder mounted."""
    from lab.sim.layout import ASCEND_CODE

    store.write(store.INSTALLED, installed)
    copy = ROOT / ASCEND_CODE.lstrip("/")
    if copy.is_dir():
        store.write(copy / store.INSTALLED.name, installed)


def make_nodes() -> None:
    """Device nodes as they are now; a folder in a test has none."""
    if Path("/") == ROOT:
        subprocess.run(["systemctl", "restart", "vllm-lab-nodes"], check=True, timeout=60)
