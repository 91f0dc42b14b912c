"""Each failure that users report is planted and told by exactly one finding; its healthy twin gives none."""

from __future__ import annotations

import pytest

from fleet.rules import areas, rules
from scripts.rules import ROOT, cases, coverage_page, failures, rules_page
from tests.unit.coverage.case import Case

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.failure}-{case.rule}")
def test_a_planted_failure_is_told(case: Case) -> None:
    assert [finding.rule for finding in case.broken()] == [case.rule]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.failure}-{case.rule}")
def test_its_healthy_twin_is_not(case: Case) -> None:
    assert [finding.line() for finding in case.healthy()] == []


def test_the_failures_are_numbered_from_1_to_55() -> None:
    assert [row["failure"] for row in failures()] == list(range(1, 56))


def test_at_least_45_are_told_before_the_start_or_read_after_it() -> None:
    assert len({case.failure for case in CASES}) >= 45


def test_what_is_not_told_says_what_stands_against_it() -> None:
    told = {case.failure for case in CASES}
    assert [row["failure"] for row in failures() if row["failure"] not in told and not row.get("otherwise")] == []


def test_the_pages_are_as_the_data_are() -> None:
    assert (ROOT / "docs/rules.md").read_text() == rules_page(areas()), "run make docs"
    assert (ROOT / "docs/coverage.md").read_text() == coverage_page(failures(), CASES, rules()), "run make docs"
