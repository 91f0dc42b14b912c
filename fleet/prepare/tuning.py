"""Settings of the kernel and of systemd that engines want, as files that outlive a boot and as they are now.

Sources: vllm-ascend's tutorials (swappiness, NUMA balancing, migration cost, CPU governor, ports 60000-60031);
Linux, ip-sysctl: ip_local_reserved_ports. No module needs to be named for the next boot: drivers and Docker load their
own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet import ports
from fleet.findings import Finding, warning
from fleet.inventory import Node, span
from fleet.machine import scope
from fleet.prepare import common
from fleet.prepare.common import Outcome, Step, Work
from fleet.topology import Plan

SYSCTL = "/etc/sysctl.d/90-vllm-fleet.conf"
# What the inventory of a service with a name sets itself: services of one host have the other file together.
OF_SERVICE = "/etc/sysctl.d/91-vllm-fleet-{}.conf"
PAM_LIMITS = "/etc/security/limits.d/90-vllm-fleet.conf"
MANAGER = "/etc/systemd/system.conf.d/90-vllm-fleet.conf"
GOVERNOR = "vllm-fleet-cpufreq.service"
GOVERNOR_UNIT = f"/etc/systemd/system/{GOVERNOR}"
FILES = (SYSCTL, PAM_LIMITS, MANAGER, GOVERNOR_UNIT)
# What this boot's kernel did not take: asked for again after the next boot only.
REFUSED = "/run/vllm-fleet-sysctl-refused"
RESERVED = "net.ipv4.ip_local_reserved_ports"
_PAGES = "vm.nr_hugepages"
OPEN_FILES = 1048576
_USUAL = {"vm.swappiness": "0", "kernel.numa_balancing": "0", "kernel.sched_migration_cost_ns": "50000"}
_HEAD = "# Written by vllm-fleet, replaced at the next run of prepare.\n"
_GOVERNOR = f"""{_HEAD}[Unit]
Description=CPUs at full speed, for vllm-fleet
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance >"$f"; done'
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class State:
    """How the host is now."""

    sums: Mapping[str, str] = field(default_factory=dict)  # path -> sha256, of FILES and the service's that are there
    values: Mapping[str, str] = field(default_factory=dict)  # of the kernel, those that it has
    ours: Mapping[str, str] = field(default_factory=dict)  # in SYSCTL
    later: tuple[tuple[str, str, str], ...] = ()  # (path, key, value) of files that are read after SYSCTL, in order
    refused: frozenset[str] = frozenset()  # "key value" that this boot's kernel did not take
    governors: frozenset[str] = frozenset()  # in use
    has_performance: bool = False
    swap: tuple[str, ...] = ()
    nr_open: int | None = None  # no process may have a higher limit of open files


