"""Restarts: which hosts together, which not at all, and the note that outlives a cut run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from fleet.prepare import common, reboots
from fleet.prepare.common import Host, Work
from fleet.topology import Plan
from tests.unit.plans import lay

RECIPE = """
title: t
source: tests
platform: cpu
model: {name: m, max_position_embeddings: 4096}
engine: {vllm: 0.32.0}
roles: {serve: {data_parallel_size: 2}}
"""
FOUR = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


def plan_of(**data: object) -> Plan:
    return lay(RECIPE, data, serve=FOUR)


def work(plan: Plan, **host: object) -> Work:
    return Work(plan, plan.fleet.nodes[0], Host(**host), {})  # type: ignore[arg-type]


def test_so_many_hosts_restart_at_once() -> None:
    assert reboots.waves(plan_of(reboot_at_once=3)) == (tuple(FOUR[:3]), ("10.0.0.4",))


def test_hosts_that_serve_go_one_instance_at_a_time() -> None:
    assert reboots.waves(plan_of(reboot="even-if-serving")) == (tuple(FOUR[:2]), tuple(FOUR[2:]))


def test_a_host_that_needs_no_restart_is_let_go_on() -> None:
    assert reboots.refuse(work(plan_of(reboot="never"))) == []


def test_a_restart_that_the_inventory_forbids_is_told_with_its_reason() -> None:
    (found,) = reboots.refuse(work(plan_of(reboot="never"), reboot=("driver 25.5.1",)))
    assert found.line() == (
        "error: 10.0.0.1: it must be restarted: driver 25.5.1; restart it, and run this again; or leave reboot out of "
        "the inventory [REBOOT-NEEDED]"
    )


def test_a_host_that_serves_is_not_restarted_unless_told() -> None:
    busy = {"reboot": ("driver 25.5.1",), "serving": ("vllm-serve-0.service",)}
    (found,) = reboots.refuse(work(plan_of(), **busy))
    assert (found.rule, "vllm-serve-0.service serves" in found.what) == ("REBOOT-SERVING", True)
    assert reboots.refuse(work(plan_of(reboot="even-if-serving"), **busy)) == []


def noted(folder: Path, *reasons: str) -> list[str]:
    """The note after these reasons, written by the shell text itself."""
    for reason in reasons:
        text = reboots.note(reason).replace(common.KEPT, str(folder))
        subprocess.run(["sh", "-c", text], check=True, timeout=10)
    return (folder / "reboot-needed").read_text().splitlines()


def test_the_note_begins_with_the_boot_and_holds_each_reason_once(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert noted(tmp_path, "driver's module", "firmware", "driver's module") == [boot, "firmware", "driver's module"]
    said = {"system": [f"boot {boot}"], "rebootnote": [boot, "firmware"]}
    assert common.parse(said).reboot == ("firmware",)


def test_a_note_of_an_earlier_boot_is_void(tmp_path: Path) -> None:
    (tmp_path / "reboot-needed").write_text("another-boot\ndriver\n")
    assert common.parse({"system": ["boot now"], "rebootnote": ["another-boot", "driver"]}).reboot == ()
    assert noted(tmp_path, "firmware")[1:] == ["firmware"]


def test_a_file_on_the_host_is_taken_before_one_in_the_bundle(tmp_path: Path) -> None:
    from fleet.bundle import Bundle, File

    (tmp_path / "a.run").write_text("12345")
    its = work(plan_of(), files={"/mnt/b/a.run": 5})
    its = replace(its, bundle=Bundle(tmp_path, (File(tmp_path / "a.run", 5, "ff"),)))
    found = its.find("a*.run")
    assert found and (found.path, found.upload, found.sha256) == ("/mnt/b/a.run", None, "ff")
    its = replace(its, host=Host(files={"/mnt/b/a.run": 4}))
    found = its.find("a*.run")
    assert found and (found.path, found.upload) == ("/var/lib/vllm-fleet/bundle/a.run", tmp_path / "a.run")
    assert its.find("b*.run") is None


def test_a_brought_file_is_looked_at_and_sent_again_where_it_is_not_right(tmp_path: Path) -> None:
    """A host that died wrote a file of the right size with something else in it."""
    from fleet.bundle import Bundle, File

    path = f"{common.BROUGHT}/a.run"
    its = work(plan_of(), files={path: 5})
    assert (found := its.find("a*.run")) and found.upload is None, "without a bundle there is nothing to send"
    its = replace(its, bundle=Bundle(tmp_path, (File(tmp_path / "a.run", 5, "ff"),)))
    assert (found := its.find("a*.run")) and (found.path, found.upload) == (path, tmp_path / "a.run")


def test_a_boot_that_another_run_has_ended_already_is_not_ended_again(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "setsid"):
        tool = tmp_path / "bin" / name
        tool.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/called\n")
        tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    text = reboots.command("another-boot")
    subprocess.run(["sh", "-c", text], check=True, timeout=10, env=environment)
    assert not (tmp_path / "called").exists()


NPU = RECIPE.replace("platform: cpu", "platform: ascend-a2").replace(
    "{vllm: 0.32.0}", "{vllm: 0.23.0, vllm_ascend: 0.23.0}"
)


def waited_for(tmp_path: Path, answers: str) -> tuple[int, str]:
    """Exit code of the wait for the devices, and how often the tool was asked; it answers as the script says."""
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\nn=$(wc -l <{tmp_path}/asked)\n{answers}\n")
    tool.chmod(0o755)
    plan = lay(NPU.replace("data_parallel_size: 2", "tensor_parallel_size: 8"), {}, serve=["10.0.0.1"])
    text = reboots.devices(work(plan)).replace("sleep 2", "sleep 0.01").replace("+ 300", "+ 2")
    done = subprocess.run(["sh", "-c", f"PATH={tmp_path}:$PATH; {text}"], timeout=20, check=False)
    return done.returncode, (tmp_path / "asked").read_text().count("asked") if (tmp_path / "asked").exists() else 0


def test_npus_that_boot_a_system_of_their_own_are_waited_for(tmp_path: Path) -> None:
    assert waited_for(tmp_path, "test $n -gt 3") == (0, 4)


def test_npus_that_never_answer_are_waited_for_to_an_end(tmp_path: Path) -> None:
    code, asked = waited_for(tmp_path, "exit 1")
    assert code == 0 and asked > 4


def test_a_host_without_engines_has_no_devices_to_wait_for() -> None:
    plan = lay(
        NPU.replace("data_parallel_size: 2", "tensor_parallel_size: 8"), {}, serve=["10.0.0.1"], proxy=["10.0.0.2"]
    )
    assert reboots.devices(Work(plan, plan.fleet.nodes[1], Host(), {})) == ""
