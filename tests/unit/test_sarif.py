"""SARIF as code hosts read it: rules, places, levels."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fleet.cli.main import main
from fleet.findings import error, warning
from fleet.sarif import document


def test_a_finding_has_its_file_its_line_and_its_rule() -> None:
    found = [
        error("PORT-KV-DIRECT", "files/recipes/a.yaml:12 roles", "what", "mend", "why"),
        warning("PORT-KV-DIRECT", "a3 decode-0", "other", "mend"),
        warning("NO-SUCH", "a3", "third", "mend"),
    ]
    made = document({"inventories/a3.py": found})
    (run,) = made["runs"]
    assert made["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["PORT-KV-DIRECT", "NO-SUCH"]
    first, second, _ = run["results"]
    assert first["message"] == {"text": "files/recipes/a.yaml:12 roles: what (why); mend"}
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "files/recipes/a.yaml"}, "region": {"startLine": 12}}
    assert second["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "inventories/a3.py"}}
    assert second["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "a3 decode-0"}]
    assert [(r["level"], r["ruleIndex"]) for r in run["results"]] == [("error", 0), ("warning", 0), ("warning", 1)]


def test_check_gives_it_for_a_file_that_cannot_be_read_too() -> None:
    result = CliRunner().invoke(main, ["check", "--sarif", "no/such.py", "inventories/lab.py"])
    (run,) = json.loads(result.stdout)["runs"]
    assert result.exit_code == 2
    assert [r["ruleId"] for r in run["results"]] == ["INV-READ"]


def test_two_forms_at_once_are_refused() -> None:
    result = CliRunner().invoke(main, ["check", "--json", "--sarif", "inventories/lab.py"])
    assert result.exit_code == 2
    assert "choose one [RUN-OUTPUT]" in result.stderr


def test_a_path_with_spaces_is_an_address() -> None:
    found = [warning("PORT-KV-DIRECT", where, "w", "m") for where in ("my racks/a 3.py:4", "my racks/a 3.py h1", "r")]
    (run,) = document({"my racks/a 3.py": found})["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert [place["artifactLocation"]["uri"] for place in places] == ["my%20racks/a%203.py"] * 3
    assert [place.get("region") for place in places] == [{"startLine": 4}, None, None]
