"""A real Docker engine given its settings, and images pulled by it from a registry of the rack's own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from lab.fleet import Lab
from lab.registry import registry
from tests.fleet.conftest import PYINFRA, Fleet, Run, run

pytestmark = pytest.mark.lab

NAME, NET = "pulltest", "10.231.97"
HOST, REGISTRY = f"{NAME}-0", f"{NET}.1:5000"
SHORT = "ascend/vllm-ascend:v0.13.0-a3"
IMAGE = f"{REGISTRY}/{SHORT}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One host with Docker."""
    made = Lab(NAME, f"{NET}.0/24", tmp_path_factory.mktemp("pull"), say=print, shared=True)
    made.up(1, docker=True)
    yield made
    made.down()


@pytest.fixture(scope="module")
def digest(lab: Lab) -> Iterator[str]:
    """The registry, and the digest that its image has."""
    with registry(f"{NET}.1", 5000, {SHORT: "0.13.0"}) as digests:
        yield digests[SHORT]


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """One Atlas 800 A3, as far as Docker and its images go."""
    data = {"recipe": "qwen3-235b-a22b-w8a8/a3-single", "image": IMAGE, "raise_limits": False}
    return Fleet(lab, tmp_path_factory.mktemp("inventory"), {"serve": [HOST]}, data)


def deploy(one: Fleet, verb: str) -> Run:
    return run([*PYINFRA, "-y", str(one.path), f"deploy/{verb}.py"])


def row(one: Fleet, digest: str) -> None:
    """A catalogue row that pins the image."""
    text = {
        "title": "of the test",
        "platform": "ascend-a3",
        "source": "tests",
        "driver": {"version": "25.5.1"},
        "cann": {"version": "8.5.0"},
        "vllm": "0.13.0",
        "vllm_ascend": "0.13.0",
        "image": IMAGE,
        "digest": digest,
    }
    (one.folder / "row.yaml").write_text(yaml.safe_dump(text))
    one.data["catalogue"] = str(one.folder / "row.yaml")


def test_a_registry_that_docker_does_not_trust_is_told_with_its_mend(fleet: Fleet, digest: str) -> None:
    done = deploy(fleet, "images")
    assert done.code == 1
    done.line("error", HOST, IMAGE, "insecure-registries in docker_config", "IMAGE-PULL")


def test_settings_are_merged_into_those_that_are_there(fleet: Fleet, digest: str) -> None:
    before = json.dumps({"log-driver": "json-file", "insecure-registries": ["10.9.9.9:5000"]})
    file = "/etc/docker/daemon.json"
    fleet.ssh(HOST, f"echo '{before}' >{file}; chmod 600 {file}; systemctl restart docker")
    fleet.data["docker_config"] = {"insecure-registries": [REGISTRY]}
    done = deploy(fleet, "containers")
    assert done.code == 0, done.text
    config = json.loads(fleet.ssh(HOST, f"cat {file}"))
    assert config["log-driver"] == "json-file"
    assert config["insecure-registries"] == ["10.9.9.9:5000", REGISTRY]
    assert fleet.ssh(HOST, f"stat -c %a {file}") == "600"
    assert REGISTRY in fleet.ssh(HOST, "docker info -f '{{.RegistryConfig.IndexConfigs}}'"), "the daemon knows of it"


def test_an_image_is_pulled_by_its_digest_and_once(fleet: Fleet, digest: str) -> None:
    row(fleet, digest)
    done = deploy(fleet, "images")
    assert done.code == 0, done.text
    there = fleet.ssh(HOST, f"docker image inspect -f '{{{{index .RepoDigests 0}}}}' {IMAGE}")
    assert there == f"{IMAGE.rpartition(':')[0]}@{digest}"
    again = deploy(fleet, "images")
    assert again.code == 0 and again.line("Grand total").split()[3] == "-", again.text


def test_an_image_of_the_name_but_not_of_the_digest_is_not_taken(fleet: Fleet, digest: str) -> None:
    row(fleet, f"sha256:{'0' * 64}")
    done = deploy(fleet, "images")
    assert done.code == 1
    done.line("error", HOST, IMAGE, "the registry does not have it", "IMAGE-PULL")


def test_a_daemon_that_would_not_come_up_keeps_its_old_settings(fleet: Fleet, digest: str) -> None:
    before = fleet.ssh(HOST, "cat /etc/docker/daemon.json")
    fleet.data["docker_config"] = {"data-root": "/proc/no-place"}
    try:
        done = deploy(fleet, "containers")
    finally:
        fleet.data["docker_config"] = {"insecure-registries": [REGISTRY]}
    assert done.code == 1
    done.line("error", HOST, "DOCKER")
    assert json.loads(fleet.ssh(HOST, "cat /etc/docker/daemon.json")) == json.loads(before)
    assert fleet.ssh(HOST, "docker info -f '{{.ServerVersion}}'")
