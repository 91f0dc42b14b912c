"""Two hosts of a lab beside the user's own: booted, entered, unplugged, and cleaned up after a killed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cgroups import path_of
from lab.errors import LabError
from lab.fleet import Lab
from lab.mounts import mounts_below
from lab.network import read_interfaces
from lab.processes import is_alive, processes_of
from lab.requirements import problems

pytestmark = pytest.mark.lab

NAME, SUBNET = "labtest", "10.231.78.0/24"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if found := problems():
        if os.environ.get("CI"):
            pytest.fail(found[0])
        pytest.skip(found[0])
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("lab"))
    yield made
    made.down()


@pytest.fixture
def two(lab: Lab) -> Lab:
    lab.up(2)
    return lab


def nothing_left(lab: Lab) -> list[object]:
    """Everything of the lab that is still on the machine."""
    groups = [path_of(f"{NAME}-{index}") for index in range(2)]
    return [
        *mounts_below(lab.directory),
        *processes_of(lab.directory, "systemd-nspawn"),
        *(interface.name for interface in read_interfaces() if interface.name == lab.plan.bridge),
        *(group for group in groups if group and group.exists()),
        *(file for file in lab.directory.glob("*")),
    ]


def test_hosts_answer_ssh_with_strict_host_keys(two: Lab) -> None:
    for host in two.hosts:
        done = two.ssh(host.name, "hostname && systemctl is-system-running --wait")
        assert (done.returncode, done.stdout.split()) == (0, [host.name, "running"]), done.stderr
    names = [(host.name, host.address) for host in two.hosts]
    assert names == [("labtest-0", "10.231.78.10"), ("labtest-1", "10.231.78.11")]
    assert [status.state for status in two.status()] == ["up", "up"]


def test_a_host_with_another_key_is_refused(two: Lab, tmp_path: Path) -> None:
    lines = (two.directory / "known_hosts").read_text().splitlines()
    swapped = [f"{a.split()[0]} {' '.join(b.split()[1:])}\n" for a, b in zip(lines, reversed(lines), strict=True)]
    (tmp_path / "known_hosts").write_text("".join(swapped))
    command = [*two.ssh_command(), "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "labtest-0", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_pyinfra_reaches_all_hosts_by_the_inventory(two: Lab, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyinfra", "-y", str(two.inventory), "exec", "--", "touch /root/was-here"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all((host.root / "root/was-here").exists() for host in two.hosts)


def test_accounts_with_and_without_sudo(two: Lab) -> None:
    assert two.ssh("labtest-0", "sudo -n id -un", user="deployer").stdout == "root\n"
    assert two.ssh("labtest-0", "id -un", user="ops").stdout == "ops\n"
    assert two.ssh("labtest-0", "sudo -n id -un", user="ops").returncode != 0


def test_hosts_reach_each_other_and_are_not_routed_anywhere(two: Lab) -> None:
    assert two.ssh("labtest-0", "ping -c1 -W2 10.231.78.11").returncode == 0
    assert two.ssh("labtest-0", "head -c 4 < /dev/tcp/10.231.78.11/22", timeout=10).stdout == "SSH-"
    assert Path(f"/proc/sys/net/ipv4/conf/{two.plan.bridge}/forwarding").read_text() == "0\n"


def test_services_of_two_hosts_do_not_mix(two: Lab) -> None:
    # With one cgroup for both, each systemd would count the other's processes as its own and never see them end.
    for host in two.hosts:
        assert two.ssh(host.name, "systemd-run --quiet --unit nap sleep 300").returncode == 0
    assert two.ssh("labtest-0", "systemctl stop nap", timeout=20).returncode == 0
    assert two.ssh("labtest-1", "systemctl is-active nap").stdout == "active\n"
    assert two.ssh("labtest-1", "systemctl stop nap", timeout=20).returncode == 0


def test_up_again_changes_nothing(two: Lab) -> None:
    before = two.hosts
    assert two.up(2) == before


def test_pulling_the_plug_keeps_what_was_written_and_a_reset_does_not(two: Lab) -> None:
    two.ssh("labtest-1", "echo kept > /root/note && sync")
    pid = two.hosts[1].pid
    two.power_off("labtest-1")
    assert not is_alive(pid)
    assert [status.state for status in two.status()] == ["up", "off"]
    assert two.boot("labtest-1").pid != pid
    assert two.ssh("labtest-1", "cat /root/note").stdout == "kept\n"
    two.reset("labtest-1")
    assert two.ssh("labtest-1", "cat /root/note").returncode == 1


def test_up_boots_hosts_that_were_turned_off_with_what_they_had_written(two: Lab) -> None:
    two.ssh("labtest-0", "echo kept > /root/note")
    for host in two.hosts:
        two.power_off(host.name)
    two.up(2)
    assert two.ssh("labtest-0", "cat /root/note").stdout == "kept\n"


def test_a_reboot_comes_back(two: Lab) -> None:
    before = two.ssh(
        "labtest-1", "cat /proc/sys/kernel/random/boot_id; uptime -s; systemctl show -p UserspaceTimestamp"
    )
    two.ssh("labtest-1", "systemctl reboot")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = two.ssh(
            "labtest-1", "cat /proc/sys/kernel/random/boot_id; uptime -s; systemctl show -p UserspaceTimestamp"
        )
        if now.returncode == 0 and now.stdout != before.stdout:
            return
        time.sleep(0.2)
    pytest.fail("labtest-1 did not come back within 60 s")


def test_a_host_that_died_is_seen_and_booted_by_the_next_up(two: Lab) -> None:
    os.kill(two.hosts[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while two.status()[0].state != "dead" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [status.state for status in two.status()] == ["dead", "up"]
    two.up(2)
    assert [status.state for status in two.status()] == ["up", "up"]


def test_an_unknown_host_is_one_line(two: Lab) -> None:
    with pytest.raises(LabError, match="no host 'nobody'; its hosts: labtest-0, labtest-1"):
        two.ssh("nobody", "true")


def test_another_lab_cannot_take_the_same_subnet(two: Lab, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"subnet 10\.231\.78\.0/24 overlaps"):
        Lab("labtest2", SUBNET, tmp_path / "other").up(1)
    assert list((tmp_path / "other").glob("*")) == []


def has_bridge(lab: Lab) -> bool:
    return any(interface.name == lab.plan.bridge for interface in read_interfaces())


def has_mount(lab: Lab) -> bool:
    return bool(mounts_below(lab.directory))


def has_host(lab: Lab) -> bool:
    return bool(processes_of(lab.directory, "systemd-nspawn"))


@pytest.mark.parametrize("moment", [has_bridge, has_mount, has_host])
def test_a_run_killed_half_way_is_cleaned_by_down(lab: Lab, moment: Callable[[Lab], bool]) -> None:
    lab.down()
    arguments = f"{NAME!r}, {SUBNET!r}, Path({str(lab.directory)!r})"
    program = f"from pathlib import Path; from lab.fleet import Lab; Lab({arguments}).up(2)"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as child:
        deadline = time.monotonic() + 30
        while not moment(lab) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        assert child.poll() is None, "up ended before it could be killed"
        child.kill()
    assert moment(lab)
    lab.down()
    assert nothing_left(lab) == []


def test_down_removes_what_a_run_had_not_renamed_yet(lab: Lab) -> None:
    lab.down()
    lab.directory.mkdir(exist_ok=True)
    (lab.directory / ".state.json.tmp-1").write_text("{")
    lab.down()
    assert nothing_left(lab) == []


def test_down_of_a_running_lab_leaves_nothing(two: Lab) -> None:
    two.down()
    assert nothing_left(two) == []
    assert two.hosts == []
