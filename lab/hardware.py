"""Dressing: a booted lab host poses as an Atlas 800 A2, an Atlas 800 A3 or an HGX H100.

It gets the vendors' tools at the vendors' paths, the files that a container has mounted, device nodes, which a small
unit makes again at every boot as a driver would, and for `docker run --gpus` the hook that Docker looks for. The
files are written from outside, straight into the running host's file system; one ssh command does the rest.

A bare host has the hardware without its driver: no tool, no node. The stand-in packages of `lab.packages` bring them,
and the scenario's `install` says what happens when they are installed; `steer` changes that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.debian import MAINTAINER
from lab.errors import LabError
from lab.fleet import Lab
from lab.scenario import Scenario, for_hosts, merge, overlay
from lab.sim import layout
from lab.sim.layout import ASCEND_CODE, FABRIC_MANAGER, HARDWARE, Files

SIM = Path(__file__).parent / "sim"
SCENARIO = "/etc/vllm-lab/scenario.json"
INSTALLED = "/var/lib/vllm-lab/installed.json"
CUT = "/var/lib/vllm-lab/cut-done"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
# The firmware that the devices of a bare host have from the factory: older than any driver of today.
FACTORY_FIRMWARE = "7.1.0.4.220"
AT_ONCE = 8

NODES = """\
#!/bin/sh
# Device nodes as the scenario has them. 1 3 is the null device: a container can open and close it, no more.
rm -f /dev/davinci* /dev/devmm_svm /dev/hisi_hdc /dev/nvidia*
rm -rf /run/vllm-lab
test -e {driver} || exit 0  # no driver, no node
for node in {nodes}; do mknod -m 666 "$node" c 1 3; done
"""
UNIT = """\
[Unit]
Description=Device nodes of the lab's hardware
# Before the socket, which is before all else: the usual order after basic.target would be a cycle.
DefaultDependencies=no
After=local-fs.target
Before=docker.service docker.socket

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/vllm-lab-nodes

[Install]
WantedBy=sysinit.target
"""
FABRIC_UNIT = """\
[Unit]
Description=NVIDIA fabric manager (the lab's stand-in)

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
"""
# dockerd looks for the hook once, when it begins. One that began before the hook was there, by the second, is started
# again; that one is remembered, for it may have begun in the same second.
DOCKER_AGAIN = f"""\
if systemctl cat docker >/dev/null 2>&1; then
  systemctl start docker
  began=$(date -d "$(systemctl show -P ExecMainStartTimestamp docker)" +%s)
  if [ "$(stat -c %Y {HOOK})" -ge "$began" ] &&
    [ "$(cat /run/vllm-lab-docker 2>/dev/null)" != "$(systemctl show -P InvocationID docker)" ]; then
    systemctl restart docker
    systemctl show -P InvocationID docker > /run/vllm-lab-docker
  fi
fi
"""
# Everything that a driver's packages leave on a host, Debian's and the vendors'. Users stay.
WIPE = f"""\
standins=$(dpkg-query -W -f '${{Package}} ${{Maintainer}}\\n' | sed -n 's/ {MAINTAINER} .*//p')
[ -z "$standins" ] || dpkg --purge --force-all $standins >/dev/null
rm -rf {layout.ASCEND} /usr/local/dcmi /var/log/ascend_seclog /run/vllm-lab-units
rm -f {layout.INSTALL_INFO} /etc/hccn.conf /var/lib/vllm-lab/hccn.json {layout.HCCN_LINK} /dev/char/195:*
rm -f {" ".join([*layout.ASCEND_TOOLS, *layout.NVIDIA_TOOLS, *FABRIC_MANAGER])} {HOOK}
rm -f /etc/systemd/system/nvidia-fabricmanager.service
"""


def dress_fleet(
    lab: Lab, hosts: Sequence[str], family: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Scenario]:
    """Dress the named hosts as machines of one family in one fabric, all at once, and return their scenarios.

    `changes` is by host name, "all" for every host: `{"lab-1": {"devices": {"3": {"link": "DOWN"}}}}`.
    """
    made = for_hosts(family, list(hosts), changes)
    dress_all(lab, made)
    return made


def bare(
    lab: Lab, hosts: Sequence[str], family: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Scenario]:
    """Leave the named hosts with the hardware of a family and no driver, all at once, and return their scenarios.

    What an earlier dressing or stand-in packages left goes. The NPUs' firmware is an old one from the factory, unless
    `changes` gives `firmware_version`; versions of drivers come from the packages.
    """
    if family != "nvidia":
        given = dict(changes or {})
        given["all"] = merge({"firmware_version": FACTORY_FIRMWARE, "hccn_conf": False}, given.get("all", {}))
        changes = given
    made = for_hosts(family, list(hosts), changes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda host: dress(lab, host, made[host], bare=True), made))
    return made


def dress_all(lab: Lab, scenarios: Mapping[str, Scenario]) -> None:
    """Dress each host by its scenario, all at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda host: dress(lab, host, scenarios[host]), scenarios))


