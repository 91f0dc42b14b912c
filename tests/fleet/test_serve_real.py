"""The main job on booted hosts with the real engine: replicas, prefill and decode, a container, a refused argument."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.fleet import Lab
from lab.venvs import base_prefix
from tests.fleet.conftest import NAME, Fleet, access

pytestmark = [pytest.mark.lab, pytest.mark.engine]

A, B = f"{NAME}-0", f"{NAME}-1"
ENTRY = "http://10.231.80.10:8080"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
RECIPES = Path(__file__).parents[2] / "files" / "recipes" / "lab"


def complete(url: str, prompt: str = PROMPT, tokens: int = 24) -> str:
    body = {"model": "qwen3", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["text"])


def metric(url: str, name: str, label: str = "") -> float:
    """Sum of a counter over its series that carry the label."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    found = [line for line in lines if re.match(rf"{name}(\{{|\s)", line) and label in line]
    assert found, f"{url} has no metric {name} with {label}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The shipped lab recipes on the tests' hosts."""
    data = {
        "recipe": "lab/replicas",
        "weights_dir": "/opt/models",
        "venv": "/opt/vllm/0.32.0",
        "router_venv": "/opt/vllm-router",
        "raise_limits": False,
    }
    yield Fleet(lab, tmp_path_factory.mktemp("real"), {"serve": [A, B], "proxy": [A]}, data)
    for host in (A, B):
        lab.ssh(host, "systemctl stop 'vllm-*'", timeout=120)


@pytest.fixture(scope="module")
def replicas(fleet: Fleet) -> str:
    """Two real replicas serve; the text that they give."""
    done = fleet.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    return complete(ENTRY)


def test_two_replicas_answer_through_the_front_door_as_each_does_alone(replicas: str) -> None:
    assert replicas.strip()
    assert complete("http://10.231.80.10:8000") == replicas
    assert complete("http://10.231.80.11:8000") == replicas


def test_the_front_door_shows_the_api_alone(replicas: str) -> None:
    for path, status in {"/v1/models": "200", "/metrics": "404", "/load": "404", "/": "404"}.items():
        done = subprocess.run(
            ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", ENTRY + path], capture_output=True, text=True
        )
        assert (path, done.stdout) == (path, status)


def test_a_second_run_changes_nothing_and_starts_nothing_again(fleet: Fleet, replicas: str) -> None:
    pids = [fleet.ssh(h, "systemctl show -p MainPID --value vllm-serve-0 vllm-serve-1") for h in (A, B)]
    done = fleet.pyinfra("-y", "-v")
    assert done.code == 0
    assert done.line("Grand total").split()[3] == "-", done.text
    for host in (A, B):
        assert int(done.line(f"remote commands on {host}").split()[-1]) <= 9
    assert pids == [fleet.ssh(h, "systemctl show -p MainPID --value vllm-serve-0 vllm-serve-1") for h in (A, B)]


def test_prefill_and_decode_give_the_same_text_and_the_cache_really_crosses(
    fleet: Fleet, replicas: str, tmp_path: Path
) -> None:
    apart = Fleet(fleet.lab, tmp_path, {"prefill": [A], "decode": [B], "proxy": [A]}, dict(fleet.data), name="apart")
    apart.data["recipe"] = "lab/prefill-decode"
    done = apart.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    decode = "http://10.231.80.11:8000"
    before = metric(decode, "vllm:prompt_tokens_by_source_total", "external_kv_transfer")

    assert complete(ENTRY) == replicas

    crossed = metric(decode, "vllm:prompt_tokens_by_source_total", "external_kv_transfer") - before
    computed = metric(decode, "vllm:prompt_tokens_by_source_total", "local_compute")
    assert crossed >= 200, "the prompt's cache came over the network"
    assert computed <= 32, "decode computed next to nothing of a prompt itself"
    assert metric("http://10.231.80.10:8000", "vllm:prompt_tokens_by_source_total", "local_compute") >= 200


def test_a_flag_that_the_engine_refuses_is_named_in_one_line(fleet: Fleet, tmp_path: Path) -> None:
    recipe = yaml.safe_load((RECIPES / "replicas.yaml").read_text())
    recipe["shared"]["args"]["max-num-seq"] = "many"
    (tmp_path / "refused.yaml").write_text(yaml.safe_dump(recipe))
    one = Fleet(fleet.lab, tmp_path, {"serve": [B]}, {**fleet.data, "recipe": str(tmp_path / "refused.yaml")})
    done = one.fleet("--yes", timeout=300)
    assert done.code == 1
    done.line("max-num-seqs", "many", "[ARG-KIND]")
    one.data["waive"] = dict.fromkeys(["ARG-KIND", "ARG-TWICE"], "to see what the engine says")
    done = one.fleet("--yes", timeout=300)
    assert done.code == 1
    done.line(f"error: {B}: vllm-serve-0 died at start:", "max-num-seq", "[LOG-ARGUMENT-VALUE]")
    assert one.ssh(B, "systemctl show -p NRestarts --value vllm-serve-0") == "0"


@pytest.fixture(scope="module")
def docker_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One host with a real Docker engine, and an image of the host's own root file system."""
    made = Lab("dockertest", "10.231.81.0/24", tmp_path_factory.mktemp("dockerlab"), say=print)
    made.up(1, docker=True)
    done = made.ssh(
        "dockertest-0",
        "tar -C / --one-file-system --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./var/lib/docker "
        "--exclude=./opt -c . | docker import - lab/base:1",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    yield made
    made.down()


def test_the_real_engine_in_a_container(docker_lab: Lab, fleet: Fleet, tmp_path: Path) -> None:
    data = {key: value for key, value in fleet.data.items() if key not in access(fleet.lab)}
    interpreter = base_prefix()  # what the engine's environment links to, where it is not the host's own
    data |= {
        "runtime": "docker",
        "image": "lab/base:1",
        "mounts": ["/opt/vllm:/opt/vllm:ro", *([f"{interpreter}:{interpreter}:ro"] if interpreter else [])],
        "env": {"PATH": "/opt/vllm/0.32.0/bin:$PATH"},
    }
    boxed = Fleet(docker_lab, tmp_path, {"serve": ["dockertest-0"], "proxy": ["dockertest-0"]}, data, name="boxed")
    done = boxed.fleet("--yes", timeout=600)
    assert done.code == 0, done.text
    assert complete("http://10.231.81.10:8080").strip()
    shown = json.loads(boxed.ssh("dockertest-0", "docker inspect vllm-serve-0"))[0]
    assert shown["HostConfig"]["NetworkMode"] == "host"
    assert shown["HostConfig"]["Init"] is True
    assert shown["HostConfig"]["ShmSize"] == 1024**3
    again = boxed.pyinfra("-y")
    assert again.code == 0
    assert again.line("Grand total").split()[3] == "-"
    boxed.ssh("dockertest-0", "systemctl stop vllm-serve-0")
    assert boxed.ssh("dockertest-0", "docker ps -aq; systemctl show -p Result --value vllm-serve-0") == "success"
