"""What is refused before pyinfra connects to anything, and what its green exits would hide."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from typing import Any

import click

from fleet import recipe as recipes
from fleet.check import check_plan
from fleet.findings import Finding, FleetError, error, errors
from fleet.plan import Plan, plan
from tasks import inventory

EXIT_ERRORS, EXIT_UNREADABLE = 1, 2

_plans: dict[str, Plan] = {}


def check_before_connecting(params: dict[str, Any]) -> None:
    """Read inventory and recipe, check them, and end the run with a true code where something is wrong."""
    path = params["inventory"]
    try:
        _plans["current"] = the_plan = plan_of(path, overrides(params.get("data") or ()))
        _refuse_empty_limit(the_plan, params)
    except FleetError as exc:
        _show(exc.findings)
        sys.exit(EXIT_UNREADABLE)
    findings = check_plan(the_plan)
    _show(findings)
    if errors(findings):
        sys.exit(EXIT_ERRORS)


def current_plan() -> Plan:
    """The plan of this run, the same for every host of it."""
    if "current" not in _plans:
        raise FleetError(
            error("RUN-CONFIG", "config.py", "the run is not guarded", "run pyinfra from the root of the repository")
        )
    return _plans["current"]


def plan_of(path: str, data: dict[str, Any] | None = None) -> Plan:
    """The plan of an inventory file; a FleetError carries every fault."""
    fleet = inventory.fleet_of(path, data)
    return plan(fleet, recipes.load(recipes.find(fleet.recipe)))


def overrides(data: Iterable[str]) -> dict[str, Any]:
    """``--data key=value`` as pyinfra reads it."""
    from pyinfra_cli.util import parse_cli_arg

    pairs = [str(item).partition("=") for item in data]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise FleetError(error("RUN-DATA", f"--data {key}", "this is no KEY=VALUE", "write --data key=value"))
    return {key: parse_cli_arg(value) for key, _, value in pairs}


def _refuse_empty_limit(the_plan: Plan, params: dict[str, Any]) -> None:
    """pyinfra passes over a limit that matches nothing, and ends well with nothing done."""
    names = [*(n.name for n in the_plan.fleet.nodes), *the_plan.fleet.groups, "all"]
    names += [role.replace("-", "_") for role in the_plan.fleet.groups]
    for option in ("limit", "exclude"):
        for pattern in params.get(option) or ():
            if not any(fnmatch(name, pattern) for name in names):
                where, mend = f"--{option} {pattern}", "name a host, a group or a pattern of the inventory"
                raise FleetError(error("RUN-LIMIT", where, "no host of the inventory matches", mend))


def _show(findings: tuple[Finding, ...]) -> None:
    for finding in sorted(findings, key=lambda f: f.severity != "error"):
        head, _, rest = finding.line().partition(": ")
        colour = "red" if finding.severity == "error" else "yellow"
        click.echo(f"{click.style(head, fg=colour, bold=True)}: {rest}", err=True)
