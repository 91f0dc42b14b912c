"""Which versions go together: the tables as data, and what each question to them answers."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fleet import versions


@pytest.mark.parametrize(
    ("vllm_ascend", "cann"),
    [
        ("0.23.0", "9.1.0"),
        ("0.23.0rc1", "9.0.1"),
        ("0.18.0", "8.5.1"),
        ("0.13.0", "8.5.0"),
        ("0.13.0rc1", "8.3.RC2"),
        ("0.13.0.rc1", "8.3.RC2"),
        ("0.11.0", "8.3.RC2"),
        ("0.99.0", None),
        ("main", None),
    ],
)
def test_the_cann_of_a_release(vllm_ascend: str, cann: str | None) -> None:
    assert versions.cann_of(vllm_ascend) == cann


def test_a_release_names_its_engine_and_its_transfer_library() -> None:
    release = versions.release_of("0.14.0rc1")
    assert release is not None
    assert (release.vllm, release.torch_npu, release.mooncake) == ("0.14.1", "2.9.0", None)
    assert versions.releases_for("0.13.0") == ("0.13.0", "0.13.0rc3", "0.13.0rc1")
    assert versions.releases_for("0.12.0") == ()


@pytest.mark.parametrize(
    ("cann", "hdk", "fits"),
    [
        ("9.1.0", "25.2.1", True),
        ("9.1.0", "26.0.rc2", True),
        ("9.1.0", "25.0.1", False),
        ("9.1.0", "24.1.rc3.7", False),
        ("9.1.0", "27.0.0", None),  # no source says so
        ("9.0.1", "25.0.1", True),
        ("9.0.1", "24.1.0", False),
        ("8.5.1", "25.5.1", True),
        ("8.5.1", "26.0.RC1", None),
        ("8.5.2", "26.0.RC1", True),
        ("8.3.RC2", "25.3.RC1", True),
        ("8.3.RC2", "24.1.0", None),  # one pair is known, not the range
        ("8.2.RC1", "24.1.RC2", True),
        ("8.2.RC1", "23.0.3", False),
        ("8.0.0", "24.1.0", None),
        ("9.1.0", "unknown", None),
    ],
)
def test_the_drivers_of_a_cann(cann: str, hdk: str, fits: bool | None) -> None:
    assert versions.driver_fits(cann, hdk) is fits


def test_a_rule_of_drivers_as_people_read_it() -> None:
    rule = versions.drivers_of("9.1.0")
    assert rule is not None
    assert (str(rule), rule.recommended) == ("25.2 to 26.1", "26.0.RC1")
    assert str(versions.drivers_of("8.3.RC2")) == "25.3"
    assert versions.drivers_of("7.0") is None


@pytest.mark.parametrize(("cann", "least", "enough"), [("8.5.1", "8.5", True), ("8.3.RC2", "8.5", False)])
def test_cann_at_least(cann: str, least: str, enough: bool) -> None:
    assert versions.cann_at_least(cann, least) is enough


@pytest.mark.parametrize(
    ("image", "engine", "cuda", "branch"),
    [
        ("vllm/vllm-openai:v0.20.0", "0.20.0", (13, 0), 580),
        ("vllm/vllm-openai:v0.20.0-cu129", "0.20.0", (12, 9), 525),
        ("vllm/vllm-openai:v0.19.1", "0.19.1", (12,), 525),
        ("vllm/vllm-openai:v0.19.1-cu130", "0.19.1", (13, 0), 580),
        ("10.0.0.1:5000/vllm/vllm-openai:v0.23.0-aarch64", "0.23.0", (13, 0), 580),
        ("vllm/vllm-openai:prod", "0.23.0", (13, 0), 580),  # a tag of one's own: the recipe says what it is
        ("vllm/vllm-openai:latest", "0.20.0", None, None),
        ("vllm/vllm-openai", "0.20.0", None, None),
        ("vllm/vllm-openai@sha256:abc", "0.20.0", None, None),
        ("own/engine:v0.20.0", "0.20.0", None, None),
        ("own/engine:1-cu118", "0.20.0", (11, 8), 450),
    ],
)
def test_the_cuda_of_an_image(image: str, engine: str, cuda: tuple[int, ...] | None, branch: int | None) -> None:
    found = versions.cuda_of(image, engine)
    assert found == cuda
    assert (versions.driver_branch_for(found) if found else None) == branch


@pytest.mark.parametrize(
    ("name", "version", "platform", "rolling", "bad"),
    [
        ("quay.io/ascend/vllm-ascend:v0.13.0", "0.13.0", "ascend-a2", False, False),
        ("quay.io/ascend/vllm-ascend:v0.13.0-a3", "0.13.0", "ascend-a3", False, False),
        ("m.example.org/quay.io/ascend/vllm-ascend:v0.13.0-a3-openeuler", "0.13.0", "ascend-a3", False, False),
        ("quay.io/ascend/vllm-ascend:v0.13.0-310p", "0.13.0", "ascend-310p", False, False),
        ("quay.io/ascend/vllm-ascend:v0.13.0rc2-a3", "0.13.0rc2", "ascend-a3", False, True),
        ("quay.io/ascend/vllm-ascend:v0.13.0rc2", "0.13.0rc2", "ascend-a2", False, False),
        ("quay.io/ascend/vllm-ascend:nightly-a3", None, "ascend-a3", True, False),
        ("quay.io/ascend/vllm-ascend:v0.7.3-dev", "0.7.3", "ascend-a2", True, False),
        ("quay.io/ascend/vllm-ascend:main", None, None, True, False),
        ("quay.io/ascend/vllm-ascend", None, None, True, False),
        ("quay.io/ascend/vllm-ascend@sha256:abc", None, None, False, False),
        ("quay.io/ascend/vllm-ascend:main@sha256:abc", None, None, False, False),
        ("10.0.0.1:5000/vllm:2026", None, None, False, False),
        ("own/engine:v1.2", "1.2", None, False, False),
    ],
)
def test_what_a_name_tells(name: str, version: str | None, platform: str | None, rolling: bool, bad: bool) -> None:
    image = versions.image(name)
    assert (str(image.version) if image.version else None, image.platform) == (version, platform)
    assert (image.rolling, image.bad is not None) == (rolling, bad)


def test_a_name_is_taken_apart() -> None:
    image = versions.image("10.0.0.1:5000/a/vllm-ascend:v0.13.0-a3@sha256:abc")
    assert (image.repository, image.tag, image.digest) == ("10.0.0.1:5000/a/vllm-ascend", "v0.13.0-a3", "sha256:abc")
    assert (image.short, image.words) == ("vllm-ascend", ("a3",))
    assert versions.image("10.0.0.1:5000/vllm").tag is None


def test_the_rows_are_versions_the_newest_first_and_once() -> None:
    rows = [Version(r.vllm_ascend) for r in versions._load("vllm-ascend.yaml", versions._Releases).releases]
    assert rows == sorted(set(rows), reverse=True)


def test_every_cann_of_a_release_since_0_9_has_its_drivers() -> None:
    rows = versions._load("vllm-ascend.yaml", versions._Releases).releases
    lacking = {r.cann for r in rows if versions.drivers_of(r.cann) is None}
    assert lacking == {"8.0.0"}


def test_what_a_feature_needs() -> None:
    floor = versions.floor_of("fabric-mem")
    assert (floor.cann, floor.hdk, floor.hdk_alone, floor.mooncake) == ("9.0", "25.5", "26.0", "0.3.11")
