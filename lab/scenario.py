"""What the hardware of a dressed host looks like: a healthy machine, and a fault as a few lines on top of it.

A scenario is a JSON document. `healthy` gives it in full, `scenario` lays changes over it and refuses what a
simulator would not read. Devices are numbered as their nodes in /dev are; "*" stands for all of them:

    {"devices": {"3": {"health": "Alarm", "error_codes": ["80E01801"]}, "*": {"tls": 1}}}

null means "as the host has it" (versions) or "as it follows from the server's index" (address and SDID on A3).
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.errors import LabError

Scenario = dict[str, Any]
FAMILIES = {"ascend-a2": 8, "ascend-a3": 16, "nvidia": 8}
ALL = "*"

WORDS: dict[str, tuple[object, ...]] = {
    "health": ("OK", "Warning", "Alarm", "Critical", "UNKNOWN"),
    "compatibility": ("OK", "NOK", "UNKNOWN", "NOT SUPPORT", None),
    "link": ("UP", "DOWN"),
    "vnic_link": ("UP", "DOWN"),
    "tls": (0, 1),
    "install_status": ("complete", "uncomplete"),
    "dcmi_error": (0, -8001, -8005, -8020),
    "persistence": ("Enabled", "Disabled"),
    "ecc_mode": ("Enabled", "Disabled"),
    "mig": ("Enabled", "Disabled"),
    "fabric_state": ("Not Started", "In Progress", "Completed"),
    "only": ("driver", "firmware", "toolkit", "ops", "nnal", None),
    "cut_at": ("before", "middle", None),
    "fail": (
        *("0x0001", "0x0002", "0x0003", "0x0004", "0x0080", "0x0090", "0x0091", "0x0093", "0x0094", "0x0095"),
        *("0x0096", None),
    ),
    "firmware_counts": ("after reboot", "at once"),
}
# Buses as an Atlas 800 A2 and an HGX H100 number them.
NPU_BUSES = ("C1", "01", "C2", "02", "81", "41", "82", "42")
DIE_BUSES = ("9D", "9F", "99", "9B", "95", "97", "91", "93", "8D", "8F", "89", "8B", "85", "87", "81", "83")
GPU_BUSES = ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB")


def scenario(family: str, changes: Mapping[str, Any] | None = None, server_index: int = 0) -> Scenario:
    """A healthy machine with `changes` laid over it. Raises LabError for a key, a type or a word that cannot be."""
    changes = dict(changes or {})
    index = changes.get("server_index", server_index)
    if not isinstance(index, int) or not 0 <= index <= 47:
        raise LabError(f"scenario: server_index: {index!r} is no server of a super pod; write 0 to 47")
    full = healthy(family, index)
    devices = changes.pop("devices", {})
    overlay(full, changes, "")
    if not isinstance(devices, Mapping):
        raise LabError('scenario: devices: write {"3": {...}}, with "*" for all devices')
    for name in sorted(devices, key=lambda name: name != ALL):  # what is said of one device goes over what is of all
        if name != ALL and name not in full["devices"]:
            raise LabError(f"scenario: devices.{name}: {family} has 0 to {FAMILIES[family] - 1}, and * for all")
        for number in full["devices"] if name == ALL else [name]:
            overlay(full["devices"][number], devices[name], f"devices.{name}.")
    return full


def healthy(family: str, server_index: int = 0) -> Scenario:
    """A machine of the family with nothing wrong, as server number `server_index` of its fleet."""
    if family not in FAMILIES:
        raise LabError(f"there is no machine family {family!r}; choose from {', '.join(FAMILIES)}")
    if family == "nvidia":
        return gpu_host(server_index)
    make = die if family == "ascend-a3" else npu
    return npu_host(family, server_index) | {
        "devices": {str(number): make(number, server_index) for number in range(FAMILIES[family])}
    }


def installing() -> Scenario:
    """What happens when one of the lab's packages is installed on the host."""
    return {
        "only": None,  # the package for which the rest is said; null: all
        "reboot": False,  # the driver takes effect with the next boot
        "busy": False,  # something holds the devices: the kernel's modules stay, and a reboot is needed
        "chips_not_ready": False,
        "cut_at": None,  # the power goes, before the first file or in the middle; once, the next run goes through
        "fail": None,  # it ends with this error number of the vendor
        "firmware_counts": "after reboot",  # the vendor's: with a reboot, or a driver installed after it
        "seconds": 0.1,
        "arch": None,  # of the machine as a package sees it; null: as uname -m says
        "tools": [],  # what a driver looks for before it begins: ["ifconfig", "lspci"]
        "headers": False,  # the driver builds its module, and needs /lib/modules/.../build
    }


