"""Where packages of the distribution come from: needed by every part that installs some, whichever is run alone."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.findings import Finding
from fleet.inventory import Node
from fleet.prepare import base
from fleet.prepare.common import Step, Work
from fleet.topology import Plan


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked with the base."""
    return []


def parse(sections: Mapping[str, list[str]]) -> None:
    """Read with the base."""


def refuse(work: Work) -> list[Finding]:
    """Nothing is known of other distributions."""
    return base.refuse(work)


def steps(work: Work) -> list[Step]:
    """The bundle's repository brought, and named with the inventory's own."""
    return base.sources(work)


def prove(work: Work) -> list[Finding]:
    """What comes from them is proved by those who install it."""
    return []
