"""Writing a release: the shell texts, run on folders of this machine, and what a change is said to mean."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet import apply, release, topology
from fleet.release import Release
from fleet.topology import home_of

SCRIPT = r"""#!/bin/bash
# vllm-serve-0 on h: written by vllm-fleet
set -eu
export A=1
exec vllm serve m \
  --seed 1 \
  --port 8000
"""


# ---- what a change means


def test_nothing_changed() -> None:
    assert apply.changes({"run/vllm-serve-0.sh": SCRIPT}, {"run/vllm-serve-0.sh": SCRIPT}) == []


def test_a_changed_argument_restarts_its_unit() -> None:
    after = SCRIPT.replace("--seed 1", "--seed 2").replace("A=1", "A=2")
    assert apply.changes({"run/vllm-serve-0.sh": SCRIPT}, {"run/vllm-serve-0.sh": after}) == [
        "vllm-serve-0: restarts; - export A=1  - --seed 1  + export A=2  + --seed 2"
    ]


def test_a_new_argument() -> None:
    after = SCRIPT.replace("--port 8000", "--port 8000 \\\n  --enforce-eager")
    assert apply.changes({"run/vllm-serve-0.sh": SCRIPT}, {"run/vllm-serve-0.sh": after}) == [
        "vllm-serve-0: restarts; + --enforce-eager"
    ]


def test_another_order() -> None:
    after = SCRIPT.replace("--seed 1 \\\n  --port 8000", "--port 8000 \\\n  --seed 1")
    assert apply.changes({"run/vllm-serve-0.sh": SCRIPT}, {"run/vllm-serve-0.sh": after}) == [
        "vllm-serve-0: restarts; order of words"
    ]


def test_units_come_and_go() -> None:
    assert apply.changes({"run/vllm-a.sh": SCRIPT}, {"run/vllm-b.sh": SCRIPT}) == ["vllm-a: removed", "vllm-b: new"]


def test_other_files_come_change_and_go() -> None:
    before = {"proxy/haproxy.cfg": "a\n", "units/vllm-a.service": "a\n"}
    after = {"proxy/haproxy.cfg": "b\n", "units/vllm-b.service": "b\n"}
    assert apply.changes(before, after) == [
        "proxy/haproxy.cfg: changed",
        "units/vllm-a.service: removed",
        "units/vllm-b.service: new",
    ]


def test_ids_and_the_manifest_are_not_worth_a_line() -> None:
    assert apply.changes({"run/a.id": "1\n", "manifest.json": "{}"}, {"run/a.id": "2\n", "manifest.json": "[]"}) == []


# ---- reading what is there


def test_an_answer_is_read() -> None:
    digest = "0f" * 32
    lines = [
        "@@ 0123456789ab",
        *(f"{digest}  ./run/vllm-a.sh", f"{digest}  ./units/vllm a.service", f"{digest}  ./manifest.json"),
        *("mode 755 ./run/vllm-a.sh", "mode 644 ./units/vllm a.service"),
        *("unit vllm-a enabled", "unit vllm-b disabled"),
    ]
    assert apply.read(lines) == {
        "id": "0123456789ab",
        "files": {
            "run/vllm-a.sh": ["755", digest],
            "units/vllm a.service": ["644", digest],
            "manifest.json": ["", digest],
        },
        "units": {"vllm-a": "enabled", "vllm-b": "disabled"},
    }


def test_a_bare_host_has_no_id() -> None:
    assert apply.read([]) == {"files": {}, "units": {}}


def test_files_are_read() -> None:
    lines = ["noise", "@@ ./a", "one", "", "@@ two", "@@ ./b/c", "@@ ./empty"]
    assert apply.read_files(lines) == {"a": "one\n\n@@ two\n", "b/c": "", "empty": ""}


@pytest.mark.parametrize(("text", "data"), [('{"engine": "1"}', {"engine": "1"}), ("[]", {}), ("1", {})])
def test_a_manifest_is_a_mapping(text: str, data: dict[str, str]) -> None:
    assert apply.manifest(text) == data


# ---- on a folder


@dataclass
class Host:
    """Folders in the place of /etc/vllm-fleet and systemd's, and a systemctl that writes down what it is asked."""

    folder: Path
    run: Callable[..., subprocess.CompletedProcess[str]]

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def install(self, wanted: Release) -> subprocess.CompletedProcess[str]:
        return self.run(apply.script(wanted), base64.b64encode(release.archive(wanted)).decode())

    def asked(self) -> list[str]:
        log = self.folder / "systemctl.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    for name in ("etc", "systemd", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(topology, "ROOT", str(tmp_path / "etc"))
    monkeypatch.setattr(apply, "SYSTEMD", str(tmp_path / "systemd"))
    monkeypatch.setattr(apply, "WANTS", str(tmp_path / "systemd/multi-user.target.wants"))
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/systemctl.log\n'
        f'if [ "$1" = stop ]; then readlink {tmp_path}/etc/current >> {tmp_path}/stopped.log; fi\n'
    )
    systemctl.chmod(0o755)

    def run(text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", text], input=stdin, env=environment, capture_output=True, text=True, check=False, timeout=20
        )

    return Host(tmp_path, run)


