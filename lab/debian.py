"""Debian packages made here, and a flat repository of them: apt reads it as `deb [trusted=yes] file:/FOLDER ./`."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab.errors import LabError
from lab.shell import run
from lab.sim.layout import Files

MAINTAINER = "the vllm-fleet lab"  # of all stand-ins, by which a host finds them again
CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer} <lab@localhost>
Section: misc
Priority: optional
{depends}Description: the lab's stand-in for {name}
 It does no more than a test needs.
"""
SCRIPT = "#!/bin/sh\nset -e\n{text}exit 0\n"


def deb(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Files | None = None,
    depends: str = "",
    postinst: str = "",
    postrm: str = "",
    architecture: str = "all",
    links: Mapping[str, str] | None = None,
) -> Path:
    """Make NAME_VERSION_ARCHITECTURE.deb in `folder`; `files` is path -> (text, mode), `links` path -> target.

    `postinst` and `postrm` are shell text that runs under `set -e`. Raises LabError.
    """
    path = folder / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        for file, (text, mode) in (files or {}).items():
            target = tree / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(mode)
        for link, target_path in (links or {}).items():
            place_of_link = tree / link.lstrip("/")
            place_of_link.parent.mkdir(parents=True, exist_ok=True)
            place_of_link.symlink_to(target_path)
        control = tree / "DEBIAN"
        control.mkdir(parents=True)
        for folder_of in (tree, *(found for found in tree.rglob("*") if found.is_dir() and not found.is_symlink())):
            folder_of.chmod(0o755)
        needs = f"Depends: {depends}\n" if depends else ""
        (control / "control").write_text(
            CONTROL.format(name=name, version=version, architecture=architecture, maintainer=MAINTAINER, depends=needs)
        )
        for script, text in (("postinst", postinst), ("postrm", postrm)):
            if text:
                (control / script).write_text(SCRIPT.format(text=text))
                (control / script).chmod(0o755)
        command: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, path]
        run(command, doing=f"making the package {name}", timeout=60)
    return path


def apt_repository(folder: Path) -> Path:
    """Make the folder's .deb files a flat repository: Packages, Packages.gz and Release; several versions of one
    package may stand in it. Call it again after a change. Raises LabError.
    """
    found = sorted(folder.glob("*.deb"))
    if not found:
        raise LabError(f"{folder} has no .deb file to make a repository of")
    text = "\n".join(entry(path) for path in found)
    (folder / "Packages").write_text(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    lines = ["Origin: vllm-fleet lab", "Label: vllm-fleet lab", "Suite: lab", "Codename: lab"]
    lines += ["Date: Thu, 01 Jan 2026 00:00:00 UTC", "SHA256:"]
    for name in ("Packages", "Packages.gz"):
        content = (folder / name).read_bytes()
        lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
    (folder / "Release").write_text("\n".join(lines) + "\n")
    return folder


def entry(path: Path) -> str:
    """A package's paragraph of the index: its own control fields, and where and what its file is."""
    control = run(["dpkg-deb", "--field", path], doing=f"reading {path.name}", timeout=60).rstrip("\n")
    head, _, description = control.partition("\nDescription:")
    content = path.read_bytes()
    where = f"Filename: ./{path.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}"
    return f"{head}\n{where}\nDescription:{description}\n"
