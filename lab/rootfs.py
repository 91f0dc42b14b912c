"""The hosts' root file system: a small Debian with systemd and sshd, made once and shared by all hosts.

Hosts mount it as the lower layer of their overlay, so a finished one is never written to again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from lab import apt
from lab.cache import build_once, cache_dir, discard, need_disk
from lab.mounts import TABLE
from lab.progress import Say, silent, step
from lab.requirements import require, search_path
from lab.shell import run

SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "python3"),
    *("ca-certificates", "procps", "iputils-ping", "curl"),
    # The engine's CPU kernels need both; without libnuma they fail to import and the engine dies after a minute.
    *("libnuma1", "libgomp1"),
    "haproxy",
    "nftables",
)
DOCKER_PACKAGES = ("docker.io", "iptables")

# Ours to start when a deploy says so, or of no use on a host that has neither a console nor a network outside.
DISABLED = (
    "haproxy.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
)
MASKED = ("systemd-logind.service", "console-getty.service", "getty@.service", "e2scrub_reap.service")
ENABLED = ("systemd-networkd.service", "ssh.service")

USERS = ("ops", "deployer")
SUDOERS = "deployer ALL=(ALL) NOPASSWD: ALL\n"
SSHD = """\
# Keys only, one host key that the lab makes per host, and nothing that waits for a name server.
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
HostKey /etc/ssh/ssh_host_ed25519_key
UseDNS no
PrintMotd no
PrintLastLog no
"""
NO_DAEMONS = "#!/bin/sh\nexit 101\n"
BUILDER_VERSION = "3"


def ensure_rootfs(docker: bool = False, say: Say = silent) -> Path:
    """The root file system's directory, made on the first call (about one minute, 0.4 GB; with Docker 0.5 GB more).

    Its name carries a hash of how it is made, so that a change of the packages makes a new one. Raises LabError.
    """
    require()
    plain = build_once(rootfs_dir(False), lambda target: build(target, say))
    if not docker:
        return plain
    return build_once(rootfs_dir(True), lambda target: build_docker(plain, target, say))


def rootfs_dir(docker: bool) -> Path:
    """Where the root file system lies or will lie."""
    parts = [
        BUILDER_VERSION,
        SUITE,
        *PACKAGES,
        *DISABLED,
        *MASKED,
        SSHD,
        SUDOERS,
        *(DOCKER_PACKAGES if docker else ()),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    return cache_dir() / "rootfs" / f"{SUITE}{'-docker' if docker else ''}-{digest}"


def build(target: Path, say: Say) -> None:
    """Make the plain root file system in `target`."""
    need_disk(target.parent, 1.5, "the hosts' root file system")
    remove_superseded(docker=False)
    where = apt.mirror()
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(target)]
    with step(say, f"making the hosts' root file system (Debian {SUITE})", usual_s=60):
        run(
            command + ([where] if where else []),
            doing="making the root file system",
            timeout=1500,
            env=build_env(),
        )
        configure(target)
        clean(target)


def build_docker(plain: Path, target: Path, say: Say) -> None:
    """Make the root file system with a Docker engine: the plain one plus packages."""
    need_disk(target.parent, 1.5, "the root file system with Docker")
    remove_superseded(docker=True)
    with step(say, "adding a Docker engine to the root file system", usual_s=30):
        run(["cp", "-a", "--reflink=auto", plain, target], doing="copying the root file system", timeout=300)
        network = {"etc/resolv.conf": Path("/etc/resolv.conf").read_text()}
        network["etc/apt/apt.conf.d/90machine"] = apt.transport_settings()
        network["usr/sbin/policy-rc.d"] = NO_DAEMONS
        for name, text in network.items():
            write(target / name, text, 0o755 if "sbin" in name else 0o644)
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *DOCKER_PACKAGES]):
            inside(target, ["apt-get", "-q", *arguments], timeout=900)
        for name in network:
            (target / name).unlink()
        clean(target)


def configure(root: Path) -> None:
    """Users, sshd and the set of services of a lab host."""
    # Services of plain users reach the interpreter that the engines link to, which may lie below root's home.
    (root / "root").chmod(0o711)
    for user in USERS:
        inside(root, ["useradd", "--create-home", "--shell", "/bin/bash", user])
    # '*' locks the password; '!' would lock the whole account for sshd without PAM.
    inside(root, ["usermod", "--password", "*", "root"])
    write(root / "etc/sudoers.d/deployer", SUDOERS, 0o440)
    write(root / "etc/ssh/sshd_config.d/lab.conf", SSHD)
    drop_motd(root / "etc/pam.d/sshd")
    for folder in ("opt/vllm", "opt/vllm-router", "opt/models"):
        (root / folder).mkdir(parents=True)
    inside(root, ["systemctl", "disable", *DISABLED])
    inside(root, ["systemctl", "mask", *MASKED])
    inside(root, ["systemctl", "enable", *ENABLED])


def drop_motd(pam: Path) -> None:
    """Take out the message of the day, which runs scripts at every login."""
    lines = [line for line in pam.read_text().splitlines() if "pam_motd" not in line and "pam_mail" not in line]
    pam.write_text("\n".join(lines) + "\n")


def clean(root: Path) -> None:
    """Leave out what no two hosts may share (keys, ids) and what only fills the disk (package lists and archives)."""
    for pattern in (
        "etc/ssh/ssh_host_*",
        "etc/machine-id",
        "var/lib/dbus/machine-id",
        "etc/resolv.conf",
        "etc/hostname",
    ):
        for file in root.glob(pattern):
            file.unlink()
    for folder in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        run(["find", root / folder, "-type", "f", "-delete"], doing="emptying the package caches", timeout=60)


def remove_superseded(docker: bool) -> None:
    """Remove root file systems of earlier versions of this module that no host has mounted."""
    keep = rootfs_dir(docker)
    family = f"{SUITE}-docker-" if docker else f"{SUITE}-"
    for old in keep.parent.glob(f"{family}*"):
        other_family = "-docker-" in old.name and not docker
        in_use = f"lowerdir={old}," in TABLE.read_text()
        if old != keep and ".tmp-" not in old.name and not other_family and not in_use:
            discard(old)


def inside(root: Path, command: list[str], timeout: float = 60.0) -> None:
    """Run a program of the root file system in it, by chroot."""
    run(
        ["chroot", root, *command],
        doing=f"preparing the root file system with {command[0]}",
        timeout=timeout,
        env=build_env(),
    )


def build_env() -> dict[str, str]:
    """A small, neutral environment: the machine's own locale and Python settings do not belong in the hosts."""
    kept = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    return kept | {
        "PATH": search_path(),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "HOME": "/root",
    }


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file with its folders and mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
