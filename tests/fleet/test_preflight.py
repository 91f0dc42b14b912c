"""The preflight on booted hosts that pose as Atlas A3, Atlas A2 and HGX H100: healthy, and with faults planted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fleet import Lab
from lab.hardware import dress_fleet
from lab.image import load_image
from tests.fleet.conftest import FLEET, PYINFRA, Fleet, Run, run

pytestmark = pytest.mark.lab

NAME, SUBNET = "prefltest", "10.231.89.0/24"
HOSTS = [f"{NAME}-{i}" for i in range(3)]
W8A8, BF16 = "vllm-ascend/Qwen3-235B-A22B-w8a8", "Qwen/Qwen3-235B-A22B"
# Limits of a host inside another: true of the lab, and told.
OF_THE_LAB = {"HOST-MEMLOCK", "HOST-NOFILE"}
# The lab's own tools keep their bytecode beside them.
LISTING = (
    "find /etc /usr/local /var/lib/docker/containers -name vllm_lab -prune -o -name __pycache__ -prune "
    "-o -printf '%p %m %s %T@\\n' 2>/dev/null | grep -v '^/usr/local/Ascend/driver/lib64 ' | sort"
)
HEADER = b'{"w":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}}'
SHARD = len(HEADER).to_bytes(8, "little") + HEADER + bytes(64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with one small shard each."""
    folder = tmp_path_factory.mktemp("models")
    for name in (W8A8, BF16):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps({"max_position_embeddings": 40960}))
        (folder / name / "model-00001-of-00001.safetensors").write_bytes(SHARD)
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Lab]:
    """Three hosts with Docker, whose ports are reserved as the guides ask for."""
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("preflight"), say=print, shared=True)
    made.up(3, docker=True, mounts={str(models): "/mnt/models"})
    try:
        for host in HOSTS:
            done = made.ssh(host, "sysctl -w net.ipv4.ip_local_reserved_ports=36000-36999,60000-60031")
            assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def images(lab: Lab) -> None:
    """Every image on every host."""
    load_image(lab, HOSTS, {"quay.io/ascend/vllm-ascend:v0.13.0-a3": "0.13.0"})
    load_image(lab, HOSTS, {"quay.io/ascend/vllm-ascend:v0.13.0": "0.13.0", "vllm/vllm-openai:v0.20.0": "0.20.0"})


@pytest.fixture
def a3(lab: Lab, images: None, tmp_path: Path) -> Fleet:
    """One prefill and one decode of two hosts, all as healthy Atlas 800 A3."""
    dress_fleet(lab, HOSTS, "ascend-a3")
    groups = {"prefill": HOSTS[:1], "decode": HOSTS[1:], "proxy": HOSTS[:1]}
    data = {"recipe": "qwen3-235b-a22b-w8a8/a3-pd", "raise_limits": False}
    return Fleet(lab, tmp_path, groups, data)


def preflight(one: Fleet, *options: str) -> Run:
    """``fleet run INVENTORY preflight``."""
    return run([*FLEET, "run", str(one.path), "preflight", *options])


def findings(one: Fleet) -> tuple[int, list[dict[str, str]]]:
    """The exit code, and what was found on the machines."""
    done = preflight(one, "--json")
    answer = json.loads(next(line for line in done.text.splitlines() if line.startswith("{")))
    return done.code, [f for f in answer["findings"] if f["where"] in HOSTS]


def test_healthy_hosts_of_each_family_give_no_error(lab: Lab, a3: Fleet, tmp_path: Path) -> None:
    before = {host: a3.ssh(host, LISTING).splitlines() for host in HOSTS}
    code, found = findings(a3)
    assert code == 0
    assert {f["rule"] for f in found} == OF_THE_LAB
    for host in HOSTS:
        assert set(a3.ssh(host, LISTING).splitlines()) ^ set(before[host]) == set(), "something was changed"

    dress_fleet(lab, HOSTS[:2], "ascend-a2")
    groups = {"ray_head": HOSTS[:1], "ray_worker": HOSTS[1:2]}
    code, found = findings(Fleet(lab, tmp_path, groups, {**a3.data, "recipe": "qwen3-235b-a22b/a2-ray"}, name="a2"))
    assert (code, [f for f in found if f["rule"] not in OF_THE_LAB]) == (0, [])

    dress_fleet(lab, HOSTS[2:], "nvidia")
    data = {**a3.data, "recipe": "qwen3-235b-a22b/h100"}
    code, found = findings(Fleet(lab, tmp_path, {"serve": HOSTS[2:]}, data, name="h100"))
    assert (code, [f for f in found if f["rule"] not in OF_THE_LAB]) == (0, [])


