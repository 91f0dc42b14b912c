"""Every touch of pyinfra's internals: transport, guards, gates, failing one host, counting and timing.

pyinfra's API is not covered by its version promise, so nothing else in this repository reaches into it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from types import FrameType
from typing import Any, cast

import click
import pyinfra
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, PyinfraCommand
from pyinfra.api.state import BaseStateCallback, State
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from fleet.findings import Finding, error

EXIT_INTERRUPTED = 130

# The host that the deploy file or operation is about; pyinfra's contexts are untyped.
host: Any = cast(Any, pyinfra).host
_state: Callable[[], Any] = cast(Any, ctx_state).get
_inventory: Callable[[], Any] = cast(Any, ctx_inventory).get
_host: Callable[[], Any] = cast(Any, ctx_host).get

Commands = Generator[PyinfraCommand, None, None]

commands: Counter[str] = Counter()
steps: list[tuple[str, float]] = []
_announced: set[str] = set()


def install() -> None:
    """Guard this run of pyinfra; called by config.py, before the inventory is read and anything is connected to."""
    context = click.get_current_context(silent=True)
    state = _state()
    if context is None or state is None:
        return
    signal.signal(signal.SIGINT, _interrupted)
    _watch_from_the_start(state)
    params = context.params
    if any(str(op).replace(os.sep, "/").split("/")[-2:-1] == ["deploy"] for op in params.get("operations", ())):
        from tasks import guard

        guard.check_before_connecting(params)


def _watch_from_the_start(state: Any) -> None:
    """Add the watcher as soon as the state takes one: after the inventory is read, before any connection."""
    init = state.init

    def init_and_watch(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        state.add_callback_handler(_Watcher())

    state.init = init_and_watch


def _interrupted(signum: int, frame: FrameType | None) -> None:
    """pyinfra would end with 0; nothing on a host is half-written, and the next run goes on from there."""
    sys.stdout.flush()
    sys.stderr.write(
        "\ninterrupted: hosts keep what was finished; run the same line again to go on [RUN-INTERRUPTED]\n"
    )
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


class _Watcher(BaseStateCallback):
    """Quick transport, counted commands, one clear line for a host that cannot be reached."""

    @staticmethod
    def host_connect(state: State, host: Any) -> None:
        _send_small_packets_at_once(host)
        _count_commands(host)

    @staticmethod
    def host_connect_error(state: State, host: Any, error: Exception) -> None:
        say(_connect_finding(host.name, str(error.args[0] if error.args else error)))

    @staticmethod
    def operation_start(state: State, op_hash: str) -> None:
        steps.append((", ".join(state.get_op_meta(op_hash).names), time.monotonic()))

    @staticmethod
    def operation_end(state: State, op_hash: str) -> None:
        name, started = steps.pop()
        steps.append((name, time.monotonic() - started))


def _send_small_packets_at_once(host: Any) -> None:
    """paramiko waits for acknowledgements (Nagle): 40 ms lost with every command."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client else None
    sock = getattr(transport, "sock", None)
    if isinstance(sock, socket.socket):  # behind a jump host it is a channel
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _count_commands(host: Any) -> None:
    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            commands[host.name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("run_shell_command", "put_file", "get_file"):
        setattr(host.connector, name, counted(getattr(host.connector, name)))


def _connect_finding(name: str, text: str) -> Finding:
    """pyinfra's words for a failed connection, with what to do about it."""
    low = text.lower()
    if "authentication" in low or "no authentication methods" in low or "private key" in low:
        mend = "set ssh_user and ssh_key, and put the public key into its authorized_keys"
        return error("HOST-LOGIN", name, "the host refuses the login", mend, text)
    if "host key" in low or "known_hosts" in low:
        mend = "compare the key with the machine's and add it to known_hosts (ssh-keyscan), see docs/inventory.md"
        return error("HOST-KEY", name, "the host's key is not the known one", mend, text)
    if "resolve" in low:
        return error("HOST-NAME", name, "the name does not resolve", "set ssh_hostname to its address", text)
    return error(
        "HOST-DOWN", name, "the host does not answer on SSH", "start it, or take it out of the inventory", text
    )


# What deploys and operations use
#


def say(finding: Finding) -> None:
    """Print a finding once."""
    line = finding.line()
    if line in _announced:
        return
    _announced.add(line)
    head, _, rest = line.partition(": ")
    colour = "red" if finding.severity == "error" else "yellow"
    logger.error(f"{click.style(head, fg=colour, bold=True)}: {rest}")


def executing() -> bool:
    """Whether operations run now, as against being prepared."""
    return bool(_state().is_executing)


def changes_are_detected() -> bool:
    """Whether this run looks for changes first (without -y, or dry)."""
    return bool(_state().check_for_changes)


def wants_diff() -> bool:
    return bool(_state().config.DIFF)


def is_verbose() -> bool:
    return bool(_state().print_fact_info)


def current_host() -> Any:
    """The real host behind pyinfra's proxy."""
    return _inventory().get_host(_host().name)


def admit(findings: Iterable[Finding]) -> bool:
    """Say the findings; with an error among them, fail this host alone and let the others go on."""
    found = list(findings)
    for finding in found:
        say(finding)
    if not any(f.severity == "error" for f in found):
        return True
    fail_current_host()
    return False


def fail_current_host() -> None:
    """No further operation runs on this host; the exit code of the run says so."""
    state = _state()
    host = current_host()
    if host not in state.failed_hosts:
        state.fail_hosts({host})


def refuse() -> FunctionCommand:
    """Yielded by an operation that has said why: fails it on this host without a traceback or a remote command."""

    def _refuse(state: State, host: Any) -> bool:
        return False

    return FunctionCommand(_refuse, (), {})


def changed() -> FunctionCommand:
    """Yielded by an operation that has made its change itself (or, while it is prepared, would make it)."""

    def _changed(state: State, host: Any) -> bool:
        return True

    return FunctionCommand(_changed, (), {})


def lost_hosts() -> frozenset[str]:
    """Hosts of the run that could not be reached or have failed."""
    state = _state()
    wanted = [h for h in _inventory() if state.is_host_in_limit(h)]
    return frozenset(h.name for h in wanted if h not in state.active_hosts)


def hosts_outside_limit() -> frozenset[str]:
    state = _state()
    return frozenset(h.name for h in _inventory() if not state.is_host_in_limit(h))


def run_here(command: Any, *, stdin: str | None = None, live: bool = False) -> tuple[bool, list[str], list[str]]:
    """Run a command on the current host with the operation's rights: (succeeded, output lines, error lines).

    ``live`` prints the lines as they come, for long waits.
    """
    state, host = _state(), current_host()
    arguments = dict(_connector_arguments())
    if stdin is not None:
        arguments["_stdin"] = stdin
    status, output = host.run_shell_command(
        command, print_output=live or state.print_output, print_input=state.print_input, **arguments
    )
    return status, output.stdout_lines, output.stderr_lines


def _connector_arguments() -> dict[str, Any]:
    """The current operation's arguments that its connector takes: sudo and its like."""
    from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments

    host = _host()
    given = host.current_op_global_arguments
    if given is None:
        given, _ = pop_global_arguments(_state(), current_host(), {})
    return {key: given[key] for key in CONNECTOR_ARGUMENT_KEYS if key in given}
