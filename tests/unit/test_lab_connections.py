"""Shared ssh connections: opened once, opened again where they have ended, and never in the way."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from lab import image
from lab.connections import LONGEST, Connections

# Notes that it was begun, makes the socket's file as ssh does once it is in, and stays.
SSH = """\
#!/bin/sh
echo "$@" >>{folder}/begun
touch "$4"
exec sleep 60
"""


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    program = tmp_path / "program"
    program.write_text(SSH.format(folder=tmp_path))
    program.chmod(0o755)
    return [str(program)]


def begun(folder: Path) -> list[str]:
    path = folder / "begun"
    return path.read_text().splitlines() if path.exists() else []


def test_a_connection_is_opened_once_and_again_where_it_ended(tmp_path: Path, ssh: list[str]) -> None:
    its = Connections(tmp_path)
    where = str(tmp_path / "ssh-a")
    try:
        assert its.options(ssh, "a") == its.options(ssh, "a") == ["-S", where]
        assert begun(tmp_path) == [f"-M -N -S {where} a"]
        its.close("a")
        assert not Path(where).exists()
        assert its.options(ssh, "a") == ["-S", where]
        assert len(begun(tmp_path)) == 2
    finally:
        its.close_all()
    its.close("never opened")


def test_a_host_that_is_not_reached_is_left_to_the_command_itself(tmp_path: Path) -> None:
    its = Connections(tmp_path)
    assert its.options(["false"], "a") == []
    assert Connections(tmp_path / ("x" * LONGEST)).options(["false"], "a") == [], "no socket has so long a path"


def test_a_light_archive_has_all_that_docker_load_wants(tmp_path: Path) -> None:
    archive = image.light_archive({"registry.example/a:1": "0.13.0"})
    assert archive == image.light_archive({"registry.example/a:1": "0.13.0"})
    assert len(archive) < 4_000_000
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        (entry,) = json.load(opened.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert entry["RepoTags"] == ["registry.example/a:1"]
        assert {entry["Config"], *entry["Layers"]} < set(opened.getnames())
