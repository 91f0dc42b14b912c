"""Vendors' files found in folders and copied into a bundle: beside, proved by their sum, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from fleet import bundle as bundles
from fleet.bundle import CHUNK, PART, Bundle, File, Tell, digest, silent, size, unreadable, unwritable
from fleet.bundle_needs import Need
from fleet.findings import Finding, FleetError, error

# What browsers put into the name of a file that is downloaded once more: "driver (1).run".
_AGAIN = re.compile(r" ?\([0-9]+\)")


@dataclass(frozen=True)
class Copy:
    """One file to be in the bundle; ``sha256`` is what it must be, where that is known."""

    source: File
    target: Path
    sha256: str | None = None


def search(folder: Path, needs: Iterable[Need], apart: Path) -> tuple[list[File], list[Finding]]:
    """Files below a folder whose name any need asks for, whatever else lies there; ``apart`` is not looked into.

    The folder may be a bundle: then its SHA256SUMS holds for its files.
    """
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "there is no such folder"
        raise FleetError(error("BUNDLE-READ", str(folder), what, "name the folder with what you downloaded"))
    faults: list[Finding] = []
    sums = bundles.listed_sums(folder / bundles.SUMS, [])[0]
    patterns = [pattern for need in needs if need.kind != "repository" for pattern in need.patterns]
    found: list[File] = []

    def closed(exc: OSError) -> None:
        faults.append(replace(unreadable(Path(exc.filename), exc), severity="warning"))

    for top, folders, names in os.walk(folder, onerror=closed):
        folders[:] = [f for f in sorted(folders) if not f.startswith(".") and Path(top, f).resolve() != apart.resolve()]
        for name in sorted(names):
            path = Path(top, name)
            if not path.is_file() or not any(fnmatchcase(meant(name), pattern) for pattern in patterns):
                continue
            listed = sums.get(path.relative_to(folder).as_posix())
            found += [File(path, path.stat().st_size, listed)] if bundles.safe(meant(name)) else []
            faults += [] if bundles.safe(meant(name)) else [bundles.misnamed(path)]
    return found, faults


def meant(name: str) -> str:
    """A file's name as the vendor writes it, without what a browser put in."""
    return _AGAIN.sub("", name)


def plan_copies(needs: Iterable[Need], files: Sequence[File], target: Path) -> tuple[list[Copy], list[Finding]]:
    """Which file goes where; of two that differ and fit one pattern, none does."""
    copies: list[Copy] = []
    faults: list[Finding] = []
    for need in needs:
        for patterns in _choices(need):
            fitting = [file for pattern in patterns for file in files if fnmatchcase(meant(file.name), pattern)]
            # One name in one size in two folders is one file.
            different = {(meant(file.name), file.size): file for file in reversed(fitting)}
            if len(different) > 1:
                paths = ", ".join(sorted(str(file.path) for file in different.values()))
                what = f"{len(different)} files fit {patterns[0]}: {paths}"
                mend = "leave the one that you mean in these folders"
                faults.append(error("BUNDLE-TWO", need.what, what, mend))
            elif fitting:
                name = meant(fitting[0].name)
                known = need.sha256.get(name) or fitting[0].sha256
                copies.append(Copy(fitting[0], target / need.place / name, known))
    return list({copy.target: copy for copy in copies}.values()), faults


def _choices(need: Need) -> list[tuple[str, ...]]:
    """Patterns of which each needs a file, or, of an image, any."""
    if need.kind == "image":
        return [need.patterns]
    return [(pattern,) for pattern in need.patterns] if need.kind == "package" else []


def room(copies: Iterable[Copy], folder: Path) -> list[Finding]:
    """Whether the disk has room for what is not there yet."""
    wanted = sum(c.source.size for c in copies if _size(c.target) != c.source.size)
    free = shutil.disk_usage(folder).free
    if wanted <= free:
        return []
    what = f"{size(wanted)} are to be copied, and {size(free)} are free"
    return [error("BUNDLE-WRITE", str(folder), what, "free some space there, or name another folder")]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def copy(job: Copy, tell: Tell = silent) -> tuple[str, bool]:
    """Put one file there; its sum, and whether it had to be copied. A FleetError says what kept it from being right.

    A file of the same size and sum is left alone. What was cut off lies beside, and is written anew.
    """
    _refuse_page(job.source)
    if _size(job.target) == job.source.size:
        its = digest(job.source.path, tell)
        _refuse_other(job, its)
        if digest(job.target) == its:
            return its, False
    beside = job.target.with_name(f".{job.target.name}{PART}")
    try:
        its = _write(job.source.path, beside, tell)
        _refuse_other(job, its)
        if digest(beside) != its:
            what, mend = "what was read back differs from what was written", "the disk is not sound: use another"
            raise FleetError(error("BUNDLE-CHECKSUM", str(job.target), what, mend))
        beside.replace(job.target)
    except OSError as exc:
        raise FleetError(unwritable(job.target, exc)) from exc
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return its, True


def _refuse_page(file: File) -> None:
    """Vendors' sites answer with a page where one is not logged in, and some tools save that under the file's name."""
    try:
        with file.path.open("rb") as opened:
            start = opened.read(64).lstrip()
    except OSError as exc:
        raise FleetError(unreadable(file.path, exc)) from exc
    if not start or start.startswith(b"<"):
        what = "this is a web page, not the file" if start else "the file is empty"
        raise FleetError(
            error("BUNDLE-READ", str(file.path), what, "download it again, logged in to the vendor's site")
        )


def _refuse_other(job: Copy, its: str) -> None:
    if job.sha256 is not None and its != job.sha256:
        raise FleetError(bundles.differs(job.source.path, f"{its[:12]}..., not {job.sha256[:12]}..."))


def _write(source: Path, target: Path, tell: Tell) -> str:
    """Copies and sums up in one reading. An OSError is the target's, of the source there is a FleetError."""
    its = hashlib.sha256()
    try:
        reading = source.open("rb")
    except OSError as exc:
        raise FleetError(unreadable(source, exc)) from exc
    with reading, target.open("wb") as file:
        while True:
            try:
                piece = reading.read(CHUNK)
            except OSError as exc:
                raise FleetError(unreadable(source, exc)) from exc
            if not piece:
                break
            its.update(piece)
            file.write(piece)
            tell(len(piece))
        file.flush()
        os.fsync(file.fileno())
    return its.hexdigest()


def make_folders(folder: Path, names: Iterable[str]) -> None:
    """The bundle's folders; a FleetError where they cannot be made or written to."""
    for name in ("", *names):
        path = folder / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".probe{PART}"
            probe.touch()
            probe.unlink()
        except OSError as exc:
            raise FleetError(unwritable(path, exc)) from exc


def sums(
    bundle: Bundle, fresh: dict[str, str], tell: Tell = silent
) -> tuple[dict[str, tuple[int, str]], list[Finding]]:
    """Size and sum of every file of a bundle, for SHA256SUMS; ``fresh`` are those that this run has just proved.

    A file that was listed keeps its sum: where its content is another by now, that is told, and not made right.
    """
    told: list[Finding] = []
    found: dict[str, tuple[int, str]] = {}
    for file in bundle.files:
        name = bundle.relative(file)
        its = fresh.get(name) or digest(file.path, tell)
        if file.sha256 is not None and file.sha256 != its and name not in fresh:
            told.append(bundles.differs(file.path))
            its = file.sha256
        found[name] = (file.size, its)
    return found, told
