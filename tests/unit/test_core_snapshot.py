"""Reading what a host answers."""

from __future__ import annotations

import os
import subprocess

import pytest

from fleet.snapshot import Question, Snapshot, command, parse

ANSWER = """\
@@ uid
0
@@ address
2: enp67s0f0    inet 10.10.0.11/24 brd 10.10.0.255 scope global enp67s0f0\\       valid_lft forever preferred_lft forever
2: enp67s0f0    inet6 fd00::11/64 scope global dynamic \\       valid_lft 86391sec preferred_lft 14391sec
3: bond0    inet 192.168.7.11/16 brd 192.168.255.255 scope global bond0\\       valid_lft forever preferred_lft forever
5: docker0    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0\\       valid_lft forever preferred_lft forever
@@ link
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000
2: enp67s0f0@if5: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT group default qlen 1000
5: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default
@@ release
releases/0123456789ab
@@ systemd
yes
@@ tools
curl
docker
tar
@@ paths
/mnt/models/org/model/config.json
@@ disk
Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/nvme0n1p2   459395180 122341840 313643640      29% /
/dev/mapper/var   10255636   9730112      4556     100% /var
@@ engines
/opt/vllm/0.32.0 vllm-0.32.0+cpu
/opt/vllm/0.32.0 vllm_lab-0.1.0
@@ images
quay.io/ascend/vllm-ascend:v0.13.0-a3 sha256:4bc9f2
vllm/vllm-openai:v0.20.0\x20
"""  # noqa: E501


def test_a_full_answer() -> None:
    assert parse(ANSWER.splitlines()) == Snapshot(
        user_id=0,
        interfaces={
            "10.10.0.11": "enp67s0f0",
            "fd00::11": "enp67s0f0",
            "192.168.7.11": "bond0",
            "172.17.0.1": "docker0",
        },
        down=frozenset({"bond0"}),
        tools=frozenset({"curl", "docker", "tar"}),
        paths=frozenset({"/mnt/models/org/model/config.json"}),
        images={"quay.io/ascend/vllm-ascend:v0.13.0-a3": "sha256:4bc9f2"},
        engines={"/opt/vllm/0.32.0": ("vllm-0.32.0+cpu", "vllm_lab-0.1.0")},
        disk_free={"/": 321_171_087_360, "/var": 4_665_344},
        release="0123456789ab",
        systemd=True,
    )


def test_a_bare_host() -> None:
    lines = ["@@ uid", "1000", "@@ address", "@@ link", "@@ release", "@@ systemd", "@@ tools", "@@ paths", "@@ disk"]
    assert parse(lines) == Snapshot(user_id=1000)


def test_what_is_printed_before_the_answer_is_passed_over() -> None:
    assert parse(["Welcome to Ubuntu 22.04", "", "@@ uid", "0"]).user_id == 0


@pytest.mark.parametrize(
    "lines",
    [[], ["@@ uid"], ["sudo: a password is required"], ["@@ uid", "sh: id: not found"]],
    ids=["nothing", "no-id", "no-sudo", "no-number"],
)
def test_no_answer_is_said(lines: list[str]) -> None:
    with pytest.raises(ValueError):
        parse(lines)


def test_the_command_asks_this_machine() -> None:
    asked = Question(
        tools=("sh", "no-such-tool"), paths=("/etc/passwd", "/no such/path", "/"), venvs=("/no such/venv",)
    )
    seen = parse(run(command(asked)))
    assert seen.user_id == os.getuid()
    assert seen.tools == {"sh"}
    assert seen.paths == {"/etc/passwd", "/"}
    assert seen.engines == {}
    assert seen.disk_free
    assert seen.images == {}


def test_a_question_for_nothing_is_a_command_too() -> None:
    assert parse(run(command(Question()))).tools == frozenset()


def test_names_are_quoted() -> None:
    seen = parse(run(command(Question(paths=("/tmp/$(echo gone)", "/tmp/'; echo @@ uid; echo 7; '")))))
    assert seen.paths == frozenset()
    assert seen.user_id == os.getuid()


def run(text: str) -> list[str]:
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
