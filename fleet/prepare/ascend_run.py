"""The .run packages of Ascend: their versions in order, how one is run, and what its end means.

Sources: the driver's own installer (driver_install.sh, env_check.sh, args_parse.sh of cann/driver): its exit status is
0 also for one refusal and 2 where only the reset failed, so that its text decides; the HDK installation guide for the
firmware, whose 0 and 2 are both success.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.findings import Finding, error
from fleet.prepare.common import Outcome, Source, plain

LOCK = "/run/vllm-fleet-packages"
_LOCKED = 75
_THERE = "the cards have firmware"
# What precedes a release, in order. Any other word is a patch on top of it.
_BEFORE = ("dev", "alpha", "t", "beta", "rc")

_TOKEN = re.compile(r"\d+|[a-z]+")


def version_order(version: str) -> list[tuple[int, int, int]]:
    """``25.3.RC1`` as numbers and words: a word of _BEFORE is below the end and below any number.

    Only versions of one length compare right by it alone; ``older`` fills the shorter one up.
    """
    found: list[tuple[int, int, int]] = []
    words = _TOKEN.findall(version.strip().lower())
    for place, word in enumerate(words):
        if word.isdigit():
            if place and words[place - 1] in _BEFORE:
                found[-1] = (*found[-1][:2], int(word))
            else:
                found.append((1, int(word), 0))
        elif word in _BEFORE:
            found.append((0, _BEFORE.index(word), 0))
        elif word not in ("b", "v"):  # B220 is 220, a build's number
            found.append((2, 0, 0))
    return found


def _padded(one: str, other: str) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    first, second = version_order(one), version_order(other)
    size = max(len(first), len(second))
    return first + [(1, 0, 0)] * (size - len(first)), second + [(1, 0, 0)] * (size - len(second))


def older(one: str, other: str) -> bool:
    """Whether the first version came before the second: 25.3.RC1, 25.3.0, 25.3.1.RC1, 25.3.1, 25.5.1."""
    first, second = _padded(one, other)
    return first < second


def same(one: str | None, other: str | None) -> bool:
    """Whether both are one version: 25.3.rc1 is 25.3.RC1, 7.7.0.9.B220 is 7.7.0.9.220, 25.5 is 25.5.0."""
    if not one or not other:
        return False
    first, second = _padded(one, other)
    return first == second


# ---- running one


def script(source: Source, arguments: Sequence[str], before: str = "", well: str = "0|2") -> str:
    """Shell text that proves a package whole and runs it, alone on the host; ``well`` are the good ends.

    The lock is held by the package's parent, so no service that an installer starts keeps it. A package on a share that
    may not be written to, or run from, is run by bash.
    """
    inner = "\n".join(
        part
        for part in (
            source.check(),
            f"p={shlex.quote(source.path)}",
            'chmod u+x "$p" 2>/dev/null',
            'run() { if test -x "$p"; then "$p" "$@" </dev/null; else bash "$p" "$@" </dev/null; fi; }',
            'run --check || { echo "$p did not pass its own check"; exit 3; }',
            before,
            f"run {' '.join(shlex.quote(a) for a in arguments)}; rc=$?",
            'echo "it ended with $rc"',
            f"case $rc in ({well}) exit 0;; (*) exit $rc;; esac",
        )
        if part
    )
    return (
        f"flock -n -o -E {_LOCKED} {LOCK} sh -c {shlex.quote(inner)}; rc=$?\n"
        f"test $rc -ne {_LOCKED} || echo 'a package that was started before is still being installed'\n"
        "exit $rc"
    )


def unless_newer(version: str, cards: Sequence[int]) -> str:
    """Shell text that ends well, saying so, where all these cards have this firmware or a newer one.

    Where npu-smi does not answer, nothing is known and nothing said.
    """
    if "*" in version:
        return ""
    plain_number = "sed 's/[.][Bb]\\([0-9]\\)/.\\1/g'"  # 7.7.0.9.B220 is 7.7.0.9.220
    return (
        f"new=$(echo {shlex.quote(version)} | {plain_number})\n"
        f"have=$(for k in {' '.join(map(str, cards))}; do timeout -k 2 20 npu-smi info -t board -i $k 2>/dev/null "
        "</dev/null || break; done | sed -n 's/.*Firmware Version *: *\\([0-9][^ ]*\\).*/\\1/p' | "
        f"{plain_number} | sort -V | head -n 1)\n"
        'if [ -n "$have" ] && [ "$(printf \'%s\\n\' "$new" "$have" | sort -V | tail -n 1)" = "$have" ]; then\n'
        f'[ "$have" = "$new" ] && echo "{_THERE} $have, which is this one" || '
        f'echo "{_THERE} $have, which is newer"\nexit 0\nfi'
    )


# ---- what an end means


@dataclass(frozen=True)
class Meaning:
    """What an installer's text says of its failure."""

    words: str  # a regular expression
    rule: str
    meaning: str
    mend: str


