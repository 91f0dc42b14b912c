"""Driver and firmware of Atlas hosts: what is installed when, in which order, what is refused, what each end means."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fleet import snapshot
from fleet.machine.npu_table import Board, Chip, Process
from fleet.machine.npu_table import State as Table
from fleet.prepare import ascend, ascend_run, kernel_modules
from fleet.prepare.ascend_run import older, same
from fleet.prepare.ascend_state import State
from fleet.prepare.common import Outcome, Source, Work
from fleet.prepare.kernel_modules import State as Kernel
from fleet.snapshot import MARK
from fleet.stacks import Stack
from tests.unit import answers
from tests.unit.answers import ask
from tests.unit.drivers import bundle_of, calls, names, plan_of, sh, stack_of, told, tool, work_of

DRIVER = "Atlas-A3-hdk-npu-driver_25.5.1_linux-aarch64.run"
FIRMWARE = "Atlas-A3-hdk-npu-firmware_7.8.0.6.201.run"
A3 = plan_of("ascend-a3")


def row(driver: str = "25.5.1", firmware: str = "7.8.0.6.201") -> Stack:
    """A row of the catalogue; * where it leaves a version to the vendor."""
    return stack_of(
        "ascend-a3",
        driver={"version": driver, "packages": [{"pattern": f"*A3*npu-driver_{driver}_linux*{{arch}}.run"}]},
        firmware={"version": firmware, "packages": [{"pattern": f"*A3*npu-firmware_{firmware}.run"}]},
    )


ROW = row()
INFO = {
    "UserName": "HwHiAiUser",
    "UserGroup": "HwHiAiUser",
    "Driver_Install_Path_Param": "/usr/local/Ascend",
    "Driver_Install_Status": "complete",
}
USER = {"HwHiAiUser": frozenset({"HwHiAiUser"})}
CHIPS = tuple(Chip(i, i // 2, i % 2, "Ascend910", "OK", 3000, 65536) for i in range(16))
BARE = State(groups=USER, has_group=frozenset({"HwHiAiUser"}))


def table(driver: str = "25.5.1", firmware: str = "7.8.0.6.201", fit: str = "OK", **more: Any) -> Table:
    """What npu-smi says of eight cards."""
    return Table(True, False, chips=CHIPS, boards={card: Board(driver, firmware, fit) for card in range(8)}, **more)


def there(driver: str = "25.5.1", firmware: str = "7.8.0.6.201", **more: Any) -> State:
    """A host where these are installed and run."""
    return replace(
        BARE, table=table(driver, firmware), driver=driver, firmware=firmware, running=driver, info=INFO, **more
    )


def host(state: State, stack: Any = ROW, packages: Sequence[str] = (DRIVER, FIRMWARE), **facts: Any) -> Work:
    return work_of(A3, state, stack, "ascend", bundle_of(*packages), **facts)


# ---- versions


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("25.3.RC1", "25.3.0"),
        ("25.3.rc1", "25.3"),
        ("25.3.0", "25.5.1"),
        ("25.3.RC1", "25.3.RC1.2"),
        ("25.3.RC1", "25.3.RC2"),
        ("24.1.rc3.7", "24.1.0"),
        ("25.5.0", "25.5.1"),
        ("25.5.9", "25.5.10"),
        ("25.5.2", "26.0.RC1"),
        ("7.7.0.9.220", "7.8.0.6.201"),
        ("8.5.0.alpha001", "8.5.0.beta1"),
        ("8.5.0-beta.1", "8.5.0"),
        ("8.1.RC1.beta1", "8.1.RC1"),
        ("8.3.RC2", "8.5.0"),
    ],
)
def test_versions_have_an_order(first: str, second: str) -> None:
    assert older(first, second)
    assert not older(second, first)


@pytest.mark.parametrize(
    ("first", "second"), [("25.3.rc1", "25.3.RC1"), ("25.5", "25.5.0"), ("7.7.0.9.B220", "7.7.0.9.220")]
)
def test_one_version_is_written_in_several_ways(first: str, second: str) -> None:
    assert same(first, second)
    assert not older(first, second)
    assert not older(second, first)


def test_what_is_not_known_is_no_version() -> None:
    assert not same(None, "25.5.1")
    assert not same("", "")


# ---- what is installed, and in which order


def test_a_bare_host_gets_the_user_then_driver_then_firmware() -> None:
    assert names(ascend.steps(host(State()))) == [
        "user HwHiAiUser in group HwHiAiUser (the driver belongs to it)",
        "driver 25.5.1 (there is none)",
        "firmware 7.8.0.6.201 (there is none)",
    ]


def test_over_an_older_one_the_firmware_goes_first() -> None:
    steps = ascend.steps(host(there("25.3.RC1", "7.7.0.9.220")))
    assert names(steps) == ["firmware 7.8.0.6.201 (there is 7.7.0.9.220)", "driver 25.5.1 (there is 25.3.RC1)"]
    assert [s.name for step in steps for s in step.sources] == [FIRMWARE, DRIVER]
    assert "run --upgrade --quiet" in steps[0].script
    assert "run --upgrade --quiet" in steps[1].script


def test_the_first_driver_is_for_all_users() -> None:
    driver, firmware = ascend.steps(host(BARE))
    assert "run --full --install-for-all --quiet" in driver.script
    assert "run --full --quiet" in firmware.script


def test_a_second_run_has_nothing_to_do() -> None:
    assert ascend.steps(host(there())) == []
    assert ascend.refuse(host(there())) == []
    assert ascend.pending(host(there())) == ""


def test_another_spelling_of_the_same_version_is_left() -> None:
    assert ascend.steps(host(there("25.3.rc1"), row("25.3.RC1"))) == []


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (
            replace(there(), info={**INFO, "Driver_Install_Status": "uncomplete"}),
            "driver 25.5.1 (there is 25.5.1, and its installation did not come to its end)",
        ),
        (
            replace(BARE, info=INFO, firmware="7.8.0.6.201"),  # cut: the installer takes version.info away first
            "driver 25.5.1 (there is none, and its installation did not come to its end)",
        ),
    ],
)
def test_a_half_installation_is_repaired_whole(found: State, name: str) -> None:
    (step,) = ascend.steps(host(found))
    assert step.name == name
    assert "run --full --install-for-all --quiet" in step.script


def test_a_driver_whose_module_is_gone_is_installed_again() -> None:
    broken = replace(there(), running=None, table=Table(True, False, ("dcmi module initialize failed. ret is -8001",)))
    assert names(ascend.steps(host(broken))) == ["driver 25.5.1 (npu-smi cannot use the one there is)"]


def test_while_a_restart_is_due_nothing_is_installed_twice() -> None:
    """Installed a moment ago: npu-smi still answers as before, or not at all."""
    before = replace(there(), running="25.3.RC1", table=table("25.3.RC1", "7.7.0.9.220"))
    silent = replace(there(), running=None, table=Table(True, False, ("dcmi ... ret is -8001",)))
    due = {"reboot": ("driver 25.5.1 takes effect with the next start",)}
    assert ascend.steps(host(before, **due)) == []
    assert ascend.steps(host(silent, **due)) == []
    assert ascend.steps(host(replace(silent, fresh=True))) == []


def test_a_missing_firmware_alone_is_installed() -> None:
    found = replace(there(), firmware=None, table=table(firmware="7.1.0.4.220"))
    assert names(ascend.steps(host(found))) == ["firmware 7.8.0.6.201 (there is 7.1.0.4.220)"]


def test_firmware_that_the_cards_run_needs_no_file() -> None:
    assert ascend.steps(host(replace(there(), firmware=None))) == []


def test_a_row_without_a_number_takes_the_package_at_hand() -> None:
    """The vendor does not publish the firmware's number: the package of the same release brings it."""
    old, new = there(firmware="7.7.0.9.220"), there(firmware="7.9.0.1.200")
    loose = row(firmware="*")
    assert names(ascend.steps(host(old, loose))) == ["firmware 7.8.0.6.201 (there is 7.7.0.9.220)"]
    assert ascend.steps(host(new, loose)) == []
    assert ascend.steps(host(old, loose, [DRIVER])) == []
    assert ascend.refuse(host(new, loose)) == []


