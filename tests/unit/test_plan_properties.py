"""What holds whatever the sizes: ranks, ports, devices, ids, both sides of the transfer, and the order of starts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet import inventory, recipe, yamlfile
from fleet.findings import FleetError
from fleet.plan import plan
from fleet.recipe import Recipe
from fleet.render import as_data
from fleet.topology import Instance, Plan, Unit

PD = """
title: t
source: s
platform: ascend-a3
model: {{name: org/model, max_position_embeddings: 40960}}
engine: {{vllm: 0.13.0, vllm_ascend: 0.13.0}}
roles:
  prefill: {{port: 8000, tensor_parallel_size: {prefill[0]}, data_parallel_size: {prefill[1]}}}
  decode: {{port: 8000, tensor_parallel_size: {decode[0]}, data_parallel_size: {decode[1]}}}
kv_transfer: {{connector: MooncakeConnectorV1, port: 36000}}
proxy: {{port: 12347}}
"""
SIZES = st.tuples(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16]), st.sampled_from([1, 2, 3, 4, 6, 7, 8, 16, 32, 64]))


# ---- any sizes


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    prefill=SIZES,
    decode=SIZES,
    devices=st.sampled_from([8, 16, "0-7", "8-15"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    spare=st.sampled_from([0, 0, 0, 1]),
    door=st.booleans(),
)
def test_a_plan_holds_or_says_why_not(
    prefill: tuple[int, int],
    decode: tuple[int, int],
    devices: int | str,
    shape: tuple[int, int, int],
    spare: int,
    door: bool,
) -> None:
    """``shape`` is prefill and decode instances of a set, and sets; ``spare`` hosts are too many."""
    sizes = {"prefill": prefill, "decode": decode}
    on_host = 8 if isinstance(devices, str) else devices
    groups = {
        role: hosts(subnet, count * shape[2] * hosts_of_instance(*sizes[role], on_host) + spare)
        for subnet, (role, count) in enumerate(zip(sizes, shape[:2], strict=True), 1)
    }
    groups["proxy"] = groups["prefill"][:1]
    data = {"devices": devices, "sets": shape[2], "front_door": door}
    try:
        made = lay(PD.format(**sizes), data, groups)
    except FleetError as exc:
        assert {f.rule.partition("-")[0] for f in exc.findings} == {"PLAN"}
        if {f.rule for f in exc.findings} == {"PLAN-PORTS"}:
            largest = max(tp * dp for tp, dp in sizes.values())
            assert 36000 + -(-largest // 100) * 100 * (shape[0] + shape[1]) * shape[2] > 60000
        else:
            assert spare or any(not fits(*size, on_host) for size in sizes.values())
        return
    if not spare:
        assert [len(made.of_role(role)) for role in sizes] == [shape[0] * shape[2], shape[1] * shape[2]]
    holds(made, sizes, {8: range(8), 16: range(16), "0-7": range(8), "8-15": range(8, 16)}[devices])


def holds(made: Plan, sizes: dict[str, tuple[int, int]], devices: range) -> None:
    """Everything that is asked of a plan of prefill and decode."""
    for instance in made.instances:
        ranks = [r for m in instance.members for r in range(m.start_rank, m.start_rank + m.local_size)]
        assert ranks == list(range(sizes[instance.role][1]))
        assert all(len(m.devices) == m.local_size * sizes[instance.role][0] for m in instance.members)
    ids = [i.engine_id for i in made.instances]
    assert len(set(ids)) == len(ids)
    ports, hccl = ports_of(made), set(reserved(devices))
    names, taken = defaultdict(list), defaultdict(list)
    for unit in made.units:
        names[unit.host].append(unit.name)
    for member in (m for i in made.instances for m in i.members):
        taken[member.node.name] += member.devices
    assert set(names) == set(taken) == {n.name for n in made.fleet.nodes}
    for host in names:
        assert len(set(names[host])) == len(names[host])
        assert [port for port, count in Counter(ports[host]).items() if count > 1] == []
        assert hccl.isdisjoint(ports[host])
        assert 1024 <= min(ports[host]) <= max(ports[host]) <= 65535
        assert len(set(taken[host])) == len(taken[host])
        assert set(taken[host]) <= set(devices)
    expected = {role: {"dp_size": dp, "tp_size": tp} for role, (tp, dp) in sizes.items()}
    for unit in made.units:
        if unit.kind == "engine":
            instance = instance_of(made, unit)
            block = json.loads(option(unit, "--kv-transfer-config"))
            assert block["kv_connector_extra_config"].items() >= expected.items()
            assert (block["engine_id"], block["kv_port"]) == (instance.engine_id, str(instance.kv_port))
            assert option(unit, "--tensor-parallel-size") == str(sizes[unit.role][0])
            assert option(unit, "--data-parallel-size") == str(sizes[unit.role][1])
    assert sorted(at for stage in made.start_order for at in stage) == sorted(u.at for u in made.units)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    role=st.sampled_from(["prefill", "decode"]),
    size=st.sampled_from([(1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (4, 8), (8, 4)]),
)
def test_a_size_changed_in_its_one_place_changes_both_sides(role: str, size: tuple[int, int]) -> None:
    sizes = {"prefill": (8, 2), "decode": (4, 8)}
    for changed in (sizes, {**sizes, role: size}):
        groups = {r: hosts(n, hosts_of_instance(*changed[r], 16)) for n, r in enumerate(changed)}
        holds(lay(PD.format(**changed), {}, groups), changed, range(16))


@pytest.mark.parametrize("line", ["tensor_parallel_size: 8", "data_parallel_size: 2"])
def test_one_line_of_the_shipped_recipe_is_a_size_of_both_sides(line: str) -> None:
    text = recipe.find("qwen3-235b-a22b-w8a8/a3-pd-current").read_text()
    assert text.count(f"    {line}\n") == 1
    halved = text.replace(f"    {line}\n", f"    {line.partition(':')[0]}: {int(line[-1]) // 2}\n")
    made = lay(halved, {}, {"prefill": hosts(1, 1), "decode": hosts(2, 2)})
    wanted = {"dp_size": 1, "tp_size": 8} if "data" in line else {"dp_size": 2, "tp_size": 4}
    blocks = [json.loads(option(u, "--kv-transfer-config"))["kv_connector_extra_config"] for u in made.units]
    assert [b["prefill"] for b in blocks] == [wanted] * 3
    assert [b["decode"] for b in blocks] == [{"dp_size": 8, "tp_size": 4}] * 3


# ---- from one prefill and two decode hosts to eight and sixteen

LARGE = [(n, sets) for n in range(1, 9) for sets in sorted({1, n})]


@pytest.mark.parametrize(("n", "sets"), LARGE)
def test_the_shipped_recipe_from_one_to_eight_instances_a_role(n: int, sets: int) -> None:
    made = shipped(n, sets)
    assert [i.name for i in made.instances] == [f"{role}-{k}" for role in ("prefill", "decode") for k in range(n)]
    assert [i.engine_id for i in made.instances] == [f"{k}-<start>" for k in range(2 * n)]
    assert [i.kv_port for i in made.instances] == [36000 + 100 * k for k in range(2 * n)]
    assert len(made.sets) == sets
    holds(made, {"prefill": (8, 2), "decode": (4, 8)}, range(16))
    assert len({u.at for u in made.units}) == len(made.units) == 3 * n + (1 if sets == 1 else sets + 1)


@pytest.mark.parametrize(("n", "sets"), LARGE)
def test_a_stage_starts_after_what_it_needs(n: int, sets: int) -> None:
    made = shipped(n, sets)
    by_name = {u.at: u for u in made.units}
    kinds = [{(by_name[at].kind, "--headless" in by_name[at].argv) for at in stage} for stage in made.start_order]
    middle = [{("router", False)}] if sets > 1 else []
    assert kinds == [{("engine", True)}, {("engine", False)}, *middle, {("proxy", False)}]
    assert list(made.start_order[0]) == [f"vllm-decode-{k}@10.2.0.{2 * k + 2}" for k in range(n)]


@pytest.mark.parametrize(("n", "sets"), [(1, 1), (4, 4), (8, 1), (8, 8)])
def test_the_same_fleet_gives_the_same_plan_whatever_the_order_of_its_groups(n: int, sets: int) -> None:
    once, again, turned = (json.dumps(as_data(shipped(n, sets, backwards=b))) for b in (False, False, True))
    assert once == again
    data = [json.loads(text) for text in (once, turned)]
    for one in data:
        one["hosts"] = dict(sorted(one["hosts"].items()))
    assert {json.dumps(one["hosts"]) for one in data} == {json.dumps(data[0]["hosts"])}
    assert data[0] == data[1]
    assert data[0]["start_order"] == data[1]["start_order"]


# ---- how it is tried


def fits(tp: int, dp: int, devices: int) -> bool:
    """Whether an instance fills whole hosts: the rule, said anew."""
    return tp <= devices and dp % min(devices // tp, dp) == 0


def hosts_of_instance(tp: int, dp: int, devices: int) -> int:
    return dp // min(devices // tp, dp) if fits(tp, dp, devices) else 1


def hosts(subnet: int, count: int) -> list[str]:
    return [f"10.{subnet}.{n // 250}.{n % 250 + 1}" for n in range(count)]


def reserved(devices: range) -> range:
    """HCCL's own ports: from 60000 on where the whole host is ours, else by the first device of ours."""
    start = 60000 + 32 * devices.start
    return range(start, start + 32)


