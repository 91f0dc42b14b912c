"""What all parts of the preparation share: the host's own facts, the files it can be given, and a step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

from fleet.bundle import SUMS, Bundle
from fleet.findings import Finding, error
from fleet.inventory import Node
from fleet.machine.bounded import bounded
from fleet.stacks import Stack
from fleet.topology import Plan, home_of

# What preparation keeps on a host: files that were brought, and notes of what waits for a reboot.
KEPT = "/var/lib/vllm-fleet"
BROUGHT = f"{KEPT}/bundle"
# One line for each reason, and before them the boot in which they were written: a boot later they are done with.
REBOOT_NOTE = f"{KEPT}/reboot-needed"

# Held while something of the host is changed. In it stands which run began or ended a step last, so that another one,
# which saw the host before that, does not go on from what it saw. Not below /run/lock, where anybody may write.
LOCK = "/run/vllm-fleet-prepare"

DEBIAN, REDHAT = "debian", "redhat"
_FAMILIES = {
    "debian": DEBIAN, "ubuntu": DEBIAN,
    "openeuler": REDHAT, "rhel": REDHAT, "centos": REDHAT, "rocky": REDHAT, "almalinux": REDHAT, "fedora": REDHAT,
    "kylin": REDHAT, "anolis": REDHAT, "euleros": REDHAT, "bclinux": REDHAT, "ol": REDHAT, "ctyunos": REDHAT,
    "hce": REDHAT, "culinux": REDHAT, "tencentos": REDHAT, "opencloudos": REDHAT, "alinux": REDHAT,
}  # fmt: skip
# Of systems that are not listed, and of uos, which there is of either kind.
_BY_TOOL = {"apt-get": DEBIAN, "dnf": REDHAT, "yum": REDHAT}
# A share that is gone never answers; a disk of many files takes a while.
PLACE_SECONDS = 30
_SILENT = "@@silent"
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)\Z")


@dataclass(frozen=True)
class Host:
    """The operating system and what runs there; sizes in bytes."""

    system: str = ""  # ID of /etc/os-release: ubuntu, openEuler
    system_version: str = ""  # VERSION_ID
    codename: str = ""  # VERSION_CODENAME
    family: str = ""  # DEBIAN, REDHAT, or empty where it is neither
    arch: str = ""  # uname -m: aarch64, x86_64
    kernel: str = ""  # uname -r
    in_container: bool = False  # then the kernel's settings and modules are the machine's below
    boot: str = ""  # the kernel's boot_id
    reboot: tuple[str, ...] = ()  # why this boot must end before what was installed takes effect
    serving: tuple[str, ...] = ()  # units of vllm-fleet (any service) that run an engine, a router or a proxy now
    files: Mapping[str, int] = field(default_factory=dict)  # path -> size: below bundle_on_host, and brought before
    sums: Mapping[str, str] = field(default_factory=dict)  # path -> SHA-256, as bundle_on_host's SHA256SUMS has them
    silent: tuple[str, ...] = ()  # bundle_on_host, where it gave no answer in time
    tools: frozenset[str] = frozenset()


TOOLS = ("apt-get", "dnf", "yum", "python3", "docker", "nft", "nvidia-smi", "npu-smi", "systemctl", "chronyc")


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked of every host."""
    listing = "find {} -maxdepth 3 -type f -printf '%s %p\\n' 2>/dev/null"
    place = (node.settings.bundle_on_host or "").rstrip("/")
    found, sums = listing.format(BROUGHT), "true"
    if place:
        late = f"|| test $? -ne 124 || echo '{_SILENT} {place}'"
        found += f"; {bounded(PLACE_SECONDS, listing.format(f'{place}/'))} {late}"
        # Package managers know the sums of their repositories' files.
        read = f"head -c 2000000 {place}/{SUMS} | grep -v -e '^#' -e '[ *]apt/' -e '[ *]dnf/' | head -c 500000"
        sums = f"echo 'in {place}'; {bounded(PLACE_SECONDS, read)} {late}"
    return [
        "echo '@@ system'; sed -n -e 's/^ID=/id /p' -e 's/^VERSION_ID=/version /p' "
        "-e 's/^VERSION_CODENAME=/codename /p' "
        '/etc/os-release; echo "arch $(uname -m)"; echo "kernel $(uname -r)"; '
        'echo "boot $(cat /proc/sys/kernel/random/boot_id)"; test -e /run/systemd/container && echo container',
        f"echo '@@ rebootnote'; cat {REBOOT_NOTE} 2>/dev/null",
        "echo '@@ serving'; for u in $(systemctl list-units --plain --no-legend --state=active,activating,deactivating "
        "'vllm-*.service' 2>/dev/null | cut -d ' ' -f 1); do "
        f"case $(readlink /etc/systemd/system/$u) in {home_of('')}/*) echo $u;; esac; done",
        f"echo '@@ files'; {found}",
        f"echo '@@ filesums'; {sums}",
        f"echo '@@ programs'; for t in {' '.join(TOOLS)}; do command -v $t >/dev/null && echo $t; done",
    ]


