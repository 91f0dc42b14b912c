"""What a plan is made of: instances of hosts, units on each, and the order in which they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fleet.inventory import Fleet, Node
from fleet.platforms import PLATFORMS, Platform
from fleet.recipe import Recipe, Role, RoleName

# Where releases lie on a host, and the link to the one that runs.
ROOT = "/etc/vllm-fleet"
CURRENT = f"{ROOT}/current"

Kind = Literal["engine", "proxy", "ray"]


@dataclass(frozen=True)
class Member:
    """One host of an instance: the data-parallel ranks ``[start_rank, start_rank + local_size)``."""

    node: Node
    start_rank: int
    local_size: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """The hosts that form one vLLM server: the unit of restart, drain and rollback."""

    name: str
    role: RoleName
    index: int  # over all instances of the plan: engine ids and port offsets follow from it
    spec: Role
    members: tuple[Member, ...]
    api_port: int
    rpc_port: int
    kv_port: int | None

    @property
    def head(self) -> Node:
        return self.members[0].node

    @property
    def url(self) -> str:
        return f"http://{self.head.at(self.api_port)}"

    @property
    def engine_id(self) -> str:
        return str(self.index)


@dataclass(frozen=True)
class Unit:
    """One systemd service on one host. ``argv`` is the program's own command, whatever wraps it."""

    name: str
    host: str
    role: str
    instance: str
    kind: Kind
    runtime: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    devices: tuple[str, ...] = ()
    docker_options: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    workdir: str = "/"
    setup_files: tuple[str, ...] = ()
    inside: str | None = None  # the container of another unit, in which this one runs
    shm_size: str = "1g"
    venv: str | None = None
    stop_seconds: int = 60
    limits: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # units of the same host that must run first
    config: str | None = None  # a template under files/ that the unit reads

    @property
    def at(self) -> str:
        return f"{self.name}@{self.host}"

    def with_interface(self, address: str, name: str) -> Unit:
        """The unit with the interface's name in the place that the plan leaves open."""
        marker = open_interface(address)
        env = {key: value.replace(marker, name) for key, value in self.env.items()}
        return replace(self, env=env)


@dataclass(frozen=True)
class Plan:
    """Everything that follows from an inventory and its recipe."""

    fleet: Fleet
    recipe: Recipe
    instances: tuple[Instance, ...]
    units: tuple[Unit, ...]
    start_order: tuple[tuple[str, ...], ...]

    def units_of(self, host: str) -> tuple[Unit, ...]:
        return tuple(u for u in self.units if u.host == host)

    def instance(self, name: str) -> Instance | None:
        return next((i for i in self.instances if i.name == name), None)

    def of_role(self, role: str) -> tuple[Instance, ...]:
        return tuple(i for i in self.instances if i.role == role)

    @property
    def served_name(self) -> str:
        return self.recipe.model.served_name or self.recipe.model.name

    @property
    def entries(self) -> tuple[str, ...]:
        """Addresses that clients use: the proxies, or the instances where there is none."""
        proxies = [u for u in self.units if u.kind == "proxy"]
        if proxies:
            return tuple(f"http://{self.fleet.node(u.host).at(u.ports['api'])}" for u in proxies)
        return tuple(i.url for i in self.instances)


def open_interface(address: str) -> str:
    """What stands for an interface's name until the host says which one carries the address."""
    return f"<interface of {address}>"


def platform_of(recipe: Recipe) -> Platform:
    return PLATFORMS[recipe.platform]
