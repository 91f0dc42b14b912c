"""Every touch of pyinfra's internals: transport, guards, gates, failing one host, counting and timing.

pyinfra's API is not covered by its version promise, so nothing else in this repository reaches into it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, cast

import click
import pyinfra
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, PyinfraCommand
from pyinfra.api.state import BaseStateCallback, State, StateStage
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from fleet import waivers
from fleet.findings import Finding, errors
from fleet.folding import fold
from tasks import transport
from tasks.show import styled

EXIT_INTERRUPTED = 130
# Names a file to which findings are added as JSON lines, for `fleet run --json`.
FINDINGS_FILE = "VLLM_FLEET_FINDINGS"

# The host that the deploy file or operation is about; pyinfra's contexts are untyped.
host: Any = cast(Any, pyinfra).host
_state: Callable[[], Any] = cast(Any, ctx_state).get
_inventory: Callable[[], Any] = cast(Any, ctx_inventory).get
_host: Callable[[], Any] = cast(Any, ctx_host).get

Commands = Generator[PyinfraCommand, None, None]

commands: Counter[str] = Counter()
steps: list[tuple[str, float]] = []
_announced: set[str] = set()
_held: list[Finding] = []
_admitted: set[str] = set()


def install() -> None:
    """Guard this run of pyinfra; called by config.py, before the inventory is read and anything is connected to."""
    context = click.get_current_context(silent=True)
    state = _state()
    if context is None or state is None:
        return
    from tasks import guard

    signal.signal(signal.SIGINT, _interrupted)
    params = context.params
    reads = guard.only_reads(params)
    _ask_clearly(reads)
    _keep_stdout_for_answers()
    if params.get("dry"):  # with -y, pyinfra would not look for changes, and a dry run would have nothing to tell
        state.check_for_changes = True
    _watch_from_the_start(state, asks=guard.is_attended() and not params.get("dry") and not reads)
    if any(str(op).replace(os.sep, "/").split("/")[-2:-1] == ["deploy"] for op in params.get("operations", ())):
        guard.check_before_connecting(params)
        guard.refuse_unattended(params)


def _watch_from_the_start(state: Any, asks: bool) -> None:
    """Add the watcher as soon as the state takes one: after the inventory is read, before any connection.

    Unless it ``asks``, a failed host fails alone: pyinfra would otherwise ask whether to go on, even in a dry run.
    """
    init = state.init

    def init_and_watch(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        state.add_callback_handler(_Watcher())
        if not asks:
            state.should_raise_failed_hosts = lambda _: False

    state.init = init_and_watch


def _ask_clearly(reads: bool) -> None:
    """pyinfra ends with 0 after a no, and with a traceback where the answer never comes; a run that only ``reads``
    is not asked for."""
    from pyinfra_cli import cli

    def confirm(question: str) -> bool:
        if reads:
            return True
        click.echo(f"\n    {question}\n    Press enter to go on, anything else to stop: ", err=True, nl=False)
        try:
            agreed = not input().strip()
        except EOFError:
            agreed = False
        if not agreed:
            click.echo("    stopped; nothing further was changed", err=True)
            sys.exit(EXIT_INTERRUPTED)
        return True

    cli._do_confirm = confirm


def _keep_stdout_for_answers() -> None:
    """What an inventory prints while it is loaded is for people, never part of a JSON answer."""
    from pyinfra_cli import cli

    load = cli.make_inventory

    def load_aside(*args: Any, **kwargs: Any) -> Any:
        with contextlib.redirect_stdout(sys.stderr):
            return load(*args, **kwargs)

    cli.make_inventory = load_aside


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
    def host_before_connect(state: State, host: Any) -> None:
        if getattr(host.data, "ssh_strict_host_key_checking", None) is None:  # pyinfra would take any new key
            host.connector.data["ssh_strict_host_key_checking"] = "yes"
        transport.fail_alone(host.connector)

    @staticmethod
    def host_connect(state: State, host: Any) -> None:
        transport.tune(host)
        _count_commands(host)

    @staticmethod
    def host_connect_error(state: State, host: Any, error: Exception) -> None:
        say(transport.why_not(host.name, str(error.args[0] if error.args else error)))

    @staticmethod
    def operation_start(state: State, op_hash: str) -> None:
        steps.append((", ".join(state.get_op_meta(op_hash).names), time.monotonic()))

    @staticmethod
    def operation_end(state: State, op_hash: str) -> None:
        name, started = steps.pop()
        steps.append((name, time.monotonic() - started))


def _count_commands(host: Any) -> None:
    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            commands[host.name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("run_shell_command", "put_file", "get_file"):
        setattr(host.connector, name, counted(getattr(host.connector, name)))


# What deploys and operations use
#


def say(*findings: Finding) -> None:
    """Print findings, each once, equal ones of several hosts as one."""
    new = [f for f in dict.fromkeys(findings) if f.line() not in _announced]
    _announced.update(f.line() for f in new)
    if path := os.environ.get(FINDINGS_FILE):
        with Path(path).open("a") as file:
            file.writelines(json.dumps(asdict(finding)) + "\n" for finding in new)
    for finding in fold(new):
        logger.error(styled(finding))


def executing() -> bool:
    """Whether operations run now, as against being prepared."""
    return bool(_state().is_executing)


def changes_are_detected() -> bool:
    """Whether this run looks for changes first (without -y, or dry)."""
    return bool(_state().check_for_changes)


def ended() -> bool:
    """Whether the run came to its end, well or not, and did not break off."""
    return bool(_state().current_stage == StateStage.Disconnect)


def wants_diff() -> bool:
    return bool(_state().config.DIFF)


def is_verbose() -> bool:
    return bool(_state().print_fact_info)


def current_host() -> Any:
    """The real host behind pyinfra's proxy."""
    return _inventory().get_host(_host().name)


