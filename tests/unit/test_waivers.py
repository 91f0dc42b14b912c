"""A rule can be waived by id with a reason; every report then shows both, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleet import waivers
from fleet.checks import check_plan
from fleet.cli.main import main
from fleet.findings import FleetError, error, errors
from tests.unit.plans import lay

RECIPE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 1g
roles:
  serve: {tensor_parallel_size: 16, args: {max-model-len: 50000}}
"""
REASON = "eight workers only, measured"


def plan(waive: Any, **own: Any) -> Any:
    return lay(RECIPE, {"waive": waive, "of": own}, serve=["10.0.0.1"])


def test_a_waived_error_stops_nothing_and_is_still_told() -> None:
    assert [f.rule for f in errors(check_plan(plan({})))] == ["CONTEXT-MODEL"]
    found = check_plan(plan({"CONTEXT-MODEL": REASON}))
    assert errors(found) == ()
    line = next(f.line() for f in found if f.rule == "CONTEXT-MODEL")
    assert line.startswith("waived error: r serve-0: max-model-len 50000 is more than the model's 40960")
    assert line.endswith(f"; waived: {REASON} [CONTEXT-MODEL]")


@pytest.mark.parametrize(
    ("waive", "said"),
    [
        ({"SHM-SMAL": REASON}, "there is no rule 'SHM-SMAL'; write SHM-SMALL"),
        ({"INV-READ": REASON}, "INV-READ cannot be waived"),
        ({"SHM-SMALL": "  "}, "SHM-SMALL is waived without a reason; say why"),
        ({"SHM-SMALL": 3}, "waive.SHM-SMALL"),
        (["SHM-SMALL"], 'not [\'SHM-SMALL\']; {"RULE": "the reason"} is the form'),
        ("SHM-SMALL", "waive"),
    ],
)
def test_a_waiver_that_cannot_be_is_refused(waive: Any, said: str) -> None:
    with pytest.raises(FleetError) as refused:
        plan(waive)
    assert said in str(refused.value) and "[INV-KEY]" in str(refused.value)


def test_a_host_waives_for_itself_alone() -> None:
    shared = lay(RECIPE, {"of": {"10.0.0.2": {"waive": {"HOST-DISK": REASON}}}}, serve=["10.0.0.1", "10.0.0.2"])
    found = waivers.apply(shared, [error("HOST-DISK", host, "full", "mend") for host in ("10.0.0.1", "10.0.0.2")])
    assert [f.waived for f in found] == ["", REASON]


@pytest.mark.parametrize(
    ("where", "waived"),
    [
        ("fleet.py 10.0.0.2", REASON),
        ("fleet.py 10.0.0.1", ""),
        ("fleet.py 10.0.0.1, 10.0.0.2", ""),
        ("fleet.py 10.0.0.2, 10.0.0.3", REASON),
        ("r serve", REASON),
    ],
)
def test_what_names_hosts_is_waived_by_all_of_them(where: str, waived: str) -> None:
    own = {host: {"waive": {"ENV-ADDRESS": REASON}} for host in ("10.0.0.2", "10.0.0.3")}
    shared = lay(RECIPE, {"of": own}, serve=["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    (finding,) = waivers.apply(shared, [error("ENV-ADDRESS", where, "what", "mend")])
    assert finding.waived == waived


def test_a_waiver_that_nothing_needs_is_told() -> None:
    found = check_plan(plan({"CONTEXT-MODEL": REASON, "PORT-KV-DIRECT": REASON}))
    assert [f.what for f in found if f.rule == "WAIVER-UNUSED"] == ["PORT-KV-DIRECT is waived, and nothing breaks it"]


def test_check_shows_waivers_in_each_of_its_forms(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text('serve = [("10.0.0.1", {})]\n')
    (tmp_path / "group_data").mkdir()
    waive = {name: REASON for name in ("SHM-SMALL", "SECURITY-REMOTE-CODE")}
    text = f'recipe = "qwen3-235b-a22b-w8a8/a3-single"\nwaive = {waive!r}\n'
    (tmp_path / "group_data" / "w.py").write_text(text)
    path = str(tmp_path / "w.py")

    plain = CliRunner().invoke(main, ["check", path])
    assert plain.exit_code == 0
    assert "2 waived" in plain.stdout
    assert f"waived: {REASON} [SHM-SMALL]" in plain.stderr

    found = json.loads(CliRunner().invoke(main, ["check", "--json", path]).stdout)["findings"]
    assert {f["rule"]: f["waived"] for f in found if f["waived"]} == waive

    sarif = json.loads(CliRunner().invoke(main, ["check", "--sarif", path]).stdout)
    results = sarif["runs"][0]["results"]
    waived = [r for r in results if "suppressions" in r]
    assert {r["ruleId"] for r in waived} == set(waive)
    assert waived[0]["suppressions"] == [{"kind": "external", "justification": REASON}]
