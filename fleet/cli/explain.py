"""``fleet explain``: what a rule means, and what a log says went wrong."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from fleet import failures, journal
from fleet.failures import BLOCK, Cause
from fleet.findings import FleetError, as_json, error
from fleet.guilty import NOBODY, Peers, peers_of
from fleet.rules import FIXED, Rule, find
from tasks.show import styled

EXIT_TOLD, EXIT_UNKNOWN, EXIT_UNREADABLE = 0, 1, 2
STANDARD_INPUT = "standard input"
# Of a log that is not known: how much of its end is searched for its most telling line.
END = 200_000
_PACKED = {b"\x1f\x8b": "zcat", b"(\xb5/\xfd": "zstdcat", b"\xfd7zXZ": "xzcat", b"BZh": "bzcat", b"PK": "unzip -p"}
_CONTROL = bytes({*range(32)} - set(b"\a\b\t\n\v\f\r\x1b"))
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class Reading:
    """What was found in one log; ``telling`` is its most telling line where nothing was."""

    name: str
    causes: list[Cause]
    telling: str = ""


@click.command()
@click.argument("things", nargs=-1, metavar="WHAT...")
@click.option("--inventory", metavar="INVENTORY", help="Name hosts by the ranks and addresses of this fleet.")
@click.option("--json", "json_output", is_flag=True, help="The answer as JSON on standard output.")
def explain(things: tuple[str, ...], inventory: str | None, json_output: bool) -> None:
    """Say what a rule means, or what a log says went wrong, why, on which host, and how to mend it.

    WHAT is the id of a rule, as findings show it, or a log: a file, or - for standard input, which is read as well
    where nothing is given. Logs of vLLM, vllm-ascend, HCCL, NCCL, Mooncake, Docker, HAProxy and systemd are known.

    Exit code 0: something was recognised. 1: nothing. 2: something cannot be read.
    """
    if not things and sys.stdin.isatty():
        raise FleetError(_unreadable("fleet explain", "nothing is given", "name a rule or a log, or pipe one into it"))
    peers = _peers(inventory)
    rules: list[Rule] = []
    readings: list[Reading] = []
    faults: list[FleetError] = []
    for thing in things or ("-",):
        try:
            answer = _explain(thing, peers)
        except FleetError as exc:
            faults.append(exc)
            continue
        if isinstance(answer, Rule):
            rules.append(answer)
        else:
            readings.append(answer)
        if not json_output:
            click.echo("\n".join(_rule_lines(answer) if isinstance(answer, Rule) else _reading_lines(answer)))
    unread = [finding for fault in faults for finding in fault.findings]
    for finding in unread:
        click.echo(styled(finding), err=True)
    if json_output:
        data = {"rules": [_rule_data(r) for r in rules], "logs": [_data(r) for r in readings]}
        click.echo(json.dumps({**data, "findings": as_json(unread)}, indent=1, ensure_ascii=False))
    told = rules or any(r.causes for r in readings)
    sys.exit(EXIT_UNREADABLE if faults else EXIT_TOLD if told else EXIT_UNKNOWN)


def _peers(inventory: str | None) -> Peers:
    if inventory is None:
        return NOBODY
    from tasks.guard import plan_of

    return peers_of(plan_of(inventory))


def _explain(thing: str, peers: Peers) -> Rule | Reading:
    """A rule, or the reading of a log; what is neither is a FleetError."""
    if thing == "-":
        return _read(STANDARD_INPUT, sys.stdin.buffer, peers)
    path = Path(thing)
    try:
        if path.is_dir():
            raise FleetError(_unreadable(thing, "this is a folder", "name a log in it"))
        if not path.exists() and not _looks_like_a_path(thing):
            return find(thing)
        with path.open("rb") as file:
            return _read(thing, file, peers)
    except (OSError, ValueError) as exc:
        said = (getattr(exc, "strerror", None) or str(exc)).lower()
        raise FleetError(_unreadable(thing, f"cannot read: {said}", "name a rule, or a readable file")) from exc


def _looks_like_a_path(thing: str) -> bool:
    return "/" in thing or "." in thing or "\0" in thing


def _read(name: str, file: BinaryIO, peers: Peers) -> Reading:
    """The reading of one log, whose text passes by in blocks."""
    text = _Text(name, file)
    causes = failures.read_blocks(text.blocks(), peers)
    if causes:
        return Reading(name, causes)
    if text.is_rubbish:
        raise FleetError(_unreadable(name, "this is no text", "name a log; journalctl -u UNIT prints one"))
    said = journal.reason([journal.uncarried(line) for line in text.end.splitlines()]) if text.end.strip() else ""
    return Reading(name, [], said)


class _Text:
    """A log as blocks of text; its end is kept."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self.file = name, file
        self.end = ""
        self.is_rubbish = False

    def blocks(self) -> Iterator[str]:
        head = self.file.read(BLOCK)
        for magic, tool in _PACKED.items():
            if head.startswith(magic):
                name = "FILE" if self.name == STANDARD_INPUT else self.name
                mend = f"unpack it: {tool} {name} | fleet explain -"
                raise FleetError(_unreadable(self.name, "this is compressed", mend))
        coding = next((coding for mark, coding in _MARKS.items() if head.startswith(mark)), "utf-8")
        strange = len(head) - len(head.translate(None, _CONTROL))
        self.is_rubbish = coding != "utf-16" and strange * 20 > len(head)
        decoder = codecs.getincrementaldecoder(coding)("replace")
        raw = head
        while raw:
            text = decoder.decode(raw)
            self.end = (self.end + text)[-END:]
            yield text
            raw = self.file.read(BLOCK)


