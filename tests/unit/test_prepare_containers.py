"""Docker and its configuration: what is merged, and what sh does with it over stand-ins for Docker and systemd."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.findings import Finding
from fleet.prepare import containers, daemon
from fleet.prepare.common import Step, Work
from tests.unit.test_prepare_base import OPENEULER, UBUNTU, plan_of, put, sections_of, tool, work_of

IMAGE = "registry.corp/engine:v1"
DOCKER = f"""
title: t
source: s
platform: cpu
runtime: docker
model: {{name: org/model, max_position_embeddings: 4096}}
engine: {{vllm: 0.20.0, image: {IMAGE}}}
roles:
  serve: {{tensor_parallel_size: 1}}
"""
LOGGED = '{"log-opts": {"max-size": "10m"}}'
PASSWORD = "hunter2"
UNIT = "vllm-serve-0"


def state_of(config: str | None = LOGGED, **more: Any) -> containers.State:
    """Docker that runs, with this daemon.json."""
    raw = None if config is None else config.encode()
    return containers.State(
        **{
            "asked": True,
            "installed": True,
            "active": True,
            "enabled": True,
            "version": "28.1.1",
            "config": raw,
            "config_sum": hashlib.sha256(raw).hexdigest() if raw is not None else "",
            **more,
        }
    )


def work(state: containers.State, serving: Sequence[str] = (), host: Any = UBUNTU, **data: Any) -> Work:
    return work_of(plan_of(DOCKER, **data), replace(host, serving=tuple(serving)), containers=state)


def told(findings: Sequence[Finding]) -> list[str]:
    return [f.line() for f in findings]


# ---- what is merged


@pytest.mark.parametrize(
    ("old", "given", "merged"),
    [
        ({}, {"debug": True}, {"debug": True}),
        ({"debug": False, "x": 1}, {"debug": True}, {"debug": True, "x": 1}),
        (
            {"registry-mirrors": ["http://a", "http://b"]},
            {"registry-mirrors": ["http://b", "http://c"]},
            {"registry-mirrors": ["http://a", "http://b", "http://c"]},
        ),
        (
            {"runtimes": {"nvidia": {"path": "n"}}},
            {"runtimes": {"ascend": {"path": "a"}}},
            {"runtimes": {"nvidia": {"path": "n"}, "ascend": {"path": "a"}}},
        ),
        ({"log-opts": "wrong"}, {"log-opts": {"max-size": "1m"}}, {"log-opts": {"max-size": "1m"}}),
    ],
)
def test_settings_are_merged_into_what_is_there(old: Any, given: Any, merged: Any) -> None:
    assert daemon.merged(old, given) == merged


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {"max-size": "100m", "max-file": "3"}),
        ({"log-opts": {"max-file": "9"}}, {"max-size": "100m", "max-file": "9"}),
        ({"log-opts": {"max-size": "1g"}}, {"max-size": "1g"}),
        ({"log-driver": "journald"}, None),
    ],
)
def test_logs_do_not_fill_the_disk(settings: Any, options: Any) -> None:
    assert daemon.with_needs(settings).get("log-opts") == options


@pytest.mark.parametrize(
    ("settings", "running", "has"),
    [({}, "", True), ({}, "json-file", True), ({}, "local", True), ({}, "journald", False),
     ({"log-driver": "json-file"}, "journald", True)],  # the file names it, so it comes with the restart
)  # fmt: skip
def test_a_logging_driver_that_a_flag_gives_gets_no_options(settings: Any, running: str, has: bool) -> None:
    assert ("log-opts" in daemon.with_needs(settings, running)) is has
    its = work(state_of(json.dumps(settings), log_driver=running))
    assert bool(names(its)) is has


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"debug": tru}', "line 1, column 11: Expecting value"),
        (b"[]", "it is no object: { ... }"),
        (b"{\xff}", "byte 1 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_json_is_left_alone(raw: bytes, why: str) -> None:
    its = work(replace(state_of(None), config=raw, config_sum="0" * 64))
    assert told(containers.refuse(its)) == [
        f"error: 10.0.0.11: /etc/docker/daemon.json is no JSON ({why}) (what stands there would be lost); "
        "mend it (python3 -m json.tool /etc/docker/daemon.json) [DOCKER-CONFIG]"
    ]


def test_an_empty_file_holds_nothing() -> None:
    assert daemon.read(b"\n") == daemon.read(None) == {}
    assert daemon.read(b'\xef\xbb\xbf{"debug": true}') == {"debug": True}


# ---- what is done


def names(its: Work) -> list[str]:
    return [step.name for step in containers.steps(its)]


def test_a_host_as_it_should_be_is_left_alone() -> None:
    its = work(state_of())
    assert (names(its), containers.refuse(its), containers.prove(its)) == ([], [], [])


def test_a_host_without_containers_is_not_asked() -> None:
    plan = plan_of()
    assert containers.sections(plan, plan.fleet.nodes[0]) == []
    its = work_of(plan, UBUNTU, containers=containers.parse({}))
    assert (containers.steps(its), containers.refuse(its), containers.prove(its)) == ([], [], [])


def test_a_bare_host_gets_docker_and_its_configuration() -> None:
    bare = state_of(None, installed=False, active=False, enabled=False, version="")
    assert names(work(bare)) == [
        "Docker (docker.io; there is none)",
        "Docker's configuration: log-opts in daemon.json; Docker is started",
    ]
    assert names(work(bare, host=OPENEULER))[0] == "Docker (docker-engine; there is none)"
    assert names(work(bare, host=replace(OPENEULER, system="rocky")))[0] == "Docker (docker-ce; there is none)"
    assert told(containers.prove(work(bare))) == [
        "error: 10.0.0.11: Docker is not installed; systemctl start docker, and see journalctl -u docker there "
        "[DOCKER-DOWN]"
    ]


def test_another_package_is_tried_where_a_source_lacks_the_first() -> None:
    text = containers.install_text(work(state_of(), host=replace(OPENEULER, system="rocky")))
    first, second = text.split(" ||\n(export ")
    assert " install docker-ce " in first and " install moby-engine " in second
    assert subprocess.run(["sh", "-n", "-c", text]).returncode == 0


def test_docker_that_is_stopped_is_started() -> None:
    assert names(work(state_of(active=False, version=""))) == ["Docker started"]
    assert names(work(state_of(enabled=False))) == ["Docker enabled"]


def test_what_a_running_docker_can_take_over_restarts_nothing() -> None:
    data: dict[str, Any] = {"docker_config": {"registry-mirrors": ["http://m"], "data-root": "/data"}}
    assert names(work(state_of(), **data)) == [
        "Docker's configuration: data-root, registry-mirrors in daemon.json; Docker is restarted"
    ]
    del data["docker_config"]["data-root"]
    assert names(work(state_of(), **data)) == [
        "Docker's configuration: registry-mirrors in daemon.json; Docker is reloaded"
    ]


def test_docker_is_not_restarted_under_what_runs() -> None:
    ours, foreign = state_of(running=(UNIT,)), state_of(running=("notebook",))
    data: dict[str, Any] = {"docker_config": {"data-root": "/data"}}
    busy = "error: 10.0.0.11: Docker must be restarted (data-root of daemon.json change), which would stop"
    mend = "stop them and run again, or set reboot = 'even-if-serving' [DOCKER-BUSY]"
    assert told(containers.refuse(work(ours, [f"{UNIT}.service"], **data))) == [f"{busy} {UNIT}; {mend}"]
    assert told(containers.refuse(work(foreign, **data))) == [f"{busy} notebook; {mend}"]
    assert containers.refuse(work(replace(foreign, live_restore=True), **data)) == []
    assert containers.refuse(work(foreign, reboot="even-if-serving", **data)) == []
    assert containers.refuse(work(foreign, docker_config={"debug": True})) == []


def test_our_own_wish_for_smaller_logs_waits_for_the_next_restart() -> None:
    busy = work(state_of("{}", running=("notebook",)))
    assert (names(busy), containers.refuse(busy), containers.prove(busy)) == ([], [], [])
    assert names(work(state_of("{}"))) == ["Docker's configuration: log-opts in daemon.json; Docker is restarted"]


def test_docker_that_hangs_is_not_restarted_under_units_that_serve() -> None:
    hangs = state_of(version="")
    assert [f.rule for f in containers.refuse(work(hangs, [f"{UNIT}.service"]))] == ["DOCKER-DOWN"]
    assert names(work(hangs)) == ["Docker started"]


def test_podman_is_no_docker() -> None:
    (finding,) = containers.refuse(work(state_of(is_podman=True)))
    assert (finding.rule, finding.what) == ("DOCKER-INSTALL", "docker is podman's imitation of it here")


def test_a_change_that_was_cut_off_is_finished() -> None:
    its = work(state_of(pending="reload"))
    assert names(its) == ["Docker's configuration: an earlier change that was cut off; Docker is reloaded"]
    its = work(state_of(pending="restart"))
    assert names(its) == ["Docker's configuration: an earlier change that was cut off; Docker is restarted"]


# ---- the GPU toolkit that came while Docker ran


def test_docker_is_restarted_where_it_does_not_know_the_gpu_toolkit() -> None:
    late = state_of(hookless=True)
    assert names(work(late)) == [
        "Docker's configuration: the GPU toolkit, which it does not know yet; Docker is restarted"
    ]
    assert told(containers.refuse(work(replace(late, running=("notebook",))))) == [
        "error: 10.0.0.11: Docker must be restarted (it does not know the GPU toolkit yet), which would stop notebook; "
        "stop them and run again, or set reboot = 'even-if-serving' [DOCKER-BUSY]"
    ]
    (finding,) = containers.prove(work(late))
    assert finding.what.endswith("not what it should be: it does not know the GPU toolkit yet")


@pytest.mark.parametrize(
    ("begun", "requests", "hookless"),
    [
        (0, "null", True),  # with the machine, long before the hook
        (4_000_000_000_000_000, "null", False),  # after it
        (0, '[{"Driver":"","Count":-1,"Capabilities":[["gpu"]]}]', False),  # it gave one, so it knew an earlier hook
    ],
)
def test_the_age_of_the_hook_tells(tmp_path: Path, begun: int, requests: str, hookless: bool) -> None:
    plan = plan_of(DOCKER.replace("platform: cpu", "platform: nvidia"))
    text = "\n".join(containers.sections(plan, plan.fleet.nodes[0]))
    tool(tmp_path, "nvidia-container-runtime-hook")
    tool(tmp_path, "systemctl", f"case $1 in show) echo {begun};; esac")
    tool(
        tmp_path,
        "docker",
        f"case $1 in ps) echo 0a;; inspect) echo '{requests}';; info) echo 'info 28|false|local';; esac",
    )
    state = containers.parse(sections_of(text, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}))
    assert (state.hookless, state.active, state.log_driver) == (hookless, True, "local")


def test_hosts_without_gpus_have_no_hook_to_ask_for() -> None:
    plan = plan_of(DOCKER)
    assert "runtime-hook" not in "".join(containers.sections(plan, plan.fleet.nodes[0]))


def test_a_restart_for_the_toolkit_that_was_cut_is_made_by_the_next_run(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", LOGGED)
    (step,) = containers.steps(work(replace(host.state(), hookless=True)))
    host.take(replace(step, script=step.script.replace("systemctl enable docker", "exit 137; systemctl enable docker")))
    assert host.state().pending == "restart"
    assert host.take(step) == (True, [])
    assert (host.log()[-1], host.state().pending) == ("systemctl restart docker", "")


# ---- the proxy


def test_the_fleet_is_never_asked_through_the_proxy() -> None:
    plan = plan_of(DOCKER, ["10.0.0.11", "10.0.0.12"], docker_proxy="http://10.9.9.9:3128", no_proxy=[".corp"])
    its = work_of(plan, UBUNTU, containers=state_of())
    text = containers.proxy_text(its)
    assert text.splitlines()[1:] == [
        "[Service]",
        'Environment="HTTP_PROXY=http://10.9.9.9:3128"',
        'Environment="HTTPS_PROXY=http://10.9.9.9:3128"',
        'Environment="NO_PROXY=localhost,127.0.0.1,::1,10.0.0.11,10.0.0.12,.corp"',
    ]
    assert names(its) == ["Docker's configuration: proxy; Docker is restarted"]
    there = state_of(proxy=hashlib.sha256(text.encode()).hexdigest())
    assert names(work_of(plan, UBUNTU, containers=there)) == []


def test_a_proxy_that_was_left_behind_is_told() -> None:
    assert [f.rule for f in containers.prove(work(state_of(proxy="0" * 64)))] == ["DOCKER-PROXY"]


# ---- run by sh


class Host:
    """A folder with stand-ins: docker answers unless ``broken`` is among the words of daemon.json."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "etc/docker/daemon.json"
        tool(root, "sleep")
        tool(root, "journalctl", "echo 'failed to start daemon: bad http://me:hunter2@proxy'")
        tool(root, "dockerd", "case $* in *--help*) echo ' --validate';; esac")
        tool(root, "systemctl", f"grep -qs broken {self.config} && exit 1; exit 0")
        answer = "case $1 in info) echo 'info 28.1.1|false';; version) echo 28.1.1;; esac"
        tool(root, "docker", f"grep -qs broken {self.config} && exit 1; {answer}")

    def take(self, step: Step) -> tuple[bool, list[str]]:
        text = step.script
        for place in ("/etc/", "/var/lib/vllm-fleet"):
            text = text.replace(place, f"{self.root}{place}")
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", text], input=step.stdin, capture_output=True, text=True, env=env, timeout=30)
        return done.returncode == 0, (done.stdout + done.stderr).splitlines()

    def state(self) -> containers.State:
        plan = plan_of(DOCKER)
        text = "\n".join(containers.sections(plan, plan.fleet.nodes[0]))
        for place in ("/etc/", "/var/lib/vllm-fleet"):
            text = text.replace(place, f"{self.root}{place}")
        return containers.parse(sections_of(text, {"PATH": f"{self.root}/bin:/usr/bin:/bin"}))

    def log(self) -> list[str]:
        return [line for line in (self.root / "log").read_text().splitlines() if line.startswith("systemctl")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def change(host: Host, **config: Any) -> Step:
    (step,) = containers.steps(work(host.state(), docker_config=config))
    return step


def test_the_file_keeps_its_mode_its_settings_and_a_copy(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", f'{{"proxies": {{"http-proxy": "http://me:{PASSWORD}@p"}}}}')
    host.config.chmod(0o600)
    before = host.config.read_text()
    step = change(host, debug=True)
    assert PASSWORD not in step.name + step.script + repr(host.state())
    assert host.take(step) == (True, [])
    assert json.loads(host.config.read_text()) == {
        "proxies": {"http-proxy": f"http://me:{PASSWORD}@p"},
        "debug": True,
        "log-opts": {"max-size": "100m", "max-file": "3"},
    }
    assert oct(host.config.stat().st_mode)[-3:] == "600"
    kept = host.config.with_name("daemon.json.before-vllm-fleet")
    assert (kept.read_text(), oct(kept.stat().st_mode)[-3:]) == (before, "600")
    assert host.log()[-1] == "systemctl restart docker"
    state = host.state()
    assert state.pending == ""
    assert names(work(state, docker_config={"debug": True})) == []


def test_the_first_copy_stays(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", LOGGED)
    assert host.take(change(host, debug=True))[0]
    assert host.take(change(host, debug=False))[0]
    assert host.config.with_name("daemon.json.before-vllm-fleet").read_text() == LOGGED
    assert [line for line in host.log() if "load" in line] == ["systemctl reload docker"] * 2


def test_a_file_that_docker_refuses_never_takes_the_old_ones_place(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", LOGGED)
    tool(
        host.root, "dockerd", "case $* in *--help*) echo ' --validate';; *) echo 'unknown key: nonsense'; exit 1;; esac"
    )
    step = change(host, nonsense=1)
    done, said = host.take(step)
    assert (done, said) == (False, ["refused unknown key: nonsense"])
    assert host.config.read_text() == LOGGED
    assert step.read is not None
    assert told(step.read(done, said).findings) == [
        "error: 10.0.0.11: Docker refuses the new /etc/docker/daemon.json: unknown key: nonsense; "
        "mend docker_config; nothing was changed [DOCKER-CONFIG]"
    ]


@pytest.mark.parametrize("before", [LOGGED, None])
def test_what_docker_does_not_come_up_with_is_put_back(host: Host, before: str | None) -> None:
    if before:
        put(host.root, "/etc/docker/daemon.json", before)
    step = change(host, **{"data-root": "/broken"})
    done, said = host.take(step)
    assert not done
    assert (host.config.read_text() if host.config.exists() else None) == before
    assert host.log()[-1] == "systemctl restart docker"
    assert host.state().pending == ""
    assert step.read is not None
    assert told(step.read(done, said).findings) == [
        "error: 10.0.0.11: Docker did not come up: failed to start daemon: bad http://***@proxy "
        "(the old configuration is back, and Docker runs with it); mend docker_config or docker_proxy [DOCKER-CONFIG]"
    ]


def test_what_somebody_else_changed_meanwhile_is_not_lost(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", LOGGED)
    step = change(host, debug=True)
    host.config.write_text('{"log-opts": {"max-size": "20m"}}')
    done, said = host.take(step)
    assert not done and said[-1].startswith("somebody else changed ")
    assert host.config.read_text() == '{"log-opts": {"max-size": "20m"}}'


def test_a_run_that_was_cut_before_the_restart_is_finished_by_the_next(host: Host) -> None:
    put(host.root, "/etc/docker/daemon.json", LOGGED)
    step = change(host, **{"data-root": "/data"})
    cut = step.script.replace("systemctl enable docker", "exit 137; systemctl enable docker")
    host.take(replace(step, script=cut))
    state = host.state()
    assert state.pending == "restart"
    (step,) = containers.steps(work(state, docker_config={"data-root": "/data"}))
    assert step.name == "Docker's configuration: an earlier change that was cut off; Docker is restarted"
    assert host.take(step) == (True, [])
    assert host.state().pending == ""


def test_the_drop_in_is_written_before_docker_restarts(host: Host) -> None:
    its = work(replace(host.state(), config=LOGGED.encode()), docker_proxy="http://10.9.9.9:3128")
    (step,) = containers.steps(its)
    assert host.take(step) == (True, [])
    assert host.state().proxy == hashlib.sha256(containers.proxy_text(its).encode()).hexdigest()
    assert [line for line in host.log() if "daemon-reload" in line or "restart" in line] == [
        "systemctl daemon-reload",
        "systemctl restart docker",
    ]


def test_services_of_one_host_do_not_restart_docker_in_turns(host: Host) -> None:
    first = work(state_of(), service="one", docker_proxy="http://10.0.0.1:3128", no_proxy=["a.corp"])
    put(host.root, containers.PROXY, containers.proxy_text(first))
    data = {"service": "two", "docker_proxy": "http://10.0.0.1:3128", "no_proxy": ["b.corp"]}
    state = host.state()
    assert "a.corp" in state.no_proxy
    second = work(state, **data)
    put(host.root, containers.PROXY, containers.proxy_text(second, state.no_proxy))
    joined = host.state()
    for its in (work(joined, **data), replace(first, states={"containers": joined})):
        assert not containers._change(its, joined).proxy


def test_what_the_daemon_says_goes_before_what_systemctl_says_of_it() -> None:
    lines = ["because: failed to start daemon: x", 'See "systemctl status docker.service" for details.']
    (found,) = containers._reader("a", "f")(False, lines).findings
    assert found.what == "Docker did not come up: failed to start daemon: x"
