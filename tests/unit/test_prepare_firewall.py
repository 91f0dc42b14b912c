"""What the firewall closes, what is read of a host, and what its scripts do when something on the way fails."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fleet.checks import security
from fleet.prepare import firewall, wall
from fleet.prepare.common import Host, Work
from fleet.prepare.firewall import State
from fleet.topology import Plan
from tests.unit.plans import lay

ONE = """
title: t
source: s
platform: ascend-a2
model: {name: org/model, max_position_embeddings: 4096}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  serve: {tensor_parallel_size: 8}
"""
OVER_TWO = ONE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 8, data_parallel_size: 2")
RAY = ONE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 8, pipeline_parallel_size: 2, executor: ray")
PD = """
title: t
source: s
platform: nvidia
model: {name: org/model, max_position_embeddings: 4096}
engine: {vllm: 0.20.0}
kv_transfer: {connector: NixlConnector}
roles:
  prefill: {tensor_parallel_size: 8, port: 8100}
  decode: {tensor_parallel_size: 8}
"""
A, B = "10.0.0.1", "10.0.0.2"


def one(text: str = ONE, **data: Any) -> Plan:
    return lay(text, {"firewall": True, **data}, serve=[A])


def two(text: str = OVER_TWO, **data: Any) -> Plan:
    return lay(text, {"firewall": True, **data}, serve=[A, B])


def pd(**data: Any) -> Plan:
    return lay(PD, {"firewall": True, **data}, prefill=[A], decode=[B], proxy=[A])


def ports_of(plan: Plan, host: str = A) -> tuple[tuple[int, ...], list[str]]:
    """The ports for clients, and the spans of those that are closed."""
    its = wall.wall(plan, plan.fleet.node(host))
    text = wall.rules(its)
    closed = re.search(r'tcp dport \{ ([^}]*) \} counter drop comment "for the fleet alone"', text)
    return its.api, closed[1].split(", ") if closed else []


# ---- which ports


def test_an_engine_alone_has_its_api_open_and_hccl_closed() -> None:
    assert ports_of(one()) == ((8000,), ["60000-60031"])


def test_hosts_of_an_instance_close_what_they_tell_each_other() -> None:
    assert ports_of(two(), A) == ((8000,), ["7390", "13389", "60000-60031"])
    assert ports_of(two(), B) == ((), ["7390", "60000-60031"])


def test_behind_a_router_the_engines_and_its_metrics_are_closed() -> None:
    assert ports_of(pd(), A) == ((8080,), ["5600-5607", "8100", "29000"])
    assert ports_of(pd(), B) == ((), ["5700-5707", "8000"])


def test_behind_a_front_door_the_router_is_closed_too() -> None:
    assert ports_of(pd(front_door=True), A) == ((8080,), ["5600-5607", "8100", "8200", "29000"])


def test_ray_is_closed_with_all_that_its_workers_may_take() -> None:
    ray = ["6379", "7390", "8265", "10001-19999", "52365", "60000-60031"]
    assert ports_of(two(RAY), A) == ((8000,), ray)
    assert ports_of(two(RAY), B) == ((), ray)


def test_beside_another_service_only_rays_own_ports_are_closed() -> None:
    """Its workers' range would close the other's API on 18000."""
    plan = two(RAY, service="chat", devices="0-7", port_offset=0)
    assert ports_of(plan, A) == ((8000,), ["6379", "7390", "10001", "60000-60031"])


def test_a_service_of_some_devices_closes_its_own_part_of_hccls_ports() -> None:
    text = ONE.replace("tensor_parallel_size: 8", "tensor_parallel_size: 4")
    assert ports_of(one(text, devices="4-7", port_offset=100)) == ((8100,), ["60128-60159"])


@pytest.mark.parametrize("plan", [one(), two(), two(RAY), pd(), pd(front_door=True)])
def test_no_rule_drops_the_port_of_ssh(plan: Plan) -> None:
    for node in plan.fleet.nodes:
        its = wall.wall(plan, node, (22, 2222))
        assert not {22, 2222} & {*its.api, *its.closed}
        lines = wall.rules(its).splitlines()
        first = next(n for n, line in enumerate(lines) if " counter drop" in line)
        assert lines.index("\t\ttcp dport { 22, 2222 } accept") < first


# ---- the file


def test_the_whole_file() -> None:
    plan = lay(
        OVER_TWO, {"firewall": True, "api_networks": ["10.1.0.0/16", "10.0.0.0/8"]}, serve=[B, ("six", "fd00::1")]
    )
    assert (
        wall.rules(wall.wall(plan, plan.fleet.nodes[0])).partition("closes.\n")[2]
        == """\
