"""From hosts and sizes to instances, ranks, ids, ports and devices."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import inventory, yamlfile
from fleet.findings import FleetError
from fleet.plan import plan
from fleet.recipe import Recipe
from fleet.render import as_data
from fleet.topology import Plan, Unit

SERVE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {port: 8000, tensor_parallel_size: 4, data_parallel_size: 8}
"""
PD = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  prefill: {port: 8000, tensor_parallel_size: 8, data_parallel_size: 2}
  decode: {port: 8000, tensor_parallel_size: 4, data_parallel_size: 8}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000, extra: {use_ascend_direct: true}}
"""
RAY = """
title: t
source: s
platform: ascend-a2
model: {name: org/model, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {port: 8000, tensor_parallel_size: 8, pipeline_parallel_size: 2, executor: ray}
"""


def test_four_decode_hosts_become_two_instances_of_two() -> None:
    made = lay(PD, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"])
    assert [(i.name, [m.node.name for m in i.members]) for i in made.instances] == [
        ("prefill-0", ["10.0.0.1"]),
        ("decode-0", ["10.0.0.2", "10.0.0.3"]),
        ("decode-1", ["10.0.0.4", "10.0.0.5"]),
    ]


def test_each_instance_has_ids_and_ports_of_its_own() -> None:
    made = lay(PD, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"])
    assert [(i.name, i.engine_id, i.kv_port, i.rpc_port) for i in made.instances] == [
        ("prefill-0", "0-<start>", 36000, 13389),
        ("decode-0", "1-<start>", 36100, 13390),
        ("decode-1", "2-<start>", 36200, 13391),
    ]


def test_both_sides_of_the_transfer_say_the_same_sizes() -> None:
    made = lay(PD, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3"])
    blocks = {u.at: json.loads(option(u, "--kv-transfer-config")) for u in made.units}
    assert blocks["vllm-prefill-0@10.0.0.1"] == {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": "36000",
        "engine_id": "0-<start>",
        "kv_connector_module_path": "vllm_ascend.distributed.mooncake_connector",
        "kv_connector_extra_config": {
            "use_ascend_direct": True,
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 8, "tp_size": 4},
        },
    }
    assert blocks["vllm-decode-0@10.0.0.2"] == blocks["vllm-decode-0@10.0.0.3"]
    assert blocks["vllm-decode-0@10.0.0.2"]["kv_role"] == "kv_consumer"
    assert blocks["vllm-decode-0@10.0.0.2"]["kv_port"] == "36100"
    assert blocks["vllm-decode-0@10.0.0.2"]["engine_id"] == "1-<start>"
    assert (
        blocks["vllm-decode-0@10.0.0.2"]["kv_connector_extra_config"]
        == blocks["vllm-prefill-0@10.0.0.1"]["kv_connector_extra_config"]
    )


def test_every_host_but_the_first_of_an_instance_is_headless() -> None:
    made = lay(SERVE, serve=["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    assert [(u.at, "--headless" in u.argv) for u in made.units] == [
        ("vllm-serve-0@10.0.0.1", False),
        ("vllm-serve-0@10.0.0.2", True),
        ("vllm-serve-1@10.0.0.3", False),
        ("vllm-serve-1@10.0.0.4", True),
    ]


def test_ranks_are_split_over_the_hosts_and_meet_at_the_first() -> None:
    made = lay(SERVE, serve=["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    names = ("size", "size-local", "start-rank", "address", "rpc-port")
    assert [tuple(option(u, f"--data-parallel-{name}") for name in names) for u in made.units] == [
        ("8", "4", "0", "10.0.0.1", "13389"),
        ("8", "4", "4", "10.0.0.1", "13389"),
        ("8", "4", "0", "10.0.0.3", "13390"),
        ("8", "4", "4", "10.0.0.3", "13390"),
    ]


def test_only_the_head_of_an_instance_serves_and_every_host_tells_the_others_that_it_lives() -> None:
    made = lay(SERVE, serve=["10.0.0.1", "10.0.0.2"])
    assert [dict(u.ports) for u in made.units] == [{"api": 8000, "rpc": 13389, "group": 7390}, {"group": 7390}]
    assert [i.url for i in made.instances] == ["http://10.0.0.1:8000"]


def test_one_host_alone_needs_no_addresses() -> None:
    made = lay(SERVE.replace("data_parallel_size: 8", "data_parallel_size: 4"), serve=["10.0.0.1"])
    (unit,) = made.units
    assert unit.argv == (
        *("vllm", "serve", "org/model", "--port", "8000"),
        *("--tensor-parallel-size", "4", "--data-parallel-size", "4"),
    )
    assert dict(unit.env) == {}


def test_an_instance_takes_only_the_devices_it_needs() -> None:
    made = lay(SERVE.replace("data_parallel_size: 8", "data_parallel_size: 2"), serve=["10.0.0.1"])
    assert made.instances[0].members[0].devices == (0, 1, 2, 3, 4, 5, 6, 7)
    assert made.units[0].devices == (
        *("/dev/davinci0", "/dev/davinci1", "/dev/davinci2", "/dev/davinci3"),
        *("/dev/davinci4", "/dev/davinci5", "/dev/davinci6", "/dev/davinci7"),
        *("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    )


def test_a_host_with_fewer_devices_holds_fewer_ranks() -> None:
    made = lay(SERVE, data={"devices": 8}, serve=["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    assert [(m.start_rank, m.local_size, m.devices) for m in made.instances[0].members] == [
        (0, 2, (0, 1, 2, 3, 4, 5, 6, 7)),
        (2, 2, (0, 1, 2, 3, 4, 5, 6, 7)),
        (4, 2, (0, 1, 2, 3, 4, 5, 6, 7)),
        (6, 2, (0, 1, 2, 3, 4, 5, 6, 7)),
    ]


def test_ray_heads_come_first_then_workers_then_the_engine() -> None:
    made = lay(RAY, ray_worker=["10.0.0.3", "10.0.0.4"], ray_head=["10.0.0.1", "10.0.0.2"])
    assert [(i.name, [m.node.name for m in i.members]) for i in made.instances] == [
        ("serve-0", ["10.0.0.1", "10.0.0.3"]),
        ("serve-1", ["10.0.0.2", "10.0.0.4"]),
    ]
    assert made.start_order == (
        ("vllm-ray-serve-0@10.0.0.1", "vllm-ray-serve-1@10.0.0.2"),
        ("vllm-ray-serve-0@10.0.0.3", "vllm-ray-serve-1@10.0.0.4"),
        ("vllm-serve-0@10.0.0.1", "vllm-serve-1@10.0.0.2"),
    )


def test_the_engine_on_ray_needs_the_ray_unit_of_its_host() -> None:
    made = lay(RAY, ray_head=["10.0.0.1"], ray_worker=["10.0.0.2"])
    assert [(u.at, u.needs) for u in made.units] == [
        ("vllm-ray-serve-0@10.0.0.1", ()),
        ("vllm-serve-0@10.0.0.1", ("vllm-ray-serve-0",)),
        ("vllm-ray-serve-0@10.0.0.2", ()),
    ]


def test_heads_without_their_workers_are_refused() -> None:
    with pytest.raises(FleetError, match=r"2 ray_head and 4 ray_worker hosts.*give each head 1 worker.*PLAN-HOSTS"):
        lay(RAY, ray_head=["10.0.0.1", "10.0.0.2"], ray_worker=["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"])


def test_a_role_may_be_listed_in_the_inventory_in_any_order() -> None:
    made = lay(PD, decode=["10.0.0.5", "10.0.0.2"], prefill=["10.0.0.1"])
    assert [(i.name, i.head.name, i.engine_id) for i in made.instances] == [
        ("prefill-0", "10.0.0.1", "0-<start>"),
        ("decode-0", "10.0.0.5", "1-<start>"),
    ]


def test_a_roles_own_arguments_and_environment_win_over_the_shared_ones() -> None:
    text = SERVE.replace("roles:", "shared: {args: {seed: 1, max-num-seqs: 4}, env: {A: 1, B: 1}}\nroles:").replace(
        "{port: 8000,", "{args: {seed: 2, max_num_seqs: null}, env: {B: 2, A: null}, port: 8000,"
    )
    unit = lay(text, serve=["10.0.0.1", "10.0.0.2"]).units[0]
    assert option(unit, "--seed") == "2"
    assert "--max-num-seqs" not in unit.argv
    assert unit.env["B"] == "2"
    assert "A" not in unit.env


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("enforce-eager: true", ["--enforce-eager"]),
        ("enable_prefix_caching: false", ["--no-enable-prefix-caching"]),
        ("max-num-seqs: 17", ["--max-num-seqs", "17"]),
        ("gpu-memory-utilization: 0.95", ["--gpu-memory-utilization", "0.95"]),
        ("gpu-memory-utilization: '0.90'", ["--gpu-memory-utilization", "0.90"]),
        ("compilation-config: {a: {b: [1, 2]}}", ["--compilation-config", '{"a":{"b":[1,2]}}']),
        ("allowed-origins: [a, b]", ["--allowed-origins", "a", "b"]),
        ("compilation_config.cudagraph_mode: NONE", ["--compilation-config.cudagraph_mode", "NONE"]),
        ("seed: null", []),
    ],
)
def test_arguments_become_words(argument: str, words: list[str]) -> None:
    text = SERVE.replace("{port: 8000,", f"{{args: {{{argument}}}, port: 8000,")
    with_it, without = (lay(t, serve=["10.0.0.1", "10.0.0.2"]).units[0].argv for t in (text, SERVE))
    assert [word for word in with_it if word not in without] == words


def test_values_are_written_as_a_shell_would_read_them() -> None:
    text = SERVE.replace("{port: 8000,", "{env: {A: true, B: false, C: 0.5, D: 1, E: 'x y'}, port: 8000,")
    env = lay(text, serve=["10.0.0.1", "10.0.0.2"]).units[0].env
    assert [env[name] for name in "ABCDE"] == ["true", "false", "0.5", "1", "x y"]


def test_a_hosts_own_environment_wins() -> None:
    text = SERVE.replace("{port: 8000,", "{env: {A: 1}, port: 8000,")
    made = lay(text, data={"env": {"A": 2, "B": True}}, serve=["10.0.0.1", "10.0.0.2"])
    assert [(u.env["A"], u.env["B"]) for u in made.units] == [("2", "true"), ("2", "true")]


def test_the_inventory_can_ask_for_another_engine() -> None:
    made = lay(SERVE, data={"engine_version": "0.20.0", "image": "mine:1"}, serve=["10.0.0.1", "10.0.0.2"])
    assert made.recipe.engine.vllm == "0.20.0"
    assert {u.image for u in made.units} == {"mine:1"}
    assert option(made.units[0], "--shutdown-timeout") == "60"


def test_an_image_comes_through_the_registry_mirror() -> None:
    made = lay(SERVE, data={"registry_mirror": "m.daocloud.io/"}, serve=["10.0.0.1", "10.0.0.2"])
    assert {u.image for u in made.units} == {"m.daocloud.io/quay.io/ascend/vllm-ascend:v0.13.0-a3"}


def test_native_units_have_no_image_and_no_mounts() -> None:
    made = lay(SERVE, data={"runtime": "native", "venv": "/opt/v"}, serve=["10.0.0.1", "10.0.0.2"])
    unit = made.units[0]
    assert (unit.runtime, unit.image, unit.mounts, unit.venv) == ("native", None, (), "/opt/v")
    assert unit.setup_files == (
        "/usr/local/Ascend/ascend-toolkit/set_env.sh",
        "/usr/local/Ascend/nnal/atb/set_env.sh",
    )


def test_own_mounts_are_added_behind_the_weights() -> None:
    mounts = ["/data", "/etc/x:/y:ro"]
    made = lay(SERVE, data={"mounts": mounts, "weights_dir": "/srv/w/"}, serve=["10.0.0.1", "10.0.0.2"])
    assert made.units[0].mounts[-3:] == ("/srv/w:/srv/w:ro", "/data:/data", "/etc/x:/y:ro")
    assert made.units[0].workdir == "/srv/w"


def test_the_interface_is_found_from_the_address_not_from_the_name() -> None:
    hosts = [("a", {"address": "10.0.0.1"}), ("b", {"ssh_hostname": "10.0.0.2"})]
    made = lay(SERVE, serve=hosts)
    assert [u.env["GLOO_SOCKET_IFNAME"] for u in made.units] == ["<interface of 10.0.0.1>", "<interface of 10.0.0.2>"]
    bound = made.units[0].with_interface("10.0.0.1", "enp67s0f0")
    assert bound.env["GLOO_SOCKET_IFNAME"] == "enp67s0f0"
    assert bound.env["TP_SOCKET_IFNAME"] == "enp67s0f0"
    assert bound.env["HCCL_SOCKET_IFNAME"] == "=enp67s0f0"


def test_an_ipv6_address_stands_in_brackets_before_a_port() -> None:
    made = lay(SERVE, serve=[("a", {"address": "fd00::1"}), ("b", {"address": "fd00::2"})])
    assert made.instances[0].url == "http://[fd00::1]:8000"
    assert option(made.units[1], "--data-parallel-address") == "fd00::1"


def test_clients_enter_at_the_proxies_or_at_the_instances() -> None:
    replicas = SERVE.replace("data_parallel_size: 8", "data_parallel_size: 4") + "proxy: {port: 9000}\n"
    hosts = ["10.0.0.1", "10.0.0.2"]
    assert lay(replicas, serve=hosts).entries == ("http://10.0.0.1:8000", "http://10.0.0.2:8000")
    assert lay(replicas, serve=hosts, proxy=["10.0.0.1"]).entries == ("http://10.0.0.1:9000",)


# ---- whatever the sizes

SIZES = st.sampled_from([1, 2, 4, 8, 16])


@settings(max_examples=100, deadline=None)
@given(tp=SIZES, ranks_per_host=st.integers(1, 4), hosts=st.integers(1, 6), instances=st.integers(1, 4))
def test_every_rank_runs_exactly_once(tp: int, ranks_per_host: int, hosts: int, instances: int) -> None:
    devices = tp * ranks_per_host
    text = SERVE.replace(
        "tensor_parallel_size: 4, data_parallel_size: 8",
        f"tensor_parallel_size: {tp}, data_parallel_size: {ranks_per_host * hosts}",
    )
    names = [f"10.0.0.{n + 1}" for n in range(hosts * instances)]
    made = lay(text, data={"devices": devices}, serve=names)
    assert len(made.instances) == instances
    for instance in made.instances:
        ranks = [r for m in instance.members for r in range(m.start_rank, m.start_rank + m.local_size)]
        assert ranks == list(range(ranks_per_host * hosts))
        assert all(len(m.devices) == devices for m in instance.members)
    assert sorted(m.node.name for i in made.instances for m in i.members) == sorted(names)


@settings(max_examples=60, deadline=None)
@given(
    prefill=st.tuples(SIZES, st.integers(1, 4), st.integers(1, 3)),
    decode=st.tuples(SIZES, st.integers(1, 4), st.integers(1, 3)),
    counts=st.tuples(st.integers(1, 8), st.integers(1, 8)),
)
def test_no_port_twice_and_no_id_twice(
    prefill: tuple[int, int, int], decode: tuple[int, int, int], counts: tuple[int, int]
) -> None:
    text, groups, number = PD, {}, 0
    for role, (tp, ranks, hosts), count in (("prefill", prefill, counts[0]), ("decode", decode, counts[1])):
        sizes = f"tensor_parallel_size: {tp}, data_parallel_size: {ranks * hosts}"
        text = re.sub(rf"{role}: {{.*}}", f"{role}: {{port: 8000, {sizes}}}", text)
        groups[role] = [
            (f"10.0.{(number + n) // 250}.{(number + n) % 250 + 1}", {"devices": tp * ranks})
            for n in range(hosts * count)
        ]
        number += hosts * count
    made = lay(text, proxy=[groups["prefill"][0]], **groups)
    ids = [i.engine_id for i in made.instances]
    assert len(set(ids)) == len(ids) == counts[0] + counts[1]
    for node in made.fleet.nodes:
        ports = [port for unit in made.units_of(node.name) for port in unit.ports.values()]
        assert len(set(ports)) == len(ports)
    handshakes = sorted((i.kv_port, i.spec.world_size) for i in made.instances if i.kv_port is not None)
    for (port, size), (following, _) in itertools.pairwise(handshakes):
        assert port + size <= following


@settings(max_examples=25, deadline=None)
@given(instances=st.integers(1, 6), order=st.permutations(["prefill", "decode", "proxy"]))
def test_the_same_input_gives_the_same_bytes(instances: int, order: list[str]) -> None:
    groups = {
        "prefill": [f"10.0.1.{n + 1}" for n in range(instances)],
        "decode": [f"10.0.2.{n + 1}" for n in range(2 * instances)],
        "proxy": ["10.0.1.1"],
    }
    once = json.dumps(as_data(lay(PD, **{role: groups[role] for role in order})))
    again = json.dumps(as_data(lay(PD, **{role: groups[role] for role in order})))
    assert once == again


@pytest.mark.parametrize(("prefills", "decodes"), [(1, 2), (2, 2), (4, 8), (8, 16)])
def test_large_fleets_have_ids_and_ports_in_range(prefills: int, decodes: int) -> None:
    made = lay(
        PD,
        prefill=[f"10.0.1.{n + 1}" for n in range(prefills)],
        decode=[f"10.0.2.{n + 1}" for n in range(2 * decodes)],
    )
    assert [i.engine_id for i in made.instances] == [f"{n}-<start>" for n in range(prefills + decodes)]
    assert [i.kv_port for i in made.instances] == [36000 + 100 * n for n in range(prefills + decodes)]


def test_an_instance_of_more_than_a_hundred_devices_has_room_for_its_ports() -> None:
    text = PD.replace(
        "tensor_parallel_size: 4, data_parallel_size: 8", "tensor_parallel_size: 4, data_parallel_size: 32"
    )
    made = lay(text, prefill=["10.0.0.1"], decode=[f"10.0.1.{n}" for n in range(1, 9)])
    assert [i.kv_port for i in made.instances] == [36000, 36200]


def test_a_port_among_the_handshakes_of_an_instance_is_refused() -> None:
    """Prefill on one host of sixteen devices: 36000 to 36015; decode's begin at 36100."""
    hosts: dict[str, list[Any]] = {"prefill": ["10.0.0.1"], "decode": ["10.0.0.2", "10.0.0.3"], "proxy": ["10.0.0.1"]}
    for port in (36001, 36008, 36015):
        with pytest.raises(FleetError) as refused:
            lay(PD, data={"proxy_port": port}, **hosts)
        assert [f.line() for f in refused.value.findings] == [
            f"error: fleet.py 10.0.0.1: vllm-proxy wants port {port}, a handshake port of prefill-0; "
            "choose one outside 36000-36015 [PLAN-PORTS]"
        ]


@pytest.mark.parametrize("port", [35999, 36016, 36100, 36131])
def test_a_port_beside_the_handshakes_is_fine(port: int) -> None:
    """Those of decode are ports of other hosts."""
    made = lay(PD, data={"proxy_port": port}, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3"], proxy=["10.0.0.1"])
    assert made.entries == (f"http://10.0.0.1:{port}",)


@pytest.mark.parametrize("host", ["10.0.0.2", "10.0.0.3"])
def test_every_host_of_an_instance_keeps_its_handshake_ports(host: str) -> None:
    with pytest.raises(FleetError, match=r"port 36131, a handshake port of decode-0; .* 36100-36131 \[PLAN-PORTS"):
        lay(PD, data={"proxy_port": 36131}, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3"], proxy=[host])


def test_an_engines_own_api_stays_out_of_its_handshakes() -> None:
    text = PD.replace("decode: {port: 8000", "decode: {port: 36105")
    with pytest.raises(FleetError, match=r"10\.0\.0\.2: vllm-decode-0 wants port 36105, a handshake port of decode-0"):
        lay(text, prefill=["10.0.0.1"], decode=["10.0.0.2", "10.0.0.3"])


# ---- how a plan is made here


def lay(recipe: str, data: dict[str, Any] | None = None, **roles: list[Any]) -> Plan:
    """The plan of a recipe's text and of groups of hosts, each a name or a name with its data."""
    pairs = {role: [host if isinstance(host, tuple) else (host, {}) for host in hosts] for role, hosts in roles.items()}
    groups = {role: [name for name, _ in hosts] for role, hosts in pairs.items()}
    merged = {name: {"recipe": "r", **(data or {}), **own} for hosts in pairs.values() for name, own in hosts}
    fleet = inventory.build("fleet.py", groups, merged)
    return plan(fleet, Recipe.model_validate(yamlfile.parse(recipe, Path("r.yaml")).data))


def option(unit: Unit, name: str) -> str:
    return unit.argv[unit.argv.index(name) + 1]


def test_a_size_that_wastes_devices_is_what_is_to_be_mended() -> None:
    text = SERVE.replace("tensor_parallel_size: 4", "tensor_parallel_size: 3")
    with pytest.raises(FleetError, match="choose tensor and pipeline sizes whose product divides 16"):
        lay(text, serve=["10.0.0.1", "10.0.0.2"])
