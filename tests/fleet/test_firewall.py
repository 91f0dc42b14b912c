"""The firewall on booted hosts: two of a fleet and a stranger, real connections, and every way to be locked out."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from fleet.prepare import firewall, wall
from fleet.prepare.common import Host, Step, Work
from fleet.topology import Plan
from lab.fleet import Lab
from tests.unit.plans import lay

pytestmark = pytest.mark.lab

NAME, SUBNET = "fwtest", "10.231.90.0/24"
A, B, STRANGER = f"{NAME}-0", f"{NAME}-1", f"{NAME}-2"
AT = {A: "10.231.90.10", B: "10.231.90.11", STRANGER: "10.231.90.12"}
API, RPC, FOREIGN = 8000, 13389, 9100
RECIPE = """
title: one engine over two hosts
source: tests
platform: cpu
model: {name: lab/tiny, max_position_embeddings: 4096}
engine: {vllm: 0.32.0}
roles:
  serve: {data_parallel_size: 2}
"""
CUTS_SSH = """
table inet vllm_fleet
delete table inet vllm_fleet
table inet vllm_fleet {
	chain input {
		type filter hook input priority 0; policy accept;
		tcp dport 22 drop
	}
}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three hosts; what listens on A listens on the whole host, for IPv6 too."""
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("lab"), say=print, shared=True)
    try:
        made.up(3)
        listen(made)
        yield made
    finally:
        made.down()


@pytest.fixture
def closed(lab: Lab) -> Lab:
    """A has the firewall of the plan, whatever the test before it did."""
    prepare(lab, plan(api_networks=["10.99.0.0/16"]))
    return lab


def listen(lab: Lab) -> None:
    ssh(lab, STRANGER, "ip -6 addr replace fd00:231::12/64 dev host0 nodad")
    ports = " ".join(str(port) for port in (API, RPC, FOREIGN))
    begun = 'systemd-run -q --unit="listener-$port" python3 -m http.server --bind :: "$port"'
    waited = "ss -Hltn sport = $port | grep -q . && break; sleep 0.1"
    ssh(
        lab,
        A,
        f"ip -6 addr add fd00:231::10/64 dev host0 nodad; for port in {ports}; do {begun} || exit 1; done; "
        f"for port in {ports}; do for i in $(seq 80); do {waited}; done; done; test $i -lt 80",
    )


def plan(**data: object) -> Plan:
    return lay(RECIPE, {"firewall": True, **data}, serve=[(A, AT[A]), (B, AT[B])])


def ssh(lab: Lab, host: str, command: str) -> str:
    done = lab.ssh(host, command)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.strip()


def steps(lab: Lab, its: Plan, undo_after: int = 60, first: str = "true") -> list[Step]:
    """What has to be done on A, as the host says once ``first`` is done there."""
    node = its.fleet.node(A)
    question = "; ".join([first, *firewall.sections(its, node)])
    lines = ssh(lab, A, f"sh -c {shlex.quote(question)}").splitlines()
    lines = lines[lines.index("@@ fleetfirewall") + 1 :]
    work = Work(its, node, Host(), {"firewall": firewall.parse({"fleetfirewall": lines})})
    assert firewall.refuse(work) == []
    found = firewall.steps(work, undo_after)
    assert bool(firewall.prove(work)) == bool(found)
    return found


def carry_out(lab: Lab, step: Step) -> list[str]:
    """The lines of its findings; what is left is to confirm it over another connection."""
    done = lab.ssh(A, f"sh -c {shlex.quote(step.script)} 2>&1")
    if step.read:
        return [f.line() for f in step.read(done.returncode == 0, done.stdout.splitlines()).findings]
    assert done.returncode == 0, done.stdout
    return []


def prepare(lab: Lab, its: Plan, first: str = "true") -> list[str]:
    """The names of the steps that were taken; after them none is left."""
    todo = steps(lab, its, first=first)
    for step in todo:
        done = " && ".join(f"sh -c {shlex.quote(text)} >&2" for text in (step.script, step.confirm or "true"))
        assert [s.name for s in steps(lab, its, first=f"{{ {done}; }} || exit 1")] == []
    return [s.name for s in todo]


def tries(lab: Lab, host: str, *targets: tuple[str, int]) -> list[str]:
    """What becomes of a connection from a host, for each target; all at once."""
    ones = [
        f"(timeout 1 bash -c '</dev/tcp/{at}/{port}' 2>/dev/null; echo {n} $?) &"
        for n, (at, port) in enumerate(targets)
    ]
    said = sorted(ssh(lab, host, " ".join([*ones, "wait"])).splitlines())
    return [{"0": "open", "1": "refused", "124": "dropped"}[line.split()[1]] for line in said]


def tables(lab: Lab) -> list[str]:
    return [line.removeprefix("table inet ") for line in ssh(lab, A, "nft list tables").splitlines()]


def test_strangers_are_kept_out_and_the_fleet_is_not(closed: Lab) -> None:
    its = (AT[A], RPC), (AT[A], API), (AT[A], FOREIGN), (AT[A], 22)
    assert tries(closed, STRANGER, *its) == ["dropped", "dropped", "open", "open"]
    assert tries(closed, B, *its) == ["open", "open", "open", "open"]
    assert tries(closed, A, ("127.0.0.1", RPC), (AT[A], RPC)) == ["open", "open"]
    assert tries(closed, STRANGER, ("fd00:231::10", RPC), ("fd00:231::10", FOREIGN)) == ["dropped", "open"]
    assert "packets 0" not in ssh(closed, A, "nft list table inet vllm_fleet | grep 'for the fleet alone'")


def test_the_api_is_for_the_networks_that_are_named(closed: Lab) -> None:
    names = prepare(closed, plan(api_networks=[AT[STRANGER], "fd00:231::/64"]))
    assert names == [
        "firewall: 2 ports for the fleet's 2 hosts alone, API port 8000 for 10.231.90.12, fd00:231::/64 "
        "(it has other rules)"
    ]
    its = (AT[A], API), (AT[A], RPC), ("fd00:231::10", API)
    assert tries(closed, STRANGER, *its) == ["open", "dropped", "open"]


def test_a_connection_that_stands_is_not_cut(lab: Lab) -> None:
    prepare(lab, plan(firewall=False))
    talk = f"exec 3<>/dev/tcp/{AT[A]}/{RPC}; read -r go; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3"
    command = [*lab.ssh_command(), STRANGER, f"bash -c {shlex.quote(talk)}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        connected = f"for i in $(seq 50); do ss -Htn sport = {RPC} | grep -q . && exit; sleep 0.1; done; exit 1"
        ssh(lab, A, connected)
        prepare(lab, plan())
        assert tries(lab, STRANGER, (AT[A], RPC)) == ["dropped"]
        said, _ = client.communicate("\n", timeout=10)
    assert said.startswith("HTTP/1.0 200")


def test_rules_that_nft_refuses_leave_the_old_ones(closed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = wall.rules
    monkeypatch.setattr(firewall, "rules", lambda its: real(its).replace("13389", "13389x"))
    (step,) = steps(closed, plan(api_networks=["10.99.0.0/16"]))
    (said,) = carry_out(closed, step)
    assert said.startswith(f"error: {A}: nft refuses the rules, line 20:26-26: syntax error")
    assert "13389x" in said and said.endswith("[FIREWALL-RULES]")
    monkeypatch.undo()
    assert steps(closed, plan(api_networks=["10.99.0.0/16"])) == []
    assert tries(closed, STRANGER, (AT[A], RPC), (AT[A], 22)) == ["dropped", "open"]


def greets() -> bool:
    """Whether a new connection from here gets to A's sshd."""
    try:
        with socket.create_connection((AT[A], 22), timeout=0.4) as made:
            made.settimeout(3)
            return made.recv(4) == b"SSH-"
    except TimeoutError:
        return False


