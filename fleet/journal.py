"""Reading a unit's journal: taking off a line what carried it here, and finding the one that says why a unit died."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_TELLING = (
    re.compile(r"error: (?:unrecognized|argument|the following|ambiguous)"),
    re.compile(r"No space left on device|Address already in use|out of memory|Permission denied"),
    re.compile(
        r"\[ALERT\].*(?:unable|[Cc]annot|[Cc]an't|unknown|invalid|failed)"
    ),  # HAProxy, above its count of errors
    re.compile(r"\bValue error, \S"),  # pydantic's own line, below the one that only counts them
    re.compile(r"^(?:\S+ )*?[\w.]*(?:Error|Exception): \S"),
)
# What only systemd knows, for a process that could not say it.
_SYSTEMD = re.compile(r"OOM killer|Unable to locate executable|Failed at step|status=9/KILL|status=11/SEGV")
_ERROR_WORD = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|^error\b", re.IGNORECASE)
# Talk on the way, whatever words it holds.
_TALK = re.compile(
    r"^(?:INFO|WARNING|DEBUG)\b|^\S+\.py:\d+: \w*Warning"
    r"|^\[(?:INFO|WARNING|DEBUG|EVENT|NOTICE)\]|^\[?[IW]\d{3,8} ?\d\d:\d\d:\d\d"  # CANN, HAProxy; glog, torch
    r"|\bNCCL INFO\b|^[\d-]+ [\d:,.]+ (?:\| )?(?:INFO|WARNING|DEBUG)\b"
)
_NOISE = re.compile(r"Traceback|EngineCore failed to start|Engine core initialization failed|raise |^\s+File ")
# A line of a program's source, as a traceback quotes it.
_CODE = re.compile(r"^\s*(?:raise |File \"|self\.error\(|assert |return |logger\.)")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CARRIERS = re.compile(
    r"^(?:"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? [\w.:-]+ [\w@./-]+(?:\[\d+\])?: "  # journalctl -o short
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) "  # docker -t, kubectl, journalctl -o short-iso
    r"(?:std(?:out|err) [FP] |[\w.:-]+ [\w@./-]+\[\d+\]: )?"
    r"|[a-z][\w.-]* +\| "  # docker compose
    r")"
)
_PROCESS = re.compile(r"^(?:\((?:[^()]*\bpid=\d+[^()]*|[A-Za-z][\w .:/-]*)\) *|\[rank\d+\]: ?)+")
_LEVEL = re.compile(r"^(?:ERROR|WARNING|CRITICAL|INFO|DEBUG) [0-9: .-]+\s*(?:\[[^\]]*\])?\s*")


def reason(lines: Sequence[str]) -> str:
    """The most telling line, without its log prefix; the last one if none tells."""
    told = [line.strip() for line in lines if line.strip() and not _NOISE.search(line)]
    own = [line for line in told if ".service: " not in line]
    said = [line for line in own if not is_talk(line)]
    for pattern, among in [*((p, said) for p in _TELLING), (_SYSTEMD, told), (_ERROR_WORD, said)]:
        for line in among:
            if pattern.search(line):
                return shown(line)
    return shown(own[-1]) if own else "the journal says nothing"


def tells_death(lines: Sequence[str]) -> bool:
    """Whether systemd wrote that the main process ended."""
    return any("Main process exited" in line or "Failed with result" in line for line in lines)


def uncarried(line: str) -> str:
    """The line as its program wrote it: without colours, and without what journalctl or Docker put before it."""
    line = _ANSI.sub("", line).rstrip("\r\n")
    if line.startswith('{"log":'):
        line = _of_docker(line)
    return _CARRIERS.sub("", line, count=1)


def is_talk(line: str) -> bool:
    """Whether the program calls it information or a warning."""
    return bool(_TALK.search(_PROCESS.sub("", line)))


def is_code(line: str) -> bool:
    """Whether it is a line of source that a traceback quotes."""
    return bool(_CODE.match(bare(line)))


def bare(line: str) -> str:
    """Drop ``(EngineCore pid=12) ERROR 11-30 07:00:00 [core.py:99]`` and its like."""
    return _LEVEL.sub("", _PROCESS.sub("", line))


def shown(line: str) -> str:
    """The line as a person reads it: bare, on one line, and cut where it is long."""
    line = bare(line).strip()
    return line if len(line) <= 300 else line[:297] + "..."


def _of_docker(line: str) -> str:
    """What Docker's json-file driver wraps."""
    try:
        wrapped = json.loads(line)["log"]
    except (ValueError, KeyError, TypeError):
        return line
    return _ANSI.sub("", wrapped).rstrip("\r\n") if isinstance(wrapped, str) else line
