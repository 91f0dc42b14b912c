"""What is known beside the tables: replacements, and what vllm-ascend and HCCL read; the lists lie in files/flags."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TypeVar

from packaging.version import Version
from pydantic import Field, ValidationError

from fleet import FILES, yamlfile
from fleet.findings import FleetError
from fleet.recipe import Strict

FOLDER = FILES / "flags"
# How alike a name must be to be taken for a slip.
ALIKE = 0.75
_Lists = TypeVar("_Lists", bound=Strict)


class Span(Strict):
    """The first and the last release with a name, where they are known, and what stands for it outside of them."""

    first: str | None = Field(None, alias="from")
    last: str | None = Field(None, alias="to")
    before: str | None = None
    after: str | None = None

    def why_not(self, release: str) -> tuple[str, str] | None:
        """Why this release does not have the name, and what to do about it; None where it has it."""
        if self.first and Version(release) < Version(self.first):
            return f"it is read from {self.first} on", use(self.before)
        if self.last and Version(release) > Version(self.last):
            return f"it was read up to {self.last}", use(self.after)
        return None


class _Releases(Strict):
    """Where names were looked up: the releases, oldest first."""

    source: str
    versions: list[str]

    def judged_by(self, version: str) -> str | None:
        """The newest release of the list that is not newer than ``version``; None before the first."""
        older = [v for v in self.versions if Version(v) <= Version(version)]
        return older[-1] if older else None


class Plugin(_Releases):
    """Names by what vllm-ascend's releases read."""

    inside: dict[str, str]
    keys: dict[str, Span]
    variables: dict[str, Span]

    def why_not(self, names: Mapping[str, Span], name: str, version: str) -> tuple[str, str] | None:
        """Why ``version`` does not read a name of ``keys`` or ``variables``, and what to do; None where it may."""
        release = self.judged_by(version)
        if release is None:
            return None
        if name in names:
            return names[name].why_not(release)
        if name in self.inside:
            return f"it belongs into {self.inside[name]}", f"write it there: {self.inside[name]}: {{{name}: ...}}"
        there = [known for known, span in names.items() if span.why_not(release) is None]
        if close := nearest(name, there):
            return "no version is known to read it", f"write {close}"
        if Version(version) > Version(self.versions[-1]):  # it may be new
            return None
        return "no version is known to read it", "remove it"


class Registries(_Releases):
    """Names that vLLM looks up when it starts: of parsers, and of ways to quantise."""

    tools: dict[str, Span]
    reasoning: dict[str, Span]
    quantisation: dict[str, Span]

    def why_not(self, names: Mapping[str, Span], name: str, version: str) -> tuple[str, str] | None:
        """Why ``version`` does not have a name, and what to do; None where it may, as between two releases here."""
        before = self.judged_by(version)
        if before is None:
            return None
        after = next((v for v in self.versions if Version(v) >= Version(version)), None)
        around = [v for v in (before, after) if v is not None]
        there = [known for known, span in names.items() if any(span.why_not(v) is None for v in around)]
        if name in there or (name not in names and after is None):  # it may be new
            return None
        if (span := names.get(name)) is None:
            close = difflib.get_close_matches(name, there, 1, ALIKE)
            return "no version has it", f"write {close[0]}" if close else f"use one of {', '.join(there)}"
        if span.first and Version(before) < Version(span.first):
            return f"vLLM has it from {span.first} on", "choose another, or a version that has it"
        return f"last in {span.last}", "choose another, or a version that has it"


class Variables(Strict):
    """Those that are read as whole numbers, and those that others than vLLM, vllm-ascend and HCCL read."""

    numbers: list[str]
    others: list[str]


class _Names(Strict):
    variables: list[str]


class Replaced(Strict):
    """What to use instead, by the name that is gone; ``elsewhere`` are prefixes of variables that others read."""

    arguments: dict[str, str]
    variables: dict[str, str]
    keys: dict[str, str]
    elsewhere: list[str]


@cache
def plugin() -> Plugin:
    """vllm-ascend's lists."""
    return _read("vllm-ascend.yaml", Plugin)


@cache
def hccl() -> list[str]:
    """Variables of HCCL, as far as they are known."""
    return _read("hccl.yaml", _Names).variables


@cache
def registries() -> Registries:
    """vLLM's registries."""
    return _read("parsers.yaml", Registries)


@cache
def variables() -> Variables:
    """What is known of variables beside their names."""
    return _read("variables.yaml", Variables)


@cache
def replaced() -> Replaced:
    """Replacements."""
    return _read("replaced.yaml", Replaced)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that looks most like this one, without the beginning that half of all have."""
    bare = {known.removeprefix("VLLM_").removeprefix("ASCEND_").removeprefix("HCCL_"): known for known in names}
    mine = name.removeprefix("VLLM_").removeprefix("ASCEND_").removeprefix("HCCL_")
    close = difflib.get_close_matches(mine, bare, 1, ALIKE)
    return bare[close[0]] if close else None


def one_letter_off(name: str, names: Iterable[str]) -> str | None:
    """The name of which one letter is missing, too many, another or in its neighbour's place."""
    return next((known for known in names if abs(len(known) - len(name)) < 2 and _is_one_off(name, known)), None)


def _is_one_off(one: str, other: str) -> bool:
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    mine, its = one[start:], other[start:]
    if one == other or (mine[:1] + its[:1]).strip("0123456789") != mine[:1] + its[:1]:
        return False  # names of one family are counted
    swapped = len(its) > 1 and mine[:2] == its[1::-1] and mine[2:] == its[2:]
    return swapped or mine[1:] == its[1:] or mine[1:] == its or mine == its[1:]


def use(other: str | None) -> str:
    """What to do, from a list's words: another name, or "nothing, since ..."."""
    if other is None or other.startswith("nothing"):
        return "remove it" + (other or "").removeprefix("nothing")
    return f"use {other}"


def _read(name: str, model: type[_Lists]) -> _Lists:
    document = yamlfile.read(FOLDER / name, "FLAGS-READ")
    try:
        return model.model_validate(document.data)
    except ValidationError as exc:
        raise FleetError(*yamlfile.explain(exc, document, model, "FLAGS-READ")) from exc