def dress(lab: Lab, host: str, scenario: Scenario, bare: bool = False) -> None:
    """Let a running host pose as the scenario says. Again with another scenario, it shows that one; what set commands
    and packages changed is forgotten. A host keeps its hardware through reboots. Raises LabError.
    """
    root = root_of(lab, host)
    if bare:
        done = lab.ssh(host, WIPE, timeout=60)
        if done.returncode:
            raise LabError(f"host {host}: taking its driver off failed: {done.stderr.strip() or done.stdout.strip()}")
    for path, (text, mode) in files(scenario, bare).items():
        put(root, path, text, mode)
    for path in [*absent(scenario), *forgotten(bare)]:
        inside(root, path).unlink(missing_ok=True)
    done = lab.ssh(host, activation(scenario, bare), timeout=60)
    if done.returncode:
        raise LabError(f"host {host}: dressing it failed: {done.stderr.strip() or done.stdout.strip()}")


def steer(lab: Lab, host: str, **install: Any) -> None:
    """Change what happens when a package is installed, `steer(lab, "lab-0", busy=True)`; all else stays as it is.

    What is not named keeps its value. A power cut that has happened may happen again. Raises LabError.
    """
    root = root_of(lab, host)
    scenario = json.loads(inside(root, SCENARIO).read_text())
    overlay(scenario["install"], install, "install.")
    text = json.dumps(scenario, indent=1) + "\n"
    for path in (SCENARIO, f"{ASCEND_CODE}/scenario.json", f"{HARDWARE}/scenario.json"):
        if inside(root, path).exists():
            put(root, path, text, 0o644)
    inside(root, CUT).unlink(missing_ok=True)


def root_of(lab: Lab, host: str) -> Path:
    """A host's file system seen from here."""
    known = {entry.name: entry for entry in lab.hosts}
    if host not in known:
        raise LabError(f"lab {lab.name} has no host {host!r}")
    return known[host].root


def files(scenario: Scenario, bare: bool = False) -> Files:
    """Every file of a dressed host, as path -> (text, mode)."""
    made = machine_files(scenario)
    if bare:
        none = {"old": None, "new": None, "boot": ""}
        return made | {INSTALLED: (json.dumps({"driver": none}) + "\n", 0o644)}
    made |= layout.launchers(tools(scenario), code_of(scenario))
    return made | (ascend_files(scenario) if scenario["family"] != "nvidia" else nvidia_files(scenario))


def machine_files(scenario: Scenario) -> Files:
    """What makes the machine, with or without a driver."""
    text = json.dumps(scenario, indent=1) + "\n"
    driver = next(iter(layout.NVIDIA_TOOLS)) if scenario["family"] == "nvidia" else layout.DRIVER_INFO
    script = NODES.format(driver=driver, nodes=" ".join(nodes(scenario)))
    return {
        **code_files(HARDWARE),
        f"{HARDWARE}/install": (layout.INSTALLER, 0o755),
        SCENARIO: (text, 0o644),
        f"{HARDWARE}/scenario.json": (text, 0o644),
        "/usr/local/lib/vllm-lab-nodes": (script, 0o755),
        "/etc/systemd/system/vllm-lab-nodes.service": (UNIT, 0o644),
    }


def code_files(code: str) -> Files:
    """The simulators, below a folder of a host."""
    made = {f"{code}/lab/sim/{source.name}": (source.read_text(), 0o644) for source in sorted(SIM.glob("*.py"))}
    return made | {f"{code}/lab/__init__.py": ("", 0o644)}


