"""Dressing: a booted lab host poses as an Atlas 800 A2, an Atlas 800 A3 or an HGX H100.

It gets the vendors' tools at the vendors' paths, the files that a container has mounted, device nodes, which a small
unit makes again at every boot as a driver would, and for `docker run --gpus` the hook that Docker looks for. The
files are written from outside, straight into the running host's file system; one ssh command does the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.fleet import Lab
from lab.scenario import Scenario, for_hosts

SIM = Path(__file__).parent / "sim"
# In the folder that containers have mounted from a real host, so that the tools work there as the real ones do.
ASCEND_CODE = "/usr/local/Ascend/driver/lib64/vllm_lab"
NVIDIA_CODE = "/usr/local/lib/vllm_lab"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
AT_ONCE = 8

LAUNCHER = """\
#!/usr/bin/python3 -IS
# The lab's stand-in: it plays the scenario in /etc/vllm-lab/scenario.json.
import sys

sys.path.insert(0, "{code}")
try:
    from lab.sim.{module} import {function}
except ImportError:
    print("{tool}: error while loading shared libraries: {code}: not mounted here", file=sys.stderr)
    sys.exit(127)
sys.exit({function}(sys.argv[1:]))
"""
ASCEND_TOOLS = {
    "/usr/local/bin/npu-smi": ("npu_smi", "main"),
    "/usr/local/Ascend/driver/tools/hccn_tool": ("hccn_tool", "main"),
}
NVIDIA_TOOLS = {"/usr/bin/nvidia-smi": ("nvidia_smi", "main")}
FABRIC_MANAGER = {"/usr/bin/nv-fabricmanager": ("nvidia_smi", "fabric_manager")}

NODES = """\
#!/bin/sh
# Device nodes as the scenario has them. 1 3 is the null device: a container can open and close it, no more.
rm -f /dev/davinci* /dev/devmm_svm /dev/hisi_hdc /dev/nvidia*
rm -rf /run/vllm-lab
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
INSTALL_INFO = """\
UserName=HwHiAiUser
UserGroup=HwHiAiUser
Driver_Install_Type=full
Driver_Install_Path_Param=/usr/local/Ascend
Driver_Install_For_All=yes
Driver_Install_Status={status}
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


def dress_all(lab: Lab, scenarios: Mapping[str, Scenario]) -> None:
    """Dress each host by its scenario, all at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda host: dress(lab, host, scenarios[host]), scenarios))


def dress(lab: Lab, host: str, scenario: Scenario) -> None:
    """Let a running host pose as the scenario says. Again with another scenario, it shows that one; what set commands
    changed is forgotten. A host keeps its hardware through reboots. Raises LabError.
    """
    known = {entry.name: entry for entry in lab.hosts}
    if host not in known:
        raise LabError(f"lab {lab.name} has no host {host!r}")
    for path, (text, mode) in files(scenario).items():
        put(known[host].root, path, text, mode)
    for path in absent(scenario):
        inside(known[host].root, path).unlink(missing_ok=True)
    done = lab.ssh(host, activation(scenario), timeout=60)
    if done.returncode:
        raise LabError(f"host {host}: dressing it failed: {done.stderr.strip() or done.stdout.strip()}")


def files(scenario: Scenario) -> dict[str, tuple[str, int]]:
    """Every file of a dressed host, as path -> (text, mode)."""
    ascend = scenario["family"] != "nvidia"
    code = ASCEND_CODE if ascend else NVIDIA_CODE
    text = json.dumps(scenario, indent=1) + "\n"
    made = {f"{code}/lab/sim/{source.name}": (source.read_text(), 0o644) for source in sorted(SIM.glob("*.py"))}
    made[f"{code}/lab/__init__.py"] = ("", 0o644)
    made |= {"/etc/vllm-lab/scenario.json": (text, 0o644), f"{code}/scenario.json": (text, 0o644)}
    made["/usr/local/lib/vllm-lab-nodes"] = (NODES.format(nodes=" ".join(nodes(scenario))), 0o755)
    made["/etc/systemd/system/vllm-lab-nodes.service"] = (UNIT, 0o644)
    for path, (module, function) in tools(scenario).items():
        tool = Path(path).name
        made[path] = (LAUNCHER.format(code=code, module=module, function=function, tool=tool), 0o755)
    return made | (ascend_files(scenario) if ascend else nvidia_files(scenario))


def tools(scenario: Scenario) -> dict[str, tuple[str, str]]:
    """The tools of the machine: path -> module and function."""
    if scenario["family"] != "nvidia":
        return ASCEND_TOOLS
    return NVIDIA_TOOLS | (FABRIC_MANAGER if scenario["fabric_manager_version"] else {})


def absent(scenario: Scenario) -> list[str]:
    """Files that an earlier dressing may have left."""
    if scenario["family"] == "nvidia":
        return [] if scenario["fabric_manager_version"] else list(FABRIC_MANAGER)
    return ["/var/lib/vllm-lab/hccn.json", *([] if scenario["hccn_conf"] else ["/etc/hccn.conf"])]


def ascend_files(scenario: Scenario) -> dict[str, tuple[str, int]]:
    """What the driver's installer leaves on a host."""
    version = scenario["driver_version"]
    made = {
        "/usr/local/Ascend/driver/version.info": f"Version={version}\nascendhal_version=7.35.23\n",
        "/usr/local/Ascend/firmware/version.info": f"Version={scenario['firmware_version']}\n",
        "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "the lab's stand-in\n",
        "/usr/local/dcmi/libdcmi.so": "the lab's stand-in\n",
        "/etc/ascend_install.info": INSTALL_INFO.format(status=scenario["install_status"]),
    }
    if scenario["hccn_conf"]:
        made["/etc/hccn.conf"] = hccn_conf(scenario["devices"])
    return {path: (text, 0o644) for path, text in made.items()}


def hccn_conf(devices: Mapping[str, Scenario]) -> str:
    """The settings of all ports, as hccn_tool keeps them."""
    keys = {"address": "ip", "netmask": "netmask", "gateway": "gateway", "netdetect": "netdetect"}
    return "".join(
        f"{key}_{number}={device[name]}\n"
        for number, device in devices.items()
        for key, name in keys.items()
        if device["present"] and device[name]
    )


def nvidia_files(scenario: Scenario) -> dict[str, tuple[str, int]]:
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


def activation(scenario: Scenario) -> str:
    """The shell text that makes the files count."""
    lines = ["set -e", "systemctl daemon-reload", "systemctl enable -q vllm-lab-nodes"]
    lines.append("systemctl restart vllm-lab-nodes")
    if scenario["family"] == "nvidia":
        if scenario["fabric_manager_version"]:
            lines.append(f"systemctl {'start' if scenario['fabric_manager_active'] else 'stop'} nvidia-fabricmanager")
        lines.append(DOCKER_AGAIN)
    else:
        lines.append("ln -sf /usr/local/Ascend/driver/tools/hccn_tool /usr/bin/hccn_tool")
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
