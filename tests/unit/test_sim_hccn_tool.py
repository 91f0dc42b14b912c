"""hccn_tool: what it says of a port, what it changes, and that two calls get in each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.scenario import for_hosts
from tests.unit.sim import DressedFolder, dressed

TLS = """\
dev_id:2, tls switch[1](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), \
tls alarm time threshold[60]days
dev_id:2, [pub cert] info:
issuer: /C=CN/O=Huawei/CN=Huawei IT Product CA
start_time: Sep 14 06:33:42 2023 GMT
end_time: Sep 10 06:33:42 2033 GMT
dev_id:2, [ca1 cert] info:
issuer: /C=CN/O=Huawei/CN=Huawei IT Product CA
start_time: Sep 14 06:33:42 2023 GMT
end_time: Sep 10 06:33:42 2033 GMT
dev_id:2, [ca2 cert] info:
issuer: /C=CN/O=Huawei/CN=Huawei IT Product CA
start_time: Sep 14 06:33:42 2023 GMT
end_time: Sep 10 06:33:42 2033 GMT
"""
PING = """\
device 0 PING 10.30.1.12
recv seq=0,time=0.114000ms
recv seq=1,time=0.061000ms
recv seq=2,time=0.058000ms
3 packets transmitted, 3 received, 0.00% packet loss
"""
LOST = """\
device 0 PING 10.30.1.99
recv time out seq=0
recv time out seq=1
recv time out seq=2
3 packets transmitted, 0 received, 100.00% packet loss
"""
HCCS_PING = """\
device 1 PING 192.1.2.199

This pkt ping success!
recv seq 0, time = 12.480us, L1 plane check result = 0x0

This pkt ping success!
recv seq 1, time = 8.120us, L1 plane check result = 0x0

This pkt ping success!
recv seq 2, time = 8.040us, L1 plane check result = 0x0

3 packets transmitted, 3 received, 0.00% packets loss
max time 12.480us
min time 8.040us
average time 9.546us
TP95 time 12.480us
"""
HCCS_LOST = """\
device 1 PING 192.1.2.199

This pkt check recv msg fail!
recv seq 0, time = 0.000us, L1 plane check result = 0x0

This pkt check recv msg fail!
recv seq 1, time = 0.000us, L1 plane check result = 0x0

This pkt check recv msg fail!
recv seq 2, time = 0.000us, L1 plane check result = 0x0

