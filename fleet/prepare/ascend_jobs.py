"""Which packages of driver and firmware a host needs, and in which order.

HDK installation guide: the first time driver, then firmware; over an older one firmware, then driver, both with
--upgrade. What a cut installation left is installed whole again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fleet.prepare.ascend_run import older, same
from fleet.prepare.ascend_state import State
from fleet.prepare.common import Work
from fleet.prepare.drivers import packages_of
from fleet.stacks import Part

_FULL, _UPGRADE = ("--full", "--quiet"), ("--upgrade", "--quiet")


@dataclass(frozen=True)
class Job:
    """One package to be run."""

    kind: Literal["driver", "firmware"]
    part: Part
    version: str
    arguments: tuple[str, ...]
    why: str  # what there is instead

    @property
    def what(self) -> str:
        return f"{self.kind} {self.version}"


def parts(work: Work) -> tuple[Part | None, Part | None]:
    """Driver and firmware of the catalogue's row."""
    return (work.stack.driver, work.stack.firmware) if work.stack else (None, None)


def wanted(work: Work, part: Part) -> str:
    """The version to install: the row's, or where the row leaves it to the vendor that of the package at hand."""
    if part.exact:
        return part.version
    names = [source.name for _, source in packages_of(work, part) if source]
    found = re.search(r"_(\d[\w.]*?)(?:_linux|-linux|[.]run)", names[0]) if names else None
    return found[1] if found else part.version


def enough(part: Part, version: str, have: str | None) -> bool:
    """Whether what there is will do: just the row's version, or where it names none, that of the package or newer."""
    if part.exact or not have:
        return same(have, version)
    return part.fits(have) and ("*" in version or not older(have, version))


def jobs(work: Work, state: State) -> list[Job]:
    """What has to be installed, in order. What is on disk counts: a restart brings it into effect."""
    driver, firmware = parts(work)
    if driver is None:
        return []
    found = [job for job in (_driver(work, state, driver), _firmware(work, state, firmware)) if job]
    # The firmware needs a driver that answers; where there is one, the firmware goes first.
    return sorted(found, key=lambda job: job.kind == "driver") if state.running else found


def _driver(work: Work, state: State, part: Part) -> Job | None:
    whole = ("--full", "--install-for-all", "--quiet")
    version = wanted(work, part)
    if not state.begun:
        return Job("driver", part, version, whole, "there is none")
    if not state.complete:
        there = f"there is {state.driver or 'none'}, and"
        return Job("driver", part, version, whole, f"{there} its installation did not come to its end")
    if not enough(part, version, state.driver):
        return Job("driver", part, version, _UPGRADE, f"there is {state.driver}")
    if state.unusable and not state.fresh and not work.host.reboot:
        return Job("driver", part, version, _UPGRADE, "npu-smi cannot use the one there is")
    return None


def _firmware(work: Work, state: State, part: Part | None) -> Job | None:
    if part is None:
        return None
    version = wanted(work, part)
    if any(enough(part, version, have) for have in (state.firmware, state.lowest)):
        return None
    arguments = _UPGRADE if state.firmware else _FULL
    return Job("firmware", part, version, arguments, f"there is {state.firmware or state.lowest or 'none'}")
