"""Packages of the distribution with all that they need, as a repository in a folder: for hosts without internet.

apt is asked against an empty list of installed packages, so that nothing is left out because this machine has it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet.bundle import digest, replace
from fleet.bundle_copy import unwritable
from fleet.bundle_needs import arch_here
from fleet.findings import Finding, FleetError, error

Say = Callable[[str], None]
_UPDATE_SECONDS, _DOWNLOAD_SECONDS, _READ_SECONDS = 600, 7200, 60


def collect(folder: Path, names: Sequence[str], optional: Sequence[str], arch: str, say: Say) -> list[Finding]:
    """Download packages and what they need into a folder, and write its index; findings where that failed.

    A package that is there already is not downloaded again. Of those that are optional, what is nowhere is left out.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        what = "this machine has no apt-get and dpkg-deb"
        mend = (
            "run this on a machine with the hosts' release of Debian or Ubuntu; docs/rack-offline.md has the way of dnf"
        )
        return [error("BUNDLE-PACKAGES", str(folder), what, mend)]
    own = arch_here()
    if arch != own:
        what = f"the hosts are {arch}, this machine is {own}"
        return [
            error("BUNDLE-PACKAGES", str(folder), what, f"run this on a machine of {arch}, or leave --packages out")
        ]
    with tempfile.TemporaryDirectory(prefix="vllm-fleet-apt-") as state:
        options = ["apt-get", *_options(Path(state), folder)]
        say(f"packages: asking this machine's sources for {', '.join(names)}, and what they need")
        for words, seconds in ((["update"], _UPDATE_SECONDS), (_download(names), _DOWNLOAD_SECONDS)):
            well, said = _run([*options, *words], seconds)
            if not well:
                return [_failed(folder, said)]
        for name in optional:
            if not _run([*options, *_download([name])], _DOWNLOAD_SECONDS)[0]:
                say(f"{name}: no source has it, left out")
    shutil.rmtree(folder / "partial", ignore_errors=True)
    (folder / "lock").unlink(missing_ok=True)
    return index(folder)


def _options(state: Path, folder: Path) -> list[str]:
    """apt with lists of its own, so that it needs no root and sees nothing installed."""
    for name in ("lists/partial", "cache"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Cache::archives": folder,
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": "3",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _download(names: Sequence[str]) -> list[str]:
    return ["-y", "-q", "--no-install-recommends", "--download-only", "install", "--", *names]


def _run(command: Sequence[str], seconds: int) -> tuple[bool, list[str]]:
    """Whether it ended with 0 in time, and its lines."""
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=seconds, check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, [f"{command[0]} did not end within {seconds} s"]
    except OSError as exc:
        return False, [f"{command[0]}: {(exc.strerror or str(exc)).lower()}"]
    return done.returncode == 0, done.stdout.splitlines()


def _failed(folder: Path, said: Sequence[str]) -> Finding:
    """apt's own word for it, and what to do."""
    errors = [line.removeprefix("E: ") for line in said if line.startswith("E: ")]
    what = errors[0] if errors else said[-1] if said else "apt-get ended without a word"
    mend = "see that this machine reaches its sources of packages"
    if any("Unable to locate" in line or "no installation candidate" in line for line in errors):
        missing = sorted({m[1] for line in errors if (m := re.search(r"package '?([a-z0-9][a-z0-9.+-]*)'?", line))})
        what = f"no source of this machine has {', '.join(missing)}"
        mend = "add the source that has it (the vendor's, for drivers and container toolkit), or check the release"
    elif any("free space" in line for line in errors):
        mend = "free some space there; what was downloaded stays"
    return error("BUNDLE-PACKAGES", str(folder), what[:300], mend)


def index(folder: Path) -> list[Finding]:
    """Writes Packages, the index of a flat repository, from the packages that lie there."""
    parts = []
    for path in sorted(folder.glob("*.deb")):
        well, said = _run(["dpkg-deb", "-f", str(path)], _READ_SECONDS)
        if not well or not said:
            mend = "take it away and run again"
            return [error("BUNDLE-PACKAGES", str(path), f"this is no package: {' '.join(said[-1:])}", mend)]
        where = [f"Filename: ./{path.name}", f"Size: {path.stat().st_size}", f"SHA256: {digest(path)}"]
        parts.append("\n".join([*said, *where]) + "\n")
    try:
        replace(folder / "Packages", "\n".join(parts))
    except OSError as exc:
        raise FleetError(unwritable(folder / "Packages", exc)) from exc
    return []
