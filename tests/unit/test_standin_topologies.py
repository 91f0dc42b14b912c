"""Stand-in engines over several hosts, apart for prefill and decode, behind their proxy, and on Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_standin_support import PROXY, PYTHON, STANDIN, Api, Machine, Process, free_port, mooncake, until

P, D = "127.0.0.2", "127.0.0.3"
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
SIZES = ("--data-parallel-size", "2", "--data-parallel-size-local", "1")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


class Pair:
    """A head and a headless member, on two addresses of the loopback."""

    def __init__(self, machine: Machine, *head: str, member: tuple[str, ...] = (), **env: str) -> None:
        rpc = ("--data-parallel-address", P, "--data-parallel-rpc-port", str(free_port(P)))
        self.member = machine.serve(
            *("--headless", "--data-parallel-start-rank", "1"), *SIZES, *rpc, *member, VLLM_HOST_IP=D, **env
        )
        self.head, self.api = machine.api(*SIZES, *rpc, *head, host=P, VLLM_HOST_IP=P, VLLM_STANDIN_DEAD_S="0.3", **env)


def test_a_head_serves_when_the_other_host_is_there(machine: Machine) -> None:
    pair = Pair(machine)
    pair.api.up()
    assert pair.api.text().startswith(" stand-in")


def test_a_head_notices_a_lost_member_at_the_next_request(machine: Machine) -> None:
    pair = Pair(machine)
    pair.api.up()
    pair.member.term()
    assert pair.member.wait() == 0
    pair.head.says("lost the data-parallel ranks [1]")
    assert pair.api.health() == 200
    assert pair.api.complete()[0] == 500
    assert pair.api.health() == 503
    assert pair.head.wait() == 1
    assert "EngineDeadError" in pair.head.last_line


def test_a_headless_member_does_not_notice_a_lost_head(machine: Machine) -> None:
    pair = Pair(machine)
    pair.api.up()
    pair.head.term()
    pair.head.wait()
    pair.member.says("neither exits nor reconnects")
    assert pair.member.runs()


def test_a_start_rank_on_the_head_from_0_28_on(machine: Machine) -> None:
    pair = Pair(machine, "--data-parallel-start-rank", "0")
    assert pair.head.wait() == 1
    assert "Remote engine 1 must not use --headless in external or hybrid dp lb mode" in pair.head.last_line


def test_a_start_rank_on_the_head_before_0_28(machine: Machine) -> None:
    Pair(machine, "--data-parallel-start-rank", "0", VLLM_STANDIN_VERSION="0.13.0").api.up()


def test_a_member_of_other_sizes(machine: Machine) -> None:
    pair = Pair(machine, member=("-tp", "2"))
    assert pair.head.wait() == 1
    assert "Configuration mismatch detected for engine 1" in pair.head.last_line


def test_a_head_waits_for_as_long_as_it_is_told(machine: Machine) -> None:
    args = (*SIZES, "--data-parallel-address", P, "--data-parallel-rpc-port", str(free_port(P)))
    process, _ = machine.api(*args, host=P, VLLM_ENGINE_READY_TIMEOUT_S="1")
    assert process.wait() == 1
    assert process.last_line.startswith("TimeoutError: Timed out waiting for engine core processes to start")


class Apart:
    """One prefill and one decode."""

    def __init__(self, machine: Machine, prefill_id: str = "0", decode_id: str = "1", **env: str) -> None:
        self.machine, self.env = machine, {"VLLM_STANDIN_VERSION": "0.13.0", **env}
        self.kv_port, self.api_port, self.prefill_id = free_port(P), free_port(P), prefill_id
        self.start_prefill()
        block = mooncake("kv_consumer", self.kv_port, decode_id)
        self.decode, self.decode_api = machine.api("--kv-transfer-config", block, host=D, VLLM_HOST_IP=D, **self.env)
        self.decode_api.up()

    def start_prefill(self) -> None:
        block = mooncake("kv_producer", self.kv_port, self.prefill_id)
        args = ("--host", P, "--port", str(self.api_port), "--kv-transfer-config", block)
        self.prefill = self.machine.serve(*args, VLLM_HOST_IP=P, **self.env)
        self.prefill_api = Api(P, self.api_port)
        self.prefill_api.up()

    def complete(self) -> tuple[int, str]:
        return through(self.prefill_api, self.decode_api)


def test_apart_they_answer_as_one_alone(machine: Machine) -> None:
    apart = Apart(machine)
    _, alone = machine.api()
    alone.up()
    status, text = apart.complete()
    assert (status, text) == (200, alone.text())
    name = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"}'
    assert apart.decode_api.metric(name) == 2


def test_a_prefill_that_restarts_under_its_id_spoils_answers_before_0_20(machine: Machine) -> None:
    apart = Apart(machine)
    apart.complete()
    restart(apart)
    assert apart.complete() == (200, " stand-in garbage ! !")
    apart.decode.says("Mooncake transfer failed, ret: -1")


def test_a_prefill_that_restarts_under_its_id_fails_requests_from_0_20_on(machine: Machine) -> None:
    apart = Apart(machine, VLLM_STANDIN_VERSION="0.23.0")
    apart.complete()
    restart(apart)
    assert apart.complete()[0] == 500


def test_a_prefill_that_restarts_under_another_id_is_met_anew(machine: Machine) -> None:
    apart = Apart(machine)
    before = apart.complete()
    apart.prefill_id = "another"
    restart(apart)
    assert apart.complete() == before


def test_both_sides_with_one_engine_id(machine: Machine) -> None:
    apart = Apart(machine, "0", "0", VLLM_STANDIN_VERSION="0.23.0")
    assert apart.complete()[0] == 500
    apart.decode.says("Conflict engine id 0 with local engine id 0.")


def test_nixl_with_two_versions(machine: Machine) -> None:
    apis = []
    for host, version in ((P, "0.31.0"), (D, "0.32.0")):
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port(host))}
        apis.append(machine.api("--kv-transfer-config", NIXL, host=host, VLLM_STANDIN_VERSION=version, **env)[1])
        apis[-1].up()
    status, text = through(*apis)
    assert status == 500
    assert "NIXL compatibility hash mismatch" in text
    assert [api.health() for api in apis] == [200, 200]


def proxy(machine: Machine, prefill: Api, decode: Api, *more: str) -> Api:
    """The proxy before one prefill and one decode."""
    api = Api("127.0.0.1", free_port())
    backends = ("--prefiller-hosts", prefill.host, "--prefiller-port", str(prefill.port))
    backends += ("--decoder-hosts", decode.host, "--decoder-port", str(decode.port))
    machine.run(PYTHON, str(PROXY), "--port", str(api.port), *backends, *more)
    until(lambda: answers(api))
    return api


def test_the_proxy_answers_as_one_alone(machine: Machine) -> None:
    apart = Apart(machine)
    entry = proxy(machine, apart.prefill_api, apart.decode_api)
    assert entry.text() == apart.decode_api.text()
    assert '"finish_reason":"length"' in entry.complete(stream=True)[1]


def test_the_proxy_makes_a_failed_decode_an_empty_success(machine: Machine) -> None:
    apart = Apart(machine)
    entry = proxy(machine, apart.prefill_api, Api(D, free_port(D)))
    assert entry.complete() == (200, "")
    assert json.loads(entry.ask("/healthcheck")[1]) == {"status": "ok", "prefill_instances": 1, "decode_instances": 1}


def test_the_proxy_makes_a_clients_fault_its_own(machine: Machine) -> None:
    apart = Apart(machine)
    entry = proxy(machine, apart.prefill_api, apart.decode_api)
    assert entry.complete(model="other") == (500, "Internal Server Error")


def test_the_proxy_knows_no_models_and_no_health(machine: Machine) -> None:
    entry = proxy(machine, Api(P, 1), Api(D, 1))
    assert (entry.ask("/v1/models")[0], entry.health()) == (404, 404)


def test_the_proxys_lists_change(machine: Machine) -> None:
    _, engine = machine.api(host=D)
    engine.up()
    entry = proxy(machine, Api(P, 1), Api(D, 1), "--waiting-retry-interval", "0.1")
    add = {"type": "decode", "instances": [f"{D}:{engine.port}", f"{D}:{engine.port}"]}
    assert json.loads(entry.ask("/instances/add", add)[1])["current_decode_instances"] == [
        f"{D}:1",
        f"{D}:{engine.port}",
    ]
    gone = json.loads(entry.ask("/instances/remove", {"type": "decode", "instances": f"{D}:1"})[1])
    assert gone["current_decode_instances"] == [f"{D}:{engine.port}"]
    assert "are waiting to be added" in entry.ask("/instances/add", {"type": "prefill", "instances": f"{P}:2"})[1]


class Cluster:
    """A Ray head and one worker."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.env = {"VLLM_STANDIN_RAY_FILE": str(machine.folder / "cluster"), "VLLM_STANDIN_RAY_GONE_S": "0.1"}
        port = str(free_port(P))
        self.head = self.ray("start", "--head", f"--port={port}", f"--node-ip-address={P}", "--block")
        self.worker = self.ray("start", f"--address={P}:{port}", f"--node-ip-address={D}", "--block")
        self.worker.says("Ray runtime started.")

    def ray(self, *argv: str) -> Process:
        return self.machine.run(str(STANDIN / "bin" / "ray"), *argv, **self.env)

    def engine(self) -> tuple[Process, Api]:
        args = ("-tp", "2", "--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray")
        return self.machine.api(*args, VLLM_STANDIN_DEAD_S="0.1", **self.env)


