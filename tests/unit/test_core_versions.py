"""What differs between versions of the engine: arguments, their spelling, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from fleet import engine, inventory, yamlfile
from fleet.plan import plan
from fleet.recipe import Recipe
from fleet.topology import Plan, Unit

YARN = """
title: t
source: s
platform: nvidia
model:
  name: Qwen/Qwen3-235B-A22B
  max_position_embeddings: 40960
  original_max_position_embeddings: 32768
  rope_theta: 1000000
engine: {vllm: VERSION}
roles:
  serve:
    tensor_parallel_size: 8
    yarn: {factor: 4}
    args: {max-model-len: 131072}
"""
TWO_HOSTS = """
title: t
source: s
platform: nvidia
model: {name: org/model, max_position_embeddings: 4096}
engine: {vllm: VERSION}
roles:
  serve: {tensor_parallel_size: 8, data_parallel_size: 2}
"""
MOONCAKE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, max_position_embeddings: 4096}
engine: {vllm: VERSION, vllm_ascend: VERSION}
roles:
  prefill: {tensor_parallel_size: 16}
  decode: {tensor_parallel_size: 16}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
"""
SCALED = {"rope_type": "yarn", "rope_theta": 1000000, "factor": 4, "original_max_position_embeddings": 32768}
SCALED_BEFORE_0_12 = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("version", "argument", "value"),
    [
        ("0.9.2", "--rope-scaling", SCALED_BEFORE_0_12),
        ("0.11.0", "--rope-scaling", SCALED_BEFORE_0_12),
        ("0.11.1", "--hf-overrides", {"rope_scaling": SCALED_BEFORE_0_12}),
        ("0.11.2", "--hf-overrides", {"rope_scaling": SCALED_BEFORE_0_12}),
        ("0.12.0", "--hf-overrides", {"rope_parameters": SCALED}),
        ("0.13.0", "--hf-overrides", {"rope_parameters": SCALED}),
        ("0.20.0", "--hf-overrides", {"rope_parameters": SCALED}),
        ("0.29.0", "--hf-overrides", {"rope_parameters": SCALED}),
        ("0.30.0", "--hf-overrides", {"rope_parameters": SCALED, "max_position_embeddings": 131072}),
        ("0.32.0", "--hf-overrides", {"rope_parameters": SCALED, "max_position_embeddings": 131072}),
    ],
)
def test_yarn_is_spelled_as_the_version_reads_it(version: str, argument: str, value: object) -> None:
    (unit,) = lay(YARN, version).units
    assert json.loads(option(unit, argument)) == value
    (other,) = {"--rope-scaling", "--hf-overrides"} - {argument}
    assert other not in unit.argv


@pytest.mark.parametrize("version", ["0.11.0", "0.13.0", "0.32.0"])
@pytest.mark.parametrize("length", ["8192", "40960"])
def test_no_yarn_where_the_models_own_context_is_long_enough(version: str, length: str) -> None:
    (unit,) = lay(YARN.replace("131072", length), version).units
    assert "--rope-scaling" not in unit.argv
    assert "--hf-overrides" not in unit.argv


def test_yarn_from_one_token_more_on() -> None:
    (unit,) = lay(YARN.replace("131072", "40961"), "0.13.0").units
    assert "--hf-overrides" in unit.argv


def test_yarn_without_a_length_extends_to_all_it_gives() -> None:
    (unit,) = lay(YARN.replace("    args: {max-model-len: 131072}\n", ""), "0.13.0").units
    assert json.loads(option(unit, "--hf-overrides")) == {"rope_parameters": SCALED}


def test_own_overrides_are_kept_beside_yarn() -> None:
    text = YARN.replace("{max-model-len: 131072}", "{max-model-len: 131072, hf-overrides: {architectures: [X]}}")
    (unit,) = lay(text, "0.13.0").units
    assert json.loads(option(unit, "--hf-overrides")) == {"rope_parameters": SCALED, "architectures": ["X"]}
    assert unit.argv.count("--hf-overrides") == 1


def test_a_factor_of_two_and_a_half_stays_one() -> None:
    (unit,) = lay(YARN.replace("factor: 4", "factor: 2.5").replace("131072", "81920"), "0.32.0").units
    assert json.loads(option(unit, "--hf-overrides")) == {
        "rope_parameters": {**SCALED, "factor": 2.5},
        "max_position_embeddings": 81920,
    }


