"""``fleet catalogue``: the table, one row, and rows held against the vendors' tables."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from fleet.cli.main import main
from tests.unit.test_stacks import own_row


def catalogue(*words: object) -> Result:
    return CliRunner().invoke(main, ["catalogue", *map(str, words)], catch_exceptions=False)


def test_the_table() -> None:
    result = catalogue()
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[11:] == ["", "All of a row: fleet catalogue show NAME"]
    assert max(map(len, lines)) < 80
    assert lines[0].split() == ["name", "driver", "CANN", "/", "CUDA", "vLLM", "image"]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["a2-cann-8.3.rc2", "a2-cann-8.5.0"]
    assert [part.strip() for part in lines[6].split("  ") if part] == [
        "a3-cann-8.5.0",
        "25.5.1",
        "CANN 8.5.0",
        "0.13.0",
        "vllm-ascend:v0.13.0-a3",
    ]


def test_the_table_for_scripts() -> None:
    rows = json.loads(catalogue("--json").stdout)
    assert rows[-1]["name"] == "h100-cuda-13.0"
    assert rows[-1]["gpu_driver"]["version"] == "580.*"


def test_one_row() -> None:
    lines = catalogue("show", "h100-cuda-13.0").stdout.splitlines()
    assert lines[0] == "h100-cuda-13.0: HGX H100, CUDA 13.0, vLLM 0.20.0"
    assert max(map(len, lines)) < 80
    assert "  packages of apt: nvidia-driver-580-server-open, nvidia-fabricmanager-580" in lines
    assert json.loads(catalogue("show", "h100-cuda-13.0", "--json").stdout)["cuda"] == "13.0"


def test_one_row_with_and_without_checksums(tmp_path: Path) -> None:
    assert "    *A3*npu-firmware_*.run  (checksum not pinned)" in catalogue("show", "a3-cann-8.5.0").stdout.splitlines()
    path = own_row(tmp_path, '.run"}', '.run", sha256: {a.run: ' + "ab" * 32 + "}}")
    lines = catalogue("show", path).stdout.splitlines()
    assert "  checksums    pinned" in lines
    assert f"      {'ab' * 32}  a.run" in lines


def test_a_row_that_is_not_there() -> None:
    result = catalogue("show", "h100")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: catalogue 'h100': there is no such row; use one of a2-cann-8.3.rc2, ")
    assert result.stderr.endswith("or give the path of a .yaml file [CATALOGUE-NAME]\n")


def test_all_rows_are_checked_where_none_is_named() -> None:
    result = catalogue("check")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "10 rows: clean\n", "")


def test_a_row_that_does_not_hold(tmp_path: Path) -> None:
    path = own_row(tmp_path, "version: 25.5.1", "version: 24.1.0")
    result = catalogue("check", "a3-cann-8.5.0", path)
    assert (result.exit_code, result.stdout) == (1, "2 rows: 1 error\n")
    assert result.stderr == (
        "error: catalogue ours driver: HDK 24.1.0 does not carry CANN 8.5.0; choose HDK 25.0 to 25.5 "
        "[CATALOGUE-DRIVER]\n"
    )
    assert [f["rule"] for f in json.loads(catalogue("check", path, "--json").stdout)] == ["CATALOGUE-DRIVER"]


def test_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    path = own_row(tmp_path, "vllm: 0.13.0\n", "")
    result = catalogue("check", path)
    assert (result.exit_code, result.stdout) == (2, "1 row: 1 error\n")
    assert "vllm is missing; add it [CATALOGUE-KEY]" in result.stderr


def test_a_path_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert "there is no such file, seen from " in catalogue("show", tmp_path / "gone.yaml").stderr
    assert f"error: catalogue '{tmp_path}/folder.yaml': this is no file; mend the path, or name a row" in (
        catalogue("check", tmp_path / "folder.yaml").stderr
    )


def test_a_version_that_yaml_takes_for_a_number(tmp_path: Path) -> None:
    path = own_row(tmp_path, "version: 25.5.1", "version: 25.5")
    assert "25.5 is a number to YAML; write the version in quotes [CATALOGUE-KEY]" in catalogue("check", path).stderr
