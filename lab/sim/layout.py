"""Where a driver's files lie on a host, and what stands in them: for dressing, and for the stand-in packages."""

from __future__ import annotations

# The machine itself, whatever is installed on it: the simulators' code, out of everybody's PATH.
HARDWARE = "/usr/local/lib/vllm_lab"
# In the folder that containers have mounted from a real host, so that the tools work there as the real ones do.
ASCEND_CODE = "/usr/local/Ascend/driver/lib64/vllm_lab"
NVIDIA_CODE = HARDWARE

ASCEND = "/usr/local/Ascend"
INSTALL_INFO = "/etc/ascend_install.info"
DRIVER_INFO = f"{ASCEND}/driver/version.info"
FIRMWARE_INFO = f"{ASCEND}/firmware/version.info"

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
# What the stand-in packages run. Where it is not, no lab host is, and they change nothing.
INSTALLER = """\
#!/usr/bin/python3 -IS
# What the lab's stand-in packages run, as `install KIND [PARAMETERS]`.
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab.sim.installing import main

sys.exit(main(sys.argv[1:]))
"""
ASCEND_TOOLS = {
    "/usr/local/bin/npu-smi": ("npu_smi", "main"),
    f"{ASCEND}/driver/tools/hccn_tool": ("hccn_tool", "main"),
}
HCCN_LINK = "/usr/bin/hccn_tool"
NVIDIA_TOOLS = {"/usr/bin/nvidia-smi": ("nvidia_smi", "main")}
FABRIC_MANAGER = {"/usr/bin/nv-fabricmanager": ("nvidia_smi", "fabric_manager")}

Files = dict[str, tuple[str, int]]  # path -> text, mode


def launchers(tools: dict[str, tuple[str, str]], code: str) -> Files:
    """The programs that start simulators."""
    return {
        path: (LAUNCHER.format(code=code, module=module, function=function, tool=path.rpartition("/")[2]), 0o755)
        for path, (module, function) in tools.items()
    }


def driver_libraries(version: str) -> Files:
    """The first half of an NPU driver: its version and libraries."""
    return {
        DRIVER_INFO: (f"Version={version}\nascendhal_version=7.35.23\n", 0o644),
        f"{ASCEND}/driver/lib64/driver/libascend_hal.so": ("the lab's stand-in\n", 0o644),
        "/usr/local/dcmi/libdcmi.so": ("the lab's stand-in\n", 0o644),
    }


def firmware(version: str) -> Files:
    return {FIRMWARE_INFO: (f"Version={version}\n", 0o644)}


def install_info(values: dict[str, str]) -> str:
    """The text of /etc/ascend_install.info."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def installed_by(user: str = "HwHiAiUser", group: str = "HwHiAiUser", status: str = "complete") -> dict[str, str]:
    """What the driver's installer notes down."""
    return {
        "UserName": user,
        "UserGroup": group,
        "Driver_Install_Type": "full",
        "Driver_Install_Path_Param": ASCEND,
        "Driver_Install_For_All": "yes",
        "Driver_Install_Status": status,
    }
