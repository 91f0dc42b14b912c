"""The folder that a rack without internet is given: vendors' packages, images as tar files, a package repository.

bundle/SHA256SUMS            sums of all files, made by `fleet bundle`
bundle/packages/             .run files of vendors, as they are called there
bundle/images/               one tar file for each image
bundle/apt/, bundle/dnf/     repositories of the distribution's packages
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


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


def read(folder: Path) -> Bundle:
    """What a bundle holds; a FleetError where the folder or its SHA256SUMS cannot be read."""
    raise NotImplementedError
