"""Names, addresses and files that follow from a lab's name and subnet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import network
from lab.errors import LabError
from lab.plan import Address, bridge_name, hosts_file, inventory, known_hosts, make_plan, network_unit, ssh_config

HOSTS = [Address("lab-0", "10.231.77.10"), Address("lab-1", "10.231.77.11")]


def test_hosts_count_up_from_ten() -> None:
    plan = make_plan()
    assert plan.hosts(2) == HOSTS
    assert plan.gateway == "10.231.77.1"
    assert plan.bridge == "vfl0"


def test_other_labs_get_their_own_bridge_with_a_name_the_kernel_takes() -> None:
    assert bridge_name("a-rather-long-name1") == "vfl5ff9dbe1"
    assert len(bridge_name("a-rather-long-name1")) <= 15
    assert bridge_name("one") != bridge_name("two")


@pytest.mark.parametrize("name", ["", "Lab", "9lab", "lab_1", "x" * 21, "../lab"])
def test_a_name_that_cannot_begin_a_host_name_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="lab name"):
        make_plan(name)


@pytest.mark.parametrize("subnet", ["10.231.77.1/24", "8.8.8.0/24", "10.231.77.0/28", "nonsense"])
def test_a_subnet_that_cannot_work_is_refused(subnet: str) -> None:
    with pytest.raises(LabError, match="subnet"):
        make_plan("lab", subnet)


@pytest.mark.parametrize("count", [0, 65])
def test_more_hosts_than_there_is_room_for_are_refused(count: int) -> None:
    with pytest.raises(LabError, match="room for 1 to 64"):
        make_plan().hosts(count)


def test_a_small_subnet_has_room_for_few() -> None:
    assert len(make_plan("lab", "10.231.77.0/27").hosts(21)) == 21
    with pytest.raises(LabError, match="1 to 21"):
        make_plan("lab", "10.231.77.0/27").hosts(22)


def test_known_hosts_names_each_host_twice_and_drops_the_comment() -> None:
    text = known_hosts(HOSTS, ["ssh-ed25519 AAAA0 root@lab-0", "ssh-ed25519 AAAA1 root@lab-1"])
    assert text == "lab-0,10.231.77.10 ssh-ed25519 AAAA0\nlab-1,10.231.77.11 ssh-ed25519 AAAA1\n"


def test_ssh_config_is_strict_and_quotes_paths() -> None:
    text = ssh_config(HOSTS, Path("/home/a user/.lab"))
    assert "Host lab-0 10.231.77.10\n  HostName 10.231.77.10\n" in text
    assert "  StrictHostKeyChecking yes\n" in text
    assert '  UserKnownHostsFile "/home/a user/.lab/known_hosts"\n' in text


def test_inventory_is_a_plain_python_file_with_one_group_of_all_hosts() -> None:
    names: dict[str, object] = {}
    exec(inventory(HOSTS, Path('/home/o"neil/.lab')), names)
    shared = {
        "ssh_user": "root",
        "ssh_key": '/home/o"neil/.lab/id_ed25519',
        "ssh_known_hosts_file": '/home/o"neil/.lab/known_hosts',
        "ssh_strict_host_key_checking": "yes",
        "ssh_allow_agent": False,
        "ssh_look_for_keys": False,
    }
    assert names["hosts"] == [
        ("lab-0", {"ssh_hostname": "10.231.77.10", **shared}),
        ("lab-1", {"ssh_hostname": "10.231.77.11", **shared}),
    ]


def test_a_host_knows_itself_by_its_real_address() -> None:
    assert hosts_file(HOSTS[0]) == "127.0.0.1 localhost\n10.231.77.10 lab-0\n"


def test_network_unit_has_the_prefix_of_the_subnet() -> None:
    assert "Address=10.1.0.10/16\nGateway=10.1.0.1\n" in network_unit(
        Address("x-0", "10.1.0.10"), make_plan("x", "10.1.0.0/16")
    )


def test_a_bridge_has_an_address_of_its_own() -> None:
    first, second = network.hardware_address("vflec"), network.hardware_address("vflec2")
    assert re.fullmatch(r"02(:[0-9a-f]{2}){5}", first)
    assert first != second == network.hardware_address("vflec2")