def ports_of(made: Plan) -> dict[str, list[int]]:
    """Every port of each host: the units' own, and one for each rank's device that hands over its cache."""
    found: dict[str, list[int]] = defaultdict(list)
    for unit in made.units:
        found[unit.host] += [port for purpose, port in unit.ports.items() if purpose != "kv"]
    for instance in made.instances:
        share = instance.spec.tensor_parallel_size * instance.spec.pipeline_parallel_size
        assert instance.kv_port is not None
        handshakes = [
            instance.kv_port + rank * share + i
            for rank in range(instance.spec.data_parallel_size)
            for i in range(share)
        ]
        for member in instance.members:
            found[member.node.name] += handshakes
    return found


def instance_of(made: Plan, unit: Unit) -> Instance:
    found = made.instance(unit.instance)
    assert found is not None
    return found


def option(unit: Unit, name: str) -> str:
    return unit.argv[unit.argv.index(name) + 1]


def shipped(n: int, sets: int, backwards: bool = False) -> Plan:
    groups = {"prefill": hosts(1, n), "decode": hosts(2, 2 * n), "proxy": hosts(1, 1)}
    text = recipe.find("qwen3-235b-a22b-w8a8/a3-pd-current").read_text()
    return lay(text, {"sets": sets}, dict(reversed(groups.items())) if backwards else groups)


def lay(text: str, data: dict[str, Any], groups: dict[str, list[str]]) -> Plan:
    names = dict.fromkeys(name for its in groups.values() for name in its)
    fleet = inventory.build("fleet.py", groups, {name: {"recipe": "r", **data} for name in names})
    return plan(fleet, Recipe.model_validate(yamlfile.parse(text, Path("r.yaml")).data))