def test_a_row_without_a_number_needs_some_firmware() -> None:
    (finding,) = ascend.refuse(host(BARE, row(firmware="*"), [DRIVER]))
    assert finding.what == "firmware * must be installed, and no file *A3*npu-firmware_*.run is at hand"


def test_the_kernel_is_held_once() -> None:
    kernels = ("linux-generic", "linux-image-5.15.0-25-generic")
    loose = replace(there(), kernel=Kernel(kernels=kernels, held=frozenset({"linux-generic"})))
    (step,) = ascend.steps(host(loose))
    assert step.name == "kernel 5.15.0-25-generic held (driver 25.5.1 is built for it)"
    assert "apt-mark hold linux-generic linux-image-5.15.0-25-generic" in step.script
    assert ascend.steps(host(replace(loose, kernel=Kernel(kernels=kernels, held=frozenset(kernels))))) == []
    assert ascend.steps(host(loose, in_container=True)) == []


def test_the_kernel_is_held_with_dnf() -> None:
    loose = replace(there(), kernel=Kernel(kernels=("kernel", "kernel-core")))
    (step,) = ascend.steps(host(loose, family="redhat"))
    assert "dnf -q versionlock add kernel kernel-core" in step.script


def test_the_user_of_an_earlier_installation_is_kept() -> None:
    other = replace(BARE, info={"UserName": "npu", "UserGroup": "npus"})
    step = ascend.steps(host(other))[0]
    assert step.name == "user npu in group npus (the driver belongs to it)"
    assert "useradd -g npus -d /home/npu -m npu -s /bin/bash" in step.script


def test_a_user_outside_its_group_is_put_into_it(tmp_path: Path) -> None:
    tool(tmp_path, "getent", "exit 0")
    tool(tmp_path, "id", 'echo HwHiAiUser >/dev/null; test "$1" != -nG || echo users')
    tool(tmp_path, "usermod", f'echo "$@" >>{tmp_path}/calls')
    step = ascend.steps(host(State()))[0]
    assert sh(step.script, tmp_path)[0] == 0
    assert calls(tmp_path) == ["-a -G HwHiAiUser HwHiAiUser"]


