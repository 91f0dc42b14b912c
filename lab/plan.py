"""Names, addresses and the text of the files a lab writes: pure functions of its name, subnet and number of hosts."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

DEFAULT_NAME = "lab"
DEFAULT_SUBNET = "10.231.77.0/24"
DEFAULT_BRIDGE = "vfl0"
FIRST_HOST = 10
MAX_HOSTS = 64
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,19}")


@dataclass(frozen=True)
class Address:
    """One host's name and its address on the lab's bridge."""

    name: str
    address: str


@dataclass(frozen=True)
class LabPlan:
    """What follows from a lab's name and subnet."""

    name: str
    subnet: ipaddress.IPv4Network
    bridge: str

    @property
    def gateway(self) -> str:
        """The machine's own address on the bridge."""
        return str(self.subnet.network_address + 1)

    def host(self, index: int) -> Address:
        """Host number `index`, counted from 0."""
        return Address(f"{self.name}-{index}", str(self.subnet.network_address + FIRST_HOST + index))

    def hosts(self, count: int) -> list[Address]:
        """The first `count` hosts. Raises LabError when the subnet or the lab has no room for them."""
        room = min(MAX_HOSTS, self.subnet.num_addresses - FIRST_HOST - 1)
        if not 1 <= count <= room:
            raise LabError(f"lab {self.name}: {count} hosts asked for; {self.subnet} has room for 1 to {room}")
        return [self.host(index) for index in range(count)]


def make_plan(name: str = DEFAULT_NAME, subnet: str = DEFAULT_SUBNET) -> LabPlan:
    """Check a lab's name and subnet. Raises LabError for one that cannot work."""
    if not NAME_PATTERN.fullmatch(name):
        raise LabError(
            f"lab name {name!r}: use 1 to 20 of a-z, 0-9 and '-', starting with a letter; it begins host names"
        )
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as reason:
        raise LabError(f"lab {name}: subnet {subnet!r}: {reason}; write it like {DEFAULT_SUBNET}") from None
    if not network.is_private or network.prefixlen > 27:
        raise LabError(f"lab {name}: subnet {subnet} must be private and /27 or larger, like {DEFAULT_SUBNET}")
    return LabPlan(name, network, bridge_name(name))


def bridge_name(name: str) -> str:
    """The bridge's name: interfaces have 15 characters at most, so other labs than the default get a hash."""
    return DEFAULT_BRIDGE if name == DEFAULT_NAME else f"vfl{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def machine_id(name: str, address: str) -> str:
    """A stable /etc/machine-id, 32 hexadecimal digits; an empty one would make systemd reset which services start."""
    return hashlib.sha256(f"vllm-fleet-lab {name} {address}".encode()).hexdigest()[:32]


def network_unit(host: Address, plan: LabPlan) -> str:
    """The systemd-networkd file that gives a host its static address."""
    return (
        "[Match]\nName=host0\n\n"
        f"[Network]\nAddress={host.address}/{plan.subnet.prefixlen}\nGateway={plan.gateway}\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    )


def hosts_file(host: Address) -> str:
    """/etc/hosts of one host: its own name is its real address, never 127.0.1.1, which engines would hand to peers."""
    return f"127.0.0.1 localhost\n{host.address} {host.name}\n"


def known_hosts(hosts: Sequence[Address], public_keys: Sequence[str]) -> str:
    """One line per host under its name and its address, from the keys that the lab itself made."""
    lines = []
    for host, key in zip(hosts, public_keys, strict=True):
        kind, body = key.split()[:2]
        lines.append(f"{host.name},{host.address} {kind} {body}\n")
    return "".join(lines)


def ssh_config(hosts: Sequence[Address], directory: Path) -> str:
    """A configuration for the system's ssh: `ssh -F .lab/ssh_config lab-0`."""
    blocks = [f"Host {host.name} {host.address}\n  HostName {host.address}\n" for host in hosts]
    common = {
        "User": "root",
        "IdentityFile": f'"{directory / "id_ed25519"}"',
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": f'"{directory / "known_hosts"}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "PasswordAuthentication": "no",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    return "".join(blocks) + "Host *\n" + "".join(f"  {key} {value}\n" for key, value in common.items())


def inventory(hosts: Sequence[Address], directory: Path) -> str:
    """A plain pyinfra inventory of all hosts, with strict host keys."""
    lines = ['"""All hosts of the lab; written by `fleet lab up`."""\n\n', "ssh = {\n"]
    settings = {
        "ssh_user": "root",
        "ssh_key": str(directory / "id_ed25519"),
        "ssh_known_hosts_file": str(directory / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
        "ssh_allow_agent": False,
        "ssh_look_for_keys": False,
    }
    lines += [f'    "{key}": {quoted(value)},\n' for key, value in settings.items()]
    lines += ["}\n", "hosts = [\n"]
    lines += [f'    ("{host.name}", {{"ssh_hostname": "{host.address}", **ssh}}),\n' for host in hosts]
    return "".join([*lines, "]\n"])


def quoted(value: object) -> str:
    """A Python literal with double quotes."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)
