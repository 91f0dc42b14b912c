"""What hosts of a plan would answer: the text of ``sections`` run by sh, over what the simulators say of a scenario.

Every answer is asked of the simulator beforehand, in this process; a host's tool is a script of sh that prints it.
``processes=True`` starts the simulators as a dressed host does, which takes seconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from fleet import snapshot
from fleet.findings import Finding
from fleet.inventory import Node
from fleet.machine import devices
from fleet.topology import Plan
from lab import hardware
from lab.scenario import merge, scenario
from tests.unit.sim import REPOSITORY, _anew

# What is not among the cases is a question that nobody thought of.
REPLAY = """\
#!/bin/sh
case "$*" in
{cases}
esac
echo "not asked beforehand: {tool} $*"; exit 99
"""
CASE = """\
('{typed}') cat <<'END OF ANSWER'
{said}
END OF ANSWER
exit {code};;"""
REAL = """\
#!/bin/sh
exec env VLLM_LAB_ROOT={root} PYTHONPATH={path} {python} -S -c \
'import sys; from lab.sim.{module} import {function} as run; sys.exit(run(sys.argv[1:]))' "$@"
"""
TOOLS = {
    "npu-smi": ("npu_smi", "main"),
    "hccn_tool": ("hccn_tool", "main"),
    "nvidia-smi": ("nvidia_smi", "main"),
    "nv-fabricmanager": ("nvidia_smi", "fabric_manager"),
}
Changes = Mapping[str, Any]


def judge(
    plan: Plan,
    changes: Mapping[str, Changes] | None = None,
    ours: Iterable[int] = (),
    **kept: Any,
) -> list[Finding]:
    """All findings of a plan's hosts. ``changes`` are what is not healthy, by host, with "all" for every host."""
    states = {n.name: state_of(plan, n, index, changes, **kept) for index, n in enumerate(plan.fleet.nodes)}
    found = [f for n in plan.fleet.nodes for f in devices.judge(plan, n, states[n.name], frozenset(ours))]
    return found + devices.between(plan, states)


def lines(*args: Any, **kwargs: Any) -> list[str]:
    return [finding.line() for finding in judge(*args, **kwargs)]


def state_of(
    plan: Plan, node: Node, index: int = 0, changes: Mapping[str, Changes] | None = None, **kept: Any
) -> devices.State | None:
    """One host's answers, read. It is server ``index`` of its fleet."""
    changes = changes or {}
    mine = merge(merge({"hccn_busy_ms": 0} if plan.recipe.platform != "nvidia" else {}, changes.get("all", {})),
                 changes.get(node.name, {}))  # fmt: skip
    text = "; ".join(devices.sections(plan, node))
    return devices.parse(_asked(text, plan.recipe.platform, json.dumps(mine), index, json.dumps(kept)))


@functools.cache
def _asked(text: str, platform: str, changes: str, index: int, kept: str) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        mine = json.loads(changes)
        family = mine.pop("family", platform)
        if family == "nvidia":
            mine.pop("hccn_busy_ms", None)
        return ask(text, Path(folder), scenario(family, mine, index), **json.loads(kept))


def ask(
    text: str,
    root: Path,
    one: dict[str, Any],
    *,
    log: str = "",
    without: Iterable[str] = (),
    files: Mapping[str, str] | None = None,
    processes: bool = False,
    systemctl: str | None = None,
) -> dict[str, list[str]]:
    """Run a snapshot's text on a folder that is dressed as the scenario says; ``log`` is the kernel's, ``without``
    are tools and files that the host lacks, ``files`` further ones, ``systemctl`` the line of a script."""
    for path, (content, mode) in hardware.files(one).items():
        hardware.put(root, path, content, mode)
    for path, content in (files or {}).items():
        hardware.put(root, path, content, 0o644)
    (root / "bin").mkdir()
    for tool in _tools(one):
        _launcher(root, tool, one, processes)
    hardware.put(root, "log", log, 0o644)
    active = "active" if one.get("fabric_manager_active") else "inactive"
    for tool, line in {
        "dmesg": f"cat {root}/log",
        "journalctl": "exit 1",
        "systemctl": systemctl or f"echo {active}",
    }.items():
        hardware.put(root, f"bin/{tool}", f"#!/bin/sh\n{line}\n", 0o755)
    for name in without:
        (root / (name.lstrip("/") if name.startswith("/") else f"bin/{name}")).unlink(missing_ok=True)
    for path in ("/etc/ascend_install.info", "/etc/hccn.conf", "/usr/local/Ascend/driver/version.info",
                 "/proc/driver/", "/dev/nvidia-"):  # fmt: skip
        text = text.replace(path, f"{root}{path}")
    done = subprocess.run(
        ["sh", "-c", text], env={"PATH": f"{root}/bin:/usr/bin:/bin"}, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == "", done.stderr
    return snapshot.split(done.stdout.splitlines())


def _tools(one: dict[str, Any]) -> list[str]:
    return [Path(path).name for path in hardware.tools(one)]


def _launcher(root: Path, tool: str, one: dict[str, Any], processes: bool) -> None:
    module, function = TOOLS[tool]
    if processes:
        script = REAL.format(root=root, path=REPOSITORY, python=sys.executable, module=module, function=function)
    else:
        cases = []
        with _anew("lab.sim"), mock.patch.dict(os.environ, {"VLLM_LAB_ROOT": str(root)}):
            run = getattr(importlib.import_module(f"lab.sim.{module}"), function)
            for typed in _questions(tool, one):
                said = io.StringIO()
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    code = run(typed.split())
                cases.append(CASE.format(typed=typed, said=said.getvalue().removesuffix("\n"), code=code))
        script = REPLAY.format(cases="\n".join(cases), tool=tool)
    hardware.put(root, f"bin/{tool}", script, 0o755)


def _questions(tool: str, one: dict[str, Any]) -> list[str]:
    """All that the checks may ask."""
    from fleet.machine import gpu_table, hccn

    numbers = [int(number) for number in one["devices"]]
    if tool == "npu-smi":
        size = 2 if one["family"] == "ascend-a3" else 1
        chips = [f"-i {card} -c {chip}" for card in range(len(numbers)) for chip in range(2)]
        boards = [f"info -t board -i {card}" for card in range(len(numbers) // size + 8)]
        return ["info", *boards, *(f"info -t {kind} {chip}" for kind in ("health", "spod-info") for chip in chips)]
    if tool == "hccn_tool":
        words = {word for its in hccn.QUESTIONS.values() for word in its}
        return [f"-i {number} -{word} -g" for number in range(16) for word in sorted(words)]
    if tool == "nv-fabricmanager":
        return ["--version"]
    queries = [gpu_table.TABLE, "index,clocks_event_reasons.active", "index,clocks_throttle_reasons.active"]
    return [
        "-q",
        *(f"--query-gpu={query} {gpu_table.CSV}" for query in queries),
        f"--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure {gpu_table.CSV}",
        f"--query-compute-apps=gpu_uuid,pid,used_memory,name {gpu_table.CSV}",
    ]
