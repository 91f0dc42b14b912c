"""What the drivers of NPUs and GPUs, and CANN, share: packages at hand, the catalogue's row, hosts that differ."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.findings import Finding, error, warning
from fleet.inventory import Node
from fleet.machine import common
from fleet.prepare.common import Source, Work
from fleet.stacks import Part
from fleet.topology import Plan, platform_of


def expected(plan: Plan, node: Node) -> tuple[int, ...]:
    """Indices of the devices that the host must have."""
    return node.settings.device_indices(platform_of(plan.recipe).devices_per_host)


def row(work: Work) -> str:
    """The name of the catalogue's row."""
    return work.stack.name if work.stack else ""


def serving(work: Work) -> str:
    """Which of our units serve on the host."""
    return f"{', '.join(work.host.serving)} serve{'s' * (len(work.host.serving) == 1)}"


def busy(work: Work, what: str, why: str = "requests in flight would be lost") -> Finding:
    """Our own units serve, and something must be installed below them."""
    mend = f"drain the host, systemctl stop {' '.join(work.host.serving)}, then run this again"
    return error("DRIVER-BUSY", work.name, f"{serving(work)}, and {what} must be installed", mend, why)


def left_alone(work: Work, what: str, have: str | None) -> Finding:
    """No row of the catalogue names a driver; ``have`` is what there is, None where there is nothing."""
    mend = "name a row by catalogue in the inventory or the recipe; fleet catalogue lists them"
    named = f"catalogue {work.stack.name} names no driver" if work.stack else "no catalogue is named"
    if have is None:
        return error("DRIVER-CATALOGUE", work.name, f"there is no {what}, and {named}", mend)
    return warning("DRIVER-CATALOGUE", work.name, f"{what} {have} is left as it is, because {named}", mend)


def packages_of(work: Work, part: Part) -> list[tuple[str, Source | None]]:
    """(pattern, file) of each package of a part; None where it is nowhere."""
    patterns = [(p.for_arch(work.host.arch), p.sha256) for p in part.packages]
    return [(pattern, work.find(pattern, sums)) for pattern, sums in patterns]


def missing(work: Work, part: Part, what: str) -> list[Finding]:
    """Packages of a part that are neither on the host nor in the bundle."""
    packages = packages_of(work, part)
    lacking = [pattern for pattern, source in packages if source is None]
    if not packages:
        said = f"catalogue {row(work)} names no package of {what}"
        return [error("DRIVER-PACKAGE", work.name, said, "write its pattern into the row, under packages")]
    if not lacking:
        return []
    said = f"{what} must be installed, and no file {', '.join(lacking)} is at hand"
    bundle = work.node.settings.bundle
    here = f"{bundle}/packages/" if bundle else "packages/ of a folder that the inventory names as bundle"
    there = work.node.settings.bundle_on_host or "a folder of the host that bundle_on_host names"
    return [error("DRIVER-PACKAGE", work.name, said, f"put it into {here}, or into {there}")]


def mixed(plan: Plan, drivers: Mapping[str, str | None], why: str, source: str = "") -> list[Finding]:
    """Hosts of an instance, or of a set, whose driver differs from that of most."""

    def say(host: str, its: str, other: str, theirs: str, company: str) -> Finding:
        mend = f"name one row of the catalogue for all hosts of {company}, and run this again"
        return error("DRIVER-MIXED", host, f"driver {its}, {other} has {theirs}", mend, why, source)

    return common.differing(common.companies(plan), drivers, say)
