"""Shell text for apt and dnf, run by sh with stand-ins for both."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleet.prepare import packages
from fleet.prepare.common import DEBIAN, REDHAT

BUNDLE = "deb [trusted=yes] file:/srv/apt ./\n"
ONLY = "-o Dir::Etc::sourcelist={root}/etc/apt/sources.list.d/vllm-fleet.list -o Dir::Etc::sourceparts=-"


class Machine:
    """A folder that stands for a host: its tools say what they are told to, and what they were asked is kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "etc/apt/sources.list.d", "etc/yum.repos.d", "etc/dnf"):
            (root / folder).mkdir(parents=True)
        self.tool("sleep", "exit 0")

    def tool(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/log\n{script}\n')
        path.chmod(0o755)

    def run(self, text: str) -> tuple[int, str]:
        for place in ("/etc/", "/var/lib/vllm-fleet"):
            text = text.replace(place, f"{self.root}{place}")
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=environment, timeout=20)
        assert done.stderr == "", done.stderr
        return done.returncode, done.stdout

    def asked(self, tool: str) -> list[str]:
        """What a tool was asked, without the options that every call has."""
        lines = (self.root / "log").read_text().splitlines() if (self.root / "log").exists() else []
        return [line.partition(" -o Acquire::https::Timeout=20 ")[2] or line for line in lines if line.startswith(tool)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- apt


def test_lists_are_read_anew_and_then_left_for_an_hour(machine: Machine) -> None:
    machine.tool("apt-get", "exit 0")
    text = packages.install(DEBIAN, ["curl", "chrony"])
    assert machine.run(text)[0] == 0
    assert machine.run(text)[0] == 0
    install = "install --no-install-recommends curl chrony"
    assert machine.asked("apt-get") == ["update", install, install]


def test_lists_are_read_anew_where_a_source_is_newer_or_the_package_is_not_in_them(machine: Machine) -> None:
    machine.tool("apt-get", f"case $* in *install*) test -e {machine.root}/ok;; esac")
    machine.run(packages.install(DEBIAN, ["curl"]))
    (machine.root / "log").unlink()
    machine.run(packages.install(DEBIAN, ["curl"]))
    assert [line.split()[0] for line in machine.asked("apt-get")] == ["install", "update", "install"]
    (machine.root / "log").unlink()
    (machine.root / "ok").touch()
    new = machine.root / "etc/apt/sources.list.d/other.list"
    new.touch()
    os.utime(new, (4e9, 4e9))
    machine.run(packages.install(DEBIAN, ["curl"]))
    assert [line.split()[0] for line in machine.asked("apt-get")] == ["update", "install"]


def test_nobody_is_asked_and_configurations_are_kept(machine: Machine) -> None:
    machine.tool("apt-get", 'echo "$DEBIAN_FRONTEND $NEEDRESTART_MODE"; read line && echo "typed $line"; true')
    assert "noninteractive l" in machine.run(packages.install(DEBIAN, ["curl"]))[1]
    first = (machine.root / "log").read_text().splitlines()[0]
    for option in ("DPkg::Lock::Timeout=300", "Dpkg::Options::=--force-confold", "Dpkg::Options::=--force-confdef"):
        assert f"-o {option} " in first


def test_updates_that_ubuntu_brings_to_some_hosts_later_are_not_waited_for(machine: Machine) -> None:
    machine.tool("apt-get", "exit 0")
    machine.run(packages.install(DEBIAN, ["nvidia-driver-580-server-open=580.95.05-0ubuntu1"]))
    for line in (machine.root / "log").read_text().splitlines():
        assert "-o APT::Get::Always-Include-Phased-Updates=true " in line


def test_a_foreign_source_that_is_broken_keeps_nothing_from_being_installed(machine: Machine) -> None:
    machine.tool("apt-get", "case $* in *update*) echo 'E: The repository has no Release file'; exit 100;; esac")
    rc, said = machine.run(packages.install(DEBIAN, ["curl"]))
    assert rc == 0
    assert "some source of packages cannot be read; the others are used" in said


def test_a_locked_list_is_waited_for(machine: Machine) -> None:
    machine.tool(
        "apt-get",
        f"case $* in *update*) test -e {machine.root}/second && exit 0; touch {machine.root}/second; "
        "echo 'E: Could not get lock /var/lib/apt/lists/lock'; exit 100;; esac",
    )
    assert machine.run(packages.install(DEBIAN, ["curl"]))[0] == 0
    assert [line.split()[0] for line in machine.asked("apt-get")] == ["update", "update", "install"]


def test_what_was_brought_along_is_asked_alone_and_nothing_else_has_to_answer(machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list.d/vllm-fleet.list").write_text(BUNDLE)
    machine.tool("apt-get", f"case $* in *{machine.root}/etc/apt/sources.list.d/*) ;; *) exit 100;; esac")
    assert machine.run(packages.install(DEBIAN, ["curl"]))[0] == 0
    assert machine.asked("apt-get") == [
        f"{ONLY.format(root=machine.root)} -o APT::Get::List-Cleanup=0 {what}"
        for what in ("update", "install --no-install-recommends curl")
    ]


def test_what_was_not_brought_along_comes_from_the_other_sources(machine: Machine) -> None:
    (machine.root / "etc/apt/sources.list.d/vllm-fleet.list").write_text(BUNDLE)
    machine.tool("apt-get", "case $* in *Dir::Etc*install*) echo 'E: Unable to locate package curl'; exit 100;; esac")
    assert machine.run(packages.install(DEBIAN, ["curl"]))[0] == 0
    assert machine.asked("apt-get")[-1] == "install --no-install-recommends curl"


def test_an_installation_that_was_cut_off_is_repaired_first(machine: Machine) -> None:
    machine.tool("dpkg", f"touch {machine.root}/whole")
    machine.tool(
        "apt-get",
        f"case $* in *install*) test -e {machine.root}/whole || {{ echo 'E: dpkg was interrupted'; exit 100; }};; esac",
    )
    assert machine.run(packages.install(DEBIAN, ["curl"]))[0] == 0
    assert machine.asked("dpkg") == ["dpkg --configure -a --force-confdef --force-confold"]


def test_an_exact_version_may_be_an_older_one(machine: Machine) -> None:
    machine.tool("apt-get", "exit 0")
    machine.run(packages.install(DEBIAN, ["nvidia-driver-570=570.133.20-1"]))
    assert machine.asked("apt-get")[-1] == (
        "install --no-install-recommends --allow-downgrades nvidia-driver-570=570.133.20-1"
    )


def test_a_hold_waits_for_the_lock_and_names_no_version(machine: Machine) -> None:
    machine.tool(
        "apt-mark",
        f"test -e {machine.root}/free && exit 0; touch {machine.root}/free; echo 'dpkg: error: lock is held'; exit 100",
    )
    assert machine.run(packages.hold(DEBIAN, ["a=1.0", "b"]))[0] == 0
    assert machine.asked("apt-mark") == ["apt-mark hold a b"] * 2
    assert machine.run(packages.unhold(DEBIAN, ["a"]))[0] == 0
    assert machine.asked("apt-mark")[-1] == "apt-mark unhold a"


# ---- dnf


def test_dnf_waits_where_another_one_works(machine: Machine) -> None:
    machine.tool("dnf", f"test -e {machine.root}/free && exit 0; touch {machine.root}/free; exit 200")
    assert machine.run(packages.install(REDHAT, ["chrony", "gcc"]))[0] == 0
    assert machine.asked("dnf") == [
        "dnf -y --setopt=install_weak_deps=False --setopt=exit_on_lock=True "
        "--setopt=*.skip_if_unavailable=True install chrony gcc"
    ] * 2  # fmt: skip


def test_dnf_asks_what_was_brought_along_alone(machine: Machine) -> None:
    (machine.root / "etc/yum.repos.d/vllm-fleet.repo").write_text(packages.source(REDHAT, "/srv/dnf", None)[1])
    machine.tool("dnf", "exit 0")
    assert machine.run(packages.install(REDHAT, ["chrony"]))[0] == 0
    assert machine.asked("dnf") == [
        "dnf -y --setopt=install_weak_deps=False --setopt=exit_on_lock=True "
        "--disablerepo=* --enablerepo=vllm-fleet install chrony"
    ]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("kernel-devel-5.10.0-60.aarch64", " --setopt=disable_excludes=main"),
        ("kernel-headers", " --setopt=disable_excludes=main"),
        ("chrony", ""),
        ("nvidia-kernel-dkms", ""),
    ],
)
def test_an_excluded_kernel_does_not_keep_its_headers_away(machine: Machine, name: str, asked: str) -> None:
    machine.tool("dnf", "exit 0")
    assert machine.run(packages.install(REDHAT, [name]))[0] == 0
    assert machine.asked("dnf") == [
        f"dnf -y --setopt=install_weak_deps=False --setopt=exit_on_lock=True{asked} "
        f"--setopt=*.skip_if_unavailable=True install {name}"
    ]


