"""npu-smi: the tables and fields that the driver's own tool prints for Atlas A2 and A3.

Formats are those of the tool's published source and of transcripts in users' reports; the texts for a wrong
argument are ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from lab.sim import store
from lab.sim.store import Document

EDGE = "+---------------------------+---------------+----------------------------------------------------+"
DOUBLE = EDGE.replace("-", "=")
FLAT = "+" + "-" * 96 + "+"
INCOMPLETE = (
    "[WARNING]The driver package may not be completely installed, which may cause function abnormal. "
    "Please reinstall it."
)
NO_CARD = "There is no NPU card on this server."
DCMI_ERRORS = {
    -8001: "dcmi module initialize failed. ret is -8001",
    -8005: "dcmi module initialize failed. ret is -8005",
    -8020: "dcmi model initialized failed, because the device is used. ret is -8020",
}
CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")


class Refused(Exception):
    """What the tool says instead of an answer."""


Devices = dict[int, Document]


def main(arguments: Sequence[str]) -> int:
    """0 with an answer, 1 without."""
    try:
        print("\n".join(answer(list(arguments))))
    except Refused as reason:
        print(reason)
        return 1
    return 0


def answer(arguments: list[str]) -> list[str]:
    """The lines to print."""
    one = store.scenario()
    error = one["dcmi_error"]
    if store.in_container() and not all(store.node(name) for name in CONTROL):
        error = error or -8005
    if error:
        raise Refused(DCMI_ERRORS[error])
    if not arguments or arguments[0] != "info":
        raise Refused("Usage: npu-smi info [-l | -m | -t type -i id [-c chip_id]]")
    found = store.devices(one, "davinci")
    options = parse(arguments[1:])
    if "-l" in options:
        return listing(one, found)
    if "-m" in options:
        return mapping(one, found)
    if "-t" not in options:
        return table(one, found) if found else [NO_CARD]
    return query(one, found, options)


def parse(arguments: list[str]) -> dict[str, str]:
    """Options with their values; -l and -m have none."""
    options: dict[str, str] = {}
    rest = iter(arguments)
    for option in rest:
        if option in ("-l", "-m"):
            options[option] = ""
        elif option in ("-t", "-i", "-c"):
            options[option] = next(rest, "")
        else:
            raise Refused(f"Error parameter of {option}")
    return options


def chips_per_card(one: Document) -> int:
    return 2 if one["family"] == "ascend-a3" else 1


def cards(one: Document, found: Devices) -> dict[int, Devices]:
    """Devices by card, as card -> chip -> device; a card of an A3 has two dies."""
    size = chips_per_card(one)
    grouped: dict[int, Devices] = {}
    for number, device in found.items():
        grouped.setdefault(number // size, {})[number % size] = device | {"number": number}
    return grouped


# The big table


def table(one: Document, found: Devices) -> list[str]:
    """`npu-smi info`."""
    version = one["driver_version"]
    second = "| Chip  Phy-ID              |" if chips_per_card(one) == 2 else "| Chip                      |"
    lines = [
        FLAT,
        f"| npu-smi {version:<24} Version: {version:<52} |",
        EDGE,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        second + " Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        DOUBLE,
    ]
    grouped = cards(one, found)
    for card, chips in grouped.items():
        rows = [chip_rows(one, card, chip, device) for chip, device in chips.items()]
        lines += [line for index, row in enumerate(rows) for line in ([FLAT] if index else []) + row]
        lines.append(DOUBLE)
    lines += [
        EDGE,
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
    ]
    lines.append(DOUBLE)
    for card, chips in grouped.items():
        lines += processes(card, chips)
        lines.append(DOUBLE)
    if not store.in_container() and not is_installed():
        lines.append(INCOMPLETE)
    return lines


def chip_rows(one: Document, card: int, chip: int, device: Document) -> list[str]:
    """The two lines of one chip. A3 tells the power of a card once, at its first die."""
    power = "-" if chip else f"{device['power']:.1f}"
    name = f"{chip:<5} {device['number']:<20}" if chips_per_card(one) == 2 else f"{chip:<26}"
    return [
        f"| {card:<5} {device['name']:<20}| {device['health']:<14}| {power:<11} {device['temperature']:<17} "
        f"{0:<5}/ {0:<14}|",
        f"| {name}| {device['bus_id']:<14}| {device['aicore']:<11} {0:<5}/ {0:<10} "
        f"{device['hbm_used']:<5}/ {device['hbm_total']:<13} |",
    ]


def processes(card: int, chips: Devices) -> list[str]:
    """What runs on a card."""
    lines = [
        f"| {card:<7} {chip:<18}| {process['pid']:<13} | {process['name']:<24} | {process['memory']:<23} |"
        for chip, device in chips.items()
        for process in device["processes"]
    ]
    return lines or [f"| No running processes found in NPU {card:<7}" + " " * 54 + "|"]


def is_installed() -> bool:
    """What the tool looks for on a bare machine."""
    try:
        return "Driver_Install_Status=complete" in (store.ROOT / "etc/ascend_install.info").read_text()
    except OSError:
        return False


# Lists and single queries


def listing(one: Document, found: Devices) -> list[str]:
    """`npu-smi info -l`."""
    if not found:
        return [NO_CARD]
    grouped = cards(one, found)
    lines = [field("Total Count", len(grouped)), ""]
    for card in grouped:
        lines += [field("NPU ID", card), field("Chip Count", chips_per_card(one)), ""]
    return lines


def mapping(one: Document, found: Devices) -> list[str]:
    """`npu-smi info -m`: the last row of each card is its controller."""
    if not found:
        return [NO_CARD]
    a3 = chips_per_card(one) == 2
    lines = [row("NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if a3 else []), "Chip Name")]
    for card, chips in cards(one, found).items():
        for chip, device in chips.items():
            number = device["number"]
            lines.append(row(card, chip, number, number, device["name"]) if a3 else
                         row(card, chip, number, f"Ascend {device['name']}"))  # fmt: skip
        lines.append(row(card, chips_per_card(one), "-", *(["-"] if a3 else []), f"{'Mcu':<30}"))
    return lines


def row(*cells: object) -> str:
    return "\t" + " ".join(f"{cell!s:<30}" for cell in cells[:-1]) + f" {cells[-1]}"


def field(name: str, value: object, width: int = 30) -> str:
    return f"\t{name:<{width}} : {value}"


def query(one: Document, found: Devices, options: dict[str, str]) -> list[str]:
    """`npu-smi info -t TYPE -i CARD [-c CHIP]`."""
    grouped = cards(one, found)
    kind = options["-t"]
    if kind not in QUERIES and kind not in ("board", "spod-info"):
        raise Refused("Error parameter of -t")
    if not options.get("-i", "").isdigit() or int(options["-i"]) not in grouped:
        raise Refused("Error parameter of -i")
    card = int(options["-i"])
    chips = grouped[card]
    chip = options.get("-c")
    if chip is not None and (not chip.isdigit() or int(chip) not in chips):
        raise Refused("Error parameter of -c")
    if kind == "spod-info":
        return spod(one, chips, chip)
    if kind == "board":
        return board(one, card, chips) if chip is None else chip_board(one, card, int(chip), chips[int(chip)])
    tell, width = QUERIES[kind]
    if chip is not None:
        return tell(chips[int(chip)])
    lines = [field("NPU ID", card, width), field("Chip Count", chips_per_card(one), width)]
    for number, device in chips.items():
        lines += ["", *tell(device), field("Chip ID", number, width)]
    return lines


def board(one: Document, card: int, chips: Devices) -> list[str]:
    """The versions of a card; only root is told whether driver and firmware fit."""
    a3 = chips_per_card(one) == 2
    device = next(iter(chips.values()))
    fit = device["compatibility"] or one["compatibility"]
    serial = f"1024B{one['server_index']:03d}{card:04d}"
    return [
        field("NPU ID", card),
        field("Product Name", "IT23MMDB" if a3 else "IT21HMDB01-B2"),
        field("Model", "NA"),
        field("Manufacturer", "NA"),
        field("Serial Number", serial),
        field("Software Version", device["software"] or one["driver_version"]),
        field("Firmware Version", device["firmware"] or one["firmware_version"]),
        field("Compatibility", fit if os.geteuid() == 0 else "NOT SUPPORT"),
        field("Board ID", "0xb0" if a3 else "0x30"),
        *([field("Main Board ID", "0x1c")] if a3 else []),
        field("PCB ID", "A"),
        field("BOM ID", 1),
        field("PCIe Bus Info", device["bus_id"]),
        field("Slot ID", 0),
        field("Class ID", "NA"),
        field("PCI Vendor ID", "0x19E5"),
        field("PCI Device ID", "0xD803" if a3 else "0xD802"),
        field("Subsystem Vendor ID", "0x19E5"),
        field("Subsystem Device ID", "0x3003" if a3 else "0x3000"),
        field("Chip Count", chips_per_card(one)),
    ]


def chip_board(one: Document, card: int, chip: int, device: Document) -> list[str]:
    """The same of one chip."""
    a3 = chips_per_card(one) == 2
    serial = f"{one['server_index']:08X} {device['number']:08X} 4A10C8D4 14CC040A"
    return [
        field("NPU ID", card),
        *([field("NPU Name", device["name"])] if a3 else []),
        field("Chip ID", chip),
        *([] if a3 else [field("Chip Type", "Ascend")]),
        field("Chip Name", device["name"]),
        field("Chip Version", "V1"),
        field("Board ID", "0xb0" if a3 else "0x30"),
        field("PCB ID", "NA"),
        field("BOM ID", 1),
        field("VDie ID", f"42C711D4 {serial}"),
        field("NDie ID", f"27216594 {serial}"),
        field("Chip Position ID", chip),
        field("PCIe Bus Info", device["bus_id"]),
        field("Firmware Version", device["firmware"] or one["firmware_version"]),
    ]


def spod(one: Document, chips: Devices, chip: str | None) -> list[str]:
    """A die's place in the super pod."""
    if chips_per_card(one) == 1:
        raise Refused("This device does not support querying spod-info.")
    if chip is None:
        raise Refused("Error parameter of -c")
    return [
        field("SDID", store.sdid(one, chips[int(chip)]["number"])),
        field("Super Pod Size", one["super_pod_size"]),
        field("Super Pod ID", one["super_pod_id"]),
        field("Server Index", one["server_index"]),
    ]


