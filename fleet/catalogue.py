"""The catalogue of failures that a log names, as data: files/failures/<area>.yaml.

An entry says what a line of a log means: what happened, why, how to mend it, and where that is known from. Each is a
rule like those of files/rules, and can be asked for with ``fleet explain ID``; ``fleet.failures`` reads logs by it.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from pydantic import ValidationError, field_validator

from fleet import FILES, yamlfile
from fleet.findings import FleetError
from fleet.recipe import Strict

FOLDER = FILES / "failures"

# What is shown of a log: its causes; without one, what waited in vain for others; without that, what follows from both.
Level = Literal["cause", "wait", "consequence"]
LEVELS: tuple[Level, ...] = ("cause", "wait", "consequence")


class Tell(Strict):
    """What tells a failure in one line: a literal, and where that is not enough a pattern with named groups."""

    has: str
    like: str = ""

    @field_validator("like")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as exc:
            raise ValueError(f"this is no regular expression: {exc}; mend it") from exc
        return value

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.like or re.escape(self.has))


class Failure(Strict):
    """One entry.

    ``says``, ``why`` and ``mend`` hold for every occurrence. ``what`` and ``do`` are the same of one, with the values
    that its lines gave in braces: the first whose values are all known is used. ``times`` is how often it must be said
    to mean anything, ``talk`` whether lines count that the program itself calls information or a warning, ``hides``
    the entries that only say the same less well, ``reads`` the function of ``fleet.guilty`` that takes more from the
    lines than a pattern can.
    """

    id: str
    says: str
    why: str
    mend: str
    source: str
    tells: tuple[str | Tell, ...]
    examples: tuple[str, ...]
    what: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    level: Level = "cause"
    times: int = 1
    talk: bool = False
    hides: tuple[str, ...] = ()
    reads: Literal["", "missing_ranks", "failed_links", "buffer_size", "peer", "tls_hosts"] = ""

    @cached_property
    def told_by(self) -> tuple[Tell, ...]:
        return tuple(t if isinstance(t, Tell) else Tell(has=t) for t in self.tells)


class _Area(Strict):
    """One file of the catalogue."""

    title: str
    failures: list[Failure]


@cache
def areas(folder: Path = FOLDER) -> dict[str, tuple[Failure, ...]]:
    """Failures by the title of their area, in the order of the files' names.

    The order matters: where two entries know a line, the first one has it.
    """
    found: dict[str, tuple[Failure, ...]] = {}
    for path in sorted(folder.glob("[0-9]*.yaml")):
        document = yamlfile.read(path, "FAILURE-READ")
        try:
            area = _Area.model_validate(document.data)
        except ValidationError as exc:
            raise FleetError(*yamlfile.explain(exc, document, _Area, "FAILURE-KEY")) from exc
        found[area.title] = tuple(area.failures)
    return found


@cache
def failures(folder: Path = FOLDER) -> dict[str, Failure]:
    """All entries by id."""
    return {failure.id: failure for its in areas(folder).values() for failure in its}


def as_rule(failure: Failure) -> dict[str, str]:
    """What an entry is as a rule of ``fleet.rules``."""
    fixed = {"severity": "error", "looks_at": "journal"}
    return {key: getattr(failure, key) for key in ("id", "says", "why", "mend", "source")} | fixed
