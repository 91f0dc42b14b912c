"""``fleet catalogue``: versions that go together, from the driver to the image."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from fleet import stacks
from fleet.findings import Finding, FleetError, as_json, counted, errors
from fleet.stacks import Part, Stack
from tasks.show import show

HEADS = ("name", "platform", "driver", "firmware", "CANN / CUDA", "vLLM", "image", "checksums")
# What fits into 80 columns; the image without its registry.
SHORT = ("name", "driver", "CANN / CUDA", "vLLM", "image")
HANGING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
EXIT_ERRORS, EXIT_UNREADABLE = 1, 2


@click.group(invoke_without_command=True, short_help="Versions that go together, from driver to image.")
@click.option("--json", "json_output", is_flag=True, help="The rows as JSON on standard output.")
@click.pass_context
def catalogue(ctx: click.Context, json_output: bool) -> None:
    """Versions that go together: driver, firmware, CANN or CUDA, engine, image. Without a command, list the rows.

    A recipe or an inventory names its row: catalogue = "a3-cann-8.5.0".
    """
    if ctx.invoked_subcommand is not None:
        return
    rows = stacks.all_rows()
    if json_output:
        click.echo(json.dumps([row.model_dump(mode="json") for row in rows], indent=1, ensure_ascii=False))
        return
    click.echo("\n".join(aligned([SHORT, *map(short, rows)])))
    click.echo("\nAll of a row: fleet catalogue show NAME")


@catalogue.command("show", short_help="Print all of one row.")
@click.argument("name")
@click.option("--json", "json_output", is_flag=True, help="The row as JSON on standard output.")
def show_(name: str, json_output: bool) -> None:
    """Print all of one row: its packages, where its facts come from, and what is not known."""
    row = stacks.find(name)
    if json_output:
        click.echo(json.dumps(row.model_dump(mode="json"), indent=1, ensure_ascii=False))
    else:
        click.echo("\n".join(told(row)))


@catalogue.command("check", short_help="Hold rows against the vendors' tables.")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--json", "json_output", is_flag=True, help="Findings as JSON on standard output.")
def check(names: tuple[str, ...], json_output: bool) -> None:
    """Hold rows against the tables of files/versions; all of the catalogue where none is named.

    Exit code 0: clean, or warnings only. 1: errors. 2: a row cannot be read.
    """
    found: list[Finding] = []
    code = 0
    for name in names or stacks.names():
        try:
            its = stacks.check(stacks.find(name))
        except FleetError as exc:
            its, code = list(exc.findings), EXIT_UNREADABLE
        found += its
    code = max(code, EXIT_ERRORS if errors(found) else 0)
    if json_output:
        click.echo(json.dumps(as_json(found), indent=1))
    else:
        show(found)
        count = len(names or stacks.names())
        click.echo(f"{count} row{'s' * (count != 1)}: " + (", ".join(counted(found)) or "clean"))
    sys.exit(code)


def cells(row: Stack) -> tuple[str, ...]:
    """One line of the table."""
    below = f"CUDA {row.cuda}" if row.cuda else f"CANN {row.cann.version}" if row.cann else "-"
    engine = row.vllm + (f", vllm-ascend {row.vllm_ascend}" if row.vllm_ascend else "")
    driver = _version(row.gpu_driver or row.driver)
    return row.name, row.platform, driver, _version(row.firmware), below, engine, row.image, row.pinned


def short(row: Stack) -> tuple[str, ...]:
    """One line of the table on a terminal."""
    all_ = dict(zip(HEADS, cells(row), strict=True)) | {"vLLM": row.vllm, "image": row.image.rpartition("/")[2]}
    return tuple(all_[head] for head in SHORT)


def _version(part: Part | None) -> str:
    """``25.5.1``; a version that no source tells is the package's own."""
    return "-" if part is None else "the package's" if part.version == "*" else part.version


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def told(row: Stack) -> list[str]:
    """All of a row as lines."""
    lines = [f"{row.name}: {row.title}", ""]
    facts = zip(HEADS[1:], cells(row)[1:], strict=True)
    lines += aligned([(f"  {head}", value) for head, value in facts])
    lines += [f"  digest  {row.digest}"] if row.digest else []
    names = row.gpu_driver
    lines += [f"  packages of apt: {', '.join(names.apt)}"] if names and names.apt else []
    lines += [f"  packages of dnf: {', '.join(names.dnf)}"] if names and names.dnf else []
    if row.packages:
        lines += ["", "  files of vendors:"]
        for package in row.packages:
            lines.append(f"    {package.pattern}" + ("" if package.sha256 else "  (checksum not pinned)"))
            lines += [f"      {digest}  {name}" for name, digest in package.sha256.items()]
    said = [f"source: {row.source}", *(f"note: {note}" for note in row.notes)]
    return [*lines, "", *(line for text in said for line in _wrapped(text))]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="    ", **HANGING)
