"""docs/topologies.md says what the plans say, and what it tells people to paste holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fleet.checks import check_plan
from fleet.findings import errors
from fleet.sharing import between

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("topologies", ROOT / "scripts" / "topologies.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["topologies"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_pictures_are_fresh(generator: ModuleType) -> None:
    made = generator.pages()
    stale = [n for n, text in made.items() if not (ROOT / n).is_file() or (ROOT / n).read_text() != text]
    assert stale == [], "run make docs"
    pictures = {f"docs/topologies/{p.name}" for p in (ROOT / "docs" / "topologies").iterdir()}
    assert pictures == set(made) - {"docs/topologies.md"}, "run make docs"


def test_every_topology_passes_the_check(generator: ModuleType) -> None:
    for topology in generator.TOPOLOGIES:
        plans = generator.plans_of(topology)
        assert [f.line() for p in plans for f in errors(check_plan(p))] == []
        assert between(plans) == []


def test_the_two_services_are_two_on_one_host(generator: ModuleType) -> None:
    one, two = generator.plans_of(next(t for t in generator.TOPOLOGIES if t.name == "two-services"))
    assert one.fleet.nodes[0].address == two.fleet.nodes[0].address
    assert one.fleet.settings.service != two.fleet.settings.service


def test_every_section_says_what_was_run(generator: ModuleType) -> None:
    page = (ROOT / "docs" / "topologies.md").read_text()
    *sections, last = page.split("\n## ")[1:]
    assert [text.partition("\n")[0] for text in sections] == [topology.title for topology in generator.TOPOLOGIES]
    assert [text.count("**What was run:** ") for text in sections] == [1] * len(generator.TOPOLOGIES)
    assert last.startswith("What could not be run, and why\n")
    assert "**What was run:** " not in last
