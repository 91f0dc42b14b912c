"""Bare hosts: the lab's stand-in packages bring drivers to booted machines, as the vendors' packages would."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import packages
from lab.fleet import Lab
from lab.hardware import bare, dress_fleet, steer

pytestmark = pytest.mark.lab

NAME, SUBNET = "baretest", "10.231.91.0/24"
NPU, GPU = f"{NAME}-0", f"{NAME}-1"
ARCH = os.uname().machine
OTHER = "aarch64" if ARCH == "x86_64" else "x86_64"
PLACE = "/opt/stand-ins"
OLD, NEW = "575.57.08-0ubuntu1", "575.64.05-0ubuntu1"
DRIVER = f"Ascend-hdk-910b-npu-driver_25.5.1_linux-{ARCH}.run"
FIRMWARE = "Ascend-hdk-910b-npu-firmware_7.8.0.6.201.run"
PARTS = (
    *("nvidia-driver-575-server-open", "nvidia-utils-575-server", "nvidia-compute-utils-575-server"),
    *("libnvidia-compute-575-server", "nvidia-kernel-common-575-server", "nvidia-dkms-575-server-open"),
)
FABRIC = "nvidia-fabricmanager-575"
USER = "groupadd -f HwHiAiUser; id HwHiAiUser >/dev/null 2>&1 || useradd -g HwHiAiUser -m HwHiAiUser"
# A rack without internet: only this folder, however the host's own sources look.
APT = (
    "export DEBIAN_FRONTEND=noninteractive; echo 'deb [trusted=yes] file:/opt/stand-ins ./' >/etc/apt/lab.list; "
    "apt() { apt-get -y -q -o Dir::Etc::sourcelist=/etc/apt/lab.list -o Dir::Etc::sourceparts=- "
    '"$@" </dev/null; }; '
)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    for arch in (ARCH, OTHER):
        packages.driver_run(folder, "25.5.1", arch, "ascend-a2")
    packages.firmware_run(folder, "7.8.0.6.201", "ascend-a2")
    packages.cann_runs(folder, "8.5.1", ARCH, "ascend-a2")
    damaged = shutil.copy(folder / DRIVER, folder / "damaged.run")
    packages.flip_a_byte(damaged)
    for version in (OLD, NEW):
        packages.nvidia_debs(folder, version)
    packages.common_debs(folder, os.uname().release)
    return packages.apt_repository(folder)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, stand_ins: Path) -> Iterator[Lab]:
    """Two booted hosts with the packages at PLACE."""
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("barelab"), say=print, shared=True)
    try:
        made.up(2)
        for host in made.hosts:
            shutil.copytree(stand_ins, host.root / PLACE.lstrip("/"))
            (host.root / PLACE.lstrip("/")).chmod(0o755)
        yield made
    finally:
        made.down()


@pytest.fixture
def npu(lab: Lab) -> Lab:
    """The first host as an A2 that nobody has installed anything on."""
    bare(lab, [NPU], "ascend-a2")
    ask(lab, NPU, USER)
    return lab


@pytest.fixture
def gpu(lab: Lab) -> Lab:
    bare(lab, [GPU], "nvidia")
    return lab


def tell(lab: Lab, host: str, command: str) -> tuple[int, str]:
    """Exit code and output, both streams, without colours."""
    done = lab.ssh(host, f"{{ {command}\n}} 2>&1", timeout=120)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def ask(lab: Lab, host: str, command: str) -> str:
    """Output of a command that must succeed."""
    code, said = tell(lab, host, command)
    assert code == 0, (command, said)
    return said


def board(lab: Lab) -> dict[str, str]:
    lines = ask(lab, NPU, "npu-smi info -t board -i 0").splitlines()
    pairs = dict(line.strip().split(" : ") for line in lines)
    shown = {key.strip(): value for key, value in pairs.items()}
    return {key: shown[key] for key in ("Software Version", "Firmware Version", "Compatibility")}


def driver(version: str) -> str:
    """A driver's packages in one version: apt takes the newest of a part that is not named, and then none fits."""
    return " ".join(f"{name}={version}" for name in PARTS)


def reboot(lab: Lab, host: str) -> None:
    """A reboot by the host itself."""
    lab.ssh(host, "touch /run/before-the-reboot; systemctl reboot")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if lab.ssh(host, "test ! -e /run/before-the-reboot").returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{host} did not come back")


