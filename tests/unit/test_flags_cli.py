"""``fleet flags``: tables from packages, with what can be wrong with a package."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleet.cli.main import main
from fleet.flags import table
from fleet.flags.source import Source
from fleet.flags.variables import variables
from tests.unit.test_flags_extract import FILES

ENVS = """
import os
environment_variables: dict = {
    "VLLM_ONE": lambda: os.getenv("VLLM_ONE"),
    "VLLM_TWO": maybe("VLLM_TWO", 1),
    "MAX_JOBS": lambda: os.getenv("MAX_JOBS"),
}
"""
ELSEWHERE = """
import os
if "VLLM_THREE" in os.environ or os.environ["VLLM_FOUR"] or os.environ.get(
    "VLLM_FIVE"
) or getenv('VLLM_SIX'):
    raise RuntimeError("VLLM_NOT_READ")
"""
PACKAGE = {**FILES, "vllm/envs.py": ENVS, "vllm/there.py": ELSEWHERE}
HELD = "6 variables"


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder of tables, with one in it."""
    folder = tmp_path / "tables"
    folder.mkdir()
    shutil.copy(table.FOLDER / "0.11.0.json", folder)
    monkeypatch.setattr(table, "FOLDER", folder)
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-1.2.3+cpu-cp38-abi3-linux.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in PACKAGE.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "vllm-1.2.4.dist-info").mkdir()
    return folder


def flags(*words: object) -> Result:
    return CliRunner().invoke(main, ["flags", *map(str, words)], catch_exceptions=False)


# ---- what is written


def test_a_wheel_names_its_version(wheel: Path, tables: Path) -> None:
    result = flags("add", wheel)
    made = table.load("1.2.3", tables)
    assert result.exit_code == 0
    assert result.stdout == f"{tables}/1.2.3.json: {len(made.flags)} flags, {len(made.configs)} configs, {HELD}\n"
    assert made.environment == {"VLLM_ONE", "VLLM_TWO", "VLLM_THREE", "VLLM_FOUR", "VLLM_FIVE", "VLLM_SIX"}
    assert sorted(p.name for p in tables.iterdir()) == ["0.11.0.json", "1.2.3.json"]
    assert (tables / "1.2.3.json").stat().st_mode & 0o777 == 0o644


def test_a_folder_names_its_version_in_its_metadata(site: Path, tables: Path) -> None:
    assert flags("add", site).exit_code == 0
    assert table.load("1.2.4", tables).version == "1.2.4"


@pytest.mark.parametrize("said", ["9.9.9", "v9.9.9", "9.9.9+cu129"])
def test_what_is_said_counts(wheel: Path, tables: Path, said: str) -> None:
    assert flags("add", wheel, said).exit_code == 0
    assert table.versions(tables) == ("0.11.0", "9.9.9")


def test_an_older_table_is_replaced_when_asked(wheel: Path, tables: Path) -> None:
    refused = flags("add", wheel, "0.11.0")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("vLLM 0.11.0 has a table; add --force to replace it [FLAGS-VERSION]\n")
    assert len(table.load("0.11.0", tables).flags) == 183
    assert flags("add", wheel, "0.11.0", "--force").exit_code == 0
    assert len(table.load("0.11.0", tables).flags) < 183


def test_the_list(wheel: Path) -> None:
    flags("add", wheel)
    first, second = flags("list").stdout.splitlines()
    assert first.startswith("0.11.0     183 flags, 8 configs, ")
    assert second.startswith("1.2.3      ")
    assert second.endswith(HELD)


# ---- what is wrong


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda p: p.unlink(), "cannot read: no such file or directory; give the path of a wheel"),
        (lambda p: p.write_bytes(b"not a zip"), "this is no wheel, or one that is cut off; download it again"),
        (lambda p: p.write_bytes(p.read_bytes()[:-200]), "this is no wheel, or one that is cut off; download it again"),
        (
            lambda p: zipfile.ZipFile(p, "w").close(),
            "no argument classes as vLLM's are found in it; give a package of vLLM, 0.11 or later",
        ),
    ],
)
def test_a_file_that_is_no_package(wheel: Path, tables: Path, spoil: object, told: str) -> None:
    assert callable(spoil)
    spoil(wheel)
    result = flags("add", wheel)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {wheel}: {told}")
    assert result.stderr.count("\n") == 1
    assert table.versions(tables) == ("0.11.0",)


def test_a_damaged_file_in_a_wheel(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    at = data.index(b"class FlexibleArgumentParser")
    data[at : at + 5] = b"XXXXX"
    wheel.write_bytes(data)
    assert "this is no wheel, or one that is cut off" in flags("add", wheel).stderr


def test_a_folder_without_the_package(tmp_path: Path) -> None:
    result = flags("add", tmp_path, "1.0.0")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path}: there is no folder vllm in it; give the folder that vllm lies in, as site-packages "
        "[FLAGS-READ]\n"
    )


def test_a_package_that_is_built_otherwise(site: Path) -> None:
    (site / "vllm/engine/arg_utils.py").write_text("def half(")
    assert "no argument classes as vLLM's are found in it" in flags("add", site).stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["newest"], "'newest' is no version; write it like 0.13.0 [FLAGS-VERSION]"),
        (["../../0.1"], "'../../0.1' is no version"),
    ],
)
def test_a_version_that_is_none(wheel: Path, tables: Path, words: list[str], told: str) -> None:
    result = flags("add", wheel, *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert table.versions(tables) == ("0.11.0",)


def test_a_package_that_does_not_name_its_version(wheel: Path) -> None:
    renamed = wheel.rename(wheel.with_name("download.whl"))
    result = flags("add", renamed)
    assert result.stderr == (
        f"error: {renamed}: its version is not in its name; "
        "give the version behind it: fleet flags add WHEEL_OR_DIR VERSION [FLAGS-VERSION]\n"
    )


def test_nowhere_to_write(wheel: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FOLDER", tables / "gone")
    result = flags("add", wheel)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tables}/gone: cannot write: no such file or directory; run it as who may write there [FLAGS-WRITE]\n"
    )


def test_half_a_table_is_never_there(wheel: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fchmod", full)
    result = flags("add", wheel)
    assert "cannot write: no space left on device" in result.stderr
    assert [p.name for p in tables.iterdir()] == ["0.11.0.json"]


def test_no_variables_are_told_where_most_would_be_missing(site: Path) -> None:
    (site / "vllm/envs.py").unlink()
    assert variables(Source(site)) == frozenset()


def test_a_package_that_is_not_there(tables: Path) -> None:
    result = flags("add", "/no/such/folder")
    assert result.exit_code == 2
    assert "/no/such/folder: cannot read: no such file or directory; give the path" in result.stderr
