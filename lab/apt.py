"""The machine's own Debian mirror and proxy, so that the lab downloads from where the machine does."""

from __future__ import annotations

from pathlib import Path

from lab.errors import LabError
from lab.shell import run

DEBIAN_SUITES = frozenset({"bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable"})


def mirror(apt_dir: Path = Path("/etc/apt")) -> str | None:
    """The first Debian archive in the machine's apt sources; None leaves debootstrap to its own default."""
    files = [apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))]
    for file in files:
        if file.suffix in (".list", ".sources") and file.is_file():
            text = file.read_text(errors="replace")
            found = from_stanzas(text) if file.suffix == ".sources" else from_lines(text)
            if found:
                return found
    return None


def from_lines(text: str) -> str | None:
    """The archive of the first `deb [options] URI suite component...` line of a Debian suite."""
    for line in text.splitlines():
        words = without_options(line.split("#")[0]).split()
        if len(words) >= 4 and words[0] == "deb" and words[2] in DEBIAN_SUITES and "main" in words[3:]:
            return words[1]
    return None


def without_options(line: str) -> str:
    """The line without its [option=value ...] block."""
    before, bracket, rest = line.partition("[")
    return before + rest.partition("]")[2] if bracket else line


def from_stanzas(text: str) -> str | None:
    """The archive of the first deb822 stanza of a Debian suite."""
    for stanza in text.split("\n\n"):
        fields = {}
        for line in stanza.splitlines():
            key, colon, value = line.partition(":")
            if colon and not line.startswith(("#", " ")):
                fields[key.strip().lower()] = value.split()
        suites = set(fields.get("suites", []))
        is_debian = (
            "deb" in fields.get("types", []) and suites & DEBIAN_SUITES and "main" in fields.get("components", [])
        )
        if is_debian and fields.get("uris") and fields.get("enabled") != ["no"]:
            return fields["uris"][0]
    return None


def transport_settings() -> str:
    """The machine's apt settings that say how to reach the mirror (proxy, certificates), in apt.conf form."""
    try:
        dump = run(["apt-config", "dump"], doing="reading the machine's apt settings", timeout=20)
    except LabError:
        return ""  # not a Debian machine: nothing to copy
    kept = [
        line for line in dump.splitlines() if line.startswith(("Acquire::http", "Acquire::https")) and '""' not in line
    ]
    return "".join(f"{line}\n" for line in kept)
