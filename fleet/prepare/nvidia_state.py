"""What is installed on a host with GPUs, and what runs there: questions and the reading of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.inventory import Node
from fleet.machine import common, gpu_table
from fleet.prepare import kernel_modules
from fleet.snapshot import MARK
from fleet.topology import Plan

BLACKLIST = "/etc/modprobe.d/vllm-fleet-nouveau.conf"
FABRIC, PERSISTENCE, OURS = "nvidia-fabricmanager", "nvidia-persistenced", "vllm-fleet-gpu"
UNIT, PROGRAM = f"/etc/systemd/system/{OURS}.service", f"/usr/local/lib/vllm-fleet/{OURS}.sh"
TOOLKIT = "nvidia-container-toolkit"
_NAMES = ("nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia*", "cuda-drivers*", "kmod-nvidia*")
# A packaged driver has at least one of these.
_OF_DRIVER = re.compile(r"(nvidia-(driver|open|dkms|kernel|headless|utils)|cuda-drivers|kmod-nvidia|libnvidia-compute)")


@dataclass(frozen=True)
class State:
    """``installed`` maps packages to their whole versions, ``units`` to (is-enabled, is-active)."""

    table: gpu_table.State = field(default_factory=lambda: gpu_table.State(False, False))
    installed: Mapping[str, str] = field(default_factory=dict)
    owned: bool = False  # nvidia-smi came in a package
    nouveau: bool = False  # the kernel's own driver is loaded
    blacklisted: bool = False
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)  # sha256 of our files, by path
    links: bool = False  # /dev/char knows the GPUs
    kernel: kernel_modules.State = field(default_factory=kernel_modules.State)

    @property
    def running(self) -> str | None:
        """The driver that answers."""
        return None if self.mismatch else self.table.driver

    @property
    def mismatch(self) -> bool:
        """Whether the libraries are not those of the module that is loaded."""
        return any("version mismatch" in word for word in self.table.words)

    @property
    def foreign(self) -> bool:
        """Whether there is a driver that no package brought: NVIDIA's .run installer."""
        packaged = self.owned or any(_OF_DRIVER.match(name) for name in self.installed)
        return (self.table.there or self.table.module is not None) and not packaged

    def version(self, name: str) -> str | None:
        """What a package holds, without what the distribution added."""
        return upstream(self.installed[name]) if name in self.installed else None

    def enabled(self, unit: str) -> bool:
        return self.units.get(unit, ("", ""))[0] in ("enabled", "static", "indirect", "alias", "generated")

    def active(self, unit: str) -> bool:
        return self.units.get(unit, ("", ""))[1] == "active"


def upstream(version: str) -> str:
    """``580.95.05-0ubuntu0.22.04.2`` and ``3:580.95.05-1.el9`` as 580.95.05."""
    return re.sub(r"^\d+:", "", version).partition("-")[0]


def concerned(plan: Plan, node: Node) -> bool:
    """Whether the plan runs something on GPUs of this host."""
    return plan.recipe.platform == "nvidia" and bool(common.used(plan, node))


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked of hosts with GPUs; every call of a tool of NVIDIA's ends by itself."""
    if not concerned(plan, node):
        return []
    names = " ".join(f"'{name}'" for name in _NAMES)
    return [
        *gpu_table.sections(),
        f"echo '{MARK} nvidia-packages'; if command -v dpkg-query >/dev/null; then "
        f"dpkg-query -W -f '${{Package}} ${{Version}} ${{db:Status-Abbrev}}\\n' {names} 2>/dev/null | "
        "sed -n 's/^\\([^ ]* [^ ]*\\) .i.*/\\1/p'; elif command -v rpm >/dev/null; then "
        f"rpm -qa --qf '%{{NAME}} %{{EPOCHNUM}}:%{{VERSION}}-%{{RELEASE}}\\n' {names} 2>/dev/null; fi",
        f"echo '{MARK} nvidia-host'; grep -qs '^nouveau ' /proc/modules && echo nouveau; "
        f"test -e {BLACKLIST} && echo blacklisted; ls -d /dev/char/195:[0-9]* >/dev/null 2>&1 && echo links; "
        "p=$(command -v nvidia-smi) && p=$(readlink -f $p) && "
        "{ dpkg-query -S $p || rpm -qf $p; } >/dev/null 2>&1 && echo owned",
        f"echo '{MARK} nvidia-units'; for u in {FABRIC} {PERSISTENCE} {OURS}; do "
        'echo "$u $(timeout -k 2 10 systemctl is-enabled $u 2>/dev/null | head -n 1 | grep . || echo none)'
        ' $(timeout -k 2 10 systemctl is-active $u 2>/dev/null | head -n 1)"; done',
        f"echo '{MARK} nvidia-files'; sha256sum {UNIT} {PROGRAM} 2>/dev/null",
        *kernel_modules.sections(),
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered; an empty state where nothing was asked."""
    said = sections.get("nvidia-host", [])
    units = [line.split() for line in sections.get("nvidia-units", [])]
    pairs = [line.split() for line in sections.get("nvidia-packages", [])]
    sums = [line.split() for line in sections.get("nvidia-files", [])]
    return State(
        table=gpu_table.parse(sections),
        installed={words[0]: words[1] for words in pairs if len(words) == 2},
        owned="owned" in said,
        nouveau="nouveau" in said,
        blacklisted="blacklisted" in said,
        units={words[0]: (words[1], words[2]) for words in units if len(words) == 3},
        sums={words[1]: words[0] for words in sums if len(words) == 2},
        links="links" in said,
        kernel=kernel_modules.parse(sections),
    )
