"""Reading what a host answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from fleet.snapshot import PATH_SECONDS, Question, Snapshot, command, parse

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
3: bond0: <BROADCAST,MULTICAST,MASTER> mtu 1500 qdisc noop state DOWN mode DEFAULT group default qlen 1000
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
@@ listen
LISTEN 0      4096         0.0.0.0:8000       0.0.0.0:*    users:(("vllm",pid=4711,fd=21))
LISTEN 0      4096            [::]:8080          [::]:*    users:(("haproxy",pid=812,fd=6),("haproxy",pid=815,fd=6))
LISTEN 0      128                *:9100             *:*    users:(("node_exporter",pid=640,fd=3))
LISTEN 0      511        127.0.0.1:13389      0.0.0.0:*    users:(("python3",pid=4712,fd=9))
LISTEN 0      4096 [fd00::11]%bond0:7000         [::]:*    users:(("my tool",pid=99,fd=4))
LISTEN 0      64           0.0.0.0:2049       0.0.0.0:*
@@ owners
4711 0::/system.slice/docker-4bc9f2.scope
812 0::/system.slice/vllm-front-door.service
815 0::/system.slice/vllm-front-door.service
640 1:name=systemd:/system.slice/node-exporter.service
4712\x20
@@ engines
/opt/vllm/0.32.0 vllm-0.32.0+cpu
/opt/vllm/0.32.0 vllm_lab-0.1.0
@@ images
quay.io/ascend/vllm-ascend:v0.13.0-a3 sha256:4bc9f2 arm64 quay.io/ascend/vllm-ascend@sha256:77aa m.io/v@sha256:77bb
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
        down=frozenset({"bond0", "docker0"}),  # one is not up, one has no signal
        links=frozenset({"lo", "enp67s0f0", "bond0", "docker0"}),
        tools=frozenset({"curl", "docker", "tar"}),
        paths=frozenset({"/mnt/models/org/model/config.json"}),
        images={"quay.io/ascend/vllm-ascend:v0.13.0-a3": "sha256:4bc9f2"},
        digests={"quay.io/ascend/vllm-ascend:v0.13.0-a3": frozenset({"sha256:77aa", "sha256:77bb"})},
        engines={"/opt/vllm/0.32.0": ("vllm-0.32.0+cpu", "vllm_lab-0.1.0")},
        disk_free={"/": 321_171_087_360, "/var": 4_665_344},
        release="0123456789ab",
        systemd=True,
        listeners={
            8000: "/system.slice/docker-4bc9f2.scope",
            8080: "/system.slice/vllm-front-door.service",
            9100: "/system.slice/node-exporter.service",
            13389: "",  # the process had ended when it was asked for
            7000: "",  # its group was not told
            2049: "",  # the kernel's own: no process
        },
    )


def test_a_bare_host() -> None:
    lines = ["@@ uid", "1000", "@@ address", "@@ link", "@@ release", "@@ systemd", "@@ tools", "@@ paths", "@@ disk"]
    assert parse(lines) == Snapshot(user_id=1000)


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ('LISTEN 0      4096   0.0.0.0:8000 0.0.0.0:*    users:(("vllm",pid=71,fd=3))', 8000),
        ('LISTEN 0      4096         [::]:8000 [::]:*    users:(("vllm",pid=71,fd=3))', 8000),
        ('LISTEN 0      4096   [fd00::11]:8000 [::]:*    users:(("vllm",pid=71,fd=3))', 8000),
        ('LISTEN 0      4096 10.10.0.11%bond0:8000 0.0.0.0:* users:(("vllm",pid=71,fd=3))', 8000),
        ('LISTEN 0      511             *:80   *:*    users:(("nginx",pid=71,fd=6),("nginx",pid=72,fd=6))', 80),
    ],
    ids=["ipv4", "ipv6-any", "ipv6", "with-device", "both"],
)
def test_a_listener_is_known_by_its_control_group(line: str, port: int) -> None:
    lines = ["@@ uid", "0", "@@ listen", line, "@@ owners", "71 0::/system.slice/vllm-serve-0.service"]
    assert parse(lines).listeners == {port: "/system.slice/vllm-serve-0.service"}


@pytest.mark.parametrize("line", ["LISTEN 0 64 0.0.0.0:2049 0.0.0.0:*", "LISTEN 0 64 [::]:2049 [::]:* "])
def test_a_listener_without_a_process_belongs_to_no_group(line: str) -> None:
    assert parse(["@@ uid", "0", "@@ listen", line, "@@ owners"]).listeners == {2049: ""}


@pytest.mark.parametrize("line", ["ss: command not found", "LISTEN", "LISTEN 0 4096 /run/x.sock 12 * 0"])
def test_a_line_without_a_port_is_no_listener(line: str) -> None:
    assert parse(["@@ uid", "0", "@@ listen", line, "@@ owners"]).listeners == {}


@pytest.mark.skipif(not shutil.which("ss"), reason="ss is not installed")
def test_a_listener_of_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in parse(run(command(Question()))).listeners


def test_the_owners_of_listeners_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for ss: the groups come from /proc."""
    listed = f'LISTEN 0 5 127.0.0.1:8000 0.0.0.0:* users:(("python3",pid={os.getpid()},fd=3))'
    (tmp_path / "ss").write_text(f"#!/bin/sh\n[ \"$*\" = -Hltnp ] && echo '{listed}'\n")
    (tmp_path / "ss").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
    assert parse(run(command(Question()))).listeners == {8000: group}


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


