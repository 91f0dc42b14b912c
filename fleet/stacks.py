"""The catalogue of versions that go together: one file under files/catalogue/ is one row, a stack.

From the driver up to the image, with the patterns of the vendors' package files and their checksums. A recipe or an
inventory names its row by ``catalogue``.
"""

from __future__ import annotations

from pydantic import Field

from fleet.recipe import PlatformName, Strict


class Package(Strict):
    """A file of a vendor, or several that are one (for each architecture): ``pattern`` may hold {arch}.

    ``sha256`` maps names of files to their sums, as far as they are known.
    """

    pattern: str
    sha256: dict[str, str] = Field(default_factory=dict)

    def for_arch(self, arch: str) -> str:
        return self.pattern.replace("{arch}", arch)


class Part(Strict):
    """A version, and the packages that bring it."""

    version: str
    packages: tuple[Package, ...] = ()


class GpuDriver(Part):
    """The driver of GPUs comes in packages of the distribution: names by family of distributions.

    ``{version}`` in them is the exact version; all of them are held.
    """

    apt: tuple[str, ...] = ()
    dnf: tuple[str, ...] = ()
    fabric_manager: bool = True


class Stack(Strict):
    """One row: what is installed below an engine, and the engine that goes with it."""

    name: str = ""  # its file's, filled in by the reader
    title: str
    platform: PlatformName
    source: str
    driver: Part | None = None  # of NPUs
    firmware: Part | None = None
    gpu_driver: GpuDriver | None = None
    toolkit: Part | None = None  # nvidia-container-toolkit
    cann: Part | None = None  # for engines outside containers: toolkit, ops and nnal, in this order
    cuda: str | None = None
    vllm: str
    vllm_ascend: str | None = None
    image: str
    digest: str | None = Field(None, pattern=r"^sha256:[0-9a-f]{64}$")
    notes: tuple[str, ...] = ()


def find(name: str) -> Stack:
    """The row of this name; a FleetError names the nearest."""
    raise NotImplementedError
