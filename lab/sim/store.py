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

Document = dict[str, Any]


def scenario() -> Document:
    """The host's scenario."""
    return read(SCENARIO if SCENARIO.exists() else COPY)


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