def test_a_missing_user_is_made_with_its_group(tmp_path: Path) -> None:
    tool(tmp_path, "getent", "exit 2")
    tool(tmp_path, "id", f'test "$1" != -nG && exit 1; grep -q user {tmp_path}/calls && echo HwHiAiUser')
    for name in ("groupadd", "useradd"):
        tool(tmp_path, name, f'echo {name} "$@" >>{tmp_path}/calls')
    assert sh(ascend.steps(host(State()))[0].script, tmp_path)[0] == 0
    assert calls(tmp_path) == [
        "groupadd HwHiAiUser",
        "useradd -g HwHiAiUser -d /home/HwHiAiUser -m HwHiAiUser -s /bin/bash",
    ]


# ---- what is refused


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (
            host(there("25.3.RC1"), serving=("vllm-serve-0.service",)),
            "error: 10.0.0.11: vllm-serve-0.service serves, and driver 25.5.1 must be installed (requests in flight "
            "would be lost); drain the host, systemctl stop vllm-serve-0.service, then run this again [DRIVER-BUSY]",
        ),
        (
            host(replace(there("25.3.RC1"), table=table("25.3.RC1", processes=(Process(0, 71, "python", 900),)))),
            "error: 10.0.0.11: process 71 (python) on the NPUs, and driver 25.5.1 must be installed (modules that are "
            "in use cannot be exchanged); end what is there, then run this again [DRIVER-BUSY]",
        ),
        (
            host(there("25.3.RC1", containers=("notebook",))),
            "error: 10.0.0.11: NPUs are held by container notebook, and driver 25.5.1 must be installed (modules that "
            "are in use cannot be exchanged); docker stop notebook, then run this again [DRIVER-BUSY]",
        ),
        (
            host(there("25.3.RC1", installers=(DRIVER,))),
            f"error: 10.0.0.11: {DRIVER} is being installed by somebody (two installers at once leave neither's work "
            "whole); wait until it has ended, and run this again [DRIVER-BUSY]",
        ),
        (
            host(there("26.0.RC1")),
            "error: 10.0.0.11: driver 26.0.RC1 is newer than the 25.5.1 of catalogue row (an older one over a newer "
            "one is not what the vendor tests); name a row with this version or a newer one; or uninstall it by hand, "
            "restart, and run this again [DRIVER-DOWNGRADE]",
        ),
        (
            host(there(firmware="7.9.0.1.200")),
            "error: 10.0.0.11: firmware 7.9.0.1.200 is newer than the 7.8.0.6.201 of catalogue row (an older one over "
            "a newer one is not what the vendor tests); name a row with this version or a newer one; or uninstall it "
            "by hand, restart, and run this again [DRIVER-DOWNGRADE]",
        ),
        (
            host(there("25.3.RC1"), packages=[DRIVER.replace("aarch64", "x86_64")]),
            "error: 10.0.0.11: driver 25.5.1 must be installed, and no file *A3*npu-driver_25.5.1_linux*aarch64.run is "
            "at hand; put it into packages/ of a folder that the inventory names as bundle, or into a folder of the "
            "host that bundle_on_host names [DRIVER-PACKAGE]",
        ),
        (
            host(there("25.3.RC1", kernel=Kernel(newest="5.15.0-130-generic"))),
            "error: 10.0.0.11: kernel 5.15.0-25-generic runs, and 5.15.0-130-generic is installed (the driver is built "
            "for the kernel that runs; the next start may take the other one, without a driver); restart the host so "
            "that it runs 5.15.0-130-generic, or take that kernel out; then run this again [DRIVER-KERNEL]",
        ),
        (
            host(replace(BARE, info={"Driver_Install_Path_Param": "/opt/npu"})),
            "error: 10.0.0.11: the driver is installed in /opt/npu (units and containers look for it in "
            "/usr/local/Ascend); uninstall that one (/opt/npu/driver/script/uninstall.sh), restart, and run this again "
            "[DRIVER-ORIGIN]",
        ),
        (
            host(BARE, None),
            "error: 10.0.0.11: there is no NPU driver, and no catalogue is named; name a row by catalogue in the "
            "inventory or the recipe; fleet catalogue lists them [DRIVER-CATALOGUE]",
        ),
        (
            host(there(), None),
            "warning: 10.0.0.11: NPU driver 25.5.1 is left as it is, because no catalogue is named; name a row by "
            "catalogue in the inventory or the recipe; fleet catalogue lists them [DRIVER-CATALOGUE]",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Work) else value.rpartition("[")[2],
)
def test_what_stops_a_host_before_anything_is_changed(work: Work, line: str) -> None:
    assert told(ascend.refuse(work)) == [line]


