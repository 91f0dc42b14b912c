"""The system below: packages, the clock and the kernel's settings, asked of and changed in a folder that stands for a
host."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet import snapshot
from fleet.bundle import Bundle, File
from fleet.prepare import base, common, packages, tuning
from fleet.prepare.common import Step, Work
from fleet.stacks import Stack
from fleet.topology import Plan
from tests.unit.drivers import stack_of
from tests.unit.plans import lay

CPU = """
title: t
source: s
platform: cpu
model: {name: org/model, max_position_embeddings: 4096}
engine: {vllm: 0.20.0}
roles:
  serve: {tensor_parallel_size: 1}
"""
ASCEND = CPU.replace("cpu", "ascend-a3").replace("vllm: 0.20.0", "vllm: 0.13.0, vllm_ascend: 0.13.0")
UBUNTU = common.Host("ubuntu", "22.04", family="debian", arch="x86_64", kernel="5.15.0-91-generic",
                     tools=frozenset({"apt-get"}))  # fmt: skip
OPENEULER = common.Host("openEuler", "22.03", family="redhat", arch="aarch64", kernel="5.10.0-60.aarch64",
                        tools=frozenset({"dnf"}))  # fmt: skip
ALL = frozenset(need.mark for need in base.table())
ROW = stack_of("ascend-a3", driver={"version": "25.5.1", "packages": [{"pattern": "*driver_25.5.1*.run"}]})
WELL = base.State(there=ALL, time=frozenset({"chronyd"}), synchronised=True)


def plan_of(recipe: str = CPU, hosts: Iterable[str] = ("10.0.0.11",), **data: Any) -> Plan:
    devices = {} if "cpu" in recipe else {"devices": 1}
    return lay(recipe, {**devices, **data}, serve=list(hosts))


def work_of(
    plan: Plan, host: common.Host = UBUNTU, bundle: Bundle | None = None, stack: Stack | None = None, **states: Any
) -> Work:
    """The first host's work."""
    return Work(plan, plan.fleet.nodes[0], host, states, bundle, stack)


def names(steps: Iterable[Step]) -> list[str]:
    return [step.name for step in steps]


def sections_of(text: str, env: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """What sh answers, quietly."""
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=20, env=env)
    assert done.stderr == "", done.stderr
    return snapshot.split(done.stdout.splitlines())


def rooted(text: str, root: Path) -> str:
    for place in ("/etc/", "/proc/sys/", "/proc/swaps", "/sys/devices/", "/run/vllm", "/var/lib/vllm-fleet"):
        text = text.replace(place, f"{root}{place}")
    return text