3 packets transmitted, 0 received, 100.00% packets loss
max time 0.000us
min time 0.000us
average time 0.000us
TP95 time 0.000us
"""
OPTICAL = """\
optical info:
present              : present
Tx Power             : 1.0189 mW
Rx Power             : 0.0000 mW
Tx Los Flag          : 0x0
Rx Los Flag          : 0xff
Tx LoL Flag          : 0x0
Rx LoL Flag          : 0xff
"""


def get(host: DressedFolder, number: int, command: str) -> str:
    return host.call("hccn_tool", "-i", str(number), command, "-g").text


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("-link", "link status: UP\n"),
        ("-net_health", "net health status: Success\n"),
        ("-netdetect", "netdetect addr: 10.30.255.254\n"),
        ("-gateway", "default gateway:10.30.255.254, Iface:eth3\n"),
        ("-ip", "ipaddr:10.30.2.14\nnetmask:255.255.0.0\n"),
        ("-vnic", "vnic link status: UP\nvnic ipaddr: 192.2.3.196\nvnic netmask: 255.0.0.0\n"),
        (
            "-lldp",
            "Chassis ID TLV\n\tMAC: 44:9b:c1:e7:00:03\nPort ID TLV\n\tIfname: 400GE1/3/4:1\nTime to Live TLV\n\t120\n",
        ),
        ("-fec", "fec mode: rs FEC mode\n"),
        ("-mtu", "mtu:4200\n"),
    ],
)
def test_a_healthy_port(tmp_path: Path, command: str, text: str) -> None:
    host = dressed(tmp_path, "ascend-a3", {"hccn_busy_ms": 0}, index=2)
    done = host.call("hccn_tool", "-i", "3", command, "-g")
    assert (done.text, done.code) == (text, 0)


def test_longer_answers(tmp_path: Path) -> None:
    dark = {"present": True, "rx_power": 0.0, "rx_los": "0xff"}
    host = dressed(tmp_path, "ascend-a2", {"devices": {"2": {"tls": 1, "optical": dark}, "3": {"tls_preset": 0}}})
    assert get(host, 2, "-tls") == TLS
    assert get(host, 3, "-tls").startswith("dev_id:3, tls switch[0](0:disable, 1:enable), tls preconfigured[0]")
    assert len(get(host, 3, "-tls").splitlines()) == 1
    assert get(host, 2, "-optical") == OPTICAL
    first, *rest = get(host, 2, "-link_stat").splitlines()
    assert first.startswith("[device 2]current time        : ")
    assert rest == [
        "[device 2]link up count       : 2",
        "[device 2]link change records :",
        "[device 2]    Tue Jun  6 16:32:59 2023    LINK UP",
        "[device 2]    Tue Jun  6 16:32:58 2023    LINK DOWN",
        "[device 2]    Tue Jun  6 16:32:57 2023    LINK UP",
    ]


@pytest.mark.parametrize(
    ("changes", "command", "text"),
    [
        ({"link": "DOWN"}, "-link", "link status: DOWN\n"),
        ({"link": "DOWN"}, "-net_health", "net health status: Fault\n"),
        ({"net_health": "Receive timeout"}, "-net_health", "net health status: Receive timeout\n"),
        ({"netdetect": ""}, "-net_health", "net health status: Init\n"),
        ({"gateway": ""}, "-gateway", "Get gateway failed, because no gateway was preset there!\n"),
        ({"ip": ""}, "-ip", "Get ipconf failed, because no ip was preset there!\n"),
        ({"optical": {"present": False}}, "-optical", "Optical module is not present.\n"),
        ({}, "-vnic", "The command is not supported on this product.\n"),
        ({"present": False}, "-link", "The device is not exist!\n"),
        ({}, "-nonsense", "Command execute failed!\n"),
    ],
)
def test_a_broken_port(tmp_path: Path, changes: dict[str, object], command: str, text: str) -> None:
    host = dressed(tmp_path, "ascend-a2", {"hccn_busy_ms": 0, "devices": {"1": changes}})
    assert get(host, 1, command) == text


def test_pings_of_an_a2_answer_where_the_fabric_has_a_peer(tmp_path: Path) -> None:
    one = for_hosts("ascend-a2", ["a", "b"])["a"]
    changes = {"peers": one["peers"], "devices": {"1": {"unreachable": ["10.30.1.12"]}, "2": {"link": "DOWN"}}}
    host = dressed(tmp_path, "ascend-a2", changes)

    def ping(number: int, address: str) -> str:
        return host.call("hccn_tool", "-i", str(number), "-ping", "-g", "address", address).text

    assert ping(0, "10.30.1.12") == PING
    assert ping(0, "10.30.1.99") == LOST
    assert ping(1, "10.30.1.12").endswith("100.00% packet loss\n")
    assert ping(1, "10.30.1.13").endswith(", 0.00% packet loss\n")
    assert ping(2, "10.30.1.12") == "Execute failed: Link status is down.\n"
    unsupported = host.call("hccn_tool", "-i", "0", "-hccs_ping", "-g", "address", "192.1.2.199")
    assert unsupported.text == "The command is not supported on this product.\n"


def test_pings_of_an_a3_go_by_the_super_pod_and_not_by_the_ports(tmp_path: Path) -> None:
    one = for_hosts("ascend-a3", ["a", "b"])["a"]
    devices = {"*": {"link": "DOWN"}, "2": {"unreachable": ["*"]}, "3": {"vnic_link": "DOWN"}}
    host = dressed(tmp_path, "ascend-a3", {"peers": one["peers"], "devices": devices})

    def ping(number: int, address: str) -> str:
        return host.call("hccn_tool", "-i", str(number), "-hccs_ping", "-g", "address", address, "pkt", "64").text

    assert ping(1, "192.1.2.199") == HCCS_PING
    assert ping(2, "192.1.2.199") == HCCS_LOST.replace("device 1", "device 2")
    assert ping(3, "192.1.2.199") == HCCS_LOST.replace("device 1", "device 3")
    assert ping(1, "10.30.1.11") == "The ip address you configured is invalid!\n"


def test_what_is_set_lasts_and_stands_in_hccn_conf(tmp_path: Path) -> None:
    host = dressed(tmp_path, "ascend-a2", {"hccn_busy_ms": 0})

    def put(*arguments: str) -> str:
        return host.call("hccn_tool", "-i", "1", *arguments).text

    done = "Cmd executed successfully!\n"
    assert put("-ip", "-s", "address", "10.9.0.2", "netmask", "255.255.255.0") == done
    assert put("-gateway", "-s", "gateway", "10.9.0.1") == done
    assert put("-netdetect", "-s", "address", "10.9.0.1") == done
    assert put("-tls", "-s", "enable", "1") == done
    assert get(host, 1, "-ip") == "ipaddr:10.9.0.2\nnetmask:255.255.255.0\n"
    assert get(host, 1, "-gateway") == "default gateway:10.9.0.1, Iface:eth1\n"
    assert get(host, 1, "-netdetect") == "netdetect addr: 10.9.0.1\n"
    assert get(host, 1, "-tls").startswith("dev_id:1, tls switch[1]")
    assert get(host, 0, "-tls").startswith("dev_id:0, tls switch[0]")
    conf = (tmp_path / "etc/hccn.conf").read_text().splitlines()
    assert conf[-4:] == [
        "address_1=10.9.0.2",
        "netmask_1=255.255.255.0",
        "gateway_1=10.9.0.1",
        "netdetect_1=10.9.0.1",
    ]
    assert len(conf) == 8 * 4, "each key once"
    assert "-gateway -s gateway 10.9.0.1" in (tmp_path / "var/log/hccn_tool/hccn_config.log").read_text()


def test_recovery_replays_the_file_and_brings_the_link_back(tmp_path: Path) -> None:
    host = dressed(tmp_path, "ascend-a2", {"hccn_busy_ms": 0})
    assert host.call("hccn_tool", "-i", "0", "-link", "-s", "down").text == "Cmd executed successfully!\n"
    assert get(host, 0, "-link") == host.typed("hccn_tool", "-i", "0", "-link", "-g").text == "link status: DOWN\n"
    assert get(host, 0, "-net_health") == "net health status: Fault\n"
    conf = tmp_path / "etc/hccn.conf"
    conf.write_text(conf.read_text().replace("address_0=10.30.0.11", "address_0=10.30.0.77"))
    assert host.call("hccn_tool", "-i", "0", "-cfg", "recovery").text == "Cmd executed successfully!\n"
    assert get(host, 0, "-link") == "link status: UP\n"
    assert get(host, 0, "-ip") == "ipaddr:10.30.0.77\nnetmask:255.255.0.0\n"
    conf.unlink()
    lost = host.call("hccn_tool", "-i", "0", "-cfg", "recovery")
    assert host.typed("hccn_tool", "-i", "0", "-cfg", "recovery") == lost
    assert (lost.code, lost.text) == (1, "The hccn.conf can't access, please check it.\n")


@pytest.mark.parametrize(
    "arguments", ["-tls -s enable 2", "-ip -s address 10.0.0.1", "-link -s sideways", "-mtu -s value 1500", "-ping -g"]
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, arguments: str) -> None:
    done = dressed(tmp_path, "ascend-a2").call("hccn_tool", "-i", "0", *arguments.split())
    assert (done.code, done.text) == (1, "Command execute failed!\n")


def test_a_second_call_at_the_same_time_is_told_that_the_tool_is_busy(tmp_path: Path) -> None:
    host = dressed(tmp_path, "ascend-a2", {"hccn_busy_ms": 600})
    calls = [host.start("hccn_tool", "-i", str(number), "-link", "-g") for number in range(3)]
    said = sorted(call.communicate(timeout=20)[0] for call in calls)
    assert said == ["hccn_tool is busy, please try again.\n"] * 2 + ["link status: UP\n"]
