"""``deploy/prepare.py`` on a host, cut, killed, locked and lied to: what is told, and what the next run finds."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import hardware, packages
from lab.fleet import Lab
from tests.fleet.conftest import PYINFRA, REPOSITORY, Fleet, Run, run
from tests.fleet.test_prepare import DRIVER, FIRMWARE, row, sums

pytestmark = pytest.mark.lab

HOST = "pfaultest-0"
PACKAGE = f"/var/lib/vllm-fleet/bundle/Atlas-A3-hdk-npu-driver_{DRIVER}_linux-x86_64.run"
SECRET = "hunter2"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab("pfaultest", "10.231.95.0/24", tmp_path_factory.mktemp("faults"), say=print)
    made.up(1, docker=True)
    yield made
    made.down()


@pytest.fixture
def one(lab: Lab, tmp_path: Path) -> Fleet:
    """A bare host, and what it needs in a bundle."""
    folder = tmp_path / "bundle" / "packages"
    folder.mkdir(parents=True)
    packages.driver_run(folder, DRIVER, "x86_64", "ascend-a3")
    packages.firmware_run(folder, FIRMWARE, "ascend-a3")
    sums(tmp_path / "bundle")
    row(tmp_path, DRIVER)
    assert lab.ssh(HOST, "rm -rf /var/lib/vllm-fleet /var/tmp/vllm-fleet-*").returncode == 0
    hardware.bare(lab, [HOST], "ascend-a3")
    data = {
        "recipe": "qwen3-235b-a22b-w8a8/a3-single",
        "raise_limits": False,
        "catalogue": str(tmp_path / "row.yaml"),
        "bundle": str(tmp_path / "bundle"),
        "reboot_minutes": 1,
    }
    return Fleet(lab, tmp_path, {"serve": [HOST]}, data)


def command(one: Fleet, *options: str, verb: str = "drivers") -> list[str]:
    return [*PYINFRA, "-y", *options, str(one.path), f"deploy/{verb}.py"]


def prepare(one: Fleet, *options: str, verb: str = "drivers") -> Run:
    return run(command(one, *options, verb=verb))


def begin(one: Fleet) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(one),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(child: subprocess.Popen[str]) -> Run:
    text, _ = child.communicate(timeout=120)
    assert "Traceback" not in text, text
    return Run(child.returncode, text)


def until(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)


def installs(lab: Lab) -> bool:
    return lab.ssh(HOST, "pgrep -f '[n]pu-driver.*--full'").returncode == 0


def driver_of(one: Fleet) -> str:
    return one.ssh(HOST, "npu-smi info -t board -i 0 | sed -n 's/.*Software Version *: //p'")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_installer_is_not_cut_with_the_run_that_began_it(lab: Lab, one: Fleet, sent: signal.Signals) -> None:
    hardware.steer(lab, HOST, seconds=6, only="driver")
    child = begin(one)
    until(lambda: installs(lab))
    child.send_signal(sent)
    assert end(child).code == (130 if sent == signal.SIGINT else -9)
    meanwhile = prepare(one)
    assert meanwhile.code == 1
    meanwhile.line("error", HOST, "DRIVER-BUSY")
    until(lambda: not installs(lab))
    assert "Driver_Install_Status=complete" in one.ssh(HOST, "cat /etc/ascend_install.info")
    done = prepare(one)
    assert done.code == 0 and f"driver {DRIVER} (" not in done.text, done.text
    assert driver_of(one) == DRIVER


def test_a_power_cut_is_told_as_what_it_is_and_repaired(lab: Lab, one: Fleet) -> None:
    hardware.steer(lab, HOST, seconds=20, only="driver")
    child = begin(one)
    until(lambda: installs(lab))
    time.sleep(1)
    lab.power_off(HOST)
    cut = end(child)
    lab.boot(HOST)
    assert cut.code == 1
    cut.line("error", HOST, "driver", "PREPARE-LOST")
    hardware.steer(lab, HOST, seconds=0)
    # The host wrote the package's size before its content.
    one.ssh(HOST, f"size=$(stat -c %s {PACKAGE}); head -c $size /dev/zero >{PACKAGE}")
    assert prepare(one).code == 0
    assert driver_of(one) == DRIVER


def test_of_two_runs_at_once_one_goes_on_and_nothing_is_installed_twice(lab: Lab, one: Fleet) -> None:
    one.ssh(HOST, "rm -f /var/log/ascend_seclog/*")
    hardware.steer(lab, HOST, seconds=4, only="driver")
    ends = [end(child) for child in [begin(one), begin(one)]]
    assert sorted(its.code for its in ends) == [0, 1], [its.text for its in ends]
    (stopped,) = (its for its in ends if its.code)
    assert "[PREPARE-LOCKED]" in stopped.text or "[DRIVER-BUSY]" in stopped.text
    log = one.ssh(HOST, "cat /var/log/ascend_seclog/operation.log")
    assert log.count(f"npu-driver_{DRIVER}_linux-x86_64.run success") == 1, log
    assert driver_of(one) == DRIVER


def test_a_host_that_refuses_to_restart_is_told_at_once(lab: Lab, one: Fleet) -> None:
    hardware.steer(lab, HOST, reboot=True)
    one.ssh(
        HOST,
        "mv /usr/bin/systemctl /usr/bin/systemctl.real; ln -sf /bin/false /usr/sbin/reboot; printf '%s\\n' '#!/bin/sh' "
        '\'[ "$1" != reboot ] || { echo "Operation inhibited by upsd" >&2; exit 1; }\' '
        "'exec /usr/bin/systemctl.real \"$@\"' >/usr/bin/systemctl; chmod 755 /usr/bin/systemctl",
    )
    try:
        done = prepare(one)
    finally:
        one.ssh(HOST, "mv /usr/bin/systemctl.real /usr/bin/systemctl; ln -sf /bin/systemctl /usr/sbin/reboot")
    assert done.code == 1
    done.line("error", HOST, "Operation inhibited by upsd", "REBOOT-LATE")
    done.line(HOST, "failed", "steps done")
    again = prepare(one)
    assert again.code == 0, again.text
    again.line(HOST, "ready", "1 step")


def test_uploads_are_refused_where_they_would_fill_the_disk_or_go_elsewhere(lab: Lab, one: Fleet) -> None:
    one.ssh(HOST, "mount -t tmpfs -o size=32k,mode=1777 none /var/tmp")
    full = prepare(one)
    one.ssh(HOST, "umount /var/tmp; ln -s /etc /var/tmp/vllm-fleet-0")
    elsewhere = prepare(one)
    one.ssh(HOST, "rm /var/tmp/vllm-fleet-0")
    full.line("error", HOST, "/var/tmp has no room", "PREPARE-UPLOAD")
    elsewhere.line("error", HOST, "/var/tmp/vllm-fleet-0 is not a folder of the login's alone", "PREPARE-UPLOAD")
    assert one.ssh(HOST, "ls /etc | grep -c npu-driver || true") == "0"


def test_a_proxys_password_is_never_seen(lab: Lab, one: Fleet) -> None:
    """With all that pyinfra can be made to say. This Docker knows no proxies in its configuration, and says so."""
    one.ssh(
        HOST,
        f"""mkdir -p /etc/docker; echo '{{"proxies": {{"http-proxy": "http://me:{SECRET}@proxy:1"}}}}' """
        ">/etc/docker/daemon.json; chmod 600 /etc/docker/daemon.json",
    )
    runs = [prepare(one, *more, "-vvv", "--debug", verb="containers") for more in ((), ("--diff",), ("--dry",))]
    mode = one.ssh(HOST, "stat -c %a /etc/docker/daemon.json; rm -f /etc/docker/daemon.json*")
    coded = one.ssh(HOST, f"printf 'xx:{SECRET}@proxyx' | base64")[4:-4]
    for its in runs:
        assert SECRET not in its.text and coded not in its.text
        assert "eyJwcm94aWVz" not in its.text, "the file itself, in base64"
    runs[0].line("error", HOST, "http-proxy", "DOCKER-")
    assert mode == "600"
