"""The inventory as the core sees it: hosts, their roles, and what was written about each.

``tasks.inventory`` reads the file through pyinfra's own loader and hands plain data to ``build``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fleet import waivers, yamlfile
from fleet.findings import Finding, FleetError, error
from fleet.prepare import keys
from fleet.recipe import PlatformName, Port, check_env, check_image, check_listener, check_version

ROLES = ("serve", "prefill", "decode", "proxy", "ray-head", "ray-worker")
# Parts of unit names: a service of such a name would meet another's.
RESERVED_NAMES = {"serve", "prefill", "decode", "proxy", "ray", "router", "front", "services"}
# What must be the same on every host of an inventory: it belongs to the service, not to a host.
UNIFORM = (
    *("recipe", "service", "port_offset", "sets", "front_door", "cache_aware", "tls_certificate", "api_keys"),
    *("catalogue", "bundle", "firewall", "api_networks"),
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")
_INTERFACE = re.compile(r"[A-Za-z0-9._:-]{1,15}\Z")


class Settings(BaseModel):
    """What an inventory may say of a host, beside pyinfra's own ``ssh_*`` and ``_*`` keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    address: str | None = None
    interface: str | None = None
    platform: PlatformName | None = None
    devices: int | str | None = None
    weights_dir: str = "/mnt/models"
    runtime: Literal["docker", "native"] | None = None
    venv: str = "/opt/vllm"
    router_venv: str = "/opt/vllm-router"
    engine_version: str | None = None
    image: str | None = None
    registry_mirror: str | None = None
    mounts: list[str] = []
    env: dict[str, str | int | float | bool] = {}
    api_host: str | None = None
    proxy_port: Port | None = None
    raise_limits: bool = True
    service: str = ""
    port_offset: int = Field(0, ge=0, le=20000, strict=True)
    sets: int = Field(1, ge=1, le=64, strict=True)
    front_door: bool = False
    cache_aware: bool = False
    tls_certificate: str | None = None
    api_keys: str | None = None
    waive: dict[str, str] = {}
    # deploy/prepare.py
    catalogue: str | None = None
    bundle: str | None = None
    bundle_on_host: str | None = None
    package_source: str | None = None
    docker_config: dict[str, Any] = {}
    docker_proxy: str | None = None
    no_proxy: list[str] = []
    time_servers: list[str] = []
    sysctl: dict[str, str | int] = {}
    hugepages: int | None = Field(None, ge=0, le=10_000_000, strict=True)
    tuning: bool = True
    firewall: bool = False
    api_networks: list[str] = []
    reboot: Literal["when-needed", "never", "even-if-serving"] = "when-needed"
    reboot_at_once: int = Field(8, ge=1, le=1000, strict=True)
    reboot_minutes: int = Field(40, ge=1, le=180, strict=True)

    @field_validator("waive")
    @classmethod
    def _are_waivers(cls, value: dict[str, str]) -> dict[str, str]:
        waivers.check(value)
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _are_devices(cls, value: Any) -> Any:
        if value is None or (type(value) is int and 1 <= value <= 64):
            return value
        if not isinstance(value, str) or not _device_list(value):
            raise ValueError(f"{_shown(value)} is no number of devices and no list; write 8, '8-15' or '0,1,4,5'")
        return value

    @field_validator("service")
    @classmethod
    def _is_service(cls, value: str) -> str:
        if value and not re.match(r"[a-z][a-z0-9]{0,15}\Z", value):
            raise ValueError(f"{value!r} is no service name; write 1 to 16 of a-z and 0-9, a letter first")
        if value in RESERVED_NAMES:
            raise ValueError(f"{value!r} names a part of every service; choose another name")
        return value

    @field_validator("tls_certificate", "api_keys")
    @classmethod
    def _is_file(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("this is no path; name a file on this machine, or leave it out")
        return value

    def device_indices(self, usual: int) -> tuple[int, ...]:
        """Indices of the devices that the service may use; ``usual`` is the machine family's number of them."""
        if isinstance(self.devices, str):
            return _device_list(self.devices)
        return tuple(range(self.devices or usual))

    @property
    def shares_host(self) -> bool:
        """Whether the host's other devices may belong to another service."""
        return isinstance(self.devices, str)

    _networks = field_validator("api_networks")(keys.networks)
    _proxy = field_validator("docker_proxy")(keys.proxy)
    _exceptions = field_validator("no_proxy")(keys.exceptions)
    _servers = field_validator("time_servers")(keys.servers)
    _sysctl = field_validator("sysctl", mode="before")(keys.sysctl)
    _docker_config = field_validator("docker_config")(keys.docker_config)
    _source = field_validator("package_source")(keys.source)
    _folder = field_validator("bundle")(keys.folder)
    _place = field_validator("bundle_on_host")(keys.place)
    _row = field_validator("catalogue")(keys.row)

    @field_validator("weights_dir", "venv", "router_venv")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not re.match(r"/[^\s'\"$`\\:%]*\Z", value) or ".." in value.split("/"):
            raise ValueError(f"{value!r} is no plain absolute path; write it from / on, without spaces, quotes or %")
        return value.rstrip("/") or "/"

    @field_validator("interface")
    @classmethod
    def _is_interface(cls, value: str | None) -> str | None:
        if value is not None and not _INTERFACE.match(value):
            raise ValueError(f"{value!r} is no interface name; leave it out, it is found from the address")
        return value

    @field_validator("image", "registry_mirror")
    @classmethod
    def _is_image(cls, value: str | None) -> str | None:
        return value if value is None else check_image(value)

    @field_validator("engine_version")
    @classmethod
    def _is_version(cls, value: str | None) -> str | None:
        return value if value is None else check_version(value)

    @field_validator("api_host")
    @classmethod
    def _is_listener(cls, value: str | None) -> str | None:
        return value if value is None else check_listener(value)

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, value: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        return check_env(value)

    @field_validator("mounts")
    @classmethod
    def _are_mounts(cls, value: list[str]) -> list[str]:
        for item in value:
            if not re.match(r"/[^\s:$`'\"\\]*(:/[^\s:$`'\"\\]*(:r[ow])?)?\Z", item):
                raise ValueError(f"{item!r} is no mount; write /path, /path:/inside or /path:/inside:ro")
        return value


@dataclass(frozen=True)
class Node:
    """One host: ``address`` is where its peers and clients reach it."""

    name: str
    address: str
    roles: tuple[str, ...]
    settings: Settings = field(repr=False)

    def at(self, port: int) -> str:
        """``address:port``, an IPv6 address in brackets."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{port}"


@dataclass(frozen=True)
class Fleet:
    """All hosts in inventory order, and the order in which each role lists its own."""

    source: str
    nodes: tuple[Node, ...]
    groups: dict[str, tuple[str, ...]]

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def of(self, role: str) -> tuple[Node, ...]:
        """The hosts of a role, in the order the inventory gives."""
        by_name = {n.name: n for n in self.nodes}
        return tuple(by_name[name] for name in self.groups.get(role, ()))

    @property
    def recipe(self) -> str:
        return self.nodes[0].settings.recipe

    @property
    def settings(self) -> Settings:
        """What is the same on every host."""
        return self.nodes[0].settings


def _device_list(text: str) -> tuple[int, ...]:
    """``0,1,8-15`` as indices in order; empty where it is no such list."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,2})(?:-([0-9]{1,2}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            return ()
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(sorted(found)) if len(set(found)) == len(found) and all(i < 64 for i in found) else ()


def span(numbers: Sequence[int]) -> str:
    """``0-7``, or ``0-3, 8-11`` where they have gaps."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def role_of_group(group: str) -> str | None:
    """The role that a group stands for: names in Python files have _ where roles have -."""
    role = group.replace("_", "-")
    return role if role in ROLES else None


def build(source: str, groups: dict[str, list[str]], data: dict[str, dict[str, Any]]) -> Fleet:
    """The fleet of an inventory.

    ``groups`` maps each group to its host names in order, ``data`` each host to its merged data. A FleetError
    carries every fault found, before any host is reached.
    """
    findings: list[Finding] = []
    if not data:
        mend = "write a list of host names, such as serve = ['10.0.0.11']"
        raise FleetError(error("INV-EMPTY", source, "the inventory has no hosts", mend))
    roles = {role: hosts for group, hosts in groups.items() if (role := role_of_group(group)) and hosts}
    if not roles:
        mend = "name a group after a role: " + ", ".join(r.replace("-", "_") for r in ROLES)
        raise FleetError(error("INV-ROLE", source, "no group of the inventory is a role", mend))
    members = {h for hosts in roles.values() for h in hosts}
    findings += _strays(source, [name for name in data if name not in members], groups)
    nodes = []
    for name in data:
        if name not in members:
            continue
        its_roles = tuple(role for role in ROLES if name in roles.get(role, ()))
        node = _node(source, name, its_roles, data[name], findings)
        if node:
            nodes.append(node)
    findings += _together(source, nodes)
    if findings:
        raise FleetError(*findings)
    return Fleet(source, tuple(nodes), {r: tuple(dict.fromkeys(h)) for r, h in roles.items()})


def _strays(source: str, names: list[str], groups: dict[str, list[str]]) -> list[Finding]:
    """Hosts that no role holds: most often a group with a misspelt name."""
    findings = []
    for name in names:
        of_all = ("all", PurePath(source).stem)
        its_groups = [g for g, hosts in groups.items() if name in hosts and g not in of_all] or ["all"]
        mend = yamlfile.nearest(its_groups[0], [r.replace("-", "_") for r in ROLES])
        what = f"host {name} is in no role"
        findings.append(error("INV-ROLE", f"{source} {its_groups[0]}", what, f"{mend} as the group's name"))
    return findings


def _node(source: str, name: str, roles: tuple[str, ...], data: dict[str, Any], findings: list[Finding]) -> Node | None:
    where = f"{source} {name}"
    if not _NAME.match(name):
        mend = "use letters, digits, dots and dashes"
        findings.append(error("INV-NAME", f"{source} {name!r}", "this is no host name", mend))
        return None
    given = {k: v for k, v in data.items() if not k.startswith(("ssh_", "_"))}
    known = list(Settings.model_fields)
    for key in [k for k in given if k not in known]:
        findings.append(error("INV-KEY", where, f"unknown key {key}", yamlfile.nearest(key, known)))
        del given[key]
    if "recipe" not in given:
        mend = "add recipe = '...' to group_data/<inventory>.py"
        findings.append(error("INV-RECIPE", where, "recipe is missing", mend))
        return None
    try:
        settings = Settings.model_validate(given)
    except ValidationError as exc:
        for item in exc.errors(include_url=False):
            what, _, mend = item["msg"].removeprefix("Value error, ").partition("; ")
            key = ".".join(str(p) for p in item["loc"])
            what = what if mend else f"{what[0].lower()}{what[1:]}, not {_shown(item.get('input'))}"
            findings.append(error("INV-KEY", f"{where} {key}", what, mend or _mend(item)))
        return None
    address = settings.address or data.get("ssh_hostname") or name
    try:
        parsed = ipaddress.ip_address(str(address))
    except ValueError:
        why = "the peers' command lines need an address, and names may differ between machines"
        what = f"{address!r} is no IP address"
        findings.append(
            error("INV-ADDRESS", where, what, f"write the host as ('{name}', {{'address': '10.0.0.11'}})", why)
        )
        return None
    if parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast:
        what = f"{parsed} cannot be reached by other hosts"
        findings.append(error("INV-ADDRESS", where, what, "give the address of the service network"))
        return None
    port = data.get("ssh_port")
    if port is not None and not (type(port) is int and 1 <= port <= 65535):
        findings.append(error("INV-KEY", f"{where} ssh_port", f"{_shown(port)} is no port", "give 1 to 65535"))
    return Node(name, str(parsed), roles, settings)


def _mend(item: Mapping[str, Any]) -> str:
    """What to write instead of a value of the wrong kind, as pydantic tells it."""
    bounds = item.get("ctx", {})
    if item["type"] == "literal_error":
        return f"write {bounds['expected']}"
    if item["type"] == "dict_type":
        return '{"NAME": "value"} is the form' if item["loc"] != ("waive",) else '{"RULE": "the reason"} is the form'
    if item["type"] == "list_type":
        return "write a list: [...]"
    if item["type"] == "bool_type" or item["type"] == "bool_parsing":
        return "write True or False"
    edges = [f"{word} {bounds[key]}" for key, word in (("ge", "from"), ("le", "up to")) if key in bounds]
    return f"give a number {' '.join(edges)}" if edges else "mend the value"


def _shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _together(source: str, nodes: list[Node]) -> list[Finding]:
    """What must hold between hosts: addresses differ, the recipe is one."""
    findings = []
    by_address: dict[str, str] = {}
    for node in nodes:
        other = by_address.setdefault(node.address, node.name)
        if other != node.name:
            what = f"{node.name} and {other} have the same address {node.address}"
            findings.append(error("INV-ADDRESS", source, what, "give each host its own"))
    for key in UNIFORM:
        given = sorted({str(getattr(node.settings, key)) for node in nodes})
        if len(given) > 1:
            rule = "INV-RECIPE" if key == "recipe" else "INV-KEY"
            what = f"hosts name different {'recipes' if key == 'recipe' else f'values of {key}'}: {', '.join(given)}"
            mend = "give the whole inventory one recipe" if key == "recipe" else f"give {key} once, in group_data"
            findings.append(error(rule, source, what, mend))
    return findings
