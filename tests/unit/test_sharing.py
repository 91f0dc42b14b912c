"""Several services on one host: devices, ports, names and folders of their own, and what is said where they meet."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleet import ROOT, admission, inventory, ports, release, sharing, snapshot
from fleet.cli.main import main
from fleet.findings import FleetError
from fleet.sharing import Claims
from fleet.snapshot import Question, Snapshot
from fleet.topology import Plan
from tests.unit.plans import fleet_of, lay

SERVE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {port: 8000, tensor_parallel_size: 8}
"""
GROUP = SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 4, data_parallel_size: 4")
PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  prefill: {port: 8000, tensor_parallel_size: 8}
  decode: {port: 8000, tensor_parallel_size: 4, data_parallel_size: 2}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
proxy: {port: 9000}
"""
RAY = """
title: t
source: s
platform: ascend-a2
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {port: 8000, tensor_parallel_size: 4, pipeline_parallel_size: 2, executor: ray}
"""
CHAT = {"service": "chat", "devices": "0-7"}
CODE = {"service": "code", "devices": "8-15", "port_offset": 100}


# ---- one service of two


def test_a_service_takes_the_devices_that_it_is_given() -> None:
    made = lay(SERVE, CODE, serve=["10.0.0.1"])
    assert made.instances[0].members[0].devices == (8, 9, 10, 11, 12, 13, 14, 15)
    assert made.units[0].devices[:8] == tuple(f"/dev/davinci{i}" for i in range(8, 16))


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        (None, tuple(range(16))),
        (4, (0, 1, 2, 3)),
        ("8-15", (8, 9, 10, 11, 12, 13, 14, 15)),
        ("0,1,4-5", (0, 1, 4, 5)),
        ("5, 4, 1, 0", (0, 1, 4, 5)),
        ("8", (8,)),
        ("63", (63,)),
    ],
)
def test_devices_are_a_number_or_a_list(written: int | str | None, indices: tuple[int, ...]) -> None:
    (node,) = fleet_of({"devices": written}, serve=["10.0.0.1"]).nodes
    assert node.settings.device_indices(16) == indices
    assert node.settings.shares_host is isinstance(written, str)


@pytest.mark.parametrize(
    "written", ["", " ", "8-", "-8", "a", "0-7,7", "7-0", "0,,1", "64", "0-64", "1.5", 0, -1, 65, True, 1.5, [0, 1]]
)
def test_what_is_no_device_list_is_refused(written: Any) -> None:
    with pytest.raises(
        FleetError, match=r"is no number of devices and no list; write 8, '8-15' or '0,1,4,5' \[INV-KEY"
    ):
        fleet_of({"devices": written}, serve=["10.0.0.1"])


@pytest.mark.parametrize("written", ["0,7-5", "0 1", "0-1 2"])
def test_a_device_list_is_taken_as_a_whole_or_not_at_all(written: str) -> None:
    with pytest.raises(FleetError):
        fleet_of({"devices": written}, serve=["10.0.0.1"])


def test_devices_beyond_the_familys_usual_number_are_taken() -> None:
    """There are A2 hosts with sixteen NPUs; the check warns."""
    (unit,) = lay(SERVE.replace("ascend-a3", "ascend-a2"), CODE, serve=["10.0.0.1"]).units
    assert unit.device_indices == tuple(range(8, 16))
    assert unit.devices[:8] == tuple(f"/dev/davinci{i}" for i in range(8, 16))
    with pytest.raises(FleetError, match=r"tensor x pipeline size 8 is more than the 4 devices of a host"):
        lay(SERVE, {**CODE, "devices": "12-15"}, serve=["10.0.0.1"])


@pytest.mark.parametrize("name", ["chat", "a", "a1234567890bcdef"])
def test_a_service_has_a_short_name(name: str) -> None:
    assert fleet_of({"service": name}, serve=["10.0.0.1"]).settings.service == name


@pytest.mark.parametrize("name", ["Chat", "1a", "a-b", "a_b", "a b", "a.b", "a1234567890bcdefg", "a\n", "../x"])
def test_what_is_no_service_name_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match=r"is no service name; write 1 to 16 of a-z and 0-9, a letter first \[INV-KEY"):
        fleet_of({"service": name}, serve=["10.0.0.1"])


@pytest.mark.parametrize("name", ["serve", "prefill", "decode", "proxy", "ray", "router", "front", "services"])
def test_a_service_is_not_named_as_a_part_of_each(name: str) -> None:
    with pytest.raises(FleetError, match=r"names a part of every service; choose another name \[INV-KEY\]"):
        fleet_of({"service": name}, serve=["10.0.0.1"])


@pytest.mark.parametrize("offset", [-1, 20001, 1.5, "100", True])
def test_what_is_no_offset_is_refused(offset: Any) -> None:
    with pytest.raises(FleetError, match=r"port_offset: .*\[INV-KEY\]"):
        fleet_of({"port_offset": offset}, serve=["10.0.0.1"])


@pytest.mark.parametrize(
    ("key", "one", "two"),
    [
        ("service", "chat", "code"),
        ("port_offset", 0, 100),
        ("sets", 1, 2),
        ("front_door", False, True),
        ("cache_aware", False, True),
        ("tls_certificate", "a.pem", "b.pem"),
        ("api_keys", "a", "b"),
    ],
)
def test_what_belongs_to_the_service_is_the_same_on_all_its_hosts(key: str, one: Any, two: Any) -> None:
    groups = {"serve": ["10.0.0.1", "10.0.0.2"]}
    data = {name: {"recipe": "r", key: value} for name, value in zip(groups["serve"], (one, two), strict=True)}
    with pytest.raises(FleetError) as refused:
        inventory.build("fleet.py", groups, data)
    assert [f.line() for f in refused.value.findings] == [
        f"error: fleet.py: hosts name different values of {key}: {', '.join(sorted((str(one), str(two))))}; "
        f"give {key} once, in group_data [INV-KEY]"
    ]


def test_an_offset_moves_every_port() -> None:
    hosts = {"prefill": ["10.0.0.1"], "decode": ["10.0.0.2"], "proxy": ["10.0.0.1"]}
    before, after = (lay(PD, {"port_offset": n, "front_door": True}, **hosts) for n in (0, 100))
    assert [[p + 100 for p in u.ports.values()] for u in before.units] == [list(u.ports.values()) for u in after.units]
    assert [sorted(u.ports.items()) for u in after.units] == [
        [("api", 8100), ("kv", 36100)],
        [("api", 8100), ("kv", 36200), ("rpc", 13490)],
        [("api", 8300)],
        [("api", 9100)],
    ]


def test_an_offset_is_written_on_the_command_line_where_the_recipe_names_no_port() -> None:
    text = SERVE.replace("port: 8000, ", "")
    assert "--port" not in lay(text, {}, serve=["10.0.0.1"]).units[0].argv
    argv = lay(text, {"port_offset": 100}, serve=["10.0.0.1"]).units[0].argv
    assert argv[argv.index("--port") + 1] == "8100"


def test_rays_port_and_the_groups_move_too() -> None:
    made = lay(RAY, {"service": "chat", "devices": "0-3", "port_offset": 7}, serve=["10.0.0.1", "10.0.0.2"])
    head, engine, worker = made.units
    assert [dict(u.ports) for u in (head, engine, worker)] == [
        {"ray": 6386, "client": 20008, "group": 7397},
        {"api": 8007},
        {"group": 7397},
    ]
    assert "--port=6386" in head.argv
    assert "--ray-client-server-port=20008" in head.argv
    assert "--address=10.0.0.1:6386" in worker.argv
    assert not [word for word in worker.argv if "client" in word]
    for unit in (head, worker):  # any free port: those from 10002 on are the workers' of a Ray without an offset
        assert unit.argv[-3:] == ("--min-worker-port=0", "--max-worker-port=0", "--block")
    assert (engine.needs, engine.awaits_nodes) == (("vllm-chat-ray-serve-0",), 2)


def test_without_an_offset_ray_has_its_usual_ports() -> None:
    head, _, worker = lay(RAY, {"devices": 4}, serve=["10.0.0.1", "10.0.0.2"]).units
    assert [dict(u.ports) for u in (head, worker)] == [{"ray": 6379, "client": 10001, "group": 7390}, {"group": 7390}]
    assert not [word for u in (head, worker) for word in u.argv if "client" in word or "worker-port" in word]


def test_units_files_and_folders_are_the_services_own() -> None:
    made = lay(GROUP, CODE, serve=["10.0.0.1", "10.0.0.2"], proxy=["10.0.0.1"])
    assert [u.at for u in made.units] == [
        "vllm-code-serve-0@10.0.0.1",
        "vllm-code-serve-0@10.0.0.2",
        "vllm-code-front-door@10.0.0.1",
    ]
    built = release.build(made, "10.0.0.1", "eth0")
    assert built.path == f"/etc/vllm-fleet/services/code/releases/{built.id}"
    for _, text in built.files.values():
        assert not re.search(r"/etc/vllm-fleet/(current|releases)", text)
    assert json.loads(built.files["run/vllm-code-serve-0.group.json"][1])["unit"] == "vllm-code-serve-0.service"


@pytest.mark.parametrize(
    ("devices", "host", "npu"),
    [
        ("0-7", "60000-60031", "16666-16697"),
        ("8-15", "60256-60287", "16922-16953"),
        ("2,3", "60064-60095", "16730-16761"),
    ],
)
def test_hccls_ports_follow_from_the_first_device(devices: str, host: str, npu: str) -> None:
    text = SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 2")
    env = lay(text, {"service": "chat", "devices": devices}, serve=["10.0.0.1"]).units[0].env
    assert (env["HCCL_HOST_SOCKET_PORT_RANGE"], env["HCCL_NPU_SOCKET_PORT_RANGE"]) == (host, npu)


def test_a_host_of_ones_own_leaves_hccl_its_usual_ports() -> None:
    assert not [name for name in lay(SERVE, {"devices": 8}, serve=["10.0.0.1"]).units[0].env if "PORT_RANGE" in name]


def test_outside_containers_a_service_sees_its_own_devices_only() -> None:
    native = {**CODE, "runtime": "native"}
    assert lay(SERVE, native, serve=["10.0.0.1"]).units[0].env["ASCEND_RT_VISIBLE_DEVICES"] == "8,9,10,11,12,13,14,15"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in lay(SERVE, CODE, serve=["10.0.0.1"]).units[0].env


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        ({"devices": "4-7"}, "0,1,2,3"),  # the container has four devices, counted from 0
        ({"devices": "4-7", "runtime": "native"}, "4,5,6,7"),
    ],
    ids=["docker", "native"],
)
def test_ray_sees_the_devices_as_its_process_counts_them(data: dict[str, Any], seen: str) -> None:
    made = lay(RAY, {"service": "chat", **data}, serve=["10.0.0.1", "10.0.0.2"])
    assert {u.env["ASCEND_RT_VISIBLE_DEVICES"] for u in made.units} == {seen}


# ---- ports that are nobody's to choose


@pytest.mark.parametrize(
    ("data", "port", "owner"),
    [
        ({}, 60000, "HCCL"),
        ({}, 60031, "HCCL"),
        ({}, 22, "sshd"),
        (CODE, 60256, "HCCL"),
        ({**CODE, "platform": "ascend-a3"}, 60287, "HCCL"),
    ],
)
def test_a_reserved_port_is_refused(data: dict[str, Any], port: int, owner: str) -> None:
    with pytest.raises(FleetError) as refused:
        lay(SERVE, {**data, "proxy_port": port}, serve=["10.0.0.1"], proxy=["10.0.0.1"])
    (finding,) = refused.value.findings
    assert (finding.rule, finding.where) == ("PLAN-PORTS", "fleet.py 10.0.0.1")
    assert finding.what.endswith(f"front-door wants port {port} for api, which belongs to {owner}")


@pytest.mark.parametrize("port", [59999, 60032, 60256])
def test_a_port_beside_hccls_is_fine(port: int) -> None:
    lay(SERVE, {"proxy_port": port}, serve=["10.0.0.1"], proxy=["10.0.0.1"])


RAY_HOSTS = {"serve": ["10.0.0.1", "10.0.0.2"]}
RAY_WORKERS = "wants port {} for api, which belongs to Ray's workers; choose one outside 10002-19999"


@pytest.mark.parametrize(
    ("port", "told"),
    [
        (6379, "vllm-front-door and vllm-ray-serve-0 both want port 6379; give one of them another port"),
        (10001, "vllm-front-door and vllm-ray-serve-0 both want port 10001; give one of them another port"),
        *((port, RAY_WORKERS.format(port)) for port in (10002, 15000, 19999)),
    ],
)
def test_rays_own_ports_are_refused_where_ray_runs(port: int, told: str) -> None:
    with pytest.raises(FleetError, match=rf"{told}.*\[PLAN-PORTS\]"):
        lay(RAY, {"devices": 4, "proxy_port": port}, proxy=["10.0.0.1"], **RAY_HOSTS)
    lay(SERVE, {"proxy_port": port}, serve=["10.0.0.1"], proxy=["10.0.0.1"])
    lay(RAY, {"devices": 4, "proxy_port": port}, proxy=["10.0.0.3"], **RAY_HOSTS)


@pytest.mark.parametrize("port", [10002, 15000, 19999])
def test_the_ports_of_rays_workers_are_theirs_on_every_host_of_it(port: int) -> None:
    with pytest.raises(FleetError, match=RAY_WORKERS.format(port)):
        lay(RAY, {"devices": 4, "proxy_port": port}, proxy=["10.0.0.2"], **RAY_HOSTS)


@pytest.mark.parametrize("port", [8265, 10000, 20000])
def test_ports_that_ray_does_not_take_are_fine(port: int) -> None:
    """No dashboard is started."""
    for host in RAY_HOSTS["serve"]:
        lay(RAY, {"devices": 4, "proxy_port": port}, proxy=[host], **RAY_HOSTS)


@pytest.mark.parametrize("port", [10002, 15000, 19999])
def test_with_an_offset_rays_workers_have_no_ports_of_their_own(port: int) -> None:
    lay(RAY, {"devices": 4, "proxy_port": port, "port_offset": 100}, proxy=["10.0.0.1"], **RAY_HOSTS)


@pytest.mark.parametrize("port", [7390, 13389], ids=["group", "rpc"])
def test_one_unit_does_not_want_a_port_twice(port: int) -> None:
    text = SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 16, data_parallel_size: 2")
    with pytest.raises(FleetError):
        lay(text.replace("8000", str(port)), {}, serve=["10.0.0.1", "10.0.0.2"])


def test_handshakes_that_reach_into_hccls_ports_are_refused() -> None:
    hosts = {"prefill": ["10.0.0.1"], "decode": ["10.0.0.2"]}
    with pytest.raises(FleetError) as refused:
        lay(PD.replace("36000", "59995"), {}, **hosts)
    assert [f.line() for f in refused.value.findings] == [
        "error: fleet.py 10.0.0.1: handshake ports 59995-60002 of prefill-0 meet those of HCCL; "
        "set kv_transfer.port outside 60000-60031 [PLAN-PORTS]"
    ]
    lay(PD.replace("36000", "59992"), {}, **hosts)  # to 59999; decode's begin at 60092


def test_ports_end_at_65535() -> None:
    with pytest.raises(FleetError, match=r"prefill-0 would need handshake ports up to 65536; lower kv_transfer.port"):
        lay(PD.replace("36000", "65529"), {}, prefill=["10.0.0.1"], decode=["10.0.0.2"])
    with pytest.raises(FleetError, match=r"vllm-serve-0 would need port 65536 for api; lower the base port, or split"):
        lay(SERVE.replace("8000", "65436"), {"port_offset": 100}, serve=["10.0.0.1"])


# ---- two services


def test_what_a_service_takes() -> None:
    made = lay(PD, CODE, prefill=["10.0.0.1"], decode=["10.0.0.2"], proxy=["10.0.0.1"])
    taken = sharing.claims(made, made.fleet.node("10.0.0.1"))
    assert (taken.service, taken.called) == ("code", "service code")
    assert taken.devices == {8, 9, 10, 11, 12, 13, 14, 15}
    assert {port: user for port, user in taken.ports.items() if user != "HCCL"} == {
        8100: "vllm-code-prefill-0",
        9100: "vllm-code-proxy",
        36100: "vllm-code-prefill-0",
        **dict.fromkeys(range(36101, 36108), "prefill-0's handshakes"),
    }
    assert sorted(port for port, user in taken.ports.items() if user == "HCCL") == list(range(60256, 60288))


def test_a_host_that_only_has_the_front_door_takes_no_device() -> None:
    made = lay(SERVE, CHAT, serve=["10.0.0.1"], proxy=["10.0.0.9"])
    taken = sharing.claims(made, made.fleet.node("10.0.0.9"))
    assert (taken.devices, dict(taken.ports)) == (frozenset(), {8080: "vllm-chat-front-door"})


def test_cpus_are_shared_as_they_are() -> None:
    text = SERVE.replace("ascend-a3", "cpu").replace(", vllm_ascend: 0.13.0", "").replace("tensor_parallel_size: 8", "")
    made = lay(text, {"service": "chat"}, serve=["10.0.0.1"])
    assert sharing.claims(made, made.fleet.nodes[0]).devices == frozenset()


@pytest.mark.parametrize(
    ("one", "two", "told"),
    [
        (CHAT, CODE, []),
        (CHAT, {**CODE, "devices": "7-14"}, ["device 7 belongs to service code too"]),
        (CHAT, {**CODE, "devices": "4-11"}, ["devices 4-7 belong to service code too"]),
        (
            CHAT,
            {"service": "code", "devices": "8-15"},
            ["port 8000 (vllm-chat-serve-0) is taken by service code (vllm-code-serve-0)"],
        ),
        ({}, CODE, ["devices 8-15 belong to service code too"]),
        (CODE, {}, ["devices 8-15 belong to the service without a name too"]),
        ({"devices": 8}, CODE, []),
        (
            {"devices": "0-7"},
            {"service": "code", "devices": "0,2,4-9"},
            [
                "devices 0, 2, 4-7 belong to service code too",
                "ports 8000, 60000-60031 (vllm-serve-0) are taken by service code (vllm-code-serve-0)",
            ],
        ),
    ],
    ids=["apart", "one-device", "devices", "port", "whole-host", "whole-host-turned", "first-half", "all"],
)
def test_where_two_services_meet(one: dict[str, Any], two: dict[str, Any], told: list[str]) -> None:
    text = SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 8, data_parallel_size: 2")
    plans = [lay(text if not data else SERVE, data, serve=["10.0.0.1"]) for data in (one, two)]
    found = sharing.between(plans)
    assert [f.what for f in found] == told
    assert {(f.rule, f.where, f.severity) for f in found} <= {
        ("PLAN-SHARING", "fleet.py and fleet.py 10.0.0.1", "error")
    }


def test_services_on_different_hosts_never_meet() -> None:
    assert sharing.between([lay(SERVE, {}, serve=["10.0.0.1"]), lay(SERVE, {}, serve=["10.0.0.2"])]) == []


def test_a_host_is_known_by_its_address_whatever_it_is_called() -> None:
    one = lay(SERVE, CHAT, serve=[("a", "10.0.0.1")])
    two = lay(SERVE, {**CODE, "devices": "0-7"}, serve=[("b", "10.0.0.1")])
    assert [(f.where, f.what) for f in sharing.between([one, two])] == [
        ("fleet.py and fleet.py a", "devices 0-7 belong to service code too"),
        ("fleet.py and fleet.py a", "ports 60000-60031 (HCCL) are taken by service code (HCCL)"),
    ]


def test_the_same_service_twice_is_told_as_such() -> None:
    found = sharing.between([lay(SERVE, CHAT, serve=["10.0.0.1"]), lay(GROUP, CHAT, serve=["10.0.0.1", "10.0.0.2"])])
    assert [f.line() for f in found] == [
        "error: fleet.py and fleet.py 10.0.0.1: both are the same service, so each would replace the other; "
        "name one: service = 'chat' [PLAN-SHARING]"
    ]


def two_on_ray(*offsets: int) -> list[Plan]:
    return [
        lay(RAY, {"service": name, "devices": devices, "port_offset": offset}, serve=["10.0.0.1", "10.0.0.2"])
        for name, devices, offset in zip(("chat", "code"), ("0-3", "4-7"), offsets, strict=True)
    ]


@pytest.mark.parametrize("offset", [1, 100, 9998])
def test_rays_client_server_is_not_where_anothers_workers_are(offset: int) -> None:
    """Ray deals 10002 on to workers, one each, and starts as many as there are cores: 10101 is soon one's."""
    plain, moved = two_on_ray(0, offset)
    assert sharing.between([plain, moved]) or moved.units[0].ports["client"] not in ports.RAY_WORKER_PORTS