def _path(key: str) -> str:
    """A key as its file; a dot inside an interface's name is written as a slash (sysctl.d)."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def _keys(node: Node) -> list[str]:
    return sorted({*_USUAL, RESERVED, _PAGES, *node.settings.sysctl})


def sections(plan: Plan, node: Node) -> list[str]:
    """Values one by one: a kernel may lack any of them."""
    if not node.settings.tuning:
        return []
    keys = " ".join(shlex.quote(key) for key in _keys(node))
    files = dict.fromkeys([*FILES, _own(plan)])
    return [
        f"echo '@@ tuningfiles'; sha256sum {' '.join(files)} 2>/dev/null",
        f"echo '@@ sysctl'; for k in {keys}; do p=/proc/sys/$(echo \"$k\" | tr ./ /.); "
        'test -r "$p" && echo "$k $(tr -s \'\\t\\n\' \'  \' <"$p")"; done; echo "nr_open $(cat /proc/sys/fs/nr_open)"',
        f"echo '@@ sysctlrefused'; cat {REFUSED} 2>/dev/null",
        f"echo '@@ sysctlours'; sed -n 's/^\\([a-z][^ ]*\\) = /\\1 /p' {SYSCTL} 2>/dev/null",
        "echo '@@ sysctllater'; for f in /etc/sysctl.d/9[1-9]*.conf /etc/sysctl.d/[a-z]*.conf /etc/sysctl.conf; do "
        "test -f $f && sed -n 's/^[[:space:]-]*\\([a-z][^[:space:]=]*\\)[[:space:]]*=[[:space:]]*/\\1 /p' $f | "
        'sed "s|^|$f |"; done',
        "echo '@@ governor'; d=/sys/devices/system/cpu/cpu0/cpufreq; test -d $d && { "
        "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor | sort -u | sed 's/^/now /'; "
        "tr ' ' '\\n' <$d/scaling_available_governors | grep -x performance; } 2>/dev/null",
        "echo '@@ swap'; sed 1d /proc/swaps 2>/dev/null",
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    values = dict(_pair(line) for line in sections.get("sysctl", []))
    nr_open = values.pop("nr_open", "")
    later = []
    for line in sections.get("sysctllater", []):
        path, _, rest = line.partition(" ")
        key, value = _pair(rest)
        later.append((path, key.replace("/", "."), value))
    governor = sections.get("governor", [])
    return State(
        sums={path: s for s, path in (line.split(None, 1) for line in sections.get("tuningfiles", []))},
        values=values,
        ours=dict(_pair(line) for line in sections.get("sysctlours", [])),
        later=tuple(later),
        refused=frozenset(sections.get("sysctlrefused", [])),
        governors=frozenset(line[4:] for line in governor if line.startswith("now ")),
        has_performance="performance" in governor,
        swap=tuple(line.split()[0] for line in sections.get("swap", [])),
        nr_open=int(nr_open) if nr_open.isdigit() else None,
    )


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(" ")
    return key, " ".join(value.split())


def ports_of(text: str) -> set[int]:
    """``60000-60031,36000`` as its ports."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def ports_text(numbers: Iterable[int]) -> str:
    """Ports as the kernel itself lists them."""
    return span(sorted(numbers)).replace(", ", ",")


def _needed_ports(plan: Plan, node: Node) -> set[int]:
    own = ports.platform_ports(plan, node)
    of_units = {port for unit in plan.units_of(node.name) for port in unit.ports.values()}
    return {*scope.peer_ports(plan, node), *of_units, *(own[0] if own else ())}


def _own(plan: Plan) -> str:
    """The file of what the inventory sets."""
    service = plan.fleet.settings.service
    return OF_SERVICE.format(service) if service else SYSCTL


def _given(node: Node) -> dict[str, str]:
    """What the inventory sets."""
    pages = {} if node.settings.hugepages is None else {_PAGES: str(node.settings.hugepages)}
    return pages | {key: " ".join(str(value).split()) for key, value in node.settings.sysctl.items()}


def _can(work: Work, state: State, values: Mapping[str, str]) -> dict[str, str]:
    """Those that the kernel has; in a container only what belongs to its network is its own."""
    boxed = work.host.in_container
    can = (key for key in sorted(values) if key in state.values and (key.startswith("net.") or not boxed))
    return {key: values[key] for key in can if values[key]}


def _wanted(work: Work, state: State) -> tuple[dict[str, str], dict[str, str]]:
    """The kernel's settings as they should be: what is usual, and what the inventory sets, which goes before it.

    Ports are added to those that are reserved already: other services of the host may need them.
    """
    given, named = _given(work.node), bool(work.plan.fleet.settings.service)
    # Of the file that services have together one of a name changes nothing: another's inventory may have set it.
    usual = {key: state.ours.get(key, value) if named else value for key, value in _USUAL.items()}
    asked, now = given.pop(RESERVED, ""), state.values.get(RESERVED, "")
    kept = ports_of(asked or now) | (ports_of(now) if named else set())
    usual[RESERVED] = ports_text(kept | _needed_ports(work.plan, work.node))
    return _can(work, state, usual), _can(work, state, given)


def wanted(work: Work, state: State) -> dict[str, str]:
    """Both as one."""
    usual, given = _wanted(work, state)
    return dict(sorted({**usual, **given}.items()))


