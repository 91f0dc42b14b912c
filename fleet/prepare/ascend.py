"""Driver and firmware of Atlas hosts: what the catalogue's row says, installed as the vendor wants it.

HDK installation guide: the user HwHiAiUser must be there before; the module is built for the kernel that runs, so that
kernel stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleet.findings import Finding, error
from fleet.inventory import span
from fleet.machine import common
from fleet.prepare import ascend_jobs, ascend_run, ascend_state, drivers, kernel_modules
from fleet.prepare.ascend_jobs import Job, enough, parts, wanted
from fleet.prepare.ascend_run import older, same
from fleet.prepare.ascend_state import State, concerned, parse, sections
from fleet.prepare.common import Outcome, Source, Step, Work
from fleet.stacks import Part
from fleet.topology import Plan

__all__ = ["State", "between", "parse", "pending", "prove", "refuse", "sections", "steps"]

# Seconds. Firmware is written to eight cards one after the other; cutting that is worse than waiting.
LONGEST = 3600


def _state(work: Work) -> State:
    state = work.states["ascend"]
    assert isinstance(state, State)
    return state


# ---- before


def refuse(work: Work) -> list[Finding]:
    """Why nothing may be installed here now."""
    if not concerned(work.plan, work.node):
        return []
    state, (driver, _) = _state(work), parts(work)
    if driver is None:
        there = state.driver or ("that is half installed" if state.begun else None)
        return [drivers.left_alone(work, "NPU driver", there)]
    found = _downgrades(work, state)
    todo = [] if found else ascend_jobs.jobs(work, state)
    if not todo:
        return found
    if state.path != ascend_state.ROOT:
        mend = f"uninstall that one ({state.path}/driver/script/uninstall.sh), restart, and run this again"
        why = f"units and containers look for it in {ascend_state.ROOT}"
        found.append(error("DRIVER-ORIGIN", work.name, f"the driver is installed in {state.path}", mend, why))
    found += _busy(work, state, todo)
    for job in todo:
        found += drivers.missing(work, job.part, job.what)
    if any(job.kind == "driver" for job in todo):
        found += [*kernel_modules.refuse(work, state.kernel), *kernel_modules.unsigned(work, state.kernel)]
    return found


def _downgrades(work: Work, state: State) -> list[Finding]:
    driver, firmware = parts(work)
    there = [("driver", state.driver, driver)]
    if firmware and not same(state.lowest, firmware.version):
        there.append(("firmware", state.firmware or state.lowest, firmware))
    return [
        ascend_run.downgrade(work.name, kind, have, part.version, drivers.row(work))
        for kind, have, part in there
        if have and part and part.exact and older(part.version, have)
    ]


def _busy(work: Work, state: State, todo: list[Job]) -> list[Finding]:
    """What uses the devices, or installs something on them."""
    name, what = work.name, " and ".join(job.what for job in todo)
    if work.host.serving:
        return [drivers.busy(work, what)]
    found = []
    if state.installers:
        mend = "wait until it has ended, and run this again"
        said = f"{', '.join(state.installers)} is being installed by somebody"
        found.append(error("DRIVER-BUSY", name, said, mend, "two installers at once leave neither's work whole"))
    why = "modules that are in use cannot be exchanged"
    if state.containers:
        mend = f"docker stop {' '.join(state.containers)}, then run this again"
        said = f"NPUs are held by container {', '.join(state.containers)}, and {what} must be installed"
        found.append(error("DRIVER-BUSY", name, said, mend, why))
    if state.table.processes:
        which = common.processes((p.pid, p.name) for p in state.table.processes)
        said = f"{which} on the NPUs, and {what} must be installed"
        found.append(error("DRIVER-BUSY", name, said, "end what is there, then run this again", why))
    return found


# ---- the change


def steps(work: Work) -> list[Step]:
    """User, packages in the vendor's order, and the kernel held."""
    driver, _ = parts(work)
    if driver is None or not concerned(work.plan, work.node):
        return []
    state = _state(work)
    todo = ascend_jobs.jobs(work, state)
    found: list[Step | None] = [_user(state)] if todo else []
    for place, job in enumerate(todo):
        read = _reader(work, job, driver_follows=any(later.kind == "driver" for later in todo[place + 1 :]))
        before = _firmware_question(work, job) if job.kind == "firmware" and not state.lowest else ""
        found += [_run(job, source, read, before) for _, source in drivers.packages_of(work, job.part) if source]
    found.append(kernel_modules.holding(work, state.kernel, f"driver {wanted(work, driver)}"))
    return [step for step in found if step]


def _user(state: State) -> Step | None:
    user, group = state.user, state.group
    if group in state.has_group and group in state.groups.get(user, frozenset()):
        return None
    script = (
        f"getent group {group} >/dev/null || groupadd {group} || exit 1\n"
        f"id {user} >/dev/null 2>&1 || useradd -g {group} -d /home/{user} -m {user} -s /bin/bash || exit 1\n"
        f"id -nG {user} | tr ' ' '\\n' | grep -qx {group} || usermod -a -G {group} {user}"
    )
    return Step(f"user {user} in group {group} (the driver belongs to it)", script, seconds=60)