def code_of(scenario: Scenario) -> str:
    """Where the tools of a machine find the simulators."""
    return layout.NVIDIA_CODE if scenario["family"] == "nvidia" else ASCEND_CODE


def tools(scenario: Scenario) -> dict[str, tuple[str, str]]:
    """The tools of the machine: path -> module and function."""
    if scenario["family"] != "nvidia":
        return layout.ASCEND_TOOLS
    return layout.NVIDIA_TOOLS | (FABRIC_MANAGER if scenario["fabric_manager_version"] else {})


def absent(scenario: Scenario) -> list[str]:
    """Files that an earlier dressing may have left."""
    if scenario["family"] == "nvidia":
        return [] if scenario["fabric_manager_version"] else list(FABRIC_MANAGER)
    return ["/var/lib/vllm-lab/hccn.json", *([] if scenario["hccn_conf"] else ["/etc/hccn.conf"])]


def forgotten(bare: bool) -> list[str]:
    """What packages noted down, which counts no more once a host is dressed."""
    return [CUT, *([] if bare else [INSTALLED, f"{ASCEND_CODE}/installed.json"])]


def ascend_files(scenario: Scenario) -> Files:
    """What the driver's installer leaves on a host."""
    info = layout.install_info(layout.installed_by(status=scenario["install_status"]))
    made: Files = {
        **code_files(ASCEND_CODE),
        f"{ASCEND_CODE}/scenario.json": (json.dumps(scenario, indent=1) + "\n", 0o644),
        **layout.driver_libraries(scenario["driver_version"]),
        **layout.firmware(scenario["firmware_version"]),
        layout.INSTALL_INFO: (info, 0o644),
    }
    if scenario["hccn_conf"]:
        made["/etc/hccn.conf"] = (hccn_conf(scenario["devices"]), 0o644)
    return made


def hccn_conf(devices: Mapping[str, Scenario]) -> str:
    """The settings of all ports, as hccn_tool keeps them."""
    keys = {"address": "ip", "netmask": "netmask", "gateway": "gateway", "netdetect": "netdetect"}
    return "".join(
        f"{key}_{number}={device[name]}\n"
        for number, device in devices.items()
        for key, name in keys.items()
        if device["present"] and device[name]
    )


def nvidia_files(scenario: Scenario) -> Files:
    """The container toolkit's hook, which has nothing to do here, and the fabric manager's unit."""
    made = {HOOK: ("#!/bin/sh\nexit 0\n", 0o755)}
    if scenario["fabric_manager_version"]:
        made["/etc/systemd/system/nvidia-fabricmanager.service"] = (FABRIC_UNIT, 0o644)
    return made


def nodes(scenario: Scenario) -> list[str]:
    """The device nodes of a host: of the devices that are there, and those that control them."""
    from fleet.platforms import PLATFORMS

    present = [int(number) for number, device in scenario["devices"].items() if device["present"]]
    return list(PLATFORMS[scenario["family"]].devices(present))


def activation(scenario: Scenario, bare: bool = False) -> str:
    """The shell text that makes the files count."""
    lines = ["set -e", "systemctl daemon-reload", "systemctl enable -q vllm-lab-nodes"]
    lines.append("systemctl restart vllm-lab-nodes")
    if bare:
        return "\n".join(lines)
    if scenario["family"] == "nvidia":
        if scenario["fabric_manager_version"]:
            lines.append(f"systemctl {'start' if scenario['fabric_manager_active'] else 'stop'} nvidia-fabricmanager")
        lines.append(DOCKER_AGAIN)
    else:
        lines.append(f"ln -sf /usr/local/Ascend/driver/tools/hccn_tool {layout.HCCN_LINK}")
    return "\n".join(lines)


def put(root: Path, path: str, text: str, mode: int) -> None:
    """Write a file of a host unless it says that already; in place, for containers have single files mounted."""
    target = inside(root, path)
    if target.is_file() and target.read_text() == text and target.stat().st_mode & 0o777 == mode:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def inside(root: Path, path: str) -> Path:
    """A host's path seen from here. A link that leads out of the host's file system is refused, not followed."""
    target = root / path.lstrip("/")
    if not target.resolve().is_relative_to(root.resolve()):
        raise LabError(f"{path} in {root} is a link that leads out of it")
    return target
