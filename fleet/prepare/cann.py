"""CANN on hosts whose engines run outside containers: toolkit, operators and nnal, in this order.

Where versions stand (CANN installation guide, 8.x and 9.x): up to 8.3 below ascend-toolkit/latest, from 8.5 on below
cann; the operators' package was called kernels before 8.5. nnal wants the toolkit's environment to be installed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleet.findings import Finding, error
from fleet.inventory import Node
from fleet.machine import scope
from fleet.prepare import ascend_run, drivers
from fleet.prepare.ascend_jobs import enough, wanted
from fleet.prepare.ascend_run import older
from fleet.prepare.common import Outcome, Source, Step, Work, plain
from fleet.snapshot import MARK
from fleet.stacks import Part
from fleet.topology import Plan

KINDS = ("toolkit", "ops", "nnal")
ROOT = "/usr/local/Ascend"
_TOOLKIT = ("cann", "ascend-toolkit/latest")
FILES = {
    "toolkit": tuple(f"{ROOT}/{top}/*-linux/ascend_toolkit_install.info" for top in _TOOLKIT),
    "ops": (
        *(f"{ROOT}/{top}/*-linux/ascend_ops_install.info" for top in _TOOLKIT),
        *(f"{ROOT}/{top}/*-linux/ascend_kernels_install.info" for top in _TOOLKIT),
        f"{ROOT}/ascend-toolkit/latest/opp_kernel/version.info",
    ),
    "nnal": (f"{ROOT}/nnal/atb/latest/version.info", f"{ROOT}/nnal/ascend_nnal_install.info"),
}
SETUP = (f"{ROOT}/ascend-toolkit/set_env.sh", f"{ROOT}/cann/set_env.sh")
LONGEST = 3600
# What a file calls the release it belongs to, before what it calls its own build: 7.6.0.1.220 is a part of 8.1.RC1.
_KEYS = ("version_dir", "version", "ascend-cann-atb", "ascend-cann-nnal")


@dataclass(frozen=True)
class State:
    """The installed version of each of KINDS, as far as there is one."""

    versions: Mapping[str, str]


def concerned(plan: Plan, node: Node) -> bool:
    """Whether an engine of the host needs CANN outside a container."""
    return plan.recipe.platform.startswith("ascend") and bool(scope.natives(plan, node))


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked of hosts with engines outside containers."""
    if not concerned(plan, node):
        return []
    looked = "; ".join(f"for f in {' '.join(FILES[kind])}; do {_show(kind)}; done" for kind in KINDS)
    return [f"echo '{MARK} cann'; {looked}"]


def _show(kind: str) -> str:
    # The first file that is there is the newest layout's.
    return f'test -f "$f" && {{ echo "-- {kind}"; head -c 3000 "$f"; echo; break; }}'


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in sections.get("cann", []):
        if line.startswith("-- "):
            current = found.setdefault(line[3:].strip(), {})
        elif match := re.match(r"\s*([\w-]+(?: [\w-]+)*)\s*[=:]\s*(\S+)", line):
            current.setdefault(match[1].lower(), match[2])
    versions = {kind: next((its[key] for key in _KEYS if key in its), "") for kind, its in found.items()}
    return State({kind: version for kind, version in versions.items() if version})


def _state(work: Work) -> State:
    state = work.states["cann"]
    assert isinstance(state, State)
    return state


def _wanted(work: Work) -> Part | None:
    return work.stack.cann if work.stack and concerned(work.plan, work.node) else None


def _kinds(part: Part) -> list[tuple[str, Part]]:
    """Each package with what it is: by its name, else by its place."""
    found = []
    for place, package in enumerate(part.packages):
        named = next((k for k in ("toolkit", "nnal", "ops", "kernels") if f"-{k}" in package.pattern), None)
        kind = {"kernels": "ops", None: KINDS[min(place, 2)]}.get(named, named) or KINDS[min(place, 2)]
        found.append((kind, Part(version=part.version, packages=(package,))))
    return sorted(found, key=lambda pair: KINDS.index(pair[0]))


