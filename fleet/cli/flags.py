"""``fleet flags``: the tables of what each version's command line takes."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
import zlib
from pathlib import Path

import click

from fleet.findings import FleetError, error
from fleet.flags import extract, table
from fleet.flags.table import Table
from fleet.recipe import check_version

# The parser and its classes; a package that is cut off or built otherwise gives one of these, in no particular order.
UNLIKE = (LookupError, AttributeError, AssertionError, StopIteration, SyntaxError, UnicodeDecodeError, RecursionError)
NOT_THERE = ("cannot read: no such file or directory", "give the path of a wheel or of a folder that vllm lies in")
_WHEEL = re.compile(r"^vllm(?:_cpu)?-(?P<version>[^-]+)-.*\.whl$")
_INFO = re.compile(r"^vllm(?:_cpu)?-(?P<version>[^-]+)\.dist-info$")


@click.group()
def flags() -> None:
    """The tables by which arguments and variables are judged, one for each version of vLLM."""


@flags.command("list")
def list_() -> None:
    """Print the versions that have a table, oldest first, and what each holds."""
    for version in table.versions(table.FOLDER):
        click.echo(f"{version:<10} {_held(table.load(version, table.FOLDER))}")


@flags.command()
@click.argument("package", type=click.Path(path_type=Path), metavar="WHEEL_OR_DIR")
@click.argument("version", required=False)
@click.option("--force", is_flag=True, help="Replace the table that the version has.")
def add(package: Path, version: str | None, force: bool) -> None:
    """Make the table of a version from its wheel, or from a folder that vllm lies in, without importing it.

    VERSION may be left out where the wheel's name or the folder's metadata gives it.
    Exit code 2: it cannot be read, or not be written.
    """
    name = _version(package, version)
    target = table.FOLDER / f"{name}.json"
    if target.exists() and not force:
        raise FleetError(error("FLAGS-VERSION", str(target), f"vLLM {name} has a table", "add --force to replace it"))
    made = _read(package, name)
    _replace(target, table.to_json(made))
    click.echo(f"{target}: {_held(made)}")


def _held(one: Table) -> str:
    parts = ((len(one.flags), "flags"), (len(one.configs), "configs"), (len(one.environment), "variables"))
    return ", ".join(f"{count} {what}" for count, what in parts)


def _version(package: Path, said: str | None) -> str:
    """What was said, else what the wheel's name or the folder's metadata says, without what a builder added (+cpu)."""
    names = [package.name]
    with contextlib.suppress(OSError):
        names += [path.name for path in package.glob("vllm*.dist-info")] if package.is_dir() else []
    found = [m["version"] for name in names for form in (_WHEEL, _INFO) if (m := form.match(name))]
    version = said or (found[0] if found else None)
    if version is None:
        if not package.exists():
            raise FleetError(error("FLAGS-READ", str(package), *NOT_THERE))
        mend = "give the version behind it: fleet flags add WHEEL_OR_DIR VERSION"
        raise FleetError(error("FLAGS-VERSION", str(package), "its version is not in its name", mend))
    version = version.removeprefix("v").partition("+")[0]
    try:
        return check_version(version)
    except ValueError as exc:
        what, _, mend = str(exc).partition("; ")
        raise FleetError(error("FLAGS-VERSION", str(package), what, mend)) from exc


def _read(package: Path, version: str) -> Table:
    def refused(what: str, mend: str) -> FleetError:
        return FleetError(error("FLAGS-READ", str(package), what, mend))

    try:
        package.stat()
        if package.is_dir() and not (package / "vllm").is_dir():
            raise refused("there is no folder vllm in it", "give the folder that vllm lies in, as site-packages")
        return extract.read(package, version)
    except (zipfile.BadZipFile, zlib.error, EOFError) as exc:
        raise refused("this is no wheel, or one that is cut off", "download it again") from exc
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise refused(f"cannot read: {reason}", NOT_THERE[1]) from exc
    except UNLIKE as exc:
        mend = "give a package of vLLM, 0.11 or later"
        raise refused("no argument classes as vLLM's are found in it", mend) from exc


def _replace(target: Path, text: str) -> None:
    """Written beside, then renamed: a check that runs meanwhile reads the old table or the new one."""
    beside = None
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(beside).replace(target)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        mend = "run it as who may write there"
        raise FleetError(error("FLAGS-WRITE", str(target.parent), f"cannot write: {reason}", mend)) from exc
    finally:
        if beside is not None:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