def test_rules_that_cut_ssh_are_taken_back(closed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "rules", lambda its: CUTS_SSH)
    (step,) = steps(closed, plan(api_networks=["10.99.0.0/16"]), undo_after=2)
    monkeypatch.undo()
    began = time.monotonic()
    assert closed.ssh(A, f"sh -c {shlex.quote(step.script)} 2>&1").returncode == 0
    assert not greets(), "and so would be the confirmation"
    while not greets() and time.monotonic() - began < 20:
        pass
    assert 2 <= time.monotonic() - began < 20
    done = closed.ssh(A, f"sh -c {shlex.quote(step.confirm)} 2>/dev/null")
    assert (done.returncode, done.stdout) == (7, "too late: the host has taken the rules back\n")
    assert steps(closed, plan(api_networks=["10.99.0.0/16"])) == []
    assert tries(closed, STRANGER, (AT[A], RPC)) == ["dropped"]


def test_a_first_load_that_nobody_confirms_leaves_nothing(lab: Lab) -> None:
    prepare(lab, plan(firewall=False))
    (step,) = steps(lab, plan())
    loaded = f"sh -c {shlex.quote(step.script)} >&2 || exit 1; nft list tables >&2"
    # A second try knows that before the first there was nothing.
    (again,) = steps(lab, plan(), undo_after=1, first=loaded)
    gone = 'for i in $(seq 80); do test -z "$(nft list tables)" && break; sleep 0.1; done'
    said = ssh(lab, A, f"sh -c {shlex.quote(again.script)} >&2 || exit 1; nft list tables; {gone}; nft list tables")
    assert said == "table inet vllm_fleet"
    assert steps(lab, plan(firewall=False)) == []
    assert ssh(lab, A, "ls /etc/vllm-fleet /etc/systemd/system | grep -c firewall || true") == "0"


