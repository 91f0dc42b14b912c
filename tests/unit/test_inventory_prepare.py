"""What people get wrong in the keys of the preparation: each mistake ends in one clear line."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from fleet.findings import FleetError
from tests.unit.plans import fleet_of

DEEP: Any = functools.reduce(lambda inner, _: [inner], range(5000), [])
LOGIN = "inventories hold no secrets, and what stands here becomes readable on the hosts"

BAD: list[tuple[str, Any, str, str]] = [
    # ---- api_networks
    ("api_networks", "10.0.0.0/8", "not '10.0.0.0/8'", "write a list: [...]"),
    ("api_networks", [10], "not 10", "mend the value"),
    ("api_networks", [None], "not None", "mend the value"),
    ("api_networks", ["10.0.0.0/33"], "'10.0.0.0/33' is no network", "write it like '10.0.0.0/8' or 'fd00::/8'"),
    ("api_networks", ["10.0.0.1/24"], "10.0.0.1/24 has bits beyond its mask", "write '10.0.0.0/24'"),
    ("api_networks", ["10.0.0.0/8 "], "'10.0.0.0/8 ' is no network", "write it like"),
    ("api_networks", ["10.0.0.0/8, 10.1.0.0/16"], "is no network", "write it like"),
    ("api_networks", ["1０.0.0.0/8"], "'1０.0.0.0/8' is no network", "write it like"),
    ("api_networks", ["office"], "'office' is no network", "write it like"),
    ("api_networks", [""], "'' is no network", "write it like"),
    ("api_networks", ["10.0.0.0/8; drop"], "is no network", "write it like"),
    ("api_networks", ["fe80::1%eth0"], "is no network", "write it like"),
    ("api_networks", ["0.0.0.0/0"], "0.0.0.0/0 is everybody", "leave api_networks out for that"),
    ("api_networks", ["::/0"], "::/0 is everybody", "leave api_networks out for that"),
    ("api_networks", ["::ffff:10.0.0.1"], "is no network of clients", "write IPv4 as '10.0.0.0/8'"),
    ("api_networks", ["x" * 1000], "... is no network", "write it like"),
    # ---- firewall
    ("firewall", "maybe", "not 'maybe'", "write True or False"),
    ("firewall", ["on"], "not ['on']", "write True or False"),
    ("firewall", None, "not None", "write True or False"),
    # ---- docker_proxy, no_proxy
    ("docker_proxy", 3128, "not 3128", "mend the value"),
    ("docker_proxy", "http://me:hunter2@10.0.0.1:3128", LOGIN, "let the proxy know the hosts by their addresses"),
    ("docker_proxy", "http://me@10.0.0.1:3128", LOGIN, "let the proxy know the hosts by their addresses"),
    ("docker_proxy", "10.0.0.1:3128", "'10.0.0.1:3128' is no URL of a proxy", "write it like 'http://10.0.0.1:3128'"),
    ("docker_proxy", "socks5://10.0.0.1:1080", "is no URL of a proxy", "write it like"),
    ("docker_proxy", "http://10.0.0.1:99999", "is no URL of a proxy", "write it like"),
    ("docker_proxy", "http://10.0.0.1:3128/$(id)", "is no URL of a proxy", "write it like"),
    ("docker_proxy", 'http://p:1"\nExecStart=id', "is no URL of a proxy", "write it like"),
    ("docker_proxy", "", "'' is no URL of a proxy", "write it like"),
    ("no_proxy", "10.0.0.0/8", "not '10.0.0.0/8'", "write a list: [...]"),
    ("no_proxy", ["10.0.0.1,10.0.0.2"], "is no exception from a proxy", "write one name, .domain, address or network"),
    ("no_proxy", ["höst"], "'höst' is no exception from a proxy", "write one name"),
    ("no_proxy", ["a b"], "'a b' is no exception from a proxy", "write one name"),
    ("no_proxy", [""], "'' is no exception from a proxy", "write one name"),
    # ---- time_servers
    ("time_servers", "10.0.0.1", "not '10.0.0.1'", "write a list: [...]"),
    ("time_servers", ["10.0.0.1 iburst"], "'10.0.0.1 iburst' is no time server", "write names or addresses alone"),
    ("time_servers", ["ntp..corp"], "'ntp..corp' is no time server", "write names or addresses alone"),
    ("time_servers", ["ntp.corp\nserver evil"], "is no time server", "write names or addresses alone"),
    ("time_servers", ["zeit.münchen"], "is no time server", "write names or addresses alone"),
    ("time_servers", [1], "not 1", "mend the value"),
    # ---- sysctl
    ("sysctl", ["net.core.somaxconn"], "not ['net.core.somaxconn']", '{"NAME": "value"} is the form'),
    ("sysctl", {"net.core.somaxconn; id": 1}, "is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"net.$(id)": 1}, "is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"net/core/somaxconn": 1}, "is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"kernel": 1}, "'kernel' is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"net.../../etc": 1}, "is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"net.core.somaxconn": "1; id"}, "net.core.somaxconn cannot be '1; id'", "write a number, or one line"),
    ("sysctl", {"net.core.somaxconn": "1\nkernel.x=1"}, "net.core.somaxconn cannot be", "write a number, or one line"),
    ("sysctl", {"net.core.somaxconn": ""}, "net.core.somaxconn cannot be ''", "write a number, or one line"),
    ("sysctl", {"net.core.somaxconn": [1]}, "net.core.somaxconn cannot be [1]", "write a number, or one line"),
    ("sysctl", {"net.core.somaxconn": True}, "net.core.somaxconn cannot be True", "write a number, or one line"),
    ("sysctl", {"net.core.somaxconn": 10**5000}, "net.core.somaxconn cannot be this int", "write a number"),
    ("sysctl", {1: 1}, "1 is no name of a kernel setting", "write it as sysctl does"),
    ("sysctl", {"vm.nr_hugepages": 64}, "vm.nr_hugepages has a key of its own", "write hugepages = 64"),
    # ---- docker_config
    ("docker_config", '{"debug": true}', "not '{\"debug\": true}'", '{"NAME": "value"} is the form'),
    ("docker_config", {"log driver": "local"}, "'log driver' is no key of daemon.json", "write it as Docker's guide"),
    ("docker_config", {"debug": {1, 2}}, "this cannot be written as JSON", "use texts, numbers"),
    ("docker_config", {"debug": float("nan")}, "this cannot be written as JSON", "use texts, numbers"),
    ("docker_config", {"debug": DEEP}, "this cannot be written as JSON", "use texts, numbers"),
    ("docker_config", {"proxies": {"http-proxy": "http://u:p@h:1"}}, LOGIN, "let the other end know the hosts"),
    # ---- package_source
    ("package_source", ["deb x"], "not ['deb x']", "mend the value"),
    ("package_source", "deb http://u:p@mirror/debian bookworm main", LOGIN, "put the login into /etc/apt/auth.conf.d"),
    ("package_source", "deb http://mirror x\ndeb http://evil x", "is no source of packages", "write a line for apt"),
    ("package_source", "http://mirror/$(id)|sh", "is no source of packages", "write a line for apt"),
    ("package_source", "  ", "' ' is no source of packages", "write a line for apt"),
    ("package_source", "http://spiegel/größe", "is no source of packages", "write a line for apt"),
    # ---- bundle, bundle_on_host, catalogue
    ("bundle", 1, "not 1", "mend the value"),
    ("bundle", " ", "' ' is no path", "name the folder that `fleet bundle` made"),
    ("bundle", "a\0b", "is no path", "name the folder that `fleet bundle` made"),
    ("bundle", "~/bundle", "'~/bundle' begins with ~, which only a shell knows", "write the path from / on"),
    ("bundle_on_host", "bundle", "'bundle' is no plain absolute path", "write it from / on"),
    ("bundle_on_host", "/mnt/my bundle", "is no plain absolute path", "write it from / on"),
    ("bundle_on_host", "/mnt/$(id)", "is no plain absolute path", "write it from / on"),
    ("bundle_on_host", "/mnt/;id", "is no plain absolute path", "write it from / on"),
    ("bundle_on_host", "/mnt/*", "is no plain absolute path", "write it from / on"),
    ("bundle_on_host", "/mnt/../etc", "is no plain absolute path", "write it from / on"),
    ("catalogue", 8.3, "not 8.3", "mend the value"),
    ("catalogue", "../../etc/passwd", "names no row of files/catalogue", "write a file's name without .yaml"),
    ("catalogue", "a3 cann", "'a3 cann' names no row of files/catalogue", "write a file's name without .yaml"),
    ("catalogue", "", "'' names no row of files/catalogue", "write a file's name without .yaml"),
]


@pytest.mark.parametrize(("key", "value", "what", "mend"), BAD, ids=[f"{key}-{n}" for n, (key, *_) in enumerate(BAD)])
def test_a_bad_value_ends_in_one_clear_line(key: str, value: Any, what: str, mend: str) -> None:
    with pytest.raises(FleetError) as caught:
        fleet_of({key: value}, serve=["10.0.0.1"])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"error: fleet.py 10.0.0.1 {key}")
    assert what in line and mend in line and line.endswith("[INV-KEY]")
    assert "hunter2" not in line


GOOD: list[tuple[str, Any]] = [
    ("api_networks", ["10.0.0.0/8", "192.168.7.1", "fd00::/8", "2001:db8::1", "10.0.0.0/255.0.0.0"]),
    ("docker_proxy", "http://proxy.corp:3128"),
    ("docker_proxy", "https://[fd00::1]:3128/"),
    ("no_proxy", ["10.0.0.0/8", ".corp", "*.corp", "localhost", "fd00::/8", "registry.corp:5000", "::1"]),
    ("time_servers", ["10.0.0.1", "fd00::1", "ntp-1.corp"]),
    ("sysctl", {"net.ipv4.conf.eth0/100.rp_filter": 2, "net.ipv4.tcp_rmem": "4096 131072 6291456"}),
    ("sysctl", {"kernel.core_pattern": "|/usr/lib/systemd/systemd-coredump %P %u", "vm.overcommit_memory": 1}),
    ("docker_config", {"log-opts": {"max-size": "100m"}, "insecure-registries": ["registry.corp:5000"], "debug": True}),
    ("package_source", "deb [arch=arm64 signed-by=/etc/apt/k.gpg] http://mirror.corp/debian bookworm main"),
    ("package_source", "http://mirror.corp/openEuler/$basearch"),
    ("bundle", "/media/usb stick/bundle"),
    ("bundle_on_host", "/mnt/bundle"),
    ("catalogue", "a3-cann-8.3.rc2"),
    ("catalogue", "racks/ours.yaml"),
]


@pytest.mark.parametrize(("key", "value"), GOOD, ids=[f"{key}-{n}" for n, (key, _) in enumerate(GOOD)])
def test_a_good_value_stays_as_it_is(key: str, value: Any) -> None:
    assert getattr(fleet_of({key: value}, serve=["10.0.0.1"]).settings, key) == value


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("firewall", True, False),
        ("api_networks", ["10.0.0.0/8"], ["10.1.0.0/16"]),
        ("catalogue", "a", "b"),
        ("bundle", "a", "b"),
    ],
)
def test_what_belongs_to_the_service_is_the_same_on_every_host(key: str, one: Any, other: Any) -> None:
    with pytest.raises(FleetError, match=f"hosts name different values of {key}: .*give {key} once"):
        fleet_of({"of": {"a": {key: one}, "b": {key: other}}}, serve=[("a", "10.0.0.1"), ("b", "10.0.0.2")])
