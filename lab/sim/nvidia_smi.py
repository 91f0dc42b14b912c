"""nvidia-smi and nv-fabricmanager: the queries that are written for programs, for eight H100.

There is no plain table, and no /proc/driver/nvidia/version: a file in /proc is the kernel's to make.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from lab.sim import store
from lab.sim.store import Document

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {library}"
FABRIC_MISMATCH = (
    "fabric manager NVIDIA GPU driver interface version {fabric} don't match with driver version {driver}. "
    "Please update with matching NVIDIA driver package."
)
Devices = dict[int, Document]
Value = Callable[[Document, int, Document], object]

# name -> (unit, value of (scenario, index, device))
GPU: dict[str, tuple[str, Value]] = {
    "index": ("", lambda one, index, gpu: index),
    "count": ("", lambda one, index, gpu: len(store.devices(one, "nvidia"))),
    "name": ("", lambda one, index, gpu: gpu["name"]),
    "uuid": ("", lambda one, index, gpu: gpu["uuid"]),
    "pci.bus_id": ("", lambda one, index, gpu: gpu["bus_id"]),
    "driver_version": ("", lambda one, index, gpu: one["driver_version"]),
    "persistence_mode": ("", lambda one, index, gpu: gpu["persistence"]),
    "memory.total": ("MiB", lambda one, index, gpu: gpu["memory_total"]),
    "memory.used": ("MiB", lambda one, index, gpu: gpu["memory_used"]),
    "memory.free": ("MiB", lambda one, index, gpu: gpu["memory_total"] - gpu["memory_used"]),
    "temperature.gpu": ("", lambda one, index, gpu: gpu["temperature"]),
    "power.draw": ("W", lambda one, index, gpu: f"{gpu['power']:.2f}"),
    "ecc.mode.current": ("", lambda one, index, gpu: gpu["ecc_mode"]),
    "ecc.errors.corrected.volatile.total": ("", lambda one, index, gpu: ecc(gpu, "ecc_corrected")),
    "ecc.errors.uncorrected.volatile.total": ("", lambda one, index, gpu: ecc(gpu, "ecc_uncorrected")),
    "ecc.errors.corrected.aggregate.total": ("", lambda one, index, gpu: ecc(gpu, "ecc_corrected_total")),
    "ecc.errors.uncorrected.aggregate.total": ("", lambda one, index, gpu: ecc(gpu, "ecc_uncorrected_total")),
    "clocks_event_reasons.active": ("", lambda one, index, gpu: gpu["clocks_event_reasons"]),
    "mig.mode.current": ("", lambda one, index, gpu: gpu["mig"]),
    "fabric.state": ("", lambda one, index, gpu: gpu["fabric_state"]),
    "fabric.status": ("", lambda one, index, gpu: gpu["fabric_status"]),
}
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "process_name": "name",
    "used_gpu_memory": "used_memory",
}
REMAPPED: dict[str, tuple[str, Value]] = {
    **{name: GPU[ALIASES[name]] for name in ("gpu_name", "gpu_uuid", "gpu_bus_id")},
    **{
        f"remapped_rows.{key}": ("", lambda one, index, gpu, key=key: gpu["remapped"][key])  # type: ignore[misc]
        for key in ("correctable", "uncorrectable", "pending", "failure")
    },
}


class Refused(Exception):
    """What the tool says instead of an answer, and its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def main(arguments: Sequence[str]) -> int:
    """0 with an answer; an error's code without."""
    try:
        print("\n".join(answer(list(arguments))))
    except Refused as reason:
        print(reason)
        return reason.code
    return 0


def fabric_manager(arguments: Sequence[str]) -> int:
    """`nv-fabricmanager --version`, and its start with `-c FILE`, which needs a driver of the same version."""
    one = store.scenario()
    if list(arguments) in (["--version"], ["-v"]):
        print(f"Fabric Manager version is : {one['fabric_manager_version']}")
        return 0
    if list(arguments[:1]) != ["-c"]:
        print("the lab's nv-fabricmanager knows --version and -c alone", file=sys.stderr)
        return 1
    fabric, driver = one["fabric_manager_version"], one["driver_version"]
    if driver is None or fabric != driver:
        print(FABRIC_MISMATCH.format(fabric=fabric, driver=driver), file=sys.stderr)
        return 1
    return service(["nvidia-fabricmanager"])


