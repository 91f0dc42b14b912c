"""Connections to hosts: how they are tuned, what a failed one is told as, files over them, and a host that went away.

With ``tasks/edge.py`` the place that knows pyinfra's and paramiko's insides.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from paramiko import Channel, SFTPClient, SSHException
from pyinfra.api.exceptions import ConnectError, PyinfraError

from fleet.findings import Finding, error


def fail_alone(connector: Any) -> None:
    """A key that is not there is pyinfra's error with a traceback for each host; here one of the host alone."""
    connect = connector.connect

    def connect_or_say_why(*args: Any, **kwargs: Any) -> Any:
        try:
            return connect(*args, **kwargs)
        except ConnectError:
            raise
        except PyinfraError as exc:
            raise ConnectError(str(exc)) from exc

    connector.connect = connect_or_say_why


# A host that is gone is told after this long; paramiko by itself would wait without an end.
LOST_AFTER_SECONDS = 60


def tune(host: Any) -> None:
    """No waiting for acknowledgements (Nagle: 40 ms lost with every command), and an end to waiting for the dead."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client else None
    sock = getattr(transport, "sock", None)
    if isinstance(sock, socket.socket):  # behind a jump host it is a channel
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_AFTER_SECONDS // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_AFTER_SECONDS // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_SECONDS * 1000)


def why_not(name: str, text: str) -> Finding:
    """pyinfra's words for a failed connection, with what to do about it."""
    low = text.lower()
    if "private key" in low and ("no such" in low or "invalid" in low):
        mend = "mend ssh_key in the inventory: the path of a private key on this machine"
        return error("HOST-LOGIN", name, "there is no such key here, or it cannot be used", mend, text)
    if "authentication" in low or "no authentication methods" in low or "private key" in low:
        mend = "set ssh_user and ssh_key, and put the public key into its authorized_keys"
        return error("HOST-LOGIN", name, "the host refuses the login", mend, text)
    if "does not match" in low:
        mend = "find out why: a new installation (then ssh-keygen -R its name), or another machine in between"
        return error("HOST-KEY", name, "the host's key is another than the known one", mend, text)
    if "host key" in low or "known_hosts" in low:
        mend = "compare it with the machine's own and add it to known_hosts: ssh-keyscan, see docs/inventory.md"
        return error("HOST-KEY", name, "the host's key is not known yet", mend, text)
    if "resolve" in low:
        return error("HOST-NAME", name, "the name does not resolve", "set ssh_hostname to its address", text)
    return error(
        "HOST-DOWN", name, "the host does not answer on SSH", "start it, or take it out of the inventory", text
    )


# A folder of our own for files on their way, where the login is not root: on a disk, and closed to others.
UPLOADS = "/var/tmp/vllm-fleet"
CHUNK = 1 << 18
RETRY_SECONDS = 2.0
# This run, as against others.
ME = secrets.token_hex(8)


def reconnect(host: Any, seconds: float) -> str:
    """A new connection in place of the old one; empty, or why there is none after so many seconds."""
    if client := getattr(host.connector, "client", None):
        client.close()
    host.connector.disconnect()
    deadline = time.monotonic() + seconds
    while True:
        try:
            host.connector.connect()
            tune(host)
            return ""
        except (ConnectError, SSHException, OSError, EOFError) as exc:
            if time.monotonic() > deadline:
                return str(exc.args[0] if exc.args else exc)
        time.sleep(RETRY_SECONDS)


def is_alive(host: Any) -> bool:
    """Whether the connection is not known to be lost."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client else None
    return bool(transport and transport.is_active())


@contextlib.contextmanager
def unseen(host: Any) -> Iterator[None]:
    """What this host answers meanwhile is not printed as it comes, with -vvv neither: it may hold what is secret."""
    ask = host.run_shell_command
    host.run_shell_command = lambda *args, **given: ask(*args, **{**given, "print_output": False})
    try:
        yield
    finally:
        del host.run_shell_command


def show(host: Any, lines: Sequence[str]) -> None:
    """Print what was answered, where pyinfra was told to (-vvv)."""
    if host.state.print_output:
        for line in lines:
            click.echo(f"{host.print_prefix}{line}", err=True)


class BusyError(OSError):
    """Another run brings this file just now."""


def upload(host: Any, source: Path, name: str, tell: Callable[[int], None]) -> str:
    """Put a file into the login's own folder of uploads, going on from what an earlier try left; its path there.

    ``tell`` gets the bytes that are there. Raises OSError or SSHException. Whether the content is right is not known
    before its sum was checked.
    """
    client = getattr(host.connector, "client", None)
    if client is None:
        raise OSError("files are brought over SSH only")
    sftp = client.open_sftp()
    holds = client.get_transport().open_session()
    try:
        folder = _own_folder(sftp)
        target = f"{folder}/{name}"
        _hold(holds, f"{folder}/lock")
        size = source.stat().st_size
        try:
            there = int(sftp.lstat(target).st_size or 0)
        except FileNotFoundError:
            there = 0
        there = there if there <= size else 0
        beat = time.monotonic()
        with source.open("rb") as file, sftp.open(target, "ab" if there else "wb") as remote:
            remote.set_pipelined(True)
            file.seek(there)
            while chunk := file.read(CHUNK):
                remote.write(chunk)
                there += len(chunk)
                tell(there)
                if time.monotonic() - beat > 1:
                    beat = time.monotonic()
                    holds.sendall(b"\n")
        # What the host said of the last pieces was not waited for.
        if sftp.lstat(target).st_size != size:
            raise OSError("it arrived in part only")
        return target
    finally:
        holds.close()
        sftp.close()


def _hold(channel: Channel, lock: str) -> None:
    """Hold a lock on the host until the channel is closed, or nothing was heard of it for longer than a connection may
    be silent: of a control machine that is gone the host would else know only hours later."""
    # An earlier connection of this very run is lost, whatever the host thinks.
    text = (
        f'l={shlex.quote(lock)}; read -r run pid 2>/dev/null <$l; [ "$run" != {ME} ] || kill $pid 2>/dev/null; '
        f"exec 8>>$l; flock -w 5 8 || {{ echo busy; exit; }}; echo {ME} $$ >$l; echo held; "
        f"while read -r -t {2 * LOST_AFTER_SECONDS} line; do :; done"
    )
    channel.settimeout(30)
    channel.exec_command(f"bash -c {shlex.quote(text)}")
    answer = channel.recv(5).strip()
    if answer == b"busy":
        raise BusyError("another run brings a file there")
    if answer != b"held":
        raise OSError("its folder there cannot be locked, which needs bash and flock")


def _own_folder(sftp: SFTPClient) -> str:
    """A folder that is the login's own and closed to others; another's at that place is refused."""
    me = sftp.stat(".").st_uid
    folder = f"{UPLOADS}-{me}"
    with contextlib.suppress(OSError):
        sftp.mkdir(folder, 0o700)
    found = sftp.lstat(folder)
    mode = found.st_mode or 0
    if not stat.S_ISDIR(mode) or found.st_uid != me or mode & 0o077:
        raise OSError(f"{folder} is not a folder of the login's alone; remove it, if it is not yours")
    return folder
