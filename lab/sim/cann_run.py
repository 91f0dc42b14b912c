"""The .run packages of CANN for engines outside containers: toolkit, ops and nnal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

from lab.sim import layout
from lab.sim.installing import Refused, Steering, alone, lay, link, parse, read_info, wrong_arch
from lab.sim.store import ROOT, Document

MODES = ("--install", "--full", "--run", "--devel", "--upgrade", "--uninstall", "--version", "--check")
MODIFIERS = ("--install-for-all", "--install-path", "--quiet", "--force")
ENTRY = f"{layout.ASCEND}/ascend-toolkit"
LATEST = f"{ENTRY}/latest"
NNAL = f"{layout.ASCEND}/nnal"
SUMMARY = """\

===========
= Summary =
===========

Driver:   {driver}
{title}:  {name} install success, installed in /usr/local/Ascend.

Please make sure that the environment variables have been configured.
-  To take effect for all users, you can add "source {setup}" to /etc/profile.
-  To take effect for current user, you can exec command below: source {setup} or add "source {setup}" to ~/.bashrc.
"""
SETUP = """\
# The lab's stand-in for CANN's environment.
export ASCEND_TOOLKIT_HOME={home}
export ASCEND_HOME_PATH={home}
export ASCEND_OPP_PATH={home}/opp
"""
NNAL_SETUP = """\
# The lab's stand-in for nnal's environment.
export ATB_HOME_PATH=/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1
"""


def main(package: Document, arguments: Sequence[str]) -> int:
    """0 when it is installed, 1 when it was refused or failed."""
    title = {"toolkit": "Toolkit", "ops": f"ops_{package['chip']}", "nnal": "Nnal"}[package["kind"]]
    try:
        mode, options = options_of(arguments)
        if mode == "--version":
            print(f"Version: {package['version']} (the lab's stand-in of {package['name']})")
        elif mode == "--uninstall":
            remove(package)
            say(title, f"[INFO] {package['name']} uninstall success")
        elif mode != "--check":
            with alone() as only_one:
                if not only_one:
                    raise Refused("ERR_NO:0x0094;ERR_DES:There is already a process being executed")
                install(package, title, options)
    except Refused as reason:
        say(title, f"[ERROR] {reason}")
        return reason.code
    return 0


def say(title: str, text: str) -> None:
    print(f"[{title}] [{time.strftime('%Y%m%d-%H:%M:%S')}] {text}", flush=True)


def options_of(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    try:
        mode, options = parse(arguments, MODES, MODIFIERS)
    except ValueError as reason:
        raise Refused(f"ERR_NO:0x0004;ERR_DES:{reason}") from None
    return mode, options


def install(package: Document, title: str, options: dict[str, str]) -> None:
    kind, version = str(package["kind"]), str(package["version"])
    steering = Steering(kind)
    refuse(package, steering)
    if "--quiet" not in options:
        print("Do you accept the EULA to install CANN?[Y/N]", end="", flush=True)
        if sys.stdin.readline().strip().lower() != "y":
            raise Refused("The EULA was not accepted, the installation ends")
    steering.may_be_cut("before")
    if steering.fail:
        raise Refused(f"ERR_NO:{steering.fail};ERR_DES:{package['name']} install failed")
    say(title, f"[INFO] install package {package['name']} start")
    steering.pause()
    home = f"{layout.ASCEND}/cann-{version}" if new_layout(version) else f"{ENTRY}/{version}"
    setup = f"{home}/set_env.sh" if new_layout(version) else f"{ENTRY}/set_env.sh"
    if kind == "toolkit":
        lay({f"{home}/set_env.sh": (SETUP.format(home=home), 0o755)})
        steering.may_be_cut("middle")
        toolkit(package, home)
    elif kind == "ops":
        lay({f"{LATEST}/opp/version.info": (f"Version={version}\n", 0o644)})
        steering.may_be_cut("middle")
        lay({operators(package): (info(package, LATEST), 0o644)})
    else:
        setup = f"{NNAL}/atb/set_env.sh"
        lay({f"{NNAL}/atb/{version}/atb/cxx_abi_1/lib/libatb.so": ("the lab's stand-in\n", 0o644)})
        steering.may_be_cut("middle")
        nnal(package)
    steering.pause()
    driver = read_info(layout.DRIVER_INFO)
    print(
        SUMMARY.format(
            driver="Installed in /usr/local/Ascend/driver." if driver else "Not installed.",
            title=title,
            name=str(package["name"]).removesuffix(".run"),
            setup=setup,
        ),
        end="",
    )


def refuse(package: Document, steering: Steering) -> None:
    """Whether this package may be installed on this host now."""
    if os.geteuid() != 0:
        raise Refused("ERR_NO:0x0093;ERR_DES:Permission denied")
    if package["arch"] != steering.arch:
        raise Refused(wrong_arch(package["arch"], steering.arch))
    if package["kind"] == "ops" and package["family"] != steering.scenario["family"]:
        raise Refused(f"The package is for {package['family']}, this machine is {steering.scenario['family']}")
    if package["kind"] == "toolkit":
        return
    found = toolkit_version(package["arch"])
    if found != package["version"]:
        raise Refused(f"needs the toolkit {package['version']} before it, this machine has {found or 'none'}")
    if package["kind"] == "nnal" and not os.environ.get("ASCEND_TOOLKIT_HOME"):
        raise Refused("needs the environment of the toolkit: source its set_env.sh first")


def new_layout(version: str) -> bool:
    """From 8.5 on the toolkit lies in cann-VERSION."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= (8, 5)