@pytest.mark.parametrize(
    "busy",
    [
        host(there(), serving=("vllm-serve-0.service",)),
        host(replace(there(), table=table(processes=(Process(0, 71, "python", 900),)))),
        host(there(containers=("notebook",))),
        host(there(), packages=[]),
        host(there(kernel=Kernel(newest="5.15.0-130-generic"))),
    ],
)
def test_where_nothing_is_to_change_nothing_stops(busy: Work) -> None:
    assert ascend.refuse(busy) == []


def test_without_a_row_the_driver_is_left_alone() -> None:
    assert ascend.steps(host(there("25.3.RC1"), None)) == []
    assert ascend.pending(host(there("25.3.RC1"), None)) == ""
    assert ascend.prove(host(BARE, None)) == []


def test_other_platforms_have_nothing_to_do_with_it() -> None:
    plan = plan_of("nvidia")
    work = work_of(plan, State(), None, "ascend")
    assert ascend.sections(plan, plan.fleet.nodes[0]) == []
    assert ascend.parse({}) == State()
    assert (ascend.refuse(work), ascend.steps(work), ascend.prove(work), ascend.pending(work)) == ([], [], [], "")


# ---- what the end of a package means

IMMEDIATELY = (
    "[Driver] [2026-07-07 12:56:53] [INFO]\x1b[32mDriver package upgraded successfully! The new version takes effect "
    "immediately. \x1b[0m"
)
REBOOT = (
    "[Driver] [2026-07-07 12:56:53] [INFO]\x1b[32mDriver package installed successfully! \x1b[0m\x1b[31mReboot needed "
    "for installation/upgrade to take effect! \x1b[0m"
)
FINISHED = "[Driver] [2026-07-07 12:56:53] [INFO]\x1b[32mDriver package upgraded finished! \x1b[0m"
STUCK = (
    "[Driver] [2026-07-07 12:56:53] [WARNING]\x1b[33mKernel modules can not be removed, reboot needed for "
    "installation/upgrade to take effect! \x1b[0m"
)
NOT_READY = "[Driver] [2026-07-07 12:56:53] [WARNING]There are some chips not ready, please check after reboot"
OLD = "Driver package install success! Reboot needed for installation/upgrade to take effect!"


@pytest.mark.parametrize("done", [True, False])  # the status does not tell the ends apart
@pytest.mark.parametrize(
    ("lines", "reboot"),
    [
        ([IMMEDIATELY], ""),
        ([REBOOT], "driver 25.5.1 takes effect with the next start"),
        ([FINISHED, STUCK], "driver 25.5.1: the modules before it were in use"),
        ([NOT_READY, IMMEDIATELY], "driver 25.5.1: some NPUs were not ready after it"),
        ([NOT_READY, REBOOT], "driver 25.5.1: some NPUs were not ready after it"),
        ([OLD], "driver 25.5.1 takes effect with the next start"),
    ],
)
def test_a_driver_that_is_installed(lines: list[str], reboot: str, done: bool) -> None:
    read = ascend_run.driver_read("h", "driver 25.5.1")
    assert read(done, ["Verifying archive integrity...  100%", *lines, "it ended with 0"]) == Outcome(reboot=reboot)


FAILED = "[Driver] [2026-07-07 12:56:53] [ERROR]"


@pytest.mark.parametrize(
    ("line", "rule", "meaning"),
    [
        ("ERR_NO:0x0001;ERR_DES:path is not exist.", "DRIVER-FAILED", "the package does not fit this host"),
        ("ERR_NO:0x0002;ERR_DES:input error", "DRIVER-FAILED", "the installer asked and got no answer"),
        ("ERR_NO:0x0003;ERR_DES:install-path input error", "DRIVER-FAILED", "the installer's path cannot be used"),
        ("ERR_NO:0x0004;ERR_DES:only support one type", "DRIVER-FAILED", "this package does not know the arguments"),
        ("ERR_NO:0x0080;ERR_DES: Uninstallation failed", "DRIVER-FAILED", "a part could not be taken out or put in"),
        ("ERR_NO:0x0090;ERR_DES:uninstall driver failed", "DRIVER-FAILED", "the old driver could not be uninstalled"),
        ("ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists!", "DRIVER-USER", "the user and group of the driver are missing"),
        ("ERR_NO:0x0093;ERR_DES:no root permission", "DRIVER-FAILED", "the installer had no root rights"),
        ("ERR_NO:0x0094;ERR_DES:Operation failed", "DRIVER-BUSY", "another package is being installed"),
        ("ERR_NO:0x0095;ERR_DES:user and group not same", "DRIVER-USER", "are not those of the installation before"),
        ("ERR_NO:0x0096;ERR_DES:group not right!", "DRIVER-USER", "the driver's user is not in the driver's group"),
        ("ERR_NO:0x00ff;ERR_DES:something new", "DRIVER-FAILED", "its end is none that is known"),
        ("Arch mismatch, src package is x86_64, cur os is aarch64", "DRIVER-ARCH", "is for another processor"),
        ("The current installation package and environment is not match", "DRIVER-ARCH", "another family of NPUs"),
        ("The davinci nodes are occupied by some processes", "DRIVER-BUSY", "the devices or the installer are in use"),
        ("The list of missing tools: lspci,ifconfig,", "DRIVER-BUILD", "the installer lacks programs"),
        ("free space only 12M, cannot install driver package", "DRIVER-FAILED", "the disk is full"),
        ("Failed to upgrade driver package, please retry", "DRIVER-FAILED", "the module could not be built or loaded"),
    ],
)
def test_each_refusal_says_what_it_means(line: str, rule: str, meaning: str) -> None:
    outcome = ascend_run.driver_read("h", "driver 25.5.1")(True, [f"{FAILED}\x1b[31m{line}\x1b[0m", "it ended with 1"])
    (finding,) = outcome.findings
    assert (finding.severity, finding.rule, outcome.reboot) == ("error", rule, "")
    assert finding.what.startswith("driver 25.5.1: ")
    assert meaning in finding.what
    assert line in finding.why
    assert finding.mend