def made(ident: str, *units: str, service: str = "", **more: str) -> Release:
    """A release with a script and a unit file for each unit."""
    files = {f"run/{u}.sh": (0o755, SCRIPT) for u in units}
    files |= {f"units/{u}.service": (0o644, f"[Service]\nExecStart={u}\n") for u in units}
    files |= {name: (0o644, text) for name, text in more.items()}
    files["manifest.json"] = (0o644, "{}\n")
    return Release(ident, dict(sorted(files.items())), {u: ident for u in units}, home_of(service))


def test_a_release_is_written_switched_to_and_enabled(host: Host) -> None:
    done = host.install(made("aaaaaaaaaaaa", "vllm-a", "vllm-b"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (host.etc / "current").readlink() == Path("releases/aaaaaaaaaaaa")
    assert (host.etc / "current/run/vllm-a.sh").read_text() == SCRIPT
    assert (host.etc / "current/run/vllm-a.sh").stat().st_mode & 0o777 == 0o755
    for folder in ("systemd", "systemd/multi-user.target.wants"):  # through the link, whichever release it will be
        assert (host.folder / folder / "vllm-b.service").readlink() == host.etc / "current/units/vllm-b.service"
    assert host.asked() == ["daemon-reload"]


def test_what_is_there_is_told_back(host: Host) -> None:
    wanted = made("aaaaaaaaaaaa", "vllm-a")
    host.install(wanted)
    answer = apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines())
    assert answer == {
        "id": "aaaaaaaaaaaa",
        "files": {
            "manifest.json": ["644", hashlib.sha256(b"{}\n").hexdigest()],
            "run/vllm-a.sh": ["755", hashlib.sha256(SCRIPT.encode()).hexdigest()],
            "units/vllm-a.service": ["644", hashlib.sha256(b"[Service]\nExecStart=vllm-a\n").hexdigest()],
        },
        "units": {"vllm-a": "enabled"},
    }
    assert apply.is_in_place(wanted, answer)
    texts = apply.read_files(host.run(apply.ask_files(home_of(""))).stdout.splitlines())
    assert texts == {path: text for path, (_, text) in wanted.files.items()}


def test_nothing_is_told_of_a_bare_host(host: Host) -> None:
    done = host.run(apply.ask(home_of("")))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_unit_that_is_not_enabled_is_told_so_that_it_is_written_again(host: Host) -> None:
    host.install(wanted := made("aaaaaaaaaaaa", "vllm-a"))
    (host.folder / "systemd/multi-user.target.wants/vllm-a.service").unlink()
    answer = apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines())
    assert answer["units"] == {"vllm-a": "disabled"}
    assert not apply.is_in_place(wanted, answer)


@pytest.mark.parametrize("units", [(), ("vllm-a",), ("vllm-a", "vllm-b")], ids=["none", "one", "two"])
def test_a_release_is_in_place_once_it_is_written(host: Host, units: tuple[str, ...]) -> None:
    wanted = made("aaaaaaaaaaaa", *units, **{"proxy/haproxy.cfg": "Grüße\n"})
    assert not apply.is_in_place(wanted, apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines()))
    host.install(wanted)
    assert apply.is_in_place(wanted, apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines()))


def _link(host: Host, unit: str) -> None:
    (host.folder / f"systemd/{unit}.service").symlink_to(host.etc / f"current/units/{unit}.service")


