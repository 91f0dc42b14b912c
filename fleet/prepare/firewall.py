"""The firewall: a table of our own in nftables that closes what is not for clients, and nothing else.

Engines trust whoever reaches their data-parallel, transfer and Ray ports: those have no authentication (vLLM security
guide; Ray's security page). The chain accepts, and drops by name, so that no rule of it can close SSH. It lives in a
table for each service of a host. ``docs/firewall.md`` says what it cannot know.

Strangers are dropped, not refused: an answer would tell them that there is something, and help nobody who should get
in. Whoever should and does not finds the counters in ``nft list table``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.prepare.common import Outcome, Step, Work, failed, sum_of
from fleet.prepare.wall import RUN, SSH_PORT, Wall, beside, render, rules, service, wall
from fleet.topology import Plan

UNDO_SECONDS = 60
# Programs of a service, as the kernel shows their names.
_OURS = re.compile(r"python|vllm|VLLM|ray|gcs_server|haproxy|sshd|systemd")


@dataclass(frozen=True)
class State:
    """``file``, ``unit`` and ``beside`` are sums of what lies there, ``listing`` that of the kernel's table."""

    nft: bool = False
    kernel: str = ""  # nft's own word where the kernel has no tables
    file: str = ""
    unit: str = ""
    beside: str = ""
    recorded: tuple[str, ...] = ()
    listing: str = ""
    enabled: bool = False
    active: bool = False
    ssh: tuple[int, ...] = (SSH_PORT,)
    listeners: tuple[tuple[int, str], ...] = ()  # port, program; not those of loopback


# ---- asking