table inet vllm_fleet
delete table inet vllm_fleet
table inet vllm_fleet {
	set peers4 {
		type ipv4_addr
		elements = { 10.0.0.2 }
	}
	set peers6 {
		type ipv6_addr
		elements = { fd00::1 }
	}
	chain input {
		type filter hook input priority 0; policy accept;
		meta l4proto != tcp accept
		iifname "lo" accept
		# Only what opens a connection is looked at: one that stands goes on, and no connection is tracked for this.
		tcp flags & (syn | ack) != syn accept
		tcp dport { 22 } accept
		ip saddr @peers4 accept
		ip6 saddr @peers6 accept
		tcp dport { 8000 } ip saddr { 10.0.0.0/8 } accept
		tcp dport { 8000 } counter drop comment "the API, for api_networks"
		tcp dport { 7390, 13389, 60000-60031 } counter drop comment "for the fleet alone"
	}
}
"""
    )


def test_networks_of_clients_are_sorted_by_kind() -> None:
    text = wall.rules(wall.wall(one(api_networks=["fd00::/8", "10.0.0.7", "192.168.0.0/16"]), one().fleet.nodes[0]))
    assert "\t\ttcp dport { 8000 } ip saddr { 10.0.0.7, 192.168.0.0/16 } accept\n" in text
    assert "\t\ttcp dport { 8000 } ip6 saddr { fd00::/8 } accept\n" in text


def test_without_networks_no_rule_names_the_api() -> None:
    assert "8000" not in wall.rules(wall.wall(one(), one().fleet.nodes[0]))


def test_services_have_names_of_their_own() -> None:
    plan = one(service="chat")
    its = wall.wall(plan, plan.fleet.nodes[0])
    assert (its.table, its.name, its.path) == (
        "vllm_fleet_chat",
        "fleet-firewall-chat",
        "/etc/vllm-fleet/firewall-chat.nft",
    )
    assert "vllm_fleet {" not in wall.rules(its)


# ---- a host's answer


def as_it_should_be(plan: Plan, **other: Any) -> State:
    its = wall.wall(plan, plan.fleet.nodes[0])
    sums = [sha256(text.encode()).hexdigest() for text in (wall.rules(its), wall.service(its), wall.beside(its))]
    good = State(True, "", *sums, (sums[0], "f00"), "f00", True, True)
    return replace(good, **other)


def work(plan: Plan, state: State) -> Work:
    return Work(plan, plan.fleet.nodes[0], Host(), {"firewall": state})


def names(plan: Plan, state: State) -> list[str]:
    return [step.name for step in firewall.steps(work(plan, state))]


NEW = "firewall: 32 ports for the fleet's 1 host alone, API port 8000 for everybody"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, None),
        ({"file": "", "listing": "", "recorded": ()}, "there is none"),
        ({"listing": ""}, "it is not loaded"),
        ({"file": "e1"}, "it has other rules"),
        ({"listing": "e1"}, "its table was changed by another hand"),
        ({"recorded": ()}, "its table was changed by another hand"),
        ({"unit": "e1"}, "its unit differs"),
        ({"beside": ""}, "its unit differs"),
        ({"enabled": False}, "the next boot would not load it"),
        ({"active": False}, "the next boot would not load it"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_step_that_says_so(other: dict[str, Any], why: str | None) -> None:
    state = as_it_should_be(one(), **other)
    assert names(one(), state) == ([f"{NEW} ({why})"] if why else [])
    proved = [finding.line() for finding in firewall.prove(work(one(), state))]
    assert len(proved) == (why is not None) and all(why in line and "[FIREWALL-STATE]" in line for line in proved)  # type: ignore[operator]


def test_a_host_without_nft_gets_the_step_all_the_same() -> None:
    """In a dry run the package is yet to come."""
    assert names(one(), State()) == [f"{NEW} (there is none)"]
    assert firewall.refuse(work(one(), State())) == []


def test_off_takes_away_what_is_there_and_else_does_nothing() -> None:
    off = one(firewall=False)
    assert names(off, State()) == [] and firewall.prove(work(off, State())) == []
    left = State(unit="e1")
    assert names(off, left) == ["firewall removed: table inet vllm_fleet (firewall is off)"]
    assert [f.rule for f in firewall.prove(work(off, left))] == ["FIREWALL-STATE"]


def test_a_port_of_sshd_is_not_the_services() -> None:
    (finding,) = firewall.refuse(work(one(), State(nft=True, ssh=(22, 8000))))
    assert finding.line() == (
        "error: 10.0.0.1: sshd listens at port 8000, which the plan wants for the service; give the service another "
        "port (port or proxy.port of the recipe, port_offset), or sshd [FIREWALL-SSH]"
    )


def test_a_kernel_without_tables_is_refused_with_its_word() -> None:
    (finding,) = firewall.refuse(work(one(), State(nft=True, kernel="netlink: Error: Protocol not supported")))
    assert finding.rule == "FIREWALL-KERNEL" and "Protocol not supported" in finding.what


def test_others_that_listen_where_it_closes_are_named_before() -> None:
    state = State(nft=True, listeners=((10050, "zabbix_agentd"), (10101, "raylet"), (9100, "node_exporter")))
    plan = two(RAY)
    (finding,) = firewall.refuse(work(plan, state))
    assert (finding.rule, finding.severity) == ("FIREWALL-OTHERS", "warning")
    assert finding.what.endswith("but the fleet: 10050 (zabbix_agentd)")
    assert firewall.refuse(work(plan, as_it_should_be(plan, listeners=state.listeners))) == []


# ---- the shell, for real, with stand-ins for the tools

TOOLS = {
    "nft": 'case "$*" in "list tables") echo "table inet others";; "-s list table inet vllm_fleet") echo "table {}";; '
    '*) exit 1;; esac',
    "systemctl": 'case "$1" in is-enabled) echo enabled;; is-active) echo inactive; exit 3;; '
    'show) printf "Listen=[::]:2022 (Stream)\\n\\nListen=/run/x (Stream)\\n";; esac',
    "ss": "cat <<'END'\n"
    'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=43,fd=3))\n'
    'LISTEN 0 128 [::]:2222 [::]:* users:(("sshd",pid=43,fd=4))\n'
    'LISTEN 0 128 127.0.0.1:6010 0.0.0.0:* users:(("sshd",pid=99,fd=9))\n'
    'LISTEN 0 128 *:10050 *:* users:(("zabbix_agentd",pid=7,fd=4))\nEND',
}  # fmt: skip


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the files of a host lie in, with tools that note how they were called."""
    for name in ("ROOT", "RUN", "SYSTEMD"):
        monkeypatch.setattr(wall, name, f"{tmp_path}/{name.lower()}")
    monkeypatch.setattr(firewall, "RUN", wall.RUN)
    for folder in ("bin", "root", "run", "systemd"):
        (tmp_path / folder).mkdir()
    for name, text in TOOLS.items():
        tool(tmp_path, name, text)
    return tmp_path


