"""Faults on booted hosts: one clear line a host, a true exit code, nothing half-written, and the next run mends it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.fleet import Lab
from tests.fleet.conftest import FLEET, PYINFRA, REPOSITORY, Fleet, recipe, take_off

pytestmark = pytest.mark.lab

A, B = "fleettest-0", "fleettest-1"
ENTRY = "http://10.231.80.10:8080"


@pytest.fixture(autouse=True)
def clean_hosts(lab: Lab) -> Iterator[None]:
    """Every test begins with hosts on which nothing is deployed."""
    yield
    take_off(lab, (A, B), "umount -l /etc/vllm-fleet 2>/dev/null")


def serves(fleet: Fleet) -> bool:
    """Whether the front door answers with text."""
    body = '{"model": "qwen3", "prompt": "x", "max_tokens": 4}'
    done = fleet.lab.ssh(B, f"curl -s -m 20 {ENTRY}/v1/completions -H 'Content-Type: application/json' -d '{body}'")
    return "stand-in " in done.stdout


def release(fleet: Fleet, host: str = A) -> str:
    return fleet.ssh(host, "readlink /etc/vllm-fleet/current || echo none")


def leftovers(fleet: Fleet, host: str = A) -> str:
    """Half-written things: releases without a manifest, temporary names."""
    return fleet.ssh(
        host,
        "cd /etc/vllm-fleet 2>/dev/null || exit 0; ls -A . releases | grep -e '^[.]new' -e '^[.]current' || true; "
        "for r in releases/*/; do test ! -d $r || test -e $r/manifest.json || echo $r; done",
    )


def test_a_run_serves_and_a_second_changes_nothing(two: Fleet) -> None:
    first = two.pyinfra("-y")
    assert first.code == 0, first.text
    assert serves(two)
    started = two.ssh(A, "systemctl show -p ExecMainStartTimestamp vllm-serve-0 vllm-front-door")

    two.ssh(A, "echo 'echo x >>/root/sessions' >/root/.bashrc; rm -f /root/sessions")
    second = two.pyinfra("-y", "-v")
    sessions = int(two.ssh(A, "rm /root/.bashrc; wc -l </root/sessions")) - 1  # less this one

    assert second.code == 0
    assert "Grand total" in second.line("Grand total") and second.line("Grand total").split()[3] == "-", second.text
    assert sessions == int(second.line(f"remote commands on {A}").split()[-1])
    assert sessions <= 9
    assert two.ssh(A, "systemctl show -p ExecMainStartTimestamp vllm-serve-0 vllm-front-door") == started


def test_the_last_line_of_a_good_run_can_be_pasted(two: Fleet) -> None:
    done = two.fleet("--yes")
    assert done.code == 0
    line = done.text.strip().splitlines()[-1]
    assert line.startswith("Try it: curl ")
    answer = subprocess.run(line.removeprefix("Try it: "), shell=True, capture_output=True, text=True, timeout=30)
    assert "stand-in " in answer.stdout


def test_a_dry_run_tells_what_a_changed_argument_does_and_touches_nothing(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    before = release(two)
    recipe(two.folder, args={"max-num-seqs": 6})

    dry = two.pyinfra("--dry")
    assert dry.code == 0
    dry.line(f"[{A}]", "vllm-serve-0: restarts; - --max-num-seqs 8  + --max-num-seqs 6")
    diff = two.pyinfra("--dry", "--diff")
    diff.line(f"[{A}]", "-  --max-num-seqs 8")
    diff.line(f"[{A}]", "+  --max-num-seqs 6")
    plan = json.loads(
        subprocess.run(
            [*PYINFRA, "--dry", "--json", str(two.path), "deploy/serve.py"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        ).stdout
    )
    changing = {op["name"]: sorted(op["hosts_with_change"]) for op in plan["plan"] if op["hosts_with_change"]}
    assert changing == {"install the release": [A, B], "start vllm-serve-0, vllm-serve-1": [A, B]}
    assert release(two) == before
    assert "max-num-seqs 8" in two.ssh(A, "cat /etc/vllm-fleet/current/run/vllm-serve-0.sh")

    assert two.pyinfra("-y").code == 0
    assert release(two) != before
    assert "--max-num-seqs 6" in two.ssh(
        A, "tr '\\0' ' ' </proc/$(systemctl show -p MainPID --value vllm-serve-0)/cmdline"
    )


def test_a_host_that_is_down(two: Fleet) -> None:
    two.lab.power_off(B)
    try:
        done = two.pyinfra("-y")
        assert done.code == 1
        assert "start it, or take it out" in done.line("error:", f"{B}: the host does not answer", "[HOST-DOWN]")
        assert two.ssh(A, "systemctl is-active vllm-serve-0") == "active"  # the other replica serves
    finally:
        two.lab.boot(B)
    assert two.pyinfra("-y").code == 0
    assert serves(two)


def test_no_host_left(two: Fleet) -> None:
    two.hosts = {A: {"ssh_hostname": "10.231.80.98"}, B: {"ssh_hostname": "10.231.80.99"}}
    two.hosts[A]["address"], two.hosts[B]["address"] = "10.231.80.98", "10.231.80.99"
    done = two.fleet("--yes")
    assert done.code == 1
    done.line(A, "[HOST-DOWN]")
    done.line(B, "[HOST-DOWN]")


def test_a_wrong_key(two: Fleet, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    two.hosts[B] = {"ssh_key": str(tmp_path / "other")}
    done = two.pyinfra("-y")
    assert done.code == 1
    assert "authorized_keys" in done.line(f"error: {B}: the host refuses the login", "[HOST-LOGIN]")


def test_an_unknown_host_key(two: Fleet, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("")
    two.hosts[B] = {"ssh_known_hosts_file": str(tmp_path / "known")}
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {B}: the host's key is not known yet", "[HOST-KEY]")


def test_a_login_that_may_not_become_root(two: Fleet) -> None:
    two.hosts[B] = {"ssh_user": "ops", "_sudo": True}
    done = two.pyinfra("-y")
    assert done.code == 1
    assert "without a password" in done.line(f"error: {B}: ops may not become root", "[HOST-SUDO]")


def test_a_login_without_sudo_in_the_inventory(two: Fleet) -> None:
    two.hosts[B] = {"ssh_user": "ops"}
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {B}: the run has no root rights here", "_sudo = True", "[HOST-ROOT]")


def test_a_login_with_sudo_serves(two: Fleet) -> None:
    two.data |= {"ssh_user": "deployer", "_sudo": True}
    done = two.pyinfra("-y")
    assert done.code == 0, done.text
    assert serves(two)


def test_a_full_disk(two: Fleet) -> None:
    two.ssh(A, "mkdir -p /etc/vllm-fleet && mount -t tmpfs -o size=8k tmpfs /etc/vllm-fleet")
    done = two.pyinfra("-y")
    assert done.code == 1
    assert "No space left on device" in done.line(f"error: {A}: cannot write release", "[HOST-WRITE]")
    assert leftovers(two) == ""
    assert release(two) == "none"
    two.ssh(A, "umount /etc/vllm-fleet")
    assert two.pyinfra("-y").code == 0
    assert serves(two)


def test_a_unit_that_dies_at_start(two: Fleet) -> None:
    recipe(two.folder, env={"VLLM_STANDIN_DIE": "RuntimeError: no such device"})
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}: vllm-serve-0 died at start: RuntimeError: no such device", "[UNIT-DIED]")
    done.line(f"error: {B}: vllm-serve-1 died at start: RuntimeError: no such device", "[UNIT-DIED]")
    recipe(two.folder)
    assert two.pyinfra("-y").code == 0
    assert serves(two)


def test_one_replica_that_dies_leaves_the_other_serving(two: Fleet) -> None:
    two.hosts[B] = {"env": {"VLLM_STANDIN_DIE": "RuntimeError: no such device"}}
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {B}: vllm-serve-1 died at start", "[UNIT-DIED]")
    assert serves(two)


def test_an_engine_that_refuses_an_argument_is_not_started_again(two: Fleet) -> None:
    recipe(two.folder, args={"no-such-flag": 1})
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line("vLLM", "--no-such-flag", "[ARG-UNKNOWN]")
    assert A not in done.text, "refused before any host is touched"
    two.data["waive"] = {"ARG-UNKNOWN": "to see what the engine says"}
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}: vllm-serve-0 died at start: the engine does not know --no-such-flag 1", "[LOG-ARGUMENT]")
    assert two.ssh(A, "systemctl show -p NRestarts --value vllm-serve-0") == "0"
    del two.data["waive"]
    recipe(two.folder)
    assert two.pyinfra("-y").code == 0


def test_an_engine_that_takes_too_long(two: Fleet) -> None:
    recipe(two.folder, env={"VLLM_STANDIN_LOAD_S": 100}, start_timeout_seconds=30)
    begin = time.monotonic()
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}: vllm-serve-0 did not answer within 30 s", "start_timeout_seconds", "[UNIT-LATE]")
    assert time.monotonic() - begin < 60


def started(two: Fleet, command: list[str], until: Callable[[], bool]) -> subprocess.Popen[str]:
    """The run, once ``until`` is true of the hosts."""
    child = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end and child.poll() is None, child.communicate()
        time.sleep(0.2)
    return child


@pytest.mark.parametrize("tool", ["pyinfra", "fleet"])
def test_an_interrupt_is_told_and_the_next_run_goes_on(two: Fleet, tool: str) -> None:
    recipe(two.folder, env={"VLLM_STANDIN_LOAD_S": 8})
    inventory = str(two.path)
    command = {
        "pyinfra": [*PYINFRA, "-y", inventory, "deploy/serve.py"],
        "fleet": [*FLEET, "run", inventory, "serve", "--yes"],
    }[tool]
    child = started(two, command, lambda: two.lab.ssh(A, "systemctl is-active -q vllm-serve-0").returncode == 0)
    os.killpg(child.pid, signal.SIGINT)
    text, _ = child.communicate(timeout=20)
    assert child.returncode == 130, text
    assert "[RUN-INTERRUPTED]" in text
    assert "Traceback" not in text
    assert leftovers(two) == ""
    assert two.pyinfra("-y").code == 0
    assert serves(two)


@pytest.mark.parametrize("moment", ["writing", "switched", "loading"])
def test_a_killed_run_leaves_nothing_half_written_and_the_next_mends_it(two: Fleet, moment: str) -> None:
    assert two.pyinfra("-y").code == 0
    before = release(two)
    recipe(two.folder, args={"max-num-seqs": 6}, env={"VLLM_STANDIN_LOAD_S": 5})
    if moment == "writing":  # a tar that takes its time: the run dies while the host unpacks
        slow = '#!/bin/sh\\nsleep 4; exec /usr/bin/tar "$@"'
        two.ssh(A, f"printf '{slow}' >/usr/local/bin/tar; chmod +x /usr/local/bin/tar")
    until = {
        "writing": lambda: two.lab.ssh(A, "ls -d /etc/vllm-fleet/releases/.new-*").returncode == 0,
        "switched": lambda: release(two) != before,
        "loading": lambda: "--max-num-seqs 6" in two.ssh(A, "pgrep -af 'vllm serve' || true"),
    }[moment]
    child = started(two, [*PYINFRA, "-y", str(two.path), "deploy/serve.py"], until)
    child.kill()
    child.communicate(timeout=20)
    if moment == "writing":
        assert release(two) == before
        two.ssh(A, "rm /usr/local/bin/tar")
    done = two.pyinfra("-y")
    assert done.code == 0, done.text
    assert leftovers(two) == ""
    assert serves(two)
    assert "--max-num-seqs 6" in two.ssh(A, "pgrep -af 'vllm serve'")


def test_a_file_that_somebody_edited_is_put_back(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    before = release(two)
    two.ssh(A, "echo '# edited' >>/etc/vllm-fleet/current/run/vllm-serve-0.sh")
    two.ssh(B, "systemctl disable --now vllm-serve-1")
    assert two.pyinfra("-y").code == 0
    assert release(two) == before
    assert "edited" not in two.ssh(A, "cat /etc/vllm-fleet/current/run/vllm-serve-0.sh")
    assert (
        two.ssh(B, "systemctl is-enabled vllm-serve-1; systemctl is-active vllm-serve-1").splitlines()[-1] == "active"
    )


def test_a_unit_that_the_plan_no_longer_has_is_taken_away(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    two.groups = {"serve": [A], "proxy": [B]}
    assert two.pyinfra("-y").code == 0
    gone = two.lab.ssh(A, "systemctl cat vllm-front-door")
    assert gone.returncode != 0
    assert two.lab.ssh(A, "systemctl is-active vllm-serve-0").stdout.strip() == "active"


def test_a_rebooted_host_serves_again_without_a_hand(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    two.lab.power_off(A)
    two.lab.boot(A)
    end = time.monotonic() + 60
    while not serves(two):
        assert time.monotonic() < end
        time.sleep(1)


@pytest.mark.parametrize(
    ("data", "fragments"),
    [
        ({"weights_dir": "/opt/nowhere"}, ("no weights at /opt/nowhere/lab/", "WEIGHTS-MISSING")),
        ({"venv": "/opt/nowhere"}, ("there is no /opt/nowhere/bin/vllm", "HOST-ENGINE")),
        ({"address": "10.231.80.200"}, ("no interface carries 10.231.80.200", "NET-ADDRESS")),
        ({"venv": "/opt/vllm/0.32.0", "engine_version": "0.31.0"}, ("holds vLLM 0.32.0, the plan is for 0.31.0",)),
    ],
    ids=["weights", "venv", "address", "version"],
)  # fmt: skip
def test_a_host_that_lacks_what_it_needs_is_not_written_to(
    two: Fleet, data: dict[str, object], fragments: tuple[str, ...]
) -> None:
    two.hosts[B] = data
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {B}:", *fragments)
    assert release(two, B) == "none"


def test_a_port_that_something_else_holds(two: Fleet) -> None:
    two.ssh(A, "systemd-run -q --unit squatter python3 -m http.server 8000")
    two.ssh(A, "until ss -Hltn 'sport = 8000' | grep -q .; do sleep 0.2; done")
    try:
        done = two.pyinfra("-y")
        assert done.code == 1
        done.line(
            f"error: {A}: port 8000, which vllm-serve-0 needs for api, is held by squatter.service", "[HOST-PORT]"
        )
    finally:
        two.ssh(A, "systemctl stop squatter")
    assert two.pyinfra("-y").code == 0


def test_a_host_that_is_lost_in_mid_run_ends_the_wait_for_it(two: Fleet) -> None:
    recipe(two.folder, env={"VLLM_STANDIN_LOAD_S": 300}, start_timeout_seconds=300)
    command = [*PYINFRA, "-y", str(two.path), "deploy/serve.py"]
    child = started(two, command, lambda: two.lab.ssh(B, "systemctl is-active -q vllm-serve-1").returncode == 0)
    two.ssh(A, "systemctl stop vllm-serve-0")
    two.lab.power_off(B)
    try:
        text, _ = child.communicate(timeout=120)
    finally:
        child.kill()
        two.lab.boot(B)
    assert child.returncode == 1
    assert f"error: {B}: waiting for vllm-serve-1 ended" in text, text
    assert "Traceback" not in text


def test_a_removal_that_was_cut_is_finished_by_the_next_run(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    wrapper = '#!/bin/sh\ncase "$1" in reset-failed) kill -9 $PPID;; *) exec /usr/bin/systemctl "$@";; esac'
    two.ssh(A, f"printf '%s' '{wrapper}' >/usr/local/bin/systemctl; chmod +x /usr/local/bin/systemctl")
    two.groups = {"serve": [B], "proxy": [A]}
    assert two.pyinfra("-y").code == 1
    two.ssh(A, "rm /usr/local/bin/systemctl")
    assert two.pyinfra("-y").code == 0
    assert two.ssh(A, "ls /etc/systemd/system | grep vllm") == "vllm-front-door.service"
    assert two.lab.ssh(A, "pgrep -f 'vllm serve'").returncode == 1
    assert serves(two)


def test_a_removed_unit_is_stopped_by_its_own_settings(two: Fleet) -> None:
    recipe(two.folder, drain_seconds=47)
    assert two.pyinfra("-y").code == 0
    two.ssh(A, "journalctl --rotate -q; journalctl --vacuum-time=1s -q")
    two.groups = {"serve": [B], "proxy": [A]}
    assert two.pyinfra("-y").code == 0
    said = two.ssh(A, "journalctl -u vllm-serve-0 -o cat --no-pager")
    assert "Deactivated successfully" in said, said


def test_a_mode_that_somebody_changed_is_put_back(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    two.ssh(A, "chmod 644 /etc/vllm-fleet/current/run/*.sh; systemctl stop vllm-serve-0")
    assert two.pyinfra("-y").code == 0
    assert serves(two)


def test_a_login_shell_that_prints(two: Fleet) -> None:
    two.ssh(A, "echo 'echo Welcome to this host' >/root/.bashrc")
    try:
        done = two.pyinfra("-y")
    finally:
        two.ssh(A, "rm /root/.bashrc")
    assert done.code == 0, done.text


def test_nobody_there_to_confirm(two: Fleet) -> None:
    done = two.pyinfra()
    assert done.code == 2
    done.line("nobody is here to confirm; add -y", "[RUN-CONFIRM]")
    assert release(two) == "none"


@pytest.mark.parametrize("key", ["n\n", "\x03", "\x04"], ids=["no", "ctrl-c", "ctrl-d"])
def test_a_no_at_the_question_changes_nothing(two: Fleet, key: str) -> None:
    code, text = typed([*FLEET, "run", str(two.path), "serve"], "Apply this?", key)
    assert (code, "Traceback" in text) == (130, False), text
    assert release(two) == "none"


def test_a_no_at_pyinfras_own_question_changes_nothing(two: Fleet) -> None:
    code, text = typed([*PYINFRA, str(two.path), "deploy/serve.py"], "Press enter to go on", "n\n")
    assert (code, "Traceback" in text) == (130, False), text
    assert "vllm-serve-0: new" in text
    assert release(two) == "none"


def typed(command: list[str], question: str, key: str) -> tuple[int, str]:
    """Exit code and output of a command on a terminal of its own, in which the key answers the question."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(REPOSITORY)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background hands down that it is ignored
        os.execve(command[0], command, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    text, answered, end = "", False, time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the child has closed it
                break
        if question in text and not answered:
            os.write(terminal, key.encode())
            answered = True
    else:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), text


