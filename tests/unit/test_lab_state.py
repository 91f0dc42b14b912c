"""The lab's state on disk, and what is derived from the kernel's tables."""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path

import pytest

from lab.cache import build_once, cache_dir, lock
from lab.cgroups import unified_root
from lab.errors import LabError
from lab.mounts import mounts_below
from lab.network import GROUP, Interface, clash, interfaces
from lab.plan import make_plan
from lab.processes import belongs_to, is_within
from lab.state import HostState, LabState, dump, load, parse, save

STATE = LabState(
    "lab", "10.231.77.0/24", "vfl0", "/home/me/.lab", hosts=[HostState("lab-0", "10.231.77.10", "up", 42, 1.5)]
)


def test_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    save(tmp_path / "state.json", STATE)
    assert load(tmp_path / "state.json") == STATE
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_no_state_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "state.json") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "hosts": [{}]}', dump(STATE).replace('"format": 1', "0")]
)
def test_a_broken_state_is_one_line(text: str) -> None:
    with pytest.raises(LabError, match="not a lab's state") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_state_of_another_version_is_refused() -> None:
    text = json.dumps(json.loads(dump(STATE)) | {"format": 2})
    with pytest.raises(LabError, match="another version"):
        parse(text)


def test_an_unknown_host_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LabError, match="no host 'lab-7'; its hosts: lab-0"):
        STATE.host("lab-7")


def test_mounts_are_found_innermost_first_and_only_below() -> None:
    table = (
        "overlay /l/hosts/a/root overlay rw 0 0\n"
        "proc /l/hosts/a/root/proc proc rw 0 0\n"
        "overlay /l/hosts-of-others/root overlay rw 0 0\n"
        "tmpfs /l/hosts/with\\040space tmpfs rw 0 0\n"
    )
    assert mounts_below(Path("/l/hosts"), table) == [
        Path("/l/hosts/with space"),
        Path("/l/hosts/a/root/proc"),
        Path("/l/hosts/a/root"),
    ]


def test_cgroup_root_on_hybrid_unified_and_old_machines() -> None:
    hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert unified_root(hybrid) == Path("/sys/fs/cgroup/unified")
    assert unified_root("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n") == Path("/sys/fs/cgroup")
    assert unified_root("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n") is None


def test_a_path_is_within_a_directory_by_whole_parts() -> None:
    assert is_within("/l/hosts/a", Path("/l/hosts"))
    assert not is_within("/l/hosts-of-others", Path("/l/hosts"))


def test_this_process_does_not_belong_to_a_directory_it_does_not_name(tmp_path: Path) -> None:
    assert not belongs_to(os.getpid(), tmp_path / "nobody-names-this")


def lan(name: str, network: str, group: str = "default") -> Interface:
    return Interface(name, group, (ipaddress.IPv4Network(network),))


def test_a_subnet_in_use_is_a_clash_with_the_interface_named() -> None:
    reason = clash(make_plan(), [lan("eth0", "10.231.0.0/16")])
    assert "overlaps 10.231.0.0/16 on eth0" in reason


def test_the_labs_own_bridge_is_no_clash_and_a_strangers_is() -> None:
    assert clash(make_plan(), [lan("vfl0", "10.231.77.0/24", GROUP), lan("eth0", "192.168.1.0/24")]) == ""
    assert "that is not the lab's" in clash(make_plan(), [lan("vfl0", "192.168.9.0/24")])


def test_interfaces_are_read_from_ip_json() -> None:
    text = json.dumps(
        [
            {
                "ifname": "eth0",
                "group": "default",
                "addr_info": [
                    {"family": "inet", "local": "192.168.1.5", "prefixlen": 24},
                    {"family": "inet6", "local": "fe80::1", "prefixlen": 64},
                ],
            },
            {},
        ]
    )
    assert interfaces(text)[0] == lan("eth0", "192.168.1.0/24")


def test_cache_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FLEET_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path


def test_a_build_happens_once_and_removes_what_a_dead_run_left(tmp_path: Path) -> None:
    (tmp_path / "thing.tmp-1").mkdir()
    calls = []

    def build(target: Path) -> None:
        calls.append(target.name)
        target.mkdir()

    assert build_once(tmp_path / "thing", build) == build_once(tmp_path / "thing", build)
    assert calls == [f"thing.tmp-{os.getpid()}"]
    assert not list(tmp_path.glob("thing.tmp-*"))


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(target: Path) -> None:
        target.mkdir()
        raise LabError("no")

    with pytest.raises(LabError, match="no"):
        build_once(tmp_path / "thing", build)
    assert [file.name for file in tmp_path.iterdir()] == [".thing.lock"]


def test_a_lock_held_elsewhere_names_its_holder(tmp_path: Path) -> None:
    with lock(tmp_path / "l"), pytest.raises(LabError, match=f"process {os.getpid()}"), lock(tmp_path / "l", wait_s=0):
        pass
