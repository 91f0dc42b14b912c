"""What a run has to say at its end: what serves where, how long each step took, and a line to try it with."""

from __future__ import annotations

import atexit
import sys

import click

from fleet import waiting
from fleet.topology import Plan, Unit
from tasks import edge

_alive: list[Unit] = []
_answers: list[tuple[Plan, str, str]] = []


def alive(unit: Unit) -> None:
    """Remember a unit that answered."""
    _alive.append(unit)


def served(plan: Plan, url: str, text: str) -> None:
    """Remember an entry that gave a completion; the first one makes the summary appear at the end."""
    if not _answers:
        atexit.register(_print)
    _answers.append((plan, url, text))


def _print() -> None:
    """Standard error, so that --json leaves a clean standard output; the last line can be pasted."""
    if edge.lost_hosts():
        return
    out = sys.stderr
    plan = _answers[0][0]
    total = sum(seconds for _, seconds in edge.steps)
    click.echo(f"\n{click.style('Serving', bold=True)} {plan.served_name} ({plan.fleet.recipe})", file=out)
    width = max(len(u.at) for u in plan.units)
    for unit in plan.units:
        state = "alive" if unit in _alive else "started"
        ports = ", ".join(f"{name} {port}" for name, port in unit.ports.items())
        click.echo(f"  {unit.at:<{width}}  {state:<7}  {ports}", file=out)
    click.echo(f"{click.style('Steps', bold=True)}, {total:.0f} s in all", file=out)
    for name, seconds in edge.steps:
        click.echo(f"  {seconds:7.1f} s  {name}", file=out)
    if edge.is_verbose():
        for name, count in sorted(edge.commands.items()):
            click.echo(f"remote commands on {name}: {count}", file=out)
    for _, url, text in _answers:
        shown = " ".join(text.split())
        click.echo(f"{url} answered: {shown[:100]!r}", file=out)
    for _, url, _ in _answers[:1]:
        click.echo(f"Try it: {waiting.curl_line(plan, url)}", file=out)
