"""What the hosts of a plan need on a disk where there is no internet, and whether a bundle has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from fleet.bundle import Bundle, File, differs
from fleet.findings import Finding, FleetError, error
from fleet.prepare import base
from fleet.prepare.images import tar_name
from fleet.stacks import GpuDriver, Stack
from fleet.topology import Plan

PACKAGES, IMAGES, APT, DNF = "packages", "images", "apt", "dnf"
# What uname -m says, and what Docker and dpkg say for it.
DOCKER_ARCH = {"aarch64": "arm64", "x86_64": "amd64"}
_PACKED = (".gz", ".xz", ".zst")  # as an image's tar may be compressed
State = Literal["have", "missing", "several", "by hand"]
Checksum = Literal["ok", "unpinned", "WRONG", ""]


@dataclass(frozen=True)
class Need:
    """One thing that must be brought.

    ``patterns`` are of names of files in the folder ``place`` of the bundle: of an image one will do, else all are
    needed.
    """

    kind: Literal["package", "image", "repository", "weights"]
    what: str
    get: str  # where it comes from
    place: str = ""
    patterns: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    arch: str = ""  # of an image
    names: tuple[str, ...] = ()  # of a repository's packages
    optional: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # that the row asks of some of them: 580.*, 580.95.05
    bytes: int = 0  # where it is known before

    def exact(self, kind: str) -> list[str]:
        """Versions that are one alone, as apt's pins or dnf's names have them."""
        return sorted({f"{v}*" if kind == APT else v for v in self.versions.values() if "*" not in v})

    def asked(self, name: str) -> str:
        """A package as dnf is asked for it."""
        version = self.versions.get(name, "*")
        return name if "*" in version else f"{name}-{version}"


@dataclass(frozen=True)
class Held:
    """A need, and what the bundle has of it."""

    need: Need
    state: State
    checksum: Checksum = ""
    files: tuple[File, ...] = ()
    lacks: tuple[str, ...] = ()  # patterns, or names of packages, that nothing fits
    wrong: tuple[File, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files) or self.need.bytes

    @property
    def right(self) -> bool:
        """Whether nothing more need be done; what is carried by hand is not judged."""
        return self.state == "by hand" or (self.state == "have" and self.checksum != "WRONG")


def arch_here(machine: str | None = None) -> str:
    """This machine's architecture, as the hosts' is written."""
    return "aarch64" if (machine or os.uname().machine) in ("aarch64", "arm64") else "x86_64"


def arches(plan: Plan) -> tuple[str, ...]:
    """Architectures that the plan's machine family comes in."""
    return ("aarch64", "x86_64") if plan.recipe.platform.startswith("ascend") else ("x86_64",)


def needs(
    plan: Plan, stack: Stack | None, of: Sequence[str], kernels: Sequence[str] = (), system: str | None = None
) -> list[Need]:
    """All that the plan's hosts need, for these architectures; ``kernels`` are what uname -r says on them.

    ``system`` is their kind of packages, None where it is not told.
    """
    if stack is None and plan.recipe.platform != "cpu":
        what = "neither inventory nor recipe names a row of the catalogue"
        mend = "add catalogue = '...' to the group_data; fleet catalogue lists the rows"
        why = "it tells which driver the hosts need"
        raise FleetError(error("CATALOGUE-NAME", plan.fleet.source, what, mend, why))
    packages = [its for its in repositories(plan, stack, kernels) if system in (None, its.place)]
    return [*(_vendors(plan, stack, of) if stack else []), *_images(plan, of), *packages, *_weights(plan)]


