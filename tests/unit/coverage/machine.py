"""Failures that the host itself shows: its answer to the snapshot's question with the fault in it, and without."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from fleet import ROOT, admission, snapshot
from fleet.findings import Finding
from fleet.topology import Plan
from tasks.guard import plan_of
from tests.unit.coverage.case import Case

Answer = dict[str, list[str]]

A3_IMAGE = "quay.io/ascend/vllm-ascend:v0.13.0-a3"
H100_IMAGE = "vllm/vllm-openai:v0.20.0"
SHARD = "model-00001-of-00001.safetensors"
HEADER = '{"model.embed_tokens.weight":{"dtype":"BF16","shape":[8,8],"data_offsets":[0,128]}}'


@cache
def plan_for(inventory: str) -> Plan:
    """The plan of a shipped inventory."""
    return plan_of(str(ROOT / "inventories" / f"{inventory}.py"))


def answer(inventory: str, host: str) -> Answer:
    """What a host with nothing wrong answers, section by section."""
    plan = plan_for(inventory)
    node = plan.fleet.node(host)
    asked = admission.question(plan, node)
    return {
        "uid": ["0"],
        "address": [f"2: eth0    inet {node.address}/24 brd 10.255.255.255 scope global eth0"],
        "link": ["2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT group default"],
        "systemd": ["yes"],
        "tools": list(asked.tools),
        "paths": list(asked.paths),
        "disk": ["Filesystem 1024-blocks Used Available Capacity Mounted on", "/dev/sda1 9000000 1 9000000 1% /"],
        "listen": [],
        "owners": [],
        "engines": [f"{venv} {d}" for venv in asked.venvs for d in (f"vllm-{plan.recipe.engine.vllm}", "ray-2.47.1")],
        "images": [f"{image} sha256:4bc9f20d17e2 amd64 {image.partition(':')[0]}@sha256:aa" for image in asked.images],
        "linked": [],
        "groups": [],
        "host": ["arch x86_64", "hugepages 0", "shm tmpfs 33554432 0 33554432 0% /dev/shm"],
        "services": ["active", *["inactive"] * 8],
        "name": ["node-1", node.address],
        "portrange": ["32768 60999"],
        "reserved": ["36000-36999,60000-60031"],
        "firewall": [],
        **({"docker": ["28.1.1|systemd|runc|/var/lib/docker|[name=seccomp,profile=builtin name=cgroupns]"]}),
        "dockerroot": ["/dev/sda1 900000000 1 900000000 1% /var/lib/docker"],
        "containers": [],
        "containerd": ["Max open files 1048576 1048576 files", "Max locked memory unlimited unlimited bytes"],
        "gpuhook": ["/usr/bin/nvidia-container-runtime-hook"],
        "shards": [f"{8 + len(HEADER) + 128} {SHARD}"],
        "headers": [f"{SHARD} {len(HEADER)} {HEADER}"],
        "index": [SHARD],
        "weightsdisk": ["there", "/dev/sda1 900000000 1 900000000 1% /mnt"],
    }


def lines(answered: Answer) -> list[str]:
    """The answer as the host prints it."""
    return [line for name, its in answered.items() for line in (f"@@ {name}", *its)]


def judged(inventory: str, host: str, change: Callable[[Answer], object] = lambda _: None) -> Iterable[Finding]:
    """The verdict on a healthy host's answer after a change."""
    answered, plan = answer(inventory, host), plan_for(inventory)
    change(answered)
    return admission.judge(plan, plan.fleet.node(host), snapshot.parse(lines(answered)))


def compared(inventory: str, host: str, change: Callable[[Answer], object] = lambda _: None) -> Iterable[Finding]:
    """The verdict on all hosts together, one of them changed."""
    plan = plan_for(inventory)
    answers = {node.name: answer(inventory, node.name) for node in plan.fleet.nodes}
    change(answers[host])
    return admission.differences(plan, {name: snapshot.parse(lines(a)) for name, a in answers.items()})


def case(
    failure: int, rule: str, inventory: str, host: str, change: Callable[[Answer], object], over_hosts: bool = False
) -> Case:
    """A fault of one host; ``over_hosts`` where it shows only beside the others."""
    verdict = compared if over_hosts else judged
    return Case(failure, rule, lambda: verdict(inventory, host, change), lambda: verdict(inventory, host))


def _no_address_here(answered: Answer) -> None:
    answered["address"] = ["2: eth0    inet 10.10.9.9/24 brd 10.10.9.255 scope global eth0"]


def _held(answered: Answer) -> None:
    answered["listen"] = ['LISTEN 0 128 0.0.0.0:60000 0.0.0.0:* users:(("exporter",pid=640,fd=3))']
    answered["owners"] = ["640 0::/system.slice/exporter.service"]


def _other_image(answered: Answer) -> None:
    answered["images"] = [f"{A3_IMAGE} sha256:0e11d20d17e2 amd64"]


def _foreign_container(devices: str = "", gpus: str = "") -> Callable[[Answer], None]:
    def change(answered: Answer) -> None:
        answered["containers"] = [f"0f1e2d3c4b5a|/notebook|true|false|{gpus}|runc|{devices}|"]

    return change


def _little_memlock(answered: Answer) -> None:
    answered["containerd"][1] = "Max locked memory 8388608 8388608 bytes"
    answered["containerd"].append("CapEff: 000001fffeffffff")


CASES: tuple[Case, ...] = (
    case(4, "NET-ADDRESS", "a3-pd", "10.10.0.12", _no_address_here),
    case(6, "NET-LOOPBACK", "a3-pd", "10.10.0.12", lambda a: a.update(name=["node-1", "127.0.1.1"])),
    case(
        7, "NET-FIREWALL", "a3-pd", "10.10.0.12", lambda a: a.update(services=["active", *["inactive"] * 7, "active"])
    ),
    case(8, "HOST-PORT", "a3-pd", "10.10.0.12", _held),
    case(9, "VERSION-DIFFERS", "a3-pd", "10.10.0.13", _other_image, over_hosts=True),
    case(31, "DOCKER-DEVICES", "a3-pd", "10.10.0.12", _foreign_container("/dev/davinci3 /dev/davinci_manager ")),
    case(33, "VERSION-DIFFERS", "lab-ray", "lab-1", lambda a: a["engines"].append("/opt/vllm/0.32.0 ray-2.49.0"), True),
    case(38, "HOST-ENGINE", "lab", "lab-0", lambda a: a["engines"].append("/opt/vllm/0.32.0 vllm-0.11.0")),
    case(41, "WEIGHTS-TRUNCATED", "a3-pd", "10.10.0.12", lambda a: a.update(shards=[f"180 {SHARD}"])),
    case(52, "DOCKER-CGROUP", "h100", "10.20.0.11", _foreign_container(gpus="yes")),
    case(55, "HOST-MEMLOCK", "a3-pd", "10.10.0.12", _little_memlock),
)
