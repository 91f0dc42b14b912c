"""Starting units in order, and the gates that no host passes until all that the service needs have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.operations import server

from fleet import journal, waiting
from fleet.findings import Finding, error
from fleet.release import Release
from fleet.snapshot import Snapshot
from fleet.topology import Instance, Plan, Unit
from tasks import edge, report
from tasks.edge import host


class UnitStates(FactBase[dict[str, Any]]):
    """``{unit: UnitState}``."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, units: Sequence[str]) -> str:
        return waiting.ask_states(units)

    def process(self, output: list[str]) -> dict[str, Any]:
        return dict(waiting.read_states(output))


def install_proxy_package(plan: Plan, seen: Snapshot | None) -> None:
    """HAProxy from the distribution, where a front door is planned and none is installed."""
    wanted = any(u.argv[0] == "haproxy" for u in plan.units_of(host.name))
    if seen and wanted and "haproxy" not in seen.tools:
        server.packages(name="install haproxy", packages=["haproxy"])


@operation()
def start(plan: Plan, stage: Sequence[str], release: Release | None) -> edge.Commands:
    """Start this host's units of a stage; restart those that run something else than the release."""
    units = _units_of_stage(plan, stage)
    if not units or release is None:
        return
    if edge.executing() and _refuse_without_peers(plan, units):
        yield edge.refuse()
        return
    states = host.get_fact(UnitStates, units=[u.name for u in units])
    due = [u for u in units if not _is_current(states.get(u.name), release.unit_ids[u.name])]
    if not due:
        host.noop("running as released: " + ", ".join(u.name for u in units))
        return
    if not edge.executing():
        yield edge.changed()
        return
    done, output, errors = edge.run_here(StringCommand(waiting.start(due)))
    if done:
        yield edge.changed()
        return
    last = (errors or output or ["no message"])[-1]
    mend = f"see journalctl -u {due[0].name} there"
    names = ", ".join(u.name for u in due)
    edge.say(error("UNIT-START", host.name, f"systemd did not start {names}: {last}", mend))
    yield edge.refuse()


@operation()
def answer(plan: Plan, stage: Sequence[str], seconds: int) -> edge.Commands:
    """Gate: every unit of the stage on this host is alive, and its server answers. Changes nothing."""
    units = _units_of_stage(plan, stage)
    if not edge.executing() or not units:
        return
    node = plan.fleet.node(host.name)
    for unit in units:
        text = waiting.wait(plan, unit, node, seconds)
        done, output, errors = edge.run_here(StringCommand(text), live=True)
        if not done:
            edge.say(_why_not(unit, errors or output, seconds))
            yield edge.refuse()
            return
        report.alive(unit)


@operation()
def enough(plan: Plan) -> edge.Commands:
    """Gate: what is left of the fleet can still serve; otherwise no host goes on."""
    if not edge.executing():
        return
    missing = unserved(plan, edge.lost_hosts())
    if missing:
        lost = ", ".join(sorted(edge.lost_hosts()))
        mend = "mend them and run again; what runs is left as it is"
        edge.say(error("RUN-INCOMPLETE", plan.fleet.source, f"nothing is left to {missing}: {lost} failed", mend))
        yield edge.refuse()


@operation()
def smoke(plan: Plan) -> edge.Commands:
    """Gate: one real completion with text through the entry of this host. Changes nothing."""
    url = entry_of(plan, host.name)
    if not edge.executing() or url is None:
        return
    done, output, errors = edge.run_here(StringCommand(waiting.ask_model(plan, url)))
    text, fault = waiting.read_answer(output)
    if not done or fault:
        what = f"no completion through {url}: {fault or (errors or ['no message'])[-1]}"
        edge.say(error("SMOKE", host.name, what, "look at the journals of the units behind it, then run again"))
        yield edge.refuse()
        return
    report.served(plan, url, text)


def entry_of(plan: Plan, name: str) -> str | None:
    """The address at which clients reach the service on this host."""
    start = f"http://{plan.fleet.node(name).at(0)[:-1]}"
    return next((e for e in plan.entries if e.startswith(start)), None)


def unserved(plan: Plan, lost: frozenset[str]) -> str:
    """The role or duty for which no whole instance is left, or nothing."""
    for role in plan.recipe.roles:
        if not any(_is_whole(i, lost) for i in plan.of_role(role)):
            return role
    proxies = [u.host for u in plan.units if u.kind == "proxy"]
    if proxies and set(proxies) <= lost:
        return "proxy"
    return ""


def _is_whole(instance: Instance, lost: frozenset[str]) -> bool:
    return not any(m.node.name in lost for m in instance.members)


def _units_of_stage(plan: Plan, stage: Sequence[str]) -> list[Unit]:
    return [u for u in plan.units_of(host.name) if u.at in stage]


def _is_current(state: waiting.UnitState | None, wanted: str) -> bool:
    return state is not None and state.runs and state.started == wanted


def _refuse_without_peers(plan: Plan, units: list[Unit]) -> bool:
    """An instance starts as one or not at all."""
    lost = edge.lost_hosts()
    for unit in units:
        instance = plan.instance(unit.instance)
        gone = [m.node.name for m in instance.members if m.node.name in lost] if instance else []
        if gone:
            what = f"{unit.name} is not started: its instance needs {', '.join(gone)}"
            edge.say(error("RUN-PEERS", host.name, what, "mend that host and run again"))
            return True
    return False


def _why_not(unit: Unit, said: list[str], seconds: int) -> Finding:
    """The finding for a unit that did not come up, from its own last words."""
    see = f"see journalctl -u {unit.name} there"
    _, words, errors = edge.run_here(StringCommand(waiting.last_words(unit)))
    words = waiting.after_mark(words)
    if not words:
        last = (errors or said or ["no message"])[-1]
        return error("UNIT-WAIT", host.name, f"waiting for {unit.name} ended: {last}", "look after the host, run again")
    state, tail = words[0], words[1:]
    why = journal.reason(tail)
    if state == "active" and not journal.tells_death(tail):
        what = f"{unit.name} did not answer within {seconds} s; it last said: {why}"
        return error("UNIT-LATE", host.name, what, f"raise start_timeout_seconds, or {see}")
    return error("UNIT-DIED", host.name, f"{unit.name} died at start: {why}", see)
