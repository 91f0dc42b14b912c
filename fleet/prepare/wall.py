"""What the firewall closes on a host, as data and as the files that lie there."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from fleet import ports, sharing
from fleet.inventory import Node
from fleet.render import environment
from fleet.topology import ROOT, Plan

RUN = "/run/fleet-firewall"
SYSTEMD = "/etc/systemd/system"
SSH_PORT = 22
# Ray's dashboard, and its agent on every node, which runs jobs of whoever asks (Ray's configuration guide).
RAY_DASHBOARD, RAY_AGENT = 8265, 52365


@dataclass(frozen=True)
class Wall:
    """What is closed on one host. Addresses and networks are grouped by IP version, as nftables has them."""

    service: str
    ssh: tuple[int, ...]
    peers: tuple[tuple[int, tuple[str, ...]], ...] = ()
    api: tuple[int, ...] = ()
    networks: tuple[tuple[int, tuple[str, ...]], ...] = ()
    closed: tuple[int, ...] = ()

    @property
    def table(self) -> str:
        """Services of one host have a table each: one is replaced or removed without the others."""
        return f"vllm_fleet_{self.service}" if self.service else "vllm_fleet"

    @property
    def name(self) -> str:
        """The systemd unit's, without its ending; not vllm-*, which are engines, routers and proxies."""
        return f"fleet-firewall-{self.service}" if self.service else "fleet-firewall"

    @property
    def path(self) -> str:
        """The file that nft reads."""
        return f"{ROOT}/firewall{f'-{self.service}' if self.service else ''}.nft"

    @property
    def unit_path(self) -> str:
        return f"{SYSTEMD}/{self.name}.service"

    @property
    def beside(self) -> str:
        """What makes nftables.service bring the table back when it starts, and with that flushes everything."""
        return f"{SYSTEMD}/nftables.service.d/{self.name}.conf"

    @property
    def record(self) -> str:
        """What was loaded: the sum of the file, and of the table as nft showed it right after."""
        return f"{RUN}/{self.table}"

    @property
    def undo(self) -> str:
        """The way back from rules that nobody has confirmed yet."""
        return f"{RUN}/{self.table}.undo"

    @property
    def before(self) -> str:
        """The table as it was before them."""
        return f"{RUN}/{self.table}.before"


def wall(plan: Plan, node: Node, ssh: Iterable[int] = (SSH_PORT,)) -> Wall:
    """What the plan wants closed on a host where sshd listens at these ports."""
    return Wall(
        service=plan.fleet.settings.service,
        ssh=tuple(sorted({SSH_PORT, *ssh})),
        peers=_by_version([ipaddress.ip_network(n.address) for n in plan.fleet.nodes]),
        api=client_ports(plan, node),
        networks=_by_version(_collapsed(plan.fleet.settings.api_networks)),
        closed=closed_ports(plan, node),
    )


def client_ports(plan: Plan, node: Node) -> tuple[int, ...]:
    """Where clients come in on this host: proxies, or the engines where there is none."""
    kind = "proxy" if any(u.kind == "proxy" for u in plan.units) else "engine"
    return tuple(sorted({u.ports["api"] for u in plan.units_of(node.name) if u.kind == kind and "api" in u.ports}))


def closed_ports(plan: Plan, node: Node) -> tuple[int, ...]:
    """Everything else that the plan has on this host.

    Ports that Ray's workers may take are closed only where no other service has a share of the host: they are many,
    and one of another service's may lie among them.
    """
    found = set(sharing.claims(plan, node).ports)
    settings = node.settings
    if any(u.kind == "ray" for u in plan.units_of(node.name)) and not (settings.port_offset or settings.shares_host):
        found |= {ports.RAY_PORT, ports.RAY_CLIENT_PORT, RAY_DASHBOARD, RAY_AGENT, *ports.RAY_WORKER_PORTS}
    return tuple(sorted(found - set(client_ports(plan, node))))


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _collapsed(texts: Iterable[str]) -> list[Network]:
    """None within another: nftables refuses intervals that overlap."""
    found = [ipaddress.ip_network(text) for text in texts]
    four = ipaddress.collapse_addresses(n for n in found if isinstance(n, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(n for n in found if isinstance(n, ipaddress.IPv6Network))
    return [*four, *six]


def _by_version(networks: Iterable[Network]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """As texts in order, an address without its mask."""
    by: dict[int, list[str]] = {}
    for one in sorted(networks, key=lambda n: (n.version, n.network_address.packed)):
        by.setdefault(one.version, []).append(str(one.network_address if one.num_addresses == 1 else one))
    return tuple((version, tuple(texts)) for version, texts in by.items())


# ---- the files


def rules(its: Wall) -> str:
    """The file that nft reads."""
    return render("table.nft.j2", wall=its)


def service(its: Wall) -> str:
    """The unit that loads the file with every boot."""
    load = (
        f"nft -f {its.path}; mkdir -p {RUN}; {{ sha256sum <{its.path}; "
        f"nft -s list table inet {its.table} | sha256sum; }} >{its.record}.new; mv -f {its.record}.new {its.record}"
    )
    return render("unit.service.j2", wall=its, load=load)


def beside(its: Wall) -> str:
    """The drop-in of nftables.service."""
    return render("beside.conf.j2", wall=its)


def render(name: str, **values: object) -> str:
    """A template of files/firewall as text."""
    text: str = environment().get_template(f"firewall/{name}").render(**values)
    return text