def _vendors(plan: Plan, stack: Stack, of: Sequence[str]) -> list[Need]:
    """Driver and firmware; CANN where engines run outside containers."""
    native = any(unit.serves_model and not unit.image for unit in plan.units)
    hdk, cann = (part.version if part else "" for part in (stack.driver, stack.cann))
    parts = [
        ("driver", stack.driver, f"the vendor's support site, driver of Ascend HDK {hdk}"),
        ("firmware", stack.firmware, f"the vendor's support site, firmware of Ascend HDK {hdk}"),
        ("GPU driver", stack.gpu_driver, "the vendor's site"),
        ("container toolkit", stack.toolkit, "the vendor's site"),
        ("CANN", stack.cann if native else None, f"the vendor's community site, CANN {cann}"),
    ]
    found: list[Need] = []
    for title, part, get in parts:
        for package in part.packages if part else ():
            what = f"{title} {part.version}" if part and part.exact else title
            for arch in of if "{arch}" in package.pattern else ("",):
                its = f"{what}, {arch}" if arch else what
                found.append(Need("package", its, get, PACKAGES, (package.for_arch(arch),), package.sha256))
    return found


def _images(plan: Plan, of: Sequence[str]) -> list[Need]:
    """A tar file is of one architecture: where hosts may have either, its name says which."""
    names = sorted({unit.image for unit in plan.units if unit.image})
    return [_image(name, arch, len(of) == 1) for name in names for arch in of]


def _image(name: str, arch: str, alone: bool) -> Need:
    with_arch, plain = tar_name(name, DOCKER_ARCH[arch]), tar_name(name)
    tars = (plain, with_arch) if alone else (with_arch,)
    what = f"image {name}" if alone else f"image {name}, {arch}"
    patterns = tuple(tar + packed for tar in tars for packed in ("", *_PACKED))
    get = "--collect does it where docker is: docker pull, docker save"
    return Need("image", what, get, IMAGES, patterns, image=name, arch=arch)


# What other parts of the preparation install, by package manager. Of names with | between them one will do:
# distributions differ. Beside Docker is what newer releases have apart from Docker's own package.
_TIME, _TOOLKIT, _FRONT_DOOR = "chrony", "nvidia-container-toolkit", "haproxy"
_DOCKER = {APT: "docker.io", DNF: "docker-ce|docker-engine|moby-engine|docker"}
_BESIDE_DOCKER = {APT: ("docker-cli", "apparmor"), DNF: ()}
_REPOSITORIES = (
    (APT, "Debian, Ubuntu", "Packages", "--collect with --packages, on a machine with the hosts' release"),
    (DNF, "openEuler, RHEL", "repomd.xml", "dnf download and createrepo_c, see docs/rack-offline.md"),
)


def repositories(plan: Plan, stack: Stack | None, kernels: Sequence[str] = ()) -> list[Need]:
    """The distribution's packages, for each family; none where all hosts have a source of packages inside the rack."""
    nodes, platform = plan.fleet.nodes, plan.recipe.platform
    if all(node.settings.package_source for node in nodes):
        return []
    ascend, firewall = platform.startswith("ascend"), any(node.settings.firewall for node in nodes)
    whose = {"every", "ascend" if ascend else "", "firewall" if firewall else ""}
    # A driver's module is built with the kernel's headers, whoever made the driver.
    own = [n for n in base.table() if n.whose in whose or (platform != "cpu" and "{kernel}" in n.apt)]
    containers = any(unit.image for unit in plan.units)
    gpu = stack.gpu_driver if stack else None
    found = []
    for kind, title, index, get in _REPOSITORIES:
        drivers = _drivers(gpu, kind) if gpu else []
        table = [(n.apt if kind == APT else n.dnf, n.optional) for n in own]
        names = {_TIME, *drivers, *(name for name, optional in table if not optional)}
        optional = {name.replace("{kernel}", k) for name, optional in table if optional for k in kernels or ("",)}
        if containers:
            names |= {_DOCKER[kind], *([_TOOLKIT] if gpu else [])}
            optional |= {*_BESIDE_DOCKER[kind]}
        if any(unit.argv[:1] == (_FRONT_DOOR,) for unit in plan.units):
            names.add(_FRONT_DOOR)
        versions = {name: gpu.version for name in drivers} if gpu else {}
        versions |= {_TOOLKIT: stack.toolkit.version} if stack and stack.toolkit else {}
        found.append(
            Need(
                "repository",
                f"packages for {title}",
                get,
                kind,
                (index,),
                versions=versions,
                names=tuple(sorted(n for n in names if "{" not in n)),
                # Without a kernel's release its headers have no name.
                optional=tuple(sorted(n for n in optional if not n.endswith("-"))),
            )
        )
    return found


