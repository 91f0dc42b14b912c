"""The folder that a rack without internet is given: vendors' packages, images as tar files, a package repository.

bundle/SHA256SUMS            sums of all files, made by `fleet bundle`
bundle/packages/             .run files of vendors, as they are called there
bundle/images/               one tar file for each image
bundle/apt/, bundle/dnf/     repositories of the distribution's packages

SHA256SUMS is what ``sha256sum -c`` reads. ``fleet bundle`` puts each file's size before it, as a comment, so that a
copy that was cut off is seen without reading it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from fleet.findings import Finding, FleetError, error

SUMS = "SHA256SUMS"
PART = ".part"
DEEPEST, MOST, LARGEST_SUMS = 6, 50_000, 20_000_000
CHUNK = 1 << 20
Tell = Callable[[int], None]
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)\Z")
_SIZE = re.compile(r"#size ([0-9]+) (.+)\Z")
# File names go into shell text and onto hosts as they are.
_SAFE = re.compile(r"[A-Za-z0-9._+~:@%,=-]+\Z")


def silent(count: int) -> None:
    """Nobody wants to know how many bytes were read."""


@dataclass(frozen=True)
class File:
    """One file of the bundle; ``sha256`` as SHA256SUMS has it, None where it is not listed."""

    path: Path
    size: int
    sha256: str | None = None

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Bundle:
    """A bundle on this machine."""

    folder: Path
    files: tuple[File, ...] = ()

    def find(self, pattern: str) -> list[File]:
        """Files whose name fits the pattern, in the order of names."""
        return sorted((f for f in self.files if fnmatchcase(f.name, pattern)), key=lambda f: f.name)

    def below(self, folder: str) -> list[File]:
        """Files in one of its folders: ``apt``."""
        return [f for f in self.files if self.relative(f).split("/")[0] == folder]

    def relative(self, file: File) -> str:
        """A file's name as SHA256SUMS has it."""
        return file.path.relative_to(self.folder).as_posix()


def read(folder: Path) -> Bundle:
    """What a bundle holds; a FleetError where the folder or its SHA256SUMS cannot be read, or differ."""
    its, faults = scan(folder)
    if faults:
        raise FleetError(*faults)
    return its


def scan(folder: Path) -> tuple[Bundle, list[Finding]]:
    """As ``read``, with what is wrong with single files; a FleetError where the folder itself cannot be read.

    Nothing is read but SHA256SUMS: ``digest`` tells whether content is right.
    """
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "there is no such folder"
        mend = "give the bundle's folder, or make one: fleet bundle INVENTORY --collect DIR --from FOLDER"
        raise FleetError(error("BUNDLE-READ", str(folder), what, mend))
    faults: list[Finding] = []
    found = _walk(folder, folder, 1, {}, faults)
    listed, sizes = listed_sums(folder / SUMS, faults)
    faults += _against(folder, found, listed, sizes)
    files = tuple(File(folder / name, size, listed.get(name)) for name, size in found.items())
    return Bundle(folder, files), faults