@pytest.mark.parametrize(
    "line",
    [
        "Error in SHA256 checksums: 0a is different from 0b",
        "checksum of /var/lib/vllm-fleet/bundle/x.run differs",
        "gzip: stdin: unexpected end of file",
        "/var/lib/vllm-fleet/bundle/x.run did not pass its own check",
    ],
)
def test_a_damaged_package_is_told_as_such(line: str) -> None:
    (finding,) = ascend_run.driver_read("h", "driver 25.5.1")(False, [line]).findings
    assert (finding.rule, finding.what) == ("DRIVER-CORRUPT", "driver 25.5.1: the package is damaged")


@pytest.mark.parametrize(
    "lines",
    [[], ["it ended with 0"], ["[INFO]upgradePercentage:40%"], ["[INFO]Driver package uninstalled successfully!"],
     ["Driver package installed successfully!", "ERR_NO:0x00ff;ERR_DES:something new"]],
)  # fmt: skip
def test_an_end_that_is_not_known_is_no_success(lines: list[str]) -> None:
    (finding,) = ascend_run.driver_read("h", "driver 25.5.1")(True, lines).findings
    assert (finding.rule, finding.severity) == ("DRIVER-FAILED", "error")


@pytest.mark.parametrize("verb", ["installed", "upgraded"])
def test_a_success_that_does_not_say_when_needs_a_restart(verb: str) -> None:
    read = ascend_run.driver_read("h", "driver 25.5.1")
    lines = [f"Driver package {verb} successfully! Something new.", "it ended with 0"]
    why = "driver 25.5.1 is installed, and its installer does not say whether it is in effect"
    assert read(True, lines) == Outcome(reboot=why)
    assert [f.rule for f in read(False, lines).findings] == ["DRIVER-FAILED"]


def test_what_was_killed_says_so() -> None:
    lines = ["[INFO]upgradePercentage:40%", "Killed", "it ended with 137"]
    (finding,) = ascend_run.driver_read("h", "d")(False, lines).findings
    assert (finding.what, finding.mend) == ("d: it was killed half way", "run this again: it is repaired")


def test_what_was_ended_for_its_time_says_so() -> None:
    (finding,) = ascend_run.driver_read("h", "d")(
        False, ["[INFO]upgradePercentage:40%", "it was ended after 3600 s"]
    ).findings
    assert finding.what == "d: it took too long"


FLASHED = "[Firmware] [INFO]Firmware package upgraded successfully! Reboot now or after driver installation"


@pytest.mark.parametrize(
    ("done", "line", "follows", "reboot"),
    [
        (True, FLASHED, False, "firmware 7 takes effect with the next start"),
        (True, FLASHED, True, ""),  # the driver's reset brings it into effect, and is seen afterwards
        (True, "Firmware package installed successfully! The new version takes effect immediately.", False, ""),
        (True, "", False, "firmware 7 takes effect with the next start"),
    ],
)
def test_firmware_that_is_installed(done: bool, line: str, follows: bool, reboot: str) -> None:
    assert ascend_run.firmware_read("h", "firmware 7", follows)(done, [line]) == Outcome(reboot=reboot)


@pytest.mark.parametrize(
    ("done", "line", "rule"),
    [
        (False, "[ERROR]upgrade failed", "DRIVER-FAILED"),
        (True, "ERR_NO:0x0094;ERR_DES:An all-in-one RUN package is found", "DRIVER-BUSY"),  # it ends with 0
        (False, "ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists!", "DRIVER-USER"),
    ],
)
def test_firmware_that_is_not(done: bool, line: str, rule: str) -> None:
    (finding,) = ascend_run.firmware_read("h", "firmware 7", False)(done, [line]).findings
    assert finding.rule == rule


@pytest.mark.parametrize(("stack", "told_of"), [(ROW, ["DRIVER-SECUREBOOT"]), (row("25.3.RC1", "7"), [])])
def test_secure_boot_is_told_where_a_driver_is_built(stack: Stack, told_of: list[str]) -> None:
    signed = Kernel(secure_boot=True)
    found = replace(there("25.3.RC1", "7"), kernel=signed)
    assert [f.rule for f in ascend.refuse(host(found, stack))] == told_of
    assert ascend.refuse(host(found, stack, in_container=True)) == []


# ---- firmware that the cards came with