def health(device: Document) -> list[str]:
    codes = " ".join(str(code) for code in device["error_codes"])
    return [
        field("Health Status", device["health"]),
        field("Error Code", codes or "NA"),
        field("Error Information", device["error_information"] or "NA"),
    ]


def ecc(device: Document) -> list[str]:
    count = device["ecc"]
    return [
        field("HBM Single Bit Error Count", count["single"], 40),
        field("HBM Double Bit Error Count", count["double"], 40),
        field("HBM Single Bit Aggregate Total Err Cnt", count["single_total"], 40),
        field("HBM Double Bit Aggregate Total Err Cnt", count["double_total"], 40),
        field("HBM Single Bit Isolated Pages Count", count["single_isolated"], 40),
        field("HBM Double Bit Isolated Pages Count", count["double_isolated"], 40),
    ]


def usages(device: Document) -> list[str]:
    return [
        field("DDR Capacity(MB)", 0),
        field("DDR Usage Rate(%)", 0),
        field("DDR Hugepages Total(page)", 0),
        field("DDR Hugepages Usage Rate(%)", 0),
        field("HBM Capacity(MB)", device["hbm_total"]),
        field("HBM Usage Rate(%)", device["hbm_used"] * 100 // device["hbm_total"]),
        field("Aicore Usage Rate(%)", device["aicore"]),
        field("Aivector Usage Rate(%)", 0),
        field("Aicpu Usage Rate(%)", 0),
        field("Ctrlcpu Usage Rate(%)", 0),
        field("DDR Bandwidth Usage Rate(%)", 0),
        field("HBM Bandwidth Usage Rate(%)", 0),
        field("NPU Utilization(%)", device["aicore"]),
        field("Aicube Usage Rate(%)", 0),
    ]


QUERIES: dict[str, tuple[Callable[[Document], list[str]], int]] = {
    "health": (health, 30),
    "ecc": (ecc, 40),
    "usages": (usages, 30),
}