def npu_host(family: str, server_index: int) -> Scenario:
    """What all NPUs of a host share."""
    return {
        "family": family,
        "driver_version": "25.5.1",
        "firmware_version": "7.8.0.6.201",
        "compatibility": "OK",
        "install_status": "complete",
        "dcmi_error": 0,
        "hccn_conf": True,
        "hccn_busy_ms": 20,  # how long a call keeps others out
        "server_index": server_index,
        "super_pod_id": 0,
        "super_pod_size": 384,
        "peers": [],  # addresses in the fabric that answer; dress_fleet fills in those of all hosts
        "install": installing(),
    }


def npu(number: int, server_index: int) -> Scenario:
    """One NPU of an A2: a card with one chip, on a network port of its own."""
    return {
        "present": True,
        "name": "910B3",
        "bus_id": f"0000:{NPU_BUSES[number % len(NPU_BUSES)]}:00.0",
        "health": "OK",
        "error_codes": [],
        "error_information": "",
        "power": 93.1,
        "temperature": 36,
        "aicore": 0,
        "hbm_used": 3418,
        "hbm_total": 65536,
        "processes": [],  # {"pid": 669096, "name": "VLLMWorker_TP", "memory": 55124}
        "software": None,
        "firmware": None,
        "compatibility": None,
        "ecc": {"single": 0, "double": 0, "single_total": 0, "double_total": 0, "single_isolated": 0}
        | {"double_isolated": 0},
        "link": "UP",
        "link_up_count": 2,
        "net_health": "Success",
        "ip": f"10.30.{server_index}.{11 + number}",
        "netmask": "255.255.0.0",
        "gateway": "10.30.255.254",
        "netdetect": "10.30.255.254",
        "lldp": f"400GE1/{1 + server_index}/{1 + number}:1",
        "tls": 0,
        "tls_preset": 1,
        "mtu": 4200,
        "fec": "rs FEC mode",
        "optical": {"present": True, "tx_power": 1.0189, "rx_power": 1.1143, "rx_los": "0x0"},
        "unreachable": [],  # of the peers, those that do not answer this device; "*" for all
    }


def die(number: int, server_index: int) -> Scenario:
    """One die of an A3: two make an NPU, and each has an address in the super pod."""
    return npu(number, server_index) | {
        "name": "Ascend910",
        "bus_id": f"0000:{DIE_BUSES[number]}:00.0",
        "power": 178.8,
        "hbm_used": 3186 if number % 2 else 3397,
        "vnic_link": "UP",
        "vnic_ip": None,
        "sdid": None,
    }


def gpu_host(server_index: int) -> Scenario:
    """An HGX H100."""
    return {
        "family": "nvidia",
        "server_index": server_index,
        "driver_version": "580.95.05",
        "cuda_version": "13.0",
        "driver_works": True,
        "fabric_manager_version": "580.95.05",  # null: not installed
        "fabric_manager_active": True,
        "install": installing(),
        "devices": {str(number): gpu(number, server_index) for number in range(FAMILIES["nvidia"])},
    }