def _reader(work: Work, job: Job, driver_follows: bool) -> Callable[[bool, Sequence[str]], Outcome]:
    if job.kind == "driver":
        return ascend_run.driver_read(work.name, job.what)
    return ascend_run.firmware_read(work.name, job.what, driver_follows, drivers.row(work) if job.part.exact else "")


def _firmware_question(work: Work, job: Job) -> str:
    """What the cards came with is not known before there is a driver; here there is one."""
    size = 2 if work.plan.recipe.platform == "ascend-a3" else 1
    cards = sorted({index // size for index in drivers.expected(work.plan, work.node)})
    return ascend_run.unless_newer(job.version, cards)


def _run(job: Job, source: Source, read: Callable[[bool, Sequence[str]], Outcome], before: str) -> Step:
    script = ascend_run.script(source, job.arguments, before)
    return Step(f"{job.what} ({job.why})", script, seconds=LONGEST, sources=(source,), read=read)


# ---- after


def pending(work: Work) -> str:
    """Why a restart is needed: what is installed is not what runs."""
    driver, firmware = parts(work)
    if driver is None or not concerned(work.plan, work.node):
        return ""
    state = _state(work)
    if ascend_jobs.jobs(work, state):
        return ""
    if state.running and not same(state.running, state.driver):
        return f"driver {state.driver} is installed, {state.running} runs"
    if not state.running and state.fresh:
        return f"driver {state.driver} is installed and does not answer yet"
    runs = state.lowest
    if firmware and runs and state.firmware and older(runs, state.firmware) and not same(runs, firmware.version):
        return f"firmware {state.firmware} is installed, {runs} runs"
    return ""


def prove(work: Work) -> list[Finding]:
    """What still is not as the catalogue's row says, once all is installed and the host restarted."""
    driver, firmware = parts(work)
    if driver is None or not concerned(work.plan, work.node):
        return []
    state, name = _state(work), work.name
    if not state.complete:
        says = f"/etc/ascend_install.info says {state.info.get('Driver_Install_Status') or 'nothing of its status'}"
        there = f"driver {state.driver}" if state.driver else "the driver"
        mend = "run this again: it repairs what is half there"
        return [error("DRIVER-INSTALL", name, f"the installation of {there} is not complete", mend, says)]
    if not state.running:
        said = "no answer in time" if state.table.late else (state.table.words or ("npu-smi says nothing",))[0][:120]
        mend = "restart the host; if it stays so, see dmesg and /var/log/ascend_seclog/ascend_install.log"
        return [error("DRIVER-RUNNING", name, f"driver {state.driver} is installed and does not answer", mend, said)]
    return [*_versions(work, state, driver, firmware), *_boards(name, state), *_devices(work, state)]


def _versions(work: Work, state: State, driver: Part, firmware: Part | None) -> list[Finding]:
    found = []
    mend = "restart the host; if it stays so, run the package by hand and read what it says"
    runs = (("driver", driver, state.running), ("firmware", firmware, state.lowest or state.firmware))
    for kind, part, version in runs:
        if part and not enough(part, wanted(work, part), version):
            what = f"{kind} {version or 'of no known version'} runs, and it should be {wanted(work, part)}"
            found.append(error("DRIVER-RUNNING", work.name, what, mend))
    return found


def _boards(name: str, state: State) -> list[Finding]:
    cards = [card for card, board in state.table.boards.items() if board.compatibility == "NOK"]
    if not cards:
        return []
    what = f"driver and firmware do not go together on card {span(sorted(cards))} (npu-smi: Compatibility NOK)"
    mend = "restart the host; if it stays so, take driver and firmware of one release of the HDK"
    return [error("DRIVER-COMPATIBILITY", name, what, mend)]


def _devices(work: Work, state: State) -> list[Finding]:
    wanted = drivers.expected(work.plan, work.node)
    missing = [index for index in wanted if state.table.chip(index) is None]
    if not missing:
        return []
    what = f"{common.named(missing)} of {len(wanted)} NPUs cannot be seen"
    mend = "look for the card with lspci -d 19e5: and dmesg, or give devices in the inventory"
    return [error("DRIVER-DEVICES", work.name, what, mend, "a card that fell out is not seen until an engine waits")]


def between(plan: Plan, works: Mapping[str, Work]) -> list[Finding]:
    """One driver on all hosts of an instance, and of a set."""
    mine = {host: _state(work) for host, work in works.items() if concerned(plan, work.node)}
    versions = {host: state.running or state.driver for host, state in mine.items()}
    why = "hosts of one super node must have the same driver"
    return drivers.mixed(plan, {h: v and v.lower() for h, v in versions.items()}, why, "Huawei Cloud aics_bp_0103")
