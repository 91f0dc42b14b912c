"""What ``npu-smi`` says of a host: questions and the reading of answers, without a verdict.

Layouts: npu-smi's own source (npucli, npu_info_print_ch.c) and transcripts of 24.1, 25.5 and 26.0. The table's width
and columns change between versions, so rows are cut at ``|`` and columns found by their heads. What is not understood
is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.machine import asking
from fleet.machine.hccn import Port
from fleet.snapshot import MARK

FIRST = "npu"
SECONDS = 20  # npu-smi takes one to three on a healthy host
INSTALL_INFO = "/etc/ascend_install.info"
DRIVER_INFO = "/usr/local/Ascend/driver/version.info"

_SICK = "|".join(f"*'| {word}'*" for word in ("Warning", "Alarm", "Critical", "UNKNOWN"))


@dataclass(frozen=True)
class Chip:
    """One device, as /dev/davinci<index> counts: an NPU of an A2, a die of an A3. Memory in MiB."""

    index: int
    card: int
    chip: int
    name: str
    health: str | None
    hbm_used: int | None
    hbm_total: int | None


@dataclass(frozen=True)
class Process:
    """A process on a device; ``pid`` is the host's, memory in MiB."""

    index: int
    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True)
class Board:
    """The versions of a card, and whether its driver and firmware fit: OK, NOK, UNKNOWN or NOT SUPPORT."""

    driver: str | None
    firmware: str | None
    compatibility: str | None


@dataclass(frozen=True)
class State:
    """A host's NPUs."""

    there: bool  # whether npu-smi is installed
    late: bool  # whether it gave no answer in time
    words: tuple[str, ...] = ()  # what it says
    dies: bool | None = None  # whether a card has two, as on A3
    version: str | None = None  # the driver's
    chips: tuple[Chip, ...] = ()
    processes: tuple[Process, ...] = ()
    boards: Mapping[int, Board] = field(default_factory=dict)  # by card
    errors: Mapping[int, str] = field(default_factory=dict)  # error codes by device, of those that are not well
    install: str | None = None  # the installation's status; None where its file is missing
    hccn_conf: bool | None = None  # None where it was not asked for
    hccn: str | None = None  # why hccn_tool could not be asked
    ports: Mapping[int, Port] = field(default_factory=dict)
    pod: str | None = None  # the super pod's id
    server: int | None = None  # the host's number in it, from which all its NPUs' numbers and addresses follow

    @property
    def pids(self) -> frozenset[int]:
        """All processes on the devices."""
        return frozenset(p.pid for p in self.processes)

    @property
    def driver(self) -> str | None:
        """The driver's version: HDK 25.5.1, for one."""
        return next((b.driver for b in self.boards.values() if b.driver), None) or self.version

    def chip(self, index: int) -> Chip | None:
        return next((c for c in self.chips if c.index == index), None)


