"""The one way in which findings are printed."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fleet.findings import Finding
from fleet.folding import fold


def styled(finding: Finding) -> str:
    """The finding's line; the severity in colour, which a terminal shows and nothing else keeps."""
    head, _, rest = finding.line().partition(": ")
    colour = "cyan" if finding.waived else "red" if finding.severity == "error" else "yellow"
    return f"{click.style(head, fg=colour, bold=True)}: {rest}"


def show(findings: Iterable[Finding]) -> None:
    """Findings as lines on standard error, worst first, equal ones of several places as one."""
    for finding in fold(findings):
        click.echo(styled(finding), err=True)