DEEDS = {
    "nft flush ruleset": "it is not loaded",
    "nft insert rule inet vllm_fleet input tcp dport 13389 accept": "its table was changed by another hand",
    "systemctl disable -q fleet-firewall": "the next boot would not load it",
    "echo '# mine' >>/etc/vllm-fleet/firewall.nft": "it has other rules",
}


def test_what_another_hand_did_is_seen_and_mended(closed: Lab) -> None:
    for deed, why in DEEDS.items():
        (name,) = prepare(closed, plan(api_networks=["10.99.0.0/16"]), first=deed)
        assert name.endswith(f"({why})"), deed


def test_the_rules_of_others_stay_and_their_restart_does_no_harm(closed: Lab) -> None:
    """nftables.service flushes everything with each start, reload and stop."""
    settled = "while systemctl list-jobs --no-legend | grep -q fleet-firewall; do sleep 0.1; done"
    for deed in ("start", "reload", "restart", "stop; systemctl start"):
        done = f"systemctl {deed} nftables; {settled}; nft add table inet others"
        assert steps(closed, plan(api_networks=["10.99.0.0/16"]), first=done) == [], deed
    prepare(closed, plan(api_networks=[AT[STRANGER]]))
    assert {"others", "filter", "vllm_fleet"} == set(tables(closed))
    prepare(closed, plan(firewall=False))
    assert {"others", "filter"} == set(tables(closed))
    ssh(closed, A, "systemctl stop nftables; nft flush ruleset")


def test_services_of_one_host_have_a_table_each(closed: Lab) -> None:
    chat = {"service": "chat", "port_offset": 1000}
    prepare(closed, plan(**chat))
    assert tables(closed) == ["vllm_fleet", "vllm_fleet_chat"]
    assert steps(closed, plan(api_networks=["10.99.0.0/16"])) == []
    assert prepare(closed, plan(firewall=False)) == ["firewall removed: table inet vllm_fleet (firewall is off)"]
    assert tables(closed) == ["vllm_fleet_chat"]
    assert steps(closed, plan(**chat)) == []
    prepare(closed, plan(firewall=False, service="chat"))


def test_a_reboot_keeps_it_and_off_is_off(closed: Lab) -> None:
    closed.ssh(A, "touch /run/before-the-reboot; systemctl reboot")
    deadline = time.monotonic() + 30
    while closed.ssh(A, "test ! -e /run/before-the-reboot").returncode and time.monotonic() < deadline:
        time.sleep(0.1)
    listen(closed)
    assert steps(closed, plan(api_networks=["10.99.0.0/16"])) == []
    assert tries(closed, STRANGER, (AT[A], RPC), (AT[A], 22)) == ["dropped", "open"]
    started = "systemctl show -p ActiveEnterTimestampMonotonic --value"
    first, second = ssh(closed, A, f"{started} fleet-firewall; {started} systemd-networkd").split()
    assert int(first) < int(second), "before the network"
    prepare(closed, plan(firewall=False))
    assert tables(closed) == []
    assert tries(closed, STRANGER, (AT[A], RPC)) == ["open"]
