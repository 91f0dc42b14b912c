"""The catalogue of versions that go together: one file under files/catalogue/ is one row, a stack.

From the driver up to the image, with the patterns of the vendors' package files and their checksums. A recipe or an
inventory names its row by ``catalogue``; a path to a .yaml file is a row of the user's own.
"""

from __future__ import annotations

import contextlib
import re
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.version import Version
from pydantic import Field, ValidationError, field_validator

from fleet import FILES, versions, yamlfile
from fleet.findings import Finding, FleetError, error, warning
from fleet.recipe import PlatformName, Strict, check_image, check_version
from fleet.topology import Plan

FOLDER = FILES / "catalogue"
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]+~-]+\Z")
_VERSION = re.compile(r"[0-9A-Za-z.*+~:-]+\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9._+~-]+\Z")
_PACKAGE_NAME = re.compile(r"[a-z0-9][A-Za-z0-9.+-]*\Z")


class Package(Strict):
    """A file of a vendor, or several that are one (for each architecture): ``pattern`` may hold {arch}.

    ``sha256`` maps names of files to their sums, as far as they are known.
    """

    pattern: str
    sha256: dict[str, str] = Field(default_factory=dict)

    @field_validator("pattern")
    @classmethod
    def _is_pattern(cls, value: str) -> str:
        if not _PATTERN.match(value.replace("{arch}", "")):
            raise ValueError(f"{value!r} is no pattern of a file name; write a name with * and {{arch}}, no folder")
        return value

    @field_validator("sha256")
    @classmethod
    def _are_sums(cls, value: dict[str, str]) -> dict[str, str]:
        for name, digest in value.items():
            if not _FILE_NAME.match(name):
                raise ValueError(f"{name!r} is no file name; write it as the vendor does, without a folder")
            if not re.match(r"[0-9a-f]{64}\Z", digest):
                raise ValueError(f"the sum of {name} is no SHA-256; write its 64 digits, a-f in lower case")
        return value

    def for_arch(self, arch: str) -> str:
        return self.pattern.replace("{arch}", arch)


def _quoted(value: object) -> object:
    """A version that YAML takes for a number: 13.10 would become 13.1."""
    if isinstance(value, (int, float)):
        raise ValueError(f"{value} is a number to YAML; write the version in quotes")
    return value


