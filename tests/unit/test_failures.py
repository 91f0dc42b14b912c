"""Reading logs by the catalogue of failures: what happened first, on which host, and how to mend it."""

from __future__ import annotations

import json
import string
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet import catalogue, failures, guilty
from fleet.findings import FleetError
from fleet.guilty import Peers, peers_of
from fleet.topology import Plan
from tests.unit.coverage.journal import HEALTHY, LOGS
from tests.unit.plans import lay

ENTRIES = list(catalogue.failures().values())
KNOWN = sorted(path.stem for path in LOGS.glob("*.log") if path.stem not in HEALTHY)
# What a reader of fleet.guilty adds to the values of the patterns.
ADDED = {"missing_ranks": {"missing"}, "failed_links": {"ranks", "tls"}, "buffer_size": {"needed", "enough"}}

DECODE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, served_name: m, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {port: 8001, tensor_parallel_size: 4, data_parallel_size: 8}
"""


def text_of(log: str) -> str:
    return (LOGS / f"{log}.log").read_text(encoding="utf-8")


def read(text: str, peers: Peers = guilty.NOBODY) -> list[failures.Cause]:
    return failures.read_blocks([text], peers)


def ids(text: str) -> list[str]:
    return [cause.failure.id for cause in read(text)]


def two_hosts() -> Plan:
    return lay(DECODE, {}, serve=[("left", "10.0.0.1"), ("right", "10.0.0.2")])


# ---- the catalogue holds together


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_an_entry_knows_its_own_examples(entry: catalogue.Failure) -> None:
    assert entry.examples
    for example in entry.examples:
        assert ids(f"{example}\n" * entry.times) == [entry.id], example


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_an_entry_says_all_that_a_rule_says(entry: catalogue.Failure) -> None:
    assert entry.id.startswith("LOG-") and entry.id == entry.id.upper()
    assert all((entry.says, entry.why, entry.mend, entry.source))
    assert not {"{", "}"} & set(entry.says + entry.mend.replace("{{.RepoDigests}}", ""))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_templates_use_values_that_something_gives(entry: catalogue.Failure) -> None:
    given = {name for tell in entry.told_by for name in tell.pattern.groupindex} | {"hosts"}
    given |= ADDED.get(entry.reads, set())
    used = {name for t in (*entry.what, *entry.do) for _, name, _, _ in string.Formatter().parse(t) if name}
    assert used <= given


def test_ids_are_given_once() -> None:
    assert len(catalogue.failures()) == sum(len(its) for its in catalogue.areas().values())


def test_a_pattern_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text(
        "title: t\nfailures:\n- {id: LOG-X, says: s, why: w, mend: m, source: o, examples: [], "
        "tells: [{has: x, like: '('}]}\n"
    )
    with pytest.raises(FleetError, match="this is no regular expression"):
        catalogue.areas(tmp_path)


# ---- what a log tells


@pytest.mark.parametrize(
    ("log", "what"),
    [
        ("real-argument", "the engine does not know --rope-scaling {}"),
        ("real-number", "the engine refuses --max-num-seqs: invalid int value: 'many'"),
        (
            "real-json",
            "the engine refuses --compilation-config/-cc '{\"mode\": 3': "
            "Invalid JSON: EOF while parsing an object at line 1 column 10",
        ),
        ("real-context", "the engine refuses max-model-len 9000: the model's is 4096"),
        ("real-heads", "4 attention heads cannot be shared among 3 ranks"),
        ("real-quantization", "the engine does not know the quantization ascend"),
        ("real-model-path", "there is no model at /mnt/models/nothing"),
        ("real-hub-offline", "the model is on no disk and the hub cannot be reached"),
        ("real-truncated", "a weight file is not whole: incomplete metadata, file not fully covered"),
        ("real-lfs-pointer", "a weight file is not whole: header too large"),
        ("real-module", "the Python module vllm_ascend is missing"),
        ("real-http-port", "the API's port is taken"),
        ("real-memory-taken", "11.76 of 14.46 GiB are free at start and the engine is told to take 14.45"),
        (
            "real-kv-small",
            "max-model-len 4096 needs 0.0 GiB of cache and 0.0 GiB are left: 1920 tokens would fit",
        ),
        ("34-buffsize", "HCCL_BUFFSIZE 200 is too small: 609 MB are needed"),
        ("48-kv-none", "weights and activations leave -0.87 GiB for the cache"),
        ("45-consistency", "model-00007-of-00118.safetensors has 1204158464 bytes of 4999802720"),
        (
            "02-links-tls",
            "no link to ranks 1, 8 (10.20.0.31) in 120 s, and TLS is on for some and off for others",
        ),
        ("05-root-server", "ranks 8 to 15 of 16 never reached the root"),
        ("05-root-screen", "ranks 8 to 15 never reached the root"),
        ("05-root-agent", "this host did not reach the root at 10.10.0.11:60000"),
        ("08-npu-port", "port 16666 on the NPU's own network (192.2.2.195) is taken"),
        ("20-npu-oom", "NPU 0 (60.96 GiB) has no 2.00 GiB left"),
    ],
)
def test_what_happened_is_said_with_its_values(log: str, what: str) -> None:
    assert [cause.what for cause in read(text_of(log))] == [what]


@pytest.mark.parametrize(
    ("log", "mend"),
    [
        ("34-buffsize", "set HCCL_BUFFSIZE to 768 in env of the recipe, the same on all ranks"),
        ("real-heads", "choose a tensor_parallel_size that divides 4"),
        (
            "real-kv-small",
            "set max-model-len to 1920 or less, raise gpu-memory-utilization, or spread the model over more devices",
        ),
    ],
)
def test_the_mend_has_the_values_too(log: str, mend: str) -> None:
    assert [cause.mend for cause in read(text_of(log))] == [mend]


@pytest.mark.parametrize(("needed", "enough"), [(1, "256"), (256, "256"), (257, "512"), (609, "768"), (2049, "2304")])
def test_a_buffer_is_rounded_up_to_256_mb(needed: int, enough: str) -> None:
    line = f"HCCL_BUFFSIZE is too SMALL, NEEDED_HCCL_BUFFSIZE((maxBs * k + 3MB) * 2) = {needed}MB, HCCL_BUFFSIZE=200MB."
    assert read(line)[0].values["enough"] == enough


@pytest.mark.parametrize("log", HEALTHY)
def test_a_healthy_log_tells_nothing(log: str) -> None:
    assert read(text_of(log)) == []


def test_a_log_that_nobody_knows_tells_nothing() -> None:
    assert read("Traceback (most recent call last):\nRuntimeError: no such device\n") == []


def test_an_empty_log_tells_nothing() -> None:
    assert failures.read([]) == [] == failures.read_blocks([""])


# ---- causes and what follows from them


def test_a_cause_hides_what_waited_for_it_and_names_it() -> None:
    (cause,) = read(text_of("50-shm"))
    assert cause.failure.id == "LOG-SHM" and cause.led_to == ("LOG-NCCL-REMOTE",)


def test_what_follows_is_told_where_nothing_else_is() -> None:
    assert ids(text_of("29-broadcast")) == ["LOG-SHM-BROADCAST"]
    assert ids(text_of("29-broadcast") + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n") == [
        "LOG-OOM-CUDA"
    ]


def test_the_same_is_folded_and_counted() -> None:
    (cause,) = read(text_of("46-hccp-alive"))
    assert cause.count == 8 and cause.number == 17
    assert cause.line.startswith("EJ0001: [PID: 901]")


def test_two_causes_stand_in_the_order_of_the_log() -> None:
    port, space = "OSError: [Errno 98] Address already in use\n", "OSError: [Errno 28] No space left on device\n"
    assert ids(space + port) == ["LOG-DISK", "LOG-HTTP-PORT"]
    assert ids(port + space) == ["LOG-HTTP-PORT", "LOG-DISK"]


def test_what_says_the_same_less_well_is_hidden() -> None:
    text = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n"
    (cause,) = read(text)
    assert (cause.failure.id, cause.led_to) == ("LOG-DCMI-8005", ("LOG-DRIVER",))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.id)
def test_only_entries_are_hidden(entry: catalogue.Failure) -> None:
    assert set(entry.hides) <= set(catalogue.failures())


def test_one_wait_for_a_worker_is_normal_while_graphs_compile() -> None:
    line = "INFO 11-30 07:12:00 [shm.py:4] No available shared memory broadcast block found in 60 seconds.\n"
    assert ids(line) == []
    assert ids(line * 2) == ["LOG-SHM-BROADCAST"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 07:00:01 [x.py:1] OSError: [Errno 28] No space left on device",
        "(Worker_TP0 pid=9) WARNING 11-30 07:00:01 [x.py:1] CUDA out of memory. Tried to allocate 1.50 GiB",
        "(APIServer pid=1) (EngineCore_DP0 pid=68) DEBUG 11-30 07:00:01 [x.py:1] Error 802: not this one",
        "[WARNING] HCCL(901,python3):2025-11-30 EI0015: retried",
        "W20260602 11:31:39.195996 20821 x.cpp:232] status: 103900",
        "host:1:2 [0] NCCL INFO unhandled system error",
        "    raise ValueError('World size (16) is larger than the number of available GPUs (8)')",
        '  File "/opt/vllm/EI0006.py", line 4, in main',
    ],
)
def test_talk_and_quoted_source_are_no_failure(line: str) -> None:
    assert ids(line) == []


def test_a_finding_has_all_its_parts() -> None:
    finding = read(text_of("real-heads"))[0].finding("left", "vllm-serve-0 died at start: ")
    assert finding.line() == (
        "error: left: vllm-serve-0 died at start: 4 attention heads cannot be shared among 3 ranks (each rank takes an "
        "equal share of the heads); choose a tensor_parallel_size that divides 4 [LOG-HEADS]"
    )
    assert finding.source == "vLLM config/model.py"


# ---- who is to blame


def test_ranks_belong_to_the_hosts_of_the_plan() -> None:
    peers = peers_of(two_hosts())
    assert peers.groups == (("left",) * 16 + ("right",) * 16,)
    assert peers.of_ranks([0, 15], 32) == ("left",)
    assert peers.of_ranks([15, 16], 32) == ("left", "right")
    assert peers.of_ranks([3], 8) == peers.of_ranks([32], 32) == peers.of_ranks([], 32) == ()
    assert peers.of_address("10.0.0.2") == peers.of_address("[::ffff:10.0.0.2]") == ("right",)
    assert peers.of_address("10.0.0.3") == ()


def test_a_rank_that_may_belong_to_an_inner_group_names_nobody() -> None:
    peers = peers_of(two_hosts())
    assert peers.inner == 8, "data parallel over 8, tensor parallel over 4"
    assert peers.of_ranks([7]) == ()
    assert peers.of_ranks([8]) == peers.of_ranks([7], 32) == ("left",)


def test_instances_that_differ_are_not_guessed_between() -> None:
    peers = Peers((("left",) * 8, ("right",) * 8, ("left",) * 4))
    assert peers.of_ranks([1], 8) == peers.of_ranks([1]) == ()
    assert peers.of_ranks([1], 4) == ("left",)


SERVER = (
    "[ERROR] HCCL(1,p):2025 [s.cc:501] total connected num is [4],line num is [1]\n"
    "[ERROR] HCCL(1,p):2025 [s.cc:503] need connect rankNum is [8]\n"
)
CAME = "[ERROR] HCCL(1,p):2025 [s.cc:517] connected rankinfo[LINE 0]: [0000000000000000],[0000000000000002];\n"
MORE = "[ERROR] HCCL(1,p):2025 [s.cc:517] connected rankinfo[LINE 1]: [0000000000000004],[0000000000000006];\n"
EIGHT = Peers((("left", "right") * 4,), {"10.0.0.1": "left"})


def test_those_who_did_not_come_are_to_blame() -> None:
    (cause,) = read(SERVER + CAME + MORE, EIGHT)
    assert cause.what == "ranks 1, 3, 5, 7 of 8 never reached the root (on right)"
    assert cause.hosts == ("right",)
    assert cause.mend.startswith("read the unit's log on right;")


def test_a_list_that_is_not_whole_blames_nobody() -> None:
    (cause,) = read(SERVER + CAME, EIGHT)
    assert cause.what == "4 of 8 ranks reached the root" and cause.hosts == ()


def test_the_root_names_who_did_not_come() -> None:
    line = 'TopoDetect ERROR occur !!! fault_type[1], fault_info["Failed to connect agent[1,3,5,7,]"]\n'
    (cause,) = read(line, EIGHT)
    assert (cause.what, cause.hosts) == ("ranks 1, 3, 5, 7 never reached the root (on right)", ("right",))


def test_a_rank_that_does_not_reach_the_root_names_its_host() -> None:
    (cause,) = read("TopoExchangeAgent: connect server[10.0.0.1 : 60000] failed", EIGHT)
    assert cause.what == "this host did not reach the root at 10.0.0.1:60000 (on left)"


def test_the_peer_of_a_link_is_to_blame() -> None:
    row = (
        "[644]   |  10.20.0.31(29)   |  16666  |   10.20.0.2(0)   |  344  |  server  | time out |   DISABLE  | LinkInfo"
    )
    (cause,) = read(f"[ERROR] HCCL(1,p) {row}", peers_of(two_hosts()))
    assert (cause.what, cause.hosts) == ("no link to rank 29 (on right)", ("right",))
    detected = (
        "[x.cc:132] This node (server 10.0.0.1, device ID 1) detects that srcRank (server 10.0.0.1, device ID 1) "
    )
    detected += "fails to connect to dstRank (server 10.0.0.2, device ID 0). Continue to analyze the fault."
    assert read(detected, peers_of(two_hosts()))[0].hosts == ("right",)


def test_the_rank_that_a_collective_waits_for_is_to_blame() -> None:
    line = "EI0002: Notify register times out. remote rank: [24]. group information: rankSize[32], rankId[8]]"
    (cause,) = read(line, peers_of(two_hosts()))
    assert cause.what == "a collective operation waited in vain for rank 24 (on right)"


def test_the_hosts_whose_tls_switch_differs() -> None:
    (cause,) = read(catalogue.failures()["LOG-EI0016"].examples[0], Peers((), {"10.10.0.12": "right"}))
    assert cause.what == "TLS is on for 10.10.0.11 and off for right"


def test_the_address_that_mooncake_does_not_reach() -> None:
    (cause,) = read(text_of("16-mooncake-connect"), Peers((), {"10.10.0.11": "left"}))
    assert cause.what == "Mooncake cannot connect to 10.10.0.11:25389 (status 103900) (on left)"


# ---- however the log comes

CARRIERS = {
    "journalctl": "Nov 30 07:00:00 left vllm-serve-0[811]: {}",
    "journalctl-iso": "2025-11-30T07:00:00+0000 left vllm-serve-0[811]: {}",
    "docker-t": "2025-11-30T07:00:00.123456789Z {}",
    "kubernetes": "2025-11-30T07:00:00.123456789Z stderr F {}",
    "compose": "vllm-serve-0  | {}",
    "colours": "\x1b[31m{}\x1b[0m",
    "windows": "{}\r",
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("log", ["53-cuda-802", "34-buffsize", "real-truncated", "08-npu-port", "healthy-ascend"])
def test_what_carried_a_line_does_not_matter(log: str, carrier: str) -> None:
    lines = text_of(log).splitlines()
    assert ids("\n".join(CARRIERS[carrier].format(line) for line in lines)) == ids(text_of(log))


@pytest.mark.parametrize("log", ["53-cuda-802", "34-buffsize", "healthy-ascend"])
def test_dockers_own_files_are_read(log: str) -> None:
    lines = [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in text_of(log).splitlines()]
    assert ids("\n".join(lines)) == ids(text_of(log))


@pytest.mark.parametrize("log", KNOWN)
def test_lines_and_blocks_tell_the_same(log: str) -> None:
    text = text_of(log)
    assert [c.failure.id for c in failures.read(text.split("\n"))] == ids(text)
    blocks = [text[i : i + 777] for i in range(0, len(text), 777)]
    assert failures.read_blocks(blocks) == read(text)


def test_a_progress_bar_before_the_fault_is_no_part_of_it() -> None:
    text = "Loading:  10%\rLoading:  20%\rOSError: [Errno 98] Address already in use\n"
    assert [(c.failure.id, c.line) for c in read(text)] == [
        ("LOG-HTTP-PORT", "OSError: [Errno 98] Address already in use")
    ]


def test_one_line_without_end_is_read_in_bounded_pieces() -> None:
    text = "x" * 3_000_000 + " Error 802: system not yet initialized " + "y" * 3_000_000
    assert [(c.failure.id, len(c.line)) for c in read(text)] == [("LOG-CUDA-802", 300)]


def test_rubbish_is_no_failure() -> None:
    assert failures.read_blocks([bytes(range(256)).decode("latin-1") * 4000]) == []


def test_a_failure_on_every_line_is_counted_up_to_a_limit() -> None:
    (cause,) = read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB\n" * 12_000)
    assert cause.count >= failures.ENOUGH


@pytest.mark.parametrize("filling", ["1", "a ", "[1],", "|1(1)", "/a", "-1."])
def test_no_line_holds_the_reader_up(filling: str) -> None:
    begin = time.process_time()
    for entry in ENTRIES:
        for tell in entry.told_by:
            line = (tell.has + filling * failures.LONGEST)[: 2 * failures.LONGEST - len(tell.has)] + tell.has
            read(line)
    assert time.process_time() - begin < 5


def test_a_failure_at_the_end_of_ten_megabytes_is_found() -> None:
    text = text_of("real-healthy-cpu-0.32")
    blocks = [text * (1_000_000 // len(text) + 1)] * 10
    assert failures.read_blocks([*blocks, text_of("real-truncated")])[0].failure.id == "LOG-SAFETENSORS"


# ---- in a run


def died(monkeypatch: pytest.MonkeyPatch, state: str, text: str) -> str:
    from tasks import engines

    plan = two_hosts()
    monkeypatch.setattr(engines, "host", SimpleNamespace(name="left"))
    monkeypatch.setattr(engines, "_last_words", lambda unit: ([state, *text.splitlines()], []))
    return engines._why_not(plan, plan.units_of("left")[0], [], 600).line()


def test_a_unit_that_died_says_its_cause_and_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    said = died(monkeypatch, "failed", text_of("34-buffsize"))
    assert said.startswith(
        "error: left: vllm-serve-0 died at start: HCCL_BUFFSIZE 200 is too small: 609 MB are needed ("
    )
    assert said.endswith("; set HCCL_BUFFSIZE to 768 in env of the recipe, the same on all ranks [LOG-BUFFSIZE]")


def test_a_unit_that_died_names_the_host_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = 'fault_info["Failed to connect agent[16,17,18,19,]"]\nneed connect rankNum is [32]\n'
    said = died(monkeypatch, "failed", missing)
    assert "ranks 16 to 19 of 32 never reached the root (on right)" in said


def test_a_unit_that_does_not_answer_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = "\n".join(line for line in text_of("29-broadcast").splitlines() if "exit" not in line)
    said = died(monkeypatch, "active", alive)
    assert said.startswith("error: left: vllm-serve-0 did not answer within 600 s: a worker has not answered for")


def test_an_unknown_death_keeps_the_journals_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = died(monkeypatch, "failed", "RuntimeError: no such device")
    assert said == (
        "error: left: vllm-serve-0 died at start: RuntimeError: no such device; "
        "see journalctl -u vllm-serve-0 there [UNIT-DIED]"
    )


def test_the_start_of_a_unit_that_systemd_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import engines

    plan = two_hosts()
    unit = plan.units_of("left")[0]
    monkeypatch.setattr(engines, "host", SimpleNamespace(name="left"))
    for words, line in (
        (["active"], None),
        ([], "error: left: systemd did not start vllm-serve-0: no message; see"),
        (
            ["failed", "odd"],
            "error: left: systemd did not start vllm-serve-0: odd; see journalctl -u vllm-serve-0 there",
        ),
        (
            ["failed", "vllm-serve-0.service: Unable to locate executable '/x.sh'"],
            "error: left: systemd did not start vllm-serve-0: systemd could not start /x.sh (",
        ),
    ):
        monkeypatch.setattr(engines, "_last_words", lambda unit, words=words: (words, []))
        fault = engines._start_fault(plan, unit)
        assert (fault is None) if line is None else (fault is not None and fault.line().startswith(line))
