"""Checks that need no machine: each module looks at one side of a plan, each check yields findings.

A check is a function from a Plan to its findings; a module lists its own in CHECKS, in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet import waivers
from fleet.checks import (
    addresses,
    arguments,
    collectives,
    containers,
    context,
    devices,
    environment,
    images,
    limits,
    memory,
    operators,
    pairs,
    ports,
    published,
    security,
    stack,
    timing,
    transfer,
    weights,
)
from fleet.findings import Finding
from fleet.topology import Plan

Check = Callable[[Plan], Iterator[Finding]]
MODULES = (
    ports,
    operators,
    transfer,
    collectives,
    addresses,
    context,
    memory,
    weights,
    timing,
    containers,
    published,
    images,
    stack,
    pairs,
    arguments,
    limits,
    environment,
    security,
    devices,
)
CHECKS: tuple[Check, ...] = tuple(check for module in MODULES for check in module.CHECKS)


def check_plan(plan: Plan) -> tuple[Finding, ...]:
    """All findings of all checks, in the order of the checks; those that the inventory waives say so."""
    found = [finding for check in CHECKS for finding in check(plan)]
    return waivers.apply(plan, [*found, *waivers.unused(plan, found)])
