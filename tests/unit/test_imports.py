"""Imports run one way, modules stay short, and inventories are plain data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [
    "config.py",
    *(str(p.relative_to(ROOT)) for d in ("fleet", "tasks", "deploy", "lab") for p in (ROOT / d).rglob("*.py")),
]
CORE = [name for name in CODE if name.startswith("fleet/") and not name.startswith("fleet/cli/")]
# Copied into the lab's image, where they have another name.
MOVED = ("fleet/flags/", "lab/standin/vllm_standin/")
INVENTORIES = [str(p.relative_to(ROOT)) for p in (ROOT / "inventories").rglob("*.py")]


def test_the_folders_are_found() -> None:
    assert {"fleet/plan.py", "fleet/platforms/nvidia.py"} <= set(CORE)
    assert {"tasks/guard.py", "deploy/serve.py", "lab/fleet.py", "fleet/cli/main.py"} <= set(CODE) - set(CORE)
    assert {"inventories/a3-pd.py", "inventories/group_data/a3-pd.py"} <= set(INVENTORIES)


@pytest.mark.parametrize("name", CORE)
def test_the_core_knows_no_edge(name: str) -> None:
    edge = {"pyinfra", "pyinfra_cli", "paramiko", "gevent", "tasks", "deploy", "lab", "fleet.cli"}
    assert imported(name) & edge == set()


@pytest.mark.parametrize("name", CORE)
def test_the_core_opens_no_socket_and_starts_no_process(name: str) -> None:
    assert imported(name) & {"socket", "ssl", "subprocess", "asyncio", "http", "urllib", "requests", "httpx"} == set()


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_no_clock_and_no_chance(name: str) -> None:
    assert imported(name) & {"time", "datetime", "random", "secrets", "uuid"} == set()


@pytest.mark.parametrize("name", [n for n in CODE if n.startswith("tasks/")])
def test_tasks_know_no_deploy_and_no_command_line(name: str) -> None:
    assert imported(name) & {"deploy", "lab", "fleet.cli"} == set()


@pytest.mark.parametrize("name", [n for n in CODE if n.startswith("deploy/")])
def test_deploys_know_no_lab_and_no_command_line(name: str) -> None:
    assert imported(name) & {"lab", "fleet.cli"} == set()


@pytest.mark.parametrize("name", [n for n in CODE if n.startswith("deploy/")])
def test_a_deploy_reads_like_a_checklist(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 60


@pytest.mark.parametrize("name", CODE)
def test_no_module_needs_a_second_sitting(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 400


@pytest.mark.parametrize("name", INVENTORIES)
def test_an_inventory_is_plain_data(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    statements = tree.body[1:] if ast.get_docstring(tree) else tree.body
    assert statements
    for statement in statements:
        assert isinstance(statement, ast.Assign), ast.unparse(statement)
        ast.literal_eval(statement.value)


@pytest.mark.parametrize("name", [n for n in INVENTORIES if "group_data" not in n])
def test_every_inventory_says_what_it_is_and_has_its_data(name: str) -> None:
    path = ROOT / name
    assert ast.get_docstring(ast.parse(path.read_text()))
    assert (path.parent / "group_data" / path.name).is_file()


def imported(name: str) -> set[str]:
    """Every module that a file imports anywhere in it, with its packages: a.b.c counts as a, a.b and a.b.c."""
    tree = ast.parse((ROOT / name).read_text())
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and name.startswith(MOVED)), "imports are absolute here"
            package = name.rpartition("/")[0].replace("/", ".") if node.level else ""
            base = ".".join(part for part in (package, node.module) if part)
            modules += [f"{base}.{alias.name}" for alias in node.names]
    return {".".join(parts[: n + 1]) for m in modules for parts in [m.split(".")] for n in range(len(parts))}