_USER = "the user and group of the driver"
_RERUN = "then run this again"
MEANINGS = (
    Meaning(r"ERR_NO:0x0091", "DRIVER-USER", f"{_USER} are missing, or are root's",
            "see UserName and UserGroup in /etc/ascend_install.info and add them: groupadd, useradd -g"),
    Meaning(r"ERR_NO:0x0095", "DRIVER-USER", f"{_USER} are not those of the installation before",
            "put the names of that installation into /etc/ascend_install.info, or uninstall it"),
    Meaning(r"ERR_NO:0x0096", "DRIVER-USER", "the driver's user is not in the driver's group",
            "usermod -a -G <group> <user>, with the names in /etc/ascend_install.info"),
    Meaning(r"Arch mismatch|architecture of the run package|is for (x86_64|aarch64), this", "DRIVER-ARCH",
            "the package is for another processor", "bring the package of this host's architecture"),
    Meaning(r"installation package and environment is not match|package is for ascend-a", "DRIVER-ARCH",
            "the package is for another family of NPUs", "bring the package of this family; see the catalogue's row"),
    Meaning(r"[Ee]rror in \w+ checksum|checksum of .* differs|[Cc]hecksums? .*(?:fail|mismatch|different)"
            r"|did not pass its own check|^gzip: |unexpected end of file", "DRIVER-CORRUPT",
            "the package is damaged", "copy it again from where it came, and run this again"),
    Meaning(r"davinci nodes are occupied|is already a process being executed|is still being installed"
            r"|all-in-one RUN package", "DRIVER-BUSY",
            "the devices or the installer are in use, or an older all-in-one package is installed",
            f"end what uses them (fuser -v /dev/davinci*), uninstall the old package, {_RERUN}"),
    Meaning(r"list of missing tools", "DRIVER-BUILD", "the installer lacks programs",
            f"install them (gcc, make, pciutils, net-tools), {_RERUN}"),
    Meaning(r"free space only", "DRIVER-FAILED", "the disk is full", f"free some space in /usr/local, {_RERUN}"),
    Meaning(r"ERR_NO:0x0001", "DRIVER-FAILED", "the package does not fit this host, or a path is missing",
            "read the line and /var/log/ascend_seclog/ascend_install.log"),
    Meaning(r"ERR_NO:0x0002", "DRIVER-FAILED", "the installer asked and got no answer it understood",
            "look at what it asked: it ran with --quiet and should not ask"),
    Meaning(r"ERR_NO:0x0003", "DRIVER-FAILED", "the installer's path cannot be used",
            "see Driver_Install_Path_Param in /etc/ascend_install.info and the rights of that folder"),
    Meaning(r"ERR_NO:0x0004", "DRIVER-FAILED", "this package does not know the arguments it was given",
            "run it with --help on the host, and report what differs"),
    Meaning(r"ERR_NO:0x0080", "DRIVER-FAILED", "a part could not be taken out or put in",
            f"restart the host, {_RERUN}"),
    Meaning(r"ERR_NO:0x0090", "DRIVER-FAILED", "the old driver could not be uninstalled",
            f"restart the host, {_RERUN}; else run the old package with --uninstall --force"),
    Meaning(r"ERR_NO:0x0093", "DRIVER-FAILED", "the installer had no root rights",
            "see that sudo gives the run all rights"),
    Meaning(r"ERR_NO:0x0094", "DRIVER-BUSY", "another package is being installed",
            f"wait until it has ended (pgrep -af '[.]run'), {_RERUN}"),
    Meaning(r"Failed to \w+ driver package", "DRIVER-FAILED", "the module could not be built or loaded",
            f"read /var/log/ascend_seclog/ascend_install.log, mend that, restart the host, {_RERUN}"),
    Meaning(r"^(Killed|Terminated)$", "DRIVER-FAILED", "it was killed half way", "run this again: it is repaired"),
    Meaning(r"it was ended after \d+ s", "DRIVER-FAILED", "it took too long",
            "look at dmesg; run this again: what is half there is repaired"),
)  # fmt: skip
_LOG = "read /var/log/ascend_seclog/ascend_install.log on the host, mend that, and run this again"
# 24.1 said "install success!", later ones say "installed successfully!".
_DONE = re.compile(r"Driver package (?:install|upgrade)(?:e?d)? (success\w*|finished)!")
_NUMBER = re.compile(r"ERR_NO:0x[0-9A-Fa-f]{4}")