@pytest.mark.parametrize("offsets", [(0, 100), (100, 0), (100, 200)])
def test_two_services_on_ray_stand_beside_each_other(offsets: tuple[int, int]) -> None:
    plans = two_on_ray(*offsets)
    assert sharing.between(plans) == []
    assert [p.units[0].ports["client"] for p in plans] == [20001 + n if n else 10001 for n in offsets]


@pytest.mark.parametrize(("host", "meets"), [("10.0.0.1", True), ("10.0.0.2", False)])
def test_a_moved_client_server_is_its_heads_alone(host: str, meets: bool) -> None:
    data = {"devices": 4, "port_offset": 100, "proxy_port": 20101}
    if not meets:
        lay(RAY, data, proxy=[host], **RAY_HOSTS)
        return
    with pytest.raises(FleetError, match="vllm-front-door and vllm-ray-serve-0 both want port 20101"):
        lay(RAY, data, proxy=[host], **RAY_HOSTS)


def test_ranks_on_ray_need_no_rpc_port() -> None:
    text = RAY.replace("pipeline_parallel_size: 2", "data_parallel_size: 2")
    made = lay(text, {"devices": 4}, serve=["10.0.0.1", "10.0.0.2"])
    engine = made.units[1]
    assert dict(engine.ports) == {"api": 8000}
    assert "--data-parallel-rpc-port" not in engine.argv


