"""Vendors' files found in folders and copied into a bundle: beside, proved by their sum, then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.bundle import CHUNK, PART, Bundle, File, differs, digest, size, unreadable
from fleet.bundle_needs import Need
from fleet.findings import Finding, FleetError, error

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Copy:
    """One file to be in the bundle; ``sha256`` is what it must be, where that is known."""

    source: File
    target: Path
    sha256: str | None = None


def plan_copies(needs: Iterable[Need], folders: Sequence[Bundle], target: Path) -> tuple[list[Copy], list[Finding]]:
    """Which file of which folder goes where; of two that differ and fit one pattern, none does."""
    copies: list[Copy] = []
    faults: list[Finding] = []
    for need in needs:
        for patterns in _choices(need):
            fitting = [file for folder in folders for pattern in patterns for file in folder.find(pattern)]
            # One name in one size in two folders is one file.
            different = {(file.name, file.size): file for file in reversed(fitting)}
            if len(different) > 1:
                paths = ", ".join(sorted(str(file.path) for file in different.values()))
                what = f"{len(different)} files fit {patterns[0]}: {paths}"
                mend = "leave the one that you mean in these folders"
                faults.append(error("BUNDLE-TWO", need.what, what, mend))
            for file in fitting[:1] if len(different) == 1 else ():
                known = need.sha256.get(file.name) or file.sha256
                copies.append(Copy(file, target / need.place / file.name, known))
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


def copy(job: Copy, tell: Tell = lambda count: None) -> tuple[str, bool]:
    """Put one file there; its sum, and whether it had to be copied. A FleetError says what kept it from being right.

    A file of the same size and sum is left alone. What was cut off lies beside, and is written anew.
    """
    if _size(job.target) == job.source.size:
        its = _digest(job.source.path, tell)
        _refuse_other(job, its)
        if _digest(job.target) == its:
            return its, False
    beside = job.target.with_name(f".{job.target.name}{PART}")
    its = _write(job, beside, tell)
    try:
        _refuse_other(job, its)
        if _digest(beside) != its:
            what, mend = "what was read back differs from what was written", "the disk is not sound: use another"
            raise FleetError(error("BUNDLE-CHECKSUM", str(job.target), what, mend))
        beside.replace(job.target)
    except OSError as exc:
        raise FleetError(unwritable(job.target, exc)) from exc
    finally:
        beside.unlink(missing_ok=True)
    return its, True


def _refuse_other(job: Copy, its: str) -> None:
    if job.sha256 is not None and its != job.sha256:
        raise FleetError(differs(job.source.path, f"{its[:12]}..., not {job.sha256[:12]}..."))


def _digest(path: Path, tell: Tell = lambda count: None) -> str:
    try:
        return digest(path, tell)
    except OSError as exc:
        raise FleetError(unreadable(path, exc)) from exc


def _write(job: Copy, beside: Path, tell: Tell) -> str:
    """Copies and sums up in one reading."""
    its = hashlib.sha256()
    try:
        source = job.source.path.open("rb")
    except OSError as exc:
        raise FleetError(unreadable(job.source.path, exc)) from exc
    with source:
        try:
            with beside.open("wb") as file:
                while piece := _piece(source.read, job.source.path):
                    its.update(piece)
                    file.write(piece)
                    tell(len(piece))
                file.flush()
                os.fsync(file.fileno())
        except (OSError, FleetError) as exc:
            beside.unlink(missing_ok=True)
            if isinstance(exc, FleetError):
                raise
            raise FleetError(unwritable(job.target, exc)) from exc
    return its.hexdigest()


def _piece(read: Callable[[int], bytes], path: Path) -> bytes:
    try:
        return read(CHUNK)
    except OSError as exc:
        raise FleetError(unreadable(path, exc)) from exc


def unwritable(path: Path, exc: OSError) -> Finding:
    """What is said where a file of the bundle cannot be written."""
    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "free some space there; what is copied stays" if full else "mend the rights of its folder, or name another"
    return error("BUNDLE-WRITE", str(path), f"cannot write: {(exc.strerror or str(exc)).lower()}", mend)


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
    bundle: Bundle, fresh: dict[str, str], tell: Tell = lambda count: None
) -> tuple[dict[str, tuple[int, str]], list[Finding]]:
    """Size and sum of every file of a bundle, for SHA256SUMS; ``fresh`` are those that this run has just proved.

    A file that was listed keeps its sum: where its content is another by now, that is told, and not made right.
    """
    told: list[Finding] = []
    found: dict[str, tuple[int, str]] = {}
    for file in bundle.files:
        name = bundle.relative(file)
        its = fresh.get(name) or _digest(file.path, tell)
        if file.sha256 is not None and file.sha256 != its and name not in fresh:
            told.append(differs(file.path))
            its = file.sha256
        found[name] = (file.size, its)
    return found, told