def jobs(work: Work) -> list[tuple[str, Part]]:
    """What has to be installed, in order. A newer toolkit takes its operators and nnal along."""
    part = _wanted(work)
    if part is None:
        return []
    there = _state(work).versions
    kinds = _kinds(part)
    return [(k, its) for k, its in kinds if not enough(its, wanted(work, its), there.get(k))]


def refuse(work: Work) -> list[Finding]:
    """Why nothing may be installed here now."""
    part = _wanted(work)
    if part is None:
        return []
    there = _state(work).versions
    if newer := [f"{kind} {v}" for kind, v in there.items() if part.exact and older(part.version, v)]:
        what = f"CANN {', '.join(newer)} is newer than the {part.version} of catalogue {drivers.row(work)}"
        mend = "name a row with this CANN or a newer one, or uninstall it by hand and run this again"
        return [error("DRIVER-DOWNGRADE", work.name, what, mend, "engines in use may be built for the newer one")]
    todo, found = jobs(work), []
    if todo and work.host.serving:
        why = "an engine loads operators from CANN while it runs"
        found.append(drivers.busy(work, f"CANN {part.version}", why))
    if not part.packages:
        found += drivers.missing(work, part, f"CANN {part.version}")
    for kind, its in todo:
        found += drivers.missing(work, its, f"CANN {kind} {part.version}")
    return found


def steps(work: Work) -> list[Step]:
    """Each package that is not there in this version."""
    there = _state(work).versions
    found = []
    for kind, part in jobs(work):
        for _, source in drivers.packages_of(work, part):
            if source:
                found.append(_run(work, kind, part.version, there.get(kind), source))
    return found


def _run(work: Work, kind: str, version: str, had: str | None, source: Source) -> Step:
    # Over an older toolkit a new one lies beside it and becomes the latest; --quiet agrees to the licence.
    arguments = ("--full" if kind == "toolkit" and not had else "--install", "--quiet")
    before = "" if kind == "toolkit" else _environment()
    script = ascend_run.script(source, arguments, before, well="0")
    what = f"CANN {kind} {version}"
    name = f"{what} (there is {had or 'none'})"
    return Step(name, script, seconds=LONGEST, sources=(source,), read=_read(work.name, what))


def _environment() -> str:
    """The toolkit's paths, read by bash as its file wants it, for the packages that look for the toolkit."""
    load = "; ".join(f"test -f {path} && . {path} && break" for path in SETUP)
    inside = f'while :; do {load}; break; done >/dev/null 2>&1; exec "$0" "$@"'
    return (
        'run() { if test -x "$p"; then set -- "$p" "$@"; else set -- bash "$p" "$@"; fi; '
        f'bash -c {shlex.quote(inside)} "$@" </dev/null; }}'
    )


def _read(host: str, what: str) -> Callable[[bool, Sequence[str]], Outcome]:
    """Its status counts, unless it names an error all the same; what is on disk is looked at afterwards."""

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        text = "\n".join(plain(lines))
        failed = re.search(r"ERR_NO:0x|\binstall(?:ation)? failed\b", text, re.IGNORECASE)
        if done and not failed:
            return Outcome()
        found = ascend_run.failure(host, what, lines)
        if found.rule == "DRIVER-FAILED":
            mend = "read /var/log/ascend_seclog/ascend_install.log on the host; CANN needs python3 with pip and venv"
            return Outcome((error("CANN-FAILED", host, f"{what} was not installed", mend, found.why),))
        return Outcome((found,))

    return read


def prove(work: Work) -> list[Finding]:
    """Parts that are still missing, or of another version."""
    part = _wanted(work)
    if part is None:
        return []
    there = _state(work).versions
    return [
        error(
            "CANN-VERSION",
            work.name,
            f"CANN {kind} is {there.get(kind) or 'missing'}, the catalogue's row says {part.version}",
            "run this again; if it stays so, install the package by hand and read what it says",
            "an engine ends when it loads its operators",
        )
        for kind, _ in jobs(work)
    ]
