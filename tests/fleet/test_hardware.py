"""Dressed hosts: real `docker run` lines with devices and --gpus, and hardware that is there again after a reboot."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest

from fleet.platforms import PLATFORMS
from lab.fleet import Lab
from lab.hardware import dress, dress_all
from lab.image import load_image
from lab.scenario import Scenario, scenario

pytestmark = pytest.mark.lab

NAME, SUBNET = "hwtest", "10.231.83.0/24"
A2, A3, H100 = (f"{NAME}-{index}" for index in range(3))
IMAGES = {
    "quay.io/ascend/vllm-ascend:v0.13.0": "0.13.0",
    "quay.io/ascend/vllm-ascend:v0.13.0-a3": "0.13.0",
    "quay.io/ascend/vllm-ascend:v0.23.0-a3": "0.23.0",
    "vllm/vllm-openai:v0.20.0": "0.20.0",
}
SCENARIOS: dict[str, Scenario] = {
    A2: scenario("ascend-a2", {"peers": ["10.30.1.11"], "devices": {"5": {"health": "Warning"}}}),
    A3: scenario("ascend-a3", {"devices": {"15": {"present": False}}}, 1),
    H100: scenario("nvidia"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three dressed hosts with images."""
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("hwlab"), say=print, shared=True)
    made.up(3, docker=True)
    try:
        dress_all(made, SCENARIOS)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def ids(lab: Lab) -> dict[str, str]:
    """The images' ids as the lab tells them."""
    return load_image(lab, [A2, A3, H100], IMAGES, say=print)


def ask(lab: Lab, host: str, command: str) -> str:
    """Output of a command that must succeed."""
    done = lab.ssh(host, command, timeout=120)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def docker_run(family: str, indices: list[int], image: str, script: str) -> str:
    """The line of files/units/docker.sh.j2, for a script instead of a unit."""
    platform = PLATFORMS[family]
    words = ["docker", "run", "--rm", "--init", "--net=host", "--shm-size=1g", *platform.docker_options(indices)]
    for device in platform.devices(indices):
        words += ["--device", device]
    for mount in (*platform.mounts, *platform.cluster_mounts):
        words += ["-v", mount]
    return shlex.join([*words, "--entrypoint", "/bin/bash", image, "-c", script])


def test_each_host_shows_its_own_hardware(lab: Lab) -> None:
    assert ask(lab, A2, "npu-smi info").count("910B3") == 8
    assert ask(lab, A2, "npu-smi info | grep -c Warning").strip() == "1"
    assert ask(lab, A3, "npu-smi info").count("Ascend910") == 15
    assert ask(lab, A3, "hccn_tool -i 3 -vnic -g").splitlines()[1] == "vnic ipaddr: 192.1.3.196"
    assert "3 received, 0.00% packet loss" in ask(lab, A2, "hccn_tool -i 0 -ping -g address 10.30.1.11")
    assert len(ask(lab, H100, "nvidia-smi -L").splitlines()) == 8
    assert ask(lab, H100, "nv-fabricmanager --version; systemctl is-active nvidia-fabricmanager") == (
        "Fabric Manager version is : 580.95.05\nactive\n"
    )


def test_images_have_the_same_id_on_every_host_and_as_was_told(lab: Lab, ids: dict[str, str]) -> None:
    for host in (A2, A3, H100):
        shown = ask(lab, host, f"docker image inspect -f '{{{{.Id}}}}' {' '.join(IMAGES)}").split()
        assert shown == list(ids.values())


