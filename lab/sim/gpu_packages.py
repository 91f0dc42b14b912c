"""What the stand-in Debian packages of a GPU driver do once their files are there, and nvidia-ctk."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.sim import store
from lab.sim.installing import Refused, Steering, make_nodes, note, write_installed
from lab.sim.store import ROOT

CTK = "NVIDIA Container Toolkit CLI version {version} (the lab's stand-in)"


def main(arguments: Sequence[str]) -> int:
    """`PART VERSION` or `remove PART` of driver, fabric_manager and toolkit, from a package's scripts."""
    try:
        if arguments[0] == "driver":
            driver(upstream(arguments[1]))
        elif arguments[0] == "remove" and arguments[1] == "driver":
            note("driver", None, after_boot=False)
            make_nodes()
        elif arguments[0] == "remove":
            write_installed({part: v for part, v in store.read(store.INSTALLED).items() if part != arguments[1]})
        else:
            write_installed(store.read(store.INSTALLED) | {arguments[0]: upstream(arguments[1])})
    except Refused as reason:
        print(reason, file=sys.stderr)
        return reason.code
    return 0


def upstream(version: str) -> str:
    """The driver's version in a package's: 580.95.05 of 580.95.05-0ubuntu1."""
    return version.rpartition(":")[2].partition("-")[0]


def driver(version: str) -> None:
    """A new driver: at once, or with the next boot, and until then its library does not fit the kernel's module."""
    steering = Steering("driver")
    if steering.scenario["family"] != "nvidia":
        raise Refused(f"no GPU is here: this machine is {steering.scenario['family']}")
    steering.may_be_cut("before")
    if steering.fail:
        raise Refused(f"building the kernel's module failed ({steering.fail}, as the scenario says)")
    steering.pause()
    steering.may_be_cut("middle")
    later = steering.reboot or steering.busy
    note("driver", version, after_boot=later)
    if not later:
        make_nodes()


def toolkit(arguments: Sequence[str]) -> int:
    """nvidia-ctk, as far as a host is prepared with it."""
    words = list(arguments)
    if words in (["--version"], ["-v"]):
        print(CTK.format(version=store.read(store.INSTALLED)["toolkit"]))
        return 0
    if words[:2] == ["system", "create-dev-char-symlinks"] and "--create-all" in words:
        links()
        return 0
    print(f"the lab's nvidia-ctk does not know: {' '.join(words)}", file=sys.stderr)
    return 1


def links() -> None:
    """/dev/char/195:N for each device, as the kernel numbers the real ones."""
    folder = ROOT / "dev/char"
    folder.mkdir(parents=True, exist_ok=True)
    for number in store.devices(store.scenario(), "nvidia"):
        place = folder / f"195:{number}"
        place.unlink(missing_ok=True)
        place.symlink_to(f"../nvidia{number}")