def flashed(folder: Path, monkeypatch: pytest.MonkeyPatch, cards: Sequence[str], stack: Stack) -> tuple[Any, list[str]]:
    """What the firmware's step of a bare host comes to, where its cards have these from the factory."""
    monkeypatch.setattr(ascend_run, "LOCK", str(folder / "lock"))
    version = "7.8.0.6.201"
    package = tool(folder, f"Atlas-A3-hdk-npu-firmware_{version}.run", f'echo "$@" >>{folder}/calls')
    cases = "".join(f"(*'-i {card}') v={has};;" for card, has in enumerate(cards))
    said = "printf '\\tSoftware Version : 25.5.1\\n\\tFirmware Version               : %s\\n' $v"
    tool(folder, "npu-smi", f'case "$*" in {cases} (*) exit 1;; esac; {said}')
    step = ascend.steps(host(BARE, stack, [DRIVER], files={str(package): 7}))[1]
    assert step.name == f"firmware {version} (there is none)"
    rc, lines = sh(step.script, folder)
    assert step.read
    return step.read(rc == 0, lines), lines


@pytest.mark.parametrize("stack", [ROW, row(firmware="*")])
@pytest.mark.parametrize(
    "cards",
    [["7.7.0.9.220"] * 8, [*["7.9.0.1.200"] * 7, "7.7.0.9.B220"], ["7.8.0.6.99"] * 8, []],  # none: no answer
)
def test_an_older_firmware_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: list[str], stack: Stack
) -> None:
    outcome, lines = flashed(tmp_path, monkeypatch, cards, stack)
    assert outcome == Outcome(reboot="firmware 7.8.0.6.201 takes effect with the next start"), lines
    assert calls(tmp_path) == ["--check", "--full --quiet"]


@pytest.mark.parametrize(
    ("version", "said"),
    [("7.8.0.6.B201", "7.8.0.6.201, which is this one"), ("7.8.0.10.1", "7.8.0.10.1, which is newer")],
)
def test_a_newer_firmware_from_the_factory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    outcome, lines = flashed(tmp_path, monkeypatch, [version] * 8, row(firmware="*"))
    assert (outcome, lines) == (Outcome(), [f"the cards have firmware {said}"])
    assert calls(tmp_path) == ["--check"]


def test_a_row_that_names_an_older_firmware_is_refused_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _ = flashed(tmp_path, monkeypatch, ["7.9.0.1.200"] * 8, ROW)
    assert told(outcome.findings) == [
        "error: 10.0.0.11: firmware 7.9.0.1.200 is newer than the 7.8.0.6.201 of catalogue row (an older one over a "
        "newer one is not what the vendor tests); name a row with this version or a newer one; or uninstall it by "
        "hand, restart, and run this again [DRIVER-DOWNGRADE]"
    ]
    assert calls(tmp_path) == ["--check"]


