"""A wrong configuration ends the stand-in engine in the way, and with the words, of the real one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_standin_support import STANDIN, Machine, free_port, mooncake, taken

YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


def test_a_right_start_is_accepted(machine: Machine) -> None:
    code, text = machine.refusal("--max-model-len", "40960", "--max-num-seqs", "8")
    assert (code, text.splitlines()[-1]) == (1, "accepted")


def test_it_says_first_that_it_is_a_stand_in(machine: Machine) -> None:
    process = machine.serve("--foo", "1")
    process.wait()
    assert "stand-in for vLLM 0.32.0" in process.text.splitlines()[0]


@pytest.mark.parametrize("arguments", [["--foo", "1"], ["--max-model-len", "50000"], ["--hf-overrides", "{rope"]])
def test_a_process_of_its_own_says_the_same(machine: Machine, arguments: list[str]) -> None:
    words = (str(STANDIN / "bin" / "vllm"), "serve", "m", *arguments)
    alone, fork = machine.alone(*words), machine.run(*words)
    assert alone.wait() == fork.wait()
    own = r"pid[ =]\d+|\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.sub(own, "", alone.text) == re.sub(own, "", fork.text)


def test_an_unknown_argument(machine: Machine) -> None:
    code, text = machine.refusal("--foo")
    assert code == 2
    assert "error: unrecognized arguments: --foo" in text


def test_bad_json(machine: Machine) -> None:
    code, text = machine.refusal("--hf-overrides", "{rope")
    assert code in (1, 2)
    assert "--hf-overrides" in text or "JSON" in text


def test_a_context_longer_than_the_models(machine: Machine) -> None:
    code, text = machine.refusal("--max-model-len", "50000")
    assert code == 1
    assert "User-specified max_model_len (50000) is greater than the derived max_model_len" in text


def test_yarn_multiplies_before_0_30(machine: Machine) -> None:
    overrides = json.dumps({"rope_parameters": YARN})
    args = ("--max-model-len", "131072", "--hf-overrides", overrides)
    assert "accepted" in machine.refusal(*args, VLLM_STANDIN_VERSION="0.13.0")[1]
    assert "(131072) is greater" in machine.refusal(*args, VLLM_STANDIN_VERSION="0.32.0")[1]


def test_yarn_from_0_30_says_the_length_itself(machine: Machine) -> None:
    overrides = json.dumps({"rope_parameters": YARN, "max_position_embeddings": 131072})
    assert "accepted" in machine.refusal("--max-model-len", "131072", "--hf-overrides", overrides)[1]


def test_yarn_under_the_older_key_is_not_read(machine: Machine) -> None:
    overrides = json.dumps({"rope_scaling": YARN})
    args = ("--max-model-len", "131072", "--hf-overrides", overrides)
    assert "(131072) is greater" in machine.refusal(*args, VLLM_STANDIN_VERSION="0.13.0")[1]


def test_a_model_that_is_not_there(machine: Machine) -> None:
    process = machine.run(str(STANDIN / "bin" / "vllm"), "serve", "Qwen/nothing")
    assert process.wait() == 1
    assert process.last_line.startswith("OSError: We couldn't connect to 'https://huggingface.co'")


def test_more_workers_than_devices(machine: Machine) -> None:
    devices(machine, "davinci", 4)
    assert "World size (8) is larger than the number of available NPUs (4)" in machine.refusal("-tp", "8")[1]
    assert "out of bounds for 4 devices" in machine.refusal("-tp", "4", "--data-parallel-size", "2")[1]
    assert "accepted" in machine.refusal("-tp", "4")[1]


def test_fewer_devices_are_visible(machine: Machine) -> None:
    devices(machine, "nvidia", 8)
    assert "available GPUs (2)" in machine.refusal("-tp", "8", CUDA_VISIBLE_DEVICES="0,1")[1]


@pytest.mark.parametrize(
    ("config", "version", "words"),
    [
        ('{"kv_connector":"NixlConnector"}', "0.32.0", "Please specify kv_role when kv_connector is set"),
        ('{"kv_connector":"Nixl","kv_role":"kv_both"}', "0.32.0", "ValueError: Unsupported connector type: Nixl"),
        (mooncake("kv_producer", 1, "0", (0, 1)), "0.13.0", "prefill_tp_size: 0 must be greater than or equal to"),
        (mooncake("kv_producer", 1, "0", (4, 2)), "0.13.0", "says prefill {'tp_size': 4, 'dp_size': 2}"),
        (mooncake("kv_producer", 1, "0", kv_connector_extra_config={}), "0.13.0", 'assert "tp_size" in'),
        (
            mooncake("kv_producer", 1, "0", kv_connector_module_path="vllm_ascend.distributed.mooncake_connector"),
            "0.23.0",
            "ModuleNotFoundError: No module named 'vllm_ascend.distributed.mooncake_connector'",
        ),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_rank":0}', "0.32.0", "kv_rank"),
    ],
    ids=["no role", "connector", "sizes", "own sizes", "no sizes", "module", "key"],
)
def test_a_wrong_transfer_block(machine: Machine, config: str, version: str, words: str) -> None:
    code, text = machine.refusal("--kv-transfer-config", config, VLLM_STANDIN_VERSION=version)
    assert code in (1, 2)
    assert words in text
    assert "accepted" not in text


def test_the_old_module_path_is_fine_where_it_is_not_read(machine: Machine) -> None:
    path = "vllm_ascend.distributed.mooncake_connector"
    block = mooncake("kv_consumer", 1, "0", kv_connector_module_path=path)
    assert "accepted" in machine.refusal("--kv-transfer-config", block, VLLM_STANDIN_VERSION="0.13.0")[1]


def test_addresses_of_another_machine(machine: Machine) -> None:
    assert "EI0001" in machine.refusal(HCCL_IF_IP="192.0.2.9")[1]
    assert "Cannot assign requested address (addr='tcp://192.0.2.9" in machine.refusal(VLLM_HOST_IP="192.0.2.9")[1]


def test_interfaces_that_are_not_there(machine: Machine) -> None:
    assert "Unable to find address for: eth9x" in machine.refusal(GLOO_SOCKET_IFNAME="eth9x")[1]
    assert "[EI0001] set ifname to [=l]" in machine.refusal(HCCL_SOCKET_IFNAME="=l")[1]
    assert "accepted" in machine.refusal(HCCL_SOCKET_IFNAME="l", GLOO_SOCKET_IFNAME="lo")[1]


def test_the_api_port_is_taken(machine: Machine) -> None:
    with taken() as port:
        process = machine.serve("--host", "127.0.0.1", "--port", str(port))
        assert process.wait() == 1
        assert process.last_line == "OSError: [Errno 98] Address already in use"


def test_a_handshake_port_of_the_second_rank_is_taken(machine: Machine) -> None:
    with taken("127.0.0.2") as port:
        block = mooncake("kv_producer", port - 3, "0", (2, 2))
        args = ("-tp", "2", "--data-parallel-size", "2", "--kv-transfer-config", block)
        code, text = machine.refusal(*args, VLLM_HOST_IP="127.0.0.2", VLLM_STANDIN_VERSION="0.13.0")
    assert code == 1
    assert f"zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.2:{port}')" in text


def test_the_side_channel_is_taken(machine: Machine) -> None:
    with taken("127.0.0.2") as port:
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.2", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        block = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
        assert "Address already in use" in machine.refusal("--kv-transfer-config", block, **env)[1]


def test_the_port_of_hccl_is_taken(machine: Machine) -> None:
    with taken("127.0.0.2") as port:
        text = machine.refusal(HCCL_IF_IP="127.0.0.2", HCCL_IF_BASE_PORT=str(port))[1]
        assert f"(EI0019): Failed to bind the IP port. The IP address 127.0.0.2 and port {port} have already" in text
        ports = f"{port},{free_port('127.0.0.2')}"
        assert "accepted" in machine.refusal(HCCL_IF_IP="127.0.0.2", HCCL_HOST_SOCKET_PORT_RANGE=ports)[1]


def test_the_heads_address_is_another_machines(machine: Machine) -> None:
    args = ("--data-parallel-size", "2", "--data-parallel-size-local", "1", "--data-parallel-address", "192.0.2.9")
    text = machine.refusal(*args, "--data-parallel-rpc-port", "13389")[1]
    assert "Cannot assign requested address (addr='tcp://192.0.2.9:13389')" in text


def devices(machine: Machine, kind: str, count: int) -> None:
    """Device nodes, as files."""
    folder = machine.folder / "dev"
    folder.mkdir()
    for number in range(count):
        (folder / f"{kind}{number}").touch()
    (folder / f"{kind}_manager").touch()
