"""One look at a host before anything is written to it: one remote command, read once and passed on."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation

from fleet import admission, snapshot
from fleet.findings import error
from fleet.snapshot import Snapshot
from fleet.topology import Plan
from tasks import edge, guard
from tasks.edge import host

_NO_SUDO = "no-sudo"
_seen: dict[str, Snapshot] = {}


class HostSnapshot(FactBase[Any]):
    """A Snapshot; None where the host gave no usable answer; ``no-sudo`` where the login may not become root."""

    @staticmethod
    def default() -> Any:
        return None

    def command(self, of: str, become: bool) -> StringCommand:
        plan = guard.current_plan()
        script = snapshot.command(admission.question(plan, plan.fleet.node(of)))
        if not become:
            return StringCommand(script)
        quoted = shlex.quote(script)
        text = f"if [ $(id -u) = 0 ]; then {script}; elif sudo -n true 2>/dev/null; then sudo -n sh -c {quoted}; "
        return StringCommand(text + f"else echo {_NO_SUDO}; fi")

    def process(self, output: list[str]) -> Any:
        if output[-1:] == [_NO_SUDO]:
            return _NO_SUDO
        try:
            return snapshot.parse(output)
        except ValueError:
            return None


def survey(plan: Plan) -> Snapshot | None:
    """What the host is like, or None if it cannot go on: then it has failed, with its findings said."""
    node = plan.fleet.node(host.name)
    # pyinfra would ask for a password where nobody can type one; sudo is tried without, unless one is given.
    become = bool(host.data.get("_sudo", False)) and not host.data.get("_sudo_password", None)
    arguments: dict[str, Any] = {"_sudo": False} if become else {}
    seen = host.get_fact(HostSnapshot, of=host.name, become=become, _ignore_errors=True, **arguments)
    if seen == _NO_SUDO:
        user = host.data.get("ssh_user", None) or "the login"
        mend = f"let {user} use sudo without a password, or give _sudo_password"
        edge.admit([error("HOST-SUDO", host.name, f"{user} may not become root", mend)])
        return None
    if not isinstance(seen, Snapshot):
        what = "the first command had no answer; the login's shell or sudo did not run it"
        edge.admit([error("HOST-ANSWER", host.name, what, "try it: ssh to the host as this user and run sudo -n id")])
        return None
    _seen[host.name] = seen
    return seen if edge.admit(admission.judge(plan, node, seen)) else None


@operation()
def agree(plan: Plan) -> edge.Commands:
    """Gate: the hosts of an instance have the same image, engine, Ray and Python. Changes nothing."""
    if not edge.executing():
        return
    mine = [f for f in admission.differences(plan, _seen) if f.where == host.name]
    for finding in mine:
        edge.say(finding)
    if mine:
        yield edge.refuse()
