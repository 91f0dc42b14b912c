"""``fleet draw``: the plan as a picture."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import click

from fleet.findings import FleetError, error


@click.command()
@click.argument("inventory")
@click.option("--output", "-o", metavar="FILE", type=click.Path(path_type=Path), help="Write here.")
def draw(inventory: str, output: Path | None) -> None:
    """Draw what of INVENTORY would run where, and who talks to whom, as an SVG picture.

    Exit code 1: the plan does not hold, or FILE cannot be written. 2: cannot be read, or nowhere to draw.
    """
    from fleet.picture import draw as picture_of
    from tasks.guard import plan_of

    if output is None and sys.stdout.isatty():
        mend = "add --output FILE, or redirect it"
        raise FleetError(error("RUN-OUTPUT", "fleet draw", "a terminal shows no pictures", mend))
    picture = picture_of(plan_of(inventory))
    if output is None:
        click.echo(picture, nl=False)
    else:
        _replace(output, picture)


def _replace(path: Path, text: str) -> None:
    """Written beside, then renamed: whoever looks at the file meanwhile sees the old picture or the new one."""
    if path.is_dir():
        raise FleetError(error("RUN-OUTPUT", str(path), "this is a folder", "name a file in it"))
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as exc:
        exc.filename = str(path.parent)
        raise
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(beside).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise
