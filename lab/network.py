"""The lab's bridge: made and removed by us, with a subnet of its own that nothing else on the machine uses."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from lab.cache import cache_dir
from lab.errors import LabError
from lab.plan import LabPlan
from lab.shell import run

# Marks a bridge as a lab's. Unlike an alias it can be set by the call that makes the bridge, so that a run killed
# right after it leaves no bridge without an owner.
GROUP = "77231"
NF_CALL = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_HOST = 24


@dataclass(frozen=True)
class Interface:
    """One network interface of the machine with its IPv4 networks."""

    name: str
    group: str
    networks: tuple[ipaddress.IPv4Network, ...]


def interfaces(text: str) -> list[Interface]:
    """Parse `ip -json address`."""
    found = []
    for entry in json.loads(text):
        nets = [
            ipaddress.IPv4Interface(f"{item['local']}/{item['prefixlen']}").network
            for item in entry.get("addr_info", [])
            if item.get("family") == "inet"
        ]
        found.append(Interface(entry.get("ifname", ""), str(entry.get("group", "")), tuple(nets)))
    return found


def read_interfaces() -> list[Interface]:
    """The machine's interfaces now."""
    return interfaces(run(["ip", "-json", "address"], doing="reading the machine's addresses", timeout=10))


def clash(plan: LabPlan, present: list[Interface]) -> str:
    """Why the lab's bridge or subnet cannot be used, in one line; empty when it can."""
    for interface in present:
        ours = is_ours(interface, plan)
        if interface.name == plan.bridge and not ours:
            problem = f"an interface {plan.bridge} that is not the lab's exists"
            return f"lab {plan.name}: {problem}; remove it (ip link delete {plan.bridge}) or use another lab name"
        taken = [network for network in interface.networks if network.overlaps(plan.subnet)]
        if taken and not ours:
            return (
                f"lab {plan.name}: subnet {plan.subnet} overlaps {taken[0]} on {interface.name}; "
                "choose a free one: fleet lab up --subnet 10.X.Y.0/24"
            )
    return ""


def is_ours(interface: Interface, plan: LabPlan) -> bool:
    """Whether the interface is the bridge of this lab."""
    return interface.name == plan.bridge and interface.group == GROUP


def hardware_address(name: str) -> str:
    """A stable address of Ethernet for a name, from those that anybody may give."""
    return "02:" + hashlib.sha256(name.encode()).digest()[:5].hex(":")


def bridge_up(plan: LabPlan) -> None:
    """Make the bridge with the machine's address on it, or do nothing if it is there. Raises LabError on a clash."""
    present = read_interfaces()
    if reason := clash(plan, present):
        raise LabError(reason)
    if all(interface.name != plan.bridge for interface in present):
        # An address of its own: a bridge otherwise takes the lowest of its ports', and with a host that goes its own
        # changes, so that the others send to one that nobody has until they ask again.
        make = ["ip", "link", "add", "name", plan.bridge, "address", hardware_address(plan.bridge), "group", GROUP]
        make += ["type", "bridge"]
        run(
            [*make, "stp_state", "0", "forward_delay", "0"],
            doing=f"making the bridge {plan.bridge}",
            timeout=10,
        )
    address = f"{plan.gateway}/{plan.subnet.prefixlen}"
    run(
        ["ip", "address", "replace", address, "dev", plan.bridge],
        doing=f"addressing {plan.bridge}",
        timeout=10,
    )
    run(["ip", "link", "set", plan.bridge, "up"], doing=f"starting {plan.bridge}", timeout=10)
    # Hosts have a default route because engines find their own address by it; nothing is ever sent further.
    write_kernel(Path(f"/proc/sys/net/ipv4/conf/{plan.bridge}/forwarding"), "0")
    let_bridge_pass()


def bridge_down(plan: LabPlan) -> None:
    """Remove the bridge if it is ours; the last lab of the machine puts the kernel's setting back."""
    present = read_interfaces()
    names = [interface.name for interface in present if is_ours(interface, plan)]
    for name in names:
        run(["ip", "link", "delete", name], doing=f"removing the bridge {name}", timeout=20)
    if not any(interface.group == GROUP and interface.name not in names for interface in present):
        restore_bridge_setting()


def saved_setting() -> Path:
    """Where the kernel's own value is kept while labs run."""
    return cache_dir() / "labs" / "bridge-nf-call-iptables"


def let_bridge_pass() -> None:
    """Keep the machine's firewall off bridged packets: a Docker engine beside us drops forwarded ones in silence."""
    if not NF_CALL.exists() or NF_CALL.read_text().strip() == "0":
        return
    saved_setting().parent.mkdir(parents=True, exist_ok=True)
    saved_setting().write_text(NF_CALL.read_text())
    write_kernel(NF_CALL, "0")


def restore_bridge_setting() -> None:
    """Put back what `let_bridge_pass` changed."""
    if saved_setting().exists():
        if NF_CALL.exists():
            write_kernel(NF_CALL, saved_setting().read_text().strip())
        saved_setting().unlink()


def allow_inotify(hosts: int) -> None:
    """Raise the number of inotify instances that root may have; each host's systemd needs some. It stays raised."""
    wanted = 128 + INOTIFY_PER_HOST * hosts
    if INOTIFY.exists() and int(INOTIFY.read_text()) < wanted:
        write_kernel(INOTIFY, str(wanted))


def write_kernel(setting: Path, value: str) -> None:
    """Write one kernel setting; LabError when this machine does not permit it."""
    try:
        setting.write_text(value + "\n")
    except OSError as reason:
        raise LabError(
            f"setting {setting} to {value}: {reason.strerror}; the lab needs a root that may set it"
        ) from None
