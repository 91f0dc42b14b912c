"""The rules, as data: files/rules/<area>.yaml says of each what it tells, why that matters, and how to mend it.

A check's finding carries the id of its rule and its own words; here stands what is true of every such finding. It
feeds ``fleet explain RULE``, docs/rules.md and waivers.
"""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fleet import FILES, catalogue, yamlfile
from fleet.findings import FleetError, error
from fleet.recipe import Strict

FOLDER = FILES / "rules"
# What cannot be waived: without it there is no plan, or no run.
FIXED = ("inventory", "recipe", "run")


class Rule(Strict):
    """One rule. ``looks_at`` is what must be known to tell it; a journal's rules name a fault after it happened."""

    id: str
    severity: Literal["error", "warning", "either"]
    looks_at: Literal["inventory", "recipe", "plan", "arguments", "machine", "run", "journal"]
    says: str
    why: str
    mend: str
    source: str = ""

    @property
    def waivable(self) -> bool:
        return self.looks_at in ("plan", "arguments", "machine")


class _Area(Strict):
    """One file of rules."""

    title: str
    rules: list[Rule]


@cache
def areas(folder: Path = FOLDER) -> dict[str, tuple[Rule, ...]]:
    """Rules by the title of their area, in the order of the files' names; after them what a log can tell."""
    found: dict[str, tuple[Rule, ...]] = {}
    for path in sorted(folder.glob("[0-9]*.yaml")):
        document = yamlfile.read(path)
        try:
            area = _Area.model_validate(document.data)
        except ValidationError as exc:
            raise FleetError(*yamlfile.explain(exc, document, _Area, "RULE-KEY")) from exc
        found[area.title] = tuple(area.rules)
    if folder == FOLDER:
        for title, its in catalogue.areas().items():
            found[title] = tuple(Rule.model_validate(catalogue.as_rule(failure)) for failure in its)
    return found


@cache
def rules(folder: Path = FOLDER) -> dict[str, Rule]:
    """All rules by id."""
    return {rule.id: rule for its in areas(folder).values() for rule in its}


def find(name: str) -> Rule:
    """The rule of this id; a FleetError names the nearest."""
    known = rules()
    if name.upper() in known:
        return known[name.upper()]
    raise FleetError(error("RULE-NAME", f"rule {name!r}", "there is no such rule", nearest(name)))


def nearest(name: str) -> str:
    """How to go on from a name that no rule has."""
    close = difflib.get_close_matches(name.upper(), rules(), 1)
    return f"write {close[0]}" if close else "see docs/rules.md for those there are"
