"""The NPUs' own network, as ``hccn_tool`` tells it: questions, answers, and what is wrong with one host's ports.

Texts: hccn_tool's own source (hccn_tool, tool_ops.c and tool_cmd.c); what must hold: vllm-ascend's multi-node guides
and HCCL's fault diagnosis. Only hosts that work together are asked: a single host does not need its ports.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.findings import Finding, error, warning
from fleet.machine import asking
from fleet.machine.common import alike, named

CONF = "/etc/hccn.conf"
ALL_SECONDS = 150  # for all questions of a host, five a device
QUESTIONS = {
    "ascend-a2": ("link", "net_health", "ip", "gateway", "tls"),
    "ascend-a3": ("link", "net_health", "vnic", "tls"),
}
BUSY = "is busy"
GUIDE = "vllm-ascend, verification of multi-node communication"


@dataclass(frozen=True)
class Port:
    """One device's port. ``vnic`` is the state of an A3's link into its super pod; ``tls`` is 0 or 1."""

    link: str | None = None
    health: str | None = None
    address: str | None = None
    netmask: str | None = None
    unset: bool = False  # whether the tool says that no address was ever set
    gateway: bool | None = None
    vnic: str | None = None
    tls: int | None = None

    @property
    def network(self) -> str | None:
        """Its subnet, such as 10.30.0.0/16."""
        try:
            return str(ipaddress.ip_network(f"{self.address}/{self.netmask}", strict=False))
        except ValueError:
            return None


def sections(platform: str, devices: Sequence[int], unless: Sequence[str] = ()) -> list[str]:
    """One question after another: a second call at the same time is told that the tool is busy.

    Where all the units ``unless`` run, the tool is not asked: four questions of sixteen devices take 10 to 20 s.
    """
    numbers, words = " ".join(map(str, devices)), " ".join(QUESTIONS[platform])
    # A monitor of others may be asking too: a busy tool is asked again, three times.
    query = (
        f"end=$(( $(date +%s) + {ALL_SECONDS} )); {asking.have('hccn_tool')} && for i in {numbers}; do "
        f'for q in {words}; do [ "$(date +%s)" -lt "$end" ] || {{ echo "-- end"; echo "rc 124"; break 2; }}; '
        'for n in 1 2 3 4; do echo "-- $i $q"; ask 10 hccn_tool -i "$i" "-$q" -g || break 3; '
        f"case $o in (*'{BUSY}'*) sleep 1;; (*) break;; esac; done; case $o in (*'{BUSY}'*) break 2;; esac; done; done"
    )
    if unless:
        idle = " || ".join(f"! systemctl is-active --quiet {shlex.quote(name)}" for name in unless)
        query = f"if {idle}; then {query}; else echo '-- serving'; fi"
    return [
        asking.section("npu-hccn-conf", f"test -f {CONF} && echo there"),
        asking.section("npu-hccn", query),
    ]


def parse(sections: Mapping[str, list[str]]) -> tuple[bool | None, str | None, dict[int, Port]]:
    """(whether the configuration is there, why the tool could not be asked, ports by device)."""
    if "npu-hccn" not in sections:
        return None, None, {}
    lines = sections["npu-hccn"]
    last = asking.said(lines)[-1:]
    trouble = None
    if not lines:
        trouble = "hccn_tool is not installed, or not in a place where the driver puts it"
    elif last and BUSY in last[0]:
        trouble = "hccn_tool goes on saying that it is busy"
    elif any(line in ("rc 124", "rc 137") for line in lines):
        trouble = "hccn_tool gave no answer in time"
    answers: dict[int, dict[str, list[str]]] = {}
    for title, its in asking.blocks(lines).items():
        number, _, question = title.partition(" ")
        if number.isdigit():
            answers.setdefault(int(number), {})[question] = asking.said(its)
    ports = {
        index: _port({question: "\n".join(its) for question, its in its.items()}) for index, its in answers.items()
    }
    if not trouble and ports and all(replace(port, gateway=None) == Port() for port in ports.values()):
        word = next((line for line in asking.said(lines) if not line.startswith("-- ")), "nothing")
        trouble = f"hccn_tool's answer is not understood: {word[:80]}"
    return bool(sections.get("npu-hccn-conf")), trouble, ports


def _port(said: Mapping[str, str]) -> Port:
    address = said.get("vnic", said.get("ip", ""))
    gateway = said.get("gateway")
    tls = _find(r"tls switch\s*\[(\d)\]", said.get("tls", ""))
    return Port(
        link=_find(r"^link status:\s*(\S+)", said.get("link", "")),
        health=_find(r"net health status:\s*(.+)", said.get("net_health", "")),
        address=_find(r"ipaddr:\s*([0-9A-Fa-f.:]+)", address) or _find(r"ipv6_address:\s*([0-9A-Fa-f:]+)", address),
        netmask=_find(r"netmask:\s*(\S+)", address) or _find(r"prefix_length:\s*(\d+)", address),
        unset="no ip was preset" in address,
        gateway=None if gateway is None else "default gateway:" in gateway,
        vnic=_find(r"vnic link status:\s*(\S+)", said.get("vnic", "")),
        tls=int(tls) if tls else None,
    )


def _find(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def judge(host: str, platform: str, ports: Mapping[int, Port]) -> Iterator[Finding]:
    """What is wrong with the ports of one host that works with others."""
    yield from _links(host, platform, ports)
    yield from _addresses(host, platform, ports)
    switches = {index: port.tls for index, port in ports.items() if port.tls is not None}
    if len(set(switches.values())) > 1:
        usual = Counter(switches.values()).most_common(1)[0][0]
        others = named(index for index, switch in switches.items() if switch != usual)
        yield error(
            "NPU-TLS",
            host,
            f"TLS is {on_off(1 - usual)} for {others} and {on_off(usual)} for the rest",
            f"hccn_tool -i <device> -tls -s enable {usual}, for all NPUs of all hosts alike",
            "NPUs whose switches differ do not connect: EI0006 or EI0016 after 120 s",
            "HCCL fault diagnosis; vllm-ascend issue 5461",
        )


def _links(host: str, platform: str, ports: Mapping[int, Port]) -> Iterator[Finding]:
    """A port that is down. Between A3 hosts the super pod's own links count: a ping there passes beside such a port."""
    down = [index for index, port in ports.items() if port.link == "DOWN"]
    if down:
        say = warning if platform == "ascend-a3" else error
        yield say(
            "NPU-LINK",
            host,
            f"the link of {named(down)} is DOWN",
            "look at cable, optical module and switch port: hccn_tool -i <device> -optical -g, -link_stat -g",
            "hosts reach each other's NPUs over these links" if say is error else "on A3 a ping may pass without it",
            GUIDE,
        )
    if vnic := [index for index, port in ports.items() if port.vnic == "DOWN"]:
        yield error(
            "NPU-LINK",
            host,
            f"the super pod's link of {named(vnic)} is DOWN",
            "look at the super pod's switches; hccn_tool -i <device> -vnic -g shows the link",
            "hosts reach each other's NPUs over these links",
            GUIDE,
        )
    words = {i: p.health for i, p in ports.items() if p.health and p.health != "Success" and i not in {*down, *vnic}}
    for devices, word in alike(words):
        yield warning(
            "NPU-NET",
            host,
            f"net health of {devices} is {word}",
            "ping a peer's NPU to be sure: hccn_tool -i <device> -ping, on A3 -hccs_ping, -g address <peer>",
            "this tells of the address set with -netdetect alone; Init is a port that has none",
            GUIDE,
        )


def _addresses(host: str, platform: str, ports: Mapping[int, Port]) -> Iterator[Finding]:
    """A port that has no address."""
    bare = [i for i, port in ports.items() if port.unset or port.address in ("0.0.0.0", "::")]
    if bare:
        yield error(
            "NPU-ADDRESS",
            host,
            f"no address in the NPUs' network for {named(bare)}",
            "hccn_tool -i <device> -ip -s address <A> netmask <M>, or -cfg recovery where /etc/hccn.conf has it"
            if platform == "ascend-a2"
            else "look at the super pod's settings; hccn_tool -i <device> -vnic -g shows the address",
            "NPUs of other hosts reach it by this address",
            GUIDE,
        )


def on_off(switch: int) -> str:
    return "on" if switch else "off"
