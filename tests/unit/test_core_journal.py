"""Finding the line that says why a unit died."""

from __future__ import annotations

import pytest

from fleet.journal import is_code, is_talk, reason, shown, tells_death, uncarried

EXITED = [
    "vllm-serve-0.service: Main process exited, code=exited, status=1/FAILURE",
    "vllm-serve-0.service: Failed with result 'exit-code'.",
]
REFUSED = [
    "usage: vllm serve [model_tag] [options]",
    "vllm serve: error: unrecognized arguments: --moe-backend triton",
    "vllm-serve-0.service: Main process exited, code=exited, status=2/INVALIDARGUMENT",
    "vllm-serve-0.service: Failed with result 'exit-code'.",
]
IMPORT = [
    "INFO 11-30 07:00:00 [__init__.py:239] Automatically detected platform cuda.",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 4, in <module>',
    "    from vllm.entrypoints.cli.main import main",
    "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
    *EXITED,
]
NO_SPACE = [
    "(EngineCore_DP0 pid=812) INFO 11-30 07:00:00 [core.py:84] Initializing a V1 LLM engine",
    "(EngineCore_DP0 pid=812) OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache'",
    "(APIServer pid=790) RuntimeError: Engine core initialization failed. See root cause above.",
    *EXITED,
]
CORE_DIED = [
    "(EngineCore_DP0 pid=812) ERROR 11-30 07:00:41 [core.py:866] EngineCore failed to start.",
    "(EngineCore_DP0 pid=812) ERROR 11-30 07:00:41 [core.py:866] Traceback (most recent call last):",
    '(EngineCore_DP0 pid=812) ERROR 11-30 07:00:41 [core.py:866]   File "/opt/vllm/core.py", line 857, in run',
    "(EngineCore_DP0 pid=812) ERROR 11-30 07:00:41 [core.py:866]     raise ValueError(",
    "(EngineCore_DP0 pid=812) ERROR 11-30 07:00:41 [core.py:866] ValueError: To serve at least one request with the "
    "models's max seq len (40960), (7.50 GiB KV cache is needed, which is larger than the available 3.21 GiB).",
    "(APIServer pid=790) Traceback (most recent call last):",
    "(APIServer pid=790) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore_DP0': 1}",
    *EXITED,
]
DOTTED = [
    "(APIServer pid=790) INFO 11-30 07:00:00 [api_server.py:1839] vLLM API server version 0.13.0",
    "(APIServer pid=790) huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
    "[rank0]:[W1130 07:00:02 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called",
    *EXITED,
]
OUT_OF_MEMORY = [
    "(Worker_TP3 pid=901) ERROR 11-30 07:02:11 [multiproc_executor.py:750] WorkerProc failed to start.",
    "(Worker_TP3 pid=901) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.",
    *EXITED,
]
KILLED = [
    "(EngineCore_DP0 pid=812) INFO 11-30 07:01:00 [default_loader.py:267] Loading weights took 45.12 seconds",
    "vllm-serve-0.service: A process of this unit has been killed by the OOM killer.",
    "vllm-serve-0.service: Main process exited, code=killed, status=9/KILL",
    "vllm-serve-0.service: Failed with result 'oom-kill'.",
]
NO_IMAGE = [
    "Unable to find image 'vllm/vllm-openai:v0.20.9' locally",
    "docker: Error response from daemon: manifest for vllm/vllm-openai:v0.20.9 not found: manifest unknown.",
    "vllm-serve-0.service: Main process exited, code=exited, status=125/n/a",
]
PORT = [
    "(APIServer pid=790) INFO 11-30 07:00:00 [api_server.py:1839] vLLM API server version 0.13.0",
    "(APIServer pid=790) OSError: [Errno 98] Address already in use",
    *EXITED,
]
TALK = [
    "(APIServer pid=790) WARNING 11-30 07:00:00 [api_server.py:1210] Found ulimit of 1024 and failed to automatically "
    "increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
    "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
    "INFO 11-30 07:00:01 [x.py:1] retrying after ConnectionError: [Errno 111] Permission denied",
    "(Worker_TP0 pid=901) DEBUG 11-30 07:00:01 [x.py:2] ValueError: not this one",
    "/opt/vllm/lib/python3.12/site-packages/torch/cuda/__init__.py:61: FutureWarning: RuntimeError: soon an error",
]
VALIDATION = [
    "(APIServer pid=790) Traceback (most recent call last):",
    '(APIServer pid=790)   File "/opt/vllm/bin/vllm", line 10, in <module>',
    "(APIServer pid=790) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "(APIServer pid=790)   Value error, User-specified max_model_len (200000) is greater than the derived "
    "max_model_len (max_position_embeddings=40960 or model_max_length=None in model's config.json).",
    "(APIServer pid=790)     For further information visit https://errors.pydantic.dev/2.12/v/value_error",
    *EXITED,
]
NO_PROGRAM = [
    "vllm-serve-0.service: Unable to locate executable '/etc/vllm-fleet/current/run/vllm-serve-0.sh'",
    "vllm-serve-0.service: Failed at step EXEC spawning: No such file or directory",
    "vllm-serve-0.service: Main process exited, code=exited, status=203/EXEC",
]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (REFUSED, "vllm serve: error: unrecognized arguments: --moe-backend triton"),
        (IMPORT, "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"),
        (NO_SPACE, "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache'"),
        (
            CORE_DIED,
            "ValueError: To serve at least one request with the models's max seq len (40960), "
            "(7.50 GiB KV cache is needed, which is larger than the available 3.21 GiB).",
        ),
        (DOTTED, "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'"),
        (OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB."),
        (
            NO_IMAGE,
            "docker: Error response from daemon: manifest for vllm/vllm-openai:v0.20.9 not found: manifest unknown.",
        ),
        (PORT, "OSError: [Errno 98] Address already in use"),
        (TALK + PORT, "OSError: [Errno 98] Address already in use"),
        (TALK + CORE_DIED[:4] + ["ERROR 11-30 07:00:41 [core.py:866] ValueError: this one"], "ValueError: this one"),
        (
            VALIDATION,
            "Value error, User-specified max_model_len (200000) is greater than the derived max_model_len "
            "(max_position_embeddings=40960 or model_max_length=None in model's config.json).",
        ),
        (
            TALK + VALIDATION,
            "Value error, User-specified max_model_len (200000) is greater than the derived max_model_len "
            "(max_position_embeddings=40960 or model_max_length=None in model's config.json).",
        ),
    ],
    ids=[
        *("refused", "import", "no-space", "core-died", "dotted", "out-of-memory", "no-image", "port"),
        *("port-after-talk", "error-after-talk", "validation", "validation-after-talk"),
    ],
)
def test_the_most_telling_line(lines: list[str], line: str) -> None:
    assert reason(lines) == line


