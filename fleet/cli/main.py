"""``fleet``: what can be said without touching a machine, and the guarded way to run a deploy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click

from fleet import __version__
from fleet.findings import Finding, FleetError, as_json, counted, error, errors, exit_code
from fleet.folding import fold
from fleet.topology import Plan
from tasks.show import show

EXIT_CLEAN, EXIT_ERRORS = 0, 1


class _Group(click.Group):
    """Turns findings into lines and true exit codes; no traceback reaches a user for anything a user can cause."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FleetError as exc:
            show(exc.findings)
            if "--json" in sys.argv:
                answer = {"aborted": True, "exit_code": exit_code(exc), "findings": as_json(exc.findings)}
                click.echo(json.dumps(answer))
            ctx.exit(exit_code(exc))
        except BrokenPipeError:
            ctx.exit(EXIT_CLEAN)
        except OSError as exc:  # a full disk behind a redirection
            what = f"cannot be written or read: {(exc.strerror or str(exc)).lower()}"
            mend = "look at the file's folder, its space and its rights"
            show((error("RUN-OUTPUT", exc.filename or "standard output", what, mend),))
            ctx.exit(EXIT_ERRORS)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fleet")
def main() -> None:
    """From a list of bare machines to a running, checked, upgradable vLLM service."""


@main.command()
@click.argument("inventories", nargs=-1, required=True, metavar="INVENTORY...")
@click.option("--json", "json_output", is_flag=True, help="Findings as JSON on standard output.")
@click.option("--sarif", is_flag=True, help="Findings as SARIF 2.1.0 on standard output, for code hosts and editors.")
def check(inventories: tuple[str, ...], json_output: bool, sarif: bool) -> None:
    """Say what is wrong with INVENTORY and its recipe, without touching a machine.

    Several inventories are also held against each other: services that share hosts must not meet there.
    Exit code 0: clean, or warnings only. 1: errors. 2: cannot be read.
    """
    from fleet import sharing

    if json_output and sarif:
        raise FleetError(error("RUN-OUTPUT", "fleet check", "--json and --sarif are two answers", "choose one"))
    plans: list[Plan] = []
    answers: dict[str, tuple[Finding, ...]] = {}
    code = EXIT_CLEAN
    for inventory in dict.fromkeys(inventories):
        plan, findings, its_code = _checked(inventory)
        code = max(code, its_code)
        plans += [plan] if plan else []
        answers[inventory] = findings
        if not (json_output or sarif):
            show(findings)
            if plan is not None:
                click.echo(summary(inventory, findings))
    between = tuple(sharing.between(plans))
    code = max(code, EXIT_ERRORS if between else EXIT_CLEAN)
    if sarif:
        from fleet.sarif import document

        last = next(reversed(answers))
        click.echo(json.dumps(document({**answers, last: answers[last] + between}), indent=1))
    elif json_output:
        each = [{"inventory": name, "findings": as_json(found)} for name, found in answers.items()]
        several = {"inventories": each, "between": as_json(between)}
        click.echo(json.dumps(several if len(inventories) > 1 else each[0], indent=1))
    else:
        show(between)
    sys.exit(code)


def _checked(inventory: str) -> tuple[Plan | None, tuple[Finding, ...], int]:
    """Plan, findings and exit code of one inventory."""
    from fleet.checks import check_plan
    from tasks import credentials
    from tasks.guard import plan_of

    try:
        plan = plan_of(inventory)
        credentials.files_of(plan)
        findings = check_plan(plan)
        return plan, findings, EXIT_ERRORS if errors(findings) else EXIT_CLEAN
    except FleetError as exc:
        return None, exc.findings, exit_code(exc)


def summary(inventory: str, findings: Iterable[Finding]) -> str:
    """``clean``, or how many of what, as they are shown."""
    return f"{inventory}: " + (", ".join(counted(fold(findings))) or "clean")


@main.command()
@click.argument("inventory")
@click.option("--host", "only", help="Only this host.")
@click.option("--json", "json_output", is_flag=True, help="The plan as JSON, a stable interface for scripts.")
def render(inventory: str, only: str | None, json_output: bool) -> None:
    """Print what would run where: for each unit the script an engineer would have typed."""
    from fleet import yamlfile
    from fleet.render import as_data, config_of, typed, wrapper_of
    from tasks.guard import plan_of

    plan = plan_of(inventory)
    names = [node.name for node in plan.fleet.nodes]
    if only is not None and only not in names:
        mend = yamlfile.nearest(only, names)
        raise FleetError(error("INV-HOST", inventory, f"there is no host {only}", mend))
    if json_output:
        data = as_data(plan)
        if only:
            data["hosts"] = {only: data["hosts"][only]}
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    for node in plan.fleet.nodes:
        if only in (None, node.name):
            for unit in plan.units_of(node.name):
                click.echo(click.style(f"# ---- {unit.at} ({unit.role}, {unit.runtime})", bold=True))
                if unit.image:
                    click.echo(_body(wrapper_of(unit)))
                    click.echo(click.style(f"# and in the container, {unit.name}.sh", bold=True))
                click.echo(_body(typed(unit, node.address)))
                if unit.config:
                    click.echo(click.style(f"# {unit.argv[-1]}", bold=True))
                    click.echo(config_of(plan, unit))
    click.echo("# start order: " + "; then ".join(", ".join(stage) for stage in plan.start_order))


def _body(script: str) -> str:
    """A script without its first lines: the interpreter, the note, the shell's settings."""
    lines = script.splitlines()
    while lines and (lines[0].startswith("#") or lines[0].startswith("set ")):
        lines.pop(0)
    return "\n".join(lines) + "\n"


def _register() -> None:
    """Commands that live in modules of their own."""
    from fleet.cli.bundle import bundle
    from fleet.cli.catalogue import catalogue
    from fleet.cli.draw import draw
    from fleet.cli.explain import explain
    from fleet.cli.flags import flags
    from fleet.cli.run import run

    main.add_command(bundle)
    main.add_command(catalogue)
    main.add_command(draw)
    main.add_command(explain)
    main.add_command(flags)
    main.add_command(run)
    try:
        from fleet.cli.lab import lab
    except ImportError:  # the lab is left out of an installation without the repository
        return
    main.add_command(lab)


_register()

if __name__ == "__main__":
    main()
