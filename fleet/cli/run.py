"""``fleet run``: a deploy with its plan shown first, and an exit code that is true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fleet import yamlfile
from fleet.findings import Finding, FleetError, as_json, error, errors

_PYINFRA = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]


@click.command()
@click.argument("inventory")
@click.argument("verb")
@click.option("-y", "--yes", is_flag=True, help="Apply without asking.")
@click.option("--dry", is_flag=True, help="Show the plan and stop.")
@click.option("--diff", is_flag=True, help="Show the plan line by line.")
@click.option("--limit", multiple=True, metavar="HOST|GROUP", help="Only these hosts; may be repeated.")
@click.option("--data", multiple=True, metavar="KEY=VALUE", help="Override a key of the inventory's data.")
@click.option("--json", "json_output", is_flag=True, help="Result as JSON on standard output.")
@click.option("-v", "--verbose", count=True, help="More of what pyinfra does; may be repeated.")
def run(
    inventory: str,
    verb: str,
    yes: bool,
    dry: bool,
    diff: bool,
    limit: tuple[str, ...],
    data: tuple[str, ...],
    json_output: bool,
    verbose: int,
) -> None:
    """Run deploy/VERB.py on INVENTORY: check, plan, confirm, apply. A verb that changes nothing is run at once.

    Exit code 0 only if everything asked for is so; 1: a host failed; 2: cannot be read or asked;
    130: interrupted.
    """
    from tasks.guard import READING

    deploy = _deploy_file(verb)
    found = _refuse_errors(inventory, data, json_output)
    options = [word for name in limit for word in ("--limit", name)]
    options += [word for pair in data for word in ("--data", pair)]
    options += ["--diff"] * diff + ["-" + "v" * verbose] * bool(verbose)
    if verb not in READING and (dry or not yes):
        code = _pyinfra(["--dry", *options, *["--json"] * json_output, inventory, deploy], json_output, found)
        if code or dry:
            sys.exit(code)
        _confirm(json_output)
    sys.exit(_pyinfra(["-y", *options, *["--json"] * json_output, inventory, deploy], json_output, found))


def _deploy_file(verb: str) -> str:
    known = sorted(p.stem for p in Path("deploy").glob("[a-z]*.py"))
    if not known:
        mend = "run fleet from the root of the repository"
        raise FleetError(error("RUN-VERB", str(Path.cwd()), "there is no folder deploy here", mend))
    if verb not in known:
        raise FleetError(error("RUN-VERB", f"verb {verb}", "there is no such deploy", yamlfile.nearest(verb, known)))
    return f"deploy/{verb}.py"


def _refuse_errors(inventory: str, data: tuple[str, ...], quiet: bool) -> tuple[Finding, ...]:
    """The check that the deploy would make too, here before pyinfra starts; what it found besides errors."""
    from fleet.checks import check_plan
    from fleet.cli.main import EXIT_ERRORS
    from fleet.folding import fold
    from tasks.guard import overrides, plan_of
    from tasks.show import show

    findings = check_plan(plan_of(inventory, overrides(data)))
    if errors(findings):
        show(findings)
        if quiet:
            click.echo(json.dumps({"aborted": True, "exit_code": EXIT_ERRORS, "findings": as_json(findings)}))
        sys.exit(EXIT_ERRORS)
    if not quiet:
        count = len(fold(findings))
        click.echo(f"{inventory}: checked, {count} warning{'s' * (count != 1)}", err=True)
    return findings


def _confirm(json_output: bool) -> None:
    from tasks.edge import EXIT_INTERRUPTED
    from tasks.guard import is_attended

    if json_output or not is_attended():
        raise FleetError(error("RUN-CONFIRM", "fleet run", "nobody is here to confirm", "add --yes to apply"))
    try:
        agreed = click.confirm("Apply this?", err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        click.echo("nothing was changed", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _pyinfra(arguments: list[str], json_output: bool, found: Iterable[Finding]) -> int:
    """Run pyinfra in a process of its own; its green exits that should not be are made red.

    A JSON answer has what the check ``found`` too.
    """
    from tasks.edge import FINDINGS_FILE

    before = signal.signal(signal.SIGINT, _leave_to_child)
    with tempfile.NamedTemporaryFile("r") as findings:
        environment = {**os.environ, FINDINGS_FILE: findings.name}
        try:
            stdout = subprocess.PIPE if json_output else None
            child = subprocess.Popen([*_PYINFRA, *arguments], stdout=stdout, text=True, env=environment)
            output, _ = child.communicate()
        finally:
            signal.signal(signal.SIGINT, before)
        said = [json.loads(line) for line in findings]
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if json_output:
        result = _as_mapping(output or "")
        if result is None:
            code = code or 1
            result = {"aborted": True}
        click.echo(json.dumps({**result, "exit_code": code, "findings": as_json(found) + said}))
    return code


def _leave_to_child(signum: int, frame: FrameType | None) -> None:
    """The child is in the same group, gets the signal too, and says so."""


def _as_mapping(text: str) -> dict[str, Any] | None:
    """pyinfra's JSON, or None: it prints none when it ends early."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
