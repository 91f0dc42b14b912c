"""``make demo``: the main job from nothing to an answer, on the embedded lab with the real engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeVar

from lab.engine import ensure_engine, ensure_router
from lab.errors import LabError
from lab.fleet import Lab
from lab.model import ensure_model
from lab.requirements import require
from lab.rootfs import ensure_rootfs

INVENTORY = "inventories/lab.py"
ENTRY = "http://10.231.77.10:8080"
QUESTION = "The future of AI is"
T = TypeVar("T")


class Steps:
    """Does one thing after another, and remembers how long each took."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, float]] = []

    def do(self, name: str, work: Callable[[], T]) -> T:
        begin = time.monotonic()
        say(f"== {name}")
        result = work()
        self.taken.append((name, time.monotonic() - begin))
        return result

    def table(self) -> str:
        total = sum(seconds for _, seconds in self.taken)
        lines = [f"{seconds:8.1f} s  {name}" for name, seconds in self.taken]
        return "\n".join([*lines, f"{total:8.1f} s  in all"])


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """0 when the model has answered through the front door."""
    steps = Steps()
    lab = Lab(say=say)
    try:
        require()
        steps.do("the hosts' root file system", lambda: ensure_rootfs(say=say))
        steps.do("the real engine (vLLM for CPUs)", lambda: ensure_engine(extras=["nixl"], say=say))
        steps.do("the router for prefill and decode", lambda: ensure_router(say=say))
        steps.do("a tiny Qwen3-MoE model", lambda: ensure_model(say=say))
        steps.do("boot two hosts", lambda: lab.up(2))
    except LabError as exc:
        say(f"error: {exc}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; `make demo` goes on from there, `make down` removes what runs")
        return 130
    line = f"fleet run {INVENTORY} serve --yes"
    code = steps.do(
        line, lambda: subprocess.run([sys.executable, "-m", "fleet.cli.main", *line.split()[1:]]).returncode
    )
    if code:
        say("the deploy did not end well; the lines above say why, and `make demo` tries again")
        return code
    answer = steps.do("ask the model through the front door", ask)
    print(f"\n{QUESTION!r} -> {answer!r}")
    print("(a model of random weights: the text is nonsense, and the same every time)\n")
    print(steps.table())
    print(NEXT)
    return 0 if answer else 1


def ask() -> str:
    """One completion; empty, with a line that says why, if there is none."""
    body = {"model": "qwen3", "prompt": QUESTION, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{ENTRY}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return str(json.load(response)["choices"][0]["text"])
    except (urllib.error.URLError, TimeoutError, ValueError, KeyError, IndexError) as exc:
        say(f"error: {ENTRY} gave no completion: {exc}")
        return ""


NEXT = f"""
Go on:
  curl {ENTRY}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "qwen3", "prompt": "{QUESTION}", "max_tokens": 24}}'
  . .venv/bin/activate
  fleet render {INVENTORY}                          # what runs where, as scripts
  pyinfra {INVENTORY} deploy/serve.py               # again: nothing changes
  fleet lab ssh lab-0 systemctl status vllm-serve-0
  fleet run inventories/lab-pd.py serve               # prefill and decode apart
Tear down:
  make down"""


if __name__ == "__main__":
    sys.exit(main())