@pytest.mark.parametrize("data", [{"devices": 4}, {"devices": 4, "port_offset": 100}], ids=["usual", "moved"])
def test_rays_client_server_runs_on_its_head_alone(data: dict[str, Any]) -> None:
    lay(RAY, {**data, "proxy_port": 10001}, proxy=["10.0.0.2"], **RAY_HOSTS)


def test_without_an_offset_two_services_on_ray_meet_at_rays_own_ports() -> None:
    """Both heads start a client server at 10001."""
    at_head, at_worker = sharing.between(two_on_ray(0, 0))
    assert at_head.what.startswith("ports 6379, 7390, 8000, 10001 (vllm-chat-ray-serve-0) are taken by service code")
    assert at_worker.what.startswith("port 7390 ")


def test_of_three_services_each_pair_is_held_against_each_other() -> None:
    text = SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 2")
    services = {"chat": "0-1", "code": "2-3", "more": "1-2"}
    plans = [
        lay(text, {"service": name, "devices": devices, "port_offset": 100 * n}, serve=["10.0.0.1"])
        for n, (name, devices) in enumerate(services.items())
    ]
    assert [f.what for f in sharing.between(plans) if f.what.startswith("device")] == [
        "device 1 belongs to service more too",
        "device 2 belongs to service more too",
    ]