def test_dnf_holds_by_its_plugin_where_there_is_one(machine: Machine) -> None:
    machine.tool("dnf", "exit 0")
    assert machine.run(packages.hold(REDHAT, ["driver"]))[0] == 0
    assert machine.asked("dnf")[-1] == "dnf -q versionlock add driver"
    assert not (machine.root / "etc/dnf/dnf.conf").exists()


@pytest.mark.parametrize(
    ("before", "held", "free"),
    [
        ("[main]\ngpgcheck=1\n", "[main]\ngpgcheck=1\nexclude=a b\n", "[main]\ngpgcheck=1\nexclude=\n"),
        (None, "[main]\nexclude=a b\n", "[main]\nexclude=\n"),
        (
            "[main]\nexclude=kernel* b,\n  baz\nbest=1\n\n[x]\nexclude=a\n",
            "[main]\nexclude=a b kernel*\n  baz\nbest=1\n\n[x]\nexclude=a\n",
            "[main]\nexclude=kernel*\n  baz\nbest=1\n\n[x]\nexclude=a\n",
        ),
        ("[main]\nbest=1\n[x]\n", "[main]\nbest=1\nexclude=a b\n[x]\n", "[main]\nbest=1\nexclude=\n[x]\n"),
    ],
)
def test_without_the_plugin_the_exclude_line_is_kept_up(
    machine: Machine, before: str | None, held: str, free: str
) -> None:
    machine.tool("dnf", "exit 1")
    config = machine.root / "etc/dnf/dnf.conf"
    if before is not None:
        config.write_text(before)
    for _ in range(2):
        assert machine.run(packages.hold(REDHAT, ["a", "b"]))[0] == 0
        assert config.read_text() == held
    assert machine.run(packages.unhold(REDHAT, ["a", "b"]))[0] == 0
    assert config.read_text() == free


