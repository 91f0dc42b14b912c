"""Scenarios of dressed hosts: healthy defaults, faults as a few lines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.lab import make_scenarios
from lab import hardware, image
from lab.errors import LabError
from lab.fleet import Lab
from lab.scenario import FAMILIES, addresses, for_hosts, healthy, read_changes, scenario


@pytest.mark.parametrize(("family", "count"), FAMILIES.items())
def test_a_healthy_machine_has_all_devices_and_survives_json(family: str, count: int) -> None:
    made = healthy(family)
    assert list(made["devices"]) == [str(number) for number in range(count)]
    assert json.loads(json.dumps(made)) == made
    assert scenario(family) == made
    assert len({device["bus_id"] for device in made["devices"].values()}) == count


def test_a_fault_is_a_few_lines_and_one_device_goes_over_all() -> None:
    changes = {"firmware_version": "7.5.0", "devices": {"3": {"tls": 0, "ecc": {"double": 2}}, "*": {"tls": 1}}}
    made = scenario("ascend-a2", changes)
    assert made["firmware_version"] == "7.5.0"
    assert [device["tls"] for device in made["devices"].values()] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert made["devices"]["3"]["ecc"] == {**healthy("ascend-a2")["devices"]["3"]["ecc"], "double": 2}
    assert changes["devices"] == {"3": {"tls": 0, "ecc": {"double": 2}}, "*": {"tls": 1}}, "left as it was given"


@pytest.mark.parametrize(
    ("family", "changes", "line"),
    [
        ("h200", {}, "there is no machine family 'h200'; choose from ascend-a2, ascend-a3, nvidia"),
        ("nvidia", {"driver": "1"}, "scenario: driver: no simulator reads this; did you mean driver_works?"),
        ("ascend-a2", {"devices": {"8": {}}}, "scenario: devices.8: ascend-a2 has 0 to 7, and * for all"),
        ("ascend-a2", {"devices": [1]}, 'scenario: devices: write {"3": {...}}, with "*" for all devices'),
        (
            "ascend-a3",
            {"devices": {"15": {"health": "BAD"}}},
            'scenario: devices.15.health: "BAD" is none of "OK", "Warning", "Alarm", "Critical", "UNKNOWN"',
        ),
        ("ascend-a3", {"devices": {"1": {"hbm_used": "9"}}}, 'scenario: devices.1.hbm_used: "9" is not like 3186'),
        (
            "nvidia",
            {"devices": {"*": {"remapped": {"pendin": 1}}}},
            "scenario: devices.*.remapped.pendin: no simulator reads this; did you mean pending?",
        ),
        ("ascend-a3", {"server_index": 48}, "scenario: server_index: 48 is no server of a super pod; write 0 to 47"),
        ("ascend-a2", {"devices": {"1": 3}}, "scenario: devices.1: 3 is no set of keys"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(family: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(LabError) as caught:
        scenario(family, changes)
    assert str(caught.value) == line


def test_hosts_of_a_fabric_have_addresses_of_their_own_and_know_each_other() -> None:
    made = for_hosts("ascend-a3", ["a", "b", "c"], {"all": {"devices": {"0": {"tls": 1}}}, "b": {"super_pod_id": 4}})
    own = [addresses(one) for one in made.values()]
    assert [len(each) for each in own] == [32, 32, 32]
    assert len({address for each in own for address in each}) == 96
    assert set(made["a"]["peers"]) == {address for each in own for address in each}
    assert made["b"]["super_pod_id"] == 4
    assert made["b"]["devices"]["0"]["tls"] == 1
    assert [one["server_index"] for one in made.values()] == [0, 1, 2]


def test_peers_that_are_given_stay() -> None:
    made = for_hosts("ascend-a2", ["a", "b"], {"a": {"peers": []}})
    assert made["a"]["peers"] == []
    assert len(made["b"]["peers"]) == 16


def test_a_fault_of_a_host_that_is_not_there_is_refused() -> None:
    with pytest.raises(LabError, match="there is no host 'd'; the hosts are a, b, and all"):
        for_hosts("nvidia", ["a", "b"], {"d": {}})


def test_a_scenario_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    with pytest.raises(LabError, match="No such file"):
        read_changes(file)
    file.write_text("{")
    with pytest.raises(LabError, match="is no JSON"):
        read_changes(file)
    file.write_text('{"lab-1": []}')
    with pytest.raises(LabError, match=r'write \{"all"'):
        read_changes(file)
    file.write_text('{"lab-1": {"dcmi_error": -8005}}')
    assert read_changes(file) == {"lab-1": {"dcmi_error": -8005}}


def test_the_command_line_checks_hardware_before_it_boots(tmp_path: Path) -> None:
    lab = Lab("hwtest", "10.231.83.0/24", tmp_path)
    file = tmp_path / "faults.json"
    file.write_text('{"hwtest-1": {"devices": {"0": {"link": "DOWN"}}}}')
    made = make_scenarios(lab, 2, True, "ascend-a2", file)
    assert [one["devices"]["0"]["link"] for one in made.values()] == ["UP", "DOWN"]
    assert make_scenarios(lab, 2, False, None, None) == {}
    with pytest.raises(LabError, match="--scenario needs --as"):
        make_scenarios(lab, 2, True, None, file)
    with pytest.raises(LabError, match="--as nvidia needs --docker"):
        make_scenarios(lab, 2, False, "nvidia", None)
    with pytest.raises(LabError, match="there is no host 'hwtest-1'; the hosts are hwtest-0, and all"):
        make_scenarios(lab, 1, True, "ascend-a2", file)


def test_a_dressed_host_has_what_its_platform_mounts_and_maps() -> None:
    from fleet.platforms import PLATFORMS

    for family in ("ascend-a2", "ascend-a3"):
        made = hardware.files(scenario(family))
        platform = PLATFORMS[family]
        for mount in (*platform.mounts, *platform.cluster_mounts):
            source = mount.partition(":")[0].rstrip("/")
            assert any(path == source or path.startswith(f"{source}/") for path in made), source
        assert hardware.nodes(scenario(family)) == list(platform.devices(range(FAMILIES[family])))


def test_an_absent_device_has_no_node_and_no_settings() -> None:
    one = scenario("ascend-a2", {"devices": {"7": {"present": False}}})
    assert "/dev/davinci7" not in hardware.nodes(one)
    assert "/dev/davinci6" in hardware.nodes(one)
    conf = hardware.hccn_conf(one["devices"])
    assert "address_7" not in conf
    assert conf.startswith("address_0=10.30.0.11\nnetmask_0=255.255.0.0\ngateway_0=10.30.255.254\n")


def test_without_hccn_conf_or_fabric_manager_what_an_earlier_dressing_left_goes() -> None:
    assert "/etc/hccn.conf" in hardware.absent(scenario("ascend-a3", {"hccn_conf": False}))
    assert "/etc/hccn.conf" not in hardware.files(scenario("ascend-a3", {"hccn_conf": False}))
    gone = scenario("nvidia", {"fabric_manager_version": None})
    assert hardware.absent(gone) == ["/usr/bin/nv-fabricmanager"]
    assert "/usr/bin/nv-fabricmanager" not in hardware.files(gone)


def test_a_file_is_not_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/etc").symlink_to("/etc")
    with pytest.raises(LabError, match="is a link that leads out of it"):
        hardware.put(tmp_path / "root", "/etc/vllm-lab/scenario.json", "{}", 0o644)


STATUS = """\
Package: bash
Depends: base-files (>= 2.1.12), debianutils (>= 5.6), awk
Pre-Depends: libc6 (>= 2.36), libtinfo6 (>= 6)