@pytest.mark.parametrize("first", [0, 1, 7, 8, 15, 31, 62, 63])
def test_hccls_ports_of_different_devices_never_meet(first: int) -> None:
    made = [
        lay(
            SERVE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 1"),
            {"service": name, "devices": str(index)},
            serve=["10.0.0.1"],
        )
        for name, index in (("chat", first), ("code", (first + 1) % 64))
    ]
    one, two = (
        {port for reserved, owner in ports.reserved_on(m, m.fleet.nodes[0]) if owner == "HCCL" for port in reserved}
        for m in made
    )
    assert (len(one), len(two), one & two) == (32, 32, set())
    assert max(one | two) < 65536


# ---- what the host itself tells of other services


def test_a_manifest_tells_what_is_taken() -> None:
    made = lay(PD, CODE, prefill=["10.0.0.1"], decode=["10.0.0.2"], proxy=["10.0.0.1"])
    _, text = release.build(made, "10.0.0.1", "eth0").files["manifest.json"]
    assert sharing.read_claims(text) == sharing.claims(made, made.fleet.node("10.0.0.1"))


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ('{"service": "a", "devices": [1, 2], "ports": {"80": "x"}}', Claims("a", frozenset({1, 2}), {80: "x"})),
        ('{"recipe": "r", "engine": "1", "units": {}}', Claims("")),  # of a release before services were
        ("{}", Claims("")),
        ("", None),
        ("[]", None),
        ("7", None),
        ("{", None),
        ('{"ports": ["80"]}', None),
        ('{"ports": {"http": "x"}}', None),
        ('{"devices": 3}', None),
        ('{"devices": [[1]]}', None),
        ('{"devices": "12"}', None),
        ('{"devices": ["1"]}', None),
        ('{"devices": [true]}', None),
        ('{"devices": {"1": 2}}', None),
        ('{"ports": ' + "[" * 100_000, None),
        ('{"ports": {"' + "9" * 5000 + '": "x"}}', None),
    ],
)
def test_manifests_good_and_bad(text: str, claims: Claims | None) -> None:
    assert sharing.read_claims(text) == claims


