"""Restarting hosts: which together, and which not at all."""

from __future__ import annotations

import shlex

from fleet.findings import Finding, error
from fleet.prepare import common, drivers, parts
from fleet.prepare.common import REBOOT_NOTE, Work
from fleet.topology import Plan

BOOT = "cat /proc/sys/kernel/random/boot_id"
# What the command that restarts said, where it did not.
REFUSED = "/run/vllm-fleet-reboot"
# The last line is the boot.
ASK = f"sed 's/^/refused /' {REFUSED} 2>/dev/null; {BOOT}"
# The system answers on SSH before its drivers and Docker are up. It does not know --wait before systemd 240.
BOOTED = "timeout 120 systemctl is-system-running --wait >/dev/null 2>&1"

# An NPU boots a system of its own after its driver was loaded, which takes one to three minutes; a fabric trains.
DEVICES_SECONDS = 300
_DEVICES = {
    "npu": "npu-smi info",
    "gpu": "nvidia-smi -L && "
    "{ ! systemctl is-enabled -q nvidia-fabricmanager || systemctl is-active -q nvidia-fabricmanager; }",
}


def command(boot: str) -> str:
    """Shell text that ends this boot, and no later one: another run may have been first.

    By itself, so that the answer to it still goes out, and out of the login's reach. It waits for what changes the
    host just now, and keeps others from beginning.
    """
    its = (
        f"exec 9>>{common.LOCK}; flock 9; sleep 1; sync; "
        f"{{ systemctl reboot || reboot; }} >{REFUSED}.part 2>&1 || {{ mv -f {REFUSED}.part {REFUSED}; exit; }}; "
        "sleep 30"
    )
    return (
        f'test "$({BOOT})" = {shlex.quote(boot)} || exit 0\nrm -f {REFUSED}\n'
        f"setsid sh -c {shlex.quote(its)} </dev/null >/dev/null 2>&1 &"
    )


def devices(work: Work) -> str:
    """Shell text that waits until a host's devices answer, for so long; whether they do is judged afterwards."""
    if not any(unit.serves_model for unit in work.plan.units_of(work.name)):
        return ""
    platform = work.plan.recipe.platform
    kind = "npu" if platform.startswith("ascend") else "gpu" if platform == "nvidia" else ""
    if not kind:
        return ""
    ask = _DEVICES[kind]
    return (
        f"PATH=$PATH:/usr/local/bin:/usr/local/sbin; command -v {ask.split()[0]} >/dev/null || exit 0\n"
        f"end=$(($(date +%s) + {DEVICES_SECONDS}))\n"
        f"until timeout -k 2 30 sh -c {shlex.quote(ask)} >/dev/null 2>&1 </dev/null; do "
        "test $(date +%s) -lt $end || break; sleep 2; done"
    )


def waves(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Hosts that may restart at the same time, in inventory order.

    Where hosts may restart although they serve, only those of one instance go together, so that the others serve on.
    """
    names = [node.name for node in plan.fleet.nodes]
    if plan.fleet.settings.reboot != "even-if-serving":
        size = plan.fleet.settings.reboot_at_once
        return tuple(tuple(names[i : i + size]) for i in range(0, len(names), size))
    found: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for instance in plan.instances:
        its = tuple(m.node.name for m in instance.members if m.node.name not in taken)
        found += [its] if its else []
        taken.update(its)
    return (*found, *((name,) for name in names if name not in taken))


def note(reason: str) -> str:
    """Shell text that remembers a reason on the host, for the run that comes after this one was cut."""
    line = shlex.quote(" ".join(reason.split()))
    return (
        f"mkdir -p {common.KEPT} && b=$({BOOT}) && {{ echo $b; "
        f'test "$(head -n 1 {REBOOT_NOTE} 2>/dev/null)" = "$b" && tail -n +2 {REBOOT_NOTE} | grep -vxF -e {line}; '
        f"echo {line}; }} >{REBOOT_NOTE}.new; mv -f {REBOOT_NOTE}.new {REBOOT_NOTE}"
    )


def refuse(work: Work) -> list[Finding]:
    """Why this host is not restarted, although it has to be."""
    why = parts.pending(work)
    settings = work.node.settings
    if not why:
        return []
    if settings.reboot == "never":
        mend = "restart it, and run this again; or leave reboot out of the inventory"
        return [error("REBOOT-NEEDED", work.name, f"it must be restarted: {'; '.join(why)}", mend)]
    if work.host.serving and settings.reboot != "even-if-serving":
        mend = "stop them and run this again, or set reboot = 'even-if-serving'"
        what = f"it must be restarted ({'; '.join(why)}), and {drivers.serving(work)}"
        return [error("REBOOT-SERVING", work.name, what, mend)]
    return []


def late(work: Work, said: str) -> Finding:
    """It did not come back."""
    minutes = work.node.settings.reboot_minutes
    what = f"it was restarted and is not back after {minutes} min"
    mend = "look at its console; when it is up, run this again: it goes on from there"
    return error("REBOOT-LATE", work.name, what, mend, said)


def same_boot(work: Work) -> Finding:
    """It answered all the time."""
    what = f"it was told to restart and has not, {work.node.settings.reboot_minutes} min later"
    return error("REBOOT-LATE", work.name, what, "look what holds it: systemctl list-jobs; then run this again")


def refused(work: Work, said: str) -> Finding:
    """The command that restarts failed."""
    what = "it was told to restart and refuses"
    return error("REBOOT-LATE", work.name, what, "restart it by hand, and run this again", said[:300])


def units_late(work: Work, units: list[str], seconds: int) -> Finding:
    """What served before does not serve again."""
    what = f"{', '.join(units)} served before the restart, and {seconds} s after it do not"
    mend = f"see journalctl -u {units[0]}; later hosts that serve are not restarted"
    return error("REBOOT-UNITS", work.name, what, mend)


def stopped(work: Work, first: str) -> Finding:
    """A host before it is not back."""
    what = f"it serves, and is not restarted because {first} is not back in service"
    return error("REBOOT-STOPPED", work.name, what, f"mend {first} and run this again")
