"""`fleet lab`: boot, show, enter and remove the embedded lab."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lab.fleet import HostStatus, Lab
    from lab.scenario import Scenario

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_ENGINE = "0.32.0"
USER_ERROR = 2


def one_line_errors(command: Command) -> Command:
    """Print a LabError as `error: ...` and exit 2; an interrupt exits 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from lab.errors import LabError

        try:
            return command(*args, **kwargs)
        except LabError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(USER_ERROR)
        except KeyboardInterrupt:
            click.echo("error: interrupted; `fleet lab down` removes what was begun", err=True)
            sys.exit(130)

    return wrapped  # type: ignore[return-value]


def say(line: str) -> None:
    """Progress goes to standard error, so that standard output stays for results."""
    click.echo(line, err=True)


def make_lab(name: str, subnet: str | None = None) -> Lab:
    """The named lab, with progress on standard error."""
    from lab.fleet import Lab
    from lab.plan import DEFAULT_SUBNET

    return Lab(name, subnet or DEFAULT_SUBNET, say=say)


name_option = click.option("--name", default="lab", show_default=True, help="The lab's name; it begins host names.")


@click.group()
def lab() -> None:
    """Real hosts on this machine, to try a deploy without hardware."""


@lab.command()
@click.option(
    "-n", "--hosts", "count", default=2, show_default=True, type=click.IntRange(min=1), help="How many hosts."
)
@click.option("--docker", is_flag=True, help="With a Docker engine in each host.")
@click.option(
    "--engine", "engines", multiple=True, default=[DEFAULT_ENGINE], show_default=True, metavar="VERSION",
    help="Install this version of the real engine; may be repeated.",
)  # fmt: skip
@click.option("--no-engine", is_flag=True, help="Boot hosts only: no engine, router or model.")
@click.option("--subnet", help="The bridge's network.  [default: 10.231.77.0/24]")
@click.option(
    "--as", "family", type=click.Choice(["ascend-a2", "ascend-a3", "nvidia"]),
    help="Let the hosts pose as machines of this family, with a stand-in for its images. Needs --docker.",
)  # fmt: skip
@click.option(
    "--scenario", "scenario_file", type=click.Path(path_type=Path), metavar="FILE",
    help="What is wrong with that hardware, as JSON (docs/lab.md). Needs --as.",
)  # fmt: skip
@name_option
@one_line_errors
def up(
    count: int,
    docker: bool,
    engines: Sequence[str],
    no_engine: bool,
    subnet: str | None,
    family: str | None,
    scenario_file: Path | None,
    name: str,
) -> None:
    """Boot the lab, or what is missing of it. The first time takes some minutes, later a few seconds."""
    from lab.requirements import require

    begin = time.monotonic()
    require()
    wanted = make_lab(name, subnet)
    scenarios = make_scenarios(wanted, count, docker, family, scenario_file)
    if not no_engine and not family:
        install(engines)
    wanted.up(count, docker=docker)
    if family:
        dress(wanted, scenarios, family)
    click.echo(table(wanted.status(), time.time()))
    click.echo(f"\nlab {name} is up after {time.monotonic() - begin:.1f} s. Next:\n{next_steps(wanted)}")


def make_scenarios(lab: Lab, count: int, docker: bool, family: str | None, file: Path | None) -> dict[str, Scenario]:
    """The hardware of each host, checked before anything boots. Raises LabError."""
    from lab.errors import LabError
    from lab.scenario import for_hosts, read_changes

    if family is None:
        if file:
            raise LabError("--scenario needs --as: it says what is wrong with the hardware of a machine family")
        return {}
    if not docker:
        raise LabError(f"--as {family} needs --docker: engines run in containers there")
    names = [address.name for address in lab.plan.hosts(count)]
    return for_hosts(family, names, read_changes(file) if file else None)


def dress(lab: Lab, scenarios: dict[str, Scenario], family: str) -> None:
    """Hardware and images; both stay what they are where they are already."""
    from lab.hardware import dress_all
    from lab.image import load_image, recipe_images

    dress_all(lab, scenarios)
    images = load_image(lab, list(scenarios), recipe_images(family), say=say)
    click.echo(f"{len(scenarios)} hosts pose as {family}; a stand-in image is there as {', '.join(images)}\n")


