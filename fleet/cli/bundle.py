"""``fleet bundle``: what a rack without internet is given on a disk: listed, and collected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from fleet import bundle as bundles
from fleet import bundle_needs as wants
from fleet import stacks
from fleet.bundle import Bundle, File, size
from fleet.bundle_needs import Held, Need
from fleet.cli.catalogue import aligned
from fleet.findings import Finding, FleetError, as_json, error, errors
from fleet.topology import Plan
from tasks.show import show

EXIT_INCOMPLETE, EXIT_INTERRUPTED = 1, 130
USUAL = "bundle"


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


@click.command()
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
    asked = _asked(inventory, arch, system, kernels)
    if collect is None and (sources or packages):
        what = "--from and --packages are for collecting"
        raise FleetError(error("RUN-OUTPUT", "fleet bundle", what, "add --collect DIR, or leave them out"))
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
    stack = stacks.of_plan(plan)
    arches = (arch,) if arch else wants.arches(plan)
    packages = wants.wanted(plan, stack, kernels)
    chosen = {kind: its for kind, its in packages.items() if system in (None, kind)}
    return Asked(plan, arches, wants.needs(plan, stack, arches, chosen))


def _bundle(folder: Path | None, plan: Plan) -> tuple[Bundle, list[Finding]]:
    """The bundle that is named; an empty one where the inventory's is not made yet."""
    if folder is not None:
        return bundles.scan(folder)
    usual = Path(plan.fleet.settings.bundle or USUAL)
    return bundles.scan(usual) if usual.exists() else (Bundle(usual), [])


def _held(needs: list[Need], at_hand: Bundle) -> list[Held]:
    total = sum(file.size for file in at_hand.files if file.sha256)
    with progress("checking sums", total) as tell:
        return wants.either([wants.held(need, at_hand, lambda file: _digest(file, tell)) for need in needs])


def _digest(file: File, tell: Callable[[int], None]) -> str:
    try:
        return bundles.digest(file.path, tell)
    except OSError as exc:
        raise FleetError(bundles.unreadable(file.path, exc)) from exc


class progress:
    """A line on a terminal's standard error that counts bytes; nothing elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done, self.shown = title, total, 0, -1

    def __enter__(self) -> Callable[[int], None]:
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
    """The list as lines, and what is to be done about what is missing."""
    rows = [("what", "file", "size", "state", "checksum")]
    rows += [(i.need.what, _files(i), size(i.bytes) if i.bytes else "-", i.state, i.checksum or "-") for i in found]
    lines = [*aligned(rows), ""]
    lines += [f"{i.need.what}: {_mend(i)}" for i in found if not i.right or i.state == "by hand"]
    repositories = sum(i.need.kind == "repository" for i in found)
    if repositories > 1:
        lines.append("Of the repositories one will do: --system apt or --system dnf, as the hosts are.")
    judged = [i for i in found if i.state != "by hand"]
    wanted = len(judged) - max(0, repositories - 1)
    missing = sum(not i.right for i in judged) - max(0, repositories - 1)
    said = f"{missing} of {wanted} missing or wrong" if missing else "everything is there and right"
    return [*lines, f"{at_hand.folder}: {size(sum(i.bytes for i in judged))}, {said}"]


def _files(its: Held) -> str:
    if its.need.kind == "repository":
        return f"{its.need.place}/, {len(its.files)} files" if its.files else f"{its.need.place}/"
    return ", ".join(file.name for file in its.files) or ", ".join(its.need.patterns[:1]) or "-"


def _mend(its: Held) -> str:
    if its.state == "several":
        return "keep one of these files"
    if its.checksum == "WRONG":
        return f"download or copy again: {', '.join(file.name for file in its.wrong)}"
    if its.need.kind != "repository":
        return its.need.get
    return f"{its.need.get}; it lacks {', '.join(its.lacks)}"


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
            "packages": list(its.need.names),
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
