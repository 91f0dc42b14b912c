"""A release: all rendered files of one host, named by the hash of their content."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from fleet import render, sharing
from fleet.topology import Plan, Unit


@dataclass(frozen=True)
class Release:
    """Files by path within the release: (mode, text); ``unit_ids`` tell which units a change restarts."""

    id: str
    files: Mapping[str, tuple[int, str]]
    unit_ids: Mapping[str, str]
    home: str

    @property
    def path(self) -> str:
        return f"{self.home}/releases/{self.id}"


def build(plan: Plan, host: str, interface: str | None) -> Release:
    """The release of one host. ``interface`` is the one that carries the host's address."""
    address = plan.fleet.node(host).address
    files: dict[str, tuple[int, str]] = {}
    unit_ids: dict[str, str] = {}
    for unit in plan.units_of(host):
        bound = unit.with_interface(address, interface) if interface else unit
        its_files = render.unit_files(plan, bound)
        unit_ids[unit.name] = _unit_id(plan, unit, its_files)
        files |= its_files
        files[f"run/{unit.name}.id"] = (0o644, unit_ids[unit.name] + "\n")
    files["manifest.json"] = (0o644, _manifest(plan, host, unit_ids))
    return Release(digest(files), dict(sorted(files.items())), unit_ids, plan.home)


def _manifest(plan: Plan, host: str, unit_ids: Mapping[str, str]) -> str:
    """What runs on this host, in one line: also how a run of another service learns what is taken."""
    claims = sharing.claims(plan, plan.fleet.node(host))
    data = {
        "recipe": plan.fleet.recipe,
        "service": plan.fleet.settings.service,
        "engine": plan.recipe.engine.vllm,
        "units": unit_ids,
        "devices": sorted(claims.devices),
        "ports": {str(port): user for port, user in sorted(claims.ports.items())},
    }
    return json.dumps(data, sort_keys=True) + "\n"


def digest(files: Mapping[str, tuple[int, str]]) -> str:
    """Twelve hexadecimal digits over paths, modes and content."""
    total = hashlib.sha256()
    for path, (mode, text) in sorted(files.items()):
        total.update(f"{path}\0{mode:o}\0{len(text.encode())}\0{text}\0".encode())
    return total.hexdigest()[:12]


def _unit_id(plan: Plan, unit: Unit, files: Mapping[str, tuple[int, str]]) -> str:
    """Changes when the unit must be started again: its files, or a command line of its instance's other hosts."""
    instance = plan.instance(unit.instance)
    peers = render.instance_text(plan, instance.name) if instance and instance.is_group else ""
    return hashlib.sha256((digest(files) + peers).encode()).hexdigest()[:12]


def archive(release: Release) -> bytes:
    """The files as a tar whose bytes depend on nothing but the content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, (mode, text) in release.files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text.encode()), mode
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()