def test_an_instance_over_two_hosts_starts_restarts_and_waits_as_one(two: Fleet) -> None:
    recipe(two.folder, data_parallel_size=2)
    first = two.pyinfra("-y")
    assert first.code == 0, first.text
    assert serves(two)
    heads = [two.ssh(h, "systemctl show -p MainPID --value vllm-serve-0") for h in (A, B)]
    script = two.ssh(B, "cat /etc/vllm-fleet/current/run/vllm-serve-0.sh")
    assert "--headless" in script and "--data-parallel-start-rank 1" in script
    assert "export GLOO_SOCKET_IFNAME=host0" in script  # found on the host by its address
    assert "--data-parallel-address 10.231.80.10" in script
    assert two.pyinfra("-y").text.count("No changes") > 10
    assert heads == [two.ssh(h, "systemctl show -p MainPID --value vllm-serve-0") for h in (A, B)]

    recipe(two.folder, data_parallel_size=2, args={"max-num-seqs": 6})
    assert two.pyinfra("-y").code == 0
    assert not set(heads) & {two.ssh(h, "systemctl show -p MainPID --value vllm-serve-0") for h in (A, B)}

    two.ssh(A, "systemctl stop vllm-serve-0")
    two.lab.power_off(B)
    try:
        done = two.pyinfra("-y")
        assert done.code == 1
        done.line(B, "[HOST-DOWN]")
        assert two.lab.ssh(A, "systemctl is-active vllm-serve-0").stdout.strip() == "inactive"
    finally:
        two.lab.boot(B)
    assert two.pyinfra("-y").code == 0
    assert serves(two)


