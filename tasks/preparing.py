"""Running the parts of the preparation: each host is asked, refused where it must be, changed step by step, proved."""

from __future__ import annotations

import atexit
import shlex
import sys
import time
from functools import cache
from pathlib import Path

import click
from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation

from fleet import bundle, snapshot, stacks, waivers
from fleet.findings import Finding, counted, error, errors
from fleet.prepare import parts, reboots
from fleet.prepare.common import Work
from fleet.topology import Plan
from tasks import asking, edge, guard, transport
from tasks import steps as steps_
from tasks.edge import host

# An answer this old is asked for again: somebody may have read the plan for a while before agreeing to it.
FRESH_SECONDS = 120.0
QUESTION_SECONDS = 300
# Sections of an answer that may hold a password.
SECRET = ("daemonjson",)

_works: dict[str, tuple[float, Work]] = {}
_changes: dict[str, list[str]] = {}
_found: list[Finding] = []
_behind: list[str] = []  # hosts that did not come back into service
_started = time.monotonic()


def look(plan: Plan) -> Work | None:
    """What the current host is like now; None where it gave no answer, which has been said."""
    had = _works.get(host.name)
    if had and time.monotonic() - had[0] < FRESH_SECONDS:
        return had[1]
    node = plan.fleet.node(host.name)
    question = f"{parts.question(plan, node)}\necho '@@ claim'; cat {steps_.LOCK} 2>/dev/null"
    script = f"timeout -k 5 {QUESTION_SECONDS} sh -c {shlex.quote(question)} </dev/null"
    sudo = asking.tries_sudo()
    text = asking.as_root(script) if sudo else script
    with transport.unseen(edge.current_host()):
        _, output, _ = edge.run_here(StringCommand(text), as_login=sudo)
    try:
        sections = snapshot.answered(output)
    except ValueError:
        _say(asking.no_answer(asking.NO_SUDO if output[-1:] == [asking.NO_SUDO] else None))
        return None
    transport.show(edge.current_host(), [f"{key}: {s}" for key in sections if key not in SECRET for s in sections[key]])
    steps_.seen[host.name] = "\n".join(sections.get("claim", []))
    if sections["uid"] != ["0"]:
        mend = "set _sudo = True in the inventory's group_data, or ssh_user = 'root'"
        _say(error("HOST-ROOT", host.name, "the run has no root rights here", mend))
        return None
    its = parts.work(plan, node, sections, _bundle(plan.fleet.settings.bundle), _stack(stacks.name_of(plan)))
    _works[host.name] = (time.monotonic(), its)
    return its


@cache
def _bundle(folder: str | None) -> bundle.Bundle | None:
    """The bundle on this machine; that it can be read was seen before anything was connected to."""
    return bundle.read(Path(folder)) if folder else None


@cache
def _stack(name: str | None) -> stacks.Stack | None:
    """The row of the catalogue; that it is there was seen before anything was connected to."""
    return stacks.find(name) if name else None


def _say(*findings: Finding) -> list[Finding]:
    """Say what was found, waived or not; only what stops the host comes back."""
    found = waivers.apply(guard.current_plan(), findings)
    _found.extend(found)
    edge.say(*found)
    return list(errors(found))


@operation()
def bring(plan: Plan, part: str) -> edge.Commands:
    """Make one part of the current host as it should be."""
    its = look(plan)
    if its is None:
        yield edge.refuse()
        return
    if not _changes:
        atexit.register(_sum_up, plan)
    _changes.setdefault(host.name, [])
    if _say(*parts.refuse(part, its)):
        yield edge.refuse()
        return
    steps = parts.steps(part, its)
    if not steps:
        host.noop(f"{part}: as it should be")
        return
    if not (edge.executing() and edge.changes_are_detected()):  # told already, before the question
        for step in steps:
            edge.tell(step.name)
    if not edge.executing():
        yield edge.changed()
        return
    for step in steps:
        if not steps_.take(its, step, _say):
            _works.pop(host.name, None)
            yield edge.refuse()
            return
        _changes[host.name].append(step.name)
    _works.pop(host.name, None)
    yield edge.changed()


