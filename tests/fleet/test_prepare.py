"""Bare hosts made ready by ``deploy/prepare.py``: NPU hosts by the vendors' packages from a bundle, GPU hosts by the
distribution's from a repository, as stand-ins; Docker, apt, restarts and the firewall are real."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab import hardware, packages
from lab.fleet import Lab
from lab.image import light_archive
from tests.fleet.conftest import FLEET, PYINFRA, Fleet, Run, run

pytestmark = pytest.mark.lab

NAME, SUBNET = "preptest", "10.231.92.0/24"
HOSTS = [f"{NAME}-{i}" for i in range(3)]
DRIVER, OLDER, NEWER = "25.5.1", "25.3.RC1", "26.0.RC1"
FIRMWARE = "7.8.0.6.201"
IMAGE = "quay.io/ascend/vllm-ascend:v0.13.0-a3"
GPU_DRIVER, GPU_OLDER = "580.95.05-0ubuntu0.22.04.1", "580.65.06-0ubuntu0.22.04.1"
# Everything that a run must not touch when it is dry or has nothing to do. What lists packages rewrites its cache.
LISTING = (
    "find /etc /usr/local /var/lib/vllm-fleet /usr/lib/systemd -name __pycache__ -prune "
    "-o -printf '%p %m %s %T@\\n' 2>/dev/null | grep -v '^/usr/local/lib/vllm_lab ' | sort; "
    "docker images -aq | sort; dpkg-query -W"
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three hosts with Docker."""
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("prepare"), say=print, shared=True)
    try:
        made.up(3, docker=True)
        yield made
    finally:
        made.down()


def kernel(lab: Lab) -> str:
    return lab.ssh(HOSTS[0], "uname -r").stdout.strip()


def sums(folder: Path) -> None:
    """SHA256SUMS of a bundle."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder)}\n" for p in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture(scope="module")
def npu_bundle(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that bare Atlas 800 A3 need; each test has a copy that it may change."""
    from fleet.prepare.images import tar_name

    folder = tmp_path_factory.mktemp("npu-bundle")
    for part in ("packages", "images", "apt"):
        (folder / part).mkdir()
    packages.driver_run(folder / "packages", DRIVER, "x86_64", "ascend-a3")
    packages.firmware_run(folder / "packages", FIRMWARE, "ascend-a3")
    packages.common_debs(folder / "apt", kernel(lab), docker=False)
    packages.apt_repository(folder / "apt")
    (folder / "images" / tar_name(IMAGE)).write_bytes(light_archive({IMAGE: "0.13.0"}))
    sums(folder)
    return folder


@pytest.fixture
def npus(lab: Lab, npu_bundle: Path, tmp_path: Path) -> Fleet:
    """One prefill and one decode of two hosts as bare Atlas 800 A3, with all that they need in a bundle."""
    folder = shutil.copytree(npu_bundle, tmp_path / "bundle")
    row(tmp_path, DRIVER)
    forget(lab)
    groups = {"prefill": HOSTS[:1], "decode": HOSTS[1:], "proxy": HOSTS[:1]}
    data = {
        "recipe": "qwen3-235b-a22b-w8a8/a3-pd",
        "raise_limits": False,
        "catalogue": str(tmp_path / "row.yaml"),
        "bundle": str(folder),
        "image": IMAGE,
    }
    return Fleet(lab, tmp_path, groups, data)


def forget(lab: Lab) -> None:
    """What earlier tests brought to the hosts."""
    for host in HOSTS:
        assert lab.ssh(host, "rm -rf /var/lib/vllm-fleet /var/tmp/vllm-fleet-*").returncode == 0


def row(folder: Path, driver: str) -> None:
    """A catalogue row of one's own."""
    text = {
        "title": "of the test",
        "platform": "ascend-a3",
        "source": "tests",
        "driver": {"version": driver, "packages": [{"pattern": f"*npu-driver_{driver}_linux-{{arch}}.run"}]},
        "firmware": {"version": FIRMWARE, "packages": [{"pattern": f"*npu-firmware_{FIRMWARE}.run"}]},
        "cann": {"version": "8.5.0"},
        "vllm": "0.13.0",
        "vllm_ascend": "0.13.0",
        "image": IMAGE,
    }
    (folder / "row.yaml").write_text(yaml.safe_dump(text))


def prepare(one: Fleet, *options: str, verb: str = "prepare") -> Run:
    """``pyinfra -y INVENTORY deploy/prepare.py``."""
    return run([*PYINFRA, "-y", *options, str(one.path), f"deploy/{verb}.py"])


def boot(one: Fleet, host: str) -> str:
    return one.ssh(host, "cat /proc/sys/kernel/random/boot_id")


def driver_of(one: Fleet, host: str) -> str:
    """What runs, as the tool says it."""
    return one.ssh(host, "npu-smi info -t board -i 0 | sed -n 's/.*Software Version *: //p'")


