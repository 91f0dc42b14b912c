"""What ``nvidia-smi`` says of a host: questions and the reading of answers, without a verdict.

Fields: nvidia-smi --help-query-gpu; its output is not promised to stay, so a field that a version does not know costs
its own question alone, and ``N/A`` or ``[N/A]`` is None. Where the fabric's state stands differs between versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.machine import asking, xid
from fleet.snapshot import MARK

FIRST = "gpu"
SECONDS = 30  # without persistence the driver wakes each GPU first
TABLE = (
    "index,uuid,pci.bus_id,driver_version,persistence_mode,memory.total,memory.used,mig.mode.current,"
    "ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total,name"
)
CSV = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in MiB; ``reasons`` are the bits of what holds its clocks down."""

    index: int
    uuid: str
    bus: str
    driver: str | None
    persistence: str | None
    memory_total: int | None
    memory_used: int | None
    mig: str | None
    ecc_volatile: int | None
    ecc_aggregate: int | None
    name: str
    reasons: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None


@dataclass(frozen=True)
class Process:
    """A process on a GPU; ``pid`` is the host's, memory in MiB."""

    uuid: str
    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True)
class State:
    """A host's GPUs."""

    there: bool  # whether nvidia-smi is installed
    late: bool  # whether it gave no answer in time
    words: tuple[str, ...] = ()  # what it says instead of an answer
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    module: str | None = None  # the version of the driver's module in the kernel
    manager: str | None = None  # the fabric manager's version; None where it is not installed
    manager_active: bool = False
    switches: bool = False  # whether NVSwitches are seen from here
    xids: tuple[tuple[str, tuple[int, ...]], ...] = ()  # by bus, since boot

    @property
    def pids(self) -> frozenset[int]:
        """All processes on the devices."""
        return frozenset(p.pid for p in self.processes)

    @property
    def driver(self) -> str | None:
        return next((g.driver for g in self.gpus if g.driver), None) or self.module

    def gpu(self, index: int) -> Gpu | None:
        return next((g for g in self.gpus if g.index == index), None)


