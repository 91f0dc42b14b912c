"""Findings as SARIF 2.1.0, the form that code hosts and editors show beside a change (OASIS standard)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fleet import __version__
from fleet.findings import Finding
from fleet.rules import rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def document(findings: Mapping[str, Iterable[Finding]]) -> dict[str, Any]:
    """One run; ``findings`` is by the inventory file that they were found in."""
    results = [_result(inventory, finding) for inventory, its in findings.items() for finding in its]
    ids = list(dict.fromkeys(result["ruleId"] for result in results))
    for result in results:
        result["ruleIndex"] = ids.index(result["ruleId"])
    driver = {"name": "vllm-fleet", "version": __version__, "rules": [_rule(name) for name in ids]}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(name: str) -> dict[str, Any]:
    rule = rules().get(name)
    if rule is None:
        return {"id": name}
    text = f"{rule.why}. {rule.mend}." + (f" Source: {rule.source}." if rule.source else "")
    return {
        "id": name,
        "shortDescription": {"text": rule.says},
        "help": {"text": text},
        "defaultConfiguration": {"level": "warning" if rule.severity == "warning" else "error"},
    }


def _result(inventory: str, finding: Finding) -> dict[str, Any]:
    why = f" ({finding.why})" if finding.why else ""
    text = f"{finding.where}: {finding.what}{why}; {finding.mend}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": " ".join(text.split())},
        "locations": [_location(inventory, finding.where)],
    }
    if finding.waived:
        result["suppressions"] = [{"kind": "external", "justification": finding.waived}]
    return result


def _location(inventory: str, where: str) -> dict[str, Any]:
    """The file and line where the finding names one, else the inventory, and what it is about as a logical name."""
    match = re.match(r"(\S+\.(?:ya?ml|py))(?::(\d+))?", where) if not where.startswith(f"{inventory} ") else None
    match = match or re.match(rf"({re.escape(inventory)})(?::(\d+))?", where)
    place: dict[str, Any] = {"artifactLocation": {"uri": _address(match[1] if match else inventory)}}
    if match and match[2]:
        place["region"] = {"startLine": int(match[2])}
    return {"physicalLocation": place, "logicalLocations": [{"fullyQualifiedName": where}]}


def _address(path: str) -> str:
    """A path as the form wants it: what an address cannot hold, a space or an umlaut, as %20 and its like."""
    plain = re.compile(rb"[A-Za-z0-9/._~-]")
    return "".join(chr(byte) if plain.match(bytes([byte])) else f"%{byte:02X}" for byte in path.encode())
