"""Images: which one is wanted, where it comes from, and what Docker says when it does not come."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.bundle import Bundle, File
from fleet.prepare import images
from fleet.prepare.common import Host, Source, Step, Work
from fleet.prepare.images import Image
from fleet.stacks import Stack
from tests.unit.test_prepare_base import UBUNTU, plan_of, put, sections_of, tool
from tests.unit.test_prepare_containers import DOCKER, IMAGE

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
WELL = Image("sha256:1", "amd64", frozenset({DIGEST}))
TAR = "registry.corp_engine_v1.tar"


def work(
    there: Mapping[str, Image] | None = None,
    *,
    recipe: str = DOCKER,
    host: Host = UBUNTU,
    bundle: Bundle | None = None,
    digest: str | None = None,
    of: str = "10.0.0.11",
    free: int = 10**12,
    **data: Any,
) -> Work:
    plan = plan_of(recipe, **data)
    state = images.State(there or {}, "/var/lib/docker", free, free, True)
    stack = cast(Stack, SimpleNamespace(image=IMAGE, digest=digest)) if digest else None
    return Work(plan, plan.fleet.node(of), host, {"images": state}, bundle, stack)


def bundle_of(folder: Path, name: str = TAR, size: int = 4) -> Bundle:
    path = put(folder, f"bundle/images/{name}", "tar\n")
    return Bundle(folder / "bundle", (File(path, size, hashlib.sha256(b"tar\n").hexdigest()),))


def names(its: Work) -> list[str]:
    return [step.name for step in images.steps(its)]


def run(step: Step, root: Path) -> tuple[bool, list[str]]:
    text = step.script.replace("/var/lib/vllm-fleet", f"{root}/var/lib/vllm-fleet")
    env = {"PATH": f"{root}/bin:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=env, timeout=20)
    assert done.stderr == "", done.stderr
    return done.returncode == 0, done.stdout.splitlines()


def asked(root: Path) -> list[str]:
    return (root / "log").read_text().splitlines()


# ---- which image


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("quay.io/ascend/vllm-ascend:v0.13.0-a3", "quay.io_ascend_vllm-ascend_v0.13.0-a3.tar"),
        ("localhost:5000/a_b@sha256:0f", "localhost_5000_a_b_sha256_0f.tar"),
    ],
)
def test_a_tar_is_named_after_its_image(image: str, name: str) -> None:
    assert images.tar_name(image) == name
    assert images.tar_name(image, "arm64") == name.replace(".tar", ".arm64.tar")


def test_an_image_that_is_right_is_left_alone() -> None:
    for digest in (None, DIGEST):
        its = work({IMAGE: WELL}, digest=digest)
        assert (names(its), images.refuse(its), images.prove(its)) == ([], [], [])


@pytest.mark.parametrize(
    ("there", "why", "rule"),
    [
        ({}, "there is none", "IMAGE-MISSING"),
        ({IMAGE: replace(WELL, arch="arm64")}, "is for arm64, the host is amd64", "IMAGE-ARCH"),
        (
            {IMAGE: replace(WELL, digests=frozenset({OTHER}))},
            "has the digest sha256:bbbbbbbbbbbb, sha256:aaaaaaaaaaaa is wanted",
            "IMAGE-DIGEST",
        ),
    ],
)
def test_an_image_that_is_wrong_is_pulled(there: dict[str, Image], why: str, rule: str) -> None:
    its = work(there, digest=DIGEST)
    assert names(its) == [f"image {IMAGE} pulled ({why})"]
    assert [f.rule for f in images.prove(its)] == [rule]


def test_a_loaded_image_has_no_digest_and_is_taken_as_it_is() -> None:
    assert names(work({IMAGE: replace(WELL, digests=frozenset())}, digest=DIGEST)) == []


def test_a_store_whose_ids_are_digests_is_understood() -> None:
    assert names(work({IMAGE: Image(DIGEST, "amd64", frozenset({OTHER}))}, digest=DIGEST)) == []


def test_the_wanted_digest_is_the_names_own_or_the_catalogues() -> None:
    assert images.digest_of(work(), f"x/y@{OTHER}") == OTHER
    assert images.digest_of(work(digest=DIGEST), IMAGE) == DIGEST
    assert images.digest_of(work(digest=DIGEST, registry_mirror="mirror.corp"), f"mirror.corp/{IMAGE}") == DIGEST
    assert images.digest_of(work(digest=DIGEST), "registry.corp/engine:v2") is None


def test_a_host_without_containers_is_not_asked() -> None:
    plan = plan_of()
    assert images.sections(plan, plan.fleet.nodes[0]) == []
    assert images.parse({}) == images.State()


def test_a_host_tells_its_images_and_its_room(tmp_path: Path) -> None:
    answer = f"case $1 in image) echo 'sha256:1 amd64 registry.corp/engine@{DIGEST}';; *) echo {tmp_path};; esac"
    tool(tmp_path, "docker", answer)
    plan = plan_of(DOCKER)
    text = "\n".join(images.sections(plan, plan.fleet.nodes[0]))
    state = images.parse(sections_of(text, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}))
    assert state.images == {IMAGE: WELL}
    assert state.root == str(tmp_path)
    assert state.root_free is not None and state.root_free > 0


def test_without_docker_a_host_tells_its_room_alone() -> None:
    plan = plan_of(DOCKER)
    state = images.parse(sections_of("\n".join(images.sections(plan, plan.fleet.nodes[0])), {"PATH": "/usr/bin:/bin"}))
    assert state.images == {}
    assert state.root_free is not None and state.kept_free is not None


# ---- loaded


def loader(root: Path, name: str) -> None:
    """A Docker whose load brings an image of this name."""
    tool(
        root,
        "docker",
        f"case $1 in load) touch {root}/loaded; echo 'Loaded image: {name}';;\n"
        f"image) test -e {root}/loaded && case $* in *' {name}') echo sha256:1;; *) exit 1;; esac;; esac",
    )


def test_an_image_of_the_bundle_is_loaded_and_its_tar_removed(tmp_path: Path) -> None:
    (step,) = images.steps(work(bundle=bundle_of(tmp_path)))
    assert step.name == f"image {IMAGE} loaded from {TAR} (there is none)"
    (source,) = step.sources
    assert source.path == f"/var/lib/vllm-fleet/bundle/{TAR}"
    brought = put(tmp_path, source.path, "tar\n")
    loader(tmp_path, IMAGE)
    assert run(step, tmp_path) == (True, [f"Loaded image: {IMAGE}"])
    assert not brought.exists()
    assert f"docker load -q -i {brought}" in asked(tmp_path)


def test_a_tar_that_was_cut_is_never_loaded(tmp_path: Path) -> None:
    (step,) = images.steps(work(bundle=bundle_of(tmp_path)))
    put(tmp_path, step.sources[0].path, "ta")
    loader(tmp_path, IMAGE)
    done, said = run(step, tmp_path)
    assert not done and said == [f"checksum of {tmp_path}{step.sources[0].path} differs"]
    assert not (tmp_path / "log").exists()


def test_a_tar_with_another_image_is_an_error(tmp_path: Path) -> None:
    (step,) = images.steps(work(bundle=bundle_of(tmp_path)))
    put(tmp_path, step.sources[0].path, "tar\n")
    loader(tmp_path, "registry.corp/engine:v2")
    done, said = run(step, tmp_path)
    assert not done and step.read is not None
    (told,) = step.read(done, said).findings
    assert told.line() == (
        f"error: 10.0.0.11: {TAR} does not hold image {IMAGE}, but registry.corp/engine:v2; save it by the name that "
        "the plan has: docker save NAME:TAG; by a digest alone none can be saved [IMAGE-PULL]"
    )


def test_a_tar_for_the_hosts_own_processor_goes_first(tmp_path: Path) -> None:
    both = Bundle(
        tmp_path / "bundle",
        (*bundle_of(tmp_path).files, *bundle_of(tmp_path, TAR.replace(".tar", ".amd64.tar.gz")).files),
    )
    assert names(work(bundle=both)) == [
        f"image {IMAGE} loaded from registry.corp_engine_v1.amd64.tar.gz (there is none)"
    ]


def test_a_tar_on_the_host_is_not_brought_and_stays() -> None:
    host = replace(UBUNTU, files={f"/mnt/bundle/images/{TAR}": 4})
    (step,) = images.steps(work(host=host))
    assert step.sources == (Source(f"/mnt/bundle/images/{TAR}", TAR, None, 4, None),)
    assert "rm -f /mnt" not in step.script


def test_a_disk_that_is_too_small_is_told_before_anything_is_brought(tmp_path: Path) -> None:
    its = work(bundle=bundle_of(tmp_path, f"{TAR}.gz", 10**10), free=30 * 10**9)
    assert [f.line() for f in images.refuse(its)] == [
        "error: 10.0.0.11: /var/lib/docker has 30.0 GB left, images need 40.0 GB; free some space there "
        "(docker system prune), or move it to a larger disk (data-root in docker_config) [IMAGE-DISK]"
    ]
    assert images.refuse(work(bundle=bundle_of(tmp_path, f"{TAR}.gz", 10**10), free=50 * 10**9)) == []


# ---- pulled


def test_a_known_digest_is_what_is_pulled(tmp_path: Path) -> None:
    tool(tmp_path, "docker", "test $1 = tag || { echo 'x: Pulling fs layer'; echo 'x: Pull complete'; }")
    (step,) = images.steps(work(digest=DIGEST))
    assert run(step, tmp_path) == (True, ["x: Pull complete"])
    assert asked(tmp_path) == [
        f"docker pull registry.corp/engine@{DIGEST}",
        f"docker tag registry.corp/engine@{DIGEST} {IMAGE}",
    ]


def test_another_processors_image_is_replaced(tmp_path: Path) -> None:
    tool(tmp_path, "docker")
    (step,) = images.steps(work({IMAGE: replace(WELL, arch="arm64")}))
    assert run(step, tmp_path)[0]
    assert asked(tmp_path) == [f"docker pull --platform linux/amd64 {IMAGE}"]


@pytest.mark.parametrize(("said", "times"), [("connection reset by peer", 3), ("manifest unknown", 1)])
def test_what_may_pass_is_tried_again(tmp_path: Path, said: str, times: int) -> None:
    tool(tmp_path, "docker", f"echo '{said}'; exit 1")
    tool(tmp_path, "sleep")
    (step,) = images.steps(work())
    done, _ = run(step, tmp_path)
    assert not done
    assert [line for line in asked(tmp_path) if line.startswith("docker")] == [f"docker pull {IMAGE}"] * times


@pytest.mark.parametrize(
    ("said", "what", "mend"),
    [
        ("dial tcp: lookup registry.corp: no such host", "the registry is not reached", f"images/{TAR}"),
        ("net/http: TLS handshake timeout", "the registry is not reached", "docker_proxy"),
        ("x509: certificate signed by unknown authority", "the registry's certificate is not trusted",
         "/etc/docker/certs.d/registry.corp/ca.crt"),
        ("unauthorized: authentication required", "the registry refuses it, or does not have it",
         "docker login registry.corp"),
        ("manifest for engine:v1 not found: manifest unknown", "the registry does not have it", "mend image"),
        ("archive/tar: invalid tar header", "Docker on this system cannot unpack what it pulls (known of Kylin)",
         f"images/{TAR}"),
        ("write /var/lib/docker/tmp/x: no space left on device", "the disk is full", "data-root"),
        ("no matching manifest for linux/arm64", "the registry has it for other processors only", "another"),
        ("toomanyrequests: rate limit", "the registry lets nobody pull more just now", "registry_mirror"),
    ],
)  # fmt: skip
def test_why_an_image_did_not_come(said: str, what: str, mend: str) -> None:
    told = images.cause("10.0.0.11", IMAGE, ["v1: Pulling from engine", f"Error response from daemon: {said}"])
    assert (told.rule, told.what) == ("IMAGE-PULL", f"image {IMAGE} could not be pulled: {what}")
    assert told.why == f"Error response from daemon: {said}"
    assert mend in told.mend


def test_a_proxys_password_is_not_shown() -> None:
    told = images.cause("10.0.0.11", IMAGE, ["proxyconnect tcp: dial http://me:hunter2@proxy: connection refused"])
    assert told.why == "proxyconnect tcp: dial http://***@proxy: connection refused"


# ---- over hosts


def pair(*there: Image) -> Sequence[str]:
    recipe = DOCKER.replace("tensor_parallel_size: 1", "tensor_parallel_size: 1, data_parallel_size: 2")
    hosts = ["10.0.0.11", "10.0.0.12"]
    works = {h: work({IMAGE: i}, recipe=recipe, hosts=hosts, of=h) for h, i in zip(hosts, there, strict=True)}
    return [f.line() for f in images.between(works[hosts[0]].plan, works)]


def test_hosts_of_one_instance_have_one_image() -> None:
    assert pair(WELL, replace(WELL, id="sha256:2")) == []
    assert pair(WELL, replace(WELL, digests=frozenset())) == []
    assert pair(WELL, Image("sha256:2", "amd64", frozenset({OTHER}))) == [
        f"error: 10.0.0.12: image {IMAGE} is sha256:bbbbbbbbbbbb, 10.0.0.11, the head of serve-0, has "
        "sha256:aaaaaaaaaaaa (collectives hang, or fail with a version mismatch); "
        "docker rmi it on both and run again, or give the image by its digest [IMAGE-DIFFERS]"
    ]


@pytest.mark.parametrize("said", ["unexpected EOF", "checksum of /var/lib/vllm-fleet/bundle/a.tar differs"])
def test_a_damaged_tar_is_no_registry_that_is_not_reached(said: str) -> None:
    told = images.cause("10.0.0.11", IMAGE, [f"Error processing tar file: {said}"], TAR)
    assert "the file is damaged" in told.what and "registry" not in (told.mend or "").replace(TAR, "")


def test_a_tar_that_is_on_the_host_already_needs_no_second_room(tmp_path: Path) -> None:
    its = work(bundle=bundle_of(tmp_path, size=100), free=150)
    assert [f.rule for f in images.refuse(its)] == ["IMAGE-DISK"]
    there = replace(its.host, files={f"/var/lib/vllm-fleet/bundle/{TAR}": 100})
    assert images.refuse(replace(its, host=there)) == []
