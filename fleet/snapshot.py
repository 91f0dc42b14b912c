"""What a host is like now: one shell command that asks, one parser that reads the answer.

The command runs as root through any POSIX shell, needs nothing installed, and changes nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet import sharing
from fleet.machine import clock
from fleet.machine.bounded import bounded
from fleet.sharing import Claims
from fleet.topology import ROOT

MARK = "@@"
PATH_SECONDS = 15  # a share that takes longer to say whether a file is there does not answer
ENGINE_SECONDS = 30
_IMAGE = "{{.Id}} {{.Architecture}}{{range .RepoDigests}} {{.}}{{end}}"


@dataclass(frozen=True)
class Question:
    """What to ask one host for."""

    tools: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    venvs: tuple[str, ...] = ()
    home: str = ROOT


@dataclass(frozen=True)
class Snapshot:
    """The answer."""

    user_id: int
    interfaces: dict[str, str] = field(default_factory=dict)  # address -> interface
    down: frozenset[str] = frozenset()  # interfaces that carry an address and are not up, or have no signal
    tools: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()  # those that exist
    silent: frozenset[str] = frozenset()  # those of which the host could not say it in time
    images: dict[str, str] = field(default_factory=dict)  # name -> id
    engines: dict[str, tuple[str, ...]] = field(default_factory=dict)  # venv -> distributions, and its Python
    disk_free: dict[str, int] = field(default_factory=dict)  # mount point -> bytes
    readonly: tuple[str, ...] = ()  # folders that root cannot write to
    release: str | None = None
    systemd: bool = False
    listeners: dict[int, str] = field(default_factory=dict)  # TCP port -> control group of who holds it
    others: tuple[Claims | None, ...] = ()  # what other services of this host take; None: not readable
    links: frozenset[str] = frozenset()  # all interfaces; empty where the host did not tell
    digests: dict[str, frozenset[str]] = field(default_factory=dict)  # image name -> those of its registries
    clock: clock.State | None = None
    sections: Mapping[str, list[str]] = field(default_factory=dict, compare=False, repr=False)  # for fleet.machine


def command(question: Question, more: Sequence[str] = ()) -> str:
    """The shell text that answers the question, in marked sections; ``more`` are those of ``fleet.machine``."""
    quoted = {name: " ".join(shlex.quote(v) for v in getattr(question, name)) for name in ("tools", "paths", "images")}
    venvs = " ".join(shlex.quote(v) for v in question.venvs)
    there = 'test -e "$p" && echo "$p"'
    # fmt: off
    engines = (
        f"for v in {venvs}; do for d in \"$v\"/lib/python3*/site-packages/vllm*.dist-info "
        "\"$v\"/lib/python3*/site-packages/ray-*.dist-info; "
        "do test -e \"$d\" && echo \"$v $(basename \"$d\" .dist-info)\"; done; "
        "test -x \"$v/bin/python\" && echo \"$v python-$(\"$v/bin/python\" -V 2>&1 | cut -d' ' -f2)\"; done"
    )
    parts = [
        f"export LC_ALL=C; echo '{MARK} began'; date +%s.%N",
        f"echo '{MARK} uid'; id -u",
        f"echo '{MARK} address'; ip -o addr show scope global",
        f"echo '{MARK} link'; ip -o link show",
        f"echo '{MARK} release'; readlink {question.home}/current",
        f"echo '{MARK} others'; for m in {ROOT}/current/manifest.json {ROOT}/services/*/current/manifest.json; do "
        f"case $m in {question.home}/current/*) ;; "
        "*) test -f $m && { head -c 300000 $m | tr -d '\\n'; echo; };; esac; done",
        f"echo '{MARK} systemd'; test -d /run/systemd/system && echo yes",
        f"echo '{MARK} tools'; for t in {quoted['tools']}; do command -v $t >/dev/null && echo $t; done",
        f"echo '{MARK} paths'; for p in {quoted['paths']}; do {bounded(PATH_SECONDS, there)} || "
        'case $? in (124|137) echo "? $p";; esac; done',
        f"echo '{MARK} disk'; df -Pk /etc /var 2>/dev/null",
        f"echo '{MARK} readonly'; for d in /etc /var; do test -w $d || echo $d; done",
        f"echo '{MARK} listen'; ss -Hltnp",
        # With cgroup v1 a process has a group in each hierarchy; the last may be that of containerd.
        f"echo '{MARK} owners'; ss -Hltnp | grep -o 'pid=[0-9]*' | sort -u | cut -d= -f2 | while read -r p; do "
        'echo "$p $(grep -m 1 -e \'docker[-/][0-9a-f]\' /proc/$p/cgroup || tail -n 1 /proc/$p/cgroup)"; done',
        f"echo '{MARK} engines'; {bounded(ENGINE_SECONDS, engines)}",
    ]
    if question.images:
        parts.append(f"echo '{MARK} images'; for i in {quoted['images']}; do "
                     f"echo \"$i $(timeout -k 2 20 docker image inspect -f '{_IMAGE}' \"$i\" 2>/dev/null)\"; done")
    # fmt: on
    ends = f"echo '{MARK} ended'; date +%s.%N"
    return "; ".join([*parts, *more, ends]) + "; true"


def split(lines: Iterable[str]) -> dict[str, list[str]]:
    """An answer's lines by the mark that they follow, without empty ones."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        if line.startswith(MARK + " "):
            current = sections.setdefault(line[len(MARK) + 1 :].strip(), [])
        elif line.strip():
            current.append(line)
    return sections