def test_a_member_that_dies_is_named_and_the_head_does_not_wait_for_ever(two: Fleet) -> None:
    recipe(two.folder, data_parallel_size=2, start_timeout_seconds=600)
    two.hosts[B] = {"env": {"VLLM_STANDIN_DIE": "RuntimeError: no such device"}}
    begin = time.monotonic()
    done = two.pyinfra("-y")
    assert time.monotonic() - begin < 150, "long before the 600 s that a start may take"
    assert done.code == 1
    done.line(f"error: {B}: vllm-serve-0 died at start: RuntimeError: no such device", "[UNIT-DIED]")
    done.line(f"error: {A}: vllm-serve-0 waits in vain:", f"serve-0@{B}: its", "[RUN-PEERS]")
    assert two.ssh(A, "systemctl show -p NRestarts --value vllm-serve-0") != "5", "its own tries are not used up"
    two.hosts.clear()
    done = two.pyinfra("-y")
    assert done.code == 0, done.text
    assert serves(two)


def test_a_limit_that_matches_nothing(two: Fleet) -> None:
    done = two.pyinfra("-y", "--limit", "nobody")
    assert done.code == 2
    done.line("error: --limit nobody: no host of the inventory matches", "[RUN-LIMIT]")


def test_a_bad_inventory_is_refused_before_any_connection(two: Fleet) -> None:
    two.data["weight_dir"] = "/x"
    done = two.pyinfra("-y")
    assert done.code == 2
    done.line("unknown key weight_dir; write weights_dir", "[INV-KEY]")
    assert "Connecting" not in done.text