def test_a_bare_host_has_no_driver_until_the_packages_came(npu: Lab) -> None:
    code, _ = tell(npu, NPU, "command -v npu-smi hccn_tool || test -e /usr/local/Ascend || ls /dev/davinci0")
    assert code != 0
    done = ask(npu, NPU, f"{PLACE}/{DRIVER} --full --install-for-all --quiet")
    assert "Driver package installed successfully! The new version takes effect immediately." in done
    assert ask(npu, NPU, "ls /dev | grep -c davinci").strip() == "9"
    assert ask(npu, NPU, "npu-smi info").count("910B3") == 8
    assert "link status: UP" in ask(npu, NPU, "hccn_tool -i 7 -link -g")
    assert board(npu) == {"Software Version": "25.5.1", "Firmware Version": "7.1.0.4.220", "Compatibility": "NOK"}
    done = ask(npu, NPU, f"{PLACE}/{FIRMWARE} --full --quiet")
    assert "Firmware package installed successfully! Reboot now or after driver installation" in done
    assert board(npu)["Firmware Version"] == "7.1.0.4.220"


def test_a_fresh_driver_may_need_a_reboot_and_a_firmware_does(npu: Lab) -> None:
    steer(npu, NPU, reboot=True)
    done = ask(npu, NPU, f"{PLACE}/{DRIVER} --full --quiet")
    assert "Driver package installed successfully! Reboot needed for installation/upgrade to take effect!" in done
    assert tell(npu, NPU, "npu-smi info") == (1, "dcmi module initialize failed. ret is -8001\n")
    assert tell(npu, NPU, "ls /dev/davinci0")[0] != 0
    ask(npu, NPU, f"{PLACE}/{FIRMWARE} --full --quiet")
    reboot(npu, NPU)
    assert board(npu) == {"Software Version": "25.5.1", "Firmware Version": "7.8.0.6.201", "Compatibility": "OK"}
    assert ask(npu, NPU, "ls /dev | grep -c davinci").strip() == "9"


def test_an_older_driver_is_raised_firmware_first(lab: Lab) -> None:
    older = {"all": {"driver_version": "25.2.1", "firmware_version": "7.7.0.6.236"}}
    dress_fleet(lab, [NPU], "ascend-a2", older)
    ask(lab, NPU, USER)
    assert board(lab) == {"Software Version": "25.2.1", "Firmware Version": "7.7.0.6.236", "Compatibility": "OK"}
    ask(lab, NPU, f"{PLACE}/{FIRMWARE} --upgrade --quiet")
    steer(lab, NPU, busy=True)
    done = ask(lab, NPU, f"{PLACE}/{DRIVER} --upgrade --quiet")
    assert "Driver package upgraded finished!" in done
    assert "[WARNING]Kernel modules can not be removed, reboot needed for installation/upgrade to take effect!" in done
    assert board(lab) == {"Software Version": "25.2.1", "Firmware Version": "7.7.0.6.236", "Compatibility": "OK"}
    steer(lab, NPU, busy=False)
    done = ask(lab, NPU, f"{PLACE}/{DRIVER} --upgrade --quiet")
    assert "Driver package upgraded successfully! The new version takes effect immediately." in done
    assert board(lab) == {"Software Version": "25.5.1", "Firmware Version": "7.8.0.6.201", "Compatibility": "OK"}


def test_what_is_refused_changes_nothing(npu: Lab) -> None:
    other = f"Ascend-hdk-910b-npu-driver_25.5.1_linux-{OTHER}.run"
    for command, told in {
        f"{PLACE}/damaged.run --full --quiet": "Error in SHA256 checksums: ",
        f"{PLACE}/{other} --full --quiet": f"the architecture of the run package arch:{OTHER} is inconsistent",
        f"su ops -c '{PLACE}/{DRIVER} --full'": "ERR_NO:0x0093;ERR_DES:do not have root permission",
        f"userdel -rf HwHiAiUser; {PLACE}/{DRIVER} --full": "ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists!",
    }.items():
        code, said = tell(npu, NPU, command)
        assert code != 0 and told in said, said
    assert tell(npu, NPU, "test -e /usr/local/Ascend")[0] != 0