def test_a_run_sees_the_manifests_of_the_others_and_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "ROOT", str(tmp_path))
    for folder, service in (("", ""), ("services/chat/", "chat"), ("services/code/", "code")):
        release_of = tmp_path / folder / "releases/1"
        release_of.mkdir(parents=True)
        (tmp_path / folder / "current").symlink_to("releases/1")
        (release_of / "manifest.json").write_text(json.dumps({"service": service, "devices": [1], "ports": {}}) + "\n")
    seen = [[c.service for c in asked(f"{tmp_path}{home}").others] for home in ("", "/services/chat", "/services/new")]
    assert seen == [["chat", "code"], ["", "code"], ["", "chat", "code"]]


def test_a_bare_host_has_no_other_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ROOT", str(tmp_path))
    assert asked(str(tmp_path)).others == ()


def test_a_manifest_that_cannot_be_read_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ROOT", str(tmp_path))
    texts = {"a": "[" * 100_000, "b": '{\n "service": "b",\n "devices": [2]\n}\n', "e": '{"service": '}
    for name, text in texts.items():
        (tmp_path / f"services/{name}/current").mkdir(parents=True)
        (tmp_path / f"services/{name}/current/manifest.json").write_text(text)
    (tmp_path / "services/d/current").mkdir(parents=True)
    os.mkfifo(tmp_path / "services/d/current/manifest.json")  # nobody writes there: no wait for it
    seen = asked(f"{tmp_path}/services/new")
    assert seen.others == (None, Claims("b", frozenset({2})), None)
    made = lay(SERVE, CODE, serve=["10.0.0.1"])
    judged = admission.judge(made, made.fleet.nodes[0], replace(HEALTHY, others=seen.others))
    assert [f.line() for f in judged] == [
        "warning: 10.0.0.1: the manifest of another service on this host cannot be read, so what it takes is not "
        "known; run the deploy of that service again [HOST-MANIFEST]"
    ]


