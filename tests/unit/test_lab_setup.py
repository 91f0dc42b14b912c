"""What the lab reads from the machine's settings, and what its command line prints."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fleet.cli.lab import ago, lab, split_words, table
from lab.apt import from_lines, from_stanzas
from lab.errors import LabError
from lab.fleet import HostStatus
from lab.host import HostFiles, escape, nspawn_command
from lab.plan import Address
from lab.progress import step
from lab.shell import last_line, run
from lab.venvs import find_links, has_wheel

ARCHIVE = "http://mirror.example/debian"


def test_mirror_from_a_classic_line_with_options() -> None:
    old = "# deb http://old.example/debian bookworm main\n"
    assert from_lines(f"{old}deb [signed-by=/k arch=amd64] {ARCHIVE} bookworm main contrib\n") == ARCHIVE


def test_mirror_is_not_taken_from_a_vendors_archive() -> None:
    assert from_lines("deb https://vendor.example/apt stable-x main\n") is None
    assert from_stanzas("Types: deb\nURIs: https://vendor.example\nSuites: nodistro\nComponents: main\n") is None


def test_mirror_from_stanzas() -> None:
    text = f"Types: deb\nURIs: {ARCHIVE}\nSuites: bookworm bookworm-updates\nComponents: main\n"
    assert from_stanzas("Types: deb-src\nURIs: http://x.example\n\n" + text) == ARCHIVE
    assert from_stanzas(text + "Enabled: no\n") is None


def test_wheels_are_looked_for_where_pip_is_told_to_look(tmp_path: Path) -> None:
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux.whl").touch()
    links = find_links({"PIP_FIND_LINKS": f"{tmp_path} https://wheels.example/"})
    assert links == [str(tmp_path), "https://wheels.example/"]
    assert has_wheel(links, "torch-*+cpu*.whl")
    assert not has_wheel(links, "torch-*+cu130*.whl")


def test_nspawn_gets_pinning_mounts_and_docker_only_when_asked() -> None:
    files = HostFiles(Path("/l/hosts/lab-0"))
    plain = nspawn_command(files, Address("lab-0", "10.0.0.10"), "vfl0", {"/a:b": "/opt/a"}, docker=False, cpu=None)
    assert plain[0] == "systemd-nspawn"
    assert "--directory=/l/hosts/lab-0/root" in plain
    assert "--bind-ro=/a\\:b:/opt/a" in plain
    assert not [word for word in plain if "docker" in word]
    full = nspawn_command(files, Address("lab-0", "10.0.0.10"), "vfl0", {}, docker=True, cpu=1)
    assert full[:3] == ["taskset", "--cpu-list", "1"]
    assert "--bind=/l/hosts/lab-0/docker:/var/lib/docker" in full


def test_escape_keeps_backslashes_apart_from_colons() -> None:
    assert escape("/a\\b:c") == "/a\\\\b\\:c"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["false"], "trying: `false` ended with 1: it printed nothing"),
        (["sh", "-c", "echo why >&2; exit 3"], "ended with 3: why"),
        (["no-such-program-here"], "no-such-program-here is not installed"),
    ],
)
def test_a_failing_program_is_one_line(command: list[str], said: str) -> None:
    with pytest.raises(LabError) as caught:
        run(command, doing="trying", timeout=10)
    assert said in str(caught.value)


def test_last_line_skips_blank_ones() -> None:
    assert last_line("a\nb\n\n") == "b"


def test_a_step_says_when_it_begins_ends_and_fails() -> None:
    lines: list[str] = []
    with step(lines.append, "baking", usual_s=5):
        pass
    with pytest.raises(LabError), step(lines.append, "frying"):
        raise LabError("hot")
    assert lines == [
        "baking ... (usually 5 s)",
        "  done in 0.0 s",
        "frying ...",
        "  failed after 0.0 s: frying",
    ]


def test_table_is_aligned() -> None:
    hosts = [
        HostStatus("lab-0", "10.231.77.10", "up", 100.0, 4242),
        HostStatus("lab-10", "10.231.77.20", "off", 0.0, 0),
    ]
    assert table(hosts, now=130.0).splitlines() == [
        "name    address       state  since  pid",
        "lab-0   10.231.77.10  up     30 s   4242",
        "lab-10  10.231.77.20  off    -      -",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h")])
def test_ago(seconds: int, text: str) -> None:
    assert ago(1000.0, 1000.0 + seconds) == text


def test_exec_takes_hosts_before_the_dashes() -> None:
    assert split_words(["lab-0", "lab-1", "--", "echo", "a b"], []) == (["lab-0", "lab-1"], "echo 'a b'")
    assert split_words(["uptime"], ["fleet", "lab", "exec", "--", "uptime"]) == ([], "uptime")
    assert split_words(["lab-0", "--", "ls | wc"], []) == (["lab-0"], "ls | wc")
    with pytest.raises(click.UsageError):
        split_words(["lab-0", "uptime"], ["fleet", "lab", "exec", "lab-0", "uptime"])


def test_status_without_a_lab_says_so_and_exits_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FLEET_CACHE", str(tmp_path))
    done = CliRunner().invoke(lab, ["status", "--name", "nobody"])
    assert (done.exit_code, done.stdout) == (1, "lab nobody is not up: fleet lab up\n")


def test_a_user_error_is_one_line_and_exit_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FLEET_CACHE", str(tmp_path))
    done = CliRunner().invoke(lab, ["ssh", "lab-0"])
    assert done.exit_code == 2
    assert done.stderr == "error: lab lab is not up: fleet lab up\n"
