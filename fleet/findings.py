"""Findings: the one form in which anything wrong is said.

A finding says what is wrong, where, why, and how to mend it, on one line, with the id of its rule.
Every check yields findings and nothing else; ``lines`` prints them, ``as_json`` feeds scripts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One fault. An error stops a run, a warning does not."""

    rule: str
    severity: Severity
    where: str
    what: str
    mend: str
    why: str = ""
    source: str = ""
    waived: str = ""  # why the inventory lets it pass

    @property
    def stops(self) -> bool:
        """Whether a run ends with it."""
        return self.severity == "error" and not self.waived

    def line(self) -> str:
        """The finding as one line of text."""
        why = f" ({self.why})" if self.why else ""
        head, mend = str(self.severity), self.mend
        if self.waived:
            head, mend = f"waived {self.severity}", f"waived: {self.waived}"
        text = f"{head}: {self.where}: {self.what}{why}; {mend} [{self.rule}]"
        return " ".join(text.split())


class FleetError(Exception):
    """Something the user gave cannot be used; carries the findings that say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(f.line() for f in findings))
        self.findings = findings


def error(rule: str, where: str, what: str, mend: str, why: str = "", source: str = "") -> Finding:
    """A finding that stops the run."""
    return Finding(rule, "error", where, what, mend, why, source)


def warning(rule: str, where: str, what: str, mend: str, why: str = "", source: str = "") -> Finding:
    """A finding that is told and does not stop the run."""
    return Finding(rule, "warning", where, what, mend, why, source)


def exit_code(exc: FleetError) -> int:
    """1 where everything could be read and the plan does not hold, else 2."""
    return 1 if all(f.rule.startswith("PLAN-") for f in exc.findings) else 2


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Only those that stop a run."""
    return tuple(f for f in findings if f.stops)


def counted(findings: Iterable[Finding]) -> list[str]:
    """How many of what: ``1 error``, ``2 warnings``, ``1 waived``; empty where there is nothing."""
    found = list(findings)
    bad, waived = len(errors(found)), sum(1 for f in found if f.waived)
    rest = len(found) - bad - waived
    words = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((bad, "error"), (rest, "warning")) if n]
    return words + [f"{waived} waived"] * bool(waived)


def as_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The stable form for scripts."""
    return [asdict(f) for f in findings]
