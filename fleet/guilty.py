"""Who is to blame: which host the ranks and addresses that a log names belong to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.topology import Instance, Plan

Values = dict[str, str]
MANY = 12


@dataclass(frozen=True)
class Peers:
    """What of a plan is needed: of each group of ranks the host of every rank, and the name of each address.

    ``inner`` is the size of the largest group inside one of these: tensor, data or pipeline parallel. Such a group
    counts its ranks from 0 again, so that a rank below it, of a group of unknown size, may be anybody's.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    inner: int = 0

    def of_ranks(self, ranks: Iterable[int], size: int | None = None) -> tuple[str, ...]:
        """The hosts of these ranks, where every group of that size says the same."""
        wanted = sorted(set(ranks))
        if not wanted or (size is None and wanted[-1] < self.inner):
            return ()
        fitting = [g for g in self.groups if size in (None, len(g)) and wanted[-1] < len(g)]
        answers = {tuple(dict.fromkeys(group[rank] for rank in wanted)) for group in fitting}
        return answers.pop() if len(answers) == 1 else ()

    def of_address(self, address: str) -> tuple[str, ...]:
        name = self.addresses.get(address.strip("[]").removeprefix("::ffff:"))
        return (name,) if name else ()


NOBODY = Peers()


def peers_of(plan: Plan, instance: str | None = None) -> Peers:
    """Ranks and addresses of a plan, or only the ranks of one of its instances."""
    chosen = [i for i in plan.instances if instance in (None, i.name)]
    groups = tuple(dict.fromkeys(_hosts_by_rank(i) for i in chosen))
    return Peers(groups, {node.address: node.name for node in plan.fleet.nodes}, max(map(_inner, chosen), default=0))


def _inner(instance: Instance) -> int:
    role = instance.spec
    sizes = (role.tensor_parallel_size, role.data_parallel_size, role.pipeline_parallel_size)
    return max((size for size in sizes if size < len(_hosts_by_rank(instance))), default=0)


def _hosts_by_rank(instance: Instance) -> tuple[str, ...]:
    """The host of every rank of the instance's world: data-parallel ranks in order, each of tensor x pipeline size."""
    share = instance.spec.tensor_parallel_size * instance.spec.pipeline_parallel_size
    hosts: list[str] = []
    for member in instance.members:
        hosts += [member.node.name] * (len(member.devices) or member.local_size * share)
    return tuple(hosts)


def missing_ranks(lines: Sequence[str], values: Values, peers: Peers) -> tuple[str, ...]:
    """EI0015: the root lists who came, so that those to blame are the others; or it names who did not."""
    text = "\n".join(lines)
    needed = int(values["needed"]) if "needed" in values else None
    missing = {
        int(rank)
        for listed in re.findall(
            r"(?:Failed to connect agent|connectFailedAgentIdList|unconnected ranks: \"?)\[([\d, ]+)", text
        )
        for rank in listed.split(",")
        if rank.strip()
    }
    rows = re.findall(r"connected rankinfo\[LINE \d+\]:((?:\s*\[\d+\][,;]?)+)", text)
    came = {int(rank) for row in rows for rank in re.findall(r"\[(\d+)\]", row)}
    if not missing and needed and came and len(came) == int(values.get("connected", len(came))):
        missing = set(range(needed)) - came
    if missing:
        values["missing"] = _named(missing)
        return peers.of_ranks(missing, needed)
    return peers.of_address(values["root"]) if "root" in values else ()


_LINK = re.compile(
    r"\|\s*(?P<address>[\d.a-fA-F:]+)\((?P<rank>\d+)\)\s*\|[^|]*\|[^|]*\|[^|]*\|[^|]*\|[^|]*\|\s*(?P<tls>[A-Z]+)\s*\|"
)


def failed_links(lines: Sequence[str], values: Values, peers: Peers) -> tuple[str, ...]:
    """EI0006: the peers of the links that were not made, from HCCL's table and what it detects afterwards."""
    text = "\n".join(lines)
    rows = list(_LINK.finditer(text))
    ranks = {int(row["rank"]) for row in rows} | {int(r) for r in re.findall(r"remoteUserrank\[(\d+)\]", text)}
    if ranks:
        values["ranks"] = _named(ranks)
    switches = {row["tls"] for row in rows} & {"ENABLE", "DISABLE"}
    if len(switches) == 2:
        values["tls"] = "on for some and off for others"
    servers = re.findall(r"dstRank \(server ([^,]+),|remoteIpAddr\[([^/\]]+)", text)
    by_address = [host for pair in servers for address in pair if address for host in peers.of_address(address)]
    return tuple(dict.fromkeys(by_address)) or peers.of_ranks(ranks)


def peer(lines: Sequence[str], values: Values, peers: Peers) -> tuple[str, ...]:
    """The host at the address, or of the rank, that the pattern found."""
    if "rank" in values:
        return peers.of_ranks([int(values["rank"])], int(values["size"]) if "size" in values else None)
    return peers.of_address(values["peer"]) if "peer" in values else ()


def tls_hosts(lines: Sequence[str], values: Values, peers: Peers) -> tuple[str, ...]:
    """EI0016: the hosts of the shorter of the two lists, on with TLS and off without."""
    sides = {key: re.findall(r"\[([^/\]]+)/", values.get(key, "")) for key in ("enabled", "disabled")}
    for key, addresses in sides.items():
        if addresses:
            hosts = [host for address in addresses for host in peers.of_address(address) or (address,)]
            values[key] = ", ".join(dict.fromkeys(hosts))
    fewer = min(sides.values(), key=len)
    return tuple(dict.fromkeys(host for address in fewer for host in peers.of_address(address)))


def buffer_size(lines: Sequence[str], values: Values, peers: Peers) -> tuple[str, ...]:
    """HCCL_BUFFSIZE: the most that a rank needs, and the next multiple of 256 MB."""
    needs = [int(n) for line in lines for n in re.findall(r"NEEDED_HCCL_BUFFSIZE.{0,400}?= ?(\d+) ?MB", line)]
    if needs:
        values["needed"] = str(max(needs))
        values["enough"] = str(-(-max(needs) // 256) * 256)
    return ()


READERS: Mapping[str, Callable[[Sequence[str], Values, Peers], tuple[str, ...]]] = {
    "missing_ranks": missing_ranks,
    "failed_links": failed_links,
    "peer": peer,
    "tls_hosts": tls_hosts,
    "buffer_size": buffer_size,
}


def _named(ranks: Iterable[int]) -> str:
    """``rank 3``; ``ranks 1, 3, 5``; ``ranks 4 to 7`` where they follow each other; cut where they are many."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [w for run in runs for w in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = ", ".join(words if len(words) <= MANY else [*words[:MANY], "..."])
    return f"rank {listed}" if listed.isdigit() else f"ranks {listed}"