def sections(plan: Plan, node: Node) -> list[str]:
    """Where no firewall is asked for, nft is asked only about one that we left: asking loads the kernel's filters."""
    its = wall(plan, node)
    left = " -o ".join(f"-e {path}" for path in (its.path, its.unit_path, its.beside, its.record, its.undo))
    sums = "".join(
        f"sha256sum {path} 2>/dev/null | sed 's/^/{key} /'; "
        for key, path in (("file", its.path), ("unit", its.unit_path), ("beside", its.beside))
    )
    return [
        "echo '@@ fleetfirewall'; ( PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; "
        f"{'true' if node.settings.firewall else f'test {left}'} || exit 0; "
        f"{sums}sed 's/^/recorded /' {its.record} 2>/dev/null; "
        f'echo "enabled $(systemctl is-enabled {its.name}.service 2>/dev/null)"; '
        f'echo "active $(systemctl is-active {its.name}.service 2>/dev/null)"; '
        'ss -Hltnp 2>/dev/null | awk \'{print "listener " $4 " " $6}\'; '
        "systemctl show -p Listen ssh.socket sshd.socket 2>/dev/null | "
        "sed -n 's/^Listen=\\(.*\\) (Stream)$/socket \\1/p'; "
        "command -v nft >/dev/null || exit 0; echo nft; "
        "k=$(timeout -k 2 10 nft list tables 2>&1) || "
        'echo "kernel $(echo "${k:-nft gave no answer in 10 s}" | head -n 1)"; '
        f"if l=$(timeout -k 2 10 nft -s list table inet {its.table} 2>/dev/null); then "
        "printf '%s\\n' \"$l\" | sha256sum | sed 's/^/listing /'; fi )",
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    said: dict[str, list[str]] = {}
    for line in sections.get("fleetfirewall", []):
        key, _, rest = line.partition(" ")
        said.setdefault(key, []).append(rest.strip())
    listeners = [_listener(text) for text in said.get("listener", [])]
    sockets = [_port(text) for text in said.get("socket", [])]
    sshd = [port for port, program in listeners if program in ("sshd", "dropbear")]
    return State(
        nft="nft" in said,
        kernel=said.get("kernel", [""])[0],
        file=_sum(said.get("file")),
        unit=_sum(said.get("unit")),
        beside=_sum(said.get("beside")),
        recorded=tuple(_sum([text]) for text in said.get("recorded", [])),
        listing=_sum(said.get("listing")),
        enabled=said.get("enabled") == ["enabled"],
        active=said.get("active") == ["active"],
        ssh=tuple(sorted({SSH_PORT, *sshd, *sockets} - {0})),
        listeners=tuple(sorted({(port, program) for port, program in listeners if port})),
    )


def _sum(texts: Sequence[str] | None) -> str:
    return texts[0].partition(" ")[0] if texts else ""


def _port(address: str) -> int:
    """The port of ``0.0.0.0:22``, ``[::]:22``, ``*:22`` or ``22``; 0 where only the host itself gets there."""
    host, _, port = address.rpartition(":")
    local = host.strip("[]").partition("%")[0]
    return int(port) if port.isdigit() and not local.startswith("127.") and local != "::1" else 0


def _listener(text: str) -> tuple[int, str]:
    address, _, users = text.partition(" ")
    program = re.search(r'"([^"]*)', users)
    return _port(address), program[1] if program else ""


# ---- judging


def _differs(its: Wall, state: State) -> str:
    """What is not as it should be; empty where all is."""
    wanted = sum_of(rules(its))
    if not state.file and not state.listing:
        return "there is none"
    if not state.listing:
        return "it is not loaded"
    if state.file != wanted:
        return "it has other rules"
    if state.recorded != (wanted, state.listing):
        return "its table was changed by another hand"
    if (state.unit, state.beside) != (sum_of(service(its)), sum_of(beside(its))):
        return "its unit differs"
    if not (state.enabled and state.active):
        return "the next boot would not load it"
    return ""


def _left(state: State) -> bool:
    return bool(state.file or state.unit or state.beside or state.recorded or state.listing)


def refuse(work: Work) -> list[Finding]:
    """A plan that would close SSH, and a kernel without tables.

    That nft itself is missing is told by the step: in a dry run the package is yet to come.
    """
    if not work.node.settings.firewall:
        return []
    state: State = work.states["firewall"]
    its, found = wall(work.plan, work.node, state.ssh), []
    meeting = sorted(set(its.ssh) & {*its.api, *its.closed})
    if meeting:
        what = f"sshd listens at port {span(meeting)}, which the plan wants for the service"
        mend = "give the service another port (port or proxy.port of the recipe, port_offset), or sshd"
        found.append(error("FIREWALL-SSH", work.name, what, mend))
    if state.kernel:
        what = f"this kernel has no nf_tables: {state.kernel}"
        mend = "load the module nf_tables, in a container: on the machine below; or set firewall = False"
        found.append(error("FIREWALL-KERNEL", work.name, what, mend))
    if not found and _differs(its, state):
        found += _strangers(work, its, state)
    return found


def _strangers(work: Work, its: Wall, state: State) -> list[Finding]:
    """Others' programs that listen at a port about to be closed: in Ray's range lie those of some agents."""
    closed = set(its.closed)
    others = [f"{port} ({name})" for port, name in state.listeners if port in closed and name and not _OURS.match(name)]
    if not others:
        return []
    what = f"other programs listen at ports that are closed to all but the fleet: {', '.join(others[:8])}"
    why = "who asks them from outside the fleet will get no answer"
    mend = "move them to other ports, or let only hosts of the fleet ask them"
    return [warning("FIREWALL-OTHERS", work.name, what, mend, why)]


def steps(work: Work, undo_after: int = UNDO_SECONDS) -> list[Step]:
    """One step at most. It loads the rules under a way back, which ``confirm`` takes away within ``undo_after`` s."""
    state: State = work.states["firewall"]
    its = wall(work.plan, work.node, state.ssh)
    if not work.node.settings.firewall:
        return [_removal(its)] if _left(state) else []
    differs = _differs(its, state)
    if not differs:
        return []
    values = {"wall": its, "run": RUN, "undo_after": undo_after}
    undo = render("undo.sh.j2", **values)
    files = {"rules": rules(its), "service": service(its), "beside": beside(its)}
    script = render("load.sh.j2", undo=undo, **files, **values)
    step = Step(f"{_describe(its)} ({differs})", script, 60, confirm=render("confirm.sh.j2", **values))
    return [replace(step, read=partial(_read, work.name, step))]


def _removal(its: Wall) -> Step:
    name = f"firewall removed: table inet {its.table} (firewall is off)"
    return Step(name, render("remove.sh.j2", wall=its), 60)


def _describe(its: Wall) -> str:
    """``firewall: 46 ports for the fleet's 3 hosts alone, API port 8080 for 10.0.0.0/8``."""
    hosts = sum(len(addresses) for _, addresses in its.peers)
    count = len(its.closed)
    parts = [f"{count} port{'s' * (count != 1)} for the fleet's {hosts} host{'s' * (hosts != 1)} alone"]
    if its.api:
        whom = ", ".join(network for _, networks in its.networks for network in networks) or "everybody"
        parts.append(f"API port{'s' * (len(its.api) > 1)} {span(its.api)} for {whom}")
    return f"firewall: {', '.join(parts)}"


def _read(host: str, step: Step, well: bool, lines: Sequence[str]) -> Outcome:
    """What nft has against the file, with its line."""
    if well:
        return Outcome()
    if lines and lines[-1] == "there is no nft":
        mend = "install the package nftables, or let deploy/base.py do it: firewall = True is in the inventory"
        return Outcome((error("FIREWALL-NFT", host, "there is no nft, which loads the rules", mend),))
    at = next((n for n, line in enumerate(lines) if "Error:" in line), None)
    if at is not None:
        line, _, said = lines[at].rpartition("/")[2].partition(" Error: ")
        text = " ".join(lines[at + 1 : at + 2]).strip()
        what = f"nft refuses the rules, line {line.rstrip(':').partition(':')[2]}: {said} ({text})"
        mend = "the rules from before stay; this is a fault of the file, or of an old nft: tell its version with it"
        return Outcome((error("FIREWALL-RULES", host, what[:400], mend),))
    return Outcome((failed(host, step, lines),))


def prove(work: Work) -> list[Finding]:
    """The rules are in force and come back with a boot; or they are gone, where they are not asked for."""
    state: State = work.states["firewall"]
    its = wall(work.plan, work.node, state.ssh)
    on = work.node.settings.firewall
    differs = _differs(its, state) if on else "it is there, and firewall is off" * _left(state)
    if not differs:
        return []
    what = f"the firewall's table inet {its.table} is not as it should be: {differs}"
    mend = f"see journalctl -u {its.name}, and nft list table inet {its.table}; run again"
    return [error("FIREWALL-STATE", work.name, what, mend)]