class Part(Strict):
    """A version, and the packages that bring it.

    ``version`` is exact where a source tells it; else a pattern: ``580.*``, or ``*`` for what the vendor's package is.
    """

    version: str
    packages: tuple[Package, ...] = ()

    @field_validator("version", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        return _quoted(value)

    @field_validator("version")
    @classmethod
    def _is_version(cls, value: str) -> str:
        if not _VERSION.match(value):
            raise ValueError(f"{value!r} is no version; write it like 25.5.1, 580.* or *")
        return value

    @property
    def exact(self) -> bool:
        """Whether the version is one alone."""
        return "*" not in self.version

    def fits(self, found: str) -> bool:
        """Whether what a host has is this version; vendors write 25.3.RC1 and 25.3.rc1 for the same."""
        return fnmatchcase(found.strip().lower(), self.version.lower())


class GpuDriver(Part):
    """The driver of GPUs comes in packages of the distribution: names by family of distributions.

    ``{version}`` in them is the exact version; all of them are held.
    """

    apt: tuple[str, ...] = ()
    dnf: tuple[str, ...] = ()
    fabric_manager: bool = True

    @field_validator("apt", "dnf")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _PACKAGE_NAME.match(name.replace("{version}", "0")):
                raise ValueError(f"{name!r} is no package name; write it as apt or dnf does")
        return value

    @property
    def branch(self) -> int | None:
        """The first number of the version: 580."""
        first = self.version.split(".")[0]
        return int(first) if first.isdigit() else None


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
    cuda: str | None = Field(None, pattern=r"^[0-9]+(\.[0-9]+)?$")
    vllm: str
    vllm_ascend: str | None = None
    image: str
    digest: str | None = Field(None, pattern=r"^sha256:[0-9a-f]{64}$")
    notes: tuple[str, ...] = ()

    @field_validator("vllm", "vllm_ascend", "cuda", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        return _quoted(value)

    @field_validator("vllm", "vllm_ascend")
    @classmethod
    def _is_version(cls, value: str | None) -> str | None:
        return value if value is None else check_version(value)

    @field_validator("image")
    @classmethod
    def _is_image(cls, value: str) -> str:
        return check_image(value)

    @property
    def packages(self) -> tuple[Package, ...]:
        """Files of vendors, of all parts."""
        parts = (self.driver, self.firmware, self.gpu_driver, self.toolkit, self.cann)
        return tuple(package for part in parts if part for package in part.packages)

    @property
    def pinned(self) -> str:
        """Whether the sums of the vendors' packages are known: ``pinned``, ``not pinned``, ``1 of 3 pinned``."""
        known = sum(bool(package.sha256) for package in self.packages)
        if known == len(self.packages):
            return "pinned" if known else "-"
        return f"{known} of {len(self.packages)} pinned" if known else "not pinned"


def names() -> list[str]:
    """The rows there are, numbers in the order of numbers."""
    found = (path.stem for path in FOLDER.glob("*.yaml"))
    return sorted(found, key=lambda name: [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.findall(r"\d+|\D+", name)


def all_rows() -> tuple[Stack, ...]:
    """The rows that come with the project, in the order of their names."""
    return tuple(load(FOLDER / f"{name}.yaml") for name in names())


def find(name: str) -> Stack:
    """The row of this name, or of a .yaml file's path; a FleetError names the nearest."""
    where, what = f"catalogue {name!r}", "there is no such row"
    mend = yamlfile.nearest(name, names()) + ", or give the path of a .yaml file"
    candidates = [FOLDER / f"{name}.yaml"] if "/" not in name else []
    if name.endswith((".yaml", ".yml")):
        candidates.append(Path(name))
        if "/" in name:
            what = f"there is no such file, seen from {Path.cwd()}"
            mend = "mend the path, or name a row: fleet catalogue lists them"
    for path in candidates:
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if path.is_file():
                return load(path)
            if path.exists():
                what = "this is no file"
    raise FleetError(error("CATALOGUE-NAME", where, what, mend))


def load(path: Path) -> Stack:
    """Read and validate one row; a FleetError carries every fault found, with its line."""
    document = yamlfile.read(path, "CATALOGUE-READ")
    if not isinstance(document.data, dict):
        what = f"a row is a mapping of keys, not {type(document.data).__name__}"
        raise FleetError(error("CATALOGUE-READ", document.where(()), what, "start with title:, platform:, source:"))
    if "name" in document.data:
        where = document.where(("name",))
        raise FleetError(error("CATALOGUE-KEY", where, "unknown key name", "remove it: the file's name is the row's"))
    try:
        return Stack.model_validate({**document.data, "name": path.stem})
    except ValidationError as exc:
        raise FleetError(*yamlfile.explain(exc, document, Stack, "CATALOGUE-KEY")) from exc


def name_of(plan: Plan) -> str | None:
    """The row that a plan names: the inventory's word goes before the recipe's."""
    return plan.fleet.settings.catalogue or plan.recipe.catalogue


def of_plan(plan: Plan) -> Stack | None:
    """The row of a plan; None where it names none, a FleetError where there is no such row."""
    name = name_of(plan)
    return find(name) if name else None


def check(stack: Stack) -> list[Finding]:
    """Whether a row holds against files/versions: what its source says of driver, CANN or CUDA, engine and image."""
    return [*_whole(stack), *_ascend(stack), *_nvidia(stack), *_image(stack)]


def _where(stack: Stack, key: str) -> str:
    return f"catalogue {stack.name} {key}"


def _whole(stack: Stack) -> list[Finding]:
    """A row has what its machine family needs, and nothing of the other's."""
    ascend, nvidia = stack.platform.startswith("ascend"), stack.platform == "nvidia"
    wanted = ("driver", "cann", "vllm_ascend") if ascend else ("gpu_driver", "cuda") if nvidia else ()
    strange = ("gpu_driver", "toolkit", "cuda") if ascend else ("driver", "firmware", "cann", "vllm_ascend")
    found = [
        error("CATALOGUE-PART", _where(stack, key), f"a row for {stack.platform} needs {key}", f"add {key}")
        for key in wanted
        if getattr(stack, key) is None
    ]
    return found + [
        error(
            "CATALOGUE-PART",
            _where(stack, key),
            f"{key} does not belong in a row for {stack.platform}",
            f"remove {key}",
        )
        for key in strange
        if getattr(stack, key) is not None
    ]


def _ascend(stack: Stack) -> list[Finding]:
    """The HDK carries the CANN, and the plugin is built with it and with this vLLM."""
    found = []
    cann = stack.cann.version if stack.cann else None
    if cann and stack.driver and versions.driver_fits(cann, stack.driver.version) is False:
        rule = versions.drivers_of(cann)
        what = f"HDK {stack.driver.version} does not carry CANN {cann}"
        source = rule.source if rule else ""
        found.append(error("CATALOGUE-DRIVER", _where(stack, "driver"), what, f"choose HDK {rule}", source=source))
    release = versions.release_of(stack.vllm_ascend) if stack.vllm_ascend else None
    if release is None:
        return found
    mend = "give the row one release's versions, see files/versions/vllm-ascend.yaml"
    if Version(stack.vllm) != Version(release.vllm):
        what = f"vllm-ascend {release.vllm_ascend} is built for vLLM {release.vllm}, not {stack.vllm}"
        found.append(error("CATALOGUE-ENGINE", _where(stack, "vllm"), what, mend))
    if cann and cann.upper() != release.cann.upper():
        what = f"vllm-ascend {release.vllm_ascend} is built with CANN {release.cann}, not {cann}"
        found.append(error("CATALOGUE-ENGINE", _where(stack, "cann"), what, mend))
    return found


def _nvidia(stack: Stack) -> list[Finding]:
    """The driver's branch runs the CUDA."""
    if not stack.gpu_driver or not stack.cuda:
        return []
    least, branch = versions.driver_branch_for(_cuda(stack.cuda)), stack.gpu_driver.branch
    if least is None or branch is None or branch >= least:
        return []
    what = f"driver {stack.gpu_driver.version} does not run CUDA {stack.cuda}"
    source = "CUDA compatibility guide"
    mend = f"choose branch {least} or later"
    return [error("CATALOGUE-DRIVER", _where(stack, "gpu_driver"), what, mend, source=source)]


def _cuda(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _image(stack: Stack) -> list[Finding]:
    """The image's tag says the same version, machine family and CUDA, stays what it is, and works."""
    its, where, mend = versions.image(stack.image), _where(stack, "image"), "choose the tag of this version and family"
    found = []
    known = {"vllm-ascend": stack.vllm_ascend, "vllm-openai": stack.vllm}.get(its.short)
    if its.version is not None and known and its.version != Version(known):
        what = f"{stack.image} is {its.version}, the row is for {known}"
        found.append(error("CATALOGUE-IMAGE", where, what, mend))
    family = its.platform or ("nvidia" if its.short == "vllm-openai" else None)
    if family and family != stack.platform:
        what = f"{stack.image} is made for {family}, the row is for {stack.platform}"
        found.append(error("CATALOGUE-IMAGE", where, what, mend))
    cuda = versions.cuda_of(stack.image, stack.vllm) if stack.platform == "nvidia" else None
    if cuda and stack.cuda and any(a != b for a, b in zip(cuda, _cuda(stack.cuda), strict=False)):
        what = f"{stack.image} is built on CUDA {'.'.join(map(str, cuda))}, the row says {stack.cuda}"
        found.append(error("CATALOGUE-IMAGE", where, what, "give the row the image's CUDA, and a driver for it"))
    if its.bad:
        what = f"{stack.image}: {its.bad.says}"
        found.append(error("CATALOGUE-IMAGE", where, what, f"use the tag {its.bad.mend}", source=its.bad.source))
    if its.rolling and not stack.digest:
        what = f"{stack.image} is another image from one day to the next"
        found.append(warning("CATALOGUE-IMAGE", where, what, "name a release, or give the row a digest"))
    return found
