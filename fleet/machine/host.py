"""The machine under an engine: shared memory, huge pages, limits, clock, and settings that others left behind.

Sources: vLLM raises its own limit of open files to 65535 (``vllm.utils.set_ulimit``); NCCL reads /etc/nccl.conf (its
user guide); Mooncake's store asks for huge pages by MC_STORE_USE_HUGEPAGE, glibc by glibc.malloc.hugetlb=2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from fleet.findings import Finding, error, warning
from fleet.inventory import Node
from fleet.machine import scope
from fleet.topology import Plan, platform_of

TIME_SERVICES = ("chronyd", "chrony", "systemd-timesyncd", "ntpd", "ntp", "ntpsec", "openntpd", "phc2sys")
SERVICES = (*TIME_SERVICES, "firewalld")
# vLLM's API server wants this many open files for itself.
OPEN_FILES = 65535
NO_KEY = sha256(b"").hexdigest()
UNLIMITED = -1
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class State:
    """Sizes in bytes; None where the host did not tell. Limits are systemd's own for services, -1 for none."""

    arch: str = ""
    machine: str = ""  # /etc/machine-id
    key: str = ""  # of SSH, as a hash
    in_container: bool = False
    shm: int | None = None
    hugepages: int | None = None
    memlock: int | None = None
    open_files: int | None = None
    active: frozenset[str] | None = None  # of SERVICES
    proxies: frozenset[str] = frozenset()  # variables of systemd's environment
    nccl: tuple[str, ...] = ()  # lines of /etc/nccl.conf that count


def sections(plan: Plan, node: Node) -> list[str]:
    """What needs no daemon but systemd."""
    parts = [
        "echo '@@ host'; echo \"arch $(uname -m)\"; test -e /run/systemd/container && echo container; "
        "sed 's/^/machine /' /etc/machine-id 2>/dev/null; "
        "cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null | cut -d ' ' -f 1,2 | sort | sha256sum | sed 's/^/key /'; "
        "sed -n 's/^HugePages_Total: */hugepages /p' /proc/meminfo; df -Pk /dev/shm 2>/dev/null | sed -n '2s/^/shm /p'",
        f"echo '@@ services'; systemctl is-active {' '.join(SERVICES)} 2>/dev/null",
    ]
    if scope.natives(plan, node):
        parts.append(
            "echo '@@ manager'; systemctl show -p DefaultLimitNOFILE -p DefaultLimitMEMLOCK 2>/dev/null; "
            "systemctl show-environment 2>/dev/null | grep -io '^[a-z]*_proxy='"
        )
        if plan.recipe.platform == "nvidia":
            parts.append("echo '@@ nccl'; grep -sv -e '^ *#' -e '^ *$' /etc/nccl.conf | head -n 20")
    return parts


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    said = {key: rest for key, _, rest in (line.partition(" ") for line in sections.get("host", []))}
    shm = said.get("shm", "").split()
    manager = {key: value for key, _, value in (line.partition("=") for line in sections.get("manager", []))}
    states = sections.get("services", [])
    return State(
        arch=said.get("arch", ""),
        machine=said.get("machine", ""),
        key=said.get("key", "").partition(" ")[0].replace(NO_KEY, ""),
        in_container="container" in said,
        shm=int(shm[1]) * 1024 if len(shm) > 2 and shm[1].isdigit() else None,
        hugepages=int(said["hugepages"]) if said.get("hugepages", "").isdigit() else None,
        memlock=limit(manager.get("DefaultLimitMEMLOCK", "")),
        open_files=limit(manager.get("DefaultLimitNOFILE", "")),
        active=frozenset(n for n, s in zip(SERVICES, states, strict=True) if s == "active")
        if len(states) == len(SERVICES)
        else None,
        proxies=frozenset(key for key in manager if key.lower().endswith("_proxy")),
        nccl=tuple(sections.get("nccl", [])),
    )


def limit(text: str) -> int | None:
    """``infinity`` and ``unlimited`` as -1, a number as itself, anything else as None."""
    if text in ("infinity", "unlimited"):
        return UNLIMITED
    return int(text) if text.isdigit() else None


def judge(plan: Plan, node: Node, state: State) -> list[Finding]:
    """What an engine would stumble over."""
    found = _huge_pages(plan, node, state)
    if scope.natives(plan, node):
        found += _native(plan, node, state)
    # A container has the clock of the machine that it runs on.
    sets_clock = state.in_container or state.active is None or bool(state.active.intersection(TIME_SERVICES))
    if not sets_clock and scope.works_with_others(plan, node):
        what = "no service sets the clock (chrony, timesyncd, ntpd)"
        why = "clocks of hosts that work together drift apart, and so do their logs, leases and certificates"
        found.append(warning("HOST-TIME", node.name, what, "install and enable chrony", why))
    return found