def gpu(number: int, server_index: int) -> Scenario:
    """One H100."""
    return {
        "present": True,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{server_index:08x}-0000-4000-8000-{number:012x}",
        "bus_id": f"00000000:{GPU_BUSES[number]}:00.0",
        "persistence": "Enabled",
        "memory_total": 81559,
        "memory_used": 0,
        "temperature": 31,
        "power": 70.52,
        "clocks_event_reasons": "0x0000000000000001",  # idle
        "ecc_mode": "Enabled",
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "ecc_corrected_total": 0,
        "ecc_uncorrected_total": 0,
        "remapped": {"correctable": 0, "uncorrectable": 0, "pending": 0, "failure": 0},
        "fabric_state": "Completed",
        "fabric_status": "Success",
        "mig": "Disabled",
        "processes": [],  # {"pid": 4242, "name": "VLLM::Worker_TP0", "memory": 70512}
    }


def overlay(full: Scenario, changes: Mapping[str, Any], where: str) -> None:
    """Lay `changes` over `full` in place; dictionaries are merged, lists replaced."""
    if not isinstance(changes, Mapping):
        raise LabError(f"scenario: {where.rstrip('.')}: {changes!r} is no set of keys")
    for key, value in changes.items():
        if key not in full:
            near = difflib.get_close_matches(key, full, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(full)}"
            raise LabError(f"scenario: {where}{key}: no simulator reads this{hint}")
        old = full[key]
        if isinstance(old, dict):
            overlay(old, value, f"{where}{key}.")
            continue
        if key in WORDS and value not in WORDS[key]:
            words = ", ".join(json.dumps(word) for word in WORDS[key])
            raise LabError(f"scenario: {where}{key}: {json.dumps(value)} is none of {words}")
        if key not in WORDS and not fits(old, value):
            raise LabError(f"scenario: {where}{key}: {json.dumps(value)} is not like {json.dumps(old)}")
        full[key] = copy.deepcopy(value)


def fits(old: object, value: object) -> bool:
    """Whether a value may stand where `old` did. null is as good as a text: nothing is set, or it is derived."""
    if old is None or isinstance(old, str):
        return value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))
    if isinstance(old, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(old)


def read_changes(path: Path) -> dict[str, Mapping[str, Any]]:
    """A scenario file: changes by host name, and under "all" those for every host. Raises LabError."""
    try:
        found = json.loads(path.read_text())
    except OSError as reason:
        raise LabError(f"scenario file {path}: {reason.strerror}") from None
    except ValueError as reason:
        raise LabError(f"scenario file {path} is no JSON: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(changes, dict) for changes in found.values()):
        raise LabError(f'scenario file {path}: write {{"all": {{...}}, "lab-1": {{...}}}}')
    return found


def for_hosts(
    family: str, hosts: list[str], changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Scenario]:
    """A scenario for each host, as servers 0, 1, ... of one fabric in which every device reaches every other.

    `changes` is by host name, with "all" for every host; what is said of one host goes over it.
    """
    changes = changes or {}
    for name in set(changes) - {"all", *hosts}:
        raise LabError(f"scenario: there is no host {name!r}; the hosts are {', '.join(hosts)}, and all")
    made = {}
    for index, host in enumerate(hosts):
        merged = merge(changes.get("all", {}), changes.get(host, {}))
        made[host] = scenario(family, merged, index)
    if family != "nvidia":
        everyone = sorted({address for one in made.values() for address in addresses(one)})
        for host, one in made.items():
            if not any("peers" in changes.get(name, {}) for name in ("all", host)):
                one["peers"] = everyone
    return made


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of changes as one; the second wins."""
    both = dict(first)
    for key, value in second.items():
        old = both.get(key)
        both[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def addresses(one: Scenario) -> list[str]:
    """The addresses by which other hosts reach the devices of this one."""
    from lab.sim.store import vnic_ip

    found = []
    for number, device in one["devices"].items():
        found += [device["ip"]] if device["ip"] else []
        if one["family"] == "ascend-a3":
            found.append(vnic_ip(one, int(number)))
    return found
