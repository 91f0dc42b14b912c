"""Starting, waiting and asking: the shell texts, run against stand-ins for systemctl, curl and journalctl."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from fleet import ROOT, waiting
from fleet.plan import plan
from fleet.topology import Plan, Unit
from fleet.waiting import UnitState, read_answer, read_states
from tasks.guard import plan_of


def test_states_are_read() -> None:
    lines = [
        "Welcome to Ubuntu",
        "vllm-serve-0 active 0123456789ab",
        "vllm-front-door failed ",
        "vllm-x inactive",
        "vllm-y activating ab",
    ]
    assert read_states(lines) == {
        "vllm-serve-0": UnitState("active", "0123456789ab"),
        "vllm-front-door": UnitState("failed", ""),
        "vllm-x": UnitState("inactive", ""),
        "vllm-y": UnitState("activating", "ab"),
    }


@pytest.mark.parametrize(
    ("active", "runs"),
    [("active", True), ("reloading", True), ("activating", True), ("failed", False), ("inactive", False), ("", False)],
)
def test_what_counts_as_running(active: str, runs: bool) -> None:
    assert UnitState(active, "x").runs is runs


def test_states_are_asked_for(tmp_path: Path) -> None:
    tool(tmp_path, "systemctl", 'case "$*" in *vllm-a.service) echo active;; *) echo inactive;; esac')
    done = shell(tmp_path, waiting.ask_states(["vllm-a", "vllm-b"]))
    assert read_states(done.stdout.splitlines()) == {
        "vllm-a": UnitState("active", ""),
        "vllm-b": UnitState("inactive", ""),
    }


def test_a_start_forgets_old_failures_and_ends_by_itself(tmp_path: Path) -> None:
    tool(tmp_path, "systemctl", 'echo "$*"')
    units = [unit_of("lab", "vllm-serve-0"), unit_of("lab", "vllm-front-door")]
    assert shell(tmp_path, waiting.start(units)).stdout.splitlines() == [
        "reset-failed vllm-serve-0.service vllm-front-door.service",
        "restart vllm-serve-0.service",
        "reload-or-restart vllm-front-door.service",
    ]
    assert "timeout 180 systemctl restart" in waiting.start(units)
    assert "timeout 180 systemctl reload-or-restart" in waiting.start(units)


@pytest.mark.parametrize(
    ("units", "asked"),
    [
        (["vllm-front-door"], "reload-or-restart vllm-front-door.service"),
        (["vllm-serve-0"], "restart vllm-serve-0.service"),
    ],
)
def test_only_what_reads_its_configuration_anew_is_reloaded(tmp_path: Path, units: list[str], asked: str) -> None:
    tool(tmp_path, "systemctl", 'echo "$*"')
    text = waiting.start([unit_of("lab", name) for name in units])
    assert shell(tmp_path, text).stdout.splitlines() == [f"reset-failed {units[0]}.service", asked]


@pytest.mark.parametrize("verb", ["restart", "reload-or-restart"])
def test_a_start_that_fails_is_told(tmp_path: Path, verb: str) -> None:
    tool(tmp_path, "systemctl", f'[ "$1" != {verb} ]')
    units = [unit_of("lab", "vllm-serve-0"), unit_of("lab", "vllm-front-door")]
    assert shell(tmp_path, waiting.start(units)).returncode == 1


# ---- waiting for a unit

MODELS = '{"object":"list","data":[{"id":"qwen3","object":"model"}]}'
COMPLETION = '{"choices":[{"index":0,"text":" bright","finish_reason":"length"}]}'


def test_a_wait_ends_when_the_model_gives_a_token(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=0, models=MODELS, completions=COMPLETION)
    assert wait(tmp_path, "lab", "vllm-serve-0") == 0


@pytest.mark.parametrize(
    ("models", "completions"),
    [
        (MODELS.replace("qwen3", "qwen35"), COMPLETION),
        (MODELS, ""),
        (MODELS, '{"error": {"message": "model not ready"}}'),
    ],
    ids=["other-model", "no-completion", "error"],
)
def test_healthy_is_not_enough(tmp_path: Path, models: str, completions: str) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=0, models=models, completions=completions)
    assert wait(tmp_path, "lab", "vllm-serve-0", seconds=0) == 4


@pytest.mark.parametrize("ascii", [True, False], ids=["escaped", "as-it-is"])
def test_a_served_name_is_found_however_json_writes_it(tmp_path: Path, ascii: bool) -> None:
    named = with_served_name("千问+b")
    models = json.dumps({"object": "list", "data": [{"id": "千问+b", "object": "model"}]}, ensure_ascii=ascii)
    systemd(tmp_path, "active", "running")
    (tmp_path / "models.json").write_text(models)
    tool(
        tmp_path,
        "curl",
        f"case \"$*\" in */v1/models*) cat {tmp_path}/models.json;; */v1/completions*) echo '{COMPLETION}';; esac",
    )
    unit = next(u for u in named.units if u.name == "vllm-serve-0")
    node = named.fleet.node(unit.host)
    assert shell(tmp_path, waiting.wait(named, unit, node, 0)).returncode == 0
    (tmp_path / "models.json").write_text(MODELS)
    assert shell(tmp_path, waiting.wait(named, unit, node, 0)).returncode == 4


def test_prefill_alone_is_not_asked_for_text(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=0, models=MODELS, completions="")
    assert wait(tmp_path, "lab-pd", "vllm-prefill-0") == 0


def test_a_proxy_is_asked_for_its_health_only(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=0, models="", completions="")
    assert wait(tmp_path, "lab", "vllm-front-door") == 0


def test_a_host_without_an_api_is_only_to_be_active(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=1, models="", completions="")
    assert wait(tmp_path, "a3-pd", "vllm-decode-0", host="10.10.0.13") == 0


@pytest.mark.parametrize(
    ("active", "sub"), [("failed", "failed"), ("inactive", "dead"), ("activating", "auto-restart")]
)
def test_a_wait_ends_when_the_unit_is_dead(tmp_path: Path, active: str, sub: str) -> None:
    systemd(tmp_path, active, sub)
    answers(tmp_path, health=0, models=MODELS, completions=COMPLETION)
    assert wait(tmp_path, "lab", "vllm-serve-0") == 3


def test_a_wait_ends_when_the_unit_was_started_again_behind_its_back(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running", restarts=f"echo x >> {tmp_path}/count; wc -l < {tmp_path}/count")
    answers(tmp_path, health=1, models="", completions="")
    assert wait(tmp_path, "lab", "vllm-serve-0") == 3


def test_a_wait_ends_when_time_has_run_out(tmp_path: Path) -> None:
    systemd(tmp_path, "active", "running")
    answers(tmp_path, health=1, models="", completions="")
    assert wait(tmp_path, "lab", "vllm-serve-0", seconds=0) == 4


# ---- waiting for a member of a group

GROUP_UNIT = ("a3-pd", "vllm-decode-0", "10.10.0.13")


def wait_for_member(folder: Path, seconds: int = 0, ago: int = 0, state: str = "") -> tuple[int, str]:
    """``state``: what its group.py has written, with NOW for so many seconds ago."""
    made, unit = plan_for(GROUP_UNIT[0]), unit_of(*GROUP_UNIT)
    if state:
        (folder / "group").write_text(state.replace("NOW", str(int(time.time()) - ago)) + "\n")
    text = waiting.wait(made, unit, made.fleet.node(unit.host), seconds)
    assert "/run/vllm-fleet/vllm-decode-0/group" in text
    done = shell(folder, text.replace("/run/vllm-fleet/vllm-decode-0/group", f"{folder}/group"))
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("active", "sub", "code", "ends"),
    [
        ("activating", "auto-restart", 75, 4),  # for the others' sake: it is waited for
        ("activating", "auto-restart", 1, 3),
        ("activating", "auto-restart", 137, 3),
        ("failed", "failed", 78, 3),
        ("failed", "failed", 75, 3),
        ("inactive", "dead", 0, 3),
        ("active", "running", 0, 0),
    ],
)
def test_a_member_that_starts_anew_for_the_others_is_not_dead(
    tmp_path: Path, active: str, sub: str, code: int, ends: int
) -> None:
    systemd(tmp_path, active, sub, code=code)
    assert wait_for_member(tmp_path) == (ends, "")


def test_exit_75_of_a_unit_alone_is_a_death(tmp_path: Path) -> None:
    systemd(tmp_path, "activating", "auto-restart", code=75)
    assert wait(tmp_path, "lab", "vllm-serve-0") == 3


def test_a_member_may_have_started_again_behind_the_back(tmp_path: Path) -> None:
    count = f"echo x >> {tmp_path}/count; wc -l < {tmp_path}/count"
    systemd(tmp_path, f"$([ $(wc -l < {tmp_path}/count) -gt 1 ] && echo active || echo activating)", "start", count)
    assert wait_for_member(tmp_path, seconds=30) == (0, "")
    assert len((tmp_path / "count").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("state", "ago", "ends"),
    [
        ("waiting NOW decode-0@10.10.0.12: its unit does not run", 60, 5),
        ("waiting NOW a: its unit does not run; b has other settings", 600, 5),
        ("waiting NOW decode-0@10.10.0.12: its unit does not run", 30, 4),
        ("waiting NOW a: 10.10.0.12 does not answer", 600, 4),  # a slow link, or a firewall: as long as it may take
        ("waiting NOW a has other settings", 600, 4),
        ("running NOW 0123456789ab", 600, 4),
        ("", 0, 4),
    ],
    ids=["long", "one-of-two", "short", "silent", "settings", "running", "nothing-said"],
)
def test_a_wait_for_a_member_whose_unit_does_not_run_is_in_vain(
    tmp_path: Path, state: str, ago: int, ends: int
) -> None:
    systemd(tmp_path, "activating", "start")
    why = state.partition("NOW ")[2]
    assert wait_for_member(tmp_path, ago=ago, state=state) == (ends, f"in vain: {why}\n" if ends == 5 else "")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("running NOW b: its engine has died 3 times; 0123456789ab", "", ""),  # before this wait: it may be mended
        (
            "running NOW b: its engine has died 3 times; 0123456789ab",
            "running 1 b: its engine has died 4 times; 1123456789ab",
            "in vain: b: its engine has died 4 times\n",
        ),
        (
            "waiting NOW b has other settings",
            "running 1 b: its engine has died 2 times; 0123456789ab",
            "in vain: b: its engine has died 2 times\n",
        ),
    ],
)
def test_a_member_whose_engine_dies_again_and_again_is_waited_for_in_vain(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    group, count = tmp_path / "group", tmp_path / "count"
    change = f"if [ $(wc -l < {count}) = 2 ]; then echo '{after}' > {group}; fi" if after else "true"
    systemd(tmp_path, "activating", "start", f"echo x >> {count}; {change}; echo 0")
    assert wait_for_member(tmp_path, seconds=2, state=before) == (5 if said else 4, said)


def test_between_two_starts_what_was_said_of_the_earlier_one_does_not_count(tmp_path: Path) -> None:
    systemd(tmp_path, "activating", "auto-restart", code=75)
    state = "waiting NOW decode-0@10.10.0.12: its unit does not run"
    assert wait_for_member(tmp_path, ago=600, state=state) == (4, "")


def test_a_wait_knows_the_words_and_codes_of_the_program_that_keeps_a_group_together() -> None:
    text = (ROOT / "files/group/group.py").read_text()
    assert f"EXIT_PEERS, EXIT_GAVE_UP = {waiting.EXIT_PEERS}, 78\n" in text
    assert f': {waiting.NOT_RUNNING}"' in text


# ---- the answer of the model


def answer(text: object, **choice: object) -> list[str]:
    return [json.dumps({"choices": [{"text": text, **choice}]}), "200"]


def test_a_completion() -> None:
    assert read_answer(answer(" bright")) == (" bright", "")


def test_what_a_login_shell_prints_is_no_answer() -> None:
    said = ["Welcome to Ubuntu 22.04", "", "@@ answer", *answer(" bright")]
    assert read_answer(said) == (" bright", "")
    assert read_answer(["Welcome to Ubuntu 22.04", "@@ answer", "", "000"]) == ("", "no connection")
    assert read_answer(["Welcome to Ubuntu 22.04", "@@ answer"]) == ("", "no answer")


@pytest.mark.parametrize(
    ("lines", "rest"),
    [
        ([], []),
        (["failed", "why"], ["failed", "why"]),
        (["@@ answer"], []),
        (["@@ answer", "failed", "why"], ["failed", "why"]),
        (["hello", "@@ answers", "@@ answer", "failed", "@@ answer"], ["failed", "@@ answer"]),
    ],
    ids=["nothing", "no-mark", "mark-alone", "mark-first", "mark-later"],
)
def test_what_stands_before_the_mark_is_dropped(lines: list[str], rest: list[str]) -> None:
    assert waiting.after_mark(lines) == rest


def test_a_completion_over_several_lines() -> None:
    assert read_answer(["{", '"choices": [{"text": "a\\nb"}]', "}", "200"]) == ("a\nb", "")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "no answer"),
        (["", "000"], "no connection"),
        (["<html>  Bad", "Gateway </html>", "502"], "HTTP 502 <html> Bad Gateway </html>"),
        (['{"detail":"Not Found"}', "404"], 'HTTP 404 {"detail":"Not Found"}'),
        (["hello", "200"], "HTTP 200 with something that is no completion: hello"),
        (["[]", "200"], "HTTP 200 with something that is no completion: []"),
        (['{"choices": []}', "200"], 'HTTP 200 with something that is no completion: {"choices": []}'),
        (['{"choices": ["x"]}', "200"], 'HTTP 200 with something that is no completion: {"choices": ["x"]}'),
        (answer("", finish_reason="stop"), "HTTP 200 with an empty text (finish_reason stop)"),
        (answer(" \n", finish_reason="length"), "HTTP 200 with an empty text (finish_reason length)"),
        (answer(None, finish_reason="abort"), "HTTP 200 with an empty text (finish_reason abort)"),
    ],
    ids=[
        *("nothing", "no-connection", "bad-gateway", "not-found", "text", "list", "no-choice", "no-mapping"),
        *("empty", "blank", "null"),
    ],
)
def test_no_completion(lines: list[str], fault: str) -> None:
    assert read_answer(lines) == ("", fault)


def test_the_model_is_asked_by_its_served_name(tmp_path: Path) -> None:
    tool(tmp_path, "curl", f"printf '%s\\n' \"$@\" > {tmp_path}/words; printf '%s\\n200\\n' '{COMPLETION}'")
    done = shell(tmp_path, waiting.ask_model(plan_for("lab"), "http://10.231.77.10:8080"))
    assert done.stdout.splitlines() == ["@@ answer", COMPLETION, "200"]
    assert read_answer(done.stdout.splitlines()) == (" bright", "")
    words = (tmp_path / "words").read_text().splitlines()
    assert "http://10.231.77.10:8080/v1/completions" in words
    assert json.loads(words[words.index("-d") + 1]) == {
        "model": "qwen3",
        "prompt": "The future of AI is",
        "max_tokens": 16,
        "temperature": 0,
    }


def test_an_answer_keeps_its_escapes(tmp_path: Path) -> None:
    """The echo of some shells (dash) would turn them into what they stand for, and JSON takes no bare newline."""
    (tmp_path / "body").write_text(json.dumps({"choices": [{"text": " bright.\n\nIt\tis \\ so"}]}) + "\n200\n")
    tool(tmp_path, "curl", f"cat {tmp_path}/body")
    done = shell(tmp_path, waiting.ask_model(plan_for("lab"), "http://10.231.77.10:8080"))
    assert read_answer(done.stdout.splitlines()) == (" bright.\n\nIt\tis \\ so", "")


def test_the_line_to_paste() -> None:
    assert waiting.curl_line(plan_for("h100"), "http://10.20.0.11:8000") == (
        "curl http://10.20.0.11:8000/v1/completions -H 'Content-Type: application/json' "
        '-d \'{"model": "Qwen/Qwen3-235B-A22B", "prompt": "The future of AI is", "max_tokens": 16}\''
    )


def test_the_line_to_paste_is_quoted(tmp_path: Path) -> None:
    made = with_served_name("it's $HOME")
    tool(tmp_path, "curl", f"printf '%s\\n' \"$@\" > {tmp_path}/words")
    assert shell(tmp_path, waiting.curl_line(made, "http://10.231.77.10:8080")).returncode == 0
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:4] == [
        *("http://10.231.77.10:8080/v1/completions", "-H", "Content-Type: application/json", "-d"),
    ]
    assert json.loads(words[4]) == {"model": "it's $HOME", "prompt": "The future of AI is", "max_tokens": 16}


def test_last_words_leave_out_what_systemd_says_of_starting(tmp_path: Path) -> None:
    tool(tmp_path, "systemctl", 'case "$*" in *ActiveState*) echo failed;; *) echo abc;; esac')
    tool(tmp_path, "journalctl", "printf 'Starting vLLM\\nvllm serve: error: unrecognized arguments\\nStopped vLLM\\n'")
    done = shell(tmp_path, waiting.last_words(unit_of("lab", "vllm-serve-0")))
    assert done.stdout.splitlines() == ["@@ answer", "failed", "vllm serve: error: unrecognized arguments"]


# ---- stand-ins


def tool(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def systemd(folder: Path, active: str, sub: str, restarts: str = "echo 0", code: int = 0) -> None:
    """One question, one answer of lines KEY=VALUE, in systemd's own order."""
    tool(
        folder,
        "systemctl",
        '[ "$1 $2 $3" = "show -p ActiveState,SubState,NRestarts,ExecMainStatus" ] || exit 1\n'
        f'echo "NRestarts=$({restarts})"; echo ExecMainStatus={code}; echo ActiveState={active}; echo SubState={sub}',
    )
    tool(folder, "journalctl", "echo loading weights")


def answers(folder: Path, health: int, models: str, completions: str) -> None:
    tool(
        folder,
        "curl",
        f"case \"$*\" in */health*) exit {health};; */v1/models*) echo '{models}';; "
        f"*/v1/completions*) echo '{completions}';; esac",
    )


def shell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=False, timeout=10)


def wait(folder: Path, inventory: str, unit: str, seconds: int = 30, host: str | None = None) -> int:
    made = plan_for(inventory)
    found = unit_of(inventory, unit, host)
    return shell(folder, waiting.wait(made, found, made.fleet.node(found.host), seconds)).returncode


def plan_for(name: str) -> Plan:
    return plan_of(str(ROOT / "inventories" / f"{name}.py"))


def with_served_name(name: str) -> Plan:
    """The lab's plan with a model of another name."""
    made = plan_for("lab")
    model = made.recipe.model.model_copy(update={"served_name": name})
    return plan(made.fleet, made.recipe.model_copy(update={"model": model}))


def unit_of(inventory: str, name: str, host: str | None = None) -> Unit:
    return next(u for u in plan_for(inventory).units if u.name == name and host in (None, u.host))
