"""Runs a simulator over a file system of its own: in this process, or as a dressed host's launcher starts it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

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
        """Run a simulator to its end; in this process, with modules that are read anew for this folder."""
        said = io.StringIO()
        with _anew("lab.sim"), mock.patch.dict(os.environ, self.environment):
            run = getattr(importlib.import_module(f"lab.sim.{module}"), function)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    code = run(list(arguments))
                except SystemExit as ended:
                    code = ended.code
        assert isinstance(code, int)
        return Answer(code, said.getvalue())

    def typed(self, module: str, *arguments: str, function: str = "main") -> Answer:
        """The same as a process of its own, without the installed packages, as on a host."""
        done = self.start(module, *arguments, function=function)
        text, _ = done.communicate(timeout=20)
        return Answer(done.returncode, text)

    @property
    def environment(self) -> dict[str, str]:
        return {"VLLM_LAB_ROOT": str(self.root), "PYTHONPATH": str(REPOSITORY), "TZ": "UTC"}

    def start(self, module: str, *arguments: str, function: str = "main") -> subprocess.Popen[str]:
        program = f"import sys; from lab.sim.{module} import {function} as run; sys.exit(run(sys.argv[1:]))"
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program, *arguments],
            env={**os.environ, **self.environment},
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


@contextlib.contextmanager
def _anew(package: str) -> Iterator[None]:
    """Without the package's modules, which are as before afterwards."""

    def loaded() -> list[str]:
        return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]

    kept = {name: sys.modules.pop(name) for name in loaded()}
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(kept)


def dressed(root: Path, family: str, changes: Mapping[str, Any] | None = None, index: int = 0) -> DressedFolder:
    for path, (text, mode) in hardware.files(scenario(family, changes, index)).items():
        hardware.put(root, path, text, mode)
    return DressedFolder(root)
