"""nvidia-smi's answers to programs, and the fabric manager's version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.sim import dressed

FIELDS = (
    "index,uuid,name,pci.bus_id,driver_version,persistence_mode,memory.total,memory.used,temperature.gpu,power.draw,"
    "ecc.mode.current,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,"
    "ecc.errors.uncorrected.aggregate.total,clocks_event_reasons.active,mig.mode.current"
)
REPORT = """\

==============NVSMI LOG==============

Timestamp                                 : NOW
Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:4C:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Brand                         : NVIDIA
    Product Architecture                  : Hopper
    Persistence Mode                      : Disabled
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    GPU UUID                              : GPU-00000000-0000-4000-8000-000000000002
    Minor Number                          : 2
    PCI
        Bus Id                            : 00000000:4C:00.0
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 70512 MiB
        Free                              : 11047 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 3
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 31 C
    GPU Power Readings
        Instantaneous Power Draw          : 70.52 W
    Processes
        Process ID 4242
            Type                          : C
            Name                          : VLLM::Worker_TP0
            Used GPU Memory               : 70512 MiB
    Fabric
        State                             : In Progress
        Status                            : N/A

"""
SICK = {
    "persistence": "Disabled",
    "mig": "Enabled",
    "memory_used": 70512,
    "ecc_uncorrected": 3,
    "remapped": {"uncorrectable": 1, "pending": 1},
    "fabric_state": "In Progress",
    "fabric_status": "N/A",
    "processes": [{"pid": 4242, "name": "VLLM::Worker_TP0", "memory": 70512}],
}


def test_the_query_of_the_reference(tmp_path: Path) -> None:
    host = dressed(tmp_path, "nvidia", {"devices": {"1": {"ecc_mode": "Disabled"}}})
    lines = host.call("nvidia_smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits").lines
    assert len(lines) == 8
    assert lines[:2] == [
        "0, GPU-00000000-0000-4000-8000-000000000000, NVIDIA H100 80GB HBM3, 00000000:19:00.0, 580.95.05, Enabled, "
        "81559, 0, 31, 70.52, Enabled, 0, 0, 0, 0x0000000000000001, Disabled",
        "1, GPU-00000000-0000-4000-8000-000000000001, NVIDIA H100 80GB HBM3, 00000000:3B:00.0, 580.95.05, Enabled, "
        "81559, 0, 31, 70.52, Disabled, [N/A], [N/A], [N/A], 0x0000000000000001, Disabled",
    ]


def test_headers_units_and_one_device(tmp_path: Path) -> None:
    host = dressed(tmp_path, "nvidia")
    done = host.call("nvidia_smi", "-i", "7", "--query-gpu=index,memory.total,power.draw", "--format=csv")
    assert done.text == "index, memory.total [MiB], power.draw [W]\n7, 81559 MiB, 70.52 W\n"
    assert host.call("nvidia_smi", "--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader").code == 0


def test_remapped_rows_and_processes(tmp_path: Path) -> None:
    host = dressed(tmp_path, "nvidia", {"devices": {"2": SICK}})
    rows = "gpu_bus_id,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
    done = host.call("nvidia_smi", f"--query-remapped-rows={rows}", "--format=csv,noheader")
    assert done.lines[1:3] == ["00000000:3B:00.0, 0, 0, 0", "00000000:4C:00.0, 1, 1, 0"]
    asked = "--query-compute-apps=pid,used_memory,name"
    assert host.call("nvidia_smi", asked, "--format=csv").text == (
        "pid, used_gpu_memory [MiB], process_name\n4242, 70512 MiB, VLLM::Worker_TP0\n"
    )
    idle = dressed(tmp_path / "idle", "nvidia")
    assert idle.call("nvidia_smi", asked, "--format=csv,noheader").text.strip() == ""


def test_the_report(tmp_path: Path) -> None:
    done = dressed(tmp_path, "nvidia", {"devices": {"2": SICK}}).call("nvidia_smi", "-q", "-i", "2")
    assert re.sub(r"(Timestamp +: ).*", r"\1NOW", done.text) == REPORT


def test_a_list_leaves_out_a_device_that_fell_off_the_bus(tmp_path: Path) -> None:
    done = dressed(tmp_path, "nvidia", {"devices": {"0": {"present": False}}}, index=3).call("nvidia_smi", "-L")
    assert len(done.lines) == 7
    assert done.lines[0] == "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000003-0000-4000-8000-000000000001)"


@pytest.mark.parametrize(
    ("changes", "arguments", "code", "text"),
    [
        (
            {"driver_works": False},
            ["-L"],
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n\n",
        ),
        ({"devices": {"*": {"present": False}}}, ["-L"], 6, "No devices were found\n"),
        (
            {},
            ["--query-gpu=index,colour", "--format=csv"],
            2,
            'Field "colour" is not a valid field to query.\n',
        ),
        (
            {},
            ["--query-gpu=index"],
            2,
            '"--format=" switch is missing or incorrect. Please run "nvidia-smi -h" for help.\n',
        ),
        ({}, [], 2, "the lab's nvidia-smi has no table: use -q, -L or --query-gpu=... --format=csv\n"),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, object], arguments: list[str], code: int, text: str) -> None:
    done = dressed(tmp_path, "nvidia", changes).call("nvidia_smi", *arguments)
    assert (done.code, done.text) == (code, text)


def test_the_fabric_manager_has_a_version_of_its_own(tmp_path: Path) -> None:
    host = dressed(tmp_path, "nvidia", {"fabric_manager_version": "580.82.07"})
    done = host.call("nvidia_smi", "--version", function="fabric_manager")
    assert (done.code, done.text) == (0, "Fabric Manager version is : 580.82.07\n")
    assert host.typed("nvidia_smi", "--version", function="fabric_manager") == done
    assert host.typed("nvidia_smi", "-L") == host.call("nvidia_smi", "-L")
    assert host.typed("nvidia_smi") == host.call("nvidia_smi")