def operators(package: Document) -> str:
    """The note of the operators' package, which was called kernels before 8.5."""
    name = "ops" if new_layout(package["version"]) else "kernels"
    return f"{LATEST}/{package['arch']}-linux/ascend_{name}_install.info"


def toolkit_version(arch: str) -> str | None:
    """The toolkit that is there."""
    return read_info(f"{LATEST}/{arch}-linux/ascend_toolkit_install.info").get("version")


def toolkit(package: Document, home: str) -> None:
    arch, version = package["arch"], package["version"]
    lay({
        f"{home}/{arch}-linux/ascend_toolkit_install.info": (info(package, home), 0o644),
        f"{home}/version.cfg": (f"runtime_running_version=[{version}:{version}]\n", 0o644),
        f"{ENTRY}/set_env.sh": (SETUP.format(home=LATEST), 0o755),
    })  # fmt: skip
    link(LATEST, home)
    if new_layout(version):
        link(f"{layout.ASCEND}/cann", f"cann-{version}")


def nnal(package: Document) -> None:
    version = package["version"]
    lay({
        f"{NNAL}/atb/{version}/version.info": (f"Ascend-cann-atb : {version}\n", 0o644),
        f"{NNAL}/atb/set_env.sh": (NNAL_SETUP, 0o755),
        f"{NNAL}/ascend_nnal_install.info": (info(package, NNAL), 0o644),
    })  # fmt: skip
    link(f"{NNAL}/atb/latest", version)


def info(package: Document, path: str) -> str:
    """What each package notes down of itself."""
    name = str(package["name"]).partition("_")[0]
    return layout.install_info({
        "package_name": name,
        "version": str(package["version"]),
        "arch": str(package["arch"]),
        "os": "linux",
        "path": path,
    })  # fmt: skip


def remove(package: Document) -> None:
    """Uninstall: what the package brought."""
    version = package["version"]
    if package["kind"] == "nnal":
        shutil.rmtree(ROOT / NNAL.lstrip("/"), ignore_errors=True)
    elif package["kind"] == "ops":
        (ROOT / operators(package).lstrip("/")).unlink(missing_ok=True)
    else:
        for path in (f"{layout.ASCEND}/cann-{version}", ENTRY):
            shutil.rmtree(ROOT / path.lstrip("/"), ignore_errors=True)
        (ROOT / f"{layout.ASCEND}/cann".lstrip("/")).unlink(missing_ok=True)
