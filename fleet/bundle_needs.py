"""What the hosts of a plan need on a disk where there is no internet, and whether a bundle has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fleet.bundle import Bundle, File, differs
from fleet.findings import Finding, FleetError, error
from fleet.prepare import base
from fleet.prepare.images import tar_name
from fleet.stacks import Package, Stack
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
    bytes: int = 0  # where it is known before


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


# What other parts of the preparation install, by package manager.
_TIME = ("chrony",)
# Of names with | between them one will do: distributions differ.
_DOCKER = {APT: "docker.io", DNF: "docker-ce|docker-engine|moby-engine|docker"}
# What newer releases of a distribution have apart from Docker's own package.
_BESIDE_DOCKER = {APT: ("docker-cli", "apparmor"), DNF: ()}
_REPOSITORIES = (
    (APT, "Debian, Ubuntu", "Packages", "--collect with --packages, on a machine with the hosts' release"),
    (DNF, "openEuler, RHEL", "repomd.xml", "dnf download and createrepo_c, see docs/rack-offline.md"),
)
_TOOLKIT = "nvidia-container-toolkit"
_FRONT_DOOR = "haproxy"


@dataclass(frozen=True)
class Wanted:
    """Packages of one family of distributions; those that are optional are in some repositories alone."""

    names: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def wanted(plan: Plan, stack: Stack | None, kernels: Sequence[str] = ()) -> dict[str, Wanted]:
    """The distribution's packages that hosts need, by kind; ``kernels`` are what uname -r says on them."""
    platform, firewall = plan.recipe.platform, any(node.settings.firewall for node in plan.fleet.nodes)
    whose = {"every", *(["ascend"] if platform.startswith("ascend") else []), *(["firewall"] if firewall else [])}
    # A driver's module is built with the kernel's headers, whoever made the driver.
    builds = platform != "cpu"
    own = [n for n in base.table() if n.whose in whose or (builds and "{kernel}" in n.apt)]
    door = [_FRONT_DOOR] if any(unit.argv[:1] == (_FRONT_DOOR,) for unit in plan.units) else []
    containers = any(unit.image for unit in plan.units)
    gpu = stack.gpu_driver if stack else None
    found = {}
    for kind in (APT, DNF):
        drivers = (gpu.apt if kind == APT else gpu.dnf) if gpu else ()
        more = [*_TIME, *([_DOCKER[kind]] if containers else []), *([_TOOLKIT] if gpu and containers else []), *door]
        names = {_name(need, kind) for need in own if not need.optional} | {*more, *drivers}
        optional = {_name(need, kind).replace("{kernel}", k) for need in own if need.optional for k in kernels or ("",)}
        optional |= {*(_BESIDE_DOCKER[kind] if containers else ())}
        # Without a kernel's release its headers have no name.
        sound = {n for n in optional if not n.endswith("-")}
        found[kind] = Wanted(tuple(sorted(n for n in names if "{" not in n)), tuple(sorted(sound)))
    return found


def _name(need: base.Need, kind: str) -> str:
    return need.apt if kind == APT else need.dnf


def needs(plan: Plan, stack: Stack | None, of: Sequence[str], packages: Mapping[str, Wanted]) -> list[Need]:
    """All that the plan's hosts need, for these architectures; ``packages`` as ``wanted`` gives them, of the families
    of distributions that the hosts have.
    """
    if stack is None and plan.recipe.platform != "cpu":
        what = "neither inventory nor recipe names a row of the catalogue"
        mend = "add catalogue = '...' to the group_data; fleet catalogue lists the rows"
        why = "it tells which driver the hosts need"
        raise FleetError(error("CATALOGUE-NAME", plan.fleet.source, what, mend, why))
    return [*_vendors(plan, stack, of), *_images(plan, of), *_repositories(plan, packages), *_weights(plan)]


def _vendors(plan: Plan, stack: Stack | None, of: Sequence[str]) -> list[Need]:
    """Driver and firmware; CANN where engines run outside containers."""
    if stack is None:
        return []
    native = any(unit.serves_model and not unit.image for unit in plan.units)
    parts = [
        ("driver", stack.driver, f"the vendor's support site, driver of Ascend HDK {_of(stack.driver)}"),
        ("firmware", stack.firmware, f"the vendor's support site, firmware of Ascend HDK {_of(stack.driver)}"),
        ("GPU driver", stack.gpu_driver, "the vendor's site"),
        ("container toolkit", stack.toolkit, "the vendor's site"),
        ("CANN", stack.cann if native else None, f"the vendor's community site, CANN {_of(stack.cann)}"),
    ]
    found: list[Need] = []
    for title, part, get in parts:
        for package in part.packages if part else ():
            version = f" {part.version}" if part and part.exact else ""
            found += [_package(f"{title}{version}", package, arch, get) for arch in _arches(package, of)]
    return found


def _of(part: object) -> str:
    return str(getattr(part, "version", "")) if part else ""


def _arches(package: Package, of: Sequence[str]) -> Iterable[str]:
    return of if "{arch}" in package.pattern else ("",)


def _package(what: str, package: Package, arch: str, get: str) -> Need:
    pattern = package.for_arch(arch)
    title = f"{what}, {arch}" if arch else what
    return Need("package", title, get, PACKAGES, (pattern,), package.sha256)


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


def _repositories(plan: Plan, packages: Mapping[str, Wanted]) -> list[Need]:
    """Nothing where all hosts have a source of packages inside the rack."""
    if all(node.settings.package_source for node in plan.fleet.nodes):
        return []
    return [
        Need("repository", f"packages for {title}", get, kind, (index,), names=its.names, optional=its.optional)
        for kind, title, index, get in _REPOSITORIES
        if (its := packages.get(kind))
    ]


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
    lacks += [n for n in need.names if not any(_is_package(f.name, n, need.place) for f in place)]
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


def _is_package(file: str, name: str, kind: str) -> bool:
    """Whether a file is a version of this package: ``curl_7.88_amd64.deb``, ``curl-7.88-1.x86_64.rpm``."""
    if "|" in name:
        return any(_is_package(file, one, kind) for one in name.split("|"))
    if kind == APT:
        return file.startswith(f"{name}_") and file.endswith(".deb")
    return file.startswith(f"{name}-") and file[len(name) + 1 : len(name) + 2].isdigit() and file.endswith(".rpm")


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
