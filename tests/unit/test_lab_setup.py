"""What the lab reads from the machine's settings, and what its command line prints."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fleet.cli.lab import ago, lab, split_words, table
from lab import engine, venvs
from lab.apt import from_lines, from_stanzas
from lab.errors import LabError
from lab.fleet import HostStatus
from lab.host import HostFiles, escape, nspawn_command
from lab.plan import Address
from lab.plugins import vllm_lab_ep, vllm_lab_ray
from lab.progress import step
from lab.shell import last_line, run
from lab.venvs import drop_unfinished, find_links, has_wheel

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


def made_engine(cache: Path, extras: list[str]) -> Path:
    """An engine environment as far as its mark, without an engine."""
    venv = cache / "engines" / "vllm" / "0.32.0"
    (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / engine.MARK).write_text(json.dumps({"version": "0.32.0", "extras": extras}))
    return venv


def test_an_old_environment_gets_extras_and_plugins_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FLEET_CACHE", str(tmp_path))
    venv = made_engine(tmp_path, ["nixl"])
    installed: list[str] = []
    monkeypatch.setattr(engine, "ensure_rootfs", lambda say: tmp_path)
    monkeypatch.setattr(engine, "need_disk", lambda *given: None)
    monkeypatch.setattr(engine, "check", lambda *given: None)
    monkeypatch.setattr(venvs, "install", lambda venv, wanted, options: installed.extend(wanted))
    assert engine.ensure_engine("0.32.0", ["ray"]) == venv
    assert installed == list(engine.EXTRAS["ray"]), "the extra it has is not installed again"
    assert engine.extras_of(venv) == frozenset({"nixl", "ray"})
    engine.ensure_engine("0.32.0", ["ray"])
    assert len(installed) == len(engine.EXTRAS["ray"])


def test_a_changed_plugin_is_brought_up_to_date(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FLEET_CACHE", str(tmp_path))
    packages = made_engine(tmp_path, []) / "lib" / "python3.11" / "site-packages"
    engine.ensure_engine("0.32.0")
    (packages / "vllm_lab_ep.py").write_text("old")
    engine.ensure_engine("0.32.0")
    assert (packages / "vllm_lab_ep.py").read_bytes() == (engine.PLUGINS / "vllm_lab_ep.py").read_bytes()
    found = {p.value for d in metadata.distributions(path=[str(packages)]) for p in d.entry_points}
    assert found == {f"{name}:register" for name in engine.ENTRY_POINTS} | {"vllm_lab_ray:platform"}


def test_every_plugin_has_its_entry_points() -> None:
    assert {path.stem for path in engine.PLUGINS.glob("vllm_lab_*.py")} == set(engine.ENTRY_POINTS)


def test_an_install_that_was_cut_is_forgotten(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("ray-2.56.1.dist-info", "ray_x-1.dist-info"):
        (packages / name).mkdir(parents=True)
    drop_unfinished(tmp_path, ["ray==2.56.1"])
    assert [path.name for path in packages.iterdir()] == ["ray_x-1.dist-info"]


def test_shared_memory_is_named_by_host() -> None:
    def named() -> Any:
        return type("Shared", (), {"make_group_name": staticmethod(lambda group: f"29500-{group}")})

    one, other = named(), named()
    for _ in range(2):
        vllm_lab_ray.name_by_host(one, "lab-0")
    vllm_lab_ray.name_by_host(other, "lab-1")
    assert one.make_group_name("tp") == "29500-tp-lab-0"
    assert one.make_group_name("tp") != other.make_group_name("tp")


class Numbers(list[float]):
    """As much of a tensor as the expert map needs."""

    dtype = None

    def long(self) -> Numbers:
        return self

    def to(self, dtype: object) -> Numbers:
        return self

    def contiguous(self) -> Numbers:
        return self

    def __getitem__(self, index: object) -> Numbers:  # type: ignore[override]
        return Numbers(list.__getitem__(self, int(i)) for i in index)  # type: ignore[attr-defined]

    def __lt__(self, limit: float) -> Numbers:  # type: ignore[override]
        return Numbers(value < limit for value in self)

    def masked_fill(self, mask: Numbers, value: float) -> Numbers:
        return Numbers(value if hidden else own for own, hidden in zip(self, mask, strict=True))


def test_experts_of_other_ranks_get_no_weight() -> None:
    class Experts:
        def apply(
            self, topk_weights: Numbers, topk_ids: Numbers, expert_map: Numbers | None
        ) -> tuple[Numbers, Numbers]:
            return topk_weights, topk_ids

    for _ in range(2):
        vllm_lab_ep.respect_expert_map(Experts)
    weights, ids = Numbers([0.75, 0.25]), Numbers([3, 0])
    assert Experts().apply(weights, ids, expert_map=Numbers([-1, -1, 0, 1])) == ([0.75, 0.0], [1, 0])
    assert Experts().apply(weights, topk_ids=ids, expert_map=None) == (weights, ids)
