"""Findings as people scan them: worst first, a host's together, and what many hosts share said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.findings import Finding

SHOWN = 4  # so many runs of names are listed


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Equal findings of several places as one, their places written short.

    Order: what stops a run, then warnings, then what is waived; among these first what concerns several places, then
    place by place.
    """
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        seen = places.setdefault(replace(finding, where=""), [])
        if finding.where not in seen:
            seen.append(finding.where)
    first: dict[str, int] = {}
    for its in places.values():
        for place in its:
            first.setdefault(place, len(first))

    def order(item: tuple[Finding, list[str]]) -> tuple[int, bool, int]:
        finding, its = item
        return (_weight(finding), len(its) == 1, first[its[0]])

    return [replace(f, where=short(its)) for f, its in sorted(places.items(), key=order)]


def _weight(finding: Finding) -> int:
    return 2 if finding.waived else 0 if finding.severity == "error" else 1


def short(names: Sequence[str]) -> str:
    """``a3-[0-7,9], b`` for many names; one name as it is, and a count where a list stays long."""
    if len(names) == 1:
        return names[0]
    runs: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        head, number, tail = match.groups() if match else (name, "", "")
        runs.setdefault((head, tail), []).append(number)
    texts = [f"{head}{_numbers(numbers)}{tail}" for (head, tail), numbers in runs.items()]
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"{', '.join(texts[:SHOWN])}{more} ({len(names)} places)"


def _numbers(numbers: Sequence[str]) -> str:
    """``[0-7,9]``; numbers keep their leading zeros."""
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda n: (len(n), int(n or 0))):
        last = runs[-1][-1] if runs else ""
        if last and int(number) == int(last) + 1 and (len(number) == len(last) or number[0] != "0"):
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"
