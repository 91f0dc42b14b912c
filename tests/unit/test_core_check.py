"""Every rule that needs no machine: one plan that breaks it, and a healthy twin."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleet import ROOT, checks, inventory, yamlfile
from fleet.checks import check_plan
from fleet.cli.main import main
from fleet.findings import FleetError, as_json, error, exit_code, warning
from fleet.plan import plan
from fleet.recipe import Recipe
from fleet.rules import rules as rules_told
from fleet.topology import Plan
from tasks import guard
from tasks.guard import plan_of
from tests.unit.coverage import plan as planted
from tests.unit.coverage.case import Case

A3 = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, quantization: ascend, max_position_embeddings: 40960, weights_gb: 240}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
roles:
  serve: {tensor_parallel_size: 8}
"""
PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
shared: {env: {LD_LIBRARY_PATH: '/x/mooncake:$LD_LIBRARY_PATH'}}
roles:
  prefill: {tensor_parallel_size: 16}
  decode: {tensor_parallel_size: 16}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
"""
A2_BF16 = """
title: t
source: s
platform: ascend-a2
model: {name: org/model, max_position_embeddings: 40960, weights_gb: 470}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
shm_size: 16g
roles:
  serve: {tensor_parallel_size: 8}
"""
NVIDIA = """
title: t
source: s
platform: nvidia
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.19.1}
shm_size: 16g
roles:
  serve: {tensor_parallel_size: 8}
