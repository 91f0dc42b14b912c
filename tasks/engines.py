"""Starting units in order, and the gates that no host passes until all that the service needs have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.operations import server

from fleet import failures, journal, quorum, waiting
from fleet.findings import Finding, error
from fleet.guilty import peers_of
from fleet.release import Release
from fleet.snapshot import Snapshot
from fleet.topology import Plan, Unit
from tasks import edge, report
from tasks.edge import host

RELOAD_WORDS = 40


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
    faults = [fault for unit in due if (fault := _start_fault(plan, unit))]
    for fault in faults or [_not_started(due[0], (errors or output or ["no message"])[-1])]:
        edge.say(fault)
    yield edge.refuse()


@operation()
def answer(plan: Plan, stage: Sequence[str], seconds: int) -> edge.Commands:
    """Gate: every unit of the stage on this host is alive, and its server answers. Changes nothing."""
    if not edge.executing():
        return
    node = plan.fleet.node(host.name)
    heads = {u.instance: plan.instance(u.instance) for u in plan.units if u.at in stage and u.kind == "engine"}
    waits = [(u, "") for u in _units_of_stage(plan, stage)]
    # the other members of an instance whose head starts now: what fails on them would leave the head waiting
    for unit in plan.units_of(host.name):
        instance = heads.get(unit.instance)
        if unit.group and unit.at not in stage and instance and instance.head is not node:
            waits.append((unit, instance.url))
    for unit, head in waits:
        text = waiting.wait(plan, unit, node, seconds, head)
        done, output, errors = edge.run_here(StringCommand(text), live=True)
        if not done:
            edge.say(_why_not(plan, unit, [*output, *errors], seconds))
            yield edge.refuse()
            return
        report.alive(unit)


@operation()
def enough(plan: Plan) -> edge.Commands:
    """Gate: what is left of the fleet can still serve; otherwise no host goes on."""
    if not edge.executing():
        return
    missing = quorum.unserved(plan, edge.lost_hosts())
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
    done, output, errors = edge.run_here(StringCommand(waiting.ask_model(plan, url, _local_socket(plan))))
    text, fault = waiting.read_answer(output)
    if not done or fault:
        what = f"no completion through {url}: {fault or (errors or ['no message'])[-1]}"
        edge.say(error("SMOKE", host.name, what, "look at the journals of the units behind it, then run again"))
        yield edge.refuse()
        return
    report.served(plan, url, text)


def _local_socket(plan: Plan) -> str | None:
    """The front door's socket on this host: a completion through it needs no key."""
    door = plan.front_door_of(host.name)
    return f"/run/vllm-fleet/{door.name}/api.sock" if door else None


def entry_of(plan: Plan, name: str) -> str | None:
    """The address at which clients reach the service on this host."""
    address = plan.fleet.node(name).at(0)[:-1]
    return next((e for e in plan.entries if e.partition("://")[2].startswith(address)), None)


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


def _all_out(unit: Unit) -> list[str]:
    """The front door's backends, if somebody has taken every one of them out."""
    ask = f"python3 {unit.current}/run/door.py /run/vllm-fleet/{unit.name} status"
    done, rows, _ = edge.run_here(StringCommand(ask))
    states = dict(row.split("\t")[:2] for row in rows if row.count("\t") == 3)
    return list(states) if done and states and set(states.values()) == {"out"} else []


def _last_words(unit: Unit) -> tuple[list[str], list[str]]:
    """The unit's state and the journal of its last start, and what went wrong with asking."""
    _, words, errors = edge.run_here(StringCommand(waiting.last_words(unit)))
    return waiting.after_mark(words), errors


def _start_fault(plan: Plan, unit: Unit) -> Finding | None:
    """Why a unit that should run does not; None where it runs."""
    words, errors = _last_words(unit)
    if not words:
        return _not_started(unit, (errors or ["no message"])[-1])
    if words[0] == "active" and not unit.reload:
        return None
    # one that runs on, and only could not read its configuration anew, has said other things before
    tail = words[1:][-RELOAD_WORDS:] if unit.reload else words[1:]
    told = _from_catalogue(plan, unit, tail, f"systemd did not start {unit.name}: ")
    return told or _not_started(unit, journal.reason(tail))


def _not_started(unit: Unit, why: str) -> Finding:
    what = f"systemd did not start {unit.name}: {why}"
    return error("UNIT-START", host.name, what, f"see journalctl -u {unit.name} there")


def _from_catalogue(plan: Plan, unit: Unit, lines: list[str], before: str) -> Finding | None:
    """The root cause that the catalogue of failures knows in these lines, with the host to blame."""
    causes = failures.read(lines, peers_of(plan, unit.instance))
    return causes[0].finding(host.name, before) if causes else None


def _why_not(plan: Plan, unit: Unit, said: list[str], seconds: int) -> Finding:
    """The finding for a unit that did not come up, from its own last words."""
    see = f"see journalctl -u {unit.name} there"
    vain = next((line for line in said if line.startswith(waiting.IN_VAIN)), "")
    if vain:
        what = f"{unit.name} waits {vain.removesuffix(';')}"
        return error("RUN-PEERS", host.name, what, "mend that host's unit and run again")
    if unit.reload and (out := _all_out(unit)):
        mend = f"put them back: {unit.current}/run/door.py /run/vllm-fleet/{unit.name} back {out[0]}"
        return error(
            "DOOR-OUT", host.name, f"{unit.name} has nothing in service: {', '.join(out)} are out by hand", mend
        )
    words, errors = _last_words(unit)
    if not words:
        last = (errors or said or ["no message"])[-1]
        return error("UNIT-WAIT", host.name, f"waiting for {unit.name} ended: {last}", "look after the host, run again")
    state, tail = words[0], words[1:]
    late = state == "active" and not journal.tells_death(tail)
    before = f"{unit.name} did not answer within {seconds} s: " if late else f"{unit.name} died at start: "
    if told := _from_catalogue(plan, unit, tail, before):
        return told
    why = journal.reason(tail)
    if late:
        what = f"{unit.name} did not answer within {seconds} s; it last said: {why}"
        return error("UNIT-LATE", host.name, what, f"raise start_timeout_seconds, or {see}")
    return error("UNIT-DIED", host.name, f"{unit.name} died at start: {why}", see)