def sections() -> list[str]:
    """The questions."""
    smi = f"ask {SECONDS} nvidia-smi"
    table = f"gpu_table=$( {asking.ASKING}; {asking.have('nvidia-smi')} && {smi} --query-gpu={TABLE} {CSV} )"
    well = "case $gpu_table in (*'rc 0')"
    # The kernel's own buffer forgets, the journal may not be kept: whichever has it.
    log = "{ timeout -k 2 10 dmesg; timeout -k 2 20 journalctl -k -b -q --no-pager -o cat; } 2>/dev/null"
    return [
        f"echo '{MARK} {FIRST}'; {table}; printf '%s\\n' \"$gpu_table\"",
        asking.section("gpu-clocks", f"{well} {smi} --query-gpu=index,clocks_event_reasons.active {CSV};; esac"),
        asking.section("gpu-clocks-old", f"{well} {smi} --query-gpu=index,clocks_throttle_reasons.active {CSV};; esac"),
        asking.section(
            "gpu-rows",
            f"{well} {smi} --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure {CSV};; esac",
        ),
        asking.section("gpu-apps", f"{well} {smi} --query-compute-apps=gpu_uuid,pid,used_memory,name {CSV};; esac"),
        asking.section("gpu-fabric", f"{well} {smi} -q | grep -A 2 -e '^GPU ' -e Fabric;; esac"),
        asking.section("gpu-module", "timeout -k 2 5 cat /proc/driver/nvidia/version 2>/dev/null"),
        asking.section("gpu-manager", f"{asking.have('nv-fabricmanager')} && ask 10 nv-fabricmanager --version"),
        asking.section("gpu-manager-unit", "timeout -k 2 10 systemctl is-active nvidia-fabricmanager 2>/dev/null"),
        asking.section("gpu-switches", "ls -d /dev/nvidia-nvswitchctl /proc/driver/nvidia-nvswitch 2>/dev/null"),
        asking.section("gpu-xid", f"{log} | grep -a -o 'NVRM: Xid ([^)]*): [0-9]*' | sort -u | tail -n 200"),
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """Read the answers; whatever they are, this raises nothing."""
    lines = [line for line in sections.get(FIRST, []) if line.strip()]
    rows = _rows(lines)
    reasons = _rows(sections.get("gpu-clocks-old", [])) + _rows(sections.get("gpu-clocks", []))
    clocks = {row[0]: row[1] for row in reasons if len(row) == 2}
    remapped = {row[0]: row[1:] for row in _rows(sections.get("gpu-rows", [])) if len(row) == 3}
    fabric = _fabric(sections.get("gpu-fabric", []))
    gpus = tuple(gpu for row in rows if (gpu := _gpu(row, clocks, remapped, fabric)))
    manager = re.search(r"version is\s*:\s*(\S+)", "\n".join(sections.get("gpu-manager", [])))
    return State(
        there=bool(lines),
        late=asking.late(lines),
        words=tuple(line.strip() for line in asking.said(lines)) if not gpus else (),
        gpus=gpus,
        processes=tuple(_processes(_rows(sections.get("gpu-apps", [])))),
        module=_module(sections.get("gpu-module", [])),
        manager=manager[1] if manager else None,
        manager_active=[line.strip() for line in sections.get("gpu-manager-unit", [])][:1] == ["active"],
        switches=bool(sections.get("gpu-switches")),
        xids=tuple(xid.found(sections.get("gpu-xid", [])).items()),
    )


def _rows(lines: Iterable[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in asking.said(lines) if "," in line]


def _gpu(
    row: Sequence[str],
    clocks: Mapping[str, str],
    remapped: Mapping[str, Sequence[str]],
    fabric: Mapping[str, list[str]],
) -> Gpu | None:
    """``0, GPU-..., 00000000:19:00.0, 580.95.05, Enabled, 81559, 0, Disabled, 0, 0, NVIDIA H100 80GB HBM3``."""
    if len(row) < 11 or not row[0].isdigit():
        return None
    rows = remapped.get(row[1], ("", ""))
    state = fabric.get(xid.bus(row[2]), [])
    return Gpu(
        index=int(row[0]),
        uuid=row[1],
        bus=xid.bus(row[2]),
        driver=_known(row[3]),
        persistence=_known(row[4]),
        memory_total=asking.number(row[5]),
        memory_used=asking.number(row[6]),
        mig=_known(row[7]),
        ecc_volatile=asking.number(row[8]),
        ecc_aggregate=asking.number(row[9]),
        name=",".join(row[10:]),
        reasons=_bits(clocks.get(row[0], "")),
        remap_pending=_yes(rows[0]),
        remap_failed=_yes(rows[1]),
        fabric_state=_known(state[0]) if state else None,
        fabric_status=_known(state[1]) if len(state) > 1 else None,
    )


def _known(text: str) -> str | None:
    """A value; None for N/A, [N/A], [Not Supported] and the like."""
    return None if not text or text.strip("[]") in ("N/A", "Not Supported", "Unknown Error", "Not Found") else text


def _bits(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def _yes(text: str) -> bool | None:
    """Rows to be remapped are counted, or told as Yes and No."""
    if text in ("Yes", "No"):
        return text == "Yes"
    return int(text) > 0 if text.isdigit() else None


def _fabric(lines: Iterable[str]) -> dict[str, list[str]]:
    """[state, status] by bus, of both layouts: ``Fabric`` with State and Status under it, or ``Fabric State : ...``."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    nested = False
    for line in lines:
        if match := re.match(r"GPU ([0-9a-fA-F:.]+)\s*$", line):
            current, nested = found.setdefault(xid.bus(match[1]), []), False
            continue
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "Fabric":
            nested = True
        elif current is not None and (
            name in ("Fabric State", "Fabric Status") or (nested and name in ("State", "Status"))
        ):
            current.append(value)
    return found


def _processes(rows: Iterable[Sequence[str]]) -> Iterable[Process]:
    for row in rows:
        if len(row) >= 4 and row[1].isdigit():
            yield Process(row[0], int(row[1]), ",".join(row[3:]), asking.number(row[2]))


def _module(lines: Iterable[str]) -> str | None:
    """``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...``."""
    text = next((line for line in lines if line.startswith("NVRM version")), "")
    match = re.search(r"\s(\d{3,}(?:\.\d+)+)\s", text + " ")
    return match[1] if match else None