@pytest.mark.parametrize(("version", "ranks"), [("0.13.0", ["0", "1"]), ("0.20.0", ["0", "1"]), ("0.27.0", ["0", "1"])])
def test_a_start_rank_of_zero_is_written_where_it_means_nothing(version: str, ranks: list[str]) -> None:
    assert [option(u, "--data-parallel-start-rank") for u in lay(TWO_HOSTS, version).units] == ranks


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
def test_a_start_rank_of_zero_is_left_out_where_it_would_change_the_balancing(version: str) -> None:
    head, second = lay(TWO_HOSTS, version).units
    assert "--data-parallel-start-rank" not in head.argv
    assert option(second, "--data-parallel-start-rank") == "1"


@pytest.mark.parametrize(("version", "there"), [("0.16.0", False), ("0.17.0", True), ("0.20.0", True)])
def test_moe_backend_exists_from_0_17_on(version: str, there: bool) -> None:
    text = TWO_HOSTS.replace("{tensor", "{args: {moe-backend: triton}, tensor")
    assert all(("--moe-backend" in u.argv) is there for u in lay(text, version).units)


@pytest.mark.parametrize(("version", "there"), [("0.17.1", False), ("0.18.0", True), ("0.32.0", True)])
def test_the_drain_is_asked_for_from_0_18_on(version: str, there: bool) -> None:
    for unit in lay(TWO_HOSTS + "drain_seconds: 45\n", version).units:
        assert ("--shutdown-timeout" in unit.argv) is there
        assert not there or option(unit, "--shutdown-timeout") == "45"


def test_no_drain_asks_for_none() -> None:
    assert all("--shutdown-timeout" not in u.argv for u in lay(TWO_HOSTS + "drain_seconds: 0\n", "0.32.0").units)


@pytest.mark.parametrize(
    ("version", "module"),
    [
        ("0.11.0", "vllm_ascend.distributed.mooncake_connector"),
        ("0.13.0", "vllm_ascend.distributed.mooncake_connector"),
        ("0.14.0", None),
        ("0.23.0", None),
    ],
)
def test_the_mooncake_module_is_named_before_0_14_only(version: str, module: str | None) -> None:
    for unit in lay(MOONCAKE, version, prefill=["10.0.0.1"], decode=["10.0.0.2"]).units:
        assert json.loads(option(unit, "--kv-transfer-config")).get("kv_connector_module_path") == module


@pytest.mark.parametrize(("version", "value"), [("0.13.0", None), ("0.14.0", "1800"), ("0.32.0", "1800")])
def test_the_engine_is_told_how_long_loading_may_take_from_0_14_on(version: str, value: str | None) -> None:
    for unit in lay(TWO_HOSTS + "start_timeout_seconds: 1800\n", version).units:
        assert unit.env.get("VLLM_ENGINE_READY_TIMEOUT_S") == value


@pytest.mark.parametrize(
    ("argument", "without", "with_it"),
    [
        ("headless", "0.8.5", "0.9.0"),
        ("api-server-count", "0.9.0", "0.9.1"),
        ("async-scheduling", "0.9.2", "0.10.0"),
        ("kv-cache-memory-bytes", "0.10.1", "0.10.2"),
        ("nnodes", "0.11.0", "0.11.1"),
        ("rope-scaling", "0.11.1", "0.11.0"),
        ("disable-log-requests", "0.17.0", "0.16.0"),
        ("swap-space", "0.18.0", "0.17.1"),
    ],
)
def test_arguments_come_and_go(argument: str, without: str, with_it: str) -> None:
    assert not engine.exists(argument, Version(without))
    assert engine.exists(argument, Version(with_it))


def test_an_argument_nobody_has_heard_of_is_passed_on() -> None:
    assert engine.exists("brand-new-thing", Version("0.32.0"))


def test_a_removed_argument_is_not_passed_on() -> None:
    text = TWO_HOSTS.replace("{tensor", "{args: {swap-space: 4, seed: 7}, tensor")
    for unit in lay(text, "0.20.0").units:
        assert "--swap-space" not in unit.argv
        assert option(unit, "--seed") == "7"


def lay(recipe: str, version: str, **roles: list[str]) -> Plan:
    roles = roles or {"serve": ["10.0.0.1", "10.0.0.2"] if "data_parallel_size" in recipe else ["10.0.0.1"]}
    hosts = [name for names in roles.values() for name in names]
    fleet = inventory.build("fleet.py", roles, {name: {"recipe": "r"} for name in hosts})
    document = yamlfile.parse(recipe.replace("VERSION", version), Path("r.yaml"))
    return plan(fleet, Recipe.model_validate(document.data))


def option(unit: Unit, name: str) -> str:
    return unit.argv[unit.argv.index(name) + 1]