# ---- the script, run


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Makes a package of a script and runs it as a step does."""
    monkeypatch.setattr(ascend_run, "LOCK", str(tmp_path / "lock"))

    def run(text: str, sha256: str | None = None, mode: int = 0o644, well: str = "0|2") -> tuple[int, list[str]]:
        path = tmp_path / "a b.run"
        path.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n{text}\n')
        path.chmod(mode)
        return sh(
            ascend_run.script(Source(str(path), path.name, sha256=sha256), ["--full", "--quiet"], well=well), tmp_path
        )

    return run


def test_a_package_is_checked_and_then_run(package: Callable[..., Any], tmp_path: Path) -> None:
    assert package("echo done") == (0, ["done", "done", "it ended with 0"])
    assert calls(tmp_path) == ["--check", "--full --quiet"]


@pytest.mark.parametrize(("status", "rc"), [(0, 0), (2, 0), (1, 1), (3, 3)])
def test_two_of_its_ends_are_good(package: Callable[..., Any], status: int, rc: int) -> None:
    assert package(f'[ "$1" = --check ] || exit {status}') == (rc, [f"it ended with {status}"])


def test_a_package_that_fails_its_check_is_not_run(package: Callable[..., Any], tmp_path: Path) -> None:
    rc, lines = package("exit 7")
    assert (rc, lines[-1]) == (3, f"{tmp_path}/a b.run did not pass its own check")
    assert calls(tmp_path) == ["--check"]


def test_a_package_of_another_sum_is_not_even_checked(package: Callable[..., Any], tmp_path: Path) -> None:
    rc, lines = package("true", sha256="0" * 64)
    assert (rc, lines) == (3, [f"checksum of {tmp_path}/a b.run differs"])
    assert calls(tmp_path) == []


def test_two_packages_do_not_run_at_once(package: Callable[..., Any], tmp_path: Path) -> None:
    rc, lines = package(f"flock -n {tmp_path}/lock true || echo held")
    assert (rc, lines) == (0, ["held", "held", "it ended with 0"])


def test_a_package_waits_for_nobody(package: Callable[..., Any], tmp_path: Path) -> None:
    with subprocess.Popen(["flock", str(tmp_path / "lock"), "sleep", "20"]) as other:
        try:
            assert sh(f"while flock -n {tmp_path}/lock true; do sleep 0.01; done", tmp_path)[0] == 0
            assert package("true") == (75, ["a package that was started before is still being installed"])
        finally:
            other.terminate()
    assert calls(tmp_path) == []


def test_what_an_installer_leaves_running_does_not_keep_the_lock(package: Callable[..., Any], tmp_path: Path) -> None:
    package("sleep 3 >/dev/null 2>&1 &")
    assert package("true")[0] == 0


# ---- what is asked, and read


def test_an_answer_is_read() -> None:
    state = ascend.parse(
        {
            "ascend-info": ["UserName=a", "Driver_Install_Status=uncomplete", "Driver_Install_Status=complete"],
            "ascend-driver": ["Version=25.5.1", "ascendhal_version=7.35.23"],
            "ascend-firmware": ["Version=7.8.0.6.201", "package_version=25.5.1"],
            "ascend-fresh": ["fresh"],
            "ascend-users": ["user HwHiAiUser HwHiAiUser docker", "group HwHiAiUser"],
            "ascend-installers": [DRIVER],
            "ascend-containers": ["/notebook|runc|/dev/davinci3 /dev/davinci_manager ", "/db|runc|", "/a|ascend|"],
            "kernel-build": ["headers", "newest 5.15.0-130-generic"],
            "kernel-packages": ["linux-generic", "linux-image-5.15.0-25-generic"],
            "held": ["linux-generic"],
        }
    )  # fmt: skip
    assert (state.driver, state.firmware, state.complete, state.fresh) == ("25.5.1", "7.8.0.6.201", True, True)
    assert state.groups == {"HwHiAiUser": {"HwHiAiUser", "docker"}}
    assert state.has_group == {"HwHiAiUser"}
    assert state.installers == (DRIVER,)
    assert state.containers == ("notebook", "a")
    assert state.kernel == Kernel(
        headers=True,
        newest="5.15.0-130-generic",
        kernels=("linux-generic", "linux-image-5.15.0-25-generic"),
        held=frozenset({"linux-generic"}),
    )


def kernel_of(folder: Path) -> Kernel:
    """What a machine answers whose files of /boot and of the firmware lie in a folder."""
    text = "\n".join(kernel_modules.sections()).replace("ls /boot", f"ls {folder}/boot")
    _, lines = sh(text.replace("/sys/firmware", f"{folder}/firmware"), folder)
    return kernel_modules.parse(snapshot.split(lines))


def test_the_boot_loader_tells_what_the_next_start_takes(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    for name in ("vmlinuz-5.10.0-60", "vmlinuz-5.10.0-136", "vmlinuz-0-rescue-0a"):
        (tmp_path / "boot" / name).touch()
    tool(tmp_path, "grubby", "exit 1")
    assert kernel_of(tmp_path).newest == "5.10.0-136"
    tool(tmp_path, "grubby", 'test "$*" = --default-kernel && echo /boot/vmlinuz-5.10.0-60')
    assert kernel_of(tmp_path).newest == "5.10.0-60"


@pytest.mark.parametrize(("byte", "on"), [(b"\x01", True), (b"\x00", False), (None, False)])
def test_secure_boot_is_seen_with_and_without_mokutil(tmp_path: Path, byte: bytes | None, on: bool) -> None:
    if byte is not None:
        path = tmp_path / kernel_modules._SECURE.removeprefix("/sys/")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x06\x00\x00\x00" + byte)
    assert kernel_of(tmp_path).secure_boot is on
    tool(tmp_path, "mokutil", f"echo 'SecureBoot {'disabled' if on else 'enabled'}'")
    assert kernel_of(tmp_path).secure_boot is not on


def test_headers_are_not_held_with_the_kernel(tmp_path: Path) -> None:
    tool(tmp_path, "rpm", f'shift 3; echo "$*" >>{tmp_path}/calls')
    text = "\n".join(kernel_modules.sections()).replace("dpkg-query", "no-dpkg-query")
    sh(text, tmp_path)
    assert calls(tmp_path) == ["kernel kernel-core kernel-modules kernel-modules-core"]


def test_names_of_users_are_not_trusted() -> None:
    state = ascend.parse({"ascend-info": ["UserName=a;reboot", "UserGroup=$(reboot)"]})
    assert (state.user, state.group) == ("HwHiAiUser", "HwHiAiUser")


def asked(tmp_path: Path, files: dict[str, str] | None = None, **more: Any) -> State:
    """A dressed host's answer to the whole question."""
    from lab.scenario import scenario

    text = "\n".join(ascend.sections(A3, A3.fleet.nodes[0]))
    # Processes are this machine's, and a lab on it may install a driver now.
    for path in ("/usr/local/Ascend/firmware/version.info", "/proc/[0-9]*/cmdline"):
        text = text.replace(path, f"{tmp_path}{path}")
    with mock.patch.object(answers, "_tools", lambda one: ["npu-smi"]):
        return ascend.parse(ask(text, tmp_path, scenario("ascend-a3", {}), files=files, **more))