DIFFERENCES: dict[str, Callable[[Host], object]] = {
    "edited": lambda host: (host.etc / "current/run/vllm-a.sh").write_text("changed by hand\n"),
    "chmod": lambda host: (host.etc / "current/run/vllm-a.sh").chmod(0o644),
    "opened": lambda host: (host.etc / "current/manifest.json").chmod(0o666),
    "surplus-file": lambda host: (host.etc / "current/run/stray").write_text(""),
    "missing-file": lambda host: (host.etc / "current/run/vllm-b.sh").unlink(),
    "surplus-unit": lambda host: _link(host, "vllm-c"),
    "disabled-unit": lambda host: (host.folder / "systemd/multi-user.target.wants/vllm-b.service").unlink(),
    "missing-unit": lambda host: (host.folder / "systemd/vllm-b.service").unlink(),
    "no-release": lambda host: (host.etc / "current").unlink(),
    "other-release": lambda host: host.install(made("bbbbbbbbbbbb", "vllm-a", "vllm-b")),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_release_is_not_in_place_and_the_next_run_mends_it(host: Host, difference: str) -> None:
    host.install(wanted := made("aaaaaaaaaaaa", "vllm-a", "vllm-b"))  # in place now, as above
    DIFFERENCES[difference](host)
    assert not apply.is_in_place(wanted, apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines()))
    done = host.install(wanted)
    assert (done.returncode, done.stderr) == (0, "")
    assert apply.is_in_place(wanted, apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines()))


def test_a_release_of_the_same_content_and_another_name_is_not_in_place(host: Host) -> None:
    host.install(wanted := made("aaaaaaaaaaaa", "vllm-a"))
    answer = apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines())
    assert not apply.is_in_place(Release("bbbbbbbbbbbb", wanted.files, wanted.unit_ids, wanted.home), answer)


def test_units_of_others_do_not_count(host: Host) -> None:
    (host.folder / "systemd/vllm-other.service").write_text("[Service]\n")
    (host.folder / "systemd/vllm-linked.service").symlink_to("/usr/lib/systemd/system/vllm-linked.service")
    host.install(wanted := made("aaaaaaaaaaaa", "vllm-a"))
    assert apply.is_in_place(wanted, apply.read(host.run(apply.ask(home_of(""))).stdout.splitlines()))


def test_a_new_release_leaves_the_old_one_for_a_way_back(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    host.install(made("bbbbbbbbbbbb", "vllm-a"))
    assert (host.etc / "current").readlink() == Path("releases/bbbbbbbbbbbb")
    assert sorted(p.name for p in (host.etc / "releases").iterdir()) == ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]


