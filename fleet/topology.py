"""What a plan is made of: instances of hosts, units on each, and the order in which they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from fleet.inventory import Fleet, Node
from fleet.platforms import PLATFORMS, Platform
from fleet.recipe import Recipe, Role, RoleName

ROOT = "/etc/vllm-fleet"
# In a command line, what is made anew with every start.
START = "<start>"

# An engine or Ray serves the model; a router stands before the instances of one set; a proxy is what clients talk to.
Kind = Literal["engine", "ray", "router", "proxy"]


def home_of(service: str) -> str:
    """Where a service's releases lie on a host; services of one host know nothing of each other."""
    return f"{ROOT}/services/{service}" if service else ROOT


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
    group_port: int

    @property
    def is_group(self) -> bool:
        """Whether it spans hosts, whose units must live and die together."""
        return len(self.members) > 1

    @property
    def head(self) -> Node:
        return self.members[0].node

    @property
    def url(self) -> str:
        return f"http://{self.head.at(self.api_port)}"

    @property
    def engine_id(self) -> str:
        """Its own among all instances, and new with every start.

        A decode keeps what it learned of an engine id: a prefill that came back under the same one would be read at its
        old addresses, which gives wrong text up to 0.18 and errors later (vllm-ascend's Mooncake connector).
        """
        return f"{self.index}-{START}"


@dataclass(frozen=True)
class Set:
    """Prefill and decode instances that serve together, with the host and port of the router before them."""

    index: int
    prefill: tuple[Instance, ...]
    decode: tuple[Instance, ...]
    router_host: Node
    router_port: int

    @property
    def name(self) -> str:
        return f"set-{self.index}"

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self.prefill + self.decode


@dataclass(frozen=True)
class Backend:
    """What the front door sends requests to: a replica, a set's router, or the router before all replicas."""

    name: str
    at: str  # address:port
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Group:
    """How a unit keeps together with those of its instance's other hosts: (member, address, port) of each."""

    me: str
    listen: tuple[str, int]
    peers: tuple[tuple[str, str, int], ...]


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
    home: str = ROOT
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
    group: Group | None = None
    health: str = "/health"
    listens: str | None = None  # where its API answers on the host, if not at the host's address
    awaits_nodes: int = 0  # nodes that Ray must have before the engine starts
    reload: str | None = None  # a command that makes it read its configuration without dropping a request
    device_indices: tuple[int, ...] = ()

    @property
    def at(self) -> str:
        return f"{self.name}@{self.host}"

    @property
    def serves_model(self) -> bool:
        return self.kind in ("engine", "ray")

    @property
    def current(self) -> str:
        """The link to the release that runs."""
        return f"{self.home}/current"

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
    sets: tuple[Set, ...] = ()

    @property
    def home(self) -> str:
        """Where this service's releases lie on each host."""
        return home_of(self.fleet.settings.service)

    def units_of(self, host: str) -> tuple[Unit, ...]:
        return self._units_by_host.get(host, ())

    @cached_property
    def _units_by_host(self) -> dict[str, tuple[Unit, ...]]:
        """Looked up once for each host of a fleet, so gone through once."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            found.setdefault(unit.host, []).append(unit)
        return {host: tuple(units) for host, units in found.items()}

    def instances_of(self, host: str) -> tuple[Instance, ...]:
        """Instances that run on a host."""
        return self._instances_by_host.get(host, ())

    @cached_property
    def _instances_by_host(self) -> dict[str, tuple[Instance, ...]]:
        found: dict[str, list[Instance]] = {}
        for instance in self.instances:
            for member in instance.members:
                found.setdefault(member.node.name, []).append(instance)
        return {host: tuple(instances) for host, instances in found.items()}

    def front_door_of(self, host: str) -> Unit | None:
        """The host's HAProxy, where it has one."""
        return next((u for u in self.units_of(host) if u.config), None)

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
            scheme = "https" if self.fleet.settings.tls_certificate else "http"
            return tuple(f"{scheme}://{self.fleet.node(u.host).at(u.ports['api'])}" for u in proxies)
        return tuple(i.url for i in self.instances)


def open_interface(address: str) -> str:
    """What stands for an interface's name until the host says which one carries the address."""
    return f"<interface of {address}>"


def platform_of(recipe: Recipe) -> Platform:
    return PLATFORMS[recipe.platform]