def test_loading_again_does_nothing(lab: Lab, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.image.names_archive", lambda *_: pytest.fail("something was loaded"))
    assert load_image(lab, [A2, A3, H100], IMAGES) == ids
    assert ask(lab, A2, "ls /var/lib/docker/tmp; ls /var/lib/docker | grep -c vllm-lab || true").strip() == "0"


@pytest.mark.parametrize(
    ("host", "family", "image"),
    [
        (A2, "ascend-a2", "quay.io/ascend/vllm-ascend:v0.13.0"),
        (A3, "ascend-a3", "quay.io/ascend/vllm-ascend:v0.13.0-a3"),
    ],
)
def test_a_container_gets_npus_and_the_drivers_tools(
    lab: Lab, ids: dict[str, str], host: str, family: str, image: str
) -> None:
    script = "ls /dev | grep -c davinci; npu-smi info -l | grep Total; /usr/local/Ascend/driver/tools/hccn_tool -i 0 "
    script += "-link -g; head -n 1 /etc/hccn.conf; echo $VLLM_STANDIN_VERSION $SOC_VERSION; python --version; "
    script += "PS1=x; . ~/.bashrc; echo $VLLM_LAB_BASHRC; command -v vllm"
    said = ask(lab, host, docker_run(family, [0, 1, 2, 3], image, script)).splitlines()
    cards, chip = {A2: ("4", "ascend910b1"), A3: ("2", "ascend910_9391")}[host]
    assert said[0] == "5", "four devices and their manager"
    assert said[1].split() == ["Total", "Count", ":", cards]
    assert said[2:5] == ["link status: UP", f"address_0=10.30.{host[-1]}.11", f"0.13.0 {chip}"]
    assert said[5].startswith("Python 3.")
    assert said[6:] == ["read", "/opt/standin/bin/vllm"]


def test_a_device_that_is_not_there_cannot_be_given_to_a_container(lab: Lab, ids: dict[str, str]) -> None:
    line = docker_run("ascend-a3", [15], "quay.io/ascend/vllm-ascend:v0.13.0-a3", "true")
    done = lab.ssh(A3, line)
    assert done.returncode != 0
    assert 'error gathering device information while adding custom device "/dev/davinci15"' in done.stderr


def test_a_container_gets_gpus_by_dockers_own_option(lab: Lab, ids: dict[str, str]) -> None:
    script = "echo $NVIDIA_VISIBLE_DEVICES $CUDA_VERSION; cd /dev; ls -d nvidia*"
    line = docker_run("nvidia", [0, 1], "vllm/vllm-openai:v0.20.0", script)
    assert "--gpus '\"device=0,1\"'" in line
    said = ask(lab, H100, line).splitlines()
    assert said == ["0,1 13.0.1", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    refused = lab.ssh(A2, "docker run --rm --gpus all --entrypoint true vllm/vllm-openai:v0.20.0")
    assert "could not select device driver" in refused.stderr, "a host without the toolkit's hook"


def test_dressing_again_changes_what_is_shown_and_ends_no_container(lab: Lab, ids: dict[str, str]) -> None:
    ask(lab, H100, "docker run -d --name stays --entrypoint sleep vllm/vllm-openai:v0.20.0 600")
    sick = scenario("nvidia", {"devices": {"3": {"present": False}, "*": {"fabric_state": "In Progress"}}})
    dress(lab, H100, sick)
    assert ask(lab, H100, "ls /dev | grep -c 'nvidia[0-9]'").strip() == "7"
    assert ask(lab, H100, "nvidia-smi -q | grep -c 'In Progress'").strip() == "7"
    assert json.loads(ask(lab, H100, "cat /etc/vllm-lab/scenario.json")) == sick
    assert ask(lab, H100, "docker inspect -f '{{.State.Running}}' stays; docker rm -f stays").startswith("true")
    dress(lab, H100, SCENARIOS[H100])
    assert ask(lab, H100, "ls /dev | grep -c 'nvidia[0-9]'").strip() == "8"


def test_devices_and_settings_come_back_with_the_boot_before_docker_starts(lab: Lab, ids: dict[str, str]) -> None:
    ask(lab, A2, "hccn_tool -i 1 -gateway -s gateway 10.30.9.9 && hccn_tool -i 1 -link -s down")
    lab.power_off(A2)
    lab.boot(A2)
    shown = ask(lab, A2, "hccn_tool -i 1 -gateway -g; hccn_tool -i 1 -link -g")
    assert shown == "default gateway:10.30.9.9, Iface:eth1\nlink status: UP\n"
    script = "ls /dev | grep -c davinci"
    line = docker_run("ascend-a2", list(range(8)), "quay.io/ascend/vllm-ascend:v0.13.0", script)
    ask(lab, A2, "systemctl start docker")  # waits: sshd is there first
    assert ask(lab, A2, line).strip() == "9"
    ended, began = (
        int(ask(lab, A2, f"systemctl show -P {moment}TimestampMonotonic {unit}"))
        for moment, unit in (("ActiveEnter", "vllm-lab-nodes"), ("InactiveExit", "docker"))
    )
    assert 0 < ended <= began, "nodes were there when Docker began to start"
