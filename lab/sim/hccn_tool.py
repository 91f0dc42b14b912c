"""hccn_tool: the network ports of the NPUs, with set commands that last.

Addresses that are set go to /etc/hccn.conf and outlive a boot, a link that is taken down comes back with it. One
call at a time: a second one is told that the tool is busy, as the real one tells it.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lab.sim import store
from lab.sim.store import ROOT, Document

CONF = ROOT / "etc/hccn.conf"
SETTINGS = ROOT / "var/lib/vllm-lab/hccn.json"
LINKS = ROOT / "run/vllm-lab/links.json"
LOCK = ROOT / "run/vllm-lab/hccn_tool.lock"
LOG = ROOT / "var/log/hccn_tool/hccn_config.log"

DONE = "Cmd executed successfully!"
NOT_THERE = "The device is not exist!"
NOT_HERE = "The command is not supported on this product."
INVALID = "Command execute failed!"
PING_COUNT = 3
ROCE_TIMES_US = (114, 61, 58)
HCCS_TIMES_NS = (12480, 8120, 8040)
# The keys of /etc/hccn.conf, and what they are called in a scenario.
KEYS = {"address": "ip", "netmask": "netmask", "gateway": "gateway", "netdetect": "netdetect"}


class Refused(Exception):
    """What the tool says instead of an answer, and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Port:
    """One device's port as it is now: the scenario, and over it what was set."""

    def __init__(self, one: Document, number: int) -> None:
        self.scenario, self.number = one, number
        self.set = store.read(SETTINGS).get(str(number), {})
        self.set_link = store.read(LINKS).get(str(number))

    def __getitem__(self, key: str) -> object:
        if key == "link" and self.set_link:
            return self.set_link
        return self.set.get(key, self.scenario["devices"][str(self.number)][key])

    @property
    def is_a3(self) -> bool:
        return bool(self.scenario["family"] == "ascend-a3")

    def save(self, **values: object) -> None:
        """Keep settings, and write those that belong there into hccn.conf."""
        everything = store.read(SETTINGS)
        everything[str(self.number)] = self.set = self.set | values
        store.write(SETTINGS, everything)
        write_conf(self.number, {key: values[name] for key, name in KEYS.items() if name in values})

    def save_link(self, state: str | None) -> None:
        """Take the link down or up until the next boot; None leaves it to the scenario again."""
        everything = store.read(LINKS)
        everything[str(self.number)] = state
        store.write(LINKS, everything)


def main(arguments: Sequence[str]) -> int:
    """0 with an answer; an error's code without."""
    try:
        with alone():
            print("\n".join(answer(list(arguments))))
    except Refused as reason:
        print(reason)
        return reason.code
    return 0


@contextmanager
def alone() -> Iterator[None]:
    """Keep other calls out for as long as a real one takes."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("hccn_tool is busy, please try again.") from None
        begin = time.monotonic()
        yield
        time.sleep(max(0.0, begin + store.scenario()["hccn_busy_ms"] / 1000 - time.monotonic()))


def answer(arguments: list[str]) -> list[str]:
    """`-i DEVICE -COMMAND -g|-s [...]`."""
    if len(arguments) < 4 or arguments[0] != "-i":
        raise Refused("Usage: hccn_tool -i <device> -<command> -g|-s [parameters]")
    one = store.scenario()
    if (
        one["driver_version"] is None
        or not arguments[1].isdigit()
        or int(arguments[1]) not in store.devices(one, "davinci")
    ):
        raise Refused(NOT_THERE)
    port = Port(one, int(arguments[1]))
    command, action, rest = arguments[2], arguments[3], arguments[4:]
    if command == "-cfg" and action == "recovery":
        return recover(port)
    if action == "-g" and command in PINGS:
        return PINGS[command](port, rest)
    if action == "-g" and command in GETS:
        return GETS[command](port)
    if action == "-s" and command in SETS:
        SETS[command](port, rest)
        log(arguments)
        return [DONE]
    raise Refused(INVALID)


def log(arguments: list[str]) -> None:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} hccn_tool {' '.join(arguments)}\n")


# /etc/hccn.conf


def write_conf(number: int, values: dict[str, object]) -> None:
    """Replace a device's keys; lines of others stay as they are."""
    if not values:
        return
    names = {f"{key}_{number}": value for key, value in values.items()}
    old = CONF.read_text().splitlines() if CONF.exists() else []
    kept = [line for line in old if line.partition("=")[0] not in names]
    # Written in place: a container has this very file mounted.
    CONF.write_text("".join(f"{line}\n" for line in [*kept, *(f"{name}={value}" for name, value in names.items())]))