# ---- sources, and what is said


def test_sources_of_debian() -> None:
    assert packages.source(DEBIAN, "/srv/apt", "deb http://mirror.corp/debian bookworm main") == (
        "/etc/apt/sources.list.d/vllm-fleet.list",
        BUNDLE + "deb http://mirror.corp/debian bookworm main\n",
    )
    assert packages.source(DEBIAN, None, None)[1] == ""


def test_sources_of_the_rhel_family() -> None:
    path, text = packages.source(REDHAT, "/srv/dnf", "http://mirror.corp/openeuler")
    assert path == "/etc/yum.repos.d/vllm-fleet.repo"
    assert text == (
        "[vllm-fleet]\nname=vllm-fleet\nbaseurl=file:/srv/dnf\nenabled=1\ngpgcheck=0\n"
        "[vllm-fleet-given]\nname=vllm-fleet-given\nbaseurl=http://mirror.corp/openeuler\nenabled=1\n"
    )
    assert "baseurl=file:/mnt/iso\n" in packages.source(REDHAT, None, "/mnt/iso")[1]


@pytest.mark.parametrize(
    ("said", "what", "mend"),
    [
        ("E: Unable to locate package chrony", "no source of packages has chrony", "package_source"),
        ("No match for argument: dkms\nError: Unable to find it", "no source of packages has dkms", "bundle"),
        ("E: Could not get lock /var/lib/dpkg/lock", "another package manager has worked for 5 minutes", "wait"),
        ("E: You don't have enough free space in /var/cache/apt", "the disk is full", "free some space"),
        ("E: Failed to fetch http://x/y.deb", "the sources of packages do not answer", "package_source"),
        ("E: you have held broken packages.", "what is installed stands against it", "hand"),
    ],
)
def test_why_an_installation_failed(said: str, what: str, mend: str) -> None:
    told = packages.fault("atlas-1", "package chrony", ["Reading package lists...", *said.splitlines()])
    assert (told.rule, told.where, told.what) == ("PREPARE-PACKAGE", "atlas-1", f"package chrony: {what}")
    assert mend in told.mend


def test_what_is_not_known_is_told_as_it_was_said() -> None:
    told = packages.fault("atlas-1", "Docker", ["\x1b[31mE: Something new\x1b[0m"])
    assert told.what == "Docker: E: Something new"