def test_a_dressed_host_answers(tmp_path: Path) -> None:
    state = asked(tmp_path)
    assert state.running == state.driver == "25.5.1"
    assert state.lowest == state.firmware
    assert state.complete
    assert state.fresh
    assert len(state.table.chips) == 16
    assert state.installers == ()


def test_a_machine_without_npus_answers(tmp_path: Path) -> None:
    _, lines = sh("\n".join(["echo '@@ uid'", *ascend.sections(A3, A3.fleet.nodes[0])]), tmp_path)
    state = ascend.parse(snapshot.split(lines))
    assert (state.driver, state.firmware, state.running, state.begun, state.fresh) == (None, None, None, False, False)


def test_an_installer_that_runs_is_seen(tmp_path: Path) -> None:
    """Beside a shell that has the question among its arguments."""
    section = next(s for s in ascend.sections(A3, A3.fleet.nodes[0]) if "ascend-installers" in s)
    for number, words in enumerate((["/bin/sh", "-c", section], ["/bin/sh", f"/opt/a b/{DRIVER}", "--full"]), 1):
        (tmp_path / f"proc/{number}").mkdir(parents=True)
        (tmp_path / f"proc/{number}/cmdline").write_text("".join(f"{word}\0" for word in words))
    section = section.replace("/proc/[0-9]*/cmdline", f"{tmp_path}/proc/[0-9]*/cmdline")
    assert sh(section, tmp_path) == (0, [f"{MARK} ascend-installers", DRIVER])


# ---- afterwards


def test_what_runs_is_what_is_wanted() -> None:
    assert ascend.prove(host(there())) == []


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (
            replace(there(), running="25.3.RC1", table=table("25.3.RC1")),
            "error: 10.0.0.11: driver 25.3.RC1 runs, and it should be 25.5.1; restart the host; if it stays so, run "
            "the package by hand and read what it says [DRIVER-RUNNING]",
        ),
        (
            replace(there(), table=table(firmware="7.7.0.9.220")),
            "error: 10.0.0.11: firmware 7.7.0.9.220 runs, and it should be 7.8.0.6.201; restart the host; if it stays "
            "so, run the package by hand and read what it says [DRIVER-RUNNING]",
        ),
        (
            replace(there(), table=table(fit="NOK")),
            "error: 10.0.0.11: driver and firmware do not go together on card 0-7 (npu-smi: Compatibility NOK); "
            "restart the host; if it stays so, take driver and firmware of one release of the HDK "
            "[DRIVER-COMPATIBILITY]",
        ),
        (
            replace(there(), table=replace(table(), chips=CHIPS[:14])),
            "error: 10.0.0.11: devices 14-15 of 16 NPUs cannot be seen (a card that fell out is not seen until an "
            "engine waits); look for the card with lspci -d 19e5: and dmesg, or give devices in the inventory "
            "[DRIVER-DEVICES]",
        ),
        (
            replace(there(), info={**INFO, "Driver_Install_Status": "uncomplete"}),
            "error: 10.0.0.11: the installation of driver 25.5.1 is not complete (/etc/ascend_install.info says "
            "uncomplete); run this again: it repairs what is half there [DRIVER-INSTALL]",
        ),
        (
            replace(there(), running=None, table=Table(True, False, ("dcmi module initialize failed. ret is -8005",))),
            "error: 10.0.0.11: driver 25.5.1 is installed and does not answer (dcmi module initialize failed. ret is "
            "-8005); restart the host; if it stays so, see dmesg and /var/log/ascend_seclog/ascend_install.log "
            "[DRIVER-RUNNING]",
        ),
    ],
    ids=lambda value: "" if isinstance(value, State) else value.rpartition("[")[2],
)
def test_what_is_still_wrong_is_told(state: State, line: str) -> None:
    assert told(ascend.prove(host(state))) == [line]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (replace(there(), running="25.3.RC1"), "driver 25.5.1 is installed, 25.3.RC1 runs"),
        (replace(there(), running=None, fresh=True), "driver 25.5.1 is installed and does not answer yet"),
        (replace(there(), table=table(firmware="7.7.0.9.220")), "firmware 7.8.0.6.201 is installed, 7.7.0.9.220 runs"),
        (there("25.3.RC1"), ""),  # there is something to install first
    ],
)
def test_a_restart_is_due_where_what_runs_is_not_what_is_installed(state: State, why: str) -> None:
    assert ascend.pending(host(state)) == why


def test_the_host_with_another_driver_is_named() -> None:
    plan = plan_of("ascend-a3", hosts=3)
    states = [there(), there("25.3.RC1"), there("25.5.1")]
    works = {
        node.name: replace(work_of(plan, state, ROW, "ascend"), node=node)
        for node, state in zip(plan.fleet.nodes, states, strict=True)
    }
    assert told(ascend.between(plan, works)) == [
        "error: 10.0.0.12: driver 25.3.rc1, 10.0.0.11 has 25.5.1 (hosts of one super node must have the same driver); "
        "name one row of the catalogue for all hosts of serve-0, and run this again [DRIVER-MIXED]"
    ]
    assert ascend.between(plan, {name: work for name, work in works.items() if name != "10.0.0.12"}) == []