def recover(port: Port) -> list[str]:
    """Apply a device's lines of hccn.conf again, and bring its link back."""
    if not CONF.exists():
        raise Refused("The hccn.conf can't access, please check it.")
    pairs = [line.partition("=") for line in CONF.read_text().splitlines()]
    lines = {name: value for name, _, value in pairs}
    found = {name: lines[f"{key}_{port.number}"] for key, name in KEYS.items() if f"{key}_{port.number}" in lines}
    port.save(**found)
    port.save_link(None)
    return [DONE]


# Queries


def link(port: Port) -> list[str]:
    return [f"link status: {port['link']}"]


def net_health(port: Port) -> list[str]:
    """The word of the scenario; a port that nobody gave a target says Init, one that was taken down says Fault."""
    word = port["net_health"]
    if word == "Success" and not port["netdetect"]:
        word = "Init"
    if word == "Success" and port["link"] == "DOWN":
        word = "Fault"
    return [f"net health status: {word}"]


def netdetect(port: Port) -> list[str]:
    return [f"netdetect addr: {port['netdetect'] or '0.0.0.0'}"]


def gateway(port: Port) -> list[str]:
    if not port["gateway"]:
        raise Refused("Get gateway failed, because no gateway was preset there!", 13)
    return [f"default gateway:{port['gateway']}, Iface:eth{port.number}"]


def ip(port: Port) -> list[str]:
    if not port["ip"]:
        raise Refused("Get ipconf failed, because no ip was preset there!", 13)
    return [f"ipaddr:{port['ip']}", f"netmask:{port['netmask']}"]


def vnic(port: Port) -> list[str]:
    if not port.is_a3:
        raise Refused(NOT_HERE)
    address = store.vnic_ip(port.scenario, port.number)
    return [f"vnic link status: {port['vnic_link']}", f"vnic ipaddr: {address}", "vnic netmask: 255.0.0.0"]


def lldp(port: Port) -> list[str]:
    """What the switch says of itself; without a switch there is no Ifname."""
    if not port["lldp"]:
        return []
    mac = f"44:9b:c1:e7:00:{port.number:02x}"
    return ["Chassis ID TLV", f"\tMAC: {mac}", "Port ID TLV", f"\tIfname: {port['lldp']}", "Time to Live TLV", "\t120"]


def tls(port: Port) -> list[str]:
    device, preset = f"dev_id:{port.number}", port["tls_preset"]
    lines = [
        f"{device}, tls switch[{port['tls']}](0:disable, 1:enable), "
        f"tls preconfigured[{preset}](0:non-preset, 1:preset), tls alarm time threshold[60]days"
    ]
    for name in ("pub cert", "ca1 cert", "ca2 cert") if preset else ():
        lines += [
            f"{device}, [{name}] info:",
            "issuer: /C=CN/O=Huawei/CN=Huawei IT Product CA",
            "start_time: Sep 14 06:33:42 2023 GMT",
            "end_time: Sep 10 06:33:42 2033 GMT",
        ]
    return lines


def fec(port: Port) -> list[str]:
    return [f"fec mode: {port['fec']}"]


def mtu(port: Port) -> list[str]:
    return [f"mtu:{port['mtu']}"]


def link_stat(port: Port) -> list[str]:
    device, count = f"[device {port.number}]", int(str(port["link_up_count"]))
    changes = [word for _ in range(count) for word in ("LINK UP", "LINK DOWN")][: 2 * count - 1]
    if port["link"] == "DOWN":
        changes.insert(0, "LINK DOWN")
    lines = [f"{device}current time        : {time.asctime()}", f"{device}link up count       : {count}"]
    lines.append(f"{device}link change records :")
    return lines + [
        f"{device}    Tue Jun  6 16:32:{59 - index % 60:02d} 2023    {w}" for index, w in enumerate(changes)
    ]


def optical(port: Port) -> list[str]:
    module = port["optical"]
    assert isinstance(module, dict)
    if not module["present"]:
        raise Refused("Optical module is not present.")
    return [
        "optical info:",
        "present              : present",
        f"Tx Power             : {module['tx_power']:.4f} mW",
        f"Rx Power             : {module['rx_power']:.4f} mW",
        "Tx Los Flag          : 0x0",
        f"Rx Los Flag          : {module['rx_los']}",
        "Tx LoL Flag          : 0x0",
        f"Rx LoL Flag          : {module['rx_los']}",
    ]


# Pings


