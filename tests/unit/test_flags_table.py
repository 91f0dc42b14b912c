"""Flag tables as data: what the versions have, and which table stands in for a version that has none."""

from pathlib import Path

import pytest

from fleet.flags.table import Config, Flag, Table, from_json, load, nearest, to_json, versions

# Flags, option strings and variables per version. 0.32.0 is what the live parser has (318 actions with help and the
# model); 0.11.0 has four deprecated --guided-decoding-* flags that are added in a loop.
COUNTS = {
    "0.11.0": (183, 241, 186),
    "0.11.1": (200, 265, 200),
    "0.11.2": (200, 265, 200),
    "0.12.0": (194, 260, 208),
    "0.13.0": (195, 264, 213),
    "0.14.0": (204, 281, 221),
    "0.14.1": (204, 281, 221),
    "0.15.0": (207, 285, 219),
    "0.15.1": (207, 285, 219),
    "0.16.0": (212, 292, 211),
    "0.17.0": (222, 305, 222),
    "0.17.1": (222, 305, 222),
    "0.18.0": (225, 308, 223),
    "0.18.1": (225, 308, 223),
    "0.19.0": (230, 314, 227),
    "0.19.1": (230, 314, 227),
    "0.20.0": (239, 326, 238),
    "0.20.1": (239, 326, 239),
    "0.20.2": (239, 326, 239),
    "0.21.0": (247, 334, 242),
    "0.22.0": (261, 352, 253),
    "0.22.1": (261, 352, 253),
    "0.23.0": (261, 352, 255),
    "0.24.0": (266, 359, 255),
    "0.25.0": (270, 364, 260),
    "0.25.1": (270, 364, 260),
    "0.26.0": (274, 370, 267),
    "0.27.0": (282, 381, 271),
    "0.27.1": (282, 381, 271),
    "0.28.0": (284, 384, 286),
    "0.29.0": (292, 395, 292),
    "0.30.0": (300, 405, 292),
    "0.31.0": (311, 420, 298),
    "0.32.0": (316, 428, 307),
    "0.33.0": (320, 433, 310),
}


@pytest.mark.parametrize("version", COUNTS)
def test_counts(version: str) -> None:
    table = load(version)
    assert (len(table.flags), sum(len(f.options) for f in table.flags), len(table.environment)) == COUNTS[version]
    assert table.version == version


def test_versions_are_ordered_as_versions() -> None:
    assert versions() == tuple(COUNTS)


def test_a_flag_in_full() -> None:
    assert load("0.32.0").flag("--scheduling_policy") == Flag(
        options=("--scheduling-policy",),
        dest="scheduling_policy",
        kind="str",
        at=269,
        choices=("fcfs", "priority"),
        default="'fcfs'",
    )


@pytest.mark.parametrize(
    ("option", "kind", "options"),
    [
        ("-tp", "int", ("--tensor-parallel-size", "-tp")),
        ("--no-enable-prefix-caching", "bool", ("--enable-prefix-caching", "--no-enable-prefix-caching")),
        ("-cc", "config", ("--compilation-config", "-cc")),
        ("--hf-overrides", "str-or-dict", ("--hf-overrides",)),
        ("--speculative-config", "dict", ("--speculative-config", "-sc")),
        ("--kv-cache-memory-bytes", "size", ("--kv-cache-memory-bytes",)),
        ("--allowed-origins", "json", ("--allowed-origins",)),
        ("--moe-backend", "name", ("--moe-backend",)),
    ],
)
def test_kinds(option: str, kind: str, options: tuple[str, ...]) -> None:
    flag = load("0.32.0").flag(option)
    assert flag is not None
    assert (flag.kind, flag.options) == (kind, options)


def test_what_moved_between_versions() -> None:
    assert load("0.11.0").flag("--rope-scaling") is not None
    assert load("0.13.0").flag("--rope-scaling") is None
    assert load("0.13.0").flag("--swap-space") is not None
    assert load("0.18.0").flag("--swap-space") is None
    assert load("0.11.0").flag("--task").deprecated  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("0.32.0", "0.32.0"),
        ("0.34.1", "0.33.0"),
        ("0.22.5", "0.22.1"),
        ("0.20.0rc1", "0.19.1"),
        ("0.20.0.post1", "0.20.0"),
        ("0.20", "0.20.0"),
        ("0.9.2", "0.11.0"),
        ("v0.18.0", "0.18.0"),
    ],
)
def test_nearest_older_table(asked: str, got: str) -> None:
    assert nearest(asked).version == got


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no flag tables"):
        nearest("0.32.0", tmp_path)


def test_text_and_back() -> None:
    table = Table(
        "1.0",
        (Flag(("--a", "-a"), "a", "int"), Flag(("--b",), "b", "str", at=1, choices=("x", None), nargs="+")),
        {"C": Config({"k": ("x", "y"), "n": "int?", "z": None}, open=True)},
        frozenset({"level"}),
    )
    text = to_json(table)
    assert text == (
        '{\n"version": "1.0",\n"features": ["level"],\n"configs": {\n'
        '"C": {"fields":{"k":["x","y"],"n":"int?","z":null},"open":true}\n},\n"flags": [\n'
        '{"options":["--a","-a"],"dest":"a","kind":"int"},\n'
        '{"options":["--b"],"dest":"b","kind":"str","at":1,"nargs":"+","choices":["x",null]}\n]\n}\n'
    )
    assert from_json(text) == table


def test_files_hold_no_addresses() -> None:
    for path in Path("files/flags").glob("*.json"):
        assert "://" not in path.read_text()
