"""Shell text that asks a vendor's tool and cannot hang, and the reading of what came back.

A tool that waits for a dead driver cannot be ended by anybody, and neither can one that reads a share that is gone; a
shell that waits for it waits with it. So each call has its own time, runs in the background, where no shell waits for
it, and its output is read through a pipe whose reader has a time of its own. ``rc N`` follows every
answer; 124 is no answer in time.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.snapshot import MARK

# Where the vendors put their tools: sudo's own PATH has not all of them (secure_path of openEuler, RHEL and Kylin).
_PATH = "PATH=$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/Ascend/driver/tools"
# ask SECONDS TOOL ...: 0 with an answer, whatever it says; 9 where the next question would be in vain too.
_ASK = (
    'ask() { s=$1; shift; o=$({ { timeout -k 2 "$s" "$@" </dev/null; echo "rc $?"; } 2>&1 & } | '
    "timeout -k 2 $((s + 3)) cat); printf '%s\\n' \"$o\"; "
    "case \"$o\" in (*'rc 124'|*'rc 137') return 9;; (*'rc '*) return 0;; (*) echo 'rc 124'; return 9;; esac; }"
)
ASKING = f"{_PATH}; {_ASK}"


def section(name: str, text: str) -> str:
    """One part of a snapshot, in a shell of its own."""
    return f"echo '{MARK} {name}'; ( {ASKING if 'ask ' in text else _PATH}; {text} )"


def have(tool: str) -> str:
    """Goes on only where the tool is installed: the section stays empty otherwise."""
    return f"command -v {tool} >/dev/null"


def blocks(lines: Iterable[str]) -> dict[str, list[str]]:
    """``-- title`` lines and what follows each, the ``rc`` lines among it."""
    found: dict[str, list[str]] = {}
    current = found.setdefault("", [])
    for line in lines:
        if line.startswith("-- "):
            current = found.setdefault(line[3:].strip(), [])
        else:
            current.append(line)
    return found


def code(lines: Iterable[str]) -> int | None:
    """The exit status of the last answer; None where there is none."""
    codes = [line[3:] for line in lines if line.startswith("rc ")]
    return int(codes[-1]) if codes and codes[-1].isdigit() else None


def said(lines: Iterable[str]) -> list[str]:
    """The answer itself."""
    return [line for line in lines if not line.startswith("rc ")]


def late(lines: Iterable[str]) -> bool:
    """Whether a call was ended because it took too long."""
    return code(lines) in (124, 137)


def fields(lines: Iterable[str]) -> dict[str, str]:
    """``Name   : value`` lines; the first of a name counts."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(" :")
        if not colon:
            name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def number(text: str) -> int | None:
    """A whole number; None for N/A, [N/A] and whatever else is none."""
    text = text.strip()
    return int(text) if text.isdigit() else None