def service(arguments: Sequence[str]) -> int:
    """One of the driver's services runs from now on."""
    store.UNITS.mkdir(parents=True, exist_ok=True)
    (store.UNITS / arguments[0]).touch()
    return 0


def answer(arguments: list[str]) -> list[str]:
    """The lines to print."""
    one = store.scenario()
    if not one["driver_works"]:
        raise Refused(NO_DRIVER, 9)
    library = one.get("library_version", one["driver_version"])
    if library != one["driver_version"]:
        raise Refused(MISMATCH.format(library=".".join(str(library).split(".")[:2])), 18)
    options = parse(arguments)
    found = chosen(store.devices(one, "nvidia"), options.get("-i"))
    if not found:
        raise Refused("No devices were found", 6)
    style = options.get("--format", "").split(",")
    for option, tell in {"--query-gpu": gpus, "--query-remapped-rows": remapped, "--query-compute-apps": apps}.items():
        if option in options:
            if "csv" not in style:
                raise Refused('"--format=" switch is missing or incorrect. Please run "nvidia-smi -h" for help.', 2)
            return tell(one, found, options[option].split(","), style)
    if "-L" in options:
        return [f"GPU {index}: {gpu['name']} (UUID: {gpu['uuid']})" for index, gpu in found.items()]
    if "-q" in options:
        return report(one, found)
    raise Refused("the lab's nvidia-smi has no table: use -q, -L or --query-gpu=... --format=csv", 2)


def parse(arguments: list[str]) -> dict[str, str]:
    """Options with their values, written as one word or as two."""
    options: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        name = {"--id": "-i", "--query": "-q", "--list-gpus": "-L"}.get(name, name)
        if name in ("-q", "-L"):
            options[name] = ""
        elif name in ("-i", "--format", "-d") or name.startswith("--query-"):
            options[name] = value if equals else next(rest, "")
        else:
            raise Refused(f'Invalid combination of input arguments. Please run "nvidia-smi -h" for help.\n{word}', 2)
    return options


def chosen(found: Devices, wanted: str | None) -> Devices:
    """The devices that -i names by index, UUID or bus."""
    if wanted is None:
        return found
    names = wanted.split(",")
    return {
        index: gpu for index, gpu in found.items() if {str(index), str(gpu["uuid"]), str(gpu["bus_id"])} & set(names)
    }


def ecc(gpu: Document, key: str) -> object:
    return gpu[key] if gpu["ecc_mode"] == "Enabled" else "[N/A]"


# Comma-separated answers


def gpus(one: Document, found: Devices, fields: list[str], style: list[str]) -> list[str]:
    columns = [pick(GPU, name) for name in fields]
    rows = [[(tell(one, index, gpu), unit) for unit, tell in columns] for index, gpu in found.items()]
    return csv(fields, [unit for unit, _ in columns], rows, style)


def remapped(one: Document, found: Devices, fields: list[str], style: list[str]) -> list[str]:
    columns = [pick(REMAPPED, name) for name in fields]
    rows = [[(tell(one, index, gpu), unit) for unit, tell in columns] for index, gpu in found.items()]
    return csv(fields, [unit for unit, _ in columns], rows, style)


def apps(one: Document, found: Devices, fields: list[str], style: list[str]) -> list[str]:
    """One line a process; none at all when nothing runs."""
    rows, units = [], []
    for name in fields:
        known = ALIASES.get(name, name) if not name.startswith("gpu_") else name
        if known not in ("pid", "name", "used_memory", "gpu_uuid", "gpu_bus_id", "gpu_name"):
            raise Refused(f'Field "{name}" is not a valid field to query.', 2)
        units.append("MiB" if known == "used_memory" else "")
    for gpu in found.values():
        for process in gpu["processes"]:
            values = {"pid": process["pid"], "name": process["name"], "used_memory": process["memory"]}
            values |= {"gpu_uuid": gpu["uuid"], "gpu_bus_id": gpu["bus_id"], "gpu_name": gpu["name"]}
            names = [name if name.startswith("gpu_") else ALIASES.get(name, name) for name in fields]
            rows.append([(values[name], unit) for name, unit in zip(names, units, strict=True)])
    headers = [{"used_memory": "used_gpu_memory", "name": "process_name"}.get(name, name) for name in fields]
    return csv(headers, units, rows, style)


