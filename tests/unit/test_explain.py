"""``fleet explain``: rules by id, logs by file or standard input, and what cannot be read."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleet.cli.main import main
from tests.unit.coverage.journal import LOGS

TRUNCATED = str(LOGS / "real-truncated.log")
HEALTHY = str(LOGS / "real-healthy-cpu-0.32.log")
A3_PD = "inventories/a3-pd.py"


def explain(*words: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["explain", *words], input=given)


# ---- rules


def test_a_rule_that_can_be_waived() -> None:
    done = explain("PORT-KV-DIRECT")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("PORT-KV-DIRECT (warning): ")
    assert '  waive:  waive = {"PORT-KV-DIRECT": "the reason"} in group_data' in done.stdout.splitlines()


def test_an_entry_of_the_catalogue() -> None:
    done = explain("log-ei0015")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "LOG-EI0015 (error): some ranks of an HCCL group never reached its root",
        "  why:    their process died or did not start, or a firewall or a wrong interface keeps them from the root's "
        "port 60000",
        "  mend:   read the log of the unit on the hosts whose ranks are missing; where that is clean, try its way to "
        "the root (nc -vz ROOT 60000) and its firewall",
        "  source: CANN HCCL guide, cluster_info_nego",
        "  waive:  no: it tells what has happened",
    ]


def test_a_rule_that_is_not_there() -> None:
    done = explain("PORT-KV-DIRECTT")
    assert done.exit_code == 2
    assert "there is no such rule; write PORT-KV-DIRECT [RULE-NAME]" in done.stderr


def test_several_things_are_all_answered_and_one_fault_shows_in_the_code() -> None:
    done = explain("LOG-SHM", TRUNCATED, "NO-SUCH-RULE-AT-ALL")
    assert done.exit_code == 2
    assert "LOG-SHM (error)" in done.stdout and "[LOG-SAFETENSORS]" in done.stdout
    assert "[RULE-NAME]" in done.stderr


# ---- logs


def test_a_log_says_cause_place_and_mend() -> None:
    done = explain(TRUNCATED)
    assert done.exit_code == 0
    first, second = done.stdout.splitlines()
    assert first.startswith(
        f"error: {TRUNCATED}:106: a weight file is not whole: incomplete metadata, file not fully covered ("
    )
    assert first.endswith("then start [LOG-SAFETENSORS]")
    assert second.startswith("  safetensors._safetensors_rust.SafetensorError: Error while deserializing header")


def test_what_followed_is_named() -> None:
    assert "  what followed from it: LOG-NCCL-REMOTE" in explain(str(LOGS / "50-shm.log")).stdout


def test_a_repeated_line_is_counted() -> None:
    assert explain(str(LOGS / "53-cuda-802.log")).stdout.rstrip().endswith("(8 times)")


@pytest.mark.parametrize("words", [(), ("-",)])
def test_standard_input_is_read(words: tuple[str, ...]) -> None:
    done = explain(*words, given=Path(TRUNCATED).read_bytes())
    assert done.exit_code == 0
    assert done.stdout.startswith("error: standard input:106: a weight file is not whole")


def test_an_inventory_names_the_hosts() -> None:
    text = "need connect rankNum is [32]\n" + 'fault_info["Failed to connect agent[16,17,18,19,]"]\n'
    plain = explain("-", given=text)
    named = explain("-", "--inventory", A3_PD, given=text)
    assert "ranks 16 to 19 of 32 never reached the root (their" in plain.stdout
    assert "ranks 16 to 19 of 32 never reached the root (on 10.10.0.13)" in named.stdout


def test_an_inventory_that_cannot_be_read() -> None:
    done = explain("-", "--inventory", "inventories/none.py", given="x")
    assert done.exit_code == 2 and done.stderr.startswith("error: ")


def test_json() -> None:
    done = explain("--json", "LOG-SHM", str(LOGS / "50-shm.log"), HEALTHY, "NO-SUCH-RULE-AT-ALL")
    assert done.exit_code == 2
    data = json.loads(done.stdout)
    assert [rule["id"] for rule in data["rules"]] == ["LOG-SHM"]
    assert data["rules"][0]["waivable"] is False
    told, healthy = data["logs"]
    (cause,) = told["causes"]
    assert {key: cause[key] for key in ("rule", "severity", "line", "count", "hosts", "led_to")} == {
        **{"rule": "LOG-SHM", "severity": "error", "line": 11, "count": 3},
        **{"hosts": [], "led_to": ["LOG-NCCL-REMOTE"]},
    }
    assert healthy["causes"] == []
    assert [finding["rule"] for finding in data["findings"]] == ["RULE-NAME"]


# ---- what tells nothing


def test_a_log_that_is_not_known_shows_its_most_telling_line(tmp_path: Path) -> None:
    log = tmp_path / "odd.log"
    log.write_text("loading\nTraceback (most recent call last):\nRuntimeError: no such device\nbye\n")
    done = explain(str(log))
    assert done.exit_code == 1
    assert done.stdout == f"{log}: nothing that is known; its most telling line is: RuntimeError: no such device\n"


def test_a_healthy_log_is_not_blamed() -> None:
    done = explain(str(LOGS / "healthy-ascend.log"))
    assert done.exit_code == 1
    assert "nothing that is known" in done.stdout and "error:" not in done.stdout


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.log").write_text(text)
    done = explain(str(tmp_path / "empty.log"))
    assert (done.exit_code, done.stdout) == (1, f"{tmp_path}/empty.log: nothing that is known; it is empty\n")


# ---- what cannot be read


@pytest.mark.parametrize(
    ("name", "raw", "line"),
    [
        ("a.gz", b"\x1f\x8b\x08" + b"x" * 99, "this is compressed; unpack it: zcat {0} | fleet explain - [LOG-READ]"),
        ("a.zst", b"(\xb5/\xfdx", "this is compressed; unpack it: zstdcat {0} | fleet explain - [LOG-READ]"),
        ("a.bin", bytes(range(256)) * 99, "this is no text; name a log; journalctl -u UNIT prints one [LOG-READ]"),
    ],
)
def test_what_is_no_text(tmp_path: Path, name: str, raw: bytes, line: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    done = explain(str(path))
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr == f"error: {path}: {line.format(path)}\n"


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = explain(str(tmp_path), str(tmp_path / "none.log"))
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}: this is a folder; name a log in it [LOG-READ]",
        f"error: {tmp_path}/none.log: cannot read: no such file or directory; name a rule, or a readable file "
        "[LOG-READ]",
    ]


def test_a_name_that_no_file_can_have() -> None:
    done = explain("a\0b")
    assert done.exit_code == 2 and "[LOG-READ]" in done.stderr


# ---- however the log comes


@pytest.mark.parametrize(
    "raw",
    [
        codecs.BOM_UTF16_LE + Path(TRUNCATED).read_text().encode("utf-16-le"),
        codecs.BOM_UTF8 + Path(TRUNCATED).read_bytes(),
        Path(TRUNCATED).read_bytes().replace(b"\n", b"\r\n"),
        b"\xfa\xfb\xfc " * 3 + Path(TRUNCATED).read_bytes() + b"\0" * 400,
        "中文日志 ✓\n".encode() + Path(TRUNCATED).read_bytes(),
    ],
    ids=["utf-16", "utf-8-mark", "windows", "odd-bytes", "chinese"],
)
def test_encodings(tmp_path: Path, raw: bytes) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(raw)
    done = explain(str(log))
    assert done.exit_code == 0 and "[LOG-SAFETENSORS]" in done.stdout


def test_a_letter_that_is_cut_between_two_blocks_stays_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * ((1 << 20) - 2) + "\n✓ ".encode() + b"Error 802: system not yet initialized\n")
    assert "a.log:2: the GPUs are not ready" in explain(str(log)).stdout


# ---- what docs/failures.md shows

GUIDE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
SHOWN = [block.split("\n    ") for block in GUIDE.split("    $ fleet explain ")[1:]]


@pytest.mark.parametrize("block", SHOWN, ids=lambda b: b[0].split()[0])
def test_the_guide_shows_what_is_said(block: list[str]) -> None:
    words, *rest = block
    done = explain(*words.split())
    assert done.exit_code == 0
    shown = [line.rstrip() for line in "\n".join(rest).split("\n\n")[0].splitlines()]
    for line, said in zip(shown, done.stdout.splitlines(), strict=False):
        start, cut, _ = line.partition("...")
        assert said.startswith(start) if cut else said == line