def test_a_killed_process_is_told_though_only_systemd_knows() -> None:
    assert "killed by the OOM killer" in reason(KILLED)


def test_talk_on_the_way_does_not_hide_what_only_systemd_knows() -> None:
    assert reason(TALK + KILLED) == "vllm-serve-0.service: A process of this unit has been killed by the OOM killer."


@pytest.mark.parametrize("line", TALK)
def test_talk_on_the_way_is_no_reason(line: str) -> None:
    assert reason([line, "loading"]) == "loading"


def test_a_program_that_is_not_there_is_told_though_only_systemd_knows() -> None:
    assert "Unable to locate executable" in reason(NO_PROGRAM)


def test_the_last_line_where_none_tells() -> None:
    assert reason(["INFO 11-30 07:00:00 [x.py:1] loading", "  42 % done  ", ""]) == "42 % done"


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_an_empty_journal(lines: list[str]) -> None:
    assert reason(lines) == "the journal says nothing"


def test_a_long_line_is_cut() -> None:
    said = reason(["ValueError: " + "x" * 400])
    assert len(said) == 300
    assert said.endswith("xxx...")


@pytest.mark.parametrize("lines", [EXITED, KILLED, REFUSED, ["a.service: Failed with result 'timeout'."]])
def test_systemd_says_that_it_died(lines: list[str]) -> None:
    assert tells_death(lines)


@pytest.mark.parametrize("lines", [[], ["INFO: ready"], ["a.service: Scheduled restart job"]])
def test_systemd_does_not_say_that_it_died(lines: list[str]) -> None:
    assert not tells_death(lines)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("Nov 30 07:00:00 left vllm-serve-0[811]: ready", "ready"),
        ("Nov  3 07:00:00.123456 left.example vllm-serve-0[811]: ready", "ready"),
        ("2025-11-30T07:00:00+0000 left vllm-serve-0[811]: ready", "ready"),
        ("2025-11-30T07:00:00.123456789Z ready", "ready"),
        ("2025-11-30T07:00:00.123456789Z stderr F ready", "ready"),
        ("vllm-serve-0  | ready", "ready"),
        ('{"log":"ready\\n","stream":"stderr","time":"2025-11-30T07:00:00Z"}', "ready"),
        ('{"log": 5}', '{"log": 5}'),
        ('{"log":"cut', '{"log":"cut'),
        ("\x1b[1;31mready\x1b[0m\r\n", "ready"),
        ("|  10.20.0.31(29)   |  16666  |", "|  10.20.0.31(29)   |  16666  |"),
        ("ValueError: Nov 30 is no number", "ValueError: Nov 30 is no number"),
    ],
)
def test_what_carried_a_line_is_taken_off(line: str, left: str) -> None:
    assert uncarried(line) == left


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 02-06 16:34:06 [core.py:936] ValueError: x",
        "(VllmWorker rank=3 pid=230) ValueError: x",
        "(RayWorkerWrapper pid=545, ip=10.17.44.60) ValueError: x",
        "[rank0]: ValueError: x",
    ],
)
def test_the_processes_that_a_line_came_through_are_not_shown(line: str) -> None:
    assert shown(line) == "ValueError: x"


@pytest.mark.parametrize(
    ("line", "is_so"),
    [
        ("(Worker pid=1) INFO 11-30 07:00:00 [x.py:1] a", True),
        ("[INFO] HCCL(1,p):2025 a", True),
        ("W1130 07:03:50.539195   901 real_client.cpp:232] a", True),
        ("[rank0]:[W1130 07:00:02 x.cpp:1538] Warning: a", True),
        ("2025-11-30 07:00:02,118 WARNING services.py:2132 -- a", True),
        ("h:1:2 [0] NCCL INFO a", True),
        ("E1130 07:03:50.539195   901 real_client.cpp:232] a", False),
        ("[ERROR] HCCL(1,p):2025 a", False),
        ("h:1:2 [0] NCCL WARN a", False),
        ("ValueError: INFO", False),
    ],
)
def test_what_is_talk(line: str, is_so: bool) -> None:
    assert is_talk(line) is is_so


def test_quoted_source_is_no_message() -> None:
    assert is_code('(Worker pid=1) ERROR 11-30 07:00:00 [x.py:1]     raise ValueError("a")')
    assert not is_code("(Worker pid=1) ERROR 11-30 07:00:00 [x.py:1] ValueError: raise it")
