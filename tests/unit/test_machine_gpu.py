"""GPUs of hosts against a plan: each rule is broken by one scenario, and a healthy machine breaks none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.machine import devices, gpu, gpu_table, xid
from fleet.topology import Plan
from lab.scenario import scenario
from tests.unit.answers import ask, judge, lines, state_of
from tests.unit.plans import lay

DATA = Path(__file__).parent / "data"
HEAD = """\
title: t
source: s
platform: nvidia
model: {{ name: m, max_position_embeddings: 40960, weights_gb: {weights} }}
engine: {{ vllm: {version} }}
"""


def plan_of(version: str = "0.20.0", devices: str | None = None, size: int = 8, weights: int = 470) -> Plan:
    """One instance on the host a."""
    text = HEAD.format(version=version, weights=weights)
    data = {"devices": devices} if devices else {}
    return lay(f"{text}roles: {{ serve: {{ tensor_parallel_size: {size} }} }}\n", data, serve=[("a", "10.0.0.1")])


def pair() -> Plan:
    """One instance over the hosts a and b."""
    text = HEAD.format(version="0.20.0", weights=470)
    text += "roles: { serve: { tensor_parallel_size: 8, data_parallel_size: 2 } }\n"
    return lay(text, {}, serve=[("a", "10.0.0.1"), ("b", "10.0.0.2")])


def device(index: int | str, **changes: Any) -> dict[str, Any]:
    return {"devices": {str(index): changes}}


def log(*codes: int, bus: str = "0000:3b:00") -> str:
    return "".join(
        f"[12.3] NVRM: Xid (PCI:{bus}): {code}, pid='<unknown>', name=<unknown>, Something\n" for code in codes
    )


WORKER = {"pid": 4242, "name": "VLLM::Worker_TP0", "memory": 70512}
WAITING = {"fabric_state": "In Progress", "fabric_status": "N/A"}

# What is wrong -> changes to the host a, what else is not as it should be, and (rule, severity, text).
BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str, str]]] = {
    "no nvidia-smi": ({}, {"without": ["nvidia-smi"]}, ("GPU-TOOL", "error", "nvidia-smi is not installed")),
    "no driver": ({"driver_works": False}, {}, ("GPU-NVML", "error", "the driver does not run")),
    "no GPU": (device("*", present=False), {}, ("GPU-COUNT", "error", "nvidia-smi finds no GPU")),
    "a GPU fell off the bus": (
        device(5, present=False), {}, ("GPU-COUNT", "error", "device 5 of the plan is not there"),
    ),
    "another fabric manager": (
        {"fabric_manager_version": "580.82.07"}, {},
        ("GPU-FABRIC", "error", "fabric manager 580.82.07, driver 580.95.05: they must be the same"),
    ),
    "another fabric manager, and so no fabric": (
        {"fabric_manager_version": "580.82.07", "fabric_manager_active": False} | device("*", **WAITING), {},
        ("GPU-FABRIC", "error", "fabric manager 580.82.07, driver 580.95.05: they must be the same"),
    ),
    "the fabric manager does not run": (
        {"fabric_manager_active": False} | device("*", **WAITING), {},
        ("GPU-FABRIC", "error", "the fabric manager is not active"),
    ),
    "the fabric manager ended": (
        {"fabric_manager_active": False}, {"files": {"/dev/nvidia-nvswitchctl": ""}},
        ("GPU-FABRIC", "error", "the fabric manager is not active"),
    ),
    "the fabric manager of a guest does not run": (
        {"fabric_manager_active": False}, {}, ("GPU-FABRIC", "warning", "the fabric manager is not active"),
    ),
    "no fabric manager": (
        {"fabric_manager_version": None} | device("*", fabric_state="Not Started", fabric_status="N/A"), {},
        ("GPU-FABRIC", "error", "the fabric manager is not installed"),
    ),
    "the fabric is not ready": (
        device(2, **WAITING), {}, ("GPU-FABRIC", "error", "the fabric of device 2 is In Progress"),
    ),
    "the fabric failed": (
        device(2, fabric_status="Insufficient Resources"), {},
        ("GPU-FABRIC", "error", "the fabric of device 2 is Insufficient Resources"),
    ),
    "a driver too old for CUDA 13": (
        {"driver_version": "570.172.08", "fabric_manager_version": "570.172.08"}, {},
        ("GPU-CUDA", "error", "driver 570.172.08 is older than CUDA 13.0 of vllm/vllm-openai:v0.20.0 needs"),
    ),
    "uncorrected errors now": (
        device(3, ecc_uncorrected=2, ecc_uncorrected_total=5), {},
        ("GPU-ECC", "error", "2 uncorrected memory errors on device 3 since the driver's start"),
    ),
    "uncorrected errors once": (
        device(3, ecc_uncorrected_total=5), {},
        ("GPU-ECC", "warning", "5 uncorrected memory errors on device 3 in its life"),
    ),
    "rows wait": (
        device(2, remapped={"uncorrectable": 1, "pending": 1}), {},
        ("GPU-ROWS", "error", "memory rows of device 2 wait to be remapped"),
    ),
    "rows could not be remapped": (
        {"devices": {"2": {"remapped": {"failure": 1, "pending": 1}}, "3": {"remapped": {"failure": 1}}}}, {},
        ("GPU-ROWS", "error", "memory rows of devices 2-3 could not be remapped"),
    ),
    "Xid 79": (
        {}, {"log": log(79)}, ("GPU-XID", "error", "Xid 79 (GPU has fallen off the bus) of device 1 since boot"),
    ),
    "Xid 48 twice": (
        {}, {"log": log(48, 48)}, ("GPU-XID", "error", "Xid 48 (double bit ECC error) of device 1 since boot"),
    ),
    "Xid 31": (
        {}, {"log": log(31)},
        ("GPU-XID", "warning", "Xid 31 (memory page fault, most often of an application) of device 1 since boot"),
    ),
    "Xid of a GPU that is gone": (
        {}, {"log": log(79, bus="0000:e7:00")},
        ("GPU-XID", "error", "Xid 79 (GPU has fallen off the bus) of a GPU that is gone since boot"),
    ),
    "MIG": (device(0, mig="Enabled"), {}, ("GPU-MIG", "error", "device 0 cut into MIG instances")),
    "no persistence": (
        device("*", persistence="Disabled"), {}, ("GPU-PERSISTENCE", "warning", "persistence is off for devices 0-7"),
    ),
    "too hot": (
        device(6, clocks_event_reasons="0x0000000000000048"), {},
        ("GPU-CLOCKS", "warning", "device 6 held back by hardware slowdown and hardware thermal slowdown"),
    ),
    "a foreign engine": (
        {"devices": {i: {"processes": [WORKER | {"pid": 4242 + int(i)}], "memory_used": 70600} for i in "0123"}}, {},
        ("GPU-PROCESS", "error", "processes 4242, 4243, 4244 and 1 more (VLLM::Worker_TP0) on devices 0-3, 282048 MiB"),
    ),
    "a small foreign process": (
        device(0, processes=[WORKER | {"name": "python3", "memory": 300}], memory_used=310), {},
        ("GPU-PROCESS", "warning", "process 4242 (python3) on device 0, 300 MiB"),
    ),
    "memory leaked": (
        device(7, memory_used=70600), {},
        ("GPU-LEAK", "error", "up to 70600 MiB in use on device 7, and no process there"),
    ),
    "GPUs too small": (
        device("*", name="NVIDIA A100-SXM4-40GB", memory_total=40960), {},
        ("GPU-MEMORY", "error", "the weights take 54.7 GiB of the 36.8 GiB that the engine may use on each device"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_told_and_nothing_else(name: str) -> None:
    changes, kept, expected = BROKEN[name]
    found = judge(plan_of(), {"a": changes}, **kept)
    assert [(f.rule, f.severity, f.what) for f in found] == [expected]
    assert {f.where for f in found} == {"a"}


@pytest.mark.parametrize("plan", [plan_of(), plan_of(devices="0-3", size=4, weights=60), pair()])
def test_a_healthy_machine_breaks_no_rule(plan: Plan) -> None:
    assert lines(plan) == []


def test_the_line_that_is_printed() -> None:
    assert lines(plan_of(), {"a": {"fabric_manager_version": "580.82.07"}}) == [
        "error: a: fabric manager 580.82.07, driver 580.95.05: they must be the same (the engine ends with CUDA error "
        "802, system not yet initialized); install nvidia-fabricmanager=580.95.05 and hold both packages (apt-mark "
        "hold) [GPU-FABRIC]"
    ]


def test_hosts_with_different_drivers() -> None:
    other = {"driver_version": "580.82.07", "fabric_manager_version": "580.82.07"}
    found = judge(pair(), {"b": other})
    assert [(f.rule, f.severity, f.where, f.what) for f in found] == [
        ("GPU-DRIVER", "warning", "b", "driver 580.82.07, a has 580.95.05")
    ]


def test_processes_start_the_tools_as_a_host_does(tmp_path: Path) -> None:
    plan = plan_of()
    node = plan.fleet.node("a")
    module = {"/proc/driver/nvidia/version": MODULE}
    text = "; ".join(gpu.sections(plan, node))
    state = gpu.parse(ask(text, tmp_path, scenario("nvidia"), files=module, processes=True))
    assert state == state_of(plan, node, files=module)
    assert (state.module, state.manager, state.manager_active) == ("580.95.05", "580.95.05", True)
    assert state.gpu(7) == gpu_table.Gpu(
        7, "GPU-00000000-0000-4000-8000-000000000007", "0:db:00", "580.95.05", "Enabled", 81559, 0, "Disabled", 0, 0,
        "NVIDIA H100 80GB HBM3", 1, False, False, "Completed", "Success",
    )  # fmt: skip


MODULE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


def test_devices_of_another_service_are_not_looked_at() -> None:
    sick = {"mig": "Enabled", "ecc_uncorrected": 4, "processes": [WORKER], "fabric_state": "In Progress"}
    plan = plan_of(devices="0-3", size=4, weights=60)
    assert lines(plan, {"a": device(5, **sick)}, log=log(79, bus="0000:bb:00")) == []


def test_our_own_processes_are_not_foreign_and_their_memory_not_leaked() -> None:
    mine = device(0, processes=[WORKER], memory_used=70600)
    assert lines(plan_of(), {"a": mine}, ours=[4242]) == []


def test_an_older_driver_carries_an_older_cuda() -> None:
    old = {"driver_version": "570.172.08", "fabric_manager_version": "570.172.08"}
    assert lines(plan_of("0.18.0"), {"a": old}) == []


def test_what_is_not_known_is_no_fault() -> None:
    """ECC off, and a card that is in no fabric: an H100 PCIe needs no fabric manager."""
    card = {"ecc_mode": "Disabled", "fabric_state": "Not Started"}
    text = ["0, GPU-x, 00000000:19:00.0, 580.95.05, [N/A], 81559, 0, [N/A], [N/A], N/A, NVIDIA H100 PCIe", "rc 0"]
    state = gpu.parse({
        "gpu": text,
        "gpu-rows": ["GPU-x, [N/A], [N/A]"],
        "gpu-clocks": ["0, [N/A]"],
        "gpu-fabric": ["GPU 00000000:19:00.0", "    Fabric", "        State     : N/A", "        Status    : N/A"],
    })  # fmt: skip
    plan = plan_of(devices="0", size=1, weights=60)
    assert gpu.judge(plan, plan.fleet.node("a"), state, frozenset()) == []
    assert state.gpus[0].remap_pending is None and state.gpus[0].ecc_volatile is None
    assert lines(plan_of(), {"a": device(1, ecc_mode=card["ecc_mode"], ecc_uncorrected=9)}) == []


@pytest.mark.parametrize(
    "report",
    [
        [
            "GPU 00000000:19:00.0",
            "    Fabric",
            "        State                  : Completed",
            "        Status  : Success",
        ],
        ["GPU 00000000:19:00.0", "    Fabric State                      : Completed", "    Fabric Status : Success"],
    ],
)
def test_both_layouts_of_the_fabric(report: list[str]) -> None:
    assert gpu_table._fabric(report) == {"0:19:00": ["Completed", "Success"]}


def test_what_an_older_driver_calls_the_clocks_reasons() -> None:
    row = "0, GPU-x, 00000000:19:00.0, 525.1, Enabled, 81559, 0, Disabled, 0, 0, NVIDIA A100"
    refused = ['Field "clocks_event_reasons.active" is not a valid field to query.', "rc 2"]
    state = gpu.parse({"gpu": [row], "gpu-clocks": refused, "gpu-clocks-old": ["0, 0x0000000000000008", "rc 0"]})
    assert state.gpus[0].reasons == 8


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch",
         "the driver in the kernel is not the one that is installed"),
        ("Failed to initialize NVML: Unknown Error", "the driver's library does not start"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system",
         "a GPU is lost"),
    ],
)  # fmt: skip
def test_what_nvidia_smi_says_instead_of_an_answer(text: str, what: str) -> None:
    plan = plan_of()
    found = gpu.judge(plan, plan.fleet.node("a"), gpu.parse({"gpu": [text, "rc 255"]}), frozenset())
    assert [(f.rule, f.what) for f in found] == [("GPU-NVML", what)]


def test_xids_in_both_spellings() -> None:
    text = ["NVRM: Xid (PCI:0000:c1:00): 79", "NVRM: Xid (0000:C1:00): 48", "NVRM: Xid (PCI:0001:c1:00.0): 31", "Xid 5"]
    assert xid.found(text) == {"0:c1:00": (48, 79), "1:c1:00": (31,)}
    assert xid.bus("00000000:C1:00.0") == "0:c1:00"
    assert not set(xid.ERRORS) & set(xid.WARNINGS)


@pytest.mark.parametrize(
    "answer",
    [[], [""], [",,,,,,,,,,,,"], ["0,1,2", "rc x"], ["0, a, b, c, d, e, f, g, h, i, j"], ["GPU ", "Fabric", ":"]],
)
def test_garbage_is_read_without_a_traceback(answer: list[str]) -> None:
    plan = plan_of()
    names = ("gpu", "gpu-clocks", "gpu-rows", "gpu-apps", "gpu-fabric", "gpu-module", "gpu-manager", "gpu-xid")
    for sections in ({name: answer for name in names}, {"gpu": answer}):
        state = gpu.parse(sections)
        gpu.judge(plan, plan.fleet.node("a"), state, frozenset())
        gpu.between(plan, {"a": state})


def test_memory_in_use_while_our_engine_runs_refuses_no_second_run() -> None:
    plan = plan_of()
    node = plan.fleet.node("a")
    state = state_of(plan, node, changes={"a": device(7, memory_used=70600)})
    found = devices.judge(plan, node, state, frozenset(), serving=True)
    assert [(f.rule, f.severity) for f in found] == [("GPU-LEAK", "warning")]
