"""Running the system's own programs with a time limit and one-line errors."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import LabError


def run(
    command: Sequence[str | Path],
    *,
    doing: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    `doing` names the step for the error line, `timeout` is in seconds. Standard input is empty, so that nothing
    can wait for an answer. Raises LabError when the program is missing, fails or takes too long.
    """
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=env,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        raise LabError(
            f"{doing}: the program {argv[0]} is not installed; `fleet lab up` lists what to install"
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{doing}: {argv[0]} did not finish within {timeout:.0f} s; try again on a calmer machine"
        ) from None
    if done.returncode != 0:
        raise LabError(
            f"{doing}: `{short(argv)}` ended with {done.returncode}: {last_line(done.stderr or done.stdout)}"
        )
    return done.stdout


def short(argv: Sequence[str], limit: int = 120) -> str:
    """The command as a person would type it, cut to `limit` characters."""
    text = " ".join(argv)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def last_line(output: str) -> str:
    """The last line that says something; most tools put the reason there."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