def parse(sections: Mapping[str, list[str]]) -> Host:
    """What was answered."""
    said = {key: rest.strip().strip("\"'") for key, _, rest in (s.partition(" ") for s in sections.get("system", []))}
    note = sections.get("rebootnote", [])
    files, sums = sections.get("files", []), sections.get("filesums", [])
    sizes = [line.partition(" ") for line in files]
    silent = [line.partition(" ")[2] for line in [*files, *sums] if line.startswith(f"{_SILENT} ")]
    system, tools = said.get("id", ""), sections.get("programs", [])
    by_tool = next((family for tool, family in _BY_TOOL.items() if tool in tools), "")
    return Host(
        system=system,
        system_version=said.get("version", ""),
        codename=said.get("codename", ""),
        family=_FAMILIES.get(system.lower(), by_tool),
        arch=said.get("arch", ""),
        kernel=said.get("kernel", ""),
        in_container="container" in said,
        boot=said.get("boot", ""),
        reboot=tuple(note[1:]) if note[:1] == [said.get("boot", "")] else (),
        serving=tuple(sections.get("serving", [])),
        files={path: int(size) for size, _, path in sizes if size.isdigit()},
        sums=_listed(sums),
        silent=tuple(dict.fromkeys(silent)),
        tools=frozenset(tools),
    )


def _listed(lines: Sequence[str]) -> dict[str, str]:
    """Sums by path, from the place's name and the lines of its SHA256SUMS."""
    if not lines or not lines[0].startswith("in "):
        return {}
    matches = (_SUM.match(line) for line in lines[1:])
    return {f"{lines[0][3:]}/{m[2].removeprefix('./')}": m[1] for m in matches if m}


@dataclass(frozen=True)
class Source:
    """A file that a step needs on the host."""

    path: str  # where it lies on the host, or will lie
    name: str
    upload: Path | None = None  # from here; None: it is there already
    size: int = 0
    sha256: str | None = None  # what it must be; checked on the host before it is used

    def check(self) -> str:
        """Shell text that fails, saying so, where the file is not what it must be."""
        if self.sha256 is None:
            return "true"
        return (
            f"echo '{self.sha256}  {self.path}' | sha256sum -c --quiet - >/dev/null 2>&1 || "
            f"{{ echo 'checksum of {self.path} differs'; exit 3; }}"
        )


@dataclass(frozen=True)
class Outcome:
    """What a step came to."""

    findings: tuple[Finding, ...] = ()  # an error among them fails the host
    reboot: str = ""  # why the host must be restarted before this takes effect


