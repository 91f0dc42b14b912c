"""What is installed on a host with NPUs, and what runs there: questions and the reading of answers.

Files: /etc/ascend_install.info and the two version.info are what the installers write (cann/driver, driver_install.sh);
npu-smi says what the devices run, which differs until a restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.inventory import Node
from fleet.machine import common, npu_table
from fleet.prepare import drivers, kernel_modules
from fleet.prepare.ascend_run import version_order
from fleet.snapshot import MARK
from fleet.topology import Plan

ROOT = "/usr/local/Ascend"
FIRMWARE_INFO = f"{ROOT}/firmware/version.info"
USER = "HwHiAiUser"
_CONTAINER = "{{.Name}}|{{.HostConfig.Runtime}}|{{range .HostConfig.Devices}}{{.PathOnHost}} {{end}}"


@dataclass(frozen=True)
class State:
    """Versions are None where there are none. ``info`` is /etc/ascend_install.info, empty where it is missing."""

    table: npu_table.State = field(default_factory=lambda: npu_table.State(False, False))
    driver: str | None = None  # on disk
    firmware: str | None = None
    running: str | None = None  # the driver that answers npu-smi
    fresh: bool = False  # the driver was put there since the host started
    info: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)  # user -> its groups, of those that exist
    has_group: frozenset[str] = frozenset()  # groups that exist
    installers: tuple[str, ...] = ()  # .run packages that are being run now
    containers: tuple[str, ...] = ()  # running ones that hold NPUs
    kernel: kernel_modules.State = field(default_factory=kernel_modules.State)

    @property
    def path(self) -> str:
        """Where the driver was put."""
        return self.info.get("Driver_Install_Path_Param") or ROOT

    @property
    def begun(self) -> bool:
        """Whether an installer of the driver was ever there: a cut upgrade leaves no version.info."""
        return self.driver is not None or "Driver_Install_Path_Param" in self.info

    @property
    def complete(self) -> bool:
        """Whether the driver's installation came to its end."""
        return self.driver is not None and self.info.get("Driver_Install_Status") == "complete"

    @property
    def lowest(self) -> str | None:
        """The firmware that the cards run, as far as npu-smi tells: the oldest where they differ."""
        found = [b.firmware for b in self.table.boards.values() if b.firmware and b.firmware != "NA"]
        return min(found, key=version_order) if found else None

    @property
    def user(self) -> str:
        """The user whom the driver belongs to."""
        return _name(self.info.get("UserName", "")) or USER

    @property
    def group(self) -> str:
        return _name(self.info.get("UserGroup", "")) or USER

    @property
    def unusable(self) -> bool:
        """Whether the driver's module does not answer npu-smi: for one after an upgrade of the kernel."""
        return self.table.there and any("ret is -8001" in word for word in self.table.words)


def _name(text: str) -> str:
    return text if re.match(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\Z", text) else ""


def concerned(plan: Plan, node: Node) -> bool:
    """Whether the plan runs something on NPUs of this host."""
    return plan.recipe.platform.startswith("ascend") and bool(common.used(plan, node))


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked of hosts with NPUs; every call of npu-smi and docker ends by itself."""
    if not concerned(plan, node):
        return []
    info = npu_table.INSTALL_INFO
    return [
        *npu_table.sections(drivers.expected(plan, node), plan.recipe.platform == "ascend-a3", pod=False),
        f"echo '{MARK} ascend-info'; head -c 4000 {info} 2>/dev/null",
        f"echo '{MARK} ascend-driver'; head -c 4000 {npu_table.DRIVER_INFO} 2>/dev/null",
        # The time of the inode: the installers keep the files' own. In a container the first process began the host.
        f"echo '{MARK} ascend-fresh'; c=$(stat -c %Z {npu_table.DRIVER_INFO} 2>/dev/null) && "
        "b=$(sed -n 's/^btime //p' /proc/stat) && t=$(sed 's/.*) //' /proc/1/stat | cut -d ' ' -f 20) && "
        "test $c -ge $((b + t / $(getconf CLK_TCK 2>/dev/null || echo 100))) && echo fresh",
        f"echo '{MARK} ascend-firmware'; head -c 4000 {FIRMWARE_INFO} 2>/dev/null",
        f"echo '{MARK} ascend-users'; for u in {USER} $(sed -n 's/^UserName=\\([A-Za-z0-9_.-]*\\)$/\\1/p' {info} "
        '2>/dev/null); do g=$(id -nG "$u" 2>/dev/null) && echo "user $u $g"; done; '
        f"for g in {USER} $(sed -n 's/^UserGroup=\\([A-Za-z0-9_.-]*\\)$/\\1/p' {info} 2>/dev/null); do "
        'getent group "$g" >/dev/null && echo "group $g"; done',
        # The pattern does not match itself, nor the shell that this text is an argument of.
        f"echo '{MARK} ascend-installers'; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | "
        "grep -o -e '[^/ ]*-npu-\\(driver\\|firmware\\)_[^/ ]*[.]run$' | sort -u",
        f"echo '{MARK} ascend-containers'; command -v docker >/dev/null && "
        "set -- $(timeout -k 2 20 docker ps -q --no-trunc 2>/dev/null) && "
        f"test $# -gt 0 && timeout -k 2 20 docker inspect -f '{_CONTAINER}' \"$@\" 2>/dev/null",
        *kernel_modules.sections(),
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered; an empty state where nothing was asked."""
    users = [line.split() for line in sections.get("ascend-users", [])]
    table = npu_table.parse(sections, None, None, {})
    return State(
        table=table,
        driver=_pairs(sections.get("ascend-driver", [])).get("Version") or None,
        firmware=_pairs(sections.get("ascend-firmware", [])).get("Version") or None,
        running=_running(table, sections.get(npu_table.FIRST, [])),
        fresh=bool(sections.get("ascend-fresh")),
        info=_pairs(sections.get("ascend-info", [])),
        groups={words[1]: frozenset(words[2:]) for words in users if words[:1] == ["user"] and len(words) > 1},
        has_group=frozenset(words[1] for words in users if words[:1] == ["group"] and len(words) > 1),
        installers=tuple(sections.get("ascend-installers", [])),
        containers=tuple(filter(None, map(_holder, sections.get("ascend-containers", [])))),
        kernel=kernel_modules.parse(sections),
    )


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    """``Version=25.5.1`` lines; the last of a name counts, as the installers append."""
    pairs = [line.partition("=") for line in lines]
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _running(table: npu_table.State, lines: Sequence[str]) -> str | None:
    """The driver's version as a card tells it, else as the head of the table; None where there is no table."""
    told = next((board.driver for board in table.boards.values() if board.driver), None)
    head = re.search(r"^\|\s*npu-smi\b.*Version:\s*(\S+)", "\n".join(lines), re.MULTILINE)
    return told or (head[1] if head and table.chips else None)


def _holder(line: str) -> str:
    """A container's name, where it holds NPUs."""
    name, _, rest = line.partition("|")
    runtime, _, devices = rest.partition("|")
    return name.lstrip("/") if runtime == "ascend" or "/dev/davinci" in devices else ""
