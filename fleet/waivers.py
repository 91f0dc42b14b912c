"""Rules that an inventory lets pass, each with its reason: ``waive = {"NPU-LINK": "cable ordered, 12 May"}``.

A waived finding stops no run, and every report goes on showing it, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.findings import Finding, warning

if TYPE_CHECKING:
    from fleet.topology import Plan


def check(waive: Mapping[str, str]) -> None:
    """Raise ValueError for a rule that does not exist or cannot be waived, and for a missing reason."""
    from fleet.rules import nearest, rules

    for name, reason in waive.items():
        rule = rules().get(name)
        if rule is None:
            raise ValueError(f"there is no rule {name!r}; {nearest(name)}")
        if not rule.waivable:
            raise ValueError(f"{name} cannot be waived; what it tells leaves nothing to run")
        if not reason.strip():
            raise ValueError(f"{name} is waived without a reason; say why, every report will show it")


def apply(plan: Plan, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, those that are waived marked with the reason: by all hosts that they name, else by any."""
    nodes = {node.name: node for node in plan.fleet.nodes}
    anywhere = {rule: reason for node in reversed(plan.fleet.nodes) for rule, reason in node.settings.waive.items()}
    if not anywhere:
        return tuple(findings)
    result = []
    for finding in findings:
        listed = finding.where.removeprefix(f"{plan.fleet.source} ")
        named = [nodes[name] for name in listed.partition(" and ")[0].split(", ") if name in nodes]
        given = [node.settings.waive.get(finding.rule, "") for node in named] or [anywhere.get(finding.rule, "")]
        result.append(replace(finding, waived=given[0] if all(given) else ""))
    return tuple(result)


def unused(plan: Plan, findings: Iterable[Finding]) -> Iterable[Finding]:
    """Waivers of rules about the plan that nothing breaks; what machines show cannot be known here."""
    names = {rule for node in plan.fleet.nodes for rule in node.settings.waive}
    if not names:
        return
    from fleet.rules import rules

    told = {finding.rule for finding in findings}
    for name in sorted(names - told):
        if rules()[name].looks_at in ("plan", "arguments"):
            what = f"{name} is waived, and nothing breaks it"
            yield warning("WAIVER-UNUSED", plan.fleet.source, what, "remove it from waive")