@dataclass(frozen=True)
class Step:
    """One change of a host: shell text for root, and how to read what it printed.

    It may be run again after it was cut anywhere. ``read`` gets whether it ended with 0, and its output lines (both
    streams, in order). Without it, anything but 0 is an error with the last line as its reason.
    """

    name: str  # in plain words, what will be so: "driver 25.5.1 (there is 25.3.RC1)"
    script: str
    seconds: int = 300  # after this long it is ended
    stdin: str | None = field(default=None, repr=False)  # text that may hold a secret, so in no argument
    sources: tuple[Source, ...] = ()
    read: Callable[[bool, Sequence[str]], Outcome] | None = None
    # Shell text for a new connection, made after the script: where a change could cut the host off, the script arms
    # something that takes the change back, and this disarms it.
    confirm: str = ""


@dataclass(frozen=True)
class Work:
    """One host with all that is known of it: what a part judges, and makes its steps from."""

    plan: Plan
    node: Node
    host: Host
    states: Mapping[str, Any]  # by the name of the part's module: ascend, nvidia, base, ...
    bundle: Bundle | None = None
    stack: Stack | None = None

    @property
    def name(self) -> str:
        return self.node.name

    def find(self, pattern: str, sha256: Mapping[str, str] | None = None) -> Source | None:
        """A file by the pattern of its name: on the host already, else in the bundle here; None where it is nowhere.

        Of several, the one with the highest numbers in its name. ``sha256`` maps names of files to the sums that the
        catalogue knows; the SHA256SUMS of the bundle here are used where it has none, then those beside the file.
        """
        known = dict(sha256 or {})
        at_hand = sorted(self.bundle.find(pattern) if self.bundle else [], key=lambda f: _order(f.name))
        there = [path for path in self.host.files if fnmatchcase(path.rpartition("/")[2], pattern)]
        there.sort(key=lambda path: (_order(path.rpartition("/")[2]), path))
        sums = {f.name: f.sha256 for f in at_hand if f.sha256} | known
        sizes = {f.name: f.size for f in at_hand}
        for path in reversed(there):
            name = path.rpartition("/")[2]
            if name not in sizes or sizes[name] == self.host.files[path]:
                # What was brought before is looked at, and sent again where a dying host left something else of it.
                again = next((f.path for f in at_hand if f.name == name), None) if _is_brought(path) else None
                return Source(path, name, again, self.host.files[path], sums.get(name) or self.host.sums.get(path))
        if not at_hand:
            return None
        file = at_hand[-1]
        return Source(f"{BROUGHT}/{file.name}", file.name, file.path, file.size, sums.get(file.name))


def _is_brought(path: str) -> bool:
    return path.startswith(f"{BROUGHT}/")


def _order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A file's name as its numbers and words, a number above a word: 7.8 before 7.10, 25.3.RC1 before 25.3.0."""
    words = re.findall(r"\d+|[a-z]+", name.lower())
    return tuple((True, int(word), "") if word.isdigit() else (False, 0, word) for word in words)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(lines: Sequence[str]) -> list[str]:
    """Lines without a terminal's colours."""
    return [_COLOUR.sub("", line) for line in lines]


def failed(host: str, step: Step, lines: Sequence[str]) -> Finding:
    """What is said of a step that has no reader of its own."""
    said = [line.strip() for line in plain(lines) if line.strip()]
    what = f"{step.name}: {said[-1] if said else 'it ended without a word'}"
    return error("PREPARE-FAILED", host, what[:400], "mend that and run again: what is done is not done twice")


def sum_of(text: str) -> str:
    """SHA-256 of a text, in hex: what sha256sum says of a file that holds it."""
    return sha256(text.encode()).hexdigest()


def write(path: str, text: str, mode: str = "644") -> str:
    """Shell text that puts a small file there, beside and then renamed; nothing of it may be secret."""
    folder, quoted = path.rpartition("/")[0], shlex.quote(text)
    return (
        f"mkdir -p {folder} && printf %s {quoted} >{path}.new && chmod {mode} {path}.new && "
        f"{{ sync -d {path}.new 2>/dev/null; mv -f {path}.new {path}; }}"
    )
