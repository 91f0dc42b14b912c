"""What one host shows of itself: its shell text with tools of a healthy and of a broken host, and the verdicts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.findings import Finding, error, warning
from fleet.machine import clock, docker, host, modules, network, owners, scope, weights
from fleet.snapshot import command, parse, timed
from fleet.topology import Plan
from tasks.survey import summary
from tests.unit.coverage.machine import A3_IMAGE, H100_IMAGE, HEADER, SHARD, Answer, compared, judged, plan_for
from tests.unit.plans import lay

DECODE = ("a3-pd", "10.10.0.12")
H100 = ("h100", "10.20.0.11")
NATIVE = """
title: t
source: s
platform: nvidia
runtime: native
model: {name: org/model, max_position_embeddings: 4096, weights_gb: 100}
engine: {vllm: 0.20.0}
shm_size: 4g
roles:
  serve: {tensor_parallel_size: 8, data_parallel_size: 2}
"""


def native(**data: object) -> Plan:
    """One instance over two hosts without containers."""
    return lay(NATIVE, {"devices": 8, **data}, serve=["10.0.0.11", "10.0.0.12"])


def told(findings: Iterable[Finding]) -> list[str]:
    return [f.line() for f in findings]


def ask(parts: list[str], path: Path | None = None) -> dict[str, list[str]]:
    """The sections that real shell text gives, with stand-ins for tools in a folder before the machine's own."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    text = "; ".join(["echo '@@ uid'; echo 0", *parts])
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=environment)
    assert done.stderr == "", done.stderr
    return dict(parse(done.stdout.splitlines()).sections)


