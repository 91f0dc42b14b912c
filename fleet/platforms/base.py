"""The shape of a platform module: data, and three small functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.recipe import Engine


def _no_devices(indices: Sequence[int]) -> tuple[str, ...]:
    return ()


def _no_image(engine: Engine) -> str | None:
    return engine.image


@dataclass(frozen=True)
class Platform:
    """A machine family.

    ``network_env`` maps (address, interface) to the variables that bind collectives to one interface;
    ``devices`` maps device indices to device nodes; ``image`` names the vendor's image of an engine version.
    """

    name: str
    devices_per_host: int
    runtime: str
    network_env: Callable[[str, str], dict[str, str]]
    devices: Callable[[Sequence[int]], tuple[str, ...]] = _no_devices
    image: Callable[[Engine], str | None] = _no_image
    docker_options: Callable[[Sequence[int]], tuple[str, ...]] = _no_devices
    mounts: tuple[str, ...] = ()
    # Mounted besides where hosts work together.
    cluster_mounts: tuple[str, ...] = ()
    # Files that set the toolkit's paths, on a host and in the vendor's image: a unit reads no ~/.bashrc by itself.
    setup_files: tuple[str, ...] = ()
    container_setup_files: tuple[str, ...] = ()
    ray_env: Callable[[Sequence[int]], dict[str, str]] = lambda indices: {}
    # What keeps a service on some devices of a host apart from one on the others: ports, and, where no container
    # does it, which devices are seen.
    sharing_env: Callable[[Sequence[int]], dict[str, str]] = lambda indices: {}
    # Ports of a host that the family's own software takes for a service on these devices, and whose they are.
    own_ports: Callable[[Sequence[int]], tuple[range, str] | None] = lambda indices: None
    visible_env: Callable[[Sequence[int]], dict[str, str]] = lambda indices: {}
    limits: Mapping[str, str] = field(default_factory=dict)
