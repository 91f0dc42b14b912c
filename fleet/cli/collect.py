"""Makes a bundle: vendors' files from folders, images with docker, packages with apt, and SHA256SUMS at the end."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from fleet import bundle as bundles
from fleet import bundle_copy, bundle_needs
from fleet.bundle import PART, File, size
from fleet.bundle_copy import Copy
from fleet.bundle_needs import APT, DOCKER_ARCH, IMAGES, PACKAGES, Need
from fleet.cli import closure
from fleet.cli.bundle import Asked, progress
from fleet.findings import Finding, FleetError, error

_PULL_SECONDS, _SAVE_SECONDS = 6 * 3600, 2 * 3600


def collect_into(folder: Path, asked: Asked, sources: Sequence[Path], packages: bool) -> list[Finding]:
    """All that can be had on this machine; findings of what could not, and the rest goes on without it.

    SHA256SUMS is written last, and whatever cut the run: the same line again goes on.
    """
    faults: list[Finding] = []
    files: list[File] = []
    for source in sources:
        found, unread = bundle_copy.search(source, asked.needs, folder)
        files += found
        faults += unread
        if not found:
            _say(f"{source}: nothing of what is needed lies there")
    bundle_copy.make_folders(folder, (PACKAGES, IMAGES))
    copies, several = bundle_copy.plan_copies(asked.needs, files, folder)
    faults += several
    fresh = _copied(folder, copies, faults)
    for need in asked.needs:
        if need.kind == "image":
            faults += _image(need, folder / IMAGES)
    if packages:
        faults += _packages(folder, asked, fresh)
    faults += _sums(folder, fresh)
    return faults


def _copied(folder: Path, copies: list[Copy], faults: list[Finding]) -> dict[str, str]:
    """Sums of what was copied or found to be right, by name."""
    full = bundle_copy.room(copies, folder)
    if full:
        faults += full
        return {}
    fresh: dict[str, str] = {}
    for job in copies:
        name = job.target.relative_to(folder).as_posix()
        try:
            with progress(name, job.source.size) as tell:
                fresh[name], new = bundle_copy.copy(job, tell)
            _say(f"{name}: {'copied' if new else 'is there'}, {size(job.source.size)}")
        except FleetError as exc:
            faults += exc.findings
    return fresh


def _image(need: Need, folder: Path) -> list[Finding]:
    """The image as a tar file, where it is not there yet."""
    target = folder / need.patterns[0]
    if any((folder / name).is_file() for name in need.patterns):
        return []
    beside = f".{target.name}{PART}"
    pull = ["docker", "pull", "--platform", f"linux/{DOCKER_ARCH[need.arch]}", need.image]
    if shutil.which("docker") is None:
        _say(f"{need.image}: docker is not on this machine. On one that has it, type")
        _say(f"    {shlex.join(pull)}")
        _say(f"    {shlex.join(['docker', 'save', '-o', target.name, need.image])}")
        _say(f"and give the folder of {target.name} with --from")
        return []
    _say(f"{need.image}: docker pull, then docker save")
    for command, seconds in ((pull, _PULL_SECONDS), (["docker", "save", "-o", beside, need.image], _SAVE_SECONDS)):
        said = _docker(command, folder, seconds)
        if said:
            (folder / beside).unlink(missing_ok=True)
            mend = "mend that, or save it elsewhere with docker save and give the file's folder with --from"
            return [error("BUNDLE-IMAGE", need.image, f"{shlex.join(command[:2])}: {said}", mend)]
    try:
        with (folder / beside).open("rb") as file:
            os.fsync(file.fileno())
        (folder / beside).replace(target)
    except OSError as exc:
        return [bundles.unwritable(target, exc)]
    return []


def _docker(command: list[str], folder: Path, seconds: int) -> str:
    """What went wrong in docker's words; empty where nothing did. Its progress goes to the terminal."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, timeout=seconds,
            check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it did not end within {seconds} s"
    except OSError as exc:
        return (exc.strerror or str(exc)).lower()
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines[-1][:300] if lines else f"exit code {done.returncode}")


def _packages(folder: Path, asked: Asked, fresh: dict[str, str]) -> list[Finding]:
    """The repository of apt; that of dnf is made on such a machine."""
    need = next((n for n in asked.needs if n.kind == "repository" and n.place == APT), None)
    if need is None:
        what = "no host takes packages of apt from a bundle"
        return [error("BUNDLE-PACKAGES", str(folder), what, "leave --packages out; see --system and package_source")]
    bundle_copy.make_folders(folder, (APT,))
    _drop_damaged(folder)
    arch = asked.arch or bundle_needs.arch_here()
    faults = closure.collect(folder / APT, need, arch, _say)
    index = folder / APT / need.patterns[0]
    if index.exists():
        fresh[f"{APT}/{index.name}"] = bundles.digest(index)
    return faults


def _drop_damaged(folder: Path) -> None:
    """apt takes a package of the right size for the right one: what is not right is taken away, and comes anew."""
    its, _ = bundles.scan(folder)
    for file in its.below(APT):
        if file.name.endswith(".deb") and file.sha256 and bundles.digest(file.path) != file.sha256:
            _say(f"{file.path}: damaged, downloaded again")
            file.path.unlink()


def _sums(folder: Path, fresh: dict[str, str]) -> list[Finding]:
    """SHA256SUMS of all that is there, written last."""
    its, faults = bundles.scan(folder)
    # What was listed and is not there any more, or was copied anew, is what this run mends.
    told = [fault for fault in faults if fault.rule != "BUNDLE-SUMS"]
    total = sum(file.size for file in its.files if its.relative(file) not in fresh)
    with progress("making sums", total) as tell:
        found, wrong = bundle_copy.sums(its, fresh, tell)
    bundles.write_sums(folder, found)
    _say(f"{folder / bundles.SUMS}: {len(found)} file{'s' * (len(found) != 1)}")
    return [*told, *wrong]


def _say(line: str) -> None:
    """What goes on, on standard error: standard output is for the list."""
    click.echo(line, err=True)