def test_three_bare_hosts_become_ready_and_stay_so(lab: Lab, npus: Fleet) -> None:
    hardware.bare(lab, HOSTS, "ascend-a3")
    hardware.steer(lab, HOSTS[1], reboot=True)
    npus.data["docker_config"] = {"registry-mirrors": ["https://mirror.example"]}
    npus.data["firewall"] = True
    before = {host: (npus.ssh(host, LISTING), boot(npus, host)) for host in HOSTS}

    dry = run([*PYINFRA, "--dry", str(npus.path), "deploy/prepare.py"])
    assert dry.code == 0, dry.text
    for host in HOSTS:
        dry.line(host, f"driver {DRIVER}")
        assert npus.ssh(host, LISTING) == before[host][0], "the dry run changed something"

    done = prepare(npus)
    assert done.code == 0, done.text
    for host in HOSTS:
        assert driver_of(npus, host) == DRIVER
        assert npus.ssh(host, "npu-smi info -t board -i 7 | grep -c 'Compatibility *: OK'") == "1"
        assert npus.ssh(host, f"docker image inspect -f '{{{{.Architecture}}}}' {IMAGE}") == "amd64"
        config = json.loads(npus.ssh(host, "cat /etc/docker/daemon.json"))
        assert config["registry-mirrors"] == ["https://mirror.example"]
        assert npus.ssh(host, "nft list table inet vllm_fleet | grep -c 'policy accept'") == "1"
        done.line(host, "ready")
    # The firmware counts from the next boot, or from a driver installed after it, which on a bare host comes first.
    assert all(boot(npus, host) != before[host][1] for host in HOSTS), (
        "nothing ran what was installed without a restart"
    )

    after = [npus.ssh(host, LISTING) for host in HOSTS]
    again = prepare(npus)
    assert again.code == 0, again.text
    again.line("Grand total")
    assert again.line("Grand total").split()[3] == "-", again.text
    assert [npus.ssh(host, LISTING) for host in HOSTS] == after
    for host in HOSTS:
        again.line(host, "nothing to change")

    npus.data["firewall"] = False
    assert prepare(npus, "--limit", HOSTS[0], verb="firewall").code == 0
    assert lab.ssh(HOSTS[0], "nft list table inet vllm_fleet").returncode != 0, "switched off, it is gone"


def test_of_a_mixed_fleet_each_host_gets_what_is_right_for_it(lab: Lab, npus: Fleet) -> None:
    """The first serves and is left alone, the second is raised, the third has a newer driver and is refused."""
    older = {"driver_version": OLDER, "firmware_version": "7.7.0.9.220"}
    hardware.dress_fleet(lab, HOSTS, "ascend-a3", {HOSTS[0]: {"driver_version": OLDER}, HOSTS[1]: older,
                                                   HOSTS[2]: {"driver_version": NEWER}})  # fmt: skip
    npus.ssh(HOSTS[1], "rm -f /var/log/ascend_seclog/*")
    unit = "/etc/vllm-fleet/releases/x/vllm-prefill-0.service"
    npus.ssh(
        HOSTS[0],
        f"mkdir -p /etc/vllm-fleet/releases/x; printf '[Service]\\nExecStart=/bin/sleep 600\\n' >{unit}; "
        f"ln -sf {unit} /etc/systemd/system/vllm-prefill-0.service; systemctl daemon-reload; "
        "systemctl start vllm-prefill-0",
    )
    try:
        done = prepare(npus, verb="drivers")
    finally:
        npus.ssh(HOSTS[0], "systemctl stop vllm-prefill-0; rm -rf /etc/systemd/system/vllm-prefill-0.service "
                           "/etc/vllm-fleet/releases; systemctl daemon-reload")  # fmt: skip
    assert done.code == 1
    done.line("error", HOSTS[0], "vllm-prefill-0", "DRIVER-BUSY")
    done.line("error", HOSTS[2], "DRIVER-DOWNGRADE")
    assert [driver_of(npus, host) for host in HOSTS] == [OLDER, DRIVER, NEWER]
    log = npus.ssh(HOSTS[1], "cat /var/log/ascend_seclog/*")
    assert 0 <= log.lower().index("firmware") < log.lower().rindex("driver")

    hardware.dress_fleet(lab, HOSTS[2:], "ascend-a3")
    done = prepare(npus, verb="drivers")
    assert done.code == 0, done.text
    assert [driver_of(npus, host) for host in HOSTS] == [DRIVER] * 3


def test_hosts_that_fail_or_lose_power_are_mended_by_the_next_run(lab: Lab, npus: Fleet) -> None:
    """And the one between them gets ready."""
    hardware.bare(lab, HOSTS, "ascend-a3")
    hardware.steer(lab, HOSTS[0], fail="0x0095", only="driver")
    hardware.steer(lab, HOSTS[2], cut_at="middle", only="driver")
    done = prepare(npus, verb="drivers")
    assert done.code == 1
    done.line("error", HOSTS[0], "0x0095")
    assert driver_of(npus, HOSTS[1]) == DRIVER
    assert "complete" not in npus.ssh(HOSTS[2], "grep Status= /etc/ascend_install.info || true").split("=")
    hardware.steer(lab, HOSTS[0], fail=None)
    done = prepare(npus, verb="drivers")
    assert done.code == 0, done.text
    assert [driver_of(npus, host) for host in HOSTS] == [DRIVER] * 3