def _unreadable(where: str, what: str, mend: str) -> Any:
    return error("LOG-READ", where, what, mend)


def _reading_lines(reading: Reading) -> Iterator[str]:
    """For each cause its finding, and under it the line that told it."""
    for cause in reading.causes:
        yield styled(cause.finding(f"{reading.name}:{cause.number}"))
        times = f" ({_times(cause)})" if cause.count > 1 else ""
        yield f"  {click.style(cause.line, dim=True)}{times}"
        if cause.led_to:
            yield f"  what followed from it: {', '.join(cause.led_to)}"
    if not reading.causes:
        telling = f"; its most telling line is: {reading.telling}" if reading.telling else "; it is empty"
        yield f"{reading.name}: nothing that is known{telling}"


def _times(cause: Cause) -> str:
    return f"{cause.count} times" if cause.count < failures.ENOUGH else f"{failures.ENOUGH} times and more"


def _rule_lines(rule: Rule) -> Iterator[str]:
    """A rule for reading."""
    kind = {"either": "error or warning"}.get(rule.severity, rule.severity)
    yield f"{click.style(rule.id, bold=True)} ({kind}): {rule.says}"
    yield f"  why:    {rule.why}"
    yield f"  mend:   {rule.mend}"
    if rule.source:
        yield f"  source: {rule.source}"
    yield f"  waive:  {_waiver(rule)}"


def _waiver(rule: Rule) -> str:
    if rule.waivable:
        return f'waive = {{"{rule.id}": "the reason"}} in group_data'
    if rule.looks_at == "journal":
        return "no: it tells what has happened"
    return "no: without it there is no plan, or no run" if rule.looks_at in FIXED else "no"


def _rule_data(rule: Rule) -> dict[str, Any]:
    return {**rule.model_dump(), "waivable": rule.waivable}


def _data(reading: Reading) -> dict[str, Any]:
    found = []
    for cause in reading.causes:
        finding = as_json([cause.finding(f"{reading.name}:{cause.number}")])[0]
        more = {"line": cause.number, "text": cause.line, "count": cause.count}
        found.append({**finding, **more, "hosts": list(cause.hosts), "led_to": list(cause.led_to)})
    return {"log": reading.name, "causes": found, "telling": reading.telling}
