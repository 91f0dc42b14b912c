"""The .run packages of an NPU driver and of its firmware: options, refusals, end states and files of the vendor's.

The texts are those of the vendor's published installers and of transcripts; where it refuses firmware without a
driver, or an upgrade of nothing, they are ours.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.sim import layout, store
from lab.sim.installing import (
    Refused,
    Steering,
    alone,
    lay,
    link,
    make_nodes,
    note,
    parse,
    read_info,
    write_installed,
    wrong_arch,
)
from lab.sim.store import ROOT, Document

LOG = ROOT / "var/log/ascend_seclog/ascend_install.log"
OPERATIONS = ROOT / "var/log/ascend_seclog/operation.log"
DEFAULT_USER = "HwHiAiUser"
DRIVER_MODES = ("--full", "--run", "--devel", "--docker", "--upgrade", "--uninstall", "--version", "--check")
FIRMWARE_MODES = ("--full", "--upgrade", "--uninstall", "--version", "--check")
MODIFIERS = (
    *("--install-for-all", "--install-path", "--install-username", "--install-usergroup"),
    *("--quiet", "--force"),
)
GREEN, RED, YELLOW, OFF = "\033[32m", "\033[31m", "\033[33m", "\033[0m"
AT_ONCE = "The new version takes effect immediately."
TRY_HELP = "Try './xxx.run --help' for more information."


def main(package: Document, arguments: Sequence[str]) -> int:
    """0 in all four end states; 1 when it was refused or failed."""
    return Run(package).main(arguments)


class Run:
    """One call of a package."""

    def __init__(self, package: Document) -> None:
        self.kind, self.version = str(package["kind"]), str(package["version"])
        self.package = package
        self.title = self.kind.capitalize()
        self.steering = Steering(self.kind)
        self.mode = ""
        self.options: dict[str, str] = {}

    def main(self, arguments: Sequence[str]) -> int:
        try:
            self.read(arguments)
            if self.mode == "--version":
                print(f"Version: {self.version} (the lab's stand-in of {self.package['name']})")
                return 0
            if self.mode == "--check":
                return 0  # the archive was verified before this began
            return self.work(arguments)
        except Refused as reason:
            self.refused(reason)
            return reason.code

    def refused(self, reason: Refused) -> None:
        self.say(str(reason) if str(reason).startswith("[") else f"[ERROR]{reason}")

    def read(self, arguments: Sequence[str]) -> None:
        """The options, by the vendor's rules."""
        try:
            modes = DRIVER_MODES if self.kind == "driver" else FIRMWARE_MODES
            self.mode, self.options = parse(arguments, modes, MODIFIERS)
            for first, second in (("--install-path", "--upgrade"), ("--install-for-all", "--docker")):
                if first in self.options and self.mode == second:
                    raise ValueError(f"Unrecognized parameters: {first} is not for {second}")
        except ValueError as reason:
            raise Refused(f"ERR_NO:0x0004;ERR_DES: {reason}. {TRY_HELP}") from None
        if not self.options.get("--install-path", "/").startswith(("/", "./", "~/")):
            raise Refused("ERR_NO:0x0003;ERR_DES:install-path input error, install failed")

    def work(self, arguments: Sequence[str]) -> int:
        if os.geteuid() != 0:
            raise Refused(
                "ERR_NO:0x0093;ERR_DES:do not have root permission, operation failed, please use root permission!"
            )
        with alone() as only_one:
            if not only_one:
                raise Refused(
                    "ERR_NO:0x0094;ERR_DES:There is already a process being executed,"
                    "please do not execute multiple tasks at the same time"
                )
            self.begin()
            try:
                self.remove() if self.mode == "--uninstall" else self.install()
            except Refused as reason:
                self.refused(reason)
                self.end("failed", arguments)
                return reason.code
            self.end("success", arguments)
        return 0

    # What is said

    def say(self, text: str) -> None:
        line = f"[{self.title}] [{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}"
        print(line, flush=True)
        self.log(line)

    def log(self, line: str) -> None:
        if os.access(LOG.parent, os.W_OK):
            with LOG.open("a") as file:
                file.write(f"{line}\n")

    def begin(self) -> None:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"[INFO]Start time: {time.strftime('%Y-%m-%d %H:%M:%S')}")
        self.say(f"[INFO]LogFile: {Path('/') / LOG.relative_to(ROOT)}")
        self.say(f"[INFO]OperationLogFile: {Path('/') / OPERATIONS.relative_to(ROOT)}")
        self.say("[WARNING]Do not power off or restart the system during the installation/upgrade")

    def end(self, result: str, arguments: Sequence[str]) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        operation = {"--upgrade": "Upgrade", "--uninstall": "Uninstall"}.get(self.mode, "Install")
        with OPERATIONS.open("a") as file:
            file.write(f"{operation} MAJOR root {now} 127.0.0.1 {self.package['name']} {result} ")
            file.write(f"cmdlist={' '.join(arguments)}.\n")
        self.say(f"[INFO]End time: {now}")

    @property
    def verb(self) -> str:
        return {"--upgrade": "upgraded", "--uninstall": "uninstalled"}.get(self.mode, "installed")

    @property
    def failed(self) -> str:
        verb = "upgrade" if self.mode == "--upgrade" else "install"
        return f"[INFO]Failed to {verb} {self.kind} package, please retry after uninstall and reboot!"

    # What is refused

    def refuse(self) -> None:
        """Whether this package may be installed on this host, with these options."""
        one, arch = self.steering.scenario, self.package["arch"]
        if self.package["family"] != one["family"]:
            raise Refused("The current installation package and environment is not match, please check.")
        if arch is not None and arch != self.steering.arch:
            raise Refused(wrong_arch(str(arch), self.steering.arch))
        self.check_user()
        installed = read_info(layout.DRIVER_INFO)
        if self.kind == "firmware" and not installed:
            raise Refused("The driver is not installed, please install the driver before the firmware")
        if self.kind == "driver" and self.mode == "--upgrade" and not installed and not self.was_cut():
            raise Refused("ERR_NO:0x0080;ERR_DES:The driver is not installed, please use --full")
        if self.kind == "driver":
            self.check_tools()
        present = installed if self.kind == "driver" else read_info(layout.FIRMWARE_INFO)
        base = present.get("Version")
        self.say(f"[INFO]base version is {base}." if base else "[INFO]base version was destroyed or not exist.")
        if base and self.mode != "--upgrade" and "--quiet" not in self.options:
            self.ask(base)

    def was_cut(self) -> bool:
        return read_info(layout.INSTALL_INFO).get("Driver_Install_Status") == "uncomplete"

    def check_user(self) -> None:
        info = read_info(layout.INSTALL_INFO)
        user = self.options.get("--install-username", info.get("UserName", DEFAULT_USER))
        group = self.options.get("--install-usergroup", info.get("UserGroup", DEFAULT_USER))
        if info and (user, group) != (info.get("UserName", user), info.get("UserGroup", group)):
            raise Refused(
                "ERR_NO:0x0095;ERR_DES:The user and group are not same with last installation,"
                "do not support overwriting installation"
            )
        users, groups = accounts("passwd"), accounts("group")
        if user not in users:
            raise Refused(f"ERR_NO:0x0091;ERR_DES:{user} not exists! Please add {user}")
        if group not in groups:
            raise Refused(f"ERR_NO:0x0091;ERR_DES:{group} group not exists! Please add {group} group")
        if users[user][3] != groups[group][2] and user not in groups[group][3].split(","):
            raise Refused(
                f"ERR_NO:0x0096;ERR_DES:{group} not right! Please check the relatianship of {user} and {group}"
            )
        self.user, self.group = user, group
        self.say(f"[INFO]set username and usergroup, {user}:{group}")

    def check_tools(self) -> None:
        missing = [tool for tool in self.steering.tools if not shutil.which(tool, path=search_path())]
        if missing:
            raise Refused(f"The list of missing tools: {','.join(missing)},")

    def ask(self, base: str) -> None:
        """Without --quiet it asks; the vendor's asks again for ever where nobody answers."""
        self.say(
            f"[INFO]{self.title} package has been installed on the path {layout.ASCEND}, the version is {base}, "
            f"and the version of this package is {self.version},do you want to continue?  [y/n] "
        )
        answer = sys.stdin.readline().strip()
        if answer == "n":
            raise Refused("stop installation!", 0)
        if answer != "y":
            raise Refused("ERR_NO:0x0002;ERR_DES:input error, please input again!")

    # What is done

    def install(self) -> None:
        self.refuse()
        self.steering.may_be_cut("before")
        if self.steering.fail:
            self.steering.pause()
            self.say(f"[ERROR]ERR_NO:{self.steering.fail};ERR_DES:as the scenario says")
            raise Refused(self.failed)
        self.driver() if self.kind == "driver" else self.firmware()

    def driver(self) -> None:
        """Old files away, half of the new ones, the rest; the status is complete when all is there."""
        self.say("[INFO]driver install type: DKMS")
        info = read_info(layout.INSTALL_INFO)
        mine = layout.installed_by(self.user, self.group, "uncomplete")
        mine["Driver_Install_Type"] = "full" if self.mode == "--upgrade" else self.mode.lstrip("-")
        for_all = "--install-for-all" in self.options or (
            self.mode == "--upgrade" and info.get("Driver_Install_For_All") == "yes"
        )
        mine["Driver_Install_For_All"] = "yes" if for_all else "no"
        lay({layout.INSTALL_INFO: (layout.install_info(info | mine), 0o644)})
        self.say("[INFO]upgradePercentage:10%")
        self.steering.pause()
        for path in (*layout.ASCEND_TOOLS, layout.HCCN_LINK, layout.DRIVER_INFO):
            (ROOT / path.lstrip("/")).unlink(missing_ok=True)
        self.say("[INFO]device hot reset start")
        self.steering.pause()
        lay(layout.driver_libraries(self.version))
        self.say("[INFO]upgradePercentage:40%")
        self.steering.may_be_cut("middle")
        if self.steering.headers and not (ROOT / f"lib/modules/{os.uname().release}/build").exists():
            self.say("[WARNING]rebuild ko has something wrong, detail in /var/log/ascend_seclog/ascend_rebuild.log")
            raise Refused(self.failed)
        self.steering.pause()
        copy_code()
        lay(layout.launchers(layout.ASCEND_TOOLS, layout.ASCEND_CODE))
        link(layout.HCCN_LINK, "/usr/local/Ascend/driver/tools/hccn_tool")
        mine["Driver_Install_Status"] = "complete"
        lay({layout.INSTALL_INFO: (layout.install_info(info | mine), 0o644)})
        self.steering.pause()
        self.say("[INFO]upgradePercentage:100%")
        self.driver_counts()

    def driver_counts(self) -> None:
        """The end state, and what the simulators show from now on."""
        head = f"[INFO]{GREEN}Driver package {self.verb}"
        later = self.steering.busy or self.steering.reboot or "--force" in self.options
        note("driver", self.version, after_boot=later)
        if self.steering.chips_not_ready:
            self.say("[WARNING]There are some chips not ready, please check after reboot")
        if self.steering.busy:
            self.say(f"{head} finished! {OFF}")
            self.say(
                f"[WARNING]{YELLOW}Kernel modules can not be removed, "
                f"reboot needed for installation/upgrade to take effect! {OFF}"
            )
        elif later:
            self.say(f"{head} successfully! {OFF}{RED}Reboot needed for installation/upgrade to take effect! {OFF}")
        else:
            self.reset_firmware()
            make_nodes()
            self.say(f"{head} successfully! {AT_ONCE} {OFF}")

    def reset_firmware(self) -> None:
        """The devices began anew, so firmware that waited for that counts."""
        installed = store.read(store.INSTALLED)
        if "firmware" in installed:
            installed["firmware"]["boot"] = ""
            write_installed(installed)

    def firmware(self) -> None:
        for percent in (1, 51, 86):
            self.say(f"[INFO]upgradePercentage: {percent}%")
            self.steering.pause()
            if percent == 51:
                self.steering.may_be_cut("middle")
        lay(layout.firmware(self.version))
        info = read_info(layout.INSTALL_INFO)
        mine = {"Firmware_Install_Type": "full", "Firmware_Install_Path_Param": layout.ASCEND}
        lay({layout.INSTALL_INFO: (layout.install_info(info | mine), 0o644)})
        self.say("[INFO]upgradePercentage: 100%")
        present = sum(bool(device["present"]) for device in self.steering.scenario["devices"].values())
        self.say(f"[INFO]The firmware of [{present}] chips are successfully upgraded.")
        at_once = self.steering.firmware_at_once and not self.steering.reboot
        note("firmware", self.version, after_boot=not at_once)
        told = AT_ONCE if at_once else (
            "Reboot now or after driver installation for the installation/upgrade to take effect."
        )  # fmt: skip
        self.say(f"[INFO]Firmware package {self.verb} successfully! {told}")

    def remove(self) -> None:
        """Uninstall: the driver's files, or the firmware's note."""
        info = read_info(layout.INSTALL_INFO)
        if f"{self.title}_Install_Type" not in info:
            raise Refused(f"ERR_NO:0x0080;ERR_DES:{self.title} package is not installed on this device")
        if self.steering.fail:
            raise Refused(f"ERR_NO:0x0090;ERR_DES:uninstall {self.kind} failed, details in : {LOG}")
        left = {key: value for key, value in info.items() if not key.startswith(f"{self.title}_")}
        shutil.rmtree(ROOT / f"usr/local/Ascend/{self.kind}", ignore_errors=True)
        if self.kind == "firmware":
            lay({layout.INSTALL_INFO: (layout.install_info(left), 0o644)})
            self.say("[INFO]Firmware package uninstalled successfully!")
            return
        for path in (*layout.ASCEND_TOOLS, layout.HCCN_LINK):
            (ROOT / path.lstrip("/")).unlink(missing_ok=True)
        shutil.rmtree(ROOT / "usr/local/dcmi", ignore_errors=True)
        if any(key.endswith("_Install_Type") for key in left):
            lay({layout.INSTALL_INFO: (layout.install_info(left), 0o644)})
        else:
            (ROOT / layout.INSTALL_INFO.lstrip("/")).unlink()
        note("driver", None, after_boot=self.steering.reboot)
        if self.steering.reboot:
            end = f"{OFF}{RED}Reboot needed for uninstallation to take effect! {OFF}"
        else:
            make_nodes()
            end = f"Uninstallation takes effect immediately. {OFF}"
        self.say(f"[INFO]{GREEN}Driver package uninstalled successfully! {end}")


def accounts(name: str) -> dict[str, list[str]]:
    """The lines of /etc/passwd or /etc/group by name."""
    try:
        lines = (ROOT / "etc" / name).read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: line.split(":") for line in lines if line.count(":") >= 3}


def search_path() -> str:
    """Where tools are looked for."""
    return ":".join(str(ROOT / place) for place in ("usr/sbin", "usr/bin", "sbin", "bin", "usr/local/bin"))


def copy_code() -> None:
    """The simulators into the driver's folder, where containers see them."""
    source, target = (ROOT / path.lstrip("/") for path in (layout.HARDWARE, layout.ASCEND_CODE))
    shutil.copytree(source / "lab", target / "lab", dirs_exist_ok=True)
    shutil.copy(store.SCENARIO, target / "scenario.json")