def _huge_pages(plan: Plan, node: Node, state: State) -> list[Finding]:
    asking = [u.name for u in scope.engines(plan, node) if _asks_for_huge_pages(u.env)]
    if not asking or state.hugepages is None or state.hugepages > 0:
        return []
    what = f"{asking[0]} asks for huge pages, and the host has none set aside"
    mend = "set vm.nr_hugepages, or take the variable out of the recipe"
    return [warning("HOST-HUGEPAGES", node.name, what, mend, "the allocation fails, or falls back to small pages")]


def _asks_for_huge_pages(env: Mapping[str, str]) -> bool:
    # Mooncake looks whether the variable is there, not what it says.
    return "MC_STORE_USE_HUGEPAGE" in env or bool(re.search(r"glibc\.malloc\.hugetlb=2", env.get("GLIBC_TUNABLES", "")))


def _native(plan: Plan, node: Node, state: State) -> list[Finding]:
    found, name = [], node.name
    units = scope.natives(plan, node)
    wanted = size(plan.recipe.shm_size)
    if state.shm is not None and state.shm < wanted and any(len(u.device_indices) > 1 for u in units):
        what = f"/dev/shm has {state.shm >> 20} MB, the recipe's shm_size is {plan.recipe.shm_size}"
        mend = f"mount -o remount,size={plan.recipe.shm_size} /dev/shm, and the same in /etc/fstab"
        found.append(warning("HOST-SHM", name, what, mend, "workers hand each other tensors there"))
    found += limits(plan, node, state.memlock, state.open_files, "DefaultLimit", "in /etc/systemd/system.conf")
    if state.proxies:
        variables = ", ".join(sorted(state.proxies))
        what = f"systemd gives every service {variables}"
        why = "requests between the hosts may then go to that proxy"
        mend = f"systemctl unset-environment {' '.join(sorted(state.proxies))}, or name the hosts in no_proxy"
        if not {p.lower() for p in state.proxies} & {"no_proxy"}:
            found.append(warning("HOST-PROXY", name, what, mend, why))
    if state.nccl:
        keys = ", ".join(line.partition("=")[0].strip() for line in state.nccl[:4])
        what = f"/etc/nccl.conf sets {keys}"
        why = "NCCL reads it before anything else tells it, and nobody who looks at the unit sees it"
        found.append(
            warning("HOST-NCCL", name, what, "move what is wanted into the recipe's env, remove the file", why)
        )
    return found


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """Two names of one machine, and machines that were cloned with what should tell them apart."""
    found = []
    seen: dict[tuple[str, str], str] = {}
    keys: dict[str, str] = {}
    for name in (node.name for node in plan.fleet.nodes if node.name in states):
        state = states[name]
        if not state.key:
            continue
        first = keys.setdefault(state.key, name)
        same = seen.setdefault((state.machine, state.key), name)
        if same != name and state.machine:
            what = f"this is the same machine as {same}, or a copy of it with its machine-id and SSH keys"
            why = "both would be given the same devices and ports"
            mend = "take one name out of the inventory; on a copy: systemd-machine-id-setup, ssh-keygen -A"
            found.append(error("HOST-TWICE", name, what, mend, why))
        elif first != name:
            what = f"it has the SSH host keys of {first}"
            why = "whoever has the key of one host can pose as the other"
            mend = "remove /etc/ssh/ssh_host_*, run ssh-keygen -A, and put the new keys into known_hosts"
            found.append(warning("HOST-TWICE", name, what, mend, why))
    return found


def limits(plan: Plan, node: Node, memlock: int | None, open_files: int | None, key: str, where: str) -> list[Finding]:
    """The limits that units get where the plan does not raise them: with what and where they are set."""
    found = []
    raised = any(u.limits for u in scope.engines(plan, node))
    needs_memory = bool(platform_of(plan.recipe).limits) and scope.works_with_others(plan, node)
    if needs_memory and not raised and memlock not in (None, UNLIMITED):
        what = f"an engine may lock {shown(memlock or 0)} of memory, and raise_limits = False leaves it at that"
        why = "transfers between hosts register memory, and end with Cannot allocate memory"
        mend = f"set {key}MEMLOCK=infinity {where}, or leave out raise_limits"
        found.append(warning("HOST-MEMLOCK", node.name, what, mend, why, "mlperf-automations issue 664"))
    of_native = raised and bool(scope.natives(plan, node))
    if open_files not in (None, UNLIMITED) and (open_files or 0) < OPEN_FILES and not of_native:
        what = f"an engine may have {open_files} files open"
        why = f"every client takes one; vLLM wants {OPEN_FILES}"
        found.append(warning("HOST-NOFILE", node.name, what, f"set {key}NOFILE=1048576 {where}", why))
    return found


def shown(count: int) -> str:
    """Bytes in words."""
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} kB"


def size(text: str) -> int:
    """``1g`` in bytes."""
    return int(text[:-1]) * _UNITS[text[-1]]
