"""How a person and pyinfra get into the hosts: a key pair, known_hosts, an ssh configuration and an inventory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from lab import plan
from lab.plan import Address
from lab.shell import run
from lab.state import write_atomically

KEY = "id_ed25519"
FILES = (KEY, f"{KEY}.pub", "known_hosts", "ssh_config", "inventory.py")
LINK = "hosts"


def ensure_key(path: Path, comment: str) -> str:
    """The public half of a key pair at `path`, made on the first call, as one line of text."""
    public = path.with_name(f"{path.name}.pub")
    if not (path.exists() and public.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        command: list[str | Path] = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path]
        run(command, doing=f"making the key {path}", timeout=20)
    return public.read_text().strip()


def write_access(directory: Path, key: Path, hosts: Sequence[Address], host_keys: Sequence[str]) -> None:
    """Write the five files into `directory`; they name each other by absolute path."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (KEY, f"{KEY}.pub"):
        source = key.with_name(name)
        if directory != key.parent:
            write_atomically(directory / name, source.read_text(), 0o600 if name == KEY else 0o644)
    write_atomically(directory / "known_hosts", plan.known_hosts(hosts, host_keys))
    write_atomically(directory / "ssh_config", plan.ssh_config(hosts, directory))
    write_atomically(directory / "inventory.py", plan.inventory(hosts, directory))


def link_hosts(directory: Path, hosts: Path) -> None:
    """Let people find the hosts' file systems beside the keys."""
    link = directory / LINK
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(hosts)


def remove_access(directory: Path) -> None:
    """Remove what the lab wrote into `directory`, and the directory itself if nothing of somebody else is in it."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    if (directory / LINK).is_symlink():
        (directory / LINK).unlink()
    shutil.rmtree(directory / "__pycache__", ignore_errors=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