def _walk(top: Path, folder: Path, depth: int, found: dict[str, int], faults: list[Finding]) -> dict[str, int]:
    """Sizes of all files below a folder, by their names relative to the top; hidden ones are no part of a bundle."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as exc:
        faults.append(unreadable(folder, exc))
        return found
    for entry in entries:
        path = Path(entry.path)
        name = path.relative_to(top).as_posix()
        if entry.name.startswith(".") or entry.name.endswith(PART) or name == SUMS:
            continue
        try:
            inside = entry.is_dir(follow_symlinks=False)
            size = 0 if inside else entry.stat().st_size
            plain = inside or entry.is_file()
        except OSError as exc:  # a link to nothing
            faults.append(unreadable(path, exc))
            continue
        if not plain:
            continue
        if not safe(entry.name):
            faults.append(misnamed(path))
        elif inside and depth >= DEEPEST:
            faults.append(
                error("BUNDLE-SIZE", str(path), f"folders lie more than {DEEPEST} deep", "give the right one")
            )
        elif inside:
            _walk(top, path, depth + 1, found, faults)
        elif len(found) >= MOST:
            what = f"more than {MOST} files are no bundle"
            raise FleetError(error("BUNDLE-SIZE", str(top), what, "give a folder with its files alone"))
        else:
            found[name] = size
    return found


def safe(name: str) -> bool:
    """Whether a file of this name can be brought to a host."""
    return bool(_SAFE.match(name))


def misnamed(path: Path) -> Finding:
    """What is said of a file whose name is not safe."""
    mend = "rename it: letters, digits and . _ + ~ : @ % , = -"
    return error("BUNDLE-NAME", repr(str(path)), "no host is given a file of this name", mend)


def unreadable(path: Path, exc: OSError) -> Finding:
    """What is said where the system does not let a file or folder be read."""
    reason = (exc.strerror or str(exc)).lower()
    return error("BUNDLE-READ", str(path), f"cannot read: {reason}", "mend its rights, or run as who may read it")


def unwritable(path: Path, exc: OSError) -> Finding:
    """What is said where a file of the bundle cannot be written."""
    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "free some space there; what is copied stays" if full else "mend the rights of its folder, or name another"
    mend = "remove that folder, or name another place" if exc.errno == errno.EISDIR else mend
    return error("BUNDLE-WRITE", str(path), f"cannot write: {(exc.strerror or str(exc)).lower()}", mend)


def differs(path: Path, why: str = "") -> Finding:
    """What is said of a file whose content is not what its sum says."""
    mend = "download or copy it again; if you changed it, remove SHA256SUMS and collect"
    return error("BUNDLE-CHECKSUM", str(path), "its SHA-256 is not the one that is known", mend, why)


def listed_sums(path: Path, faults: list[Finding]) -> tuple[dict[str, str], dict[str, int]]:
    """Sums and sizes by name; lines that are neither are told."""
    try:
        text = path.read_bytes().decode("utf-8-sig") if path.stat().st_size <= LARGEST_SUMS else ""
    except FileNotFoundError:
        return {}, {}
    except UnicodeDecodeError:
        text = ""
    except OSError as exc:
        faults.append(unreadable(path, exc))
        return {}, {}
    sums: dict[str, str] = {}
    sizes: dict[str, int] = {}
    if not text and path.stat().st_size:
        mend = "remove it, and make it anew: fleet bundle --collect"
        faults.append(error("BUNDLE-SUMS", str(path), "this is no text of sha256sum", mend))
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if match := _SIZE.match(line):
            sizes[_name(match[2])] = int(match[1])
        elif not line.strip() or line.startswith("#"):
            continue
        elif not (match := _SUM.match(line)) or not _inside(match[2]):
            mend = "write 64 digits, two spaces, a name relative to the bundle; fleet bundle --collect writes it"
            faults.append(error("BUNDLE-SUMS", where, "this is no line of sha256sum", mend))
        elif sums.setdefault(_name(match[2]), match[1]) != match[1]:
            faults.append(error("BUNDLE-SUMS", where, f"{match[2]} is listed twice, with two sums", "keep one of them"))
    return sums, sizes


def _name(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() != "."


def _against(
    folder: Path, found: Mapping[str, int], listed: Mapping[str, str], sizes: Mapping[str, int]
) -> list[Finding]:
    """Files that are listed and not there, or not of the size that is listed."""
    faults = []
    mend = "copy it again, or make the bundle anew: fleet bundle --collect"
    for name in listed:
        if name not in found:
            faults.append(error("BUNDLE-SUMS", str(folder / name), f"{SUMS} lists it, and it is not there", mend))
        elif name in sizes and sizes[name] != found[name]:
            what = f"it has {found[name]} bytes, {SUMS} lists {sizes[name]}"
            faults.append(
                error("BUNDLE-SUMS", str(folder / name), what, mend, "a copy was cut off, or it was replaced")
            )
    return faults


def digest(path: Path, tell: Tell = silent) -> str:
    """SHA-256 of a file's content; a FleetError where it cannot be read. ``tell`` gets the bytes of each piece."""
    its = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                its.update(piece)
                tell(len(piece))
    except OSError as exc:
        raise FleetError(unreadable(path, exc)) from exc
    return its.hexdigest()


def size(count: int) -> str:
    """Bytes for people: 10^9 of them are a GB."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} B"


def write_sums(folder: Path, sums: Mapping[str, tuple[int, str]]) -> None:
    """SHA256SUMS of a bundle from (size, sum) by name."""
    lines = [f"#size {size} {name}\n{its}  {name}\n" for name, (size, its) in sorted(sums.items())]
    replace(folder / SUMS, "".join(lines))


def replace(path: Path, text: str) -> None:
    """A small file written beside and renamed, whatever cuts it; a FleetError where it cannot be written."""
    beside = path.with_name(f".{path.name}{PART}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as exc:
        raise FleetError(unwritable(path, exc)) from exc
