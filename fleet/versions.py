"""Which versions go together, as data: files/versions/ holds the vendors' tables, each with its source.

vllm-ascend with vLLM, CANN, torch_npu and Mooncake; CANN with the HDK driver; an image with CUDA and the driver's
branch; images known to be bad. None everywhere means that no source says it: what is not known is no fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from packaging.version import InvalidVersion, Version
from pydantic import Field, ValidationError

from fleet import FILES, yamlfile
from fleet.findings import FleetError
from fleet.recipe import Strict

FOLDER = FILES / "versions"


class Release(Strict):
    """What one release of vllm-ascend is built from."""

    vllm_ascend: str
    vllm: str
    cann: str
    torch_npu: str
    mooncake: str | None = None


class DriverRule(Strict):
    """The HDK branches that carry a CANN; ``whole`` is whether the source lists all of them."""

    cann: str
    branches: tuple[str, ...]
    whole: bool = True
    recommended: str | None = None
    source: str

    def __str__(self) -> str:
        """``25.2 to 26.1``."""
        first, last = self.branches[0], self.branches[-1]
        return first if first == last else f"{first} to {last}"


class Floor(Strict):
    """What a feature needs at least."""

    feature: str
    says: str
    cann: str | None = None
    hdk: str | None = None
    hdk_alone: str | None = None
    mooncake: str | None = None
    source: str


class BadImage(Strict):
    """An image that does not work, whatever runs it."""

    repository: str
    tag: str
    says: str
    mend: str
    source: str


class _Releases(Strict):
    title: str
    source: str
    releases: list[Release]


class _Drivers(Strict):
    title: str
    drivers: list[DriverRule]
    floors: list[Floor]


class _Cuda(Strict):
    repository: str
    since: str = Field(alias="from")
    cuda: str
    source: str


class _Branch(Strict):
    cuda: str
    branch: int
    source: str


class _Family(Strict):
    repository: str
    suffix: str
    platform: str


class _Images(Strict):
    title: str
    cuda: list[_Cuda]
    driver_branches: list[_Branch]
    families: list[_Family]
    rolling: list[str]
    bad: list[BadImage]


@dataclass(frozen=True)
class Image:
    """An image's name, taken apart."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def short(self) -> str:
        """The last part of the repository: mirrors keep it."""
        return self.repository.rpartition("/")[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the tag after its first: ``v0.13.0-a3-openeuler`` has a3 and openeuler."""
        return tuple((self.tag or "").split("-")[1:])

    @property
    def version(self) -> Version | None:
        """The version that the tag begins with."""
        first = (self.tag or "").split("-")[0].removeprefix("v")
        try:
            return Version(first) if "." in first else None
        except InvalidVersion:
            return None

    @property
    def rolling(self) -> bool:
        """Whether the name stands for another image from one day to the next; a digest never does."""
        if self.digest:
            return False
        return self.tag is None or not {*self.tag.split("-")}.isdisjoint(_images().rolling)

    @property
    def platform(self) -> str | None:
        """The machine family that the vendor's tag is made for."""
        parts = (self.tag or "").split("-")
        for family in _images().families:
            if family.repository == self.short:
                if family.suffix and family.suffix in parts:
                    return family.platform
                if not family.suffix and self.version is not None:
                    return family.platform
        return None

    @property
    def bad(self) -> BadImage | None:
        """Why it is known not to work."""
        return next((b for b in _images().bad if (b.repository, b.tag) == (self.short, self.tag)), None)


@cache
def image(name: str) -> Image:
    """``registry:5000/a/b:tag@sha256:...`` taken apart."""
    rest, _, digest = name.partition("@")
    head, slash, last = rest.rpartition("/")
    short, _, tag = last.partition(":")
    return Image(head + slash + short, tag or None, digest or None)


def release_of(vllm_ascend: str) -> Release | None:
    """The row of this release of vllm-ascend."""
    wanted = _version(vllm_ascend)
    rows = _load("vllm-ascend.yaml", _Releases).releases
    return next((r for r in rows if wanted is not None and Version(r.vllm_ascend) == wanted), None)


def releases_for(vllm: str) -> tuple[str, ...]:
    """Releases of vllm-ascend for this vLLM, the newest first."""
    wanted = _version(vllm)
    rows = _load("vllm-ascend.yaml", _Releases).releases
    return tuple(r.vllm_ascend for r in rows if wanted is not None and Version(r.vllm) == wanted)


def cann_of(vllm_ascend: str) -> str | None:
    """The CANN in this release's image, such as ``8.5.1``."""
    row = release_of(vllm_ascend)
    return row.cann if row else None


def drivers_of(cann: str) -> DriverRule | None:
    """The HDK branches that carry a CANN."""
    rows = _load("cann-driver.yaml", _Drivers).drivers
    return next((r for r in rows if f"{cann}.".upper().startswith(f"{r.cann}.")), None)


def driver_fits(cann: str, hdk_version: str) -> bool | None:
    """Whether an HDK such as ``25.3.RC1`` carries a CANN; None where no source says so."""
    rule, branch = drivers_of(cann), hdk_branch(hdk_version)
    if rule is None or branch is None:
        return None
    known = [hdk_branch(name) for name in rule.branches]
    if branch in known:
        return True
    oldest = known[0]
    return False if rule.whole and oldest is not None and branch < oldest else None


def hdk_branch(hdk_version: str) -> tuple[int, int] | None:
    """The first two numbers of an HDK's version."""
    match = re.match(r"\s*(\d+)\.(\d+)", hdk_version)
    return (int(match[1]), int(match[2])) if match else None


def floor_of(feature: str) -> Floor:
    """What a feature needs at least."""
    return next(f for f in _load("cann-driver.yaml", _Drivers).floors if f.feature == feature)


def cann_at_least(cann: str, least: str) -> bool:
    """``8.5.1`` is at least ``8.5``; ``8.3.RC2`` is not."""
    return _numbers(cann) >= _numbers(least)


def cuda_of(name: str, vllm_version: str) -> tuple[int, ...] | None:
    """CUDA's version in an image, as far as its name tells: ``(13, 0)``, or ``(12,)`` where only the first is known.

    The suffix says it; without one, the version does: from 0.20.0 on vllm-openai is built on CUDA 13.0.
    """
    its = image(name)
    for word in its.words:
        if match := re.fullmatch(r"cu(\d\d)(\d)", word):
            return int(match[1]), int(match[2])
    version = its.version or _version(vllm_version)
    if its.short != "vllm-openai" or version is None or (its.version is None and (its.digest or its.rolling)):
        return None
    rows = sorted((r for r in _images().cuda if Version(r.since) <= version), key=lambda r: Version(r.since))
    return tuple(int(part) for part in rows[-1].cuda.split(".")) if rows else None


def driver_branch_for(cuda: tuple[int, ...]) -> int | None:
    """The first driver branch that runs a CUDA: 580 for CUDA 13."""
    return next((b.branch for b in _images().driver_branches if int(b.cuda) == cuda[0]), None)


def _numbers(text: str) -> tuple[int, ...]:
    """``8.3.RC2`` as (8, 3): a release candidate lies before the release of the same numbers."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _images() -> _Images:
    return _load("images.yaml", _Images)


_Table = TypeVar("_Table", bound=Strict)
_read: dict[str, Strict] = {}


def _load(name: str, form: type[_Table]) -> _Table:
    """A table, read once."""
    if name not in _read:
        _read[name] = _parse(name, form)
    table = _read[name]
    assert isinstance(table, form)
    return table


def _parse(name: str, form: type[_Table]) -> _Table:
    document = yamlfile.read(FOLDER / name)
    try:
        return form.model_validate(document.data)
    except ValidationError as exc:
        raise FleetError(*yamlfile.explain(exc, document, form, "RULE-KEY")) from exc