def target(rest: list[str]) -> str:
    """The address in `address X [pkt N] [cnt N] ...`."""
    pairs = dict(zip(rest[::2], rest[1::2], strict=False))
    if "address" not in pairs:
        raise Refused(INVALID)
    return pairs["address"]


def answers(port: Port, address: str) -> bool:
    """Whether the scenario says that this device reaches the address."""
    unreachable = port["unreachable"]
    assert isinstance(unreachable, list)
    return address in port.scenario["peers"] and not {"*", address} & set(unreachable)


def ping(port: Port, rest: list[str]) -> list[str]:
    """By RDMA over the device's own port."""
    address = target(rest)
    if port["link"] == "DOWN":
        raise Refused("Execute failed: Link status is down.")
    head = f"device {port.number} PING {address}"
    if not answers(port, address):
        lost = [f"recv time out seq={seq}" for seq in range(PING_COUNT)]
        return [head, *lost, f"{PING_COUNT} packets transmitted, 0 received, 100.00% packet loss"]
    got = [f"recv seq={seq},time={us / 1000:.6f}ms" for seq, us in enumerate(ROCE_TIMES_US)]
    return [head, *got, f"{PING_COUNT} packets transmitted, {PING_COUNT} received, 0.00% packet loss"]


def hccs_ping(port: Port, rest: list[str]) -> list[str]:
    """Between the dies of a super pod; the ports' links have no part in it. Blank lines are the tool's own."""
    if not port.is_a3:
        raise Refused(NOT_HERE)
    address = target(rest)
    if not address.startswith("192."):
        raise Refused("The ip address you configured is invalid!")
    ok = answers(port, address) and port["vnic_link"] == "UP"
    lines = [f"device {port.number} PING {address}", ""]
    for seq, ns in enumerate(HCCS_TIMES_NS):
        lines.append("This pkt ping success!" if ok else "This pkt check recv msg fail!")
        lines += [f"recv seq {seq}, time = {us(ns if ok else 0)}, L1 plane check result = 0x0", ""]
    received = PING_COUNT if ok else 0
    times = sorted(HCCS_TIMES_NS) if ok else [0] * PING_COUNT
    lines.append(
        f"{PING_COUNT} packets transmitted, {received} received, {100 - 100 * received / PING_COUNT:.2f}% packets loss"
    )
    average = sum(times) // PING_COUNT
    named = {"max": times[-1], "min": times[0], "average": average, "TP95": times[int(0.95 * PING_COUNT)]}
    return lines + [f"{name} time {us(value)}" for name, value in named.items()]


def us(ns: int) -> str:
    """Nanoseconds as the tool prints microseconds."""
    return f"{ns // 1000}.{ns % 1000:03d}us"


# Settings


def words(rest: list[str], *names: str) -> list[str]:
    """The values of `NAME VALUE NAME VALUE`, in the order of the names."""
    pairs = dict(zip(rest[::2], rest[1::2], strict=False))
    if len(rest) != 2 * len(names) or set(pairs) != set(names):
        raise Refused(INVALID)
    return [pairs[name] for name in names]


def set_ip(port: Port, rest: list[str]) -> None:
    address, netmask = words(rest, "address", "netmask")
    port.save(ip=address, netmask=netmask)


def set_gateway(port: Port, rest: list[str]) -> None:
    port.save(gateway=words(rest, "gateway")[0])


def set_netdetect(port: Port, rest: list[str]) -> None:
    port.save(netdetect=words(rest, "address")[0])


def set_tls(port: Port, rest: list[str]) -> None:
    (switch,) = words(rest, "enable")
    if switch not in ("0", "1"):
        raise Refused(INVALID)
    port.save(tls=int(switch))


def set_link(port: Port, rest: list[str]) -> None:
    if rest not in (["up"], ["down"]):
        raise Refused(INVALID)
    port.save_link(rest[0].upper())


GETS: dict[str, Callable[[Port], list[str]]] = {
    "-link": link,
    "-net_health": net_health,
    "-netdetect": netdetect,
    "-gateway": gateway,
    "-ip": ip,
    "-vnic": vnic,
    "-lldp": lldp,
    "-tls": tls,
    "-fec": fec,
    "-mtu": mtu,
    "-link_stat": link_stat,
    "-optical": optical,
}
PINGS: dict[str, Callable[[Port, list[str]], list[str]]] = {"-ping": ping, "-hccs_ping": hccs_ping}
SETS: dict[str, Callable[[Port, list[str]], None]] = {
    "-ip": set_ip,
    "-gateway": set_gateway,
    "-netdetect": set_netdetect,
    "-tls": set_tls,
    "-link": set_link,
}