def test_units_that_are_gone_are_stopped_and_forgotten(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a", "vllm-b"))
    host.asked()
    host.install(made("bbbbbbbbbbbb", "vllm-a"))
    assert host.asked() == ["stop vllm-b.service", "reset-failed vllm-b.service", "daemon-reload"]
    assert sorted(p.name for p in (host.folder / "systemd").glob("vllm-*")) == ["vllm-a.service"]
    assert [p.name for p in (host.folder / "systemd/multi-user.target.wants").iterdir()] == ["vllm-a.service"]


def test_units_that_are_gone_are_stopped_while_their_own_settings_still_hold(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a", "vllm-b", "vllm-c"))
    host.asked()
    host.install(made("bbbbbbbbbbbb", "vllm-b"))
    assert (host.folder / "stopped.log").read_text() == "releases/aaaaaaaaaaaa\n"
    assert host.asked() == [
        "stop vllm-a.service vllm-c.service",
        "reset-failed vllm-a.service",
        "reset-failed vllm-c.service",
        "daemon-reload",
    ]
    assert (host.etc / "current").readlink() == Path("releases/bbbbbbbbbbbb")


def test_a_unit_that_cannot_be_stopped_does_not_keep_the_release_out(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a", "vllm-b"))
    systemctl = host.folder / "bin/systemctl"
    systemctl.write_text(systemctl.read_text() + 'case "$1" in stop|reset-failed) exit 5;; esac\n')
    assert host.install(made("bbbbbbbbbbbb", "vllm-a")).returncode == 0
    assert (host.etc / "current").readlink() == Path("releases/bbbbbbbbbbbb")
    assert sorted(p.name for p in (host.folder / "systemd").glob("vllm-*")) == ["vllm-a.service"]


def test_nothing_is_stopped_where_no_unit_is_gone(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    host.asked()
    host.install(made("bbbbbbbbbbbb", "vllm-a", "vllm-b"))
    assert host.asked() == ["daemon-reload"]


def test_units_of_others_are_left_alone(host: Host) -> None:
    other = host.folder / "systemd/vllm-other.service"
    other.write_text("[Service]\n")
    linked = host.folder / "systemd/vllm-linked.service"
    linked.symlink_to("/usr/lib/systemd/system/vllm-linked.service")
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    assert other.exists()
    assert linked.is_symlink()


def test_a_release_without_units_is_one_too(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    host.asked()
    done = host.install(made("bbbbbbbbbbbb"))
    assert (done.returncode, done.stderr) == (0, "")
    assert host.asked() == ["stop vllm-a.service", "reset-failed vllm-a.service", "daemon-reload"]


def test_what_a_cut_run_left_is_removed(host: Host) -> None:
    (host.etc / "releases/.new-77/run").mkdir(parents=True)
    (host.etc / ".current-77").symlink_to("releases/x")
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    assert sorted(p.name for p in host.etc.iterdir()) == [".lock", "current", "releases"]
    assert [p.name for p in (host.etc / "releases").iterdir()] == ["aaaaaaaaaaaa"]


def test_a_damaged_release_of_the_same_name_is_replaced(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    (host.etc / "current/run/vllm-a.sh").write_text("changed by hand\n")
    (host.etc / "current/run/stray").write_text("")
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    assert (host.etc / "current/run/vllm-a.sh").read_text() == SCRIPT
    assert not (host.etc / "current/run/stray").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:200],
        lambda raw: "",
        lambda raw: "not base64 at all!",
        lambda raw: base64.b64encode(base64.b64decode(raw).replace(b"--seed 1", b"--seed 2")).decode(),
    ],
    ids=["cut", "empty", "garbled", "other-content"],
)
def test_an_upload_that_is_cut_changes_nothing(host: Host, damage: Callable[[str], str]) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    wanted = made("bbbbbbbbbbbb", "vllm-a")
    raw = base64.b64encode(release.archive(wanted)).decode()
    assert damage(raw) != raw
    assert host.run(apply.script(wanted), damage(raw)).returncode != 0
    assert (host.etc / "current").readlink() == Path("releases/aaaaaaaaaaaa")
    assert [p.name for p in (host.etc / "releases").iterdir()] == ["aaaaaaaaaaaa"]


def test_an_upload_that_is_cut_between_two_files_changes_nothing(host: Host) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    wanted = made("bbbbbbbbbbbb", "vllm-a")
    raw = release.archive(wanted)
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        last = tar.getmembers()[-1]
    done = host.run(apply.script(wanted), base64.b64encode(raw[: last.offset]).decode())
    assert (done.returncode, done.stderr) == (1, "the upload is not whole\n")
    assert (host.etc / "current").readlink() == Path("releases/aaaaaaaaaaaa")


def test_a_second_run_waits_for_the_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install(made("aaaaaaaaaaaa", "vllm-a"))
    wanted = made("bbbbbbbbbbbb", "vllm-a")
    text = apply.script(wanted).replace("flock -w 60", "flock -w 0")
    done = host.run(f"exec 8>{host.etc}/.lock; flock 8; {text}", base64.b64encode(release.archive(wanted)).decode())
    assert done.returncode == 1
    assert done.stderr == "another run is writing here\n"
    assert (host.etc / "current").readlink() == Path("releases/aaaaaaaaaaaa")


# ---- several services on a host


def in_place(host: Host, wanted: Release) -> bool:
    return apply.is_in_place(wanted, apply.read(host.run(apply.ask(wanted.home)).stdout.splitlines()))


def test_services_beside_each_other_each_see_their_own(host: Host) -> None:
    chat, code = (
        made("aaaaaaaaaaaa", "vllm-chat-a", service="chat"),
        made("bbbbbbbbbbbb", "vllm-code-a", service="code"),
    )
    plain = made("cccccccccccc", "vllm-a")
    for wanted in (chat, code, plain):
        assert host.install(wanted).returncode == 0
    assert [in_place(host, wanted) for wanted in (chat, code, plain)] == [True, True, True]
    assert (host.etc / "services/chat/current").readlink() == Path("releases/aaaaaaaaaaaa")
    assert (host.etc / "current").readlink() == Path("releases/cccccccccccc")
    assert "stop" not in " ".join(host.asked())


@pytest.mark.parametrize("service", ["", "chat"])
def test_a_service_that_goes_takes_none_of_the_others_along(host: Host, service: str) -> None:
    others = [name for name in ("", "chat", "code") if name != service]
    kept = [made("aaaaaaaaaaaa", f"vllm-{name}-a", service=name) for name in others]
    for wanted in (*kept, made("bbbbbbbbbbbb", "vllm-x-a", "vllm-x-b", service=service)):
        host.install(wanted)
    host.asked()
    host.install(made("dddddddddddd", service=service))
    assert host.asked()[0] == "stop vllm-x-a.service vllm-x-b.service"
    assert [in_place(host, wanted) for wanted in kept] == [True, True]
    assert sorted(p.name for p in (host.folder / "systemd").glob("vllm-*")) == sorted(
        f"vllm-{n}-a.service" for n in others
    )