def test_the_last_line_counts(a3: Fleet) -> None:
    done = preflight(a3)
    assert done.code == 0
    assert done.text.rstrip().splitlines()[-1].startswith("3 hosts checked, ")
    assert "error" not in done.text.rstrip().splitlines()[-1]


def test_planted_faults_are_told_with_their_hosts_and_end_the_run_with_1(lab: Lab, a3: Fleet, models: Path) -> None:
    prefill, head, rank = HOSTS
    faults = {
        prefill: {"devices": {"5": {"health": "Alarm", "error_codes": ["80E01801"]}}},
        rank: {"devices": {"*": {"tls": 1}}},
    }
    dress_fleet(lab, HOSTS, "ascend-a3", faults)
    shard = models / W8A8 / "model-00001-of-00001.safetensors"
    shard.write_bytes(SHARD[:100])
    listen = 'import socket, time; s = socket.create_server(("", 8000)); time.sleep(600)'
    a3.ssh(head, f"systemd-run -q --unit=squatter python3 -c '{listen}'")
    a3.ssh(head, "docker run -d --name notebook --device /dev/davinci3 --entrypoint sleep "
                 "quay.io/ascend/vllm-ascend:v0.13.0-a3 600")  # fmt: skip
    a3.ssh(head, f"cp /etc/hosts /root/hosts; echo 127.0.1.1 {head} >/etc/hosts")
    a3.ssh(rank, "ip link set host0 mtu 1400; iptables -A INPUT -s 10.231.89.1 -j ACCEPT; iptables -P INPUT DROP")
    before = [a3.ssh(host, LISTING).splitlines() for host in HOSTS]
    try:
        code, found = findings(a3)
        dry = run([*PYINFRA, "--dry", str(a3.path), "deploy/preflight.py"])
        after = [a3.ssh(host, LISTING).splitlines() for host in HOSTS]
    finally:
        shard.write_bytes(SHARD)
        a3.ssh(head, "systemctl stop squatter; docker rm -f notebook; cat /root/hosts >/etc/hosts")
        a3.ssh(rank, "ip link set host0 mtu 1500; iptables -P INPUT ACCEPT; iptables -F INPUT")
    assert after == before, "something was changed"
    told = {(f["severity"], f["where"], f["rule"]) for f in found if f["rule"] not in OF_THE_LAB}
    assert told == {
        ("error", prefill, "NPU-HEALTH"),
        ("error", head, "HOST-PORT"),
        ("error", head, "DOCKER-DEVICES"),
        ("warning", head, "NET-LOOPBACK"),
        ("error", rank, "NPU-TLS"),
        ("warning", rank, "NET-MTU"),
        ("warning", rank, "NET-FIREWALL"),
        *(("error", host, "WEIGHTS-TRUNCATED") for host in HOSTS),
    }
    assert code == 1
    assert dry.code == 1, "comparisons between hosts are made without applying, too"
    dry.line("NPU-TLS", rank)
    dry.line("3 hosts checked, ")


def test_what_serve_refuses_is_what_the_preflight_told(lab: Lab, a3: Fleet) -> None:
    dress_fleet(lab, HOSTS, "ascend-a3", {HOSTS[2]: {"devices": {"*": {"tls": 1}}}})
    done = a3.fleet("--yes")
    assert done.code == 1
    done.line("error", HOSTS[2], "NPU-TLS")
    assert a3.ssh(HOSTS[2], "ls -d /etc/vllm-fleet 2>/dev/null || echo none") == "none"
    assert a3.ssh(HOSTS[1], "systemctl list-units --plain --no-legend 'vllm-decode-*' | wc -l") == "0"


def test_limits_that_a_host_may_not_raise_are_told_before_docker_refuses_them(a3: Fleet) -> None:
    a3.data["raise_limits"] = True
    code, found = findings(a3)
    assert code == 1
    assert {(f["severity"], f["rule"]) for f in found if f["rule"] == "HOST-MEMLOCK"} == {("error", "HOST-MEMLOCK")}
