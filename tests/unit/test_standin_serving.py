"""The stand-in engine lives, answers and ends as the real one does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_standin_support import STANDIN, Api, Machine, free_port, until


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


def test_a_signal_in_the_first_moments_kills(machine: Machine) -> None:
    process = machine.serve(VLLM_STANDIN_IMPORT_S="20")
    process.says("stand-in for vLLM")
    process.term()
    assert process.wait() == -15


def test_a_signal_while_loading_is_swallowed_and_it_never_becomes_ready(machine: Machine) -> None:
    process, _ = machine.api(VLLM_STANDIN_LOAD_S="0.3", VLLM_ENGINE_READY_TIMEOUT_S="1")
    process.says("Starting to load model")
    process.term()
    process.says("SIGTERM while loading is swallowed")
    assert process.wait() == 1
    assert process.last_line.startswith("TimeoutError: Timed out waiting for engine core processes to start")
    assert "Application startup complete" not in process.text


def test_a_process_of_its_own_serves_and_ends(machine: Machine) -> None:
    api = Api("127.0.0.1", free_port())
    words = ("serve", "m", "--host", api.host, "--port", str(api.port))
    process = machine.alone(str(STANDIN / "bin" / "vllm"), *words)
    api.up()
    assert api.text().startswith(" stand-in ")
    process.term()
    assert process.wait() == 0


def test_nothing_listens_until_it_is_ready(machine: Machine) -> None:
    process, api = machine.api(VLLM_STANDIN_LOAD_S="0.3")
    process.says("Starting to load model")
    assert api.health() == 0
    api.up()
    process.term()
    assert process.wait() == 0


def test_it_dies_while_loading_as_it_is_told(machine: Machine) -> None:
    process = machine.serve("--port", str(free_port()), VLLM_STANDIN_DIE="RuntimeError: NPU out of memory")
    assert process.wait() == 1
    assert process.last_line == "RuntimeError: NPU out of memory"


def test_it_hangs_while_loading_as_it_is_told(machine: Machine) -> None:
    process, api = machine.api(VLLM_STANDIN_HANG="1")
    process.says("hangs, as it was told to")
    assert process.runs()
    assert api.health() == 0


def test_answers_depend_on_the_prompt_alone(machine: Machine) -> None:
    (_, one), (_, other) = machine.api(), machine.api("-tp", "2")
    one.up()
    other.up()
    assert one.text("a b", 5) == other.text("a b", 5)
    assert one.text("a b", 5).startswith(" stand-in ")
    assert one.text("a b", 5) != one.text("a c", 5)


def test_the_answer_has_exactly_as_many_tokens_as_asked(machine: Machine) -> None:
    _, api = machine.api()
    api.up()
    answer = json.loads(api.complete("one two three", 7)[1])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 10, "completion_tokens": 7}
    assert api.metric("vllm:generation_tokens_total") == 7
    assert api.metric('vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"}') == 3


def test_a_streamed_conversation(machine: Machine) -> None:
    _, api = machine.api("--served-model-name", "qwen3")
    api.up()
    body = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True}
    events = stream(api, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 4
    assert json.loads(events[-3])["choices"][0]["finish_reason"] == "length"
    words = [json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-2]]
    assert "".join(words).startswith(" stand-in ")


def test_what_is_refused_of_a_request(machine: Machine) -> None:
    _, api = machine.api("--max-model-len", "64")
    api.up()
    status, text = api.complete(model="other")
    assert (status, json.loads(text)["error"]["message"]) == (404, "The model `other` does not exist.")
    assert api.ask("/v1/completions", b"{nonsense")[0] == 400
    assert api.ask("/v1/completions", {"prompt": "x"}, "text/plain")[0] == 400
    status, text = api.complete("word " * 64)
    assert status == 400
    assert "maximum context length is 64 tokens" in text
    assert api.complete("word", 64)[0] == 400
    assert api.ask("/nothing")[0] == 404


def test_what_it_says_of_itself(machine: Machine) -> None:
    _, api = machine.api("--served-model-name", "a", "b", VLLM_STANDIN_VERSION="0.23.0")
    api.up()
    assert api.ask("/health") == (200, "")
    assert api.ask("/version") == (200, '{"version":"0.23.0"}')
    assert [model["id"] for model in json.loads(api.ask("/v1/models")[1])["data"]] == ["a", "b"]


def test_more_requests_than_places_wait(machine: Machine) -> None:
    _, api = machine.api("--max-num-seqs", "2", VLLM_STANDIN_TOKENS_PER_S="50")
    api.up()
    threads = [threading.Thread(target=api.complete, args=("x", 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: (api.metric("vllm:num_requests_running"), api.metric("vllm:num_requests_waiting")) == (2, 2))
    for thread in threads:
        thread.join(30)
    assert api.metric("vllm:generation_tokens_total") == 40


def test_sixty_four_streams_at_once(machine: Machine) -> None:
    _, api = machine.api()
    api.up()
    ends: list[str] = []
    body = {"prompt": "x", "max_tokens": 8, "stream": True}
    threads = [
        threading.Thread(target=lambda: ends.append(stream(api, "/v1/completions", body)[-1])) for _ in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ends == ["[DONE]"] * 64


def test_a_stop_cuts_what_runs_and_calls_it_a_success(machine: Machine) -> None:
    process, api = machine.api(VLLM_STANDIN_TOKENS_PER_S="20")
    answers = in_flight(api)
    process.term()
    assert process.wait() == 0
    status, text = answers()
    assert (status, json.loads(text)["choices"][0]["finish_reason"]) == (200, "abort")


def test_with_a_timeout_what_runs_ends_and_new_requests_are_refused(machine: Machine) -> None:
    process, api = machine.api("--shutdown-timeout", "30", VLLM_STANDIN_TOKENS_PER_S="20")
    answers = in_flight(api, 12)
    process.term()
    process.says("shutting down")
    assert api.health() == 200
    status, text = api.complete()
    assert (status, json.loads(text)["error"]["message"]) == (500, "cannot schedule new futures after shutdown")
    status, text = answers()
    assert (status, json.loads(text)["choices"][0]["finish_reason"]) == (200, "length")
    assert process.wait() == 0


def stream(api: Api, path: str, body: object) -> list[str]:
    """The data of a stream's events."""
    status, text = api.ask(path, body)
    assert status == 200
    return [line.removeprefix("data: ") for line in text.splitlines() if line]


def in_flight(api: Api, tokens: int = 200) -> Callable[[], tuple[int, str]]:
    """Start a request; what is returned waits for its answer."""
    api.up()
    found: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: found.append(api.complete("x", tokens)))
    thread.start()
    until(lambda: api.metric("vllm:num_requests_running") == 1)

    def answer() -> tuple[int, str]:
        thread.join(30)
        return found[0]

    return answer