def tool(folder: Path, name: str, script: str) -> None:
    """A stand-in for a tool."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


# ---- healthy hosts


@pytest.mark.parametrize(
    ("inventory", "name"),
    [("a3-pd", "10.10.0.11"), DECODE, ("a2-ray", "10.10.0.12"), H100, ("lab", "lab-0"), ("lab-pd", "lab-1")],
)
def test_nothing_is_said_of_a_healthy_host(inventory: str, name: str) -> None:
    assert told(judged(inventory, name)) == []


@pytest.mark.parametrize(
    ("inventory", "name"), [("a3-pd", "10.10.0.13"), ("a2-ray", "10.10.0.12"), ("lab", "lab-1"), ("lab-2p2d", "lab-1")]
)
def test_nothing_is_said_of_healthy_hosts_together(inventory: str, name: str) -> None:
    assert told(compared(inventory, name)) == []


@pytest.mark.parametrize("inventory", ["a3-pd", "a2-ray", "h100", "lab", "lab-pd"])
def test_the_whole_question_is_quiet_and_answered_by_any_machine(inventory: str) -> None:
    plan = plan_for(inventory)
    node = plan.fleet.nodes[0]
    mine = [part for m in (owners, host, network, docker, weights) for part in m.sections(plan, node)]
    sections = ask(mine)
    assert modules.parse(sections).host.arch == os.uname().machine


# ---- each rule: the fault of one host, and the one line about it


REJECT = "-A INPUT -j REJECT --reject-with icmp-host-prohibited"


def change(**sections: list[str]) -> Callable[[Answer], None]:
    return lambda answered: answered.update(sections)


def container(name: str, devices: str = "", gpus: str = "", privileged: str = "false", more: str = "runc") -> str:
    return f"0f1e2d3c4b5a6978|/{name}|true|{privileged}|{gpus}|{more}|{devices}|"


FAULTS: dict[str, tuple[tuple[str, str], Callable[[Answer], None], str]] = {
    "loopback": (
        DECODE,
        change(name=["atlas-2", "127.0.1.1"]),
        "warning: 10.10.0.12: the host's own name atlas-2 resolves to 127.0.1.1 (what goes by the name instead of the "
        "plan's address tells its peers to call themselves); give atlas-2 the address 10.10.0.12 in /etc/hosts "
        "[NET-LOOPBACK]",
    ),
    "ephemeral": (
        DECODE,
        change(reserved=["8472"]),
        "warning: 10.10.0.12: ports 60000-60031 lie in 32768-60999, from which the kernel gives ports to any "
        "connection, and not among the reserved ones (a start then fails now and then with Address already in use); "
        "sysctl -w net.ipv4.ip_local_reserved_ports=8472,60000-60031, and the same in /etc/sysctl.d [HOST-EPHEMERAL]",
    ),
    "firewall": (
        DECODE,
        change(firewall=["ufw", "-P INPUT DROP", "-A INPUT -i lo -j ACCEPT", "nft ip filter", "nft inet firewall"]),
        "warning: 10.10.0.12: a firewall refuses connections here (ufw, iptables, whose INPUT chain refuses, nftables, "
        "inet firewall) (with port 22 alone open everything looks well until the engines call each other); let the "
        "fleet's hosts reach TCP ports 7390, 8000, 13390, 30100-30131, 60000-60031, and waive this rule [NET-FIREWALL]",
    ),
    "firewall of RHEL and openEuler": (
        DECODE,
        change(
            firewall=[
                "-P INPUT ACCEPT",
                "-A INPUT -i lo -j ACCEPT",
                "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
                REJECT,
                "-A INPUT -s 10.10.0.0/24 -j ACCEPT",
            ]
        ),
        "warning: 10.10.0.12: a firewall refuses connections here (iptables, whose INPUT chain refuses) (with port 22 "
        "alone open everything looks well until the engines call each other); let the fleet's hosts reach TCP ports "
        "7390, 8000, 13390, 30100-30131, 60000-60031, and waive this rule [NET-FIREWALL]",
    ),
    "the name of another machine": (
        DECODE,
        change(name=["atlas-2", "10.99.0.1"]),
        "warning: 10.10.0.12: the host's own name atlas-2 resolves to 10.99.0.1, which is not its own (what goes by "
        "the name cannot listen there, and tells its peers to call another machine); give atlas-2 the address "
        "10.10.0.12 in /etc/hosts [NET-LOOPBACK]",
    ),
    "no clock": (
        DECODE,
        change(services=["inactive"] * 9),
        "warning: 10.10.0.12: no service sets the clock (chrony, timesyncd, ntpd) (clocks of hosts that work together "
        "drift apart, and so do their logs, leases and certificates); install and enable chrony [HOST-TIME]",
    ),
    "hccl port": (
        DECODE,
        change(
            listen=[f'LISTEN 0 9 0.0.0.0:{p} 0.0.0.0:* users:(("x",pid=7,fd=3))' for p in (60000, 60001)],
            owners=["7 0::/system.slice/exporter.service"],
        ),
        "error: 10.10.0.12: ports 60000-60001, which HCCL may take, are held by exporter.service; stop it "
        "(ss -ltnp 'sport = 60000'), or move one [HOST-PORT]",
    ),
    "docker down": (
        DECODE,
        change(docker=["||||[]", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."], images=[]),
        "error: 10.10.0.12: Docker does not answer (Cannot connect to the Docker daemon at "
        "unix:///var/run/docker.sock.); systemctl start docker, and see journalctl -u docker there [DOCKER-DOWN]",
    ),
    "user namespaces": (
        DECODE,
        change(docker=["28.1.1|systemd|runc|/var/lib/docker|[name=seccomp,profile=builtin name=userns]"]),
        "error: 10.10.0.12: Docker maps root in containers to another user (a container then has neither the host's "
        "network nor its devices); take userns-remap out of /etc/docker/daemon.json [DOCKER-USERNS]",
    ),
    "architecture": (
        DECODE,
        change(host=["arch aarch64"]),
        f"error: 10.10.0.12: image {A3_IMAGE} is for amd64, the host is arm64 (it ends with exec format error); "
        f"docker pull --platform linux/arm64 {A3_IMAGE} [IMAGE-ARCH]",
    ),
    "devices taken": (
        DECODE,
        change(containers=[container("notebook", "/dev/davinci3 /dev/davinci4 /dev/davinci_manager ")]),
        "error: 10.10.0.12: container notebook holds davinci3-4, which the plan gives to its engines (a device that "
        "another container holds is refused with dcmi -8005 or -8020); docker stop notebook [DOCKER-DEVICES]",
    ),
    "devices by Ascend's runtime": (
        DECODE,
        change(containers=[container("notebook", more="ascend") + "0-1,8"]),
        "error: 10.10.0.12: container notebook holds davinci0-1, 8, which the plan gives to its engines (a device "
        "that another container holds is refused with dcmi -8005 or -8020); docker stop notebook [DOCKER-DEVICES]",
    ),
    "privileged": (
        DECODE,
        change(containers=[container("agent", privileged="true")]),
        "warning: 10.10.0.12: container agent is privileged, so that it can take any NPU (a device that another "
        "container holds is refused with dcmi -8005 or -8020); give agent the devices that it needs by --device "
        "[DOCKER-DEVICES]",
    ),
    "our name": (
        DECODE,
        change(containers=[container("vllm-decode-0").replace("|true|", "|false|", 1)]),
        "error: 10.10.0.12: there is a container vllm-decode-0 that no unit of vllm-fleet started (the start of our "
        "unit of that name would remove it); docker rm -f vllm-decode-0, or docker rename it [DOCKER-NAME]",
    ),
    "limits that cannot be raised": (
        DECODE,
        change(containerd=["Max locked memory  8388608  8388608  bytes", "CapEff:\t000001fffeffffff"]),
        "error: 10.10.0.12: vllm-decode-0 is to have no limit of locked memory, and Docker may not raise limits here "
        "(docker run --ulimit memlock=-1 is refused with error setting rlimit); set raise_limits = False for this "
        "host, or give its Docker CAP_SYS_RESOURCE [HOST-MEMLOCK]",
    ),
    "few files": (
        DECODE,
        change(containerd=["Max open files  1024  4096  files", "Max locked memory unlimited unlimited bytes"]),
        "warning: 10.10.0.12: an engine may have 4096 files open (every client takes one; vLLM wants 65535); "
        "set LimitNOFILE=1048576 in containerd.service [HOST-NOFILE]",
    ),
    "proxy": (
        DECODE,
        change(dockerconfig=["proxied"]),
        "warning: 10.10.0.12: /root/.docker/config.json gives every container a proxy (requests between the hosts may "
        "then go to that proxy); name the hosts in its noProxy, or take proxies out [HOST-PROXY]",
    ),
    "no hook": (
        H100,
        change(gpuhook=[]),
        "error: 10.20.0.11: Docker cannot give GPUs to a container (docker run --gpus ends with could not select "
        "device driver); install nvidia-container-toolkit, restart docker [DOCKER-GPUS]",
    ),
    "runtime": (
        H100,
        change(docker=["28.1.1|systemd|nvidia|/var/lib/docker|[]"]),
        "warning: 10.20.0.11: Docker's default runtime is nvidia (newer images then load their own CUDA libraries and "
        "end with CUDA error 803); take default-runtime out of /etc/docker/daemon.json; --gpus works without "
        "[DOCKER-RUNTIME]",
    ),
    "gpus by request": (
        H100,
        change(containers=[container("notebook", gpus="yes")]),
        "warning: 10.20.0.11: container notebook has GPUs without their device nodes, and Docker's cgroup driver is "
        "systemd (the daemon-reload of a deploy takes them away: Failed to initialize NVML: Unknown Error); nvidia-ctk "
        "system create-dev-char-symlinks --create-all, or start it with --device /dev/nvidia0 ... [DOCKER-CGROUP]",
    ),
    "truncated": (
        DECODE,
        change(shards=[f"180 {SHARD}"]),
        "error: 10.10.0.12: /mnt/models/vllm-ascend/Qwen3-235B-A22B-w8a8 has files that are cut short: "
        f"{SHARD} has 180 of {8 + len(HEADER) + 128} bytes (loading ends with MetadataIncompleteBuffer or "
        "HeaderTooLarge); fetch them again (git lfs pull, or the download of these files) [WEIGHTS-TRUNCATED]",
    ),
    "shard missing": (
        DECODE,
        change(index=[SHARD, "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"]),
        "error: 10.10.0.12: /mnt/models/vllm-ascend/Qwen3-235B-A22B-w8a8 lacks model-00002-of-00003.safetensors, and "
        "1 more (loading ends in the middle, or leaves layers empty); fetch what is missing [WEIGHTS-SHARDS]",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_in_one_line(name: str) -> None:
    of, fault, line = FAULTS[name]
    assert told(judged(*of, fault)) == [line]


@pytest.mark.parametrize(
    "harmless",
    [
        change(name=["atlas-2", "127.0.1.1", "10.10.0.12"]),  # one address that others can reach
        change(name=["atlas-2"]),  # does not resolve at all
        change(firewall=["-P INPUT ACCEPT", "-A INPUT -s 192.0.2.9/32 -j DROP"]),
        change(firewall=["-P INPUT DROP", "-A INPUT -s 10.10.0.0/24 -j ACCEPT", "nft ip filter"]),
        change(firewall=["-P INPUT DROP", "-A INPUT -i eth0 -j ACCEPT"]),
        change(firewall=["-P INPUT ACCEPT", "-A INPUT -s 10.10.0.0/24 -p tcp -j ACCEPT", REJECT]),
        change(name=["atlas-2", "fe80::1%eth0"]),
        change(host=["arch x86_64", "container"], services=["inactive"] * 9),  # its clock is the outer machine's
        change(services=[]),  # not told
        change(containers=[container("stopped", "/dev/davinci3 ").replace("|true|", "|false|", 1)]),
        change(containers=[container("vllm-decode-0", "/dev/davinci3 ")], linked=["vllm-decode-0"]),
        change(containers=[container("vllm-chat-serve-0", "/dev/davinci3 ")], linked=["vllm-chat-serve-0"]),
        change(
            dockerconfig=['"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}'],
            containerd=["Max locked memory  8388608  8388608  bytes", "CapEff:\t000001fffeffffff"],
        ),
        change(containerd=["Max locked memory  8388608  8388608  bytes", "CapEff:\t000001ffffffffff"]),
        change(dockerroot=["/dev/sda1 9 8 1 99% /var/lib/docker"]),  # all images are there
        change(shards=[], headers=[], index=[]),  # other formats
        change(headers=[f"{SHARD} {len(HEADER)}"]),  # an end of the header without offsets
        change(portrange=["32768 50000"], reserved=[]),
    ],
)
def test_what_is_no_fault_is_not_told(harmless: Callable[[Answer], None]) -> None:
    assert told(judged(*DECODE, harmless)) == []


@pytest.mark.parametrize(
    "harmless",
    [
        change(containers=[container("notebook", "/dev/nvidia0 /dev/nvidiactl ", "yes")]),
        change(containers=[container("notebook", gpus="yes")], gpuhook=["/usr/bin/nvidia-container-toolkit", "links"]),
        change(containers=[container("notebook", gpus="yes")], docker=["28.1.1|cgroupfs|runc|/var/lib/docker|[]"]),
        change(gpuhook=["/etc/cdi/nvidia.yaml"]),
    ],
)
def test_gpus_that_nobody_loses(harmless: Callable[[Answer], None]) -> None:
    assert told(judged(*H100, harmless)) == []


def test_missing_weights_and_images_say_whether_there_is_room_for_them() -> None:
    def bare(answered: Answer) -> None:
        answered.update(paths=[], images=[], shards=[], headers=[], index=[])
        answered["weightsdisk"] = ["/dev/sda1 99 1 97656250 1% /"]
        answered["dockerroot"] = ["/dev/sda1 99 1 20000000 1% /"]

    assert [(f.rule, f.what) for f in judged(*DECODE, bare)] == [
        ("WEIGHTS-MISSING", "there are no weights at /mnt/models/vllm-ascend/Qwen3-235B-A22B-w8a8/config.json"),
        ("IMAGE-MISSING", f"image {A3_IMAGE} is not on this host"),
        ("DOCKER-DISK", f"/var/lib/docker has 20 GB left, and {A3_IMAGE} is not there yet"),
        ("WEIGHTS-DISK", "/mnt/models has 100 GB left, the weights need 240 GB"),
    ]


# ---- hosts without containers


def machine(plan: Plan, **sections: list[str]) -> list[str]:
    return told(modules.judge(plan, plan.fleet.nodes[0], modules.parse({"host": ["arch x86_64"], **sections})))


def test_a_native_host_is_judged_by_systemds_limits() -> None:
    manager = ["DefaultLimitNOFILE=4096", "DefaultLimitMEMLOCK=8388608"]
    assert machine(native(), manager=manager) == []  # the unit raises them
    assert machine(native(raise_limits=False), manager=manager) == [
        "warning: 10.0.0.11: an engine may lock 8 MB of memory, and raise_limits = False leaves it at that (transfers "
        "between hosts register memory, and end with Cannot allocate memory); set DefaultLimitMEMLOCK=infinity in "
        "/etc/systemd/system.conf, or leave out raise_limits [HOST-MEMLOCK]",
        "warning: 10.0.0.11: an engine may have 4096 files open (every client takes one; vLLM wants 65535); "
        "set DefaultLimitNOFILE=1048576 in /etc/systemd/system.conf [HOST-NOFILE]",
    ]


def test_a_native_host_needs_shared_memory_and_no_settings_that_others_left() -> None:
    said = machine(
        native(),
        host=["arch x86_64", "shm tmpfs 65536 0 65536 0% /dev/shm"],
        manager=["http_proxy=", "HTTPS_PROXY="],
        nccl=["NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=eth9"],
    )
    assert [line.partition(": 10.0.0.11: ")[2].partition(" (")[0] for line in said] == [
        "/dev/shm has 64 MB, the recipe's shm_size is 4g",
        "systemd gives every service HTTPS_PROXY, http_proxy",
        "/etc/nccl.conf sets NCCL_IB_DISABLE, NCCL_SOCKET_IFNAME",
    ]
    assert machine(native(), manager=["http_proxy=", "no_proxy="]) == []


def test_huge_pages_are_looked_for_where_the_recipe_asks() -> None:
    asking = native(env={"MC_STORE_USE_HUGEPAGE": "1"})
    assert machine(native(), host=["arch x86_64", "hugepages 0"]) == []
    assert machine(asking, host=["arch x86_64", "hugepages 2048"]) == []
    assert machine(asking, host=["arch x86_64", "hugepages 0"]) == [
        "warning: 10.0.0.11: vllm-serve-0 asks for huge pages, and the host has none set aside (the allocation fails, "
        "or falls back to small pages); set vm.nr_hugepages, or take the variable out of the recipe [HOST-HUGEPAGES]"
    ]


@pytest.mark.parametrize(
    ("of", "line"),
    [
        ((3, 0, []), "3 hosts checked, nothing to complain about"),
        ((1, 1, []), "1 host checked, 1 not reached"),
        (
            (2, 0, [error("A-B", "x", "w", "m"), warning("A-C", "x", "w", "m"), warning("A-C", "y", "w", "m")]),
            "2 hosts checked, 1 error, 2 warnings",
        ),
        ((2, 0, [replace(error("A-B", "x", "w", "m"), waived="known")]), "2 hosts checked, 1 waived"),
    ],
)
def test_the_last_line_counts(of: tuple[int, int, list[Finding]], line: str) -> None:
    assert summary(*of) == line


# ---- over hosts


def test_two_names_of_one_machine_and_keys_that_were_cloned() -> None:
    made = plan_for("a3-pd")
    names = [node.name for node in made.fleet.nodes]

    def hosts(*pairs: tuple[str, str]) -> list[str]:
        states = {n: host.State(machine=m, key=k) for n, (m, k) in zip(names, pairs, strict=True)}
        return [f"{f.severity} {f.where}: {f.what}" for f in host.between(made, states)]

    assert hosts(("1", "a"), ("2", "b"), ("3", "c")) == []
    assert hosts(("1", ""), ("1", ""), ("1", "")) == [], "hosts that told nothing"
    assert hosts(("1", "a"), ("2", "b"), ("1", "a")) == [
        "error 10.10.0.13: this is the same machine as 10.10.0.11, or a copy of it with its machine-id and SSH keys"
    ]
    assert hosts(("1", "a"), ("2", "a"), ("3", "c")) == ["warning 10.10.0.12: it has the SSH host keys of 10.10.0.11"]


def test_interfaces_of_one_instance_have_one_mtu() -> None:
    jumbo = change(link=["2: eth0: <UP,LOWER_UP> mtu 9000 qdisc mq state UP"])
    assert told(compared("a3-pd", "10.10.0.13", jumbo)) == [
        "warning: 10.10.0.13: eth0 has MTU 9000, eth0 of 10.10.0.12, the head of decode-0, has 1500 (large packets "
        "are lost where the path is narrower than the sender thinks); ip link set eth0 mtu 1500, and the same in the "
        "network's configuration [NET-MTU]"
    ]
    assert told(compared("a3-pd", "10.10.0.11", jumbo)) == []  # an instance of its own


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ((0, 0, 0), []),
        ((0, 4, -4), []),
        ((0, 1, 3600), ["10.10.0.13: the clock is 3599 s ahead of that of 10.10.0.12"]),
        ((90, 0, 1), ["10.10.0.11: the clock is 89 s ahead of that of 10.10.0.13"]),
    ],
)
def test_a_clock_that_is_off_is_told(offsets: tuple[float, ...], said: list[str]) -> None:
    plan = plan_for("a3-pd")
    states = {
        node.name: clock.State(100.0, 5000.25 + off, 5000.75 + off, 101.0)
        for node, off in zip(plan.fleet.nodes, offsets, strict=True)
    }
    assert [f"{f.where}: {f.what}" for f in clock.between(plan, states)] == said


def test_a_slow_answer_is_no_wrong_clock() -> None:
    """The second host was asked at once and told its time after a minute."""
    plan = plan_for("lab")
    states = {"lab-0": clock.State(100, 5000, 5001, 101), "lab-1": clock.State(100, 5060, 5061, 161)}
    assert told(clock.between(plan, states)) == []


def test_the_time_is_read_at_both_ends_of_the_answer() -> None:
    from fleet.snapshot import Question

    done = subprocess.run(["sh", "-c", command(Question())], capture_output=True, text=True)
    seen = timed(parse(done.stdout.splitlines()), 1.0, 2.0)
    assert seen.clock and seen.clock.asked == 1.0 and 0 <= seen.clock.ended - seen.clock.began < 60
    assert timed(parse(["@@ uid", "0", "@@ began", "12.%N"]), 1.0, 2.0).clock is None


# ---- what is ours


def test_processes_and_ports_of_our_units_and_containers_are_ours() -> None:
    plan = plan_for("a3-pd")
    node = plan.fleet.node("10.10.0.12")
    ids = ("b5b3f1b203e035774a", "26735da6a24d6d4920", "99935da6a24d6d4920")
    names = ("vllm-decode-0", "vllm-chat-serve-0", "vllm-by-hand")
    state = owners.parse(
        {
            "groups": [
                "/system.slice/vllm-decode-0.service 10 11",
                *(f"/system.slice/docker-{i}.scope {n}" for n, i in enumerate(ids, 20)),
                f"/docker/{ids[0]} 30",
                "/system.slice/vllm-by-hand.service 40",
            ],
            "linked": ["vllm-chat-serve-0"],
            "containers": [f"{i}|/{name}|true" for i, name in zip(ids, names, strict=True)],
        }
    )
    assert owners.processes(plan, node, state) == {10, 11, 20, 21, 30}
    assert owners.serving(plan, node, state)
    others = replace(state, groups={g: its for g, its in state.groups.items() if not {*its} & {10, 20, 30}})
    assert others.groups and not owners.serving(plan, node, others), "another service's engine, and one by hand"


def test_a_second_look_at_a_running_host_finds_nothing_foreign() -> None:
    group = "/system.slice/docker-b5b3f1b203e035774a458fc8d746f3d9.scope"

    def running(answered: Answer) -> None:
        answered["listen"] = [
            f'LISTEN 0 9 0.0.0.0:{p} 0.0.0.0:* users:(("vllm",pid=20,fd=3))' for p in (8000, 13390, 30100, 60000)
        ]
        answered["owners"] = [f"20 0::{group}"]
        answered["groups"] = [f"{group} 20"]
        answered["linked"] = ["vllm-decode-0"]
        answered["containers"] = [
            container("vllm-decode-0", "/dev/davinci0 ").replace("0f1e2d3c4b5a6978", group[21:53])
        ]

    assert told(judged(*DECODE, running)) == []


def test_groups_are_read_from_proc() -> None:
    plan = plan_for("lab")
    groups = owners.parse(ask(owners.sections(plan, plan.fleet.nodes[0]))).groups
    assert all(pids for pids in groups.values())


# ---- the shell text, with stand-ins for the tools


def test_docker_is_asked_in_a_form_that_is_read(tmp_path: Path) -> None:
    tool(tmp_path, "docker", 'case "$1" in info) echo "27.0|cgroupfs|runc|/|[name=userns]";; ps) echo aa bb;; '
         'inspect) echo "aa|/one|true|false|yes|nvidia|/dev/nvidia0 /dev/nvidiactl |"; shift 2; test "$*" = "aa bb";; '
         "esac")  # fmt: skip
    tool(
        tmp_path,
        "systemctl",
        f'test "$*" = "show -p MainPID containerd docker" && echo MainPID=0 && echo MainPID={os.getpid()}',
    )
    plan = plan_for("h100")
    state = docker.parse(ask(docker.sections(plan, plan.fleet.nodes[0]), tmp_path))
    assert state is not None
    assert (state.version, state.cgroup_driver, state.root, state.security) == (
        "27.0",
        "cgroupfs",
        "/",
        "[name=userns]",
    )
    assert state.containers == (
        docker.Container("one", asks_for_gpus=True, runtime="nvidia", devices=("/dev/nvidia0", "/dev/nvidiactl")),
    )
    assert state.root_free and state.open_files and state.memlock


def test_a_docker_that_hangs_is_left_after_a_while(tmp_path: Path) -> None:
    tool(tmp_path, "docker", "exit 1")
    tool(tmp_path, "timeout", "exit 124")
    plan = plan_for("h100")
    state = docker.parse(ask(docker.sections(plan, plan.fleet.nodes[0]), tmp_path))
    assert state == docker.State(why_not="no answer in 20 s")


def test_a_docker_that_is_stopped_says_why_in_its_own_words() -> None:
    words = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    form = 'template: :1:2: executing "" at <.ServerVersion>: nil pointer'
    assert docker.parse({"docker": [words, form]}) == docker.State(why_not=words)
    assert docker.parse({"docker": [form]}) == docker.State(why_not="its daemon does not run")


def test_a_docker_that_is_not_installed_is_not_called_broken(tmp_path: Path) -> None:
    plan = plan_for("h100")
    text = "; ".join(docker.sections(plan, plan.fleet.nodes[0]))
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert docker.parse(dict(parse(["@@ uid", "0", *done.stdout.splitlines()]).sections)) is None


def test_firewalls_and_names_are_asked_in_a_form_that_is_read(tmp_path: Path) -> None:
    tool(tmp_path, "getent", "echo '127.0.1.1 STREAM atlas'; echo '127.0.1.1 DGRAM'; echo '::1 STREAM'")
    tool(tmp_path, "uname", "echo atlas")
    plan = plan_for("a3-pd")
    state = network.parse(ask(network.sections(plan, plan.fleet.node("10.10.0.12")), tmp_path))
    assert (state.name, state.name_is) == ("atlas", ("127.0.1.1", "::1"))
    assert state.ephemeral and 1024 <= state.ephemeral.start < state.ephemeral.stop <= 65536


def test_services_are_asked_in_a_form_that_is_read(tmp_path: Path) -> None:
    tool(tmp_path, "systemctl", "shift; for s in $*; do test $s = chrony && echo active || echo inactive; done; exit 3")
    plan = plan_for("a3-pd")
    state = host.parse(ask(host.sections(plan, plan.fleet.node("10.10.0.12")), tmp_path))
    assert state.active == {"chrony"}
    assert state.shm and state.hugepages is not None


# ---- weights, on real files


def shard(path: Path, size: int = 0, pointer: bool = False) -> None:
    """A safetensors file whose tensors take 4096 bytes, or one that was cut to a size."""
    tensors = {
        f"layers.{n}.weight": {"dtype": "U8", "shape": [1024], "data_offsets": [n * 1024, n * 1024 + 1024]}
        for n in range(4)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}, separators=(",", ":")).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(4096)
    if pointer:
        whole = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4096\n"
    path.write_bytes(whole[: size or len(whole)])


def weights_of(folder: Path) -> tuple[weights.State, list[str]]:
    plan = lay(NATIVE, {"weights_dir": str(folder)}, serve=["10.0.0.11", "10.0.0.12"])
    state = weights.parse(ask(weights.sections(plan, plan.fleet.nodes[0])))
    return state, [f.what.removeprefix(f"{folder}/org/model ") for f in weights.judge(plan, plan.fleet.nodes[0], state)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three whole shards and their index."""
    folder = tmp_path / "org/model"
    folder.mkdir(parents=True)
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    for name in names:
        shard(folder / name)
    index = {"metadata": {"total_size": 12288}, "weight_map": {f"layers.{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_whole_shards_are_no_fault(model: Path) -> None:
    state, said = weights_of(model.parents[1])
    assert said == []
    assert [(s.size - 8 - s.header, s.ends) for s in state.shards] == [(4096, 4096)] * 3
    assert len(state.wanted) == 3


@pytest.mark.parametrize("size", [1, 7, 8, 100, 4095])
def test_a_shard_that_is_cut_anywhere_is_told(model: Path, size: int) -> None:
    shard(model / "model-00002-of-00003.safetensors", size)
    _, said = weights_of(model.parents[1])
    assert len(said) == 1
    assert said[0].startswith("has files that are cut short: model-00002-of-00003.safetensors ")


def test_pointers_and_missing_files_are_told(model: Path) -> None:
    shard(model / "model-00001-of-00003.safetensors", pointer=True)
    shard(model / "model-00002-of-00003.safetensors", pointer=True)
    (model / "model-00003-of-00003.safetensors").unlink()
    assert weights_of(model.parents[1])[1] == [
        "has files that are cut short: model-00001-of-00003.safetensors is a pointer of Git LFS, not the file, "
        "and 1 more",
        "lacks model-00003-of-00003.safetensors",
    ]


def test_what_only_looks_like_a_shard_hides_no_shard_and_holds_nobody_up(model: Path) -> None:
    (model / "a.safetensors").mkdir()
    (model / "my model.safetensors").touch()
    assert weights_of(model.parents[1])[1] == []
    os.mkfifo(model / "b.safetensors")
    shard(model / "model-00002-of-00003.safetensors", 5000 // 2)
    (said,) = weights_of(model.parents[1])[1]
    assert said.startswith("has files that are cut short: b.safetensors (0 bytes)") and said.endswith(", and 1 more")


def test_the_index_of_another_form_of_the_weights_asks_for_nothing(model: Path) -> None:
    other = model / "consolidated.safetensors.index.json"
    other.write_text('{"weight_map": {"a": "consolidated-00001-of-00002.safetensors"}}')
    assert weights_of(model.parents[1])[1] == []
    (model / "model.safetensors.index.json").unlink()
    assert weights_of(model.parents[1])[1] == ["lacks consolidated-00001-of-00002.safetensors"]


def test_weights_that_give_no_answer_are_told_and_not_judged(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SECONDS", 1)
    (model / "model.safetensors.index.json").unlink()
    os.mkfifo(model / "model.safetensors.index.json")
    state, said = weights_of(model.parents[1])
    assert state.late and said == [f"the files in {model} were not looked at in 1 s"]


def test_a_folder_without_weights_says_how_much_room_there_is(tmp_path: Path) -> None:
    state, said = weights_of(tmp_path / "none")
    assert (state.shards, state.there) == ((), False)
    assert state.free and said in ([], [f"{tmp_path}/none has {state.free / 1e9:.0f} GB left, the weights need 100 GB"])


def test_only_hosts_that_work_with_others_are_asked_for_the_network() -> None:
    for inventory, name, asked in (
        ("a3-pd", "10.10.0.11", True),
        ("lab", "lab-0", False),
        ("h100", "10.20.0.11", False),
    ):
        plan = plan_for(inventory)
        assert bool(network.sections(plan, plan.fleet.node(name))) is asked
    assert scope.peer_ports(plan_for("a3-pd"), plan_for("a3-pd").fleet.node("10.10.0.11")) == tuple(range(30000, 30016))


def test_an_image_of_the_same_digest_is_the_same_whatever_its_id() -> None:
    def loaded(answered: Answer) -> None:
        answered["images"] = [f"{A3_IMAGE} sha256:ffff amd64 {A3_IMAGE.partition(':')[0]}@sha256:aa"]

    assert told(compared("a3-pd", "10.10.0.13", loaded)) == []
    assert H100_IMAGE in plan_for("h100").units[0].image
