"""Clocks of hosts against each other.

Each host tells its time when its snapshot begins and when it ends; the control machine notes, by a clock of its own
that only runs on, when it asked and when it had the answer. What a host's clock is ahead of the control machine's
then lies between two bounds, whatever the network and the tools took; only what the bounds leave sure is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.findings import Finding, warning
from fleet.topology import Plan

TOLERATED_SECONDS = 5.0


@dataclass(frozen=True)
class State:
    """All in seconds: the control machine's when it asked and had the answer, the host's own in between."""

    asked: float
    began: float
    ended: float
    had: float

    @property
    def bounds(self) -> tuple[float, float]:
        """What the host's clock is ahead of the control machine's: at least, at most."""
        return self.ended - self.had, self.began - self.asked


def of(sections: Mapping[str, list[str]]) -> tuple[float, float] | None:
    """The host's time at both ends of its answer; None where it has no fractions of seconds, or told only one."""
    try:
        return float(sections["began"][0]), float(sections["ended"][0])
    except (KeyError, IndexError, ValueError):
        return None


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """Hosts whose clock is surely off from that of most others (of the first one, where there are two)."""
    names = [node.name for node in plan.fleet.nodes if node.name in states]
    if len(names) < 2:
        return []
    # Most hosts agree with the one in the middle.
    middle = {n: sum(states[n].bounds) / 2 for n in names}
    right = names[0] if len(names) == 2 else sorted(names, key=lambda n: middle[n])[(len(names) - 1) // 2]
    found = []
    for name in names:
        low, high = states[name].bounds
        its_low, its_high = states[right].bounds
        ahead = low - its_high if low > its_high else high - its_low if high < its_low else 0.0
        if abs(ahead) > TOLERATED_SECONDS:
            word = "ahead of" if ahead > 0 else "behind"
            what = f"the clock is {abs(middle[name] - middle[right]):.0f} s {word} that of {right}"
            why = "logs cannot be laid side by side, and certificates and leases are judged by the wrong time"
            found.append(warning("HOST-CLOCK", name, what, "set it, and run chrony on all hosts", why))
    return found