def _texts(work: Work, state: State) -> dict[str, str]:
    """The files of settings; an empty one should not be there."""
    usual, given = _wanted(work, state)
    own = _own(work.plan)
    if own == SYSCTL:
        return {SYSCTL: _text({**usual, **given})} if usual or given else {}
    together = {**state.ours, **usual}
    return {**({SYSCTL: _text(together)} if together else {}), own: _text(given) if given else ""}


def _text(values: Mapping[str, str]) -> str:
    return _HEAD + "".join(f"{key} = {value}\n" for key, value in sorted(values.items()))


def _later(work: Work, state: State, key: str) -> tuple[str, str, str]:
    """Where we set it, and the file that a boot reads last after that one and that sets it too, with its value."""
    own = _own(work.plan)
    at = own if key in _wanted(work, state)[1] else SYSCTL
    others = [(path, value) for path, k, value in state.later if k == key and path != own]
    after = [(path, value) for path, value in others if _place(path) > _place(at)]
    return (at, *(max(after, key=lambda pair: _place(pair[0])) if after else ("", "")))


def _place(path: str) -> tuple[bool, str]:
    return path == "/etc/sysctl.conf", path


def _of_other(path: str) -> bool:
    """Another service's file. Read later, it goes before ours, at a boot and now: else two would never settle."""
    return path.startswith(OF_SERVICE.partition("{")[0])


def steps(work: Work, state: State) -> list[Step]:
    """What has to be changed; nothing where the inventory says tuning = False."""
    if not work.node.settings.tuning:
        return []
    return [*_sysctl(work, state), *_limits(work, state), *_governor(work, state)]


def _is(state: State, path: str, text: str) -> bool:
    return state.sums.get(path, "") == (common.sum_of(text) if text else "")


def _sysctl(work: Work, state: State) -> list[Step]:
    values = wanted(work, state)
    files = {path: text for path, text in _texts(work, state).items() if not _is(state, path, text)}
    other = {
        key: value
        for key, value in values.items()
        if value != state.values[key]
        and f"{key} {value}" not in state.refused
        and not _of_other(_later(work, state, key)[1])
    }
    if not other and not files:
        return []
    changes = ", ".join(f"{key} {state.values[key] or 'none'} -> {value}" for key, value in other.items())
    # Read back: some values are taken only in part (huge pages), and a container may not set them at all.
    write = " && ".join(common.write(path, text) if text else f"rm -f {path}" for path, text in files.items())
    lines = []
    for key, value in other.items():
        path, asked = shlex.quote(_path(key)), shlex.quote(value)
        lines.append(
            f"{{ printf '%s\\n' {asked} >{path}; }} 2>/dev/null; now=$(tr -s '\\t\\n' '  ' <{path} | sed 's/ $//'); "
            f'[ "$now" = {asked} ] || {{ echo {shlex.quote(f"{key} {value}")} >>{REFUSED}; '
            f'echo "refused {shlex.quote(key)} $now"; }}'
        )
    kept = [f"{path}, so that the settings outlive a boot" for path, text in files.items() if text]
    gone = [f"{path} removed: the inventory sets nothing" for path, text in files.items() if not text]
    # Where the file was there already, a start did not help either.
    is_new = _later(work, state, _PAGES)[0] in files
    return [
        Step(
            f"sysctl {changes}" if changes else "; ".join([*kept, *gone]),
            "\n".join([f"{write or 'true'} || exit 1", *lines, "true"]),
            60,
            read=lambda well, said: _taken(work.name, values, well, said, is_new),
        )
    ]


def _taken(host: str, values: Mapping[str, str], well: bool, lines: Iterable[str], is_new: bool) -> Outcome:
    if not well:
        step = Step(SYSCTL, "")
        return Outcome((common.failed(host, step, list(lines)),))
    refused = [_pair(line.removeprefix("refused ")) for line in lines if line.startswith("refused ")]
    pages = is_new and any(key == _PAGES for key, _ in refused)
    why = "huge pages are set aside at the start only, while memory is whole" if pages else ""
    return Outcome(tuple(_not_taken(host, key, values.get(key, "?"), now) for key, now in refused), why)


