"""Runs a simulator as a dressed host does: the real launcher over a file system of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import hardware
from lab.scenario import scenario

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Answer:
    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass
class DressedFolder:
    """A folder that holds the files of a dressed host."""

    root: Path

    def call(self, module: str, *arguments: str, function: str = "main") -> Answer:
        """Run a simulator to its end."""
        done = self.start(module, *arguments, function=function)
        text, _ = done.communicate(timeout=20)
        return Answer(done.returncode, text)

    def start(self, module: str, *arguments: str, function: str = "main") -> subprocess.Popen[str]:
        program = f"import sys; from lab.sim.{module} import {function} as run; sys.exit(run(sys.argv[1:]))"
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program, *arguments],
            env={**os.environ, "VLLM_LAB_ROOT": str(self.root), "PYTHONPATH": str(REPOSITORY), "TZ": "UTC"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def container(self, *nodes: str) -> DressedFolder:
        """Make it look like the inside of a container that was given these device nodes."""
        (self.root / ".dockerenv").touch()
        (self.root / "dev").mkdir()
        for node in nodes:
            (self.root / "dev" / node).touch()
        return self


def dressed(root: Path, family: str, changes: Mapping[str, Any] | None = None, index: int = 0) -> DressedFolder:
    for path, (text, mode) in hardware.files(scenario(family, changes, index)).items():
        hardware.put(root, path, text, mode)
    return DressedFolder(root)
