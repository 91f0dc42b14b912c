"""The shell side of a release: ask what is there, write a new one beside it, switch, and forget the old units.

Each text is one command for a POSIX shell as root. The switch is the rename of a link; a run that is cut before
it leaves the old release current, and the next run removes what it left.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.release import Release, archive

SYSTEMD = "/etc/systemd/system"
WANTS = f"{SYSTEMD}/multi-user.target.wants"
MARK = "@@"


def ask(home: str) -> str:
    """Id, hashes and modes of the files, and our units that systemd knows."""
    return (
        f'cd {home}/current 2>/dev/null && {{ echo "{MARK} $(basename "$(readlink -f .)")"; '
        "find . -type f | sort | xargs -r sha256sum; find . -type f -exec stat -c 'mode %a %n' {} +; }; "
        f'for u in {SYSTEMD}/vllm-*.service; do case "$(readlink "$u")" in {home}/current/*) '
        f'test -e "{WANTS}/$(basename "$u")" && on=enabled || on=disabled; '
        'echo "unit $(basename "$u" .service) $on";; esac; done; true'
    )


def read(lines: Iterable[str]) -> dict[str, Any]:
    """The answer to ``ask``: id, files as {path: [mode, sha256]}, units as {name: enabled or disabled}."""
    answer: dict[str, Any] = {"files": {}, "units": {}}
    modes: dict[str, str] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        first, _, second = rest.strip().partition(" ")
        if kind == MARK:
            answer["id"] = rest.strip()
        elif kind == "unit":
            answer["units"][first] = second
        elif kind == "mode":
            modes[second.removeprefix("./")] = first
        elif re.fullmatch(r"[0-9a-f]{64}", kind):
            answer["files"][rest.strip().removeprefix("./")] = kind
    answer["files"] = {path: [modes.get(path, ""), digest] for path, digest in answer["files"].items()}
    return answer


def is_in_place(wanted: Release, installed: Mapping[str, Any]) -> bool:
    """Whether the host has exactly this release: content, modes, units, and no unit besides."""
    files = {
        path: [f"{mode:o}", hashlib.sha256(text.encode()).hexdigest()] for path, (mode, text) in wanted.files.items()
    }
    return (
        installed.get("id") == wanted.id
        and installed.get("files") == files
        and installed.get("units") == dict.fromkeys(wanted.unit_ids, "enabled")
    )


def ask_files(home: str) -> str:
    """The text of every file of the current release."""
    return (
        f"cd {home}/current 2>/dev/null && find . -type f | sort | "
        f'while read -r f; do echo "{MARK} $f"; cat "$f"; done; true'
    )


def read_files(lines: Iterable[str]) -> dict[str, str]:
    """The answer to ``ask_files``."""
    files: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        if line.startswith(f"{MARK} ./"):
            current = files.setdefault(line[len(MARK) + 3 :], [])
        else:
            current.append(line)
    return {path: "".join(f"{line}\n" for line in text) for path, text in files.items()}


def script(wanted: Release) -> str:
    """Unpack the archive on standard input beside the others, switch to it, tell systemd."""
    home = wanted.home
    releases, new = f"{home}/releases", wanted.path
    units = " ".join(f"{name}.service" for name in sorted(wanted.unit_ids))
    keep = "|".join(f"{name}.service" for name in sorted(wanted.unit_ids)) or "none"
    lines = [
        "set -eu",
        "umask 022",
        f"mkdir -p {releases}",
        f"exec 9>{home}/.lock",  # a cut run's command may still be at work here
        'flock -w 60 9 || { echo "another run is writing here" >&2; exit 1; }',
        f"rm -rf {releases}/.new-* {home}/.current-*",  # what a cut run left
        f"tmp={releases}/.new-$$",
        'mkdir "$tmp"',
        f"trap 'rm -rf \"$tmp\" {home}/.current-$$' EXIT",
        'base64 -d >"$tmp/.tar"',
        f'echo "{hashlib.sha256(archive(wanted)).hexdigest()}  $tmp/.tar" | sha256sum --status -c - '
        '|| { echo "the upload is not whole" >&2; exit 1; }',
        'tar -x -C "$tmp" --no-same-owner -f "$tmp/.tar"',
        'rm "$tmp/.tar"',
        f'if [ -e {new} ]; then mv {new} "$tmp.old"; fi',
        f'mv "$tmp" {new}',
        'rm -rf "$tmp.old"',
        # units that the new release no longer has: stopped while their own settings still hold
        "gone=",
        f"for u in {SYSTEMD}/vllm-*.service; do",
        f'  case "$(readlink "$u" || true)" in {home}/current/*) ;; *) continue;; esac',
        f'  case "$(basename "$u")" in {keep}) ;; *) gone="$gone $(basename "$u")";; esac',
        "done",
        '[ -z "$gone" ] || systemctl stop $gone || true',
        f"ln -s releases/{wanted.id} {home}/.current-$$",
        f"mv -T {home}/.current-$$ {home}/current",
        f'for u in $gone; do rm -f {SYSTEMD}/"$u" {WANTS}/"$u"; systemctl reset-failed "$u" 2>/dev/null || true; done',
        f"mkdir -p {WANTS}",
        # enabled by hand: systemctl would link to the release of today instead of the current one
        f'for u in {units}; do for d in {SYSTEMD} {WANTS}; do ln -sfn {home}/current/units/"$u" $d/"$u"; done; done',
        "systemctl daemon-reload",
        f"sync {home}/current/manifest.json",
    ]
    return "sh -c " + shlex.quote("\n".join(lines))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What a new release means, one line a unit: which words of its command and environment change."""
    lines = []
    for path in sorted({*before, *after}):
        match = re.fullmatch(r"run/(.+?)(\.docker)?\.sh", path)
        if not match:
            continue
        name, old, new = match[1], before.get(path), after.get(path)
        if old == new:
            continue
        if old is None or new is None:
            lines.append(f"{name}: {'new' if old is None else 'removed'}")
            continue
        gone, come = _words(old), _words(new)
        minus = [w for w in gone if w not in come]
        plus = [w for w in come if w not in gone]
        parts = [f"- {w}" for w in minus] + [f"+ {w}" for w in plus]
        lines.append(f"{name}: restarts; " + ("  ".join(parts) or "order of words"))
    known = {p for p in {*before, *after} if p.startswith("run/") or p == "manifest.json"}
    for path in sorted({*before, *after} - known):
        if before.get(path) != after.get(path):
            what = "new" if path not in before else "removed" if path not in after else "changed"
            lines.append(f"{path}: {what}")
    return lines


def _words(text: str) -> Sequence[str]:
    """Lines of a script without their continuation signs."""
    return [line.strip().rstrip("\\").strip() for line in text.splitlines() if not line.startswith("#")]


def manifest(text: str) -> dict[str, Any]:
    """The manifest of a release."""
    data = json.loads(text)
    return data if isinstance(data, dict) else {}