def test_power_that_goes_in_the_middle_is_repaired_by_the_next_run(npu: Lab) -> None:
    steer(npu, NPU, cut_at="middle")
    assert tell(npu, NPU, f"{PLACE}/{DRIVER} --full --quiet; echo ended with $?")[1].endswith("ended with 137\n")
    npu.power_off(NPU)
    npu.boot(NPU)
    assert "Driver_Install_Status=uncomplete" in ask(npu, NPU, "cat /etc/ascend_install.info")
    assert tell(npu, NPU, "npu-smi info")[0] == 127
    ask(npu, NPU, f"{PLACE}/{DRIVER} --full --quiet")
    assert board(npu)["Software Version"] == "25.5.1"


def test_cann_is_installed_without_a_container(npu: Lab) -> None:
    toolkit, ops, nnal = (f"./Ascend-cann-{part}_8.5.1_linux-{ARCH}.run" for part in ("toolkit", "910b-ops", "nnal"))
    lines = (
        f"set -e; cd {PLACE}; {toolkit} --full --quiet; {ops} --install --quiet",
        ". /usr/local/Ascend/ascend-toolkit/set_env.sh",
        f"{nnal} --install --quiet",
    )
    assert ask(npu, NPU, "\n".join(lines)).count("install success, installed in /usr/local/Ascend.") == 3
    places = (f"cann/{ARCH}-linux/*.info", f"ascend-toolkit/latest/{ARCH}-linux/*.info", "nnal/*.info")
    said = ask(npu, NPU, f"cd /usr/local/Ascend; grep -h ^version= {' '.join(places)}; readlink cann")
    assert said == "version=8.5.1\n" * 5 + "cann-8.5.1\n"


def test_gpu_packages_come_from_a_folder_without_any_network(gpu: Lab) -> None:
    done = ask(gpu, GPU, f"{APT} apt update && apt install {driver(OLD)} {FABRIC}={OLD} chrony net-tools")
    assert "Setting up nvidia-driver-575-server-open" in done
    assert ask(gpu, GPU, "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort | uniq -c").split() == [
        *("8", "575.57.08")
    ]
    assert ask(gpu, GPU, "ls /dev | grep -c 'nvidia[0-9]'").strip() == "8"
    assert ask(gpu, GPU, "systemctl is-active chrony; chronyc tracking | grep -c Normal").split() == ["active", "1"]
    fabric = "nvidia-smi --query-gpu=fabric.state,persistence_mode --format=csv,noheader -i 0"
    assert ask(gpu, GPU, fabric) == "In Progress, Disabled\n"
    ask(gpu, GPU, "systemctl enable -q --now nvidia-fabricmanager nvidia-persistenced")
    assert ask(gpu, GPU, fabric) == "Completed, Enabled\n"


def test_a_gpu_driver_that_is_cut_off_is_left_half_configured_and_goes_on(gpu: Lab) -> None:
    """And then another one needs a reboot, and its fabric manager the same version."""
    steer(gpu, GPU, cut_at="middle")
    code, said = tell(gpu, GPU, f"{APT} apt update && apt install {PARTS[0]}")
    assert code == 100 and "Sub-process /usr/bin/dpkg returned an error code" in said
    assert "NVIDIA-SMI has failed because it couldn't communicate" in tell(gpu, GPU, "nvidia-smi -L")[1]
    assert PARTS[0] in ask(gpu, GPU, "dpkg --audit")
    ask(gpu, GPU, "dpkg --configure -a </dev/null")
    assert len(ask(gpu, GPU, "nvidia-smi -L").splitlines()) == 8

    ask(gpu, GPU, f"{APT} apt install {FABRIC} nvidia-container-toolkit")
    assert "version 1.17.8 " in ask(gpu, GPU, "nvidia-ctk --version")
    ask(gpu, GPU, "nvidia-ctk system create-dev-char-symlinks --create-all")
    assert ask(gpu, GPU, "readlink /dev/char/195:7") == "../nvidia7\n"
    steer(gpu, GPU, cut_at=None, reboot=True)
    ask(gpu, GPU, f"{APT} apt install --allow-downgrades {driver(OLD)}")
    assert tell(gpu, GPU, "nvidia-smi -L") == (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n",
    )
    reboot(gpu, GPU)
    assert len(ask(gpu, GPU, "nvidia-smi -L").splitlines()) == 8
    code, _ = tell(gpu, GPU, "systemctl start nvidia-fabricmanager")
    assert code != 0
    said = ask(gpu, GPU, "journalctl -b -o cat --no-pager -u nvidia-fabricmanager")
    assert (
        "fabric manager NVIDIA GPU driver interface version 575.64.05 don't match with driver version 575.57.08. "
        "Please update with matching NVIDIA driver package."
    ) in said
