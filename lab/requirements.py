"""What the lab needs of the machine it runs on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from lab.errors import LabError

INSTALL = "apt-get install debootstrap systemd-container iproute2 openssh-client"
PROGRAMS = ("debootstrap", "systemd-nspawn", "ip", "ssh", "ssh-keygen", "mount", "chroot", "setpriv")


def problems() -> list[str]:
    """What keeps the lab from working here, one line each with the way to mend it; empty when all is well."""
    if platform.system() != "Linux":
        return [f"the lab boots Linux hosts and this is {platform.system()}: run it on a Linux machine"]
    found = []
    if os.geteuid() != 0:
        found.append("the lab mounts file systems and makes a bridge, which needs root: run it with sudo")
    missing = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if missing:
        found.append(f"missing on this machine: {', '.join(missing)}: {INSTALL}")
    if not found and not can_mount():
        found.append(
            "this root may not mount (a container without CAP_SYS_ADMIN?): run the lab on a machine or in a VM"
        )
    if not found and "overlay" not in Path("/proc/filesystems").read_text() and not can_load("overlay"):
        found.append("the kernel has no overlay file system: modprobe overlay")
    return found


def require() -> None:
    """Raise LabError with the first problem."""
    if found := problems():
        raise LabError(f"the lab cannot run here: {found[0]}")


def search_path() -> str:
    """PATH with the system folders that a plain user's shell leaves out."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def can_mount() -> bool:
    """Whether a mount works, tried in a mount namespace of its own so that nothing is left behind."""
    return quiet(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"])


def can_load(module: str) -> bool:
    """Whether the kernel module can be loaded."""
    return quiet(["modprobe", module])


def quiet(command: list[str]) -> bool:
    """Whether the command succeeds within ten seconds; its output does not matter."""
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