def run(step: Step, root: Path) -> list[str]:
    """A step on the folder; its output."""
    environment = {"PATH": f"{root}/bin:/usr/bin:/bin"}
    text = rooted(step.script, root)
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=20, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def put(root: Path, path: str, text: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def tool(root: Path, name: str, script: str = "exit 0") -> None:
    put(root, f"bin/{name}", f'#!/bin/sh\necho "{name} $*" >>{root}/log\n{script}\n').chmod(0o755)


# ---- which systems


def test_the_question_is_quiet_and_answered_by_any_machine() -> None:
    plan = plan_of(ASCEND)
    state = base.parse(sections_of("\n".join(base.sections(plan, plan.fleet.nodes[0]))))
    assert {"tar", "base64", "sha256sum"} <= state.there
    assert state.tuning.values["vm.swappiness"].isdigit()


@pytest.mark.parametrize(
    ("host", "what"),
    [
        (common.Host("alpine", "3.20", tools=frozenset({"apt-get"})), "this is alpine 3.20"),
        (common.Host(), "this is an unknown system"),
        (replace(UBUNTU, tools=frozenset()), "this is ubuntu 22.04, without apt-get"),
    ],
)
def test_other_systems_are_refused(host: common.Host, what: str) -> None:
    (told,) = base.refuse(work_of(plan_of(), host, base=WELL))
    assert (told.rule, told.what) == ("PREPARE-SYSTEM", what)


@pytest.mark.parametrize(
    ("system", "tools", "family"),
    [
        ("ctyunos", ["dnf"], "redhat"),
        ("hce", ["dnf"], "redhat"),
        ("culinux", ["dnf"], "redhat"),
        ("tencentos", ["yum"], "redhat"),
        ("opencloudos", ["dnf"], "redhat"),
        ("alinux", ["dnf"], "redhat"),
        ("uos", ["apt-get", "python3"], "debian"),
        ("uos", ["dnf"], "redhat"),
        ("new", ["yum"], "redhat"),
        ("alpine", ["python3"], ""),
        ("ubuntu", ["dnf"], "debian"),
    ],
)
def test_a_system_has_a_family_by_its_name_or_else_by_its_tool(system: str, tools: list[str], family: str) -> None:
    said = {"system": [f'id "{system}"', 'version "1"'], "programs": tools}
    assert common.parse(said).family == family


def test_a_share_that_is_gone_is_told() -> None:
    (told,) = base.refuse(work_of(plan_of(), replace(UBUNTU, silent=("/mnt/bundle",)), base=WELL))
    assert told.line() == (
        "error: 10.0.0.11: /mnt/bundle, its bundle_on_host, gave no answer in 30 s (a share whose server is gone never "
        "answers); see that what is mounted there is up, or take bundle_on_host out [PREPARE-PLACE]"
    )


@pytest.mark.parametrize("host", [UBUNTU, OPENEULER])
def test_nothing_is_said_of_or_done_to_a_host_that_is_as_it_should_be(host: common.Host) -> None:
    work = work_of(plan_of(tuning=False), host, base=WELL)
    assert base.refuse(work) + base.prove(work) == []
    assert base.steps(work) == []


# ---- packages


def test_packages_have_the_names_of_the_distribution() -> None:
    state = replace(WELL, there=ALL - {"ip", "ss", "curl"})
    assert names(base.steps(work_of(plan_of(tuning=False), UBUNTU, base=state))) == ["packages curl, iproute2"]
    assert names(base.steps(work_of(plan_of(tuning=False), OPENEULER, base=state))) == ["packages curl, iproute"]


def test_what_builds_a_driver_is_for_hosts_that_need_one() -> None:
    state = replace(WELL, there=ALL - {"gcc", "dkms", "/lib/modules/{kernel}/build/Makefile"})
    ascend, cpu = plan_of(ASCEND, tuning=False), plan_of(tuning=False)
    assert names(base.steps(work_of(ascend, OPENEULER, stack=ROW, base=state))) == [
        "package gcc",
        "package dkms",
        "package kernel-devel-5.10.0-60.aarch64",
    ]
    headers = names(base.steps(work_of(ascend, UBUNTU, stack=ROW, base=state)))[2]
    assert headers == "package linux-headers-5.15.0-91-generic"
    assert names(base.steps(work_of(ascend, replace(UBUNTU, in_container=True), stack=ROW, base=state))) == []
    assert names(base.steps(work_of(ascend, UBUNTU, stack=ROW, base=replace(state, driver="25.5.1")))) == []
    assert names(base.steps(work_of(ascend, UBUNTU, stack=ROW, base=replace(state, driver="25.3.0")))) != []
    assert names(base.steps(work_of(cpu, UBUNTU, base=state))) == []


def test_where_no_driver_is_installed_none_is_built() -> None:
    """A host with the front door alone, and a fleet without a row of the catalogue."""
    state = replace(WELL, there=ALL - {"gcc", "dkms"})
    door = lay(ASCEND, {"devices": 1, "tuning": False}, serve=["10.0.0.11"], proxy=["10.0.0.12"])
    plain = Work(door, door.fleet.node("10.0.0.12"), UBUNTU, {"base": state}, None, ROW)
    assert (names(base.steps(plain)), base.prove(plain)) == ([], [])
    assert names(base.steps(work_of(plan_of(ASCEND, tuning=False), UBUNTU, base=state))) == []


def test_headers_that_nobody_has_are_a_warning() -> None:
    state = replace(WELL, there=ALL - {"dkms"})
    (step,) = base.steps(work_of(plan_of(ASCEND, tuning=False), UBUNTU, stack=ROW, base=state))
    assert step.read is not None
    (told,) = step.read(False, ["E: Unable to locate package dkms"]).findings
    assert (told.rule, told.severity) == ("PREPARE-HEADERS", "warning")
    assert told.what == "package dkms: no source of packages has dkms"


def test_nftables_is_for_a_firewall() -> None:
    state = replace(WELL, there=ALL - {"nft"})
    assert names(base.steps(work_of(plan_of(tuning=False, firewall=True), UBUNTU, base=state))) == ["package nftables"]
    assert names(base.steps(work_of(plan_of(tuning=False), UBUNTU, base=state))) == []


def test_what_dpkg_was_cut_off_in_is_finished_first() -> None:
    state = replace(WELL, unfinished=True, there=ALL - {"curl"})
    said = names([*base.sources(w := work_of(plan_of(tuning=False), UBUNTU, base=state)), *base.steps(w)])
    assert said == ["packages whose installation was cut off, configured", "package curl"]


def test_what_is_still_missing_is_an_error() -> None:
    (told,) = base.prove(work_of(plan_of(tuning=False), UBUNTU, base=replace(WELL, there=ALL - {"ip", "ss"})))
    assert told.line() == (
        "error: 10.0.0.11: iproute2 should have been installed, and is not there; "
        "install it by hand, and see what is said then [PREPARE-PACKAGE]"
    )


# ---- sources


def bundle_in(folder: Path, **files: str) -> Bundle:
    """A bundle with these files, - standing for a folder's slash."""
    found = []
    for name, text in files.items():
        path = put(folder, name.replace("__", "/"), text)
        found.append(File(path, len(text), hashlib.sha256(text.encode()).hexdigest()))
    return Bundle(folder, tuple(found))


def test_the_bundles_repository_is_brought_and_named(tmp_path: Path) -> None:
    bundle = bundle_in(tmp_path, apt__Packages="Package: a", apt__a_1_all="deb", packages__driver="run")
    work = work_of(plan_of(tuning=False), UBUNTU, bundle, base=WELL)
    (step,) = base.sources(work)
    assert step.name == "source of packages: /var/lib/vllm-fleet/bundle/apt, 2 files of it brought"
    assert [source.path for source in step.sources] == [
        "/var/lib/vllm-fleet/bundle/apt/a_1_all",
        "/var/lib/vllm-fleet/bundle/apt/Packages",
    ]
    for source in step.sources:
        assert source.upload is not None
        put(tmp_path / "host", source.path, source.upload.read_text())
    script = step.script.replace("/var/lib/vllm-fleet/bundle/apt/", f"{tmp_path}/host/var/lib/vllm-fleet/bundle/apt/")
    script = script.replace("/etc/", f"{tmp_path}/host/etc/")
    assert subprocess.run(["sh", "-c", script]).returncode == 0
    written = (tmp_path / "host" / packages.APT_SOURCE.lstrip("/")).read_text()
    assert written == "deb [trusted=yes] file:/var/lib/vllm-fleet/bundle/apt ./\n"


def test_a_script_does_not_grow_with_the_files_of_a_repository(tmp_path: Path) -> None:
    bundle = bundle_in(tmp_path, **{f"apt__package-{n}_1.0_amd64.deb": "deb" for n in range(400)})
    (step,) = base.sources(work_of(plan_of(tuning=False), UBUNTU, bundle, base=WELL))
    assert (len(step.sources), len(step.script) < 1000) == (400, True)


def test_what_was_brought_is_brought_once_and_again_where_it_became_another(tmp_path: Path) -> None:
    bundle = bundle_in(tmp_path, apt__Packages="Package: a", apt__a_1_all="deb")
    index = next(f.sha256 or "" for f in bundle.files if f.name == "Packages")
    text = packages.source("debian", "/var/lib/vllm-fleet/bundle/apt", None)[1]
    state = replace(
        WELL,
        source=hashlib.sha256(text.encode()).hexdigest(),
        repository={"apt/Packages": 10, "apt/a_1_all": 3},
        index={"apt/Packages": index},
    )
    plan = plan_of(tuning=False)
    assert base.sources(work_of(plan, UBUNTU, bundle, base=state)) == []
    assert base.sources(work_of(plan, UBUNTU, None, base=state)) == []
    (step,) = base.sources(work_of(plan, UBUNTU, bundle, base=replace(state, index={"apt/Packages": "0" * 64})))
    assert [source.name for source in step.sources] == ["Packages"]


@pytest.mark.parametrize(("host", "kind"), [(UBUNTU, "apt"), (OPENEULER, "dnf")])
@pytest.mark.parametrize("services", [("one", "two"), ("", "two"), ("two", "")])
def test_services_of_one_host_have_a_repository_each(
    tmp_path: Path, host: common.Host, kind: str, services: tuple[str, str]
) -> None:
    """Their bundles differ; run in turn they settle."""
    index, root = ("Packages", "repodata/repomd.xml")[kind == "dnf"], tmp_path / "host"

    def sources(number: int) -> list[Step]:
        text = {f"{kind}__{index.replace('/', '__')}": f"index {number}", f"{kind}__a_1.pkg": f"a {number}"}
        plan = plan_of(tuning=False, **({"service": services[number]} if services[number] else {}))
        asked = rooted("\n".join(base.sections(plan, plan.fleet.nodes[0])), root)
        said = {key: [s.replace(str(root), "") for s in lines] for key, lines in sections_of(asked).items()}
        state = base.parse(said)
        return base.sources(work_of(plan, host, bundle_in(tmp_path / f"b{number}", **text), base=state))

    for number in (0, 1):
        (step,) = sources(number)
        for source in step.sources:
            assert source.upload
            put(root, source.path, source.upload.read_text())
        # Paths within the file are the host's own.
        script, sep, text = step.script.partition("printf ")
        text = text.replace("/etc/", f"{root}/etc/")
        subprocess.run(["sh", "-c", rooted(script, root) + sep + text], check=True, timeout=20)
    assert [sources(number) for number in (0, 1, 0)] == [[], [], []]
    written = (root / (packages.APT_SOURCE if kind == "apt" else packages.DNF_SOURCE).lstrip("/")).read_text()
    for service in services:
        folder = f"{common.BROUGHT}/{kind}-{service}" if service else f"{common.BROUGHT}/{kind}"
        assert (f"{folder} ./\n" if kind == "apt" else f"baseurl=file:{folder}\n") in written
    names_ = [line for line in written.splitlines() if line.startswith("[")]
    assert len(set(names_)) == (2 if kind == "dnf" else 0)
    assert ("[vllm-fleet]" in names_) == (kind == "dnf"), "the first one has the name that is asked first"


def test_a_repository_on_the_host_is_used_where_it_is() -> None:
    host = replace(OPENEULER, files={"/mnt/bundle/dnf/repodata/repomd.xml": 10})
    (step,) = base.sources(work_of(plan_of(tuning=False, bundle_on_host="/mnt/bundle"), host, base=WELL))
    assert step.name == "source of packages: /mnt/bundle/dnf"
    assert step.sources == ()


def test_what_a_host_has_of_a_brought_repository_is_told(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/vllm-fleet/bundle/apt/pool/a/b/c.deb", "deb")
    put(tmp_path, "/var/lib/vllm-fleet/bundle/apt/Packages", "Package: a")
    put(tmp_path, packages.APT_SOURCE, "x")
    plan = plan_of(tuning=False)
    text = rooted("\n".join(base.sections(plan, plan.fleet.nodes[0])), tmp_path)
    state = base.parse(sections_of(text))
    assert state.repository == {"apt/Packages": 10, "apt/pool/a/b/c.deb": 3}
    assert state.index == {"apt/Packages": hashlib.sha256(b"Package: a").hexdigest()}


# ---- files at hand


def found_in(place: Path, env: Mapping[str, str] | None = None) -> common.Host:
    plan = plan_of(bundle_on_host=str(place))
    text = "\n".join(common.sections(plan, plan.fleet.nodes[0]))
    return common.parse(sections_of(text, env))


def test_sums_beside_the_files_of_a_host_are_used(tmp_path: Path) -> None:
    put(tmp_path, "/packages/a.run", "12345")
    put(tmp_path, "/packages/b.run", "12345")
    one, deb = "1" * 64, "2" * 64
    put(tmp_path, "/SHA256SUMS", f"#size 5 packages/a.run\n{one}  packages/a.run\n{deb}  apt/a.deb\nnonsense\n")
    host = found_in(tmp_path)
    assert host.sums == {f"{tmp_path}/packages/a.run": one}
    work = work_of(plan_of(), host)
    assert (found := work.find("a.run")) and (found.path, found.sha256) == (f"{tmp_path}/packages/a.run", one)
    assert (found := work.find("b.run")) and found.sha256 is None
    assert (found := work.find("a.run", {"a.run": "3" * 64})) and found.sha256 == "3" * 64
    (tmp_path / "SHA256SUMS").unlink()
    assert (found_in(tmp_path).sums, found_in(tmp_path).silent) == ({}, ())


def test_a_place_that_gives_no_answer_keeps_no_question_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "find", f"case $1 in {tmp_path}*) sleep 15;; esac")
    monkeypatch.setattr(common, "PLACE_SECONDS", 1)
    began = time.monotonic()
    host = found_in(tmp_path, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert (host.silent, time.monotonic() - began < 10) == ((str(tmp_path),), True)


@pytest.mark.parametrize(
    ("names_", "last"),
    [
        (["fw_7.8.0.run", "fw_7.10.0.run"], "fw_7.10.0.run"),
        (["d_25.5.1_linux.run", "d_25.5.1.2_linux.run"], "d_25.5.1.2_linux.run"),
        (["d_25.3.0_linux.run", "d_25.3.RC1_linux.run"], "d_25.3.0_linux.run"),
    ],
)
def test_of_several_files_the_newest_is_taken(tmp_path: Path, names_: list[str], last: str) -> None:
    bundle = Bundle(tmp_path, tuple(File(tmp_path / name, 1) for name in names_))
    assert (found := work_of(plan_of(), UBUNTU, bundle).find("*.run")) and found.name == last
    host = replace(UBUNTU, files={f"/mnt/b/{name}": 1 for name in names_})
    assert (found := work_of(plan_of(), host).find("*.run")) and found.name == last


# ---- the clock


def test_a_host_without_a_time_service_gets_chrony() -> None:
    state, plan = replace(WELL, time=frozenset()), plan_of(tuning=False)
    assert names(base.steps(work_of(plan, UBUNTU, base=state))) == ["time service chrony (there is none)"]
    assert names(base.steps(work_of(plan, replace(UBUNTU, in_container=True), base=state))) == []
    assert [f.what for f in base.prove(work_of(plan, UBUNTU, base=state))] == ["no service sets the clock"]


@pytest.mark.parametrize(
    ("path", "before", "written", "after"),
    [
        (
            "/etc/chrony/chrony.conf",
            "sourcedir /etc/chrony/sources.d\n",
            "/etc/chrony/sources.d/vllm-fleet.sources",
            "server 10.0.0.1 iburst\nserver ntp.corp iburst\n",
        ),
        (
            "/etc/chrony.conf",
            "pool old iburst\n# vllm-fleet begins\nserver gone iburst\n# vllm-fleet ends\nmakestep 1 3\n",
            "/etc/chrony.conf",
            "pool old iburst\nmakestep 1 3\n"
            "# vllm-fleet begins\nserver 10.0.0.1 iburst\nserver ntp.corp iburst\n# vllm-fleet ends\n",
        ),
    ],
)
def test_time_servers_are_given_to_chrony_once(
    tmp_path: Path, path: str, before: str, written: str, after: str
) -> None:
    put(tmp_path, path, before.replace("/etc/", f"{tmp_path}/etc/"))
    tool(tmp_path, "systemctl")
    tool(tmp_path, "chronyc")
    plan = plan_of(tuning=False, time_servers=["10.0.0.1", "ntp.corp"])
    (step,) = base.steps(work_of(plan, OPENEULER, base=WELL))
    assert step.name == "time servers 10.0.0.1, ntp.corp (there are none of ours)"
    run(step, tmp_path)
    assert (tmp_path / written.lstrip("/")).read_text() == after
    assert "systemctl restart chronyd" in (tmp_path / "log").read_text()
    text = rooted("\n".join(base.sections(plan, plan.fleet.nodes[0])), tmp_path)
    state = base.parse(sections_of(text))
    assert state.time_servers == ("10.0.0.1", "ntp.corp")
    assert base.steps(work_of(plan, OPENEULER, base=replace(WELL, time_servers=state.time_servers))) == []


def test_timesyncd_is_given_them_in_its_own_file(tmp_path: Path) -> None:
    tool(tmp_path, "systemctl")
    plan = plan_of(tuning=False, time_servers=["10.0.0.1", "10.0.0.2"])
    (step,) = base.steps(work_of(plan, UBUNTU, base=replace(WELL, time=frozenset({"systemd-timesyncd"}))))
    run(step, tmp_path)
    assert (tmp_path / base.TIMESYNCD_FILE.lstrip("/")).read_text() == "[Time]\nNTP=10.0.0.1 10.0.0.2\n"
    text = rooted("\n".join(base.sections(plan, plan.fleet.nodes[0])), tmp_path)
    assert base.parse(sections_of(text)).time_servers == ("10.0.0.1", "10.0.0.2")


def test_a_clock_that_follows_nobody_is_a_warning() -> None:
    plan = plan_of(tuning=False, time_servers=["10.0.0.1"])
    state = replace(WELL, time=frozenset({"ntpd"}), synchronised=False)
    assert base.steps(work_of(plan, UBUNTU, base=state)) == []
    assert [(f.rule, f.severity) for f in base.prove(work_of(plan, UBUNTU, base=state))] == [
        ("PREPARE-TIME", "warning")
    ] * 2


# ---- the kernel's settings


SYSCTLS = {
    "vm/swappiness": "60",
    "kernel/numa_balancing": "1",
    "net/ipv4/ip_local_reserved_ports": "8472",
    "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "vm/nr_hugepages": "0",
    "fs/nr_open": "1048576",
}


def tuned(root: Path, plan: Plan, host: common.Host = UBUNTU) -> tuple[list[Step], Work]:
    """What is to be changed in a folder's settings."""
    text = rooted("\n".join(base.sections(plan, plan.fleet.nodes[0])), root)
    state = tuning.parse({k: [s.replace(str(root), "") for s in v] for k, v in sections_of(text).items()})
    work = work_of(plan, host, base=replace(WELL, tuning=state))
    return base.steps(work), work


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for key, value in SYSCTLS.items():
        put(tmp_path, f"/proc/sys/{key}", f"{value}\n")
    for name in ("systemctl", "docker"):
        tool(tmp_path, name)
    (tmp_path / "run").mkdir()
    return tmp_path


def test_settings_are_named_set_and_then_as_they_should_be(kernel: Path) -> None:
    plan = plan_of(sysctl={"net.ipv4.tcp_rmem": "4096  131072 16777216"})
    steps, _ = tuned(kernel, plan)
    assert names(steps) == [
        "sysctl kernel.numa_balancing 1 -> 0, net.ipv4.ip_local_reserved_ports 8472 -> 8000,8472, "
        "net.ipv4.tcp_rmem 4096 131072 6291456 -> 4096 131072 16777216, vm.swappiness 60 -> 0",
        "limits of locked memory (none) and open files (1048576) for logins and services: "
        "/etc/security/limits.d/90-vllm-fleet.conf, /etc/systemd/system.conf.d/90-vllm-fleet.conf",
    ]
    for step in steps:
        run(step, kernel)
    assert (kernel / "proc/sys/vm/swappiness").read_text() == "0\n"
    assert (kernel / "etc/sysctl.d/90-vllm-fleet.conf").read_text().splitlines()[1:] == [
        "kernel.numa_balancing = 0",
        "net.ipv4.ip_local_reserved_ports = 8000,8472",
        "net.ipv4.tcp_rmem = 4096 131072 16777216",
        "vm.swappiness = 0",
    ]
    again, work = tuned(kernel, plan)
    assert (names(again), base.prove(work)) == ([], [])
    (kernel / "etc/sysctl.d/90-vllm-fleet.conf").unlink()
    assert names(tuned(kernel, plan)[0]) == ["/etc/sysctl.d/90-vllm-fleet.conf, so that the settings outlive a boot"]


def test_ports_of_the_plan_join_those_that_are_reserved() -> None:
    plan = plan_of(ASCEND, hosts=["10.0.0.11"])
    state = tuning.State(values={tuning.RESERVED: "100,60010-60050"})
    wanted = tuning.wanted(work_of(plan, UBUNTU), state)[tuning.RESERVED]
    assert tuning.ports_of(wanted) >= {100, 8000, *range(60000, 60051)}
    assert wanted.endswith("60000-60050")


def test_the_inventory_goes_before_what_is_usual() -> None:
    state = tuning.State(values={"vm.swappiness": "60", tuning.RESERVED: "100"})
    plan = plan_of(sysctl={"vm.swappiness": 10, tuning.RESERVED: "200-201"})
    assert tuning.wanted(work_of(plan, UBUNTU), state) == {tuning.RESERVED: "200-201,8000", "vm.swappiness": "10"}


def test_what_the_kernel_refuses_is_told_and_not_tried_again(kernel: Path) -> None:
    plan = plan_of(hugepages=100, raise_limits=False)
    put(kernel, "/proc/sys/vm/nr_hugepages", "0\n")
    steps, _ = tuned(kernel, plan)
    step = steps[0]
    assert "vm.nr_hugepages 0 -> 100" in step.name
    # A kernel that takes 60 of 100: the file stands for it after the write.
    script = step.script.replace(">/proc/sys/vm/nr_hugepages; }", "| sed 's/.*/60/' >/proc/sys/vm/nr_hugepages; }")
    said = run(replace(step, script=script), kernel)
    assert said == ["refused vm.nr_hugepages 60"]
    assert step.read is not None
    outcome = step.read(True, said)
    assert [f.what for f in outcome.findings] == ["the kernel has vm.nr_hugepages = 60, and did not take 100"]
    assert outcome.reboot == "huge pages are set aside at the start only, while memory is whole"
    again, work = tuned(kernel, plan)
    assert (names(again), base.prove(work)) == ([], [])
    # The next boot asked for them too, so that another restart is of no use.
    (kernel / "run/vllm-fleet-sysctl-refused").unlink()
    (step,) = tuned(kernel, plan)[0]
    assert step.read is not None
    assert step.read(True, said).reboot == ""


def test_a_container_has_only_settings_of_its_network(kernel: Path) -> None:
    steps, _ = tuned(kernel, plan_of(), replace(UBUNTU, in_container=True))
    assert names(steps) == ["sysctl net.ipv4.ip_local_reserved_ports 8472 -> 8000,8472"]


def test_a_file_that_is_read_later_and_swap_are_told(kernel: Path) -> None:
    put(kernel, "/etc/sysctl.d/99-site.conf", "# ours\nvm.swappiness=30\n-kernel/numa_balancing = 0\n")
    put(kernel, "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n")
    put(kernel, "/proc/sys/vm/swappiness", "0\n")
    plan = plan_of(raise_limits=False, sysctl={"net.core.nosuch": 1})
    for step in tuned(kernel, plan)[0]:
        run(step, kernel)
    assert [f.what for f in base.prove(tuned(kernel, plan)[1])] == [
        "/etc/sysctl.d/99-site.conf sets vm.swappiness = 30, and is read after /etc/sysctl.d/90-vllm-fleet.conf at a "
        "boot",
        "this kernel has no net.core.nosuch, which the inventory's sysctl sets",
        "swap is on (/dev/sda2)",
    ]


def test_systemd_is_not_executed_anew_while_containers_run(kernel: Path) -> None:
    tool(kernel, "docker", "echo 0f1e2d3c")
    limits = tuned(kernel, plan_of())[0][-1]
    assert run(limits, kernel) == ["containers run: systemd takes it with the next boot"]
    assert (kernel / "etc/security/limits.d/90-vllm-fleet.conf").read_text().splitlines()[-1] == (
        "root hard nofile 1048576"
    )
    assert "daemon-reexec" not in (kernel / "log").read_text()


def test_open_files_are_no_more_than_the_kernel_allows(kernel: Path) -> None:
    put(kernel, "/proc/sys/fs/nr_open", "65536\n")
    assert "open files (65536)" in tuned(kernel, plan_of())[0][-1].name


def test_the_cpus_governor_is_performance(kernel: Path) -> None:
    cpu = "/sys/devices/system/cpu/cpu0/cpufreq"
    put(kernel, f"{cpu}/scaling_governor", "powersave\n")
    put(kernel, f"{cpu}/scaling_available_governors", "powersave performance\n")
    plan = plan_of(raise_limits=False)
    steps, _ = tuned(kernel, plan)
    assert steps[-1].name == "CPU governor performance (there is powersave)"
    run(steps[-1], kernel)
    put(kernel, f"{cpu}/scaling_governor", "performance\n")
    # The unit's text holds the folder's own paths here: only its presence is looked at.
    assert f"systemctl restart {tuning.GOVERNOR}" in (kernel / "log").read_text()
    assert (kernel / tuning.GOVERNOR_UNIT.lstrip("/")).read_text().startswith("# Written by vllm-fleet")


def test_nothing_is_tuned_where_the_inventory_says_so(kernel: Path) -> None:
    assert tuned(kernel, plan_of(tuning=False))[0] == []


def test_services_of_one_host_leave_each_others_settings(kernel: Path) -> None:
    (kernel / "proc/sys/net/core").mkdir(parents=True, exist_ok=True)
    (kernel / "proc/sys/net/core/somaxconn").write_text("128\n")
    one = plan_of(service="one", sysctl={"net.core.somaxconn": 5000})
    two = plan_of(service="two", sysctl={"net.ipv4.tcp_rmem": "4096 131072 16777216"})
    for plan in (one, two):
        for step in tuned(kernel, plan)[0]:
            run(step, kernel)
    folder = kernel / "etc/sysctl.d"
    assert (folder / "91-vllm-fleet-one.conf").read_text().splitlines()[1:] == ["net.core.somaxconn = 5000"]
    assert "net.ipv4.tcp_rmem = " in (folder / "91-vllm-fleet-two.conf").read_text()
    assert "tcp_rmem" not in (folder / "90-vllm-fleet.conf").read_text()
    assert [settled(kernel, plan) for plan in (one, two)] == [([], []), ([], [])]


def settled(kernel: Path, plan: Plan) -> tuple[list[str], list[str]]:
    """What a run has to do there, and what is said at its end."""
    steps, work = tuned(kernel, plan)
    return names(steps), [found.what for found in base.prove(work)]


def take(kernel: Path, *plans: Plan) -> None:
    for plan in plans:
        for step in tuned(kernel, plan)[0]:
            run(step, kernel)


def test_a_service_without_huge_pages_leaves_those_of_another(kernel: Path) -> None:
    more: dict[str, Any] = {"raise_limits": False}
    with_, without = plan_of(service="one", hugepages=64, **more), plan_of(service="two", **more)
    take(kernel, with_, without)
    assert (kernel / "etc/sysctl.d/91-vllm-fleet-one.conf").read_text().splitlines()[1:] == ["vm.nr_hugepages = 64"]
    assert [settled(kernel, plan) for plan in (with_, without, with_)] == [([], [])] * 3
    # Taken out of the inventory, it goes from the file.
    gone = plan_of(service="one", **more)
    assert names(tuned(kernel, gone)[0]) == ["/etc/sysctl.d/91-vllm-fleet-one.conf removed: the inventory sets nothing"]
    take(kernel, gone)
    assert not (kernel / "etc/sysctl.d/91-vllm-fleet-one.conf").exists()
    assert settled(kernel, gone) == ([], [])


def test_services_that_want_different_values_settle_and_say_so(kernel: Path) -> None:
    more: dict[str, Any] = {"raise_limits": False}
    one, two = (plan_of(service=name, hugepages=size, **more) for name, size in (("one", 64), ("two", 128)))
    take(kernel, one, two, one, two)
    assert (kernel / "proc/sys/vm/nr_hugepages").read_text() == "128\n"
    assert settled(kernel, two) == ([], [])
    assert settled(kernel, one) == (
        [],
        [
            "/etc/sysctl.d/91-vllm-fleet-two.conf of another service sets vm.nr_hugepages = 128, and goes before "
            "/etc/sysctl.d/91-vllm-fleet-one.conf"
        ],
    )


def test_what_one_service_sets_goes_before_what_is_usual_for_all(kernel: Path) -> None:
    more: dict[str, Any] = {"raise_limits": False}
    one, two = plan_of(service="one", sysctl={"vm.swappiness": 10}, **more), plan_of(service="two", **more)
    take(kernel, two, one, two)
    assert (kernel / "proc/sys/vm/swappiness").read_text() == "10\n"
    assert [settled(kernel, plan) for plan in (one, two)] == [([], [])] * 2
    gone = plan_of(service="one", **more)
    take(kernel, gone)
    assert (kernel / "proc/sys/vm/swappiness").read_text() == "0\n"
    assert [settled(kernel, plan) for plan in (gone, two)] == [([], [])] * 2


def test_a_service_beside_an_inventory_without_one_settles(kernel: Path) -> None:
    more: dict[str, Any] = {"raise_limits": False}
    plain, one = plan_of(hugepages=64, sysctl={"vm.swappiness": 10}, **more), plan_of(service="one", **more)
    take(kernel, plain, one)
    assert "vm.nr_hugepages = 64" in (kernel / "etc/sysctl.d/90-vllm-fleet.conf").read_text()
    assert [settled(kernel, plan) for plan in (plain, one)] == [([], [])] * 2
    take(kernel, plan_of(**more))
    assert "nr_hugepages" not in (kernel / "etc/sysctl.d/90-vllm-fleet.conf").read_text()
    assert settled(kernel, one) == ([], [])