HEALTHY = Snapshot(
    user_id=0,
    interfaces={"10.0.0.1": "eth0"},
    tools=frozenset({"base64", "curl", "docker", "flock", "ip", "python3", "ss", "tar"}),
    paths=frozenset({"/mnt/models/org/model/config.json"}),
    images={"quay.io/ascend/vllm-ascend:v0.13.0-a3": "sha256:4bc9"},
    systemd=True,
)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Claims("chat", frozenset(range(8)), {8000: "vllm-chat-serve-0"}), []),
        (
            Claims("chat", frozenset({8, 9, 12}), {}),
            [
                "error: 10.0.0.1: devices 8-9, 12 belong to service chat too; "
                "give each service its own with devices = '0-7' and devices = '8-15' [PLAN-SHARING]"
            ],
        ),
        (
            Claims("", frozenset(), {8100: "vllm-serve-0", 9: "x"}),
            [
                "error: 10.0.0.1: port 8100 (vllm-code-serve-0) is taken by the service without a name (vllm-serve-0); "
                "give one of the inventories another port_offset [PLAN-SHARING]"
            ],
        ),
    ],
    ids=["apart", "devices", "port"],
)
def test_admission_tells_what_another_service_takes(other: Claims, told: list[str]) -> None:
    made = lay(SERVE, CODE, serve=["10.0.0.1"])
    # the other's unit holds its port: told once, with the service's name
    seen = replace(HEALTHY, others=(other,), listeners={p: "/system.slice/vllm-serve-0.service" for p in other.ports})
    assert [f.line() for f in admission.judge(made, made.fleet.nodes[0], seen)] == told


