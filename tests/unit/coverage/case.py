"""The form of a planted failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fleet.findings import Finding

Findings = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Case:
    """Failure ``failure`` of docs/coverage.md is planted in ``broken`` and gives one finding, of ``rule``;
    ``healthy`` is the same without the fault, and gives none."""

    failure: int
    rule: str
    broken: Findings
    healthy: Findings
