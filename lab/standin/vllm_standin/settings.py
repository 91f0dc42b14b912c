"""What the stand-in reads from its environment, how it talks, and how it gives up."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

DEFAULT_VERSION = "0.32.0"
Version = tuple[int, ...]


class Refused(Exception):
    """What ends the process, with the last line of the traceback that the real engine would print."""

    def __init__(self, last_line: str, code: int = 1) -> None:
        super().__init__(last_line)
        self.last_line = last_line
        self.code = code


def refuse(kind: str, text: str) -> NoReturn:
    """End with an exception of this kind, as the real engine would."""
    raise Refused(f"{kind}: {text}")


def version_text() -> str:
    """The vLLM version that is stood in for."""
    return os.environ.get("VLLM_STANDIN_VERSION", DEFAULT_VERSION)


def as_version(text: str) -> Version:
    """0.13.0rc1 as (0, 13, 0): release candidates count as their release."""
    numbers: list[int] = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = ""
        for char in part:
            if not char.isdigit():
                break
            digits += char
        numbers.append(int(digits or 0))
    return tuple(numbers)


def version() -> Version:
    """The version as numbers that compare."""
    return as_version(version_text())


def seconds(name: str, default: float) -> float:
    """A duration from the environment."""
    text = os.environ.get(name, "")
    return float(text) if text else default


def log(text: str, level: str = "INFO") -> None:
    """One line in the real engine's manner, on standard output."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {stamp} [standin] {text}", flush=True)


def traceback_of(last_line: str) -> None:
    """What a process leaves behind on standard error when it dies of an exception."""
    print("Traceback (most recent call last):", file=sys.stderr)
    print('  File "vllm_standin", in <module>', file=sys.stderr)
    print(last_line, file=sys.stderr, flush=True)
