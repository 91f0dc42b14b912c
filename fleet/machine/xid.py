"""Xid errors of the NVIDIA driver in the kernel's log: which of them stop a run.

The numbers and what to do first: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors), for A100 and newer. Those
whose first step is to reset the GPU or to restart the machine are errors; those that ask for the application to be
started again, or for nothing, are told as warnings where they speak of the hardware, else not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ERRORS = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    155: "NVLink error",
    156: "resource retirement",
    158: "fatal timeout",
}
WARNINGS = {
    13: "graphics engine exception, most often of an application",
    31: "memory page fault, most often of an application",
    54: "auxiliary power is not connected",
    63: "row remapping event",
    92: "many single bit ECC errors",
    94: "contained memory error",
    137: "NVLink access error, most often of an application",
    157: "resource retirement failed",
}
# 43 and 45 are what an application leaves behind that was ended; 154 repeats what another said.
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


def found(lines: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Xids by bus, as ``c1:00``: the kernel writes 0000:c1:00, nvidia-smi 00000000:C1:00.0."""
    by_bus: dict[str, set[int]] = {}
    for line in lines:
        if match := _LINE.search(line):
            by_bus.setdefault(bus(match[1]), set()).add(int(match[2]))
    return {where: tuple(sorted(codes)) for where, codes in by_bus.items()}


def bus(text: str) -> str:
    """A bus id without function, the domain shortened: ``0:c1:00``."""
    parts = text.lower().partition(".")[0].split(":")
    domain = int(parts[-3], 16) if len(parts) >= 3 else 0
    return f"{domain:x}:{':'.join(parts[-2:])}"