def tool(host: Path, name: str, text: str) -> None:
    (host / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{host}/calls\n{text}\n')
    (host / "bin" / name).chmod(0o755)


def sh(host: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Nothing but the stand-ins and what every host has."""
    path = f"{host}/bin:/usr/bin:/bin"
    return subprocess.run(["sh", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=20)


def asked(host: Path, plan: Plan) -> State:
    done = sh(host, "\n".join(firewall.sections(plan, plan.fleet.nodes[0])))
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head == "@@ fleetfirewall"
    return firewall.parse({"fleetfirewall": lines})


def calls(host: Path) -> list[str]:
    return (host / "calls").read_text().splitlines() if (host / "calls").exists() else []


def test_what_a_host_says_of_itself(host: Path) -> None:
    (host / "root/firewall.nft").write_text("rules\n")
    (host / "run/vllm_fleet").write_text("a1  -\nb2  -\n")
    state = asked(host, one())
    assert state == State(
        nft=True,
        file=sha256(b"rules\n").hexdigest(),
        recorded=("a1", "b2"),
        listing=sha256(b"table {}\n").hexdigest(),
        enabled=True,
        active=False,
        ssh=(22, 2022, 2222),
        listeners=((22, "sshd"), (2222, "sshd"), (10050, "zabbix_agentd")),
    )


def test_where_none_is_wanted_and_none_was_left_nothing_is_asked(host: Path) -> None:
    """nft would load the kernel's filters."""
    assert asked(host, one(firewall=False)) == State()
    assert calls(host) == []


def test_where_none_is_wanted_and_a_file_was_left_it_is_seen(host: Path) -> None:
    (host / "root/firewall.nft").write_text("rules\n")
    assert names(one(firewall=False), asked(host, one(firewall=False))) != []


@pytest.mark.parametrize("said", ["netlink: Error: cache initialization failed: Protocol not supported", ""])
def test_a_kernel_that_has_no_tables(host: Path, said: str) -> None:
    tool(host, "nft", f"echo '{said}' >&2; exit 1")
    assert asked(host, one()).kernel == (said or "nft gave no answer in 10 s")


def test_a_host_that_has_no_tool_at_all(host: Path) -> None:
    question = firewall.sections(one(), one().fleet.nodes[0])[0]
    done = sh(host, question.replace("PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin", "PATH=/nowhere"))
    head, *lines = done.stdout.splitlines()
    assert (head, firewall.parse({"fleetfirewall": lines})) == ("@@ fleetfirewall", State())


def loaded(host: Path) -> list[str]:
    """What changed the kernel's tables."""
    return [call for call in calls(host) if call.startswith(("nft -f", "nft delete"))]


def load(host: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The step is carried out; what it came to."""
    (step,) = firewall.steps(work(one(), State(nft=True)))
    done = sh(host, f"exec 2>&1; {step.script}")
    assert step.read
    return done, [f.line() for f in step.read(done.returncode == 0, done.stdout.splitlines()).findings]


def test_the_way_back_is_armed_before_the_rules_are_loaded(host: Path) -> None:
    tool(host, "nft", 'case "$*" in *"list table"*) echo "old rules";; esac')
    tool(host, "systemd-run", "")
    assert load(host)[1] == []
    order = [c.split()[0] + " " + c.split()[1] for c in calls(host) if c.startswith(("nft", "systemd-run"))]
    assert order == ["nft -c", "nft -s", "systemd-run --quiet", "nft -f"]
    assert (host / "run/vllm_fleet.before").read_text() == (
        "table inet vllm_fleet\ndelete table inet vllm_fleet\nold rules\n"
    )
    assert not (host / "root/firewall.nft").exists(), "a boot before the confirmation loads what was there before"


def test_without_a_way_back_nothing_is_loaded(host: Path) -> None:
    tool(host, "nft", "")
    tool(host, "systemd-run", "echo 'Failed to start transient timer unit' >&2; exit 1")
    done, (said,) = load(host)
    assert done.returncode == 5 and "nothing was changed [" not in said
    assert "systemd-run did not arm the way back: nothing was changed" in said and "[PREPARE-FAILED]" in said
    assert loaded(host) == [] and not (host / "run/vllm_fleet.undo").exists()


def test_a_file_that_nft_refuses_is_told_with_its_line(host: Path) -> None:
    tool(host, "nft", 'f=$3; echo "$f:17:17-19: Error: syntax error, unexpected string"; echo "  tcp dport { 80x }"; '
         'echo "  ^^^"; exit 1')  # fmt: skip
    tool(host, "systemd-run", "")
    _, (said,) = load(host)
    assert said.startswith(
        "error: 10.0.0.1: nft refuses the rules, line 17:17-19: syntax error, unexpected string (tcp dport { 80x }); "
        "the rules from before stay"
    )
    assert loaded(host) == [] and list((host / "root").iterdir()) == []


def test_rules_that_the_kernel_refuses_leave_the_old_ones(host: Path) -> None:
    tool(host, "nft", 'case "$*" in "-f "*.new) echo "Error: Could not process rule: No such file"; exit 1;; esac')
    tool(host, "systemd-run", "")
    done, (said,) = load(host)
    assert done.returncode == 6 and "FIREWALL-RULES" in said and "Could not process rule" in said
    assert [call.rpartition("/")[2] for call in loaded(host)] == ["firewall.nft.new", "vllm_fleet.before"]


def test_no_nft_is_told_by_the_step(host: Path) -> None:
    (host / "bin/nft").unlink()
    (step,) = firewall.steps(work(one(), State()))
    done = sh(host, f'command() {{ test "$2" != nft; }}; {step.script}')
    assert step.read
    (finding,) = step.read(done.returncode == 0, done.stdout.splitlines()).findings
    assert (done.returncode, finding.rule) == (3, "FIREWALL-NFT")


def test_what_was_taken_back_is_not_confirmed(host: Path) -> None:
    (step,) = firewall.steps(work(one(), State(nft=True)))
    done = sh(host, step.confirm)
    assert (done.returncode, done.stdout) == (7, "too late: the host has taken the rules back\n")
    assert calls(host) == [] and not (host / "root/firewall.nft").exists()


def test_what_is_confirmed_is_there_for_the_next_boot(host: Path) -> None:
    tool(host, "nft", "")
    tool(host, "systemd-run", "")
    load(host)
    (step,) = firewall.steps(work(one(), State(nft=True)))
    assert sh(host, step.confirm).returncode == 0
    assert sorted(p.name for p in (host / "root").iterdir()) == ["firewall.nft"]
    assert sorted(p.name for p in (host / "systemd").rglob("*.*")) == [
        "fleet-firewall.conf",
        "fleet-firewall.service",
        "nftables.service.d",
    ]
    assert list((host / "run").iterdir()) == []
    its = [call for call in calls(host) if "fleet-firewall.service" in call]
    assert its[-2:] == [
        "systemctl enable --quiet fleet-firewall.service",
        "systemctl reload-or-restart fleet-firewall.service",
    ]


# ---- what is said without a host


def security_of(plan: Plan) -> list[str]:
    return [f.line() for check in security.CHECKS for f in check(plan)]


def test_a_firewall_without_networks_leaves_the_api_open() -> None:
    assert security_of(pd()) == [
        "warning: fleet.py: the firewall leaves API port 8080 open to everybody, who needs no key; name the networks "
        "of your clients: api_networks = ['10.0.0.0/8'] [SECURITY-API-OPEN]"
    ]
    assert security_of(pd(api_networks=["10.0.0.0/8"])) == []
    assert security_of(pd(firewall=False)) == []


def test_networks_without_a_firewall_close_nothing() -> None:
    assert security_of(pd(firewall=False, api_networks=["10.0.0.0/8"])) == [
        "warning: fleet.py: api_networks is given and firewall is off, so the API is open to everybody; set firewall "
        "= True, or take api_networks out [SECURITY-NETWORKS]"
    ]


def test_keys_without_tls_are_read_by_whoever_listens() -> None:
    keys = {"firewall": False, "api_keys": "keys"}
    assert security_of(pd(**keys)) == [
        "warning: fleet.py: clients send their API keys over plain HTTP (whoever sees the traffic has the key); set "
        "tls_certificate; where something else encrypts on the way, waive this rule [SECURITY-PLAIN-KEYS]"
    ]
    assert security_of(pd(**keys, tls_certificate="c.pem")) == []


def rules_of(plan: Plan) -> list[str]:
    return [finding.rule for check in security.CHECKS for finding in check(plan)]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, ["SECURITY-API-OPEN"]),
        ({"api_keys": "keys", "tls_certificate": "c.pem"}, []),
        ({"firewall": True}, ["SECURITY-API-OPEN"]),
        ({"firewall": True, "api_networks": ["10.0.0.0/8"]}, []),
    ],
)
def test_a_front_door_on_a_public_address_asks_for_keys(data: dict[str, Any], told: list[str]) -> None:
    assert rules_of(lay(ONE, data, serve=[A], proxy=[("door", "8.8.4.4")])) == told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, ["SECURITY-OPEN"]),
        ({"firewall": True}, ["SECURITY-API-OPEN"]),
        ({"firewall": True, "api_networks": ["10.0.0.0/8"]}, []),
    ],
)
def test_engines_on_public_addresses_are_closed_by_the_firewall(data: dict[str, Any], told: list[str]) -> None:
    assert rules_of(lay(ONE, data, serve=[("a", "8.8.4.4")], proxy=[("door", A)])) == told
