"""Rules are data: every id that the code uses has an entry, and every entry is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.findings import FleetError
from fleet.rules import areas, find, rules

ROOT = Path(__file__).parents[2]
ID = re.compile(r"""["'\[]([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+|SMOKE)["'\]]""")
# What looks like an id in the code and is none.
OTHERS = {"A-Z", "UTF-8"}


def used() -> set[str]:
    files = [p for top in ("fleet", "tasks", "deploy") for p in (ROOT / top).rglob("*.py")] + [ROOT / "config.py"]
    texts = [path.read_text() for path in files if "lab" not in path.parts]
    return {name for text in texts for name in ID.findall(text)} - OTHERS


def test_every_id_in_the_code_is_a_rule() -> None:
    assert sorted(used() - set(rules())) == []


def test_every_rule_is_used() -> None:
    written = {name for name, rule in rules().items() if rule.looks_at != "journal"}
    assert sorted(written - used()) == []


def test_no_rule_is_written_twice() -> None:
    names = [rule.id for its in areas().values() for rule in its]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.id)
def test_a_rule_says_what_why_and_how(rule: object) -> None:
    for key in ("says", "why", "mend"):
        text = getattr(rule, key)
        assert text and text == text.strip() and not text.endswith("."), key


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(FleetError, match="write PORT-KV-DIRECT"):
        find("PORT-KV-DIREKT")
