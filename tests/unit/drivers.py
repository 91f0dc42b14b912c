"""Hosts with drivers for tests: a plan, a row of the catalogue, packages at hand, and what was found on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fleet.bundle import Bundle, File
from fleet.findings import Finding
from fleet.prepare.common import Host, Step, Work
from fleet.stacks import Stack
from fleet.topology import Plan
from tests.unit.plans import lay

RECIPE = """
title: t
source: s
platform: {platform}
runtime: {runtime}
model: {{name: org/model, max_position_embeddings: 4096, weights_gb: 100}}
engine: {{vllm: 0.18.0{more}}}
roles:
  serve: {{tensor_parallel_size: 8, data_parallel_size: {size}}}
"""


def plan_of(platform: str, runtime: str = "docker", hosts: int = 1, **data: Any) -> Plan:
    """One instance over so many hosts, 10.0.0.11 and on."""
    more = ", vllm_ascend: 0.18.0" if platform.startswith("ascend") else ""
    size = hosts * (2 if platform == "ascend-a3" else 1)
    text = RECIPE.format(platform=platform, runtime=runtime, more=more, size=size)
    return lay(text, data, serve=[f"10.0.0.{11 + n}" for n in range(hosts)])


def stack_of(platform: str, **parts: Any) -> Stack:
    """A row named "row"."""
    given = {"title": "t", "source": "s", "vllm": "0.18.0", "image": "image:v1", "name": "row", "platform": platform}
    return Stack.model_validate({**given, **parts})


def bundle_of(*names: str) -> Bundle:
    """A bundle that holds files of these names, each of 7 bytes with a checksum of its own."""
    files = tuple(File(Path("/b/packages") / name, 7, f"{number:064x}") for number, name in enumerate(names, 1))
    return Bundle(Path("/b"), files)


def work_of(plan: Plan, state: Any, stack: Stack | None, part: str, bundle: Bundle | None = None, **host: Any) -> Work:
    """The first host of a plan."""
    facts = {"system": "ubuntu", "family": "debian", "arch": "aarch64", "kernel": "5.15.0-25-generic", "boot": "b"}
    return Work(plan, plan.fleet.nodes[0], Host(**{**facts, **host}), {part: state}, bundle, stack)


def names(steps: Iterable[Step]) -> list[str]:
    return [step.name for step in steps]


def told(findings: Iterable[Finding]) -> list[str]:
    return [finding.line() for finding in findings]


def sh(text: str, path: Path, **variables: str) -> tuple[int, list[str]]:
    """What a script ends with and prints, with tools in a folder before the machine's own."""
    environment = {"PATH": f"{path}:/usr/bin:/bin:/usr/sbin:/sbin", **variables}
    done = subprocess.run(
        ["sh", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, env=environment, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def tool(folder: Path, name: str, script: str) -> Path:
    """An executable script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def calls(folder: Path) -> Sequence[str]:
    """What was noted in the file "calls" of a folder."""
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []
