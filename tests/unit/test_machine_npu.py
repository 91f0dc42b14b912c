"""NPUs of hosts against a plan: each rule is broken by one scenario, and a healthy fleet breaks none.

Most plans here use two devices of each host, which is what is then asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.machine import asking, common, devices, hccn, npu, npu_table
from fleet.machine.asking import ASKING
from fleet.topology import Plan
from lab.scenario import scenario
from tasks.guard import plan_of
from tests.unit.answers import ask, judge, lines, state_of
from tests.unit.plans import lay

DATA = Path(__file__).parent / "data"
HEAD = """\
title: t
source: s
platform: {platform}
model: {{ name: m, max_position_embeddings: 40960, weights_gb: 60 }}
engine: {{ vllm: {version}, vllm_ascend: {version} }}
"""
PD = """\
shared: { args: { gpu-memory-utilization: 0.9 } }
roles:
  prefill: { tensor_parallel_size: 2 }
  decode: { tensor_parallel_size: 2, data_parallel_size: 2 }
kv_transfer: { connector: MooncakeConnectorV1, port: 36000 }
"""
PAIR = "roles: { serve: { tensor_parallel_size: 2, data_parallel_size: 2 } }\n"


def pd(platform: str = "ascend-a3", version: str = "0.18.0", text: str = PD) -> Plan:
    """One prefill host p, one decode instance over d1 and d2."""
    recipe = HEAD.format(platform=platform, version=version) + text
    hosts = {"prefill": [("p", "10.0.0.1")], "decode": [("d1", "10.0.0.2"), ("d2", "10.0.0.3")]}
    return lay(recipe, {"devices": "0-1"}, **hosts)


def pair(platform: str, version: str = "0.18.0", text: str = PAIR, **data: Any) -> Plan:
    """One instance over the hosts a and b."""
    recipe = HEAD.format(platform=platform, version=version) + text
    return lay(recipe, {"devices": "0-1", **data}, serve=[("a", "10.0.0.1"), ("b", "10.0.0.2")])


def single(platform: str, devices: str = "0-1", size: int = 2, text: str = "") -> Plan:
    """One instance on the host a."""
    recipe = HEAD.format(platform=platform, version="0.18.0")
    text = text or f"roles: {{ serve: {{ tensor_parallel_size: {size} }} }}\n"
    return lay(recipe + text, {"devices": devices}, serve=[("a", "10.0.0.1")])


def shipped() -> list[str]:
    inventories = sorted((Path(__file__).parents[2] / "inventories").glob("*.py"))
    return [str(path) for path in inventories if not path.stem.startswith("lab")]


def device(index: int | str, **changes: Any) -> dict[str, Any]:
    return {"devices": {str(index): changes}}


INSTALLED = ["there", "Driver_Install_Status=complete"]
PROCESS = {"pid": 669096, "name": "VLLMWorker_TP", "memory": 55124}
FABRIC = PAIR.replace("serve: {", "serve: { env: { ASCEND_ENABLE_USE_FABRIC_MEM: 1 },")
GRAPH = PAIR.replace("serve: {", "serve: { args: { compilation-config: { cudagraph_mode: FULL_AND_PIECEWISE } },")
POOL = PAIR.replace("serve: {", "serve: { env: { MOONCAKE_CONFIG_PATH: /etc/mooncake.json },")

# What is wrong -> plan, changes by host, what else is not as it should be, and (rule, severity, host, text).
BROKEN: dict[str, tuple[Plan, dict[str, Any], dict[str, Any], tuple[str, str, str, str]]] = {
    "no npu-smi": (
        single("ascend-a2"), {}, {"without": ["npu-smi", "/etc/ascend_install.info"]},
        ("NPU-TOOL", "error", "a", "npu-smi is not installed"),
    ),
    "no card": (
        single("ascend-a2"), {"a": device("*", present=False)}, {},
        ("NPU-COUNT", "error", "a", "npu-smi finds no NPU"),
    ),
    "a card fell out": (
        single("ascend-a3"), {"a": device(1, present=False)}, {},
        ("NPU-COUNT", "error", "a", "device 1 of the plan is not there"),
    ),
    "two cards fell out": (
        single("ascend-a2", "0-7", 8),
        {"a": {"devices": {"3": {"present": False}, "4": {"present": False}}}}, {},
        ("NPU-COUNT", "error", "a", "devices 3-4 of the plan are not there"),
    ),
    "dcmi -8001": (
        single("ascend-a2"), {"a": {"dcmi_error": -8001}}, {},
        ("NPU-DCMI", "error", "a", "the driver cannot be used"),
    ),
    "dcmi -8005": (
        single("ascend-a2"), {"a": {"dcmi_error": -8005}}, {},
        ("NPU-DCMI", "error", "a", "the devices are held by a container, or npu-smi may not open them"),
    ),
    "dcmi -8020": (
        single("ascend-a3"), {"a": {"dcmi_error": -8020}}, {},
        ("NPU-DCMI", "error", "a", "the devices are in use by a container"),
    ),
    "an A3 for an A2": (
        single("ascend-a2"), {"a": {"family": "ascend-a3"}}, {},
        ("NPU-FAMILY", "error", "a", "this is ascend-a3 (Ascend910), recipe r is for ascend-a2"),
    ),
    "an A2 for an A3": (
        single("ascend-a3"), {"a": {"family": "ascend-a2"}}, {},
        ("NPU-FAMILY", "error", "a", "this is ascend-a2 (910B3), recipe r is for ascend-a3"),
    ),
    "health Warning": (
        single("ascend-a3"), {"a": device(1, health="Warning", error_codes=["80C98009"])}, {},
        ("NPU-HEALTH", "warning", "a", "health of device 1 is Warning, code 80C98009"),
    ),
    "health Alarm": (
        single("ascend-a2"), {"a": device("*", health="Alarm", error_codes=["80E01801"])}, {},
        ("NPU-HEALTH", "error", "a", "health of devices 0-1 is Alarm, code 80E01801"),
    ),
    "health UNKNOWN": (
        single("ascend-a2"), {"a": device(0, health="UNKNOWN")}, {},
        ("NPU-HEALTH", "error", "a", "health of device 0 is UNKNOWN"),
    ),
    "a foreign engine": (
        single("ascend-a3"), {"a": {"devices": {i: {"processes": [PROCESS | {"pid": 70 + int(i)}], "hbm_used": 58000}
                                                for i in "01"}}}, {},
        ("NPU-PROCESS", "error", "a", "processes 70, 71 (VLLMWorker_TP) on devices 0-1, 110248 MB"),
    ),
    "a small foreign process": (
        single("ascend-a2"), {"a": device(0, processes=[PROCESS | {"name": "python", "memory": 120}])}, {},
        ("NPU-PROCESS", "warning", "a", "process 669096 (python) on device 0, 120 MB"),
    ),
    "memory leaked": (
        single("ascend-a2"), {"a": device(1, hbm_used=51200)}, {},
        ("NPU-LEAK", "error", "a", "up to 51200 MB in use on device 1, and no process there"),
    ),
    "a 910B4 has 32 GB": (
        single("ascend-a2"), {"a": device("*", name="910B4", hbm_used=2871, hbm_total=32768)}, {},
        ("NPU-MEMORY", "error", "a",
         "the weights take 27.9 GiB of the 28.7 GiB that the engine may use on each device"),
    ),
    "driver and firmware": (
        single("ascend-a2"), {"a": {"compatibility": "NOK"}}, {},
        ("NPU-FIRMWARE", "error", "a", "driver 25.5.1 and firmware 7.8.0.6.201 do not fit on cards 0-1"),
    ),
    "driver too old": (
        single("ascend-a2"), {"a": {"driver_version": "24.1.rc3.7"}}, {},
        ("NPU-CANN", "error", "a", "driver 24.1.rc3.7 does not carry CANN 8.5.1 of vllm-ascend 0.18.0"),
    ),
    "fabric memory": (
        pair("ascend-a3", "0.20.2rc1", FABRIC), {"all": {"driver_version": "25.3.RC1"}}, {},
        ("NPU-HDK", "error", "a", "Mooncake over fabric memory (ASCEND_ENABLE_USE_FABRIC_MEM) needs HDK 26.0, or 25.5 "
         "with Mooncake 0.3.11, this is 25.3.RC1"),
    ),
    "whole and piecewise graphs": (
        single("ascend-a2", text=GRAPH.replace("data_parallel_size: 2", "data_parallel_size: 1")),
        {"a": {"driver_version": "25.5.0"}}, {},
        ("NPU-HDK", "error", "a", "cudagraph_mode FULL_AND_PIECEWISE needs HDK 25.5.1, this is 25.5.0"),
    ),
    "a pool on A2": (
        single("ascend-a2", text=POOL.replace("data_parallel_size: 2", "data_parallel_size: 1")),
        {"a": {"driver_version": "25.3.RC1"}}, {},
        ("NPU-HDK", "warning", "a",
         "more than 32 GB of host memory registered per NPU on A2 needs HDK 25.5.0, this is 25.3.RC1"),
    ),
    "no install info": (
        single("ascend-a2"), {}, {"without": ["/etc/ascend_install.info"]},
        ("NPU-INSTALL", "error", "a", "/etc/ascend_install.info is missing"),
    ),
    "half installed": (
        single("ascend-a3"), {"a": {"install_status": "uncomplete"}}, {},
        ("NPU-INSTALL", "error", "a", "/etc/ascend_install.info says Driver_Install_Status=uncomplete"),
    ),
    "another driver": (
        pair("ascend-a2"), {"b": {"driver_version": "25.3.RC1"}}, {},
        ("NPU-DRIVER", "error", "b", "driver 25.3.RC1, a has 25.5.1"),
    ),
    "another driver in a set": (
        pd(), {"p": {"driver_version": "25.3.RC1"}}, {},
        ("NPU-DRIVER", "error", "p", "driver 25.3.RC1, d1 has 25.5.1"),
    ),
    "no hccn.conf": (
        pd(), {"d2": {"hccn_conf": False}}, {},
        ("NPU-HCCN-CONF", "error", "d2", "/etc/hccn.conf is missing"),
    ),
    "a link is down": (
        pair("ascend-a2"), {"b": device(1, link="DOWN")}, {},
        ("NPU-LINK", "error", "b", "the link of device 1 is DOWN"),
    ),
    "a link is down on A3": (
        pair("ascend-a3"), {"b": device("*", link="DOWN")}, {},
        ("NPU-LINK", "warning", "b", "the link of devices 0-1 is DOWN"),
    ),
    "a super pod's link is down": (
        pair("ascend-a3"), {"a": device(0, vnic_link="DOWN")}, {},
        ("NPU-LINK", "error", "a", "the super pod's link of device 0 is DOWN"),
    ),
    "net health Init": (
        pair("ascend-a2"), {"a": device("*", netdetect=None)}, {},
        ("NPU-NET", "warning", "a", "net health of devices 0-1 is Init"),
    ),
    "net health times out": (
        pair("ascend-a3"), {"a": device(1, net_health="Receive timeout")}, {},
        ("NPU-NET", "warning", "a", "net health of device 1 is Receive timeout"),
    ),
    "TLS mixed in a host": (
        pair("ascend-a2"), {"b": device(0, tls=1)}, {},
        ("NPU-TLS", "error", "b", "TLS is off for device 1 and on for the rest"),
    ),
    "TLS differs between hosts": (
        pair("ascend-a3"), {"b": device("*", tls=1)}, {},
        ("NPU-TLS", "error", "b", "TLS is on for its NPUs, a has it off"),
    ),
    "TLS differs in a set": (
        pd(), {"p": device("*", tls=1)}, {},
        ("NPU-TLS", "error", "p", "TLS is on for its NPUs, d1 has it off"),
    ),
    "no address": (
        pair("ascend-a2"), {"a": device(1, ip=None)}, {},
        ("NPU-ADDRESS", "error", "a", "no address in the NPUs' network for device 1"),
    ),
    "an address twice": (
        pair("ascend-a2"), {"b": device(0, ip="10.30.0.12")}, {},
        ("NPU-ADDRESS", "error", "b", "device 0 has the address 10.30.0.12, and so has one of a"),
    ),
    "another subnet without a way": (
        pair("ascend-a2"), {"b": {"devices": {"0": {"ip": "10.31.1.11", "gateway": None},
                                              "1": {"ip": "10.31.1.12", "gateway": None}}}}, {},
        ("NPU-SUBNET", "error", "b", "devices 0-1 in 10.31.0.0/16, on a in 10.30.0.0/16"),
    ),
    "another subnet": (
        pair("ascend-a2"), {"b": device(0, ip="10.31.1.11", gateway="10.31.255.254")}, {},
        ("NPU-SUBNET", "warning", "b", "device 0 in 10.31.0.0/16, on a in 10.30.0.0/16"),
    ),
    "another super pod": (
        pair("ascend-a3"), {"b": {"super_pod_id": 7}}, {},
        ("NPU-POD", "error", "b", "super pod 7, a is in 0, both are of serve-0"),
    ),
    "prefill in another super pod": (
        pd(), {"p": {"super_pod_id": 7}}, {},
        ("NPU-POD", "warning", "p", "super pod 7, d1 is in 0, both are of set-0"),
    ),
    "a server index twice": (
        pair("ascend-a3"), {"b": {"server_index": 0}}, {},
        ("NPU-SDID", "error", "b", "server index 0 of its super pod, and so has a"),
    ),
    "no hccn_tool": (
        pair("ascend-a2"), {}, {"without": ["hccn_tool"]},
        ("NPU-TOOL", "error", "a", "hccn_tool is not installed, or not in a place where the driver puts it"),
    ),
}  # fmt: skip
FOLDED = {"no hccn_tool", "fabric memory"}  # said of each host alike


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_told_and_nothing_else(name: str) -> None:
    plan, changes, kept, (rule, severity, where, what) = BROKEN[name]
    found = [(f.rule, f.severity, f.where, f.what) for f in judge(plan, changes, **kept)]
    hosts = [n.name for n in plan.fleet.nodes] if name in FOLDED else [where]
    assert found == [(rule, severity, host, what) for host in hosts]


@pytest.mark.parametrize(
    "plan",
    [single("ascend-a2"), single("ascend-a3"), pair("ascend-a2"), pair("ascend-a3"), pd("ascend-a2"), pd(),
     single("ascend-a2", "0-7", 8),
     single("ascend-a3", "0-15", 16)],
)  # fmt: skip
def test_a_healthy_fleet_breaks_no_rule(plan: Plan) -> None:
    assert lines(plan) == []


@pytest.mark.parametrize("path", shipped(), ids=lambda path: Path(path).stem)
def test_every_shipped_inventory_is_content_with_healthy_hosts(path: str) -> None:
    plan = plan_of(path)
    small = {"name": "910B4", "hbm_used": 2871, "hbm_total": 32768}
    assert lines(plan, {"all": {"devices": {"*": small}}} if path.endswith("a2-32g.py") else {}) == []


def test_the_lines_that_are_printed() -> None:
    assert lines(pair("ascend-a2"), {"b": device(1, health="Alarm", error_codes=["80E01801"], tls=1)}) == [
        "error: b: health of device 1 is Alarm, code 80E01801; npu-smi info -t health -i <card> -c <chip> tells the "
        "code; look it up in the health manual, then repair [NPU-HEALTH]",
        "error: b: TLS is on for device 1 and off for the rest (NPUs whose switches differ do not connect: EI0006 or "
        "EI0016 after 120 s); hccn_tool -i <device> -tls -s enable 0, for all NPUs of all hosts alike [NPU-TLS]",
    ]


def test_what_a_host_answers() -> None:
    plan = pair("ascend-a3")
    state = state_of(plan, plan.fleet.node("b"), 1)
    assert isinstance(state, npu.State)
    assert (state.dies, state.driver, state.install, state.hccn_conf, state.hccn) == (
        True, "25.5.1", "complete", True, None)  # fmt: skip
    assert state.chip(1) == npu_table.Chip(1, 0, 1, "Ascend910", "OK", 3186, 65536)
    assert state.boards == {0: npu_table.Board("25.5.1", "7.8.0.6.201", "OK")}
    assert (state.pod, state.server) == ("0", 1)
    assert npu.parse({"npu-spod": ["SDID : 12582912"]}).server == 3
    assert state.ports[1] == hccn.Port("UP", "Success", "192.1.3.198", "255.0.0.0", vnic="UP", tls=0)


def test_processes_start_the_tools_as_a_host_does(tmp_path: Path) -> None:
    plan = pair("ascend-a2")
    node = plan.fleet.node("a")
    one = scenario("ascend-a2", {"hccn_busy_ms": 0})
    state = npu.parse(ask("; ".join(npu.sections(plan, node)), tmp_path, one, processes=True))
    assert state == state_of(plan, node)


def test_a_single_host_is_not_asked_for_its_network() -> None:
    plan = single("ascend-a3")
    text = "; ".join(npu.sections(plan, plan.fleet.node("a")))
    assert "hccn" not in text and "spod" not in text
    assert lines(plan, {"a": device("*", link="DOWN", tls=1) | {"hccn_conf": False}}) == []


@pytest.mark.parametrize(("runs", "asked"), [(True, False), (False, True)])
def test_a_run_asks_for_the_network_only_where_the_service_does_not_run(
    runs: bool, asked: bool, tmp_path: Path
) -> None:
    plan = pair("ascend-a2")
    text = "; ".join(npu.sections(plan, plan.fleet.node("a"), whole=False))
    systemctl = f"exit {0 if runs else 3}"
    state = npu.parse(ask(text, tmp_path, scenario("ascend-a2", {"hccn_busy_ms": 0}), systemctl=systemctl))
    assert (bool(state.ports), state.hccn, state.hccn_conf) == (asked, None, True)
    assert npu.judge(plan, plan.fleet.node("a"), state, frozenset()) == []
    assert "systemctl" not in "; ".join(npu.sections(plan, plan.fleet.node("a")))


def test_devices_of_another_service_are_not_looked_at() -> None:
    sick = {"health": "Alarm", "hbm_used": 60000, "link": "DOWN", "processes": [PROCESS]}
    assert lines(pair("ascend-a2"), {"a": {"devices": {"5": sick}}}) == []


def test_our_own_processes_are_not_foreign_and_their_memory_not_leaked() -> None:
    mine = {"a": {"devices": {i: {"processes": [PROCESS | {"pid": 70 + int(i)}], "hbm_used": 58000} for i in "01"}}}
    assert lines(single("ascend-a3"), mine, ours=[70, 71]) == []


def test_small_contexts_of_our_ranks_on_device_0_are_no_leak() -> None:
    """Failure 49: up to 0.18 each rank leaves a small context on device 0 besides its own."""
    zero = [PROCESS | {"pid": 70}, PROCESS | {"pid": 71, "memory": 150}]
    one = [PROCESS | {"pid": 71}]
    both = {"0": {"processes": zero, "hbm_used": 58000}, "1": {"processes": one, "hbm_used": 58000}}
    assert lines(single("ascend-a2"), {"a": {"devices": both}}, ours=[70, 71]) == []


def test_compatibility_that_is_not_known_is_no_fault() -> None:
    for word in ("UNKNOWN", "NOT SUPPORT"):
        assert lines(single("ascend-a2"), {"a": {"compatibility": word}}) == []


def test_fabric_memory_with_a_driver_that_needs_no_newer_mooncake() -> None:
    plan = pair("ascend-a3", "0.20.2rc1", FABRIC)
    assert lines(plan, {"all": {"driver_version": "26.0.RC1"}}) == []
    assert len(lines(plan, {"all": {"driver_version": "25.5.1"}})) == 2  # its Mooncake is 0.3.8
    assert lines(pair("ascend-a3", "0.23.0", FABRIC), {"all": {"driver_version": "25.5.1"}}) == []


def test_two_super_pods_may_count_alike() -> None:
    """An index is that of a super pod."""
    found = judge(pair("ascend-a3"), {"b": {"server_index": 0, "super_pod_id": 7}})
    assert [f.rule for f in found] == ["NPU-POD"]


def table(name: str) -> npu.State:
    return npu.parse({"npu": (DATA / name).read_text().splitlines()})


def test_the_wide_table_of_npu_smi_26() -> None:
    state = table("npu-smi-26.txt")
    assert [(c.index, c.name, c.health, c.hbm_used, c.hbm_total) for c in state.chips] == [
        (0, "910B4", "OK", 8676, 32768),
        (1, "910B4", "OK", 2871, 32768),
    ]
    assert state.processes == (npu_table.Process(0, 485946, "python3", 5175),)
    assert state.version == "26.0.rc1"


def test_the_table_of_another_product_is_told_as_not_understood() -> None:
    state = table("npu-smi-310.txt")
    assert state.chips == ()
    plan = single("ascend-a2")
    found = npu.judge(plan, plan.fleet.node("a"), state, frozenset())
    assert [(f.rule, f.severity) for f in found if f.rule != "NPU-INSTALL"] == [("NPU-TOOL", "warning")]


@pytest.mark.parametrize(
    "answer",
    [
        [], [""], ["| | |"], ["|", "| NPU Name | Health |", "rc 0"], ["rc x"], ["\x00\x1b[31m|", "| 0 910B3 |"],
        ["| 0     910B3               | OK            | 93.1  |", "| 0 | 0000:C1:00.0 |"],
        ["| NPU     Chip              | Process id    |", "| 0 0 | 12 |", "| x | y |"],
    ],
)  # fmt: skip
def test_garbage_is_read_without_a_traceback(answer: list[str]) -> None:
    plan = pair("ascend-a3")
    names = ("npu", "npu-health", "npu-board", "npu-spod", "npu-install", "npu-hccn", "npu-hccn-conf")
    for sections in ({name: answer for name in names}, {"npu": answer}):
        state = npu.parse(sections)
        npu.judge(plan, plan.fleet.node("a"), state, frozenset())
        npu.between(plan, {"a": state, "b": npu.parse({})})


def test_an_old_driver_tells_tls_shorter() -> None:
    _, _, ports = hccn.parse({"npu-hccn": ["-- 0 tls", "dev_id:0, tls switch[1](0:disable, 1:enable)", "rc 0"]})
    assert ports[0].tls == 1


def test_a_tool_that_stays_busy() -> None:
    busy = ["-- 0 link", "hccn_tool is busy, please try again.", "rc 1"]
    assert hccn.parse({"npu-hccn": busy * 4})[1] == "hccn_tool goes on saying that it is busy"
    again = [*busy, "-- 0 link", "link status: UP", "rc 0"]
    assert hccn.parse({"npu-hccn": again})[1:] == (None, {0: hccn.Port("UP")})


def test_a_tool_that_hangs_does_not_hang_the_snapshot(tmp_path: Path) -> None:
    """One that ends by nothing but SIGKILL, and one whose output a child keeps open: both asked at once."""
    for name, script in {"deaf": "trap '' TERM; sleep 60 & wait; sleep 60", "held": "setsid sleep 9 & exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    begin = time.monotonic()
    started = {
        name: subprocess.Popen(["sh", "-c", f"{ASKING}; ask 1 {tmp_path}/{name}; echo \"said $?\""], text=True,
                               stdout=subprocess.PIPE)
        for name in ("deaf", "held")
    }  # fmt: skip
    said = {name: process.communicate(timeout=30)[0].splitlines()[-2:] for name, process in started.items()}
    assert time.monotonic() - begin < 10
    assert said == {"deaf": ["rc 137", "said 9"], "held": ["rc 0", "said 0"]}
    assert asking.late(said["deaf"])


def test_a_tool_that_nobody_can_end_is_left_behind(tmp_path: Path) -> None:
    real = shutil.which("timeout")
    (tmp_path / "timeout").write_text(f'#!/bin/sh\ncase "$*" in (*cat) exec {real} "$@";; esac\nexec sleep 20\n')
    (tmp_path / "timeout").chmod(0o755)
    begin = time.monotonic()
    text = f'{ASKING}; ask 0 npu-smi info; echo "said $?"'
    done = subprocess.run(["sh", "-c", text], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True,
                          text=True)  # fmt: skip
    assert (done.stdout.split("\n"), done.stderr) == (["", "rc 124", "said 9", ""], "")
    assert time.monotonic() - begin < 10


def test_an_answer_of_hccn_tool_that_is_not_understood_is_told() -> None:
    rubbish = {"npu-hccn": ["-- 0 link", "rubbish", "rc 0", "-- 0 net_health", "rc 0"]}
    assert hccn.parse(rubbish)[1] == "hccn_tool's answer is not understood: rubbish"


def test_no_answer_in_time_is_told() -> None:
    plan = single("ascend-a2")
    found = npu.judge(plan, plan.fleet.node("a"), npu.parse({"npu": ["rc 137"], "npu-install": INSTALLED}), frozenset())
    assert [f.what for f in found] == ["npu-smi gave no answer in 20 s"]
    _, trouble, ports = hccn.parse({"npu-hccn": ["-- 0 link", "link status: UP", "rc 0", "-- 0 tls", "rc 124"]})
    assert (trouble, ports[0].link, ports[0].tls) == ("hccn_tool gave no answer in time", "UP", None)


def test_the_host_that_differs_from_most_is_named() -> None:
    assert common.odd({"a": 1, "b": 2, "c": 2, "d": None}) == [("a", 1, "b", 2)]
    assert common.odd({"a": 1, "b": 2}) == [("b", 2, "a", 1)]
    assert common.odd({"a": 1, "b": None}) == []


def test_a_plan_for_cpus_has_no_devices_to_look_at() -> None:
    text = (
        "title: t\nsource: s\nplatform: cpu\nmodel: { name: m, max_position_embeddings: 8 }\nengine: { vllm: 0.18.0 }\n"
    )
    plan = lay(f"{text}roles: {{ serve: {{}} }}\n", {}, serve=[("a", "10.0.0.1")])
    assert devices.sections(plan, plan.fleet.node("a")) == []
    assert devices.parse({"uid": ["0"]}) is None
    assert devices.judge(plan, plan.fleet.node("a"), None, frozenset()) == devices.between(plan, {"a": None}) == []


def test_what_the_tool_says_besides_its_table_hides_no_chip() -> None:
    lines = (DATA / "npu-smi-26.txt").read_text().splitlines()
    said = npu.parse({"npu": ["DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)", *lines], "npu-install": INSTALLED})
    plan = single("ascend-a2")
    found = npu.judge(plan, plan.fleet.node("a"), said, frozenset([485946]))
    assert [f.rule for f in found] == ["NPU-MEMORY"]


def test_memory_in_use_while_our_engine_runs_refuses_no_second_run() -> None:
    """A tool that does not list what runs in a container shows its memory without a process."""
    plan = single("ascend-a2")
    node = plan.fleet.node("a")
    state = state_of(plan, node, changes={"a": device(1, hbm_used=51200)})
    found = devices.judge(plan, node, state, frozenset(), serving=True)
    assert [(f.rule, f.severity) for f in found] == [("NPU-LEAK", "warning")]
