"""The command line, parsed with vllm-fleet's own tables where they are at hand.

The one place that knows where the parser comes from; without it a short list of flags stands in.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .settings import refuse, version, version_text

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Complaint:
    """A line that the real parser would end with: argparse's own (status 2), or an exception's last (status 1)."""

    line: str
    code: int = 2


class Args:
    """The parsed values by their argparse name."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default where it was not given."""
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int) -> int:
        """A whole number; 32k and 1M as the real engine reads them."""
        return to_int(self.get(name, default))

    def has(self, name: str) -> bool:
        """Whether the value was given."""
        return self.values.get(name) is not None

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object; ends the process where it is none."""
        value = self.get(name)
        if value is None or isinstance(value, dict):
            return dict(value or {})
        try:
            parsed = json.loads(value)
        except ValueError as error:
            flag = "--" + name.replace("_", "-")
            refuse("json.decoder.JSONDecodeError", f"{error} (argument {flag})")
        if not isinstance(parsed, dict):
            refuse("ValueError", f"argument --{name.replace('_', '-')}: a JSON object is needed, not {value}")
        return parsed


def to_int(value: Any) -> int:
    """4096, "4096", 32k (thousands) or 32K (times 1024)."""
    if isinstance(value, int):
        return value
    text = str(value)
    scale = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(text[:-1]) * scale[text[-1]]) if text and text[-1] in scale else int(text)


def parse(argv: list[str]) -> tuple[Args, list[Complaint]]:
    """Values and complaints about the words after `vllm serve`, the first of which is what the real one prints."""
    folder = _flags_folder()
    if folder is None:
        return _parse_with_few(argv)
    return _parse_with_tables(argv, *folder)


def _flags_folder() -> tuple[Path, str, Path] | None:
    """What to put on sys.path, the package to import, and the folder of tables."""
    named = os.environ.get("VLLM_STANDIN_FLAGS")
    beside = HERE.parent
    candidates = [(Path(named), "flags", t) for t in (Path(named) / "flags-tables", Path(named))] if named else []
    candidates += [(beside, "flags", beside / "flags-tables"), (beside.parent, "flags", beside.parent / "flags-tables")]
    root = HERE.parents[2]
    candidates.append((root, "fleet.flags", root / "files" / "flags"))
    for path, package, tables in candidates:
        if (path / package.replace(".", "/") / "parse.py").is_file() and any(tables.glob("*.json")):
            return path, package, tables
    return None


def _parse_with_tables(argv: list[str], path: Path, package: str, folder: Path) -> tuple[Args, list[Complaint]]:
    sys.path.insert(0, str(path))
    parser = importlib.import_module(f"{package}.parse")
    tables = importlib.import_module(f"{package}.table")
    try:
        table = tables.nearest(version_text(), folder)
    except FileNotFoundError as error:
        refuse("FileNotFoundError", f"stand-in: {error}")
    parsed = parser.parse(table, argv)
    return Args(dict(parsed.values)), [Complaint(fault.line, 2 if fault.prog else 1) for fault in parsed.faults]


class _Stopped(Exception):
    """What argparse would have said before it exits."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Stopped(message)


_INTEGERS = (
    "port tensor-parallel-size pipeline-parallel-size data-parallel-size data-parallel-size-local data-parallel-rank "
    "data-parallel-start-rank data-parallel-rpc-port seed max-num-seqs max-num-batched-tokens api-server-count "
    "nnodes node-rank master-port block-size"
)
_TEXTS = (
    "host max-model-len data-parallel-address kv-transfer-config hf-overrides quantization compilation-config "
    "distributed-executor-backend additional-config gpu-memory-utilization dtype tokenizer load-format master-addr "
    "model kv-cache-memory-bytes data-parallel-backend"
)
_SWITCHES = (
    "headless enable-expert-parallel trust-remote-code enforce-eager enable-prefix-caching enable-chunked-prefill "
    "async-scheduling data-parallel-hybrid-lb data-parallel-external-lb"
)


def _parse_with_few(argv: list[str]) -> tuple[Args, list[Complaint]]:
    parser = _Parser(prog="vllm serve", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for name in _INTEGERS.split():
        parser.add_argument(f"--{name}", type=int)
    for name in _TEXTS.split():
        parser.add_argument(f"--{name}")
    for name in _SWITCHES.split():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("-tp", dest="tensor_parallel_size", type=int)
    if version() < (0, 11, 1):
        parser.add_argument("--rope-scaling")
    if version() >= (0, 17, 0):
        parser.add_argument("--moe-backend")
    if version() >= (0, 18, 0):
        parser.add_argument("--shutdown-timeout", type=float)
    words = [word.replace("_", "-", word.split("=")[0].count("_")) if word.startswith("--") else word for word in argv]
    try:
        known, rest = parser.parse_known_args(words)
    except _Stopped as stopped:
        return Args({}), [Complaint(f"vllm serve: error: {stopped}")]
    line = f"vllm serve: error: unrecognized arguments: {' '.join(rest)}"
    return Args(vars(known)), [Complaint(line)] if rest else []
