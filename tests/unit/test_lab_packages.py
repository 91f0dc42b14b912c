"""The lab's stand-in packages: names, refusals, end states and files, run for real on a folder; and the repository."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab import debian, hardware, packages
from lab.errors import LabError
from lab.scenario import scenario
from lab.sim import store

ARCH = os.uname().machine
A2, A3 = "ascend-a2", "ascend-a3"
USER = "HwHiAiUser:x:1001:1001::/home/HwHiAiUser:/bin/bash\nother:x:1002:1002::/:/bin/sh\n"
GROUP = "HwHiAiUser:x:1001:\nother:x:1002:\n"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Said:
    code: int
    text: str

    @property
    def plain(self) -> list[str]:
        """Lines without colours, times and the vendor's marks of who speaks."""
        return [re.sub(r"^\[\w+\] \[[^\]]*\] ", "", COLOUR.sub("", line)).strip() for line in self.text.splitlines()]


@dataclass
class Machine:
    """A folder that is a host."""

    root: Path

    def run(self, package: Path, *options: str, stdin: str = "", **environment: str) -> Said:
        done = subprocess.run(
            [package, *options],
            input=stdin,
            env={"PATH": "/usr/bin:/bin", "VLLM_LAB_ROOT": str(self.root), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
        )
        return Said(done.returncode, done.stdout)

    def file(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def has(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()

    def board(self) -> dict[str, str]:
        """Software, firmware and compatibility of card 0 as npu-smi says, or its one line."""
        tool = self.root / "usr/local/bin/npu-smi"
        code = tool.read_text().replace('"/usr/local', f'"{self.root}/usr/local').replace("-IS", "-S")
        done = subprocess.run(
            ["/usr/bin/python3", "-S", "-c", code, "info", "-t", "board", "-i", "0"],
            env={"VLLM_LAB_ROOT": str(self.root)},
            capture_output=True,
            text=True,
            timeout=20,
        )
        if done.returncode:
            return {"": done.stdout.strip()}
        pairs = (line.split(" : ") for line in done.stdout.splitlines())
        return {key.strip(): value for key, value in pairs if key.strip() in ("Software Version", "Firmware Version",
                                                                             "Compatibility")}  # fmt: skip

    def reboot(self) -> None:
        boot = self.root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True, exist_ok=True)
        number = int(boot.read_text()) if boot.exists() else 0
        boot.write_text(f"{number + 1}\n")

    def steer(self, **install: Any) -> None:
        path = self.root / "etc/vllm-lab/scenario.json"
        one = json.loads(path.read_text())
        one["install"] |= install
        path.write_text(json.dumps(one))


def machine(root: Path, family: str = A2, changes: Mapping[str, Any] | None = None, *, bare: bool = True) -> Machine:
    one = scenario(family, {"install": {"seconds": 0}, **(changes or {})})
    for path, (text, mode) in hardware.files(one, bare).items():
        hardware.put(root, path, text, mode)
    hardware.put(root, "/etc/passwd", USER, 0o644)
    hardware.put(root, "/etc/group", GROUP, 0o644)
    made = Machine(root)
    made.reboot()
    return made


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    """A bare A2 with firmware from the factory."""
    return machine(tmp_path / "root", A2, {"firmware_version": "7.1.0.4.220"})


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    return packages.driver_run(tmp_path, "25.5.1", ARCH, A2)


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    return packages.firmware_run(tmp_path, "7.8.0.6.201", A2)


# Names


def test_packages_are_called_as_the_vendor_calls_them(tmp_path: Path) -> None:
    made = [
        packages.driver_run(tmp_path, "25.5.1", "aarch64", A2),
        packages.driver_run(tmp_path, "25.2.1", "aarch64", A3),
        packages.firmware_run(tmp_path, "7.8.0.6.201", A2),
        packages.firmware_run(tmp_path, "7.7.0.9.220", A3),
        *packages.cann_runs(tmp_path, "8.5.1", "x86_64", A2),
    ]
    assert [path.name for path in made] == [
        "Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run",
        "Atlas-A3-hdk-npu-driver_25.2.1_linux-aarch64.run",
        "Ascend-hdk-910b-npu-firmware_7.8.0.6.201.run",
        "Atlas-A3-hdk-npu-firmware_7.7.0.9.220.run",
        "Ascend-cann-toolkit_8.5.1_linux-x86_64.run",
        "Ascend-cann-910b-ops_8.5.1_linux-x86_64.run",
        "Ascend-cann-nnal_8.5.1_linux-x86_64.run",
    ]
    assert packages.cann_names("9.1.0", A3)["ops"] == "Ascend-cann-A3-ops"
    assert packages.cann_names("8.3.RC2", A2)["ops"] == "Ascend-cann-kernels-910b"
    with pytest.raises(LabError, match=r"no \.run package for 'nvidia'; choose from ascend-a2, ascend-a3"):
        packages.driver_run(tmp_path, "1", ARCH, "nvidia")


def test_a_package_is_the_same_bytes_in_each_making(tmp_path: Path) -> None:
    first = packages.firmware_run(tmp_path, "7.8.0.6.201", A2).read_bytes()
    assert packages.firmware_run(tmp_path, "7.8.0.6.201", A2).read_bytes() == first


# Whole or damaged


def test_a_package_that_is_whole_says_so(host: Machine, driver: Path) -> None:
    assert host.run(driver, "--check") == Said(
        0, "Verifying archive integrity...  100%   SHA256 checksums are OK. All good.\n"
    )
    assert not host.has("/usr/local/Ascend")


@pytest.mark.parametrize("damage", [packages.flip_a_byte, packages.cut_short])
def test_a_damaged_package_ends_before_it_begins(host: Machine, driver: Path, damage: Any) -> None:
    damage(driver)
    for options in (["--check"], ["--full", "--quiet"]):
        said = host.run(driver, *options)
        assert said.code == 2
        assert "Error in SHA256 checksums: " in said.text
    assert not host.has("/usr/local/Ascend")


def test_where_no_lab_host_is_nothing_is_changed(tmp_path: Path, driver: Path) -> None:
    said = Machine(tmp_path / "elsewhere").run(driver, "--full")
    assert said.code == 1
    assert said.plain[-1].endswith("npu-driver_25.5.1_linux-" + ARCH + ".run, and this is no lab host")
    assert not (tmp_path / "elsewhere").exists()


# End states


def test_a_fresh_driver_takes_effect_at_once(host: Machine, driver: Path) -> None:
    said = host.run(driver, "--full", "--install-for-all", "--quiet")
    assert said.code == 0
    assert (
        "\x1b[32mDriver package installed successfully! The new version takes effect immediately. \x1b[0m" in said.text
    )
    assert host.file("/usr/local/Ascend/driver/version.info").startswith("Version=25.5.1\n")
    assert host.file("/etc/ascend_install.info") == (
        "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\n"
        "Driver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_For_All=yes\nDriver_Install_Status=complete\n"
    )
    assert "[INFO]upgradePercentage:100%" in host.file("/var/log/ascend_seclog/ascend_install.log")
    assert host.file("/var/log/ascend_seclog/operation.log").startswith("Install MAJOR root ")
    assert host.board() == {
        "Software Version": "25.5.1", "Firmware Version": "7.1.0.4.220", "Compatibility": "NOK",
    }  # fmt: skip


def test_a_fresh_driver_that_needs_a_reboot_is_dead_until_then(host: Machine, driver: Path) -> None:
    host.steer(reboot=True)
    said = host.run(driver, "--full", "--quiet")
    assert said.code == 0
    assert (
        "Driver package installed successfully! Reboot needed for installation/upgrade to take effect!"
        in COLOUR.sub("", said.text)
    )
    assert host.board() == {"": "dcmi module initialize failed. ret is -8001"}
    host.reboot()
    assert host.board()["Software Version"] == "25.5.1"


def test_a_driver_whose_old_modules_stay_says_finished_and_shows_the_old_version(tmp_path: Path, driver: Path) -> None:
    host = machine(tmp_path / "root", A2, {"driver_version": "25.2.1"}, bare=False)
    host.steer(busy=True)
    said = host.run(driver, "--upgrade")
    assert said.code == 0
    assert said.plain[-3:-1] == [
        "[INFO]Driver package upgraded finished!",
        "[WARNING]Kernel modules can not be removed, reboot needed for installation/upgrade to take effect!",
    ]
    assert host.file("/usr/local/Ascend/driver/version.info").startswith("Version=25.5.1\n")
    assert host.board()["Software Version"] == "25.2.1"
    host.reboot()
    assert host.board()["Software Version"] == "25.5.1"


def test_chips_that_are_not_ready_are_told_before_the_end(host: Machine, driver: Path) -> None:
    host.steer(chips_not_ready=True)
    said = host.run(driver, "--full")
    assert said.code == 0
    assert said.plain[-3] == "[WARNING]There are some chips not ready, please check after reboot"


def test_force_takes_effect_after_a_restart(host: Machine, driver: Path) -> None:
    assert "Reboot needed" in host.run(driver, "--full", "--force").text


def test_firmware_counts_from_the_next_boot(host: Machine, driver: Path, firmware: Path) -> None:
    host.run(driver, "--full", "--quiet")
    said = host.run(firmware, "--full", "--quiet")
    assert said.code == 0
    assert said.plain[-3:-1] == [
        "[INFO]The firmware of [8] chips are successfully upgraded.",
        "[INFO]Firmware package installed successfully! "
        "Reboot now or after driver installation for the installation/upgrade to take effect.",
    ]
    assert host.file("/usr/local/Ascend/firmware/version.info") == "Version=7.8.0.6.201\n"
    assert host.board()["Firmware Version"] == "7.1.0.4.220"
    host.reboot()
    assert host.board() == {"Software Version": "25.5.1", "Firmware Version": "7.8.0.6.201", "Compatibility": "OK"}


def test_firmware_counts_from_a_driver_that_takes_effect_at_once(tmp_path: Path, driver: Path, firmware: Path) -> None:
    older = {"driver_version": "25.2.1", "firmware_version": "7.7.0.6.236"}
    host = machine(tmp_path / "root", A2, older, bare=False)
    host.run(firmware, "--upgrade")
    assert host.board()["Firmware Version"] == "7.7.0.6.236"
    assert host.run(driver, "--upgrade").plain[-2] == (
        "[INFO]Driver package upgraded successfully! The new version takes effect immediately."
    )
    assert host.board() == {"Software Version": "25.5.1", "Firmware Version": "7.8.0.6.201", "Compatibility": "OK"}


def test_a_driver_of_another_list_than_the_firmware_does_not_fit(tmp_path: Path, driver: Path) -> None:
    host = machine(tmp_path / "root", A2, {"driver_version": "25.2.1", "firmware_version": "7.7.0.6.236"}, bare=False)
    host.run(driver, "--upgrade")
    assert host.board()["Compatibility"] == "NOK"


@pytest.mark.parametrize(
    ("driver_version", "firmware_version", "fit"),
    [
        ("25.5.1", "7.8.0.6.201", True),
        ("25.5.1", "7.7.0.6.236", False),
        ("25.3.RC1", "7.8.0.2.212", True),
        ("26.0.RC1", "9.0.0.0.205", True),
        ("99.9.9", "1.0", True),
    ],
)
def test_which_firmware_fits(driver_version: str, firmware_version: str, fit: bool) -> None:
    assert store.fits(driver_version, firmware_version) is fit


def test_an_uninstalled_driver_leaves_nothing(host: Machine, driver: Path) -> None:
    host.run(driver, "--full")
    said = host.run(driver, "--uninstall")
    assert said.plain[-2] == ("[INFO]Driver package uninstalled successfully! Uninstallation takes effect immediately.")
    assert not host.has("/usr/local/bin/npu-smi")
    assert not host.has("/etc/ascend_install.info")
    assert host.run(driver, "--uninstall").code == 1


# Refusals


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "ERR_NO:0x0004;ERR_DES: Unrecognized parameters. Try"),
        (["--full", "--upgrade"], "ERR_NO:0x0004;ERR_DES: Unrecognized parameters: --full --upgrade."),
        (["--ful"], "ERR_NO:0x0004;ERR_DES: Unrecognized parameters: --ful."),
        (["--full", "--quiet=1"], "ERR_NO:0x0004"),
        (["--full", "--install-path"], "ERR_NO:0x0004"),
        (["--upgrade", "--install-path=/opt/Ascend"], "ERR_NO:0x0004"),
        (["--docker", "--install-for-all"], "ERR_NO:0x0004"),
        (["--uninstall", "--quiet"], "ERR_NO:0x0004"),
        (["--full", "--install-username=other"], "ERR_NO:0x0004"),
        (["--full", "--install-path=Ascend"], "ERR_NO:0x0003;ERR_DES:install-path input error, install failed"),
        (["--full", "--install-username=nobody", "--install-usergroup=other"],
         "ERR_NO:0x0091;ERR_DES:nobody not exists! Please add nobody"),
        (["--full", "--install-username=other", "--install-usergroup=none"],
         "ERR_NO:0x0091;ERR_DES:none group not exists! Please add none group"),
        (["--full", "--install-username=other", "--install-usergroup=HwHiAiUser"], "ERR_NO:0x0096"),
        (["--upgrade"], "ERR_NO:0x0080"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses_leaves_no_file(host: Machine, driver: Path, options: list[str], told: str) -> None:
    said = host.run(driver, *options)
    assert said.code == 1
    assert f"[ERROR]{told}" in said.text
    assert not host.has("/usr/local/Ascend")


def test_the_user_must_be_there_before(host: Machine, driver: Path) -> None:
    (host.root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    said = host.run(driver, "--full", "--quiet")
    assert said.code == 1
    assert "[ERROR]ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists! Please add HwHiAiUser" in said.text


def test_another_user_than_last_time_is_refused(host: Machine, driver: Path) -> None:
    host.run(driver, "--full")
    said = host.run(driver, "--full", "--quiet", "--install-username=other", "--install-usergroup=other")
    assert said.code == 1
    assert "[ERROR]ERR_NO:0x0095;ERR_DES:The user and group are not same with last installation" in said.text


def test_two_at_once_are_refused(host: Machine, driver: Path, firmware: Path) -> None:
    host.steer(seconds=4)
    environment = {"PATH": "/usr/bin:/bin", "VLLM_LAB_ROOT": str(host.root)}
    first = subprocess.Popen([driver, "--full"], env=environment, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while "upgradePercentage:10%" not in (line := first.stdout.readline()):
        assert line
    said = host.run(firmware, "--full")
    shown = Path(f"/proc/{first.pid}/cmdline").read_text().split("\0")
    first.kill()
    first.wait()
    first.stdout.close()
    assert said.code == 1
    assert "[ERROR]ERR_NO:0x0094;ERR_DES:There is already a process being executed" in said.text
    assert str(driver) in shown, "the list of processes shows the package's path"


def test_a_package_of_another_machine_is_refused(host: Machine, tmp_path: Path) -> None:
    other = "aarch64" if ARCH == "x86_64" else "x86_64"
    for package, told in {
        packages.driver_run(
            tmp_path, "25.5.1", other, A2
        ): f"ERR_NO:0x0001;ERR_DES:the architecture of the run package arch:{other} is inconsistent",
        packages.driver_run(
            tmp_path, "25.5.1", ARCH, A3
        ): "The current installation package and environment is not match, please check.",
    }.items():
        said = host.run(package, "--full", "--quiet")
        assert said.code == 1
        assert f"[ERROR]{told}" in said.text
        assert not host.has("/usr/local/Ascend")


def test_a_scenario_may_say_what_architecture_packages_see(host: Machine, tmp_path: Path) -> None:
    host.steer(arch="riscv64")
    assert host.run(packages.driver_run(tmp_path, "25.5.1", "riscv64", A2), "--full").code == 0


def test_firmware_needs_the_driver_before_it(host: Machine, firmware: Path) -> None:
    said = host.run(firmware, "--full", "--quiet")
    assert said.code == 1
    assert "[ERROR]The driver is not installed" in said.text


def test_missing_tools_are_named(host: Machine, driver: Path) -> None:
    host.steer(tools=["ifconfig", "lspci"])
    assert "[ERROR]The list of missing tools: ifconfig,lspci," in host.run(driver, "--full").text
    assert not host.has("/usr/local/Ascend")


def test_without_headers_the_old_driver_is_gone_and_no_new_one_is_there(host: Machine, driver: Path) -> None:
    host.steer(headers=True)
    said = host.run(driver, "--full")
    assert said.code == 1
    assert said.plain[-3:-1] == [
        "[WARNING]rebuild ko has something wrong, detail in /var/log/ascend_seclog/ascend_rebuild.log",
        "[INFO]Failed to install driver package, please retry after uninstall and reboot!",
    ]
    assert "Driver_Install_Status=uncomplete\n" in host.file("/etc/ascend_install.info")
    (host.root / f"lib/modules/{os.uname().release}/build").mkdir(parents=True)
    assert host.run(driver, "--full", "--quiet").code == 0


def test_over_an_older_one_it_asks_unless_it_is_quiet(tmp_path: Path, driver: Path) -> None:
    host = machine(tmp_path / "root", A2, {"driver_version": "25.2.1"}, bare=False)
    question = (
        "[INFO]Driver package has been installed on the path /usr/local/Ascend, the version is 25.2.1, "
        "and the version of this package is 25.5.1,do you want to continue?  [y/n]"
    )
    unanswered = host.run(driver, "--full")
    assert unanswered.code == 1 and question in unanswered.plain
    assert host.run(driver, "--full", stdin="n\n").code == 0
    assert host.board()["Software Version"] == "25.2.1"
    assert host.run(driver, "--full", stdin="y\n").code == 0
    assert host.board()["Software Version"] == "25.5.1"


def test_a_failure_that_the_scenario_orders(host: Machine, driver: Path) -> None:
    host.steer(fail="0x0090", only="driver")
    said = host.run(driver, "--full")
    assert said.code == 1
    assert said.plain[-3:-1] == [
        "[ERROR]ERR_NO:0x0090;ERR_DES:as the scenario says",
        "[INFO]Failed to install driver package, please retry after uninstall and reboot!",
    ]
    host.steer(only="firmware")
    assert host.run(driver, "--full").code == 0


# Power cuts


def test_a_cut_in_the_middle_leaves_half_and_the_next_run_repairs(host: Machine, driver: Path) -> None:
    host.steer(cut_at="middle")
    assert host.run(driver, "--full", "--quiet").code == -9
    assert "Driver_Install_Status=uncomplete\n" in host.file("/etc/ascend_install.info")
    assert host.has("/usr/local/Ascend/driver/version.info")
    assert not host.has("/usr/local/bin/npu-smi")
    assert host.run(driver, "--full", "--quiet").code == 0
    assert "Driver_Install_Status=complete\n" in host.file("/etc/ascend_install.info")
    assert host.board()["Software Version"] == "25.5.1"


def test_a_cut_before_the_first_file_leaves_nothing(host: Machine, driver: Path) -> None:
    host.steer(cut_at="before")
    assert host.run(driver, "--full", "--quiet").code == -9
    assert not host.has("/usr/local/Ascend")


# CANN


def test_cann_is_installed_in_order(host: Machine, tmp_path: Path) -> None:
    toolkit, ops, nnal = packages.cann_runs(tmp_path, "8.5.1", ARCH, A2)
    early = host.run(ops, "--install", "--quiet")
    assert early.code == 1
    assert "needs the toolkit 8.5.1 before it, this machine has none" in early.text
    done = host.run(toolkit, "--full", "--quiet")
    assert done.code == 0
    assert (
        f"Toolkit:  Ascend-cann-toolkit_8.5.1_linux-{ARCH} install success, installed in /usr/local/Ascend."
        in done.text
    )
    link = host.root / "usr/local/Ascend/ascend-toolkit/latest"
    link.unlink()
    link.symlink_to("../cann-8.5.1")  # absolute on a host, which is a folder here
    assert host.run(ops, "--install", "--quiet").code == 0
    assert "source its set_env.sh first" in host.run(nnal, "--install", "--quiet").text
    assert host.run(nnal, "--install", "--quiet", ASCEND_TOOLKIT_HOME="/x").code == 0
    place = f"/usr/local/Ascend/cann/{ARCH}-linux"
    assert "version=8.5.1\n" in host.file(f"{place}/ascend_toolkit_install.info")
    assert "package_name=Ascend-cann-910b-ops\n" in host.file(f"{place}/ascend_ops_install.info")
    assert host.file("/usr/local/Ascend/nnal/atb/latest/version.info") == "Ascend-cann-atb : 8.5.1\n"


def test_cann_asks_for_its_licence(host: Machine, tmp_path: Path) -> None:
    toolkit = packages.cann_runs(tmp_path, "8.5.1", ARCH, A2)[0]
    assert host.run(toolkit, "--install").code == 1
    assert not host.has("/usr/local/Ascend/cann")
    assert host.run(toolkit, "--install", stdin="Y\n").code == 0


# Debian packages


def test_a_repository_lists_two_versions_of_one_package(tmp_path: Path) -> None:
    debian.deb(tmp_path, "tool", "1.0", files={"/usr/bin/tool": ("#!/bin/sh\n", 0o755)})
    debian.deb(tmp_path, "tool", "2.0", depends="other (= 2.0)", postinst="true\n")
    packages.apt_repository(tmp_path)
    index = (tmp_path / "Packages").read_text()
    fields = [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in index.split("\n\n")]
    assert [(one["Package"], one["Version"], one["Filename"]) for one in fields] == [
        ("tool", "1.0", "./tool_1.0_all.deb"),
        ("tool", "2.0", "./tool_2.0_all.deb"),
    ]
    assert fields[1]["Depends"] == "other (= 2.0)"
    assert int(fields[0]["Size"]) == (tmp_path / "tool_1.0_all.deb").stat().st_size
    assert gzip.decompress((tmp_path / "Packages.gz").read_bytes()).decode() == index
    assert f" {len(index.encode())} Packages\n" in (tmp_path / "Release").read_text()


def test_a_repository_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has no \.deb file"):
        debian.apt_repository(tmp_path)


def test_a_driver_needs_its_parts_in_its_own_version(tmp_path: Path) -> None:
    made = {path.name.partition("_")[0]: path for path in packages.nvidia_debs(tmp_path, "580.95.05-0ubuntu1")}
    told = subprocess.run(
        ["dpkg-deb", "--field", made["nvidia-driver-580-server-open"], "Depends"], capture_output=True, text=True
    ).stdout
    assert "nvidia-utils-580-server (= 580.95.05-0ubuntu1)" in told
    assert told.count("(= 580.95.05-0ubuntu1)") == 5
    assert {"nvidia-fabricmanager-580", "nvidia-container-toolkit", "nvidia-container-toolkit-base"} < set(made)


# Steering


def test_a_steering_that_cannot_be_is_told() -> None:
    with pytest.raises(LabError) as caught:
        scenario(A2, {"install": {"cut_at": "end"}})
    assert str(caught.value) == 'scenario: install.cut_at: "end" is none of "before", "middle", null'
    with pytest.raises(LabError, match="did you mean reboot"):
        scenario("nvidia", {"install": {"rebot": True}})
    with pytest.raises(LabError, match=r"install\.busy: 1 is not like false"):
        scenario(A3, {"install": {"busy": 1}})


def test_a_bare_host_has_the_hardware_and_no_driver() -> None:
    for family in (A2, A3, "nvidia"):
        made = hardware.files(scenario(family), bare=True)
        assert [
            path for path in made if not path.startswith(("/usr/local/lib/vllm", "/etc/vllm-lab/", "/var/lib/"))
        ] == ["/etc/systemd/system/vllm-lab-nodes.service"]