def _drivers(gpu: GpuDriver, kind: str) -> list[str]:
    return [n.replace("{version}", gpu.version) if gpu.exact else n for n in (gpu.apt if kind == APT else gpu.dnf)]


def _weights(plan: Plan) -> list[Need]:
    model = plan.recipe.model
    place = f"{plan.fleet.settings.weights_dir}/{model.name}"
    get = f"from the model's hub; copied by hand for now, to {place} on every host with an engine"
    return [Need("weights", f"weights {model.name}", get, bytes=int((model.weights_gb or 0) * 10**9))]


def held(need: Need, bundle: Bundle, digest: Callable[[File], str]) -> Held:
    """What the bundle has of a need. ``digest`` reads a file; it is asked only where a sum is known."""
    if need.kind == "weights":
        return Held(need, "by hand")
    place = [f for f in bundle.below(need.place) if need.place]
    fitting = {p: [f for f in bundle.find(p) if f in place] for p in need.patterns}
    lacks = [p for p, files in fitting.items() if not files]
    if need.kind == "image":
        lacks = lacks[:1] if len(lacks) == len(fitting) else []
    lacks += [_titled(need, n) for n in need.names if not any(_is_package(f.name, n, need) for f in place)]
    files = tuple(place) if need.kind == "repository" else tuple(f for p in need.patterns for f in fitting[p])
    state: State = "missing" if lacks else "have"
    if need.kind != "repository" and len(files) > 1:
        state = "several"
    wrong, unpinned = [], False
    for file in files:
        known = need.sha256.get(file.name) or file.sha256
        unpinned = unpinned or known is None
        if known is not None and digest(file) != known:
            wrong.append(file)
    checksum: Checksum = "" if not files else "WRONG" if wrong else "unpinned" if unpinned else "ok"
    return Held(need, state, checksum, files, tuple(lacks), tuple(wrong))


def _titled(need: Need, name: str) -> str:
    version = need.versions.get(name, "*")
    return name if version == "*" else f"{name} {version}"


def _is_package(file: str, name: str, need: Need) -> bool:
    """Whether a file is this package in a version that will do: ``curl_7.88_amd64.deb``, ``curl-7.88-1.x86_64.rpm``."""
    if "|" in name:
        return any(_is_package(file, one, need) for one in name.split("|"))
    mark, end = ("_", ".deb") if need.place == APT else ("-", ".rpm")
    rest = file.removeprefix(name + mark)
    if rest == file or not rest[:1].isdigit() or not file.endswith(end):
        return False
    version = re.split("[-_]", re.sub(r"^[0-9]+(%3a|:)", "", rest), maxsplit=1)[0]
    return fnmatchcase(version, need.versions.get(name, "*"))


def findings(found: Iterable[Held]) -> list[Finding]:
    """What is wrong with what is there; what is missing is no fault of a file."""
    told = []
    for its in found:
        told += [differs(file.path) for file in its.wrong]
        if its.state == "several":
            names = ", ".join(file.name for file in its.files)
            what = f"{len(its.files)} files fit {its.need.patterns[0]}: {names}"
            told.append(error("BUNDLE-TWO", its.need.what, what, "keep the one that you mean"))
    return told


def either(found: Sequence[Held]) -> list[Held]:
    """Where the hosts' family of distributions is not told, one whole repository will do."""
    whole = [its for its in found if its.need.kind == "repository" and its.right]
    return [its for its in found if its.need.kind != "repository" or not whole or its.right]
