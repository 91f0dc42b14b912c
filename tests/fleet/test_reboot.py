"""A host that reboots comes back into service alone, its weights' mount first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fleet.conftest import NAME, Fleet, recipe, take_off
from tests.fleet.test_serve_faults import serves

pytestmark = pytest.mark.lab

A, B = f"{NAME}-0", f"{NAME}-1"
# The share comes six seconds after the network, as one from a storage that is slow to answer.
MOUNT = """\
[Unit]
After=slow-storage.service
Requires=slow-storage.service
[Mount]
What=/opt/models
Where=/mnt/late
Type=none
Options=bind
[Install]
WantedBy=multi-user.target
"""
SLOW = """\
[Service]
Type=oneshot
ExecStart=/bin/sleep 6
RemainAfterExit=yes
"""


@pytest.fixture
def late(two: Fleet) -> Iterator[Fleet]:
    """Host A has its weights on a mount that comes late."""
    two.ssh(
        A,
        f"mkdir -p /mnt/late; printf '%s' '{MOUNT}' >/etc/systemd/system/mnt-late.mount; "
        f"printf '%s' '{SLOW}' >/etc/systemd/system/slow-storage.service; systemctl daemon-reload; "
        "systemctl enable -q mnt-late.mount; systemctl start mnt-late.mount",
    )
    two.hosts[A] = {"weights_dir": "/mnt/late"}
    yield two
    take_off(two.lab, (A, B), "systemctl disable -q --now mnt-late.mount")
    two.lab.ssh(
        A, "rm -f /etc/systemd/system/mnt-late.mount /etc/systemd/system/slow-storage.service; systemctl daemon-reload"
    )


def test_a_reboot_waits_for_the_weights_and_ends_in_service(late: Fleet) -> None:
    assert late.pyinfra("-y").code == 0
    late.ssh(A, "touch /run/before-the-reboot")
    late.lab.ssh(A, "systemctl reboot")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if late.lab.ssh(A, "test ! -e /run/before-the-reboot && systemctl is-active -q vllm-serve-0").returncode == 0:
            break
        time.sleep(1)
    deadline = time.monotonic() + 30
    while not serves(late) and time.monotonic() < deadline:
        time.sleep(1)
    assert serves(late), "the front door and its replicas, without a run"
    mounted = int(late.ssh(A, "systemctl show -p ActiveEnterTimestampMonotonic --value mnt-late.mount"))
    began = int(late.ssh(A, "systemctl show -p ExecMainStartTimestampMonotonic --value vllm-serve-0"))
    booted = int(late.ssh(A, "systemctl show -p UserspaceTimestampMonotonic --value"))
    assert mounted - booted > 5_000_000, "the mount was late"
    assert began > mounted, "the engine waited for it"
    done = late.pyinfra("-y")
    assert done.code == 0 and done.line("Grand total").split()[3] == "-", "a run after it finds nothing to do"


def test_both_members_of_an_instance_reboot_at_once(two: Fleet) -> None:
    recipe(two.folder, data_parallel_size=2)
    assert two.pyinfra("-y").code == 0
    for host in (A, B):
        two.lab.power_off(host)
    two.lab.boot(A)
    time.sleep(8)  # its member is not there: it waits, and uses up none of its tries
    said = two.ssh(A, "journalctl -b -u vllm-serve-0 -o cat --no-pager | grep waiting | tail -n 1")
    assert f"serve-0@{B}" in said
    assert two.ssh(A, "systemctl show -p NRestarts --value vllm-serve-0") == "0"
    two.lab.boot(B)
    deadline = time.monotonic() + 60
    while not serves(two) and time.monotonic() < deadline:
        time.sleep(1)
    assert serves(two)
    take_off(two.lab, (A, B))
