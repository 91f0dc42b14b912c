"""The NPUs' networks over the hosts that work together: one TLS switch, one super pod, addresses of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet.findings import Finding, error, warning
from fleet.machine import common
from fleet.machine.common import Value, named
from fleet.machine.hccn import GUIDE, on_off
from fleet.machine.npu_table import State
from fleet.topology import Plan


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """What does not agree; a value that is not known disagrees with nothing."""
    found = _tls(plan, states)
    found += _pods(plan, states)
    twins = list(_twins(plan, states))
    return found + twins + ([] if twins else list(_subnets(plan, states)))


def _one(values: Mapping[int, Value]) -> Value | None:
    """The value that all devices of a host have; None where they differ, which the host's own check tells."""
    known = set(values.values())
    return known.pop() if len(known) == 1 else None


def _tls(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    switches = {h: _one({i: p.tls for i, p in s.ports.items() if p.tls is not None}) for h, s in states.items()}

    def say(host: str, its: int, other: str, theirs: int, company: str) -> Finding:
        return error(
            "NPU-TLS",
            host,
            f"TLS is {on_off(its)} for its NPUs, {other} has it {on_off(theirs)}",
            f"hccn_tool -i <device> -tls -s enable {theirs}, for all NPUs of all hosts of {company} alike",
            "NPUs whose switches differ do not connect: EI0006 or EI0016 after 120 s",
            "HCCL fault diagnosis; vllm-ascend issue 5461",
        )

    return common.differing(common.companies(plan), switches, say)


def _pods(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """A3 hosts of one instance must be in one super pod; those of one set had better be."""
    pods = {host: state.pod for host, state in states.items()}

    def apart(host: str, its: str, other: str, theirs: str, company: str) -> Finding:
        return error(
            "NPU-POD",
            host,
            f"super pod {its}, {other} is in {theirs}, both are of {company}",
            "form instances of hosts of one super pod",
            "NPUs reach each other within a super pod alone: EI0006 after 120 s",
            "vllm-ascend issue 9447",
        )

    def afar(host: str, its: str, other: str, theirs: str, company: str) -> Finding:
        return warning(
            "NPU-POD",
            host,
            f"super pod {its}, {other} is in {theirs}, both are of {company}",
            "form sets of hosts of one super pod, or see that the cache is handed over by RDMA",
            "prefill hands its cache to decode over the super pod's links where there are any",
            "vllm-ascend issue 9447",
        )

    return common.differing(common.groups(plan), pods, apart) or common.differing(common.companies(plan), pods, afar)


def _twins(plan: Plan, states: Mapping[str, State]) -> Iterator[Finding]:
    """Two hosts that work together with one identity: the server's index in its super pod, or an NPU's address."""
    told: set[tuple[str, str]] = set()
    for hosts in common.companies(plan).values():
        owners: dict[tuple[str, str], str] = {}
        for host in (h for h in hosts if h in states):
            state = states[host]
            for key, index in _identities(state).items():
                other = owners.setdefault(key, host)
                if other == host or (host, other) in told:
                    continue
                told.add((host, other))
                yield _same_server(host, other, key[1]) if index is None else _same_address(host, other, key[1], index)


def _identities(state: State) -> dict[tuple[str, str], int | None]:
    """(network, name in it) -> the device that has it, or None for the host itself."""
    if state.server is not None:
        return {(f"super pod {state.pod}", str(state.server)): None}
    return {("", p.address): i for i, p in state.ports.items() if p.address and p.address != "0.0.0.0"}


def _same_server(host: str, other: str, index: str) -> Finding:
    return error(
        "NPU-SDID",
        host,
        f"server index {index} of its super pod, and so has {other}",
        "give each server of the super pod its own index, then restart it",
        "their NPUs have the same numbers (SDID): HCCL ends with EI0014",
        "HCCL fault diagnosis; vllm-ascend pull request 2939",
    )


def _same_address(host: str, other: str, address: str, index: int) -> Finding:
    return error(
        "NPU-ADDRESS",
        host,
        f"{named([index])} has the address {address}, and so has one of {other}",
        "give each device its own: hccn_tool -i <device> -ip -s address <A> netmask <M>",
        "one of the two is never reached",
        GUIDE,
    )


def _subnets(plan: Plan, states: Mapping[str, State]) -> Iterator[Finding]:
    """A2: the same device of two hosts lies in one subnet; with a gateway another may do, if the network routes it."""
    told: set[str] = set()
    for company, hosts in common.companies(plan).items():
        asked = {host: states[host].ports for host in hosts if host in states}
        indices = sorted({index for ports in asked.values() for index in ports})
        bad: dict[str, tuple[list[int], str, str, str]] = {}
        for index in indices:
            networks = {
                h: ports[index].network for h, ports in asked.items() if index in ports and not ports[index].vnic
            }
            for host, its, other, theirs in common.odd(networks):
                bad.setdefault(host, ([], its, other, theirs))[0].append(index)
        for host, (devices, its, other, theirs) in bad.items():
            if host in told:
                continue
            told.add(host)
            routed = all(asked[h][i].gateway for i in devices for h in (host, other) if i in asked[h])
            say = warning if routed else error
            yield say(
                "NPU-SUBNET",
                host,
                f"{named(devices)} in {its}, on {other} in {theirs}",
                f"put the NPUs of {company} into one subnet, or see that their gateways route",
                "without a way between them HCCL ends with EI0006",
                "vllm-ascend issue 5461",
            )
