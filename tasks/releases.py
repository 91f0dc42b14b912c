"""Putting a release onto a host: one question what is there, one command that writes what differs."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import click
from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation

from fleet import apply, journal, release
from fleet.admission import interface_of
from fleet.findings import error
from fleet.release import Release
from fleet.snapshot import Snapshot
from fleet.topology import Plan
from tasks import edge
from tasks.edge import host


class InstalledRelease(FactBase[dict[str, Any]]):
    """``apply.read``'s answer about the release that ``current`` points to."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, home: str) -> str:
        return apply.ask(home)

    def process(self, output: list[str]) -> dict[str, Any]:
        return apply.read(output)


class InstalledFiles(FactBase[dict[str, str]]):
    """Text of the files of the current release, for a diff."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self, home: str) -> str:
        return apply.ask_files(home)

    def process(self, output: list[str]) -> dict[str, str]:
        return apply.read_files(output)


def build(plan: Plan, seen: Snapshot) -> Release:
    """The release of the current host."""
    node = plan.fleet.node(host.name)
    return release.build(plan, node.name, interface_of(node, seen))


@operation()
def install(wanted: Release | None) -> edge.Commands:
    """Make ``wanted`` the current release, its units known to systemd and enabled; nothing is started here."""
    if wanted is None:
        yield edge.refuse()
        return
    installed = host.get_fact(InstalledRelease, home=wanted.home)
    if apply.is_in_place(wanted, installed):
        host.noop(f"release {wanted.id} is in place")
        return
    if not (edge.executing() and edge.changes_are_detected()):  # told already, before the question
        _tell(wanted, installed)
    if not edge.executing():
        yield edge.changed()
        return
    text = base64.b64encode(release.archive(wanted)).decode()
    done, output, errors = edge.run_here(StringCommand(apply.script(wanted)), stdin="\n".join(_folded(text)))
    if done:
        yield edge.changed()
        return
    why = journal.reason(errors or output)
    edge.say(error("HOST-WRITE", host.name, f"cannot write release {wanted.id}: {why}", "mend that and run again"))
    yield edge.refuse()


def _folded(text: str, width: int = 4096) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


def _tell(wanted: Release, installed: Mapping[str, Any]) -> None:
    """What would change, unit by unit; with --diff, line by line."""
    there = host.get_fact(InstalledFiles, home=wanted.home) if installed.get("id") else {}
    before = installed.get("id") or "none"
    logger.info(f"{host.print_prefix}release {before} -> {wanted.id}")
    for line in apply.changes(there, {path: text for path, (_, text) in wanted.files.items()}):
        logger.info(f"{host.print_prefix}  {line}")
    if edge.wants_diff():
        for line in _diff(there, wanted):
            logger.info(f"{host.print_prefix}{line}")


def _diff(there: Mapping[str, str], wanted: Release) -> Iterator[str]:
    for path in sorted({*there, *wanted.files}):
        if path.endswith((".id", "manifest.json")):
            continue
        old = there.get(path, "").splitlines()
        new = wanted.files[path][1].splitlines() if path in wanted.files else []
        for line in difflib.unified_diff(old, new, f"now/{path}", f"then/{path}", lineterm=""):
            colour = {"+": "green", "-": "red"}.get(line[:1])
            yield click.style(line, fg=colour) if colour else line