def pick(known: dict[str, tuple[str, Value]], name: str) -> tuple[str, Value]:
    """A field by its name or an older one."""
    name = name.strip()
    for candidate in (name, ALIASES.get(name, name)):
        if candidate in known:
            return known[candidate]
    raise Refused(f'Field "{name}" is not a valid field to query.', 2)


def csv(names: list[str], units: list[str], rows: list[list[tuple[object, str]]], style: list[str]) -> list[str]:
    """Header and rows with units, as far as they are wanted."""
    bare = "nounits" in style
    lines = []
    if "noheader" not in style:
        lines.append(", ".join(f"{n.strip()} [{u}]" if u else n.strip() for n, u in zip(names, units, strict=True)))
    return lines + [", ".join(f"{v} {u}" if u and not bare else f"{v}" for v, u in row) for row in rows]


# The long report


def report(one: Document, found: Devices) -> list[str]:
    """`nvidia-smi -q`, with the sections that a check reads."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [entry("Timestamp", time.asctime()), entry("Driver Version", one["driver_version"])]
    lines += [entry("CUDA Version", one["cuda_version"]), "", entry("Attached GPUs", len(found))]
    for index, gpu in found.items():
        lines += [f"GPU {gpu['bus_id']}", *section(describe(index, gpu), 1), ""]
    return lines


Section = dict[str, object]


def section(content: Section, depth: int) -> list[str]:
    """Nested entries, four blanks a level."""
    lines: list[str] = []
    for name, value in content.items():
        if isinstance(value, dict):
            lines += ["    " * depth + name, *section(value, depth + 1)]
        else:
            lines.append(entry(name, value, depth))
    return lines


def entry(name: str, value: object, depth: int = 0) -> str:
    return f"{'    ' * depth + name:<42}: {value}"


def describe(index: int, gpu: Document) -> Section:
    """The sections of one GPU."""
    yes = ("No", "Yes")
    row = gpu["remapped"]
    content: Section = {
        "Product Name": gpu["name"],
        "Product Brand": "NVIDIA",
        "Product Architecture": "Hopper",
        "Persistence Mode": gpu["persistence"],
        "MIG Mode": {"Current": gpu["mig"], "Pending": gpu["mig"]},
        "GPU UUID": gpu["uuid"],
        "Minor Number": index,
        "PCI": {"Bus Id": gpu["bus_id"]},
        "FB Memory Usage": {
            "Total": f"{gpu['memory_total']} MiB",
            "Used": f"{gpu['memory_used']} MiB",
            "Free": f"{gpu['memory_total'] - gpu['memory_used']} MiB",
        },
        "ECC Mode": {"Current": gpu["ecc_mode"], "Pending": gpu["ecc_mode"]},
        "ECC Errors": {
            "Volatile": errors(gpu, "ecc_corrected", "ecc_uncorrected"),
            "Aggregate": errors(gpu, "ecc_corrected_total", "ecc_uncorrected_total"),
        },
        "Remapped Rows": {
            "Correctable Error": row["correctable"],
            "Uncorrectable Error": row["uncorrectable"],
            "Pending": yes[bool(row["pending"])],
            "Remapping Failure Occurred": yes[bool(row["failure"])],
        },
        "Temperature": {"GPU Current Temp": f"{gpu['temperature']} C"},
        "GPU Power Readings": {"Instantaneous Power Draw": f"{gpu['power']:.2f} W"},
    }
    if not gpu["processes"]:
        content["Processes"] = "None"
    else:
        content["Processes"] = {
            f"Process ID {p['pid']}": {"Type": "C", "Name": p["name"], "Used GPU Memory": f"{p['memory']} MiB"}
            for p in gpu["processes"]
        }
    content["Fabric"] = {"State": gpu["fabric_state"], "Status": gpu["fabric_status"]}
    return content


def errors(gpu: Document, corrected: str, uncorrected: str) -> Section:
    """Counts as an H100 reports them; a scenario's are all of the memory, none of the caches."""
    if gpu["ecc_mode"] != "Enabled":
        return {name: "N/A" for name in ("SRAM Correctable", "DRAM Correctable", "DRAM Uncorrectable")}
    return {
        "SRAM Correctable": 0,
        "SRAM Uncorrectable Parity": 0,
        "SRAM Uncorrectable SEC-DED": 0,
        "DRAM Correctable": gpu[corrected],
        "DRAM Uncorrectable": gpu[uncorrected],
    }