@operation()
def restart(plan: Plan, wave: tuple[str, ...]) -> edge.Commands:
    """Restart the current host where it is of this wave and needs it, and wait until it is back."""
    if host.name not in wave:
        return
    its = look(plan)
    if its is None:
        yield edge.refuse()
        return
    why = parts.pending(its)
    if not why:
        host.noop("no restart needed")
        return
    if _say(*reboots.refuse(its)):
        yield edge.refuse()
        return
    if not (edge.executing() and edge.changes_are_detected()):
        edge.tell(f"restart: {'; '.join(why)}")
    if not edge.executing():
        yield edge.changed()
        return
    if its.host.serving and _behind:
        _say(reboots.stopped(its, _behind[0]))
        yield edge.refuse()
        return
    _works.pop(host.name, None)
    fault = _restarted(plan, its)
    if fault:
        _behind.append(host.name)
        _say(fault)
        yield edge.refuse()
        return
    _changes.setdefault(host.name, []).append("restarted")
    yield edge.changed()


def _restarted(plan: Plan, its: Work) -> Finding | None:
    """Restart; None once the host is back with a new boot, and what served serves."""
    ran = steps_.run(reboots.command(its.host.boot), 30)
    if ran.locked:
        return steps_.locked(its.name)
    deadline = time.monotonic() + 60 * its.node.settings.reboot_minutes
    said = "no answer"
    with steps_.still("restarting"):
        time.sleep(2)
        while time.monotonic() < deadline:
            said = edge.reconnect(min(30.0, deadline - time.monotonic()))
            if said:
                continue
            lines = steps_.run(reboots.ASK, 20, claims=False).lines
            boot = lines[-1] if lines else ""
            if boot != its.host.boot and len(boot) == len(its.host.boot):
                steps_.run(reboots.BOOTED, 150, claims=False)
                break
            if refused := [line.removeprefix("refused ") for line in lines if line.startswith("refused ")]:
                return reboots.refused(its, "; ".join(refused))
            time.sleep(1)
        else:
            return reboots.late(its, said) if said else reboots.same_boot(its)
    if devices := reboots.devices(its):
        with steps_.still("waiting for the devices"):
            steps_.run(devices, reboots.DEVICES_SECONDS + 60, claims=False)
    if not its.host.serving:
        return None
    seconds, units = plan.recipe.start_timeout_seconds, list(its.host.serving)
    wait = f"n=0; until systemctl is-active -q {' '.join(units)}; do "
    wait += f"n=$((n+2)); test $n -lt {seconds} || exit 1; sleep 2; done"
    with steps_.still(f"waiting for {', '.join(units)}"):
        done = steps_.run(wait, seconds + 30, claims=False).done
    return None if done else reboots.units_late(its, units, seconds)


@operation()
def prove(plan: Plan, names: tuple[str, ...]) -> edge.Commands:
    """What these parts brought is so now, on the current host."""
    if not edge.executing():
        return
    its = look(plan)
    if its is None or _say(*parts.prove(names, its)):
        yield edge.refuse()


@operation()
def agree(plan: Plan, names: tuple[str, ...]) -> edge.Commands:
    """Hosts that work together have the same; the one that differs fails."""
    if not edge.executing():
        return
    left = edge.hosts_left()
    works = {name: its for name, (_, its) in _works.items() if name in left}
    if _say(*(f for f in parts.between(names, plan, works) if f.where == host.name)):
        yield edge.refuse()


def _sum_up(plan: Plan) -> None:
    """Standard error, so that --json leaves a clean standard output."""
    out, lost = sys.stderr, edge.lost_hosts()
    names = [node.name for node in plan.fleet.nodes if node.name in _changes]
    if not names or not edge.steps:
        return
    if not edge.ended() and edge.hosts_left():
        click.echo("\nThe run broke off: no host is known to be ready. Run it again, it goes on from there", file=out)
        return
    width = max(map(len, names))
    click.echo(f"\n{click.style('Prepared', bold=True)} in {time.monotonic() - _started:.0f} s", file=out)
    for name in names:
        state = "failed" if name in lost else "ready"
        changes = len(_changes[name])
        did = f"{changes} step{'s' * (changes != 1)}" if changes else "nothing to change"
        if name in lost:
            did = f"{did} done" if changes else "no step done"
        click.echo(f"  {name:<{width}}  {state:<6}  {did}", file=out)
    if words := counted(_found):
        click.echo(f"  {', '.join(words)}, told above", file=out)
    click.echo(click.style("Steps", bold=True), file=out)
    for name, seconds in edge.steps:
        if seconds >= 0.1:
            click.echo(f"  {seconds:7.1f} s  {name if len(name) < 80 else name[:77] + '...'}", file=out)
    if not lost:
        click.echo(f"Next: fleet run {plan.fleet.source} preflight", file=out)
