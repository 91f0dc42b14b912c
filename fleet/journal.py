"""Reading a unit's journal: the one line that says why it died."""

from __future__ import annotations

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
_TALK = re.compile(r"^(?:\([^)]*\)\s*)?(?:INFO|WARNING|DEBUG)\b|^\S+\.py:\d+: \w*Warning")
_NOISE = re.compile(r"Traceback|EngineCore failed to start|Engine core initialization failed|raise |^\s+File ")


def reason(lines: Sequence[str]) -> str:
    """The most telling line, without its log prefix; the last one if none tells."""
    told = [line.strip() for line in lines if line.strip() and not _NOISE.search(line)]
    own = [line for line in told if ".service: " not in line]
    said = [line for line in own if not _TALK.search(line)]
    for pattern, among in [*((p, said) for p in _TELLING), (_SYSTEMD, told), (_ERROR_WORD, said)]:
        for line in among:
            if pattern.search(line):
                return _without_prefix(line)
    return _without_prefix(own[-1]) if own else "the journal says nothing"


def _without_prefix(line: str) -> str:
    """Drop ``(EngineCore pid=12) ERROR 11-30 07:00:00 [core.py:99]`` and its like."""
    line = re.sub(r"^\([^)]*\)\s*", "", line)
    line = re.sub(r"^(?:ERROR|WARNING|CRITICAL|INFO) [0-9: .-]+\s*(?:\[[^\]]*\])?\s*", "", line)
    return line if len(line) <= 300 else line[:297] + "..."


def tells_death(lines: Sequence[str]) -> bool:
    """Whether systemd wrote that the main process ended."""
    return any("Main process exited" in line or "Failed with result" in line for line in lines)