def failure(host: str, what: str, lines: Sequence[str]) -> Finding:
    """The finding about a package that did not end well: by its own number or text, else by its last line."""
    said = [line.strip() for line in plain(lines) if line.strip()]
    for meaning in MEANINGS:
        line = next((line for line in said if re.search(meaning.words, line)), None)
        if line is not None:
            return error(meaning.rule, host, f"{what}: {meaning.meaning}", meaning.mend, line[:300])
    numbered = next((line for line in said if _NUMBER.search(line)), None)
    own = [line for line in said if not re.match(r"it ended with \d+$", line)]
    line = numbered or (own[-1] if own else "it ended without a word")
    return error("DRIVER-FAILED", host, f"{what}: its end is none that is known", _LOG, line[:300])


def downgrade(host: str, kind: str, have: str, version: str, row: str) -> Finding:
    """What there is, is newer than what the catalogue's row says."""
    return error(
        "DRIVER-DOWNGRADE",
        host,
        f"{kind} {have} is newer than the {version} of catalogue {row}",
        "name a row with this version or a newer one; or uninstall it by hand, restart, and run this again",
        "an older one over a newer one is not what the vendor tests",
    )


def driver_read(host: str, what: str) -> Callable[[bool, Sequence[str]], Outcome]:
    """Reads a driver's end: in effect, after a restart, or not installed. Its text decides, not its status."""

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        text = "\n".join(plain(lines))
        ends = [m[1] for m in _DONE.finditer(text)]
        if not ends or re.search(r"Failed to \w+ driver package", text):
            return Outcome((failure(host, what, lines),))
        if "chips not ready" in text:
            return Outcome(reboot=f"{what}: some NPUs were not ready after it")
        if "takes effect immediately" in text:
            return Outcome()
        if "Kernel modules can not be removed" in text:
            return Outcome(reboot=f"{what}: the modules before it were in use")
        if re.search(r"[Rr]eboot needed", text):
            return Outcome(reboot=f"{what} takes effect with the next start")
        if not done or _NUMBER.search(text):
            return Outcome((failure(host, what, lines),))
        return Outcome(reboot=f"{what} is installed, and its installer does not say whether it is in effect")

    return read


def firmware_read(
    host: str, what: str, driver_follows: bool, exact_row: str = ""
) -> Callable[[bool, Sequence[str]], Outcome]:
    """Reads a firmware's end; it takes effect with a restart, or with a driver that is installed after it.

    ``exact_row`` is the catalogue's row where it names just this version.
    """

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        text = "\n".join(plain(lines))
        if done and (there := re.search(rf"^{_THERE} (\S+), which is (newer|this one)$", text, re.MULTILINE)):
            if there[2] == "newer" and exact_row:
                return Outcome((downgrade(host, "firmware", there[1], what.split()[-1], exact_row),))
            return Outcome()
        refused = _NUMBER.search(text) and not re.search(r"Firmware package \w+ success", text)
        if not done or refused:
            return Outcome((failure(host, what, lines),))
        if driver_follows or "takes effect immediately" in text:
            return Outcome()
        return Outcome(reboot=f"{what} takes effect with the next start")

    return read
