"""What an inventory's keys for the preparation may hold: each function gives its value back, or a ValueError.

A ValueError's text is ``what; how to mend it``. Values end in files and command lines of hosts that everybody there
may read, so none of them is a secret.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

NO_SECRETS = "inventories hold no secrets, and what stands here becomes readable on the hosts"
# A name or an address where a URL has it, with a port or without.
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_PROXY = re.compile(rf"https?://{_HOST}(?::[0-9]{{1,5}})?/?\Z")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_EXCEPTION = re.compile(rf"(?:\*?\.?{_HOST}(?::[0-9]{{1,5}})?|[0-9A-Fa-f.:]+(?:/[0-9]{{1,3}})?)\Z")
_SYSCTL = re.compile(r"[a-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)+\Z")
_SYSCTL_VALUE = re.compile(r"[A-Za-z0-9_|/%+-][A-Za-z0-9_ \t.,:/%|=+-]*\Z")
_ROW = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
# Who logs in where, with a password or without, before the name of a host.
_LOGIN = re.compile(r"://[^/\s\"']*@")
_LINE = re.compile(r"[ -~]+\Z")


def _shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _no_login(value: str, instead: str) -> None:
    """Not even quoted in the message: it may be in a log soon."""
    if _LOGIN.search(value):
        raise ValueError(f"a login stands in this URL, and {NO_SECRETS}; {instead}")


def networks(value: list[str]) -> list[str]:
    """Networks in CIDR form, or single addresses, of IPv4 and IPv6."""
    for item in value:
        try:
            if "%" in item:  # an interface's name, which means something on one host alone
                raise ValueError
            found = ipaddress.ip_network(item, strict=False)
        except ValueError:
            raise ValueError(f"{_shown(item)} is no network; write it like '10.0.0.0/8' or 'fd00::/8'") from None
        if found.prefixlen == 0:
            raise ValueError(f"{item} is everybody; leave api_networks out for that, or name your clients' networks")
        if found.version == 6 and (found.network_address.ipv4_mapped or found.is_loopback):
            raise ValueError(f"{item} is no network of clients; write IPv4 as '10.0.0.0/8'")
        if "/" in item and ipaddress.ip_interface(item).ip != found.network_address:
            raise ValueError(f"{item} has bits beyond its mask; write '{found}', or the address alone")
    return value


def proxy(value: str | None) -> str | None:
    """The URL of a proxy."""
    if value is None:
        return None
    _no_login(value, "let the proxy know the hosts by their addresses")
    port = re.search(r":([0-9]+)/?\Z", value)
    if not _PROXY.match(value) or (port and not 1 <= int(port[1]) <= 65535):
        raise ValueError(f"{_shown(value)} is no URL of a proxy; write it like 'http://10.0.0.1:3128'")
    return value


def exceptions(value: list[str]) -> list[str]:
    """What is reached without the proxy: names, .domains, addresses, networks."""
    for item in value:
        if not _EXCEPTION.match(item):
            what = f"{_shown(item)} is no exception from a proxy"
            raise ValueError(f"{what}; write one name, .domain, address or network each: ['10.0.0.0/8', '.corp']")
    return value


def servers(value: list[str]) -> list[str]:
    """Names or addresses of time servers, without options."""
    for item in value:
        try:
            ipaddress.ip_address(item)
        except ValueError:
            if not _NAME.match(item) or ".." in item:
                what = f"{_shown(item)} is no time server"
                raise ValueError(f"{what}; write names or addresses alone: ['10.0.0.1', 'ntp.corp']") from None
    return value


def sysctl(value: Any) -> Any:
    """The kernel's settings: names as sysctl has them, values of one line. Before pydantic, for one line of each."""
    if not isinstance(value, dict):
        return value
    for name, setting in value.items():
        if not isinstance(name, str) or not _SYSCTL.match(name):
            what = f"{_shown(name)} is no name of a kernel setting"
            raise ValueError(f"{what}; write it as sysctl does: net.core.somaxconn")
        if name == "vm.nr_hugepages":
            raise ValueError(f"{name} has a key of its own; write hugepages = {_shown(setting)}")
        number = type(setting) is int and abs(setting) < 1 << 64
        if not (number or (isinstance(setting, str) and _SYSCTL_VALUE.match(setting))):
            raise ValueError(f"{name} cannot be {_shown(setting)}; write a number, or one line of plain characters")
    return value


def docker_config(value: dict[str, Any]) -> dict[str, Any]:
    """Keys of daemon.json."""
    for name in value:
        if not re.match(r"[a-z][A-Za-z0-9.-]*\Z", name):
            raise ValueError(f"{_shown(name)} is no key of daemon.json; write it as Docker's guide does: log-driver")
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("this cannot be written as JSON; use texts, numbers, True, False, lists and dicts") from None
    _no_login(text, "let the other end know the hosts by their addresses")
    return value


def source(value: str | None) -> str | None:
    """A line of apt's sources, or the URL or folder of a dnf repository."""
    if value is None:
        return None
    _no_login(value, "put the login into /etc/apt/auth.conf.d or a repository file on the hosts by hand")
    if not _LINE.match(value) or not value.strip() or re.search(r"[\"'`\\;|<>&]", value):
        what = f"{_shown(value)} is no source of packages"
        raise ValueError(f"{what}; write a line for apt, 'deb URL SUITE COMPONENT', or a URL or folder for dnf")
    return value.strip()


def folder(value: str | None) -> str | None:
    """A folder on this machine."""
    if value is not None and (not value.strip() or not value.isprintable()):
        raise ValueError(f"{_shown(value)} is no path; name the folder that `fleet bundle` made, or leave it out")
    if value is not None and value.startswith("~"):
        raise ValueError(f"{_shown(value)} begins with ~, which only a shell knows; write the path from / on")
    return value


def place(value: str | None) -> str | None:
    """A folder on the hosts, which shell text there names as it is."""
    if value is None:
        return None
    if not re.match(r"/[A-Za-z0-9._/+@=,~-]*\Z", value) or ".." in value.split("/"):
        what = f"{_shown(value)} is no plain absolute path"
        raise ValueError(f"{what}; write it from / on, with letters, digits and . _ - + @ = , ~ alone")
    return value.rstrip("/") or "/"


def row(value: str | None) -> str | None:
    """The name of a row of versions that go together, or the path of a file with a row of the user's own."""
    if value is None or _ROW.match(value) or (value.endswith(".yaml") and value.isprintable() and value[:1] != " "):
        return value
    what = f"{_shown(value)} names no row of files/catalogue"
    raise ValueError(f"{what}; write a file's name without .yaml, or the path of a .yaml file of your own")