def admit(findings: Iterable[Finding]) -> bool:
    """Hold the findings until all hosts were looked at, so that what they share is said once; with an error among
    them that nobody waived, fail the hosts that it is about alone and let the others go on.

    Returns whether the current host goes on.
    """
    from tasks import guard

    plan, here = guard.current_plan(), _host().name
    found = waivers.apply(plan, findings)
    if not _held:
        atexit.register(say_held)
    _held.extend(found)
    _admitted.add(here)
    if not hosts_left() - _admitted:
        say_held()
    names = {node.name for node in plan.fleet.nodes}
    lost = {f.where if f.where in names else here for f in errors(found)}
    fail(lost)
    return here not in lost


def say_held() -> None:
    """Say what was held back."""
    held, _held[:] = list(_held), []
    say(*held)


def fail(names: Collection[str]) -> None:
    """No further operation runs on these hosts; the exit code of the run says so."""
    state = _state()
    if lost := {h for h in state.active_hosts if h.name in names}:
        state.fail_hosts(lost)


def hosts_left() -> frozenset[str]:
    """Hosts of the run that were reached and have not failed."""
    return frozenset(h.name for h in _state().active_hosts)


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


def run_here(
    command: Any, *, stdin: str | None = None, live: bool = False, as_login: bool = False
) -> tuple[bool, list[str], list[str]]:
    """Run a command on the current host with the operation's rights: (succeeded, output lines, error lines).

    ``live`` prints the lines as they come, for long waits; ``as_login`` leaves it to the command to become root.
    """
    state, host = _state(), current_host()
    arguments = {} if as_login else _connector_arguments()
    if stdin is not None:
        arguments["_stdin"] = stdin
    show = live or state.print_output
    try:
        status, output = host.run_shell_command(command, print_output=show, print_input=state.print_input, **arguments)
    except (SSHException, OSError, EOFError) as exc:
        return False, [], [f"the connection is lost ({exc})"]
    return status, output.stdout_lines, output.stderr_lines


def reconnect(seconds: float) -> str:
    """A new connection to the current host; empty, or why there is none after so many seconds."""
    return transport.reconnect(current_host(), seconds)


def tell(line: str) -> None:
    """One line about the current host, as the run goes on."""
    logger.info(f"{current_host().print_prefix}{line}")


def _connector_arguments() -> dict[str, Any]:
    """The current operation's arguments that its connector takes: sudo and its like."""
    from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS

    given = _host().current_op_global_arguments
    return {key: given[key] for key in CONNECTOR_ARGUMENT_KEYS if key in given}