"""
LOAD = """
workload: {args: {num-prompts: 800, max-concurrency: 160}}
reference: {results: {requests: 800, concurrency: 160}}
"""
ACCURACY = "reference: {accuracy: {value: 91.16, measured_with: vllm-ascend 0.13.0}}\n"
YARN = A3.replace("{tensor_parallel_size: 8}", "{yarn: {factor: 4}, args: {max-model-len: 163840}}")

KEYS = {"rule", "severity", "where", "what", "mend", "why", "source", "waived"}
PAIRS = A3.replace("tensor_parallel_size: 8", "tensor_parallel_size: 2").replace("240", "60")

# rule: (a healthy plan, what is changed in it, what then breaks the rule, what the line holds)
RULES = {
    "PORT-KV-DIRECT": (
        PD,
        "36000",
        "30000",
        ["prefill-0, decode-0", "kv ports 30000, 30100 lie in 20000-35999", "to 36000 or above"],
    ),
    "ENV-FUSED-MC2": (
        PD.replace("prefill: {", "prefill: {env: {VLLM_ASCEND_ENABLE_FUSED_MC2: 1}, "),
        "FUSED_MC2: 1",
        "FUSED_MC2: 2",
        ["prefill-0", "decode only", "set it to 1"],
    ),
    "CONTEXT-YARN": (YARN, "163840", "163841", ["serve-0", "163841 is more than yarn's 163840"]),
    "CONTEXT-MODEL": (
        A3.replace("{tensor_parallel_size: 8}", "{args: {max-model-len: 40960}}"),
        "max-model-len: 40960",
        "max-model-len: 81921",
        ["serve-0", "81921 is more than the model's 40960", "yarn: {factor: 3}"],
    ),
    "MEMORY-WEIGHTS": (
        A2_BF16.replace("470", "435"),
        "weights_gb: 435",
        "weights_gb: 470",
        ["serve-0", "470 GB of weights on 512 GB", "use two hosts, or the w8a8 weights"],
    ),
    "SHM-SMALL": (A3, "shm_size: 16g", "shm_size: 1g", ["shm_size 1g", "set shm_size: 16g"]),
    "REFERENCE-LOAD": (A3 + LOAD, "requests: 800", "requests: 720", ["num-prompts 800", "reported for 720"]),
    "REFERENCE-VERSION": (A3 + ACCURACY, "vllm-ascend 0.13.0}", "vllm-ascend 0.11.0rc0}", ["0.11.0rc0", "runs 0.13.0"]),
    "IMAGE-CUDA": (NVIDIA, "0.19.1", "0.20.0", ["vllm/vllm-openai:v0.20.0", "R580", "v0.20.0-cu129"]),
    "VERSION-ARGUMENT": (
        NVIDIA.replace("{tensor_parallel_size: 8}", "{args: {swap-space: 4}}").replace("0.19.1", "0.17.1"),
        "0.17.1",
        "0.21.0",
        ["vLLM 0.21.0 has no --swap-space", "left out"],
    ),
    "SECURITY-REMOTE-CODE": (
        A3.replace("{tensor_parallel_size: 8}", "{args: {trust-remote-code: false}}"),
        "trust-remote-code: false",
        "trust-remote-code: true",
        ["runs code that comes with the weights", "remove it"],
    ),
}


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (16, None),
        ("0-1", None),
        ("4,5,14,15", None),
        ("0-2", "device 2 is given without 3, the other die of the same NPU"),
        ("1-2", "device 1 is given without 0, the other die of the same NPU"),
        ("15,4-5", "device 15 is given without 14, the other die of the same NPU"),
    ],
)
def test_the_two_dies_of_an_npu_go_together(devices: int | str, told: str | None) -> None:
    found = [f for f in check_plan(lay(PAIRS, data={"devices": devices})) if f.rule == "DEVICES-PAIRS"]
    assert [(f.where, f.what) for f in found] == ([("fleet.py 10.0.0.1", told)] if told else [])


@pytest.mark.parametrize(
    ("platform", "devices", "told"),
    [
        ("ascend-a3", 16, None),
        ("ascend-a3", "0-15", None),
        ("ascend-a3", "14-17", "device 17 is given, the usual ascend-a3 host has 0 to 15"),
        ("ascend-a2", "6-7", None),
        ("ascend-a2", "8-15", "device 15 is given, the usual ascend-a2 host has 0 to 7"),
        ("ascend-a2", 16, None),  # a host of its own: as many as were counted there
    ],
)
def test_devices_that_the_family_does_not_usually_have(platform: str, devices: int | str, told: str | None) -> None:
    made = lay(PAIRS.replace("ascend-a3", platform), data={"devices": devices})
    found = [f for f in check_plan(made) if f.rule == "DEVICES-COUNT"]
    where = ("fleet.py 10.0.0.1", "warning")
    assert [(f.where, f.severity, f.what) for f in found] == ([(*where, told)] if told else [])


@pytest.mark.parametrize(("devices", "told"), [("0-7", []), ("7-8", ["DEVICES-COUNT"])])
def test_the_gpus_of_a_host_are_counted_too(devices: str, told: list[str]) -> None:
    text = NVIDIA.replace("tensor_parallel_size: 8", "tensor_parallel_size: 2")
    assert rules(lay(text, data={"devices": devices})) == told


def test_cpus_are_not_counted() -> None:
    text = NVIDIA.replace("nvidia", "cpu").replace("tensor_parallel_size: 8", "")
    assert rules(lay(text, data={"devices": "4"})) == []


def test_only_an_a3s_devices_are_dies() -> None:
    text = PAIRS.replace("ascend-a3", "ascend-a2")
    assert rules(lay(text, data={"devices": "0-2"})) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_healthy_plan_does_not_have_it(rule: str) -> None:
    healthy, _, _, _ = RULES[rule]
    assert [f.rule for f in check_plan(lay(healthy)) if f.rule == rule] == []


@pytest.mark.parametrize("case", planted.CASES, ids=lambda case: f"{case.failure}-{case.rule}")
def test_a_rule_is_as_severe_as_it_is_told(case: Case) -> None:
    told = rules_told()
    if case.rule in told:
        assert {f.severity for f in case.broken()} <= {told[case.rule].severity} or told[case.rule].severity == "either"


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_twin_has_it(rule: str) -> None:
    healthy, before, after, fragments = RULES[rule]
    assert before in healthy
    found = [f for f in check_plan(lay(healthy.replace(before, after))) if f.rule == rule]
    assert found
    assert {f.severity for f in found} == {"error" if rule == "CONTEXT-MODEL" else "warning"}
    assert all(fragment in found[0].line() for fragment in fragments), found[0].line()


def test_every_rule_of_a_check_is_told_of() -> None:
    """fleet explain, docs/rules.md and waivers know what a check can find."""
    sources = [ROOT / f"fleet/{name}.py" for name in ("plan", "ports", "sharing")]
    sources += [Path(str(module.__file__)) for module in checks.MODULES]
    told = {name for path in sources for name in re.findall(r'"([A-Z][A-Z0-9]+(?:-[A-Z0-9]+)+)",', path.read_text())}
    assert "PORT-KV-DIRECT" in told
    assert sorted(told - set(rules_told())) == []


def test_the_direct_range_is_narrower_from_0_18_on() -> None:
    text = PD.replace("36000", "30000").replace("0.13.0", "0.18.0")
    assert rules(lay(text)) == []


def test_a_kv_port_below_the_direct_range_is_fine() -> None:
    assert rules(lay(PD.replace("36000", "19000"))) == []


def test_an_image_for_older_drivers_is_fine() -> None:
    text = NVIDIA.replace("{vllm: 0.19.1}", "{vllm: 0.20.0, image: 'vllm/vllm-openai:v0.20.0-cu129'}")
    assert rules(lay(text)) == []


def test_two_hosts_have_room_for_the_weights() -> None:
    text = A2_BF16.replace("{tensor_parallel_size: 8}", "{tensor_parallel_size: 8, data_parallel_size: 2}")
    text += "shared: {env: {HCCL_CONNECT_TIMEOUT: 400}}\n"
    assert rules(lay(text, serve=["10.0.0.1", "10.0.0.2"])) == []


def test_shared_memory_is_dockers_matter() -> None:
    assert rules(lay(A3.replace("shm_size: 16g", "shm_size: 1g\nruntime: native"))) == []


# ---- what is shipped

SHIPPED = {
    "a2-128k": ["CONTEXT-YARN", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "REFERENCE-VERSION", "SECURITY-REMOTE-CODE"],
    "a2-32g": ["HCCL-TIMEOUT", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "SECURITY-REMOTE-CODE"],
    "a2-bf16": ["MEMORY-WEIGHTS", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "SECURITY-REMOTE-CODE"],
    "a2-ray": ["HCCL-TIMEOUT", "SECURITY-REMOTE-CODE"],
    "a3-128k": ["CONTEXT-YARN", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "REFERENCE-VERSION", "SECURITY-REMOTE-CODE"],
    "a3-2p4d": [
        "PORT-KV-DIRECT",
        *["ENV-FUSED-MC2"] * 2,
        *("HCCL-TIMEOUT", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "SECURITY-REMOTE-CODE"),
    ],
    "a3-bf16": ["CONTEXT-YARN", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "SECURITY-REMOTE-CODE"],
    "a3-pd": [
        "PORT-KV-DIRECT",
        "ENV-FUSED-MC2",
        *("HCCL-TIMEOUT", "WEIGHTS-MODELSCOPE", "SHM-SMALL", "SECURITY-REMOTE-CODE"),
    ],
    "a3-pd-current": ["PORT-EPHEMERAL", "SECURITY-REMOTE-CODE"],
    "a3-single": ["WEIGHTS-MODELSCOPE", "SHM-SMALL", *["REFERENCE-LOAD"] * 2, "SECURITY-REMOTE-CODE"],
    "h100": ["IMAGE-CUDA"],
    "h100-baseline": ["IMAGE-CUDA", "SECURITY-REMOTE-CODE"],
    "lab": [],
    "lab-2p2d": [],
    "lab-dp": [],
    "lab-pd": [],
    "lab-ray": [],
}
# The traps of the two seeds (reference, section 0), and what warns of each. The others cannot be fallen into: devices,
# mounts, the connector's module path and engine ids are derived (2.1, 2.2, 2.4), a key given twice is refused and
# interfaces are found on the host (2.7), the proxy's arguments are written by us (2.8), the empty sections are recipes
# of their own (2.9), and an argument that a version lacks is told by its flag table (1, --moe-backend).
TRAPS = {
    "1: CUDA 13 in the image": ("h100", "IMAGE-CUDA"),
    "2.3: kv ports in AscendDirect's range": ("a3-pd", "PORT-KV-DIRECT"),
    "2.5: mode 2 on prefill": ("a3-pd", "ENV-FUSED-MC2"),
    "2.6: script and table disagree": ("a3-single", "REFERENCE-LOAD"),
    "2.10: BF16 on one A2": ("a2-bf16", "MEMORY-WEIGHTS"),
    "2.11: shared memory of 1 GB": ("a3-single", "SHM-SMALL"),
    "2.12: accuracy of another version": ("a3-128k", "REFERENCE-VERSION"),
    "133000 is more than 32768 x 4": ("a2-128k", "CONTEXT-YARN"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_of_the_seeds_is_warned_of(trap: str) -> None:
    inventory_name, rule = TRAPS[trap]
    assert rule in SHIPPED[inventory_name]


@pytest.mark.parametrize("path", sorted((ROOT / "inventories").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_shipped_inventory_is_warned_of(path: Path) -> None:
    found = check_plan(plan_of(str(path)))
    assert [f.rule for f in found] == SHIPPED[path.stem]
    assert {f.severity for f in found} <= {"warning"}


def test_the_seeds_own_context_is_longer_than_its_yarn() -> None:
    (found,) = [f for f in check_plan(plan_of(str(ROOT / "inventories/a3-128k.py"))) if f.rule == "CONTEXT-YARN"]
    assert found.line() == (
        "warning: qwen3-235b-a22b-w8a8/a3-128k serve-0: max-model-len 133000 is more than yarn's 131072 "
        "(the engine refuses it at start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set); "
        "set max-model-len to 131072 or a larger factor [CONTEXT-YARN]"
    )


# ---- findings


def test_a_finding_is_one_line_whatever_it_holds() -> None:
    finding = error("A-RULE", "a.yaml:3", "two\nlines  and   space", "mend it", "because\tit is so")
    assert finding.line() == "error: a.yaml:3: two lines and space (because it is so); mend it [A-RULE]"


def test_findings_as_data() -> None:
    assert as_json([warning("A-RULE", "here", "what", "how", source="a book")]) == [
        {
            "rule": "A-RULE",
            "severity": "warning",
            "where": "here",
            "what": "what",
            "mend": "how",
            "why": "",
            "source": "a book",
            "waived": "",
        }
    ]


# ---- fleet check


def test_warnings_alone_leave_the_exit_code_zero() -> None:
    result = fleet("check", "inventories/h100.py")
    assert result.exit_code == 0
    assert result.stdout == "inventories/h100.py: 1 warning\n"
    assert result.stderr.startswith("warning: qwen3-235b-a22b/h100: vllm/vllm-openai:v0.20.0 is built on CUDA 13.0")


def test_a_clean_inventory_says_so() -> None:
    result = fleet("check", "inventories/lab.py")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "inventories/lab.py: clean\n", "")


def test_what_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        'prefill = [("10.0.0.1", {"recipe": R})]\n'
        'decode = [(f"10.0.0.{n}", {"recipe": R}) for n in (2, 3, 4)]\n'.replace(
            "R", repr("qwen3-235b-a22b-w8a8/a3-pd")
        )
    )
    result = fleet("check", str(tmp_path / "x.py"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "decode: 3 hosts do not divide into instances of 2" in result.stderr
    assert "add 1 or take 1 away [PLAN-HOSTS]" in result.stderr


def test_what_cannot_be_read_is_another_code() -> None:
    result = fleet("check", "inventories/a3pd.py")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: inventories/a3pd.py: there is no such file; write inventories/a3-pd.py [INV-READ]\n"


def test_an_unknown_command_is_refused_with_the_same_code() -> None:
    assert fleet("chek", "inventories/lab.py").exit_code == 2


@pytest.mark.parametrize(
    ("path", "code", "found"),
    [
        ("inventories/lab.py", 0, []),
        ("inventories/h100.py", 0, [("IMAGE-CUDA", "warning")]),
        ("inventories/a3pd.py", 2, [("INV-READ", "error")]),
    ],
)
def test_findings_as_json(path: str, code: int, found: list[tuple[str, str]]) -> None:
    result = fleet("check", "--json", path)
    data = json.loads(result.stdout)
    assert result.exit_code == code
    assert list(data) == ["inventory", "findings"]
    assert data["inventory"] == path
    assert [(f["rule"], f["severity"]) for f in data["findings"]] == found
    assert all(set(f) == KEYS for f in data["findings"])


# ---- exit codes

CLASH = """\
serve = [("10.0.0.1", {"recipe": "lab/replicas", "proxy_port": 8000})]
proxy = ["10.0.0.1"]
"""
UNKNOWN = 'serve = [("10.0.0.1", {"recipe": "lab/replicas", "colour": "red"})]\n'


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (["PLAN-PORTS"], 1),
        (["PLAN-PORTS", "PLAN-HOSTS"], 1),
        (["PLAN-PORTS", "INV-KEY"], 2),
        (["INV-READ"], 2),
        (["RUN-LIMIT"], 2),
    ],
)
def test_a_plan_that_does_not_hold_has_a_code_of_its_own(rules: list[str], code: int) -> None:
    assert exit_code(FleetError(*(error(rule, "here", "what", "how") for rule in rules))) == code


@pytest.mark.parametrize(("inventory", "code"), [(CLASH, 1), (UNKNOWN, 2)], ids=["plan", "unreadable"])
def test_check_render_run_and_plain_pyinfra_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inventory: str, code: int
) -> None:
    path = tmp_path / "x.py"
    path.write_text(inventory)
    assert fleet("check", str(path)).exit_code == code
    assert fleet("render", str(path)).exit_code == code
    assert fleet("run", str(path), "serve", "--yes").exit_code == code
    monkeypatch.setattr(guard, "_plans", {})
    with pytest.raises(SystemExit) as ended:
        guard.check_before_connecting({"inventory": str(path)})
    assert ended.value.code == code


@pytest.mark.parametrize("words", [("render",), ("run", "serve", "--yes"), ("run", "serve", "--dry")])
@pytest.mark.parametrize(
    ("inventory", "code", "rule"), [(CLASH, 1, "PLAN-PORTS"), (UNKNOWN, 2, "INV-KEY"), (None, 2, "INV-READ")]
)
def test_an_early_end_is_json_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    inventory: str | None,
    code: int,
    rule: str,
) -> None:
    path = tmp_path / "x.py"
    if inventory is not None:
        path.write_text(inventory)
    command, *rest = words
    result = as_typed(monkeypatch, command, str(path), *rest, "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == code
    assert list(data) == ["aborted", "exit_code", "findings"]
    assert (data["aborted"], data["exit_code"]) == (True, code)
    assert [(f["rule"], f["severity"]) for f in data["findings"]] == [(rule, "error")]
    assert all(set(f) == KEYS for f in data["findings"])
    assert result.stderr.endswith(f" [{rule}]\n")


def test_an_early_end_without_json_prints_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = as_typed(monkeypatch, "run", str(tmp_path / "x.py"), "serve", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("words", [("check", "--json"), ("check",), ("render", "--json"), ("render",)])
def test_what_an_inventory_prints_never_reaches_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text("print('data says hello')\nrecipe = 'lab/replicas'\n")
    path = tmp_path / "x.py"
    path.write_text("print('inventory says hello')\nserve = ['10.0.0.1']\n")
    result = as_typed(monkeypatch, *words, str(path))
    assert result.exit_code == 0
    assert "hello" not in result.stdout
    assert "inventory says hello\n" in result.stderr
    assert "data says hello\n" in result.stderr
    if "--json" in words:
        json.loads(result.stdout)


def test_nor_does_it_where_pyinfra_loads_it_itself(tmp_path: Path) -> None:
    """As in ``fleet run --json``, whose child's standard output is read as JSON; nothing is connected to."""
    path = tmp_path / "x.py"
    path.write_text("print('inventory says hello')\nserve = [('10.0.0.1', {'recipe': 'lab/replicas'})]\n")
    pyinfra = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]
    words = ["--json", str(path), "debug-inventory"]
    done = subprocess.run([*pyinfra, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "hello" not in done.stdout
    assert [host["name"] for host in json.loads(done.stdout)] == ["10.0.0.1"]
    assert "inventory says hello\n" in done.stderr


def test_errors_of_the_plan_are_json_too(tmp_path: Path) -> None:
    role = "{tensor_parallel_size: 8, args: {max-model-len: 50000}}"
    (tmp_path / "r.yaml").write_text(A3.replace("{tensor_parallel_size: 8}", role))
    data = {"recipe": str(tmp_path / "r.yaml"), "devices": 16}
    (tmp_path / "i.py").write_text(f"serve = [('10.0.0.1', {data!r})]\n")
    result = fleet("run", "--json", "--yes", str(tmp_path / "i.py"), "preflight")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["aborted"], answer["exit_code"]) == (1, True, 1)
    assert [f["rule"] for f in answer["findings"]] == ["CONTEXT-MODEL"]


def test_what_the_check_warns_of_is_in_a_runs_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    child = [sys.executable, "-c", "print('{}')"]
    monkeypatch.setattr("fleet.cli.run._PYINFRA", child)
    result = fleet("run", "--json", "--yes", "inventories/h100.py", "preflight")
    answer = json.loads(result.stdout)
    assert [f["rule"] for f in answer["findings"]] == SHIPPED["h100"]


# ---- before pyinfra connects

CUT = (
    "error: --limit, --exclude: they cut decode-0, which runs on 10.10.0.12, 10.10.0.13 as one; "
    "leave all of them in, or none [RUN-LIMIT]"
)


@pytest.mark.parametrize(
    ("params", "code", "fragment"),
    [
        ({"inventory": "inventories/a3pd.py"}, 2, "write inventories/a3-pd.py [INV-READ]"),
        ({"inventory": "inventories/lab.py", "limit": ["lab-7"]}, 2, "--limit lab-7: no host of the inventory matches"),
        ({"inventory": "inventories/lab.py", "exclude": ["decode"]}, 2, "--exclude decode: no host of the inventory"),
        ({"inventory": "inventories/lab.py", "data": ["venv"]}, 2, "--data venv: this is no KEY=VALUE"),
        ({"inventory": "inventories/lab.py", "data": ["proxy_port=8000"]}, 1, "both want port 8000"),
        (
            {"inventory": "inventories/lab.py", "exclude": ["lab-0", "lab-1"]},
            2,
            "error: --limit, --exclude: they leave no host; leave one in [RUN-LIMIT]",
        ),
        ({"inventory": "inventories/lab.py", "exclude": ["serve"]}, 2, "they leave no host"),
        ({"inventory": "inventories/lab.py", "exclude": ["all"]}, 2, "they leave no host"),
        ({"inventory": "inventories/lab.py", "limit": ["lab-0"], "exclude": ["proxy"]}, 2, "they leave no host"),
        ({"inventory": "inventories/lab.py", "limit": ["lab-0", "lab-7"]}, 2, "--limit lab-7: no host of the"),
        ({"inventory": "inventories/a3-pd.py", "limit": ["10.10.0.12"]}, 2, CUT),
        ({"inventory": "inventories/a3-pd.py", "exclude": ["10.10.0.13"]}, 2, CUT),
        ({"inventory": "inventories/a3-pd.py", "limit": ["decode"], "exclude": ["10.10.0.12"]}, 2, CUT),
    ],
    ids=[
        *("unreadable", "limit", "exclude", "data", "clash"),
        *("exclude-each", "exclude-their-role", "exclude-all", "exclude-the-limit", "one-limit-of-two"),
        *("limit-cuts", "exclude-cuts", "both-cut"),
    ],
)
def test_a_run_is_refused(
    params: dict[str, object],
    code: int,
    fragment: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(guard, "_plans", {})
    with pytest.raises(SystemExit) as ended:
        guard.check_before_connecting(params)
    assert ended.value.code == code
    assert fragment in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["lab-0", "serve", "lab-*", "all", "lab", "ser*"])
def test_a_run_goes_on(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_plans", {})
    guard.check_before_connecting({"inventory": "inventories/lab.py", "limit": [limit], "data": ["proxy_port=9000"]})
    assert guard.current_plan().entries == ("http://10.231.77.10:9000",)


def test_a_run_goes_on_with_what_an_exclusion_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_plans", {})
    guard.check_before_connecting({"inventory": "inventories/lab.py", "limit": ["serve"], "exclude": ["proxy"]})
    assert guard.current_plan().fleet.recipe == "lab/replicas"


@pytest.mark.parametrize(
    "params",
    [{"limit": ["decode"]}, {"limit": ["prefill"]}, {"exclude": ["decode"]}, {"limit": ["10.10.0.12", "10.10.0.13"]}],
    ids=["whole", "another", "none-of-it", "by-host"],
)
def test_a_run_goes_on_where_no_instance_is_cut(params: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_plans", {})
    guard.check_before_connecting({"inventory": "inventories/a3-pd.py", **params})
    assert guard.current_plan().fleet.recipe


def test_a_deploy_that_nobody_checked_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "_plans", {})
    with pytest.raises(SystemExit) as ended:
        guard.current_plan()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "error: config.py: the run is not guarded; run pyinfra from the root of the repository [RUN-CONFIG]\n"
    )


@pytest.mark.parametrize("params", [{}, {"yes": False, "dry": False, "json_output": False}], ids=["none", "all-off"])
def test_a_run_that_nobody_could_confirm_is_refused(
    params: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(SystemExit) as ended:
        guard.refuse_unattended(params)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: pyinfra: nobody is here to confirm; add -y to apply, or --dry [RUN-CONFIRM]\n"
    )


@pytest.mark.parametrize("option", ["yes", "dry", "json_output"])
def test_a_run_that_asks_nothing_needs_nobody(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    guard.refuse_unattended({option: True})


def test_somebody_at_a_terminal_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(os.openpty()[1]) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert guard.is_attended()
        guard.refuse_unattended({})
    assert not guard.is_attended()  # closed
    monkeypatch.setattr("sys.stdin", None)
    assert not guard.is_attended()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def fleet(*words: str) -> Any:
    return CliRunner().invoke(main, words)


def as_typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """With the words where a shell puts them."""
    monkeypatch.setattr("sys.argv", ["fleet", *words])
    return fleet(*words)


def lay(text: str, data: dict[str, Any] | None = None, **roles: list[str]) -> Plan:
    if not roles:
        roles = {"prefill": ["10.0.0.1"], "decode": ["10.0.0.2"]} if "prefill" in text else {"serve": ["10.0.0.1"]}
    names = [name for hosts in roles.values() for name in hosts]
    fleet_of = inventory.build("fleet.py", roles, {name: {"recipe": "r", **(data or {})} for name in names})
    return plan(fleet_of, Recipe.model_validate(yamlfile.parse(text, Path("r.yaml")).data))


def rules(made: Plan) -> list[str]:
    return [f.rule for f in check_plan(made)]
