"""Mounts below a directory of ours: found in the kernel's own table and taken away innermost first."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.errors import LabError
from lab.processes import is_within
from lab.shell import run

TABLE = Path("/proc/self/mounts")


def mounts_below(directory: Path, table: str | None = None) -> list[Path]:
    """Mount points at or below the directory, innermost first."""
    text = TABLE.read_text() if table is None else table
    points = [unescape(line.split()[1]) for line in text.splitlines() if line.strip()]
    return [Path(point) for point in reversed(points) if is_within(point, directory)]


def unescape(field: str) -> str:
    """Undo the kernel's octal escapes for space, tab, newline and backslash."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def unmount_below(directory: Path) -> None:
    """Unmount everything at or below the directory; a busy one is detached, so that nothing is left in the table."""
    for point in mounts_below(directory):
        try:
            run(["umount", point], doing=f"unmounting {point}", timeout=30)
        except LabError:
            run(["umount", "--lazy", point], doing=f"unmounting {point}", timeout=30)


def remove_tree(path: Path) -> None:
    """Delete a directory of ours; never through a mount that a dead run left in it (it may be the machine's /proc)."""
    unmount_below(path)
    if left := mounts_below(path):
        raise LabError(
            f"{left[0]} is still mounted, so {path} is not deleted; unmount it and run `fleet lab down` again"
        )
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Mount `target` as a writable view of `lower`; what is written lands in `upper`."""
    for folder in (upper, work, target):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    run(
        ["mount", "-t", "overlay", "overlay", "-o", options, target],
        doing=f"mounting the file system of {target}",
        timeout=30,
    )
