"""One lab host: an overlay on the shared root file system, and systemd-nspawn booting a real systemd in it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import cgroups
from lab.access import ensure_key
from lab.errors import LabError
from lab.mounts import mounts_below, overlay, remove_tree, unmount_below
from lab.plan import Address, LabPlan, hosts_file, machine_id, network_unit
from lab.processes import belongs_to, is_alive, kill_all, processes_of, reap
from lab.requirements import search_path
from lab.shell import last_line

BOOT_TIMEOUT_S = 90.0
NSPAWN = "systemd-nspawn"
# What may carry a host's root in its arguments while the host boots or runs.
STARTERS = ("sh", "setpriv", "taskset", NSPAWN)
LOGINS = {"root": "root", "ops": "home/ops", "deployer": "home/deployer"}

# $1 is the host's cgroup, which must be entered before nspawn looks where it is; the rest is the command.
ENTER = 'if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs" || exit 1; fi; shift; exec setpriv --pdeathsig KILL "$@"'
# With --keep-unit a reboot inside ends nspawn with 133, for its supervisor to start it again; this is the supervisor.
# Without it the host has lost its power: the death signal above takes nspawn along.
SUPERVISE = 'n=0; while [ $n -lt 100 ]; do sh -c "$0" sh "$@"; [ $? -eq 133 ] || exit; n=$((n+1)); done'


@dataclass(frozen=True)
class Host:
    """A host as its users see it. `pid` is its supervisor, 0 when off; `root` its file system seen from here."""

    name: str
    address: str
    pid: int
    root: Path


@dataclass(frozen=True)
class HostFiles:
    """Where one host's files lie."""

    directory: Path

    @property
    def root(self) -> Path:
        """The mounted overlay."""
        return self.directory / "root"

    @property
    def log(self) -> Path:
        """What the host's console and nspawn print."""
        return self.directory / "console.log"

    @property
    def key(self) -> Path:
        """The host's own ssh key; it outlives a reset, so that known_hosts stays true."""
        return self.directory / "keys" / "ssh_host_ed25519_key"

    @property
    def docker(self) -> Path:
        """Docker's data, outside the overlay because overlay2 does not work on an overlay."""
        return self.directory / "docker"


def prepare(files: HostFiles, lower: Path, host: Address, plan: LabPlan, public_key: str) -> None:
    """Mount the host's overlay, fresh or as it was left, and write what makes it this host."""
    mount(files, lower)
    ensure_key(files.key, f"root@{host.name}")
    etc = files.root / "etc"
    for name, text in {
        "hostname": f"{host.name}\n",
        "hosts": hosts_file(host),
        "machine-id": f"{machine_id(host.name, host.address)}\n",
        "resolv.conf": "# the lab has no name server\n",
        "systemd/network/10-host0.network": network_unit(host, plan),
    }.items():
        (etc / name).write_text(text)
    for source in (files.key, files.key.with_name(f"{files.key.name}.pub")):
        shutil.copy(source, etc / "ssh" / source.name)  # with its mode
    for home in LOGINS.values():
        authorize(files.root / home, public_key)


def authorize(home: Path, public_key: str) -> None:
    """Let the lab's key into an account, with the owner and modes that sshd insists on."""
    owner = home.stat()
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / "authorized_keys"
    file.write_text(f"{public_key}\n")
    file.chmod(0o600)
    for path in (folder, file):
        os.chown(path, owner.st_uid, owner.st_gid)


def mount(files: HostFiles, lower: Path) -> None:
    """Mount the host's overlay unless it is mounted already."""
    if files.root in mounts_below(files.directory):
        return
    if not lower.is_dir():
        raise LabError(f"{files.directory.name}: its root file system {lower} is gone; `fleet lab down`, then up again")
    overlay(lower, files.directory / "upper", files.directory / "work", files.root)


def nspawn_command(
    files: HostFiles, host: Address, bridge: str, mounts: Mapping[str, str], docker: bool, cpu: int | None
) -> list[str]:
    """The command that boots the host. `mounts` maps paths of the machine to read-only paths in the host."""
    command = ["taskset", "--cpu-list", str(cpu)] if cpu is not None else []
    command += [NSPAWN, "--quiet", "--boot", f"--machine={host.name}", f"--directory={files.root}"]
    # No systemd-machined and no unit of the machine's systemd: it may have neither.
    command += ["--register=no", "--keep-unit", f"--hostname={host.name}", f"--network-bridge={bridge}"]
    command += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=read-only"]
    # What a Docker engine and mounts in the host need; the lab keeps out accidents, not attackers.
    command += ["--capability=all", "--system-call-filter=add_key keyctl bpf @privileged @mount"]
    command += [f"--bind-ro={escape(source)}:{escape(target)}" for source, target in mounts.items()]
    if docker:
        command.append(f"--bind={escape(str(files.docker))}:/var/lib/docker")
    return command


def escape(path: str) -> str:
    """nspawn separates the parts of a mount by colons."""
    return path.replace("\\", "\\\\").replace(":", "\\:")


def boot(files: HostFiles, host: Address, command: Sequence[str]) -> int:
    """Start the host in a session of its own and return its supervisor's pid; the host outlives this process."""
    files.docker.mkdir(exist_ok=True)
    group = cgroups.make(host.name)
    # Without the variable a host on a machine with version 1 cgroups gets those, read-only, and Docker fails.
    env = {"PATH": search_path(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "LC_ALL": "C.UTF-8"}
    log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", SUPERVISE, ENTER, str(group or ""), *command],
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)


def is_running(files: HostFiles, pid: int) -> bool:
    """Whether `pid` is this host's supervisor and lives; numbers are given out again, so the command line decides."""
    return pid > 0 and not reap(pid) and is_alive(pid) and belongs_to(pid, files.root)


def wait_ssh(files: HostFiles, host: Address, pid: int, deadline: float) -> None:
    """Wait until the host's sshd greets; `deadline` is a time.monotonic() value.

    Raises LabError with the console's last line when it ends or the time is over.
    """
    while not greets(host.address):
        if not is_running(files, pid):
            raise LabError(f"host {host.name} ended while booting: {console_end(files)}; its console is {files.log}")
        if time.monotonic() > deadline:
            raise LabError(
                f"host {host.name} does not answer ssh on {host.address}: {console_end(files)}; see {files.log}"
            )
        time.sleep(0.1)


def greets(address: str) -> bool:
    """Whether an ssh server answers at the address."""
    try:
        with socket.create_connection((address, 22), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def console_end(files: HostFiles) -> str:
    """The last line of the host's console."""
    return last_line(files.log.read_text(errors="replace")) if files.log.exists() else "it printed nothing"


def kill(files: HostFiles, name: str, pid: int) -> None:
    """Pull the plug: end the host and all in it at once. The overlay stays mounted with what was written."""
    leftovers = [found for program in STARTERS for found in processes_of(files.root, program)]
    kill_all({pid, *leftovers} - {0}, files.root)
    cgroups.kill(name)


def erase(files: HostFiles) -> None:
    """Unmount and delete all that the host wrote, but keep its ssh key."""
    unmount_below(files.directory)
    for name in ("root", "upper", "work", "docker", "console.log"):
        remove_tree(files.directory / name)