Package: libc6
Depends: libgcc-s1:any

Package: mawk
Provides: awk
Depends: gone (= 1) | libc6

Package: perl-base
Package: other
"""


def test_packages_bring_what_they_depend_on() -> None:
    assert image.closure(STATUS, ["bash"]) == ["bash", "libc6", "mawk"]
    assert image.words("libc6 (>= 2.36), gawk | mawk, python3:any") == ["libc6", "gawk", "python3"]


def test_the_image_of_a_version_is_always_the_same_and_names_share_it() -> None:
    layers = ["a" * 64, "b" * 64]
    one = image.config("0.13.0", layers, "quay.io/ascend/vllm-ascend:v0.13.0-a3")
    assert one == image.config("0.13.0", layers, "quay.io/ascend/vllm-ascend:v0.13.0-a3")
    assert json.loads(one)["config"]["Env"] == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VLLM_STANDIN_VERSION=0.13.0",
        "SOC_VERSION=ascend910_9391",
    ]
    assert json.loads(image.manifest({"x:1": one, "y:1": one}, layers)) == [
        {
            "Config": f"{image.digest(one)}.json",
            "RepoTags": ["x:1", "y:1"],
            "Layers": [f"{'a' * 64}.tar", f"{'b' * 64}.tar"],
        }
    ]
    assert image.names_archive({"x:1": one}, layers) == image.names_archive({"x:1": one}, layers)


def test_the_layer_with_the_stand_in_does_not_depend_on_the_clock() -> None:
    assert image.top_layer() == image.top_layer()


def test_cuda_is_that_of_the_vendors_image() -> None:
    assert image.family_env("vllm/vllm-openai:v0.20.0", "0.20.0") == ["CUDA_VERSION=13.0.1"]
    assert image.family_env("vllm/vllm-openai:v0.19.1", "0.19.1") == ["CUDA_VERSION=12.9.1"]
    assert image.family_env("vllm/vllm-openai:v0.20.0-cu129", "0.20.0") == ["CUDA_VERSION=12.9.1"]
    assert image.family_env("lab/base:1", "0.1") == []


def test_every_image_of_a_familys_recipes_is_known() -> None:
    assert image.recipe_images("ascend-a3")["quay.io/ascend/vllm-ascend:v0.13.0-a3"] == "0.13.0"
    assert list(image.recipe_images("nvidia")) == ["vllm/vllm-openai:v0.20.0"]