def test_an_environment_tells_its_engine_its_ray_and_its_python(tmp_path: Path) -> None:
    packages = tmp_path / "v1/lib/python3.11/site-packages"
    for name in ("vllm-0.13.0+empty", "vllm_ascend-0.13.0", "ray-2.47.1", "torch-2.8.0", "raylet-1.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "v1/bin").mkdir()
    (tmp_path / "v1/bin/python").write_text("#!/bin/sh\necho Python 3.11.9\n")
    (tmp_path / "v1/bin/python").chmod(0o755)
    (tmp_path / "bare").mkdir()
    seen = parse(run(command(Question(venvs=(str(tmp_path / "v1"), str(tmp_path / "bare"))))))
    assert seen.engines == {
        str(tmp_path / "v1"): ("vllm-0.13.0+empty", "vllm_ascend-0.13.0", "ray-2.47.1", "python-3.11.9")
    }


def test_a_question_for_nothing_is_a_command_too() -> None:
    assert parse(run(command(Question()))).tools == frozenset()


def test_more_questions_are_answered_in_sections_of_their_own() -> None:
    seen = parse(run(command(Question(), ["echo '@@ color'; echo red; false", "echo '@@ size'"])))
    assert (seen.sections["color"], seen.sections["size"]) == (["red"], [])
    assert list(seen.sections)[:2] == ["began", "uid"] and list(seen.sections)[-1] == "ended"


def test_an_image_is_asked_for_its_id_its_processor_and_its_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text('#!/bin/sh\ntest "$5" = one && echo sha256:1 amd64 r/one@sha256:d\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = parse(run(command(Question(images=("one", "two")))))
    assert (seen.images, seen.digests) == ({"one": "sha256:1"}, {"one": frozenset({"sha256:d"})})


def test_names_are_quoted() -> None:
    seen = parse(run(command(Question(paths=("/tmp/$(echo gone)", "/tmp/'; echo @@ uid; echo 7; '")))))
    assert seen.paths == frozenset()
    assert seen.user_id == os.getuid()


def run(text: str) -> list[str]:
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_container_of_cgroup_v1_is_known_by_its_own_group(tmp_path: Path) -> None:
    """Ubuntu 20.04: of a container's groups the last one is containerd's."""
    (tmp_path / "71").mkdir()
    groups = "2:memory:/docker/4bc9f2aa77cc\n1:name=systemd:/docker/4bc9f2aa77cc\n0::/system.slice/containerd.service\n"
    (tmp_path / "71/cgroup").write_text(groups)
    (tmp_path / "72").mkdir()
    (tmp_path / "72/cgroup").write_text("1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n")
    held = {8000: 71, 9000: 72}
    said = "".join(f'LISTEN 0 9 0.0.0.0:{p} 0.0.0.0:* users:(("a",pid={held[p]},fd=3))\n' for p in held)
    (tmp_path / "ss").write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    (tmp_path / "ss").chmod(0o755)
    text = f"PATH={tmp_path}:$PATH; " + command(Question()).replace("/proc/$p", f"{tmp_path}/$p")
    assert parse(run(text)).listeners == {8000: "/docker/4bc9f2aa77cc", 9000: "/system.slice/a.service"}


def test_a_path_that_gives_no_answer_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    question = Question(paths=(str(tmp_path / "here"), "/nope", "/gone/config.json"))
    text = 'test() { case $2 in (/gone*) exec sleep 20;; esac; [ "$@" ]; }; ' + command(question)
    begin = time.monotonic()
    seen = parse(run(text.replace(f"timeout -k 2 {PATH_SECONDS} ", "timeout 1 ")))
    assert time.monotonic() - begin < 10
    assert (seen.paths, seen.silent) == ({str(tmp_path / "here")}, {"/gone/config.json"})
