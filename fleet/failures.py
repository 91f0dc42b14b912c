"""The reader of failures: what a log says went wrong, by the catalogue, with the host to blame where it can be told.

A log is read in blocks, however long it is; a line is looked at only where it holds a literal of the catalogue.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from fleet import catalogue, guilty, journal
from fleet.catalogue import Failure, Tell
from fleet.findings import Finding, error
from fleet.guilty import NOBODY, Peers

BLOCK = 1 << 20
# Of one entry: how many of its lines are kept for its reader, and after how many it is known well enough.
KEPT, ENOUGH = 400, 10_000
# Characters of a line on each side of what tells, and of a value.
LONGEST, LONG_VALUE = 2_000, 160


@dataclass(frozen=True)
class Cause:
    """One entry of the catalogue that a log tells: where first (line from 1), how often, and with what values."""

    failure: Failure
    number: int
    line: str
    count: int
    values: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    led_to: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """What happened, with the values of this log, and where."""
        said = _filled(self.failure.what, self.values) or self.failure.says
        named = [host for host in self.hosts if host not in said]
        return said + (f" (on {', '.join(named)})" if named else "")

    @property
    def mend(self) -> str:
        return _filled(self.failure.do, self.values) or self.failure.mend

    def finding(self, where: str, before: str = "") -> Finding:
        """As a finding; ``before`` says of what, as in ``vllm-serve-0 died at start: ``."""
        return error(self.failure.id, where, before + self.what, self.mend, self.failure.why, self.failure.source)


def read(lines: Iterable[str], peers: Peers = NOBODY) -> list[Cause]:
    """What the lines tell, root causes first; nothing for a healthy log, and nothing for one that is not known."""
    return read_blocks(_joined(lines), peers)


def read_blocks(blocks: Iterable[str], peers: Peers = NOBODY) -> list[Cause]:
    """The same for text in blocks, cut anywhere."""
    found: dict[str, _Found] = {}
    number = 1
    for text in _whole_lines(blocks):
        _look_through(text, number, found)
        number += text.count("\n")
    return _ordered([c for f in found.values() if f.count >= f.failure.times for c in [f.cause(peers)]])


def _ordered(causes: list[Cause]) -> list[Cause]:
    """Only the most telling level, in the order of the log; what follows from it is named with the first."""
    first = min((_level(c) for c in causes), default=0)
    hidden = {name for c in causes if _level(c) == first for name in c.failure.hides}
    kept = [c for c in causes if _level(c) == first and c.failure.id not in hidden]
    kept.sort(key=lambda c: c.number)
    rest = tuple(c.failure.id for c in causes if c not in kept)
    return [replace(kept[0], led_to=rest), *kept[1:]] if kept else []


def _level(cause: Cause) -> int:
    return catalogue.LEVELS.index(cause.failure.level)


@dataclass
class _Found:
    """An entry while a log is read."""

    failure: Failure
    number: int
    line: str
    count: int = 0
    values: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, line: str, values: Mapping[str, str | None]) -> None:
        self.count += 1
        for key, value in values.items():
            if value:
                self.values.setdefault(key, _cut(value.strip()))
        if self.failure.reads and len(self.lines) < KEPT:
            self.lines.append(line)

    def cause(self, peers: Peers) -> Cause:
        values = dict(self.values)
        hosts: tuple[str, ...] = ()
        if self.failure.reads:
            hosts = guilty.READERS[self.failure.reads](self.lines, values, peers)
        if hosts:
            values["hosts"] = ", ".join(hosts)
        return Cause(self.failure, self.number, journal.shown(self.line), self.count, values, hosts)


def _look_through(text: str, number: int, found: dict[str, _Found]) -> None:
    """Every line of a block that holds a literal; its first entry has it."""
    spans = _spans(text, found)
    if not spans:
        return
    ends = [i for i, char in enumerate(text) if char == "\n"] if len(spans) > 50 else None
    for start, end in spans:
        line = journal.uncarried(text[start:end])
        told = _told(line)
        if told is None:
            continue
        failure, values = told
        above = bisect_right(ends, start - 1) if ends is not None else text.count("\n", 0, start)
        entry = found.setdefault(failure.id, _Found(failure, number + above, line))
        entry.add(line, values)


def _spans(text: str, found: Mapping[str, _Found]) -> list[tuple[int, int]]:
    """Where the lines stand that hold a literal, in their order; a carriage return starts a line anew on the screen."""
    spans: set[tuple[int, int]] = set()
    for literal, failures in _literals().items():
        if all(found[f].count >= ENOUGH if f in found else False for f in failures):
            continue
        at = text.find(literal)
        while at >= 0:
            start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            spans.add((max(start, at - LONGEST), min(end, at + LONGEST)))
            at = text.find(literal, end)
    return sorted(spans)


@cache
def _literals() -> dict[str, tuple[str, ...]]:
    """The literals of the catalogue, with the entries that each may tell."""
    by: dict[str, list[str]] = {}
    for failure, tell in _tells():
        by.setdefault(tell.has, []).append(failure.id)
    return {literal: tuple(dict.fromkeys(ids)) for literal, ids in by.items()}


@cache
def _tells() -> tuple[tuple[Failure, Tell], ...]:
    return tuple((failure, tell) for failure in catalogue.failures().values() for tell in failure.told_by)


def _told(line: str) -> tuple[Failure, dict[str, str | None]] | None:
    """The first entry that knows this line, with the values that its pattern found."""
    talk = journal.is_talk(line)
    if journal.is_code(line):
        return None
    for failure, tell in _tells():
        if tell.has in line and (failure.talk or not talk) and (match := tell.pattern.search(line)):
            return failure, match.groupdict()
    return None


def _filled(templates: Iterable[str], values: Mapping[str, str]) -> str:
    """The first text whose values are all known."""
    for template in templates:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name}
        if names <= values.keys():
            return template.format_map(values)
    return ""


def _cut(value: str) -> str:
    return value if len(value) <= LONG_VALUE else value[: LONG_VALUE - 4] + " ..."


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines as blocks, so that both ways in are one."""
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line.rstrip("\r\n"))
        size += len(line)
        if size >= BLOCK:
            yield "\n".join(block) + "\n"
            block, size = [], 0
    yield "\n".join(block)


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Blocks that end with a line; one without an end is cut where it is longer than any line can be."""
    rest = ""
    for block in blocks:
        text = rest + block
        cut = text.rfind("\n") + 1
        if not cut and len(text) > 4 * BLOCK:
            cut = len(text) - LONGEST
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if rest:
        yield rest
