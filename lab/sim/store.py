"""What the simulators share: the host's scenario, what set commands changed, and what a container may see.

The scenario is /etc/vllm-lab/scenario.json. A container does not have that file, but the driver's folder is mounted
into it, as it must be for the real tools; a copy lies there, beside this code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("VLLM_LAB_ROOT", "/"))  # elsewhere in unit tests
SCENARIO = ROOT / "etc/vllm-lab/scenario.json"
COPY = Path(__file__).parents[2] / "scenario.json"
# What the lab's packages put there, and when it takes effect; without it the scenario's versions are there.
INSTALLED = ROOT / "var/lib/vllm-lab/installed.json"
BOOT_ID = ROOT / "proc/sys/kernel/random/boot_id"
UNITS = ROOT / "run/vllm-lab-units"  # a file for each of the driver's services that runs

Document = dict[str, Any]

# Branches of the NPU driver and of the firmware that its release list names; a branch that is not here fits all.
FIRMWARE_OF = {"23.0": "7.1", "24.1": "7.5", "25.0": "7.7", "25.2": "7.7", "25.3": "7.8", "25.5": "7.8", "26.0": "9.0"}


def scenario() -> Document:
    """The host's scenario, with the versions that packages brought since."""
    if not SCENARIO.exists():
        return as_installed(read(COPY), read(COPY.with_name(INSTALLED.name)))
    return as_installed(read(SCENARIO), read(INSTALLED))


def boot_id() -> str:
    """The kernel's name for this boot."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def running(entry: Document) -> str | None:
    """The version that works now: what was installed in this boot and needs another one does not yet."""
    version = entry["old"] if entry["boot"] and entry["boot"] == boot_id() else entry["new"]
    return None if version is None else str(version)


def as_installed(one: Document, installed: Document) -> Document:
    """The scenario as it is with these packages."""
    for part in ("driver", "firmware"):
        if part in installed:
            one[f"{part}_version"] = running(installed[part])
    if "driver" not in installed:
        return one
    if one["family"] == "nvidia":
        return with_gpu_packages(one, installed)
    if one["driver_version"] is None:
        one["dcmi_error"] = one["dcmi_error"] or -8001
    elif one["compatibility"] == "OK" and not fits(one["driver_version"], one["firmware_version"]):
        one["compatibility"] = "NOK"
    return one


def fits(driver: str, firmware: str) -> bool:
    """Whether driver and firmware of NPUs are of one release list."""
    wanted = FIRMWARE_OF.get(".".join(driver.split(".")[:2]))
    return wanted is None or firmware.startswith(f"{wanted}.")


def with_gpu_packages(one: Document, installed: Document) -> Document:
    """A GPU host whose driver came in packages: its services decide what the devices say."""
    one["library_version"] = installed["driver"]["new"]
    one["driver_works"] = one["driver_works"] and one["driver_version"] is not None
    one["fabric_manager_version"] = installed.get("fabric_manager")
    for device in one["devices"].values():
        if not (UNITS / "nvidia-fabricmanager").exists():
            device["fabric_state"] = "In Progress"
        if not (UNITS / "nvidia-persistenced").exists():
            device["persistence"] = "Disabled"
    return one


def read(path: Path) -> Document:
    """A JSON file; empty when it is not there."""
    try:
        found: Document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def write(path: Path, content: Document) -> None:
    """Replace a JSON file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def in_container() -> bool:
    """Docker puts this file into every container."""
    return (ROOT / ".dockerenv").exists()


def node(name: str) -> bool:
    """Whether a device node is there."""
    return (ROOT / "dev" / name).exists()


def devices(one: Document, prefix: str) -> dict[int, Document]:
    """The devices that can be seen from here: all on a host, in a container those whose nodes it was given."""
    return {
        int(number): device
        for number, device in one["devices"].items()
        if device["present"] and (not in_container() or node(f"{prefix}{number}"))
    }


def vnic_ip(one: Document, number: int) -> str:
    """A die's address in the super pod: 192.<server>.<2 + die>.<199 - device>."""
    given = one["devices"][str(number)]["vnic_ip"]
    return str(given) if given else f"192.{one['server_index']}.{2 + number % 2}.{199 - number}"


def sdid(one: Document, number: int) -> int:
    """A die's number in the super pod: bits 22 to 31 server, 18 to 21 chip, 16 and 17 die, 0 to 15 device."""
    given = one["devices"][str(number)]["sdid"]
    if given is not None:
        return int(given)
    return int(one["server_index"]) << 22 | number // 2 << 18 | number % 2 << 16 | number
