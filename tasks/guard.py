"""What is refused before pyinfra connects to anything, and what its green exits would hide."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fleet import recipe as recipes
from fleet.checks import check_plan
from fleet.findings import FleetError, error, errors, exit_code
from fleet.plan import plan
from fleet.topology import Plan
from tasks import credentials, inventory
from tasks.show import show

EXIT_ERRORS, EXIT_UNUSABLE = 1, 2
# Deploys that change nothing.
READING = ("preflight",)
# Deploys that treat each host alone, so that a limit may cut an instance.
PREPARING = ("prepare", "base", "drivers", "containers", "images", "firewall", "reboot")

_plans: dict[str, Plan] = {}


def check_before_connecting(params: dict[str, Any]) -> None:
    """Read inventory and recipe, check them, and end the run with a true code where something is wrong."""
    path = params["inventory"]
    try:
        _plans["current"] = the_plan = plan_of(path, overrides(params.get("data") or ()))
        _refuse_empty_limit(the_plan, params)
        credentials.of_this_run(the_plan)
    except FleetError as exc:
        show(exc.findings)
        sys.exit(exit_code(exc))
    findings = check_plan(the_plan)
    if prepares(params):  # nobody else needs the bundle
        findings = tuple(replace(f, severity="error") if f.rule.startswith("BUNDLE-") else f for f in findings)
    show(findings)
    if errors(findings):
        sys.exit(EXIT_ERRORS)


def refuse_unattended(params: dict[str, Any]) -> None:
    """pyinfra would ask where nobody can answer, and end with a traceback."""
    if only_reads(params):
        return
    if not (params.get("yes") or params.get("dry") or params.get("json_output") or is_attended()):
        show((error("RUN-CONFIRM", "pyinfra", "nobody is here to confirm", "add -y to apply, or --dry"),))
        sys.exit(EXIT_UNUSABLE)


def only_reads(params: dict[str, Any]) -> bool:
    """Whether the run's deploys change nothing, so that nobody need confirm them."""
    given = [Path(str(op)).stem for op in params.get("operations") or ()]
    return bool(given) and all(name in READING for name in given)


def prepares(params: dict[str, Any]) -> bool:
    """Whether the run's deploys make hosts ready."""
    given = [Path(str(op)).stem for op in params.get("operations") or ()]
    return bool(given) and all(name in PREPARING for name in given)


def is_attended() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def current_plan() -> Plan:
    """The plan of this run, the same for every host of it."""
    if "current" not in _plans:
        mend = "run pyinfra from the root of the repository"
        show((error("RUN-CONFIG", "config.py", "the run is not guarded", mend),))
        sys.exit(EXIT_UNUSABLE)
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
    names = {node.name for node in the_plan.fleet.nodes}
    groups = {role.replace("-", "_"): set(hosts) for role, hosts in the_plan.fleet.groups.items()}
    groups |= {"all": names, Path(the_plan.fleet.source).stem: names}

    def matching(option: str) -> set[str]:
        chosen: set[str] = set()
        for pattern in params.get(option) or ():
            found = {name for name in names if fnmatch(name, pattern)}
            found = found.union(*(hosts for group, hosts in groups.items() if fnmatch(group, pattern)))
            if not found:
                where, mend = f"--{option} {pattern}", "name a host, a group or a pattern of the inventory"
                raise FleetError(error("RUN-LIMIT", where, "no host of the inventory matches", mend))
            chosen |= found
        return chosen

    left = (matching("limit") or names) - matching("exclude")
    if not left:
        raise FleetError(error("RUN-LIMIT", "--limit, --exclude", "they leave no host", "leave one in"))
    if prepares(params):
        return
    for instance in the_plan.instances:
        members = [m.node.name for m in instance.members]
        if instance.is_group and 0 < len(left.intersection(members)) < len(members):
            what = f"they cut {instance.name}, which runs on {', '.join(members)} as one"
            raise FleetError(error("RUN-LIMIT", "--limit, --exclude", what, "leave all of them in, or none"))
