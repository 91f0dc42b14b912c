"""``fleet bundle``: what a rack without internet is given on a disk: listed, and collected."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click

from fleet import bundle as bundles
from fleet import bundle_needs as wants
from fleet import stacks
from fleet.bundle import Bundle, Tell, size
from fleet.bundle_needs import Held, Need
from fleet.cli.catalogue import HANGING
from fleet.findings import Finding, FleetError, as_json, error, errors
from fleet.topology import Plan
from tasks.show import show

EXIT_INCOMPLETE, EXIT_INTERRUPTED = 1, 130
USUAL = "bundle"
_KERNEL = re.compile(r"[0-9][A-Za-z0-9._+~-]*\Z")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for: the plan, and which hosts it is for."""

    plan: Plan
    arches: tuple[str, ...]
    needs: list[Need]

    @property
    def arch(self) -> str | None:
        """The one architecture, where there is one."""
        return self.arches[0] if len(self.arches) == 1 else None


@click.command(short_help="What a rack without internet needs on a disk; collect it.")
@click.argument("inventory")
@click.option(
    "--dir", "folder", metavar="DIR", type=click.Path(path_type=Path), help="The bundle; else the inventory's."
)
@click.option("--collect", metavar="DIR", type=click.Path(path_type=Path), help="Make or complete the bundle DIR.")
@click.option("--from", "sources", metavar="FOLDER", multiple=True, type=click.Path(path_type=Path),
              help="Where downloaded files of vendors lie; may be repeated.")  # fmt: skip
@click.option("--arch", type=click.Choice(["aarch64", "x86_64"]), help="Of the hosts: what uname -m says there.")
@click.option("--system", type=click.Choice(["apt", "dnf", "none"]), help="How the hosts install packages; else both.")
@click.option(
    "--kernel", "kernels", metavar="RELEASE", multiple=True, help="Headers of this kernel: uname -r of hosts."
)
@click.option("--packages", is_flag=True, help="Download the distribution's packages, with all that they need.")
@click.option("--json", "json_output", is_flag=True, help="The list as JSON on standard output.")
def bundle(
    inventory: str,
    folder: Path | None,
    collect: Path | None,
    sources: tuple[Path, ...],
    arch: str | None,
    system: str | None,
    kernels: tuple[str, ...],
    packages: bool,
    json_output: bool,
) -> None:
    """List what the hosts of INVENTORY need on a disk, and what of it is there and right.

    With --collect, look for it in the folders of --from, copy it, save images with docker where it is here, and write
    SHA256SUMS, which every host is then held to. A run that was cut goes on.

    Exit code 0: everything is there and right. 1: something is missing or wrong. 2: cannot be read.
    """
    if collect is None and (sources or packages):
        what = "--from and --packages are for collecting"
        raise FleetError(error("RUN-OUTPUT", "fleet bundle", what, "add --collect DIR, or leave them out"))
    if collect is not None and folder is not None:
        what = "--dir and --collect both name the bundle"
        raise FleetError(error("RUN-OUTPUT", "fleet bundle", what, "leave --dir out"))
    for kernel in kernels:
        if not _KERNEL.match(kernel):
            mend = "write what uname -r says on the hosts: 6.8.0-60-generic"
            raise FleetError(error("RUN-OUTPUT", "fleet bundle", f"--kernel {kernel!r} is no kernel's release", mend))
    asked = _asked(inventory, arch, system, kernels)
    faults: list[Finding] = []
    if collect is not None:
        from fleet.cli.collect import collect_into

        try:
            faults += collect_into(collect, asked, sources, packages)
        except KeyboardInterrupt:
            mend = "run the same line again to go on"
            show((error("RUN-INTERRUPTED", str(collect), "the collecting was interrupted", mend),))
            sys.exit(EXIT_INTERRUPTED)
    at_hand, its_faults = _bundle(collect or folder, asked.plan)
    faults += its_faults
    found = _held(asked.needs, at_hand)
    faults += [f for f in wants.findings(found) if f not in faults]
    complete = all(its.right for its in found) and not errors(faults)
    if json_output:
        click.echo(json.dumps(as_data(at_hand, found, faults, complete), indent=1))
    else:
        show(faults)
        click.echo("\n".join(listed(at_hand, found)))
    sys.exit(0 if complete else EXIT_INCOMPLETE)


