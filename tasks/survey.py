"""One look at a host before anything is written to it: one remote command, read once and passed on."""

from __future__ import annotations

import atexit
import sys
import time
from typing import Any

import click
from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase

from fleet import admission, snapshot, waivers
from fleet.checks import check_plan
from fleet.findings import Finding, counted
from fleet.machine import modules
from fleet.snapshot import Snapshot
from fleet.topology import Plan
from tasks import asking, edge, guard
from tasks.edge import host

_seen: dict[str, Snapshot] = {}
_looked_at: set[str] = set()
_found: list[Finding] = []
_reports: set[str] = set()


class HostSnapshot(FactBase[Any]):
    """A Snapshot; None where the host gave no usable answer; ``no-sudo`` where the login may not become root."""

    @staticmethod
    def default() -> Any:
        return None

    def command(self, of: str, become: bool, whole: bool) -> StringCommand:
        plan = guard.current_plan()
        node = plan.fleet.node(of)
        script = snapshot.command(admission.question(plan, node), modules.sections(plan, node, whole))
        if not become:
            return StringCommand(script)
        return StringCommand(asking.as_root(script))

    def process(self, output: list[str]) -> Any:
        if output[-1:] == [asking.NO_SUDO]:
            return asking.NO_SUDO
        try:
            return snapshot.parse(output)
        except ValueError:
            return None


def survey(plan: Plan, whole: bool = False) -> Snapshot | None:
    """What the host is like, or None if it cannot go on: then it has failed, with its findings said.

    The ``whole`` is what takes long even where the service runs.

    With the last host, hosts that work together are compared; those that differ fail before anything is written.
    """
    node = plan.fleet.node(host.name)
    become = asking.tries_sudo()
    arguments: dict[str, Any] = {"_sudo": False} if become else {}
    asked = time.monotonic()
    seen = host.get_fact(HostSnapshot, of=host.name, become=become, whole=whole, _ignore_errors=True, **arguments)
    if isinstance(seen, Snapshot):
        _seen[host.name] = seen = snapshot.timed(seen, asked, time.monotonic())
        findings = list(admission.judge(plan, node, seen))
    else:
        findings = [asking.no_answer(seen)]
    _looked_at.add(host.name)
    findings += _agree(plan)
    _found.extend(waivers.apply(plan, findings))
    return seen if edge.admit(findings) and isinstance(seen, Snapshot) else None


def _agree(plan: Plan) -> list[Finding]:
    """Once the last host was looked at: what must be the same over hosts and is not. Before that, nothing."""
    if edge.hosts_left() - _looked_at:
        return []
    return admission.differences(plan, _seen)


def preflight(plan: Plan) -> None:
    """Look at the host and go no further; the run's last line counts what was found on all of them."""
    if not _reports:
        atexit.register(_sum_up, plan)
    _reports.add(host.name)
    try:
        survey(plan, whole=True)
    except PyinfraError:
        if edge.hosts_left():
            raise
        # Every host has its error: that ends this run as it should, with all of them told.


def _sum_up(plan: Plan) -> None:
    """Standard error, so that --json leaves a clean standard output."""
    gone = sorted(edge.lost_hosts() - _looked_at)
    click.echo(f"\n{summary(len(_looked_at), len(gone), [*check_plan(plan), *_found])}", file=sys.stderr)


def summary(looked_at: int, gone: int, findings: list[Finding]) -> str:
    """``3 hosts checked, nothing to complain about``."""
    words = counted(findings) + [f"{gone} not reached"] * bool(gone)
    return f"{looked_at} host{'s' * (looked_at != 1)} checked, {', '.join(words) or 'nothing to complain about'}"