def install(engines: Sequence[str]) -> None:
    """The engines, the router and the model; each is made once."""
    from lab.engine import ensure_engine, ensure_router
    from lab.model import ensure_model

    for version in engines:
        ensure_engine(version, extras=["nixl", "ray"], say=say)
    ensure_router(say=say)
    ensure_model(engines[0], say=say)


def next_steps(lab: Lab) -> str:
    """Lines to paste."""
    option = "" if lab.name == "lab" else f" --name {lab.name}"
    here = os.path.relpath(lab.inventory)
    inventory = lab.inventory if here.startswith("..") else here
    return f"  fleet lab ssh{option} {lab.name}-0\n  pyinfra {inventory} exec -- uname -a\n  fleet lab down{option}"


@lab.command()
@name_option
@one_line_errors
def down(name: str) -> None:
    """Remove the lab with everything its hosts wrote; also what a killed run left."""
    from lab.requirements import require

    require()
    begin = time.monotonic()
    make_lab(name).down()
    click.echo(f"lab {name} is down after {time.monotonic() - begin:.1f} s; the cache is kept")


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@name_option
@one_line_errors
def status(as_json: bool, name: str) -> None:
    """Show each host as it is now. Exit 0 when all are up, 1 otherwise, also when there is no lab."""
    found = make_lab(name).status()
    if as_json:
        from dataclasses import asdict

        click.echo(json.dumps({"lab": name, "hosts": [asdict(host) for host in found]}, indent=2))
    elif found:
        click.echo(table(found, time.time()))
    else:
        click.echo(f"lab {name} is not up: fleet lab up")
    sys.exit(0 if found and all(host.state == "up" for host in found) else 1)


def table(hosts: Sequence[HostStatus], now: float) -> str:
    """The hosts as aligned columns."""
    rows = [("name", "address", "state", "since", "pid")]
    for host in hosts:
        rows.append((host.name, host.address, host.state, ago(host.since, now), str(host.pid or "-")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def ago(since: float, now: float) -> str:
    """A time span a person reads at a glance."""
    if not since:
        return "-"
    seconds = max(0, int(now - since))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--user", default="root", show_default=True, help="root, deployer (with sudo) or ops (without).")
@name_option
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@one_line_errors
def ssh(user: str, name: str, host: str, command: Sequence[str]) -> None:
    """Log in to HOST, or run COMMAND there; the exit code is the command's."""
    chosen = make_lab(name)
    need_host(chosen, host)
    argv = [*chosen.ssh_command(user), host, *command]
    os.execvp(argv[0], argv)


@lab.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for each host.")
@name_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[HOST]... -- COMMAND...")
@one_line_errors
def exec_(timeout: float, name: str, words: Sequence[str]) -> None:
    """Run COMMAND on the named hosts, or on all, at the same time. Exit with the highest exit code."""
    from concurrent.futures import ThreadPoolExecutor

    hosts, command = split_words(words, sys.argv)
    chosen = make_lab(name)
    known = need_host(chosen, *hosts)
    with ThreadPoolExecutor(max_workers=16) as pool:
        results = list(pool.map(lambda host: chosen.ssh(host, command, timeout), hosts or known))
    for host, result in zip(hosts or known, results, strict=True):
        for line in (result.stdout + result.stderr).splitlines() or ["(no output)"]:
            click.echo(f"{host}: {line}")
        if result.returncode:
            click.echo(f"{host}: exit code {result.returncode}", err=True)
    sys.exit(max(result.returncode for result in results))


def split_words(words: Sequence[str], argv: Sequence[str]) -> tuple[list[str], str]:
    """Hosts before `--`, the command after it; click drops a leading `--`, which then shows in `argv` only."""
    import shlex

    words = list(words)
    if "--" in words:
        cut = words.index("--")
        hosts, command = words[:cut], words[cut + 1 :]
    elif "--" in argv:
        hosts, command = [], words
    else:
        raise click.UsageError("write -- before the command: fleet lab exec lab-0 -- uname -a")
    if not command:
        raise click.UsageError("no command after --")
    return hosts, command[0] if len(command) == 1 else shlex.join(command)


def need_host(lab: Lab, *names: str) -> list[str]:
    """The names of all hosts, after checking that the given ones exist. Raises LabError."""
    from lab.errors import LabError

    known = [host.name for host in lab.hosts]
    if not known:
        raise LabError(f"lab {lab.name} is not up: fleet lab up")
    for name in names:
        if name not in known:
            raise LabError(f"lab {lab.name} has no host {name!r}; its hosts: {', '.join(known)}")
    return known