def test_what_is_not_right_at_hand_is_told_before_a_host_is_changed(lab: Lab, npus: Fleet) -> None:
    """A package for another processor, a damaged one, none that is named; the last as JSON."""
    hardware.bare(lab, HOSTS, "ascend-a3")
    folder = Path(str(npus.data["bundle"]))
    (package,) = folder.glob("packages/*driver*")
    whole = package.read_bytes()
    packages.flip_a_byte(package)
    done = prepare(npus, verb="drivers")
    assert done.code == 1
    done.line("error", package.name, "checksum")

    package.write_bytes(whole)
    package.rename(folder / "packages" / package.name.replace("x86_64", "aarch64"))
    sums(folder)
    done = prepare(npus, "--limit", HOSTS[0], verb="drivers")
    assert done.code == 1
    done.line("error", "DRIVER-PACKAGE", "x86_64")

    del npus.data["catalogue"]
    npus.data["recipe"] = str(npus.folder / "recipe.yaml")
    recipe = yaml.safe_load(Path("files/recipes/qwen3-235b-a22b-w8a8/a3-pd.yaml").read_text())
    recipe.pop("catalogue", None)
    (npus.folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = run([*FLEET, "run", str(npus.path), "drivers", "--yes", "--json"])
    assert done.code == 1
    answer = json.loads(next(line for line in done.text.splitlines() if line.startswith("{")))
    assert {(f["where"], f["rule"]) for f in answer["findings"] if f["severity"] == "error"} == {
        (host, "DRIVER-CATALOGUE") for host in HOSTS
    }
    for host in HOSTS:
        assert npus.ssh(host, "ls -d /usr/local/Ascend 2>/dev/null || echo none") == "none"


@pytest.fixture
def gpus(lab: Lab, tmp_path: Path) -> Fleet:
    """Two replicas on HGX H100, with two drivers in the repository of the bundle."""
    folder = tmp_path / "bundle"
    (folder / "apt").mkdir(parents=True)
    for version in (GPU_OLDER, GPU_DRIVER):
        packages.nvidia_debs(folder / "apt", version)
    packages.common_debs(folder / "apt", kernel(lab), docker=False)
    packages.apt_repository(folder / "apt")
    sums(folder)
    gpu_row(tmp_path, "580.95.05")
    forget(lab)
    data = {"recipe": "qwen3-235b-a22b/h100", "catalogue": str(tmp_path / "row.yaml"), "bundle": str(folder)}
    return Fleet(lab, tmp_path, {"serve": HOSTS[:2]}, {**data, "raise_limits": False})


def gpu_row(folder: Path, driver: str) -> None:
    text = {
        "title": "of the test",
        "platform": "nvidia",
        "source": "tests",
        "gpu_driver": {"version": driver, "apt": ["nvidia-driver-580-server-open", "nvidia-fabricmanager-580"]},
        "toolkit": {"version": "*"},
        "cuda": "13.0",
        "vllm": "0.20.0",
        "image": "vllm/vllm-openai:v0.20.0",
    }
    (folder / "row.yaml").write_text(yaml.safe_dump(text))


def version_of(one: Fleet, host: str) -> tuple[str, str]:
    """Driver and fabric manager, as they say it themselves."""
    driver = one.ssh(host, "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u")
    return driver, one.ssh(host, "nv-fabricmanager --version | grep -o '[0-9.]*$'")


def test_gpu_hosts_get_driver_and_fabric_manager_of_one_version_and_keep_them(lab: Lab, gpus: Fleet) -> None:
    hardware.bare(lab, HOSTS[:2], "nvidia")
    gpu_row(gpus.folder, "580.65.06")
    done = prepare(gpus, verb="drivers")
    assert done.code == 0, done.text
    assert {version_of(gpus, host) for host in HOSTS[:2]} == {("580.65.06", "580.65.06")}
    held = gpus.ssh(HOSTS[0], "apt-mark showhold").split()
    assert {"nvidia-driver-580-server-open", "nvidia-fabricmanager-580"} <= set(held)
    assert gpus.ssh(HOSTS[0], "systemctl is-active nvidia-fabricmanager nvidia-persistenced").split() == ["active"] * 2

    gpu_row(gpus.folder, "580.95.05")
    hardware.steer(lab, HOSTS[1], reboot=True)
    was = [boot(gpus, host) for host in HOSTS[:2]]
    done = prepare(gpus, verb="drivers")
    assert done.code == 0, done.text
    assert {version_of(gpus, host) for host in HOSTS[:2]} == {("580.95.05", "580.95.05")}
    assert boot(gpus, HOSTS[1]) != was[1]
    again = prepare(gpus, verb="drivers")
    assert again.code == 0 and again.line("Grand total").split()[3] == "-", again.text

    gpu_row(gpus.folder, "580.65.06")
    back = prepare(gpus, "--limit", HOSTS[0], verb="drivers")
    assert back.code == 1
    back.line("error", HOSTS[0], "DRIVER-DOWNGRADE")