def _asked(inventory: str, arch: str | None, system: str | None, kernels: tuple[str, ...]) -> Asked:
    from tasks.guard import plan_of

    plan = plan_of(inventory)
    arches = (arch,) if arch else wants.arches(plan)
    return Asked(plan, arches, wants.needs(plan, stacks.of_plan(plan), arches, kernels, system))


def _bundle(folder: Path | None, plan: Plan) -> tuple[Bundle, list[Finding]]:
    """The bundle that is named; an empty one where the inventory's is not made yet."""
    if folder is not None:
        return bundles.scan(folder)
    usual = Path(plan.fleet.settings.bundle or USUAL)
    return bundles.scan(usual) if usual.exists() else (Bundle(usual), [])


def _held(needs: list[Need], at_hand: Bundle) -> list[Held]:
    total = sum(file.size for file in at_hand.files if file.sha256)
    with progress("checking sums", total) as tell:
        return wants.either([wants.held(need, at_hand, lambda file: bundles.digest(file.path, tell)) for need in needs])


class progress:
    """A line on a terminal's standard error that counts bytes; nothing elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done, self.shown = title, total, 0, -1

    def __enter__(self) -> Tell:
        return self.tell

    def tell(self, count: int) -> None:
        """So many bytes more."""
        self.done += count
        percent = min(100, self.done * 100 // max(self.total, 1))
        if percent != self.shown and sys.stderr.isatty():
            self.shown = percent
            click.echo(f"\r{self.title}: {percent}% of {size(self.total)}", err=True, nl=False)

    def __exit__(self, *_: object) -> None:
        if self.shown >= 0:
            click.echo("\r\x1b[K", err=True, nl=False)


def listed(at_hand: Bundle, found: list[Held]) -> list[str]:
    """The list as lines of a terminal's width, each need with its files or where they come from."""
    lines: list[str] = []
    for its in found:
        lines.append("  ".join((f"{its.state:<7}", f"{its.checksum or '-':<8}", f"{_size(its):>8}", its.need.what)))
        for text in _more(its):
            lines += textwrap.wrap(text, 78, initial_indent=_UNDER, subsequent_indent=f"{_UNDER}  ", **HANGING)
    repositories = sum(i.need.kind == "repository" for i in found)
    lines.append("")
    if repositories > 1:
        lines.append("Of the repositories one will do: --system apt or --system dnf, as the hosts are.")
    judged = [i for i in found if i.state != "by hand"]
    wanted = len(judged) - max(0, repositories - 1)
    missing = sum(not i.right for i in judged) - max(0, repositories - 1)
    said = f"{missing} of {wanted} missing or wrong" if missing else "everything is there and right"
    return [*lines, f"{at_hand.folder}: {size(sum(i.bytes for i in judged))}, {said}"]


_UNDER = " " * 9


def _size(its: Held) -> str:
    return size(its.bytes) if its.bytes else "-"


def _more(its: Held) -> list[str]:
    """The files that are there, and what to do about what is not."""
    place = f"{its.need.place}/"
    if its.need.kind == "repository":
        files = [f"{place}: {len(its.files)} file{'s' * (len(its.files) != 1)}"] if its.files else []
    else:
        files = [place + file.name for file in its.files]
    if its.state == "by hand":
        return [its.need.get]
    if its.state == "several":
        return [*files, "keep one of these files"]
    if its.checksum == "WRONG":
        return [*files, "download or copy again what is told above"]
    if its.right:
        return files
    if its.need.kind == "repository":
        return [*files, f"it lacks {', '.join(its.lacks)}", its.need.get]
    return [place + its.need.patterns[0], its.need.get]


def as_data(at_hand: Bundle, found: list[Held], faults: list[Finding], complete: bool) -> dict[str, object]:
    """The stable form for scripts."""
    needs = [
        {
            "kind": its.need.kind,
            "what": its.need.what,
            "place": its.need.place,
            "patterns": list(its.need.patterns),
            "files": [at_hand.relative(file) for file in its.files],
            "bytes": its.bytes,
            "state": its.state,
            "checksum": its.checksum,
            "lacks": list(its.lacks),
            "packages": [its.need.asked(name) for name in its.need.names],
            "optional": list(its.need.optional),
            "get": its.need.get,
        }
        for its in found
    ]
    total = sum(its.bytes for its in found if its.state != "by hand")
    return {
        "bundle": str(at_hand.folder), "needs": needs, "bytes": total, "complete": complete,
        "findings": as_json(faults),
    }  # fmt: skip