def _not_taken(host: str, key: str, value: str, now: str) -> Finding:
    what = f"the kernel has {key} = {now or 'nothing'}, and did not take {value}"
    mend = "restart the host" if key == _PAGES else "set it where the host itself is set up, or leave it out"
    return warning("PREPARE-SYSCTL", host, what, mend, "it is in the file for the next boot")


def _limits(work: Work, state: State) -> list[Step]:
    """Not in a container: where it may not raise a limit, PAM refuses every login that it should raise it for."""
    if not work.node.settings.raise_limits or work.host.in_container:
        return []
    most = min(OPEN_FILES, state.nr_open or OPEN_FILES)
    pam = "".join(
        f"{who} {kind} {item} {value}\n"
        for who in ("*", "root")
        for kind in ("soft", "hard")
        for item, value in (("memlock", "unlimited"), ("nofile", str(most)))
    )
    wanted_files = {
        PAM_LIMITS: _HEAD + pam,
        MANAGER: f"{_HEAD}[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE={most}\n",
    }
    other = {path: text for path, text in wanted_files.items() if not _is(state, path, text)}
    if not other:
        return []
    script = " && ".join(common.write(path, text) for path, text in other.items())
    # Re-executed, systemd takes GPUs from containers that got them by request only (nvidia-container-toolkit 48).
    script += (
        '\nrc=$?; [ $rc -eq 0 ] || exit $rc\nif [ -z "$(timeout -k 2 20 docker ps -q 2>/dev/null)" ]; then '
        "timeout 60 systemctl daemon-reexec; else echo 'containers run: systemd takes it with the next boot'; fi; true"
    )
    name = f"limits of locked memory (none) and open files ({most}) for logins and services: {', '.join(other)}"
    return [Step(name, script, 120)]


def _governor(work: Work, state: State) -> list[Step]:
    if work.host.in_container or not state.has_performance:
        return []
    if state.governors <= {"performance"} and _is(state, GOVERNOR_UNIT, _GOVERNOR):
        return []
    script = (
        f"{common.write(GOVERNOR_UNIT, _GOVERNOR)} && systemctl daemon-reload && "
        f"systemctl enable {GOVERNOR} && systemctl restart {GOVERNOR}"
    )
    return [Step(f"CPU governor performance (there is {', '.join(sorted(state.governors))})", script, 60)]


def prove(work: Work, state: State) -> list[Finding]:
    """Warnings only: a service runs without any of it, slower or with a surprise now and then."""
    if not work.node.settings.tuning:
        return []
    host, found = work.name, []
    values = wanted(work, state)
    for key, value in values.items():
        at, path, other = _later(work, state, key)
        if f"{key} {value}" in state.refused:
            continue  # told when it was tried
        if _of_other(path):
            if other != value and key in _given(work.node):
                what = f"{path} of another service sets {key} = {other}, and goes before {at}"
                found.append(
                    warning("PREPARE-SYSCTL", host, what, f"give both inventories the same, here it is {value}")
                )
        elif state.values[key] != value:
            found.append(_not_taken(host, key, value, state.values[key]))
        elif path and other != value and not (key == RESERVED and ports_of(other) == ports_of(value)):
            what = f"{path} sets {key} = {other}, and is read after {at} at a boot"
            found.append(warning("PREPARE-SYSCTL", host, what, f"take it out there, {value} is wanted"))
    for key in sorted(set(work.node.settings.sysctl) - set(state.values)):
        what = f"this kernel has no {key}, which the inventory's sysctl sets"
        found.append(warning("PREPARE-SYSCTL", host, what, "mend its name, or load the module that brings it"))
    if state.swap and not work.host.in_container:
        what = f"swap is on ({', '.join(state.swap)})"
        why = "an engine that is swapped out stalls all others of its instance; vm.swappiness = 0 only makes it rare"
        found.append(warning("PREPARE-SWAP", host, what, "swapoff -a, and take it out of /etc/fstab", why))
    return found
