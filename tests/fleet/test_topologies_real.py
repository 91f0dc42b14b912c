"""The real engine over several booted hosts: data parallel, Ray, two prefill and two decode.

Each loses a unit and a host, and is whole again without a hand; all give the same text.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.engine import ensure_engine
from lab.fleet import Lab
from tests.fleet.conftest import Fleet, take_off
from tests.fleet.test_serve_real import PROMPT, complete, metric

pytestmark = [pytest.mark.lab, pytest.mark.engine]

NAME, SUBNET = "realtest", "10.231.88.0/24"
HOSTS = [f"{NAME}-{i}" for i in range(4)]
# A start of the engine takes 45 to 80 s on two cores that it shares with others, systemd's pause 10 s.
UNIT_SECONDS, HOST_SECONDS = 240, 300


def url(host: int, port: int = 8000) -> str:
    return f"http://10.231.88.{10 + host}:{port}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Four hosts with the real engine, Ray and NIXL."""
    ensure_engine(extras=["nixl", "ray"], say=print)
    lab = Lab(NAME, SUBNET, tmp_path_factory.mktemp("realtest"), say=print, shared=True)
    lab.up(4)
    yield lab
    lab.down()


@pytest.fixture(autouse=True)
def leave_nothing(hosts: Lab) -> Iterator[None]:
    yield
    take_off(hosts, HOSTS)


def fleet(lab: Lab, folder: Path, recipe: str, groups: dict[str, list[int]], bind: list[int]) -> Fleet:
    """A shipped recipe on the hosts; ``bind`` gives the core of each host's engine."""
    data = {
        "recipe": recipe,
        "weights_dir": "/opt/models",
        "venv": "/opt/vllm/0.32.0",
        "router_venv": "/opt/vllm-router",
        "raise_limits": False,
    }
    cores = {HOSTS[i]: {"env": {"VLLM_CPU_OMP_THREADS_BIND": str(core)}} for i, core in enumerate(bind)}
    return Fleet(lab, folder, {r: [HOSTS[i] for i in n] for r, n in groups.items()}, data, hosts=cores)


def within(seconds: float, what: str, done: Callable[[], bool]) -> float:
    """Seconds until it is so."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        try:
            if done():
                print(f"{what}: {time.monotonic() - begin:.0f} s")
                return time.monotonic() - begin
        except (OSError, ValueError, AssertionError):
            pass
        time.sleep(1)
    pytest.fail(f"{what}: not after {seconds} s")


def answers(entry: str, text: str, times: int = 4) -> bool:
    return all(complete(entry) == text for _ in range(times))


def started(one: Fleet, host: int, unit: str) -> str:
    """What tells one start of a unit from another."""
    return one.ssh(HOSTS[host], f"systemctl show -p InvocationID --value {unit}")


def kill(one: Fleet, host: int, unit: str) -> None:
    """The unit's processes end at once."""
    one.ssh(HOSTS[host], f"systemctl kill -s KILL {unit}")


TEXTS: dict[str, str] = {}


def test_data_parallel_over_two_hosts(hosts: Lab, tmp_path: Path) -> None:
    one = fleet(hosts, tmp_path, "lab/data-parallel", {"serve": [0, 1]}, bind=[0, 1])
    done = one.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    entry = url(0)
    text = TEXTS["data parallel"] = complete(entry)
    assert text.strip()
    assert answers(entry, text, 6)
    for rank in ("0", "1"):
        assert metric(entry, "vllm:generation_tokens_total", f'engine="{rank}"') > 0, "both hosts work"

    head = started(one, 0, "vllm-serve-0")
    kill(one, 1, "vllm-serve-0")  # the rank without an API
    within(UNIT_SECONDS, "whole after a rank was killed", lambda: answers(entry, text))
    assert started(one, 0, "vllm-serve-0") != head, "the head started anew with it"

    rank = started(one, 1, "vllm-serve-0")
    hosts.power_off(HOSTS[0])
    hosts.boot(HOSTS[0])
    within(HOST_SECONDS, "whole after the head's host lost its power", lambda: answers(entry, text))
    assert started(one, 1, "vllm-serve-0") != rank, "the other rank started anew with it"


def test_ray_over_two_hosts(hosts: Lab, tmp_path: Path) -> None:
    one = fleet(hosts, tmp_path, "lab/ray", {"ray_head": [0], "ray_worker": [1]}, bind=[0, 1])
    done = one.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    entry = url(0)
    text = TEXTS["Ray"] = complete(entry)
    said = one.ssh(HOSTS[0], "/opt/vllm/0.32.0/bin/python -m ray.scripts.scripts status 2>&1 || true")
    assert len(re.findall(r"^ *1 node_", said, re.MULTILINE)) == 2, said

    kill(one, 1, "vllm-ray-serve-0")
    within(UNIT_SECONDS, "whole after a Ray worker was killed", lambda: answers(entry, text))
    hosts.power_off(HOSTS[0])
    hosts.boot(HOSTS[0])
    within(HOST_SECONDS, "whole after the Ray head's host lost its power", lambda: answers(entry, text))


def test_two_prefill_two_decode(hosts: Lab, tmp_path: Path) -> None:
    groups = {"prefill": [0, 2], "decode": [1, 3], "proxy": [0]}
    one = fleet(hosts, tmp_path, "lab/prefill-decode", groups, bind=[0, 0, 0, 0])
    done = one.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    entry = url(0, 8080)
    text = TEXTS["prefill and decode"] = complete(entry)

    def all_healthy() -> bool:
        with urllib.request.urlopen(f"{entry}/readiness", timeout=10) as answer:
            counts = json.load(answer)
        return all(counts[role] == {"healthy": 2, "total": 2} for role in ("prefill", "decode"))

    within(60, "four healthy", all_healthy)
    for i in range(12):
        complete(entry, f"{i}: {PROMPT}")
    for host in (1, 3):
        assert metric(url(host), "vllm:prompt_tokens_by_source_total", "external_kv_transfer") > 100
    for host in (0, 2):
        assert metric(url(host), "vllm:prompt_tokens_by_source_total", "local_compute") > 100

    kill(one, 3, "vllm-decode-1")
    within(60, "served by the other decode", lambda: answers(entry, text))
    within(UNIT_SECONDS, "whole after a decode was killed", lambda: all_healthy() and answers(entry, text))
    hosts.power_off(HOSTS[2])
    # the kernel believes in a neighbour for up to 45 s after its last word
    within(150, "served by the other prefill", lambda: answers(entry, text))
    hosts.boot(HOSTS[2])
    within(
        HOST_SECONDS, "whole after a prefill's host lost its power", lambda: all_healthy() and answers(entry, text, 8)
    )


def test_all_give_the_same_text() -> None:
    if len(TEXTS) < 3:
        pytest.skip("not all topologies have run")
    assert len(set(TEXTS.values())) == 1, TEXTS
