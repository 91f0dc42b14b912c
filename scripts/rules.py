"""Writes docs/rules.md and docs/coverage.md: the rules, and which reported failure which of them tells.

    python scripts/rules.py

The second is made from the planted failures of tests/unit/coverage: it cannot claim what no test shows.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fleet.rules import Rule, areas, rules  # noqa: E402
from tests.unit import coverage  # noqa: E402
from tests.unit.coverage.case import Case  # noqa: E402

LOOKS_AT = {
    "inventory": "reading the inventory, before anything else",
    "recipe": "reading the recipe, before anything else",
    "plan": "`fleet check`, and before every run",
    "arguments": "`fleet check`, and before every run",
    "machine": "the preflight, and before every run",
    "run": "during a run",
    "journal": "a unit's journal after it failed, or `fleet explain FILE`",
}


def main() -> None:
    (ROOT / "docs" / "rules.md").write_text(rules_page(areas()))
    (ROOT / "docs" / "coverage.md").write_text(coverage_page(failures(), cases(), rules()))


def rules_page(by_area: Mapping[str, Iterable[Rule]]) -> str:
    lines = [
        "# Rules",
        "",
        "Everything that is said to be wrong carries the id of its rule. `fleet explain RULE` prints one. An error",
        "stops a run, a warning does not. Rules that look at the plan, the arguments or the machines can be waived in",
        "the inventory's group_data, with a reason that every report then shows:",
        "",
        '    waive = {"SHM-SMALL": "the vendor\'s own figure, enough for eight workers of ours"}',
        "",
        "Made from files/rules and files/failures by `make docs`.",
    ]
    for title, its in by_area.items():
        lines += ["", f"## {title}"]
        for rule in its:
            waived = "can be waived" if rule.waivable else "cannot be waived"
            severity = "error or warning" if rule.severity == "either" else rule.severity
            lines += ["", f"### {rule.id}", "", f"{_sentence(rule.says)} {_sentence(rule.why)}"]
            lines += ["", f"- Mend: {rule.mend}", f"- Told by: {LOOKS_AT[rule.looks_at]} ({severity}, {waived})"]
            lines += [f"- Source: {rule.source}"] if rule.source else []
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".") if text else ""


def failures() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/unit/coverage/failures.yaml").read_text())
    return found


def cases() -> tuple[Case, ...]:
    """All planted failures of all areas."""
    names = sorted(m.name for m in pkgutil.iter_modules(coverage.__path__) if m.name != "case")
    modules = [importlib.import_module(f"tests.unit.coverage.{name}") for name in names]
    return tuple(case for module in modules for case in module.CASES)


def coverage_page(rows: list[dict[str, Any]], planted: Iterable[Case], known: Mapping[str, Rule]) -> str:
    told: dict[int, list[str]] = {}
    for case in planted:
        its = told.setdefault(case.failure, [])
        its += [case.rule] if case.rule not in its else []

    def names(number: int, after: bool) -> list[str]:
        return [n for n in told.get(number, []) if (known[n].looks_at == "journal") == after]

    before = sum(bool(names(row["failure"], False)) for row in rows)
    either = sum(bool(told.get(row["failure"])) for row in rows)
    lines = [
        "# What is told of the failures that users report",
        "",
        f"{len(rows)} failures from issue trackers and vendors' documents. {before} are told before anything is",
        f"started, {either} before the start or from the journal after it. Each rule named here has a test that plants",
        "the failure and expects exactly that finding, and a healthy twin that gives none (tests/unit/coverage).",
        "",
        "Made from those tests by `make docs`. The rules are in [rules.md](rules.md).",
    ]
    for area in dict.fromkeys(row["area"] for row in rows):
        lines += [
            "",
            f"## {area[:1].upper() + area[1:]}",
            "",
            "| # | What users see | Told before | Read after | Otherwise |",
        ]
        lines += ["| --- | --- | --- | --- | --- |"]
        for row in (r for r in rows if r["area"] == area):
            number = row["failure"]
            cells = [str(number), row["symptom"]]
            cells += [
                ", ".join(f"[{n}](rules.md#{n.lower()})" for n in names(number, after)) for after in (False, True)
            ]
            lines.append("| " + " | ".join([*cells, " ".join(row.get("otherwise", "").split())]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