def answered(lines: Iterable[str]) -> dict[str, list[str]]:
    """The sections of a whole answer; a ValueError where it is none."""
    sections = split(lines)
    if not sections.get("uid"):
        raise ValueError("the host's answer has no user id")
    return sections


def parse(lines: Iterable[str]) -> Snapshot:
    """Read the answer; a ValueError says what was missing."""
    sections = answered(lines)
    interfaces = _addresses(sections.get("address", []))
    links = {_link_name(line): line for line in sections.get("link", [])}
    up = {name for name, line in links.items() if {"UP", "LOWER_UP"} <= set(_flags(line))}
    engines: dict[str, list[str]] = {}
    for line in sections.get("engines", []):
        venv, _, distribution = line.partition(" ")
        engines.setdefault(venv, []).append(distribution)
    release = sections.get("release", [""])[:1]
    images = [line.split() for line in sections.get("images", [])]
    return Snapshot(
        user_id=int(sections["uid"][0]),
        interfaces=interfaces,
        down=frozenset(set(interfaces.values()) - up),
        tools=frozenset(sections.get("tools", [])),
        paths=frozenset(line for line in sections.get("paths", []) if line.startswith("/")),
        silent=frozenset(line[2:] for line in sections.get("paths", []) if line.startswith("? ")),
        images={words[0]: words[1] for words in images if len(words) > 1},
        digests={w[0]: frozenset(d.rpartition("@")[2] for d in w[3:]) for w in images if len(w) > 3},
        engines={venv: tuple(found) for venv, found in engines.items()},
        disk_free=_disk(sections.get("disk", [])),
        readonly=tuple(sections.get("readonly", [])),
        release=release[0].rpartition("/")[2] or None if release else None,
        systemd=bool(sections.get("systemd")),
        others=tuple(map(sharing.read_claims, sections.get("others", []))),
        listeners=_listeners(sections.get("listen", []), sections.get("owners", [])),
        links=frozenset(links),
        sections=sections,
    )


def timed(seen: Snapshot, asked: float, had: float) -> Snapshot:
    """The snapshot with the time, by the control machine's own clock, at which it was asked for and was there."""
    told = clock.of(seen.sections)
    return replace(seen, clock=clock.State(asked, *told, had)) if told else seen


def _addresses(lines: Sequence[str]) -> dict[str, str]:
    """``2: eth0    inet 10.0.0.11/24 brd …`` as {10.0.0.11: eth0}."""
    found = {}
    for line in lines:
        words = line.split()
        if len(words) > 3 and words[2] in ("inet", "inet6"):
            found[words[3].partition("/")[0]] = words[1]
    return found


def _link_name(line: str) -> str:
    """``2: host0@if5: <…>`` as host0."""
    words = line.split()
    return words[1].rstrip(":").partition("@")[0] if len(words) > 1 else ""


def _flags(line: str) -> list[str]:
    """``2: host0@if5: <BROADCAST,UP,LOWER_UP> …`` as its words in <>."""
    return line.partition("<")[2].partition(">")[0].split(",")


def _listeners(lines: Sequence[str], owners: Sequence[str]) -> dict[int, str]:
    """``LISTEN 0 128 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=71,fd=3))`` as {8000: /system.slice/...}."""
    groups = {pid: group.rpartition(":")[2] for pid, _, group in (line.partition(" ") for line in owners)}
    found: dict[int, str] = {}
    for line in lines:
        words = line.split()
        port = words[3].rpartition(":")[2] if len(words) > 3 else ""
        pid = re.search(r"pid=(\d+)", line)
        if port.isdigit():
            found[int(port)] = groups.get(pid[1], "") if pid else ""
    return found


def _disk(lines: Sequence[str]) -> dict[str, int]:
    """df -Pk: free bytes by mount point."""
    free = {}
    for line in lines[1:]:
        words = line.split()
        if len(words) >= 6 and words[3].isdigit():
            free[words[5]] = int(words[3]) * 1024
    return free
