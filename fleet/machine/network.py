"""The network between hosts, as far as one host can tell: its name, its interface, its firewall, its port ranges.

Sources: Gloo takes the address that the host name resolves to unless GLOO_SOCKET_IFNAME is set (vllm issue 7074);
firewalld with only port 22 open lets the NPU plane work and refuses HCCL and Gloo (HCCL fault guide, EI0015);
Linux documentation, ip-sysctl: ip_local_port_range, ip_local_reserved_ports.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet import sharing
from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import scope
from fleet.topology import Plan

# A rule for all TCP that comes from some address or by some interface.
_WIDE = re.compile(
    r"-A INPUT(?: -s (?P<source>\S+))?(?: -i (?P<entry>\S+))?(?: -p tcp)?(?: -m tcp)?"
    r"(?: -m comment --comment (?:\"[^\"]*\"|\S+))?"
)
BINDING = ("GLOO_SOCKET_IFNAME", "VLLM_HOST_IP")


@dataclass(frozen=True)
class State:
    """``name_is`` are the addresses of the host's own name; ``mtu`` is in bytes by interface; ``walls`` are what
    refuses connections: ufw, rules of iptables, ``nft FAMILY TABLE`` of a chain that drops;
    ``ephemeral`` is the range of ports for any connection, None where it is not told."""

    name: str = ""
    name_is: tuple[str, ...] = ()
    mtu: tuple[tuple[str, int], ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()  # address, interface
    walls: tuple[str, ...] = ()
    ephemeral: range | None = None
    reserved: frozenset[int] = frozenset()


def sections(plan: Plan, node: Node) -> list[str]:
    """Only where engines talk to engines of other hosts. Nothing here loads a module of the kernel's firewall."""
    if not scope.works_with_others(plan, node):
        return []
    return [
        "echo '@@ name'; uname -n; timeout -k 2 20 getent ahosts \"$(uname -n)\" 2>/dev/null | "
        "awk '!s[$1]++ {print $1}'",
        "echo '@@ portrange'; cat /proc/sys/net/ipv4/ip_local_port_range",
        "echo '@@ reserved'; cat /proc/sys/net/ipv4/ip_local_reserved_ports",
        "echo '@@ firewall'; grep -qs '^ENABLED=yes' /etc/ufw/ufw.conf && echo ufw; "
        # Where none of these is there, the kernel filters nothing, and asking would load its filters.
        "if ls -d /sys/module/nf_tables /proc/sys/net/netfilter/nf_conntrack_max /proc/net/nf_conntrack 2>/dev/null | "
        "grep -q . || grep -qs filter /proc/net/ip_tables_names; then "
        "timeout -k 2 5 iptables -S INPUT 2>/dev/null | head -n 200; timeout -k 2 5 nft list chains 2>/dev/null | "
        'awk \'/^table/ {t = $2 " " $3} /hook input.*policy drop/ {print "nft " t}\'; fi',
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered; ``address`` and ``link`` are sections of the snapshot itself."""
    name, *addresses = sections.get("name") or [""]
    numbers = " ".join(sections.get("portrange", [])).split()
    return State(
        name=name,
        name_is=tuple(addresses),
        mtu=tuple(links(sections.get("link", [])).items()),
        interfaces=tuple(_addresses(sections.get("address", []))),
        walls=tuple(sections.get("firewall", [])),
        ephemeral=range(int(numbers[0]), int(numbers[1]) + 1)
        if len(numbers) == 2 and all(n.isdigit() for n in numbers)
        else None,
        reserved=frozenset(_ports("".join(sections.get("reserved", [])))),
    )


def links(lines: Iterable[str]) -> dict[str, int]:
    """``2: eth0@if5: <…> mtu 1500 …`` as {eth0: 1500}."""
    found = {}
    for line in lines:
        words = line.split()
        if len(words) > 4 and "mtu" in words and words[words.index("mtu") + 1].isdigit():
            found[words[1].rstrip(":").partition("@")[0]] = int(words[words.index("mtu") + 1])
    return found


def _addresses(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        words = line.split()
        if len(words) > 3 and words[2] in ("inet", "inet6"):
            yield words[3].partition("/")[0], words[1]


def _ports(text: str) -> Iterable[int]:
    """``60000-60031,36000`` as its ports."""
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), min(int(last or first), 65535) + 1)


def judge(plan: Plan, node: Node, state: State) -> list[Finding]:
    """What keeps other hosts from reaching this one, or now and then from starting."""
    return [*_name(plan, node, state), *_ephemeral(plan, node, state)]


def _name(plan: Plan, node: Node, state: State) -> Iterable[Finding]:
    if not state.name_is:
        return
    if not all(_is_loopback(a) for a in state.name_is):
        yield from _foreign_name(node, state)
        return
    open_units = [u.name for u in scope.engines(plan, node) if not all(u.env.get(key) for key in BINDING)]
    what = f"the host's own name {state.name} resolves to {', '.join(state.name_is)}"
    mend = f"give {state.name} the address {node.address} in /etc/hosts"
    if open_units:
        why = f"{open_units[0]} has no {' and '.join(BINDING)}, so its peers are told to call that address"
        yield error("NET-LOOPBACK", node.name, what, mend, why, "vllm issue 7074")
    else:
        why = "what goes by the name instead of the plan's address tells its peers to call themselves"
        yield warning("NET-LOOPBACK", node.name, what, mend, why, "vllm issue 7074")


def _foreign_name(node: Node, state: State) -> Iterable[Finding]:
    """The name of a host that was cloned or has moved, in /etc/hosts or DNS."""
    here = {address for address, _ in state.interfaces}
    if node.address in here and not any(a in here or _is_loopback(a) or a.startswith("fe80:") for a in state.name_is):
        what = f"the host's own name {state.name} resolves to {', '.join(state.name_is)}, which is not its own"
        mend = f"give {state.name} the address {node.address} in /etc/hosts"
        why = "what goes by the name cannot listen there, and tells its peers to call another machine"
        yield warning("NET-LOOPBACK", node.name, what, mend, why, "vllm issue 7074")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _ephemeral(plan: Plan, node: Node, state: State) -> Iterable[Finding]:
    if state.ephemeral is None:
        return
    exposed = [p for p in scope.peer_ports(plan, node) if p in state.ephemeral and p not in state.reserved]
    if exposed:
        all_of_them = span(sorted({*state.reserved, *exposed})).replace(", ", ",")
        ports = f"port{'s' * (len(exposed) > 1)} {span(exposed)}"
        what = f"{ports} lie{'s' * (len(exposed) == 1)} in {state.ephemeral[0]}-{state.ephemeral[-1]}"
        what += ", from which the kernel gives ports to any connection, and not among the reserved ones"
        mend = f"sysctl -w net.ipv4.ip_local_reserved_ports={all_of_them}, and the same in /etc/sysctl.d"
        why = "a start then fails now and then with Address already in use"
        yield warning("HOST-EPHEMERAL", node.name, what, mend, why, "vllm-ascend guide: reserve 60000-60031")


def walled(plan: Plan, node: Node, state: State, active: frozenset[str]) -> list[Finding]:
    """A firewall that refuses what nobody let in; ``active`` are services that run."""
    walls = ["firewalld"] if "firewalld" in active else []
    walls += ["ufw"] if "ufw" in state.walls else []
    peers = [n.address for n in plan.fleet.nodes if n is not node and scope.engines(plan, n)]
    name = interface_of(node, state)
    if not all(_let_in(state.walls, peer, name) for peer in peers):
        walls.append("iptables, whose INPUT chain refuses")
    # "ip filter" is what iptables shows too.
    walls += [f"nftables, {wall[4:]}" for wall in state.walls if re.match("nft (?!ip filter$)", wall)]
    if not walls or not scope.works_with_others(plan, node):
        return []
    ports = span(sorted(sharing.claims(plan, node).ports))
    what = f"a firewall refuses connections here ({', '.join(walls)})"
    mend = f"let the fleet's hosts reach TCP ports {ports}, and waive this rule"
    why = "with port 22 alone open everything looks well until the engines call each other"
    return [warning("NET-FIREWALL", node.name, what, mend, why, "HCCL fault guide, EI0015")]


def _let_in(rules: Iterable[str], address: str, interface: str | None) -> bool:
    """Whether the INPUT chain of iptables lets all TCP come from an address: what matches first counts, and what no
    rule matches is up to the policy. A rule that asks for anything else neither lets all in nor keeps all out."""
    verdict = True
    for rule in rules:
        chain, target = rule.partition(" -j ")[::2]
        if rule.startswith("-P INPUT "):
            verdict = rule == "-P INPUT ACCEPT"
        elif chain == "-A INPUT" and target.split(" ")[0] in ("DROP", "REJECT"):
            return False
        elif target == "ACCEPT" and (match := _WIDE.fullmatch(chain)):
            source, entry = match["source"] or "0.0.0.0/0", match["entry"] or interface
            if entry == interface and _holds(source, address):
                return True
    return verdict


def _holds(network: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def interface_of(node: Node, state: State) -> str | None:
    """The interface that carries the host's address, or the one that the inventory insists on."""
    return node.settings.interface or dict(state.interfaces).get(node.address)


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """Hosts of an instance whose interfaces have another MTU than its head's."""
    found = []
    for instance in plan.instances:
        head = _mtu(instance.head, states)
        for member in instance.members[1:]:
            its = _mtu(member.node, states)
            if head and its and head[1] != its[1]:
                what = f"{its[0]} has MTU {its[1]}, {head[0]} of {instance.head.name}, the head of {instance.name}, "
                what += f"has {head[1]}"
                why = "large packets are lost where the path is narrower than the sender thinks"
                mend = f"ip link set {its[0]} mtu {head[1]}, and the same in the network's configuration"
                found.append(warning("NET-MTU", member.node.name, what, mend, why))
    return found


def _mtu(node: Node, states: Mapping[str, State]) -> tuple[str, int] | None:
    if node.name not in states:
        return None
    name = interface_of(node, states[node.name])
    mtu = dict(states[node.name].mtu).get(name or "")
    return (name, mtu) if name and mtu else None