def sections(devices: Sequence[int], dies: bool, pod: bool) -> list[str]:
    """The questions, one after another: npu-smi does not stand several at once (HDK user guide, npu-smi)."""
    size = 2 if dies else 1
    each = " ".join(f"{i}:{i // size}:{i % size}" for i in devices)
    cards = " ".join(str(card) for card in sorted({i // size for i in devices}))
    one_by_one = f'for d in {each}; do i=${{d%%:*}}; k=${{d#*:}}; c=${{k#*:}}; k=${{k%:*}}; echo "-- $i"; '
    table = f"npu_table=$( {asking.ASKING}; {asking.have('npu-smi')} && ask {SECONDS} npu-smi info )"
    health = (
        f"case $npu_table in ({_SICK}) {one_by_one} ask 10 npu-smi info -t health -i $k -c $c || break; done;; esac"
    )
    well = "case $npu_table in (*'rc 0')"
    board = f'{well} for k in {cards}; do echo "-- $k"; ask 10 npu-smi info -t board -i $k || break; done;; esac'
    # One die stands for all: pod and server index are the host's.
    spod = f"{well} ask 10 npu-smi info -t spod-info -i {devices[0] // size} -c {devices[0] % size};; esac"
    parts = [
        f"echo '{MARK} {FIRST}'; {table}; printf '%s\\n' \"$npu_table\"",
        asking.section("npu-health", health),
        asking.section("npu-board", board),
        asking.section("npu-install", f"test -f {INSTALL_INFO} && {{ echo there; head -c 4000 {INSTALL_INFO}; }}"),
        asking.section("npu-driver", f"head -c 4000 {DRIVER_INFO} 2>/dev/null"),
    ]
    return parts + ([asking.section("npu-spod", spod)] if pod else [])


def parse(
    sections: Mapping[str, list[str]], hccn_conf: bool | None, hccn: str | None, ports: Mapping[int, Port]
) -> State:
    """Read the answers; ``ports`` and the two before it are hccn_tool's, read elsewhere."""
    lines = [line for line in sections.get(FIRST, []) if line.strip()]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    cut = next((n for n, row in enumerate(rows) if "Process id" in row), len(rows))
    dies = any("Phy-ID" in row[0] for row in rows[:cut]) if rows else None
    chips = tuple(_chips(rows[:cut], bool(dies)))
    boards = {int(card): _board(its) for card, its in _numbered(sections.get("npu-board", []))}
    pod = asking.fields(sections.get("npu-spod", []))
    health = {int(device): asking.fields(its) for device, its in _numbered(sections.get("npu-health", []))}
    version = asking.fields(line.replace("=", ":") for line in sections.get("npu-driver", [])).get("Version")
    return State(
        there=bool(lines),
        late=asking.late(lines),
        words=tuple(line.strip() for line in asking.said(lines) if not line.startswith(("|", "+"))),
        dies=dies,
        version=version or _version(rows),
        chips=chips,
        processes=tuple(_processes(rows[cut:], {(c.card, c.chip): c.index for c in chips})),
        boards=boards,
        errors={i: code for i, its in health.items() if (code := its.get("Error Code", "NA")) not in ("NA", "")},
        install=_install(sections.get("npu-install", [])),
        hccn_conf=hccn_conf,
        hccn=hccn,
        ports=ports,
        pod=pod.get("Super Pod ID") if pod.get("Super Pod ID", "").isdigit() else None,
        server=_server(pod),
    )


def _numbered(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    return [(title, its) for title, its in asking.blocks(lines).items() if title.isdigit()]


def _server(pod: Mapping[str, str]) -> int | None:
    """The server's index, or what bits 22 to 31 of the SDID say of it (HDK, dcmi)."""
    told, sdid = asking.number(pod.get("Server Index", "")), asking.number(pod.get("SDID", ""))
    return told if told is not None or sdid is None else sdid >> 22


def _version(rows: Sequence[Sequence[str]]) -> str | None:
    """``npu-smi 25.5.1    Version: 25.5.1``."""
    match = re.search(r"Version:\s*(\S+)", rows[0][0]) if rows else None
    return match[1] if match else None


def _chips(rows: Iterable[Sequence[str]], dies: bool) -> Iterable[Chip]:
    """Two rows a device: ``0  910B3 | OK | ...`` and ``0 | 0000:C1:00.0 | ... 3418 / 65536``, on A3 ``0  0 | ...``."""
    head: tuple[int, str, str] | None = None
    for row in rows:
        words = row[0].split()
        if len(words) >= 2 and words[0].isdigit() and not words[1].isdigit() and len(row) >= 3:
            head = int(words[0]), words[1], row[1]
        elif head and words and all(word.isdigit() for word in words) and len(words) == (2 if dies else 1):
            card, name, health = head
            memory = re.findall(r"(\d+)\s*/\s*(\d+)", row[-1])
            pair = memory[-1] if memory else ("", "")
            index = int(words[1]) if dies else card
            total = asking.number(pair[1]) or None
            yield Chip(index, card, int(words[0]), name, health or None, asking.number(pair[0]), total)
            head = None


def _processes(rows: Sequence[Sequence[str]], indices: Mapping[tuple[int, int], int]) -> Iterable[Process]:
    """The lower table; from 26.0 on it has a further column for the pid in a container."""
    if not rows:
        return
    places = {head: n for n, head in enumerate(rows[0])}
    pid, name = places["Process id"], places.get("Process name")
    memory = next((n for head, n in places.items() if head.startswith("Process memory")), None)
    for row in rows[1:]:
        words = row[0].split()
        if len(row) <= pid or not words or not all(word.isdigit() for word in words) or not row[pid].isdigit():
            continue
        card, chip = int(words[0]), int(words[1]) if len(words) > 1 else 0
        text = row[name] if name is not None and name < len(row) else ""
        size = asking.number(row[memory]) if memory is not None and memory < len(row) else None
        yield Process(indices.get((card, chip), card), int(row[pid]), text, size)


def _board(lines: Iterable[str]) -> Board:
    found = asking.fields(lines)
    driver, firmware = found.get("Software Version"), found.get("Firmware Version")
    return Board(driver if driver != "NA" else None, firmware, found.get("Compatibility"))


def _install(lines: Sequence[str]) -> str | None:
    """``Driver_Install_Status=complete``."""
    if not lines or lines[0] != "there":
        return None
    pairs = [line.partition("=") for line in lines[1:]]
    return next((value.strip() for name, _, value in pairs if name.strip() == "Driver_Install_Status"), "")
