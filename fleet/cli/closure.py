"""Packages of the distribution with all that they need, as a repository in a folder: for hosts without internet.

apt is asked against an empty list of installed packages, so that nothing is left out because this machine has it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from fleet.bundle import digest, replace
from fleet.bundle_needs import APT, Need, arch_here
from fleet.findings import Finding, error

Say = Callable[[str], None]
_UPDATE_SECONDS, _DOWNLOAD_SECONDS, _READ_SECONDS = 600, 7200, 60


def collect(folder: Path, need: Need, arch: str, say: Say) -> list[Finding]:
    """Download packages and what they need into a folder, and write its index; findings where that failed.

    A package that is there already is not downloaded again. Of those that are optional, what is nowhere is left out.
    """
    folder = folder.resolve()  # apt takes a path without / for one below its own folders
    own, what, mend = arch_here(), "", ""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        what = "this machine has no apt-get and dpkg-deb"
        mend = "run this on one with the hosts' release of Debian or Ubuntu; docs/rack-offline.md has the way of dnf"
    elif arch != own:
        what = f"the hosts are {arch}, this machine is {own}"
        mend = f"run this on a machine of {arch}, or leave --packages out"
    if what:
        return [error("BUNDLE-PACKAGES", str(folder), what, mend)]
    with tempfile.TemporaryDirectory(prefix="vllm-fleet-apt-") as state:
        options = ["apt-get", *_options(Path(state), folder, need)]
        say(f"packages: asking this machine's sources for {', '.join(need.names)}, and what they need")
        for words, seconds in ((["update"], _UPDATE_SECONDS), (_download(need.names), _DOWNLOAD_SECONDS)):
            well, said = _run([*options, *words], seconds)
            if not well:
                return [_failed(folder, said)]
        for name in need.optional:
            if not _run([*options, *_download([name])], _DOWNLOAD_SECONDS)[0]:
                say(f"{name}: no source has it; left out, as not all hosts need it")
    shutil.rmtree(folder / "partial", ignore_errors=True)
    (folder / "lock").unlink(missing_ok=True)
    return index(folder)


def _options(state: Path, folder: Path, need: Need) -> list[str]:
    """apt with lists of its own, so that it needs no root and sees nothing installed."""
    for name in ("lists/partial", "cache"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    # Versions that the row asks for go before newer ones, also in what the named packages need.
    pins = [f"Package: *nvidia* cuda-drivers*\nPin: version {v}\nPin-Priority: 1001\n" for v in need.exact(APT)]
    (state / "preferences").write_text("\n".join(pins))
    settings = {
        **({"Dir::Etc::preferences": state / "preferences"} if pins else {}),
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
    """Whether it ended with 0 in time, and its lines; on a terminal what it downloads is shown meanwhile."""
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    shown, lines = sys.stderr.isatty(), []
    try:
        with subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            end = threading.Timer(seconds, process.kill)
            end.daemon = True  # an interrupt does not wait for it
            end.start()
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                if shown and line.startswith("Get:"):
                    click.echo(f"\r\x1b[K{line.strip()[:78]}", err=True, nl=False)
            if shown:
                click.echo("\r\x1b[K", err=True, nl=False)
            late = not end.is_alive()
            end.cancel()
    except OSError as exc:
        return False, [f"{command[0]}: {(exc.strerror or str(exc)).lower()}"]
    return process.returncode == 0, [*lines, *([f"{command[0]} did not end within {seconds} s"] if late else [])]


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
    replace(folder / "Packages", "\n".join(parts))
    return []