def test_the_question_names_the_services_own_folder() -> None:
    made = lay(SERVE, CODE, serve=["10.0.0.1"])
    assert admission.question(made, made.fleet.nodes[0]).home == "/etc/vllm-fleet/services/code"


# ---- fleet check A B


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two services of one host, on its first and second eight devices."""
    for name, data in (("chat", CHAT), ("code", CODE)):
        own = {"recipe": "qwen3-235b-a22b-w8a8/a3-128k", **data}
        (tmp_path / f"{name}.py").write_text(f"serve = [('10.0.0.1', {own!r})]\n")
    return str(tmp_path / "chat.py"), str(tmp_path / "code.py")


def fleet(*words: str) -> Any:
    return CliRunner().invoke(main, words)


def test_inventories_that_do_not_meet(pair: tuple[str, str]) -> None:
    result = fleet("check", *pair)
    assert result.exit_code == 0
    assert [line.partition(": ")[0] for line in result.stdout.splitlines()] == list(pair)
    assert "PLAN-SHARING" not in result.stderr


def test_inventories_that_meet_are_an_error(pair: tuple[str, str]) -> None:
    path = Path(pair[1])
    path.write_text(path.read_text().replace("8-15", "6-13"))
    result = fleet("check", *pair)
    assert result.exit_code == 1
    assert f"{pair[0]} and {pair[1]} 10.0.0.1: devices 6-7 belong to service code too" in result.stderr


def test_several_inventories_as_json(pair: tuple[str, str]) -> None:
    path = Path(pair[1])
    path.write_text(path.read_text().replace("'port_offset': 100", "'port_offset': 0"))
    result = fleet("check", "--json", *pair)
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert list(data) == ["inventories", "between"]
    assert [one["inventory"] for one in data["inventories"]] == list(pair)
    assert [(f["rule"], f["severity"]) for f in data["between"]] == [("PLAN-SHARING", "error")]


def test_one_of_several_that_cannot_be_read_does_not_hide_the_others(pair: tuple[str, str]) -> None:
    result = fleet("check", "inventories/none.py", *pair)
    assert result.exit_code == 2
    assert [line.partition(": ")[0] for line in result.stdout.splitlines()] == list(pair)
    assert "there is no such file" in result.stderr


def test_check_wants_an_inventory() -> None:
    assert fleet("check").exit_code == 2


# ---- how it is tried


def asked(home: str) -> Snapshot:
    text = snapshot.command(Question(home=home))
    return snapshot.parse(
        subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.splitlines()
    )