def test_ray_lists_its_nodes(machine: Machine) -> None:
    status = Cluster(machine).ray("status")
    assert status.wait() == 0
    assert sum(line.startswith(" 1 node_") for line in status.text.splitlines()) == 2


def test_processes_of_their_own_say_the_same(machine: Machine) -> None:
    script, none = str(STANDIN / "bin" / "ray"), str(machine.folder / "no")
    ray = machine.alone(script, "status", VLLM_STANDIN_RAY_FILE=none)
    proxy = machine.alone(PYTHON, str(PROXY), "--nonsense")
    assert (ray.wait(), proxy.wait()) == (1, 2)
    assert ray.last_line.startswith("ConnectionError: Could not find any running Ray instance.")
    assert "--nonsense" in proxy.last_line


def test_there_is_no_ray(machine: Machine) -> None:
    status = machine.run(str(STANDIN / "bin" / "ray"), "status", VLLM_STANDIN_RAY_FILE=str(machine.folder / "no"))
    assert status.wait() == 1
    assert status.last_line.startswith("ConnectionError: Could not find any running Ray instance.")


def test_a_ray_worker_ends_after_its_head(machine: Machine) -> None:
    cluster = Cluster(machine)
    cluster.head.term()
    assert cluster.head.wait() == 0
    assert cluster.worker.wait() == 1


def test_an_engine_on_ray_dies_with_a_node(machine: Machine) -> None:
    cluster = Cluster(machine)
    process, api = cluster.engine()
    api.up()
    cluster.worker.term()
    assert process.wait() == 1


def through(prefill: Api, decode: Api) -> tuple[int, str]:
    """What a proxy does: the prompt at the one, the answer from the other."""
    params = {"do_remote_decode": True, "do_remote_prefill": False}
    status, answer = prefill.complete(tokens=1, kv_transfer_params=params)
    assert status == 200, answer
    status, answer = decode.complete(kv_transfer_params=json.loads(answer)["kv_transfer_params"])
    return status, json.loads(answer)["choices"][0]["text"] if status == 200 else answer


def restart(apart: Apart) -> None:
    """The prefill ends and comes back on its ports."""
    apart.prefill.term()
    assert apart.prefill.wait() == 0
    apart.start_prefill()


def answers(api: Api) -> bool:
    try:
        return api.ask("/healthcheck")[0] == 200
    except OSError:
        return False
