"""What a driver that builds its own kernel module needs: headers and a compiler, and a kernel that stays.

Source: the HDK installation guide: without /lib/modules/<kernel>/build the module is not built, and a newer kernel has
none. In a container modules are those of the machine below, so nothing is asked for there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleet.findings import Finding, error, warning
from fleet.prepare import packages
from fleet.prepare.common import DEBIAN, Outcome, Step, Work

_APT = " ".join(f"'linux-{kind}*'" for kind in ("image", "headers", "modules", "generic", "virtual", "server", "cloud"))
# Without kernel-devel and kernel-headers: none of them starts a host, and what is excluded cannot be brought later.
_DNF = "kernel kernel-core kernel-modules kernel-modules-core"
_SECURE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True)
class State:
    """``newest`` is the kernel that the next start is likely to take: the boot loader's own, else the highest number.

    ``held`` are names of any package.
    """

    headers: bool = False
    newest: str = ""
    kernels: tuple[str, ...] = ()  # installed packages of kernels
    held: frozenset[str] = frozenset()
    secure_boot: bool = False


def sections() -> list[str]:
    """Asked where a driver may have to be built."""
    return [
        "echo '@@ kernel-build'; test -e /lib/modules/$(uname -r)/build && echo headers; "
        'k=$(grubby --default-kernel 2>/dev/null) && test -n "$k" && echo "newest ${k##*/vmlinu[xz]-}" || '
        "ls /boot 2>/dev/null | grep -v -e rescue -e '[.]old$' | sed -n 's/^vmlinu[xz]-/newest /p' | sort -V | "
        "tail -n 1; "
        "if command -v mokutil >/dev/null; then timeout -k 2 5 mokutil --sb-state 2>/dev/null; "
        f"else od -A n -t u1 -j 4 -N 1 {_SECURE} 2>/dev/null | sed 's/^ *1$/SecureBoot enabled/'; fi | "
        "grep -q 'SecureBoot enabled' && echo secureboot",
        "echo '@@ kernel-packages'; if command -v dpkg-query >/dev/null; then "
        f"dpkg-query -W -f '${{Package}} ${{db:Status-Abbrev}}\\n' {_APT} 2>/dev/null | "
        "sed -n 's/^\\([^ ]*\\) .i.*/\\1/p'; "
        f"elif command -v rpm >/dev/null; then rpm -q --qf '%{{NAME}}\\n' {_DNF} 2>/dev/null | "
        "grep -v ' ' | sort -u; fi",
        held_section(),
    ]


def held_section() -> str:
    """Names of all packages that are held, however the family holds them."""
    return (
        "echo '@@ held'; { dpkg-query -W -f '${Package} ${db:Status-Want}\\n' | sed -n 's/ hold$//p'; "
        "sed -n 's/^\\([^#!].*\\)-[0-9]*:.*/\\1/p' /etc/dnf/plugins/versionlock.list "
        "/etc/yum/pluginconf.d/versionlock.list; sed -n 's/^ *name *= *\"\\(.*\\)\"/\\1/p' /etc/dnf/versionlock.toml; "
        "sed -n -e 's/^exclude\\(pkgs\\)* *= *//p' /etc/dnf/dnf.conf | tr -s ' ,' '\\n\\n'; } 2>/dev/null"
    )


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    build = [line.split() for line in sections.get("kernel-build", [])]
    return State(
        headers=["headers"] in build,
        newest=next((words[1] for words in build if words[:1] == ["newest"] and len(words) > 1), ""),
        kernels=tuple(sorted(set(sections.get("kernel-packages", [])))),
        held=frozenset(line.strip() for line in sections.get("held", []) if line.strip()),
        secure_boot=["secureboot"] in build,
    )


def refuse(work: Work, state: State) -> list[Finding]:
    """Why a module that is built now would not be there after the next start."""
    newest = state.newest
    if not newest or newest == work.host.kernel or work.host.in_container:
        return []
    what = f"kernel {work.host.kernel} runs, and {newest} is installed"
    why = "the driver is built for the kernel that runs; the next start may take the other one, without a driver"
    mend = f"restart the host so that it runs {newest}, or take that kernel out; then run this again"
    return [error("DRIVER-KERNEL", work.name, what, mend, why)]


def unsigned(work: Work, state: State) -> list[Finding]:
    """Why a module that is built here may not be loaded."""
    if not state.secure_boot or work.host.in_container:
        return []
    what = "Secure Boot is on, and the kernel loads signed modules only"
    mend = "enrol the key that signs the module (mokutil --import), or switch Secure Boot off"
    return [warning("DRIVER-SECUREBOOT", work.name, what, mend, "a driver built on the host is not loaded")]


def building(work: Work, state: State) -> Step | None:
    """Headers of the kernel that runs, for a module that is built on the host.

    Ready-made modules do without them, so a host where there are none goes on.
    """
    family, kernel = work.host.family, work.host.kernel
    if state.headers or work.host.in_container or not family:
        return None
    name = f"linux-headers-{kernel}" if family == DEBIAN else f"kernel-devel-{kernel}"
    script, read = packages.install(family, [name]), headers_reader(work.name, name)
    return Step(f"{name} (the driver builds its module with it)", script, seconds=1200, read=read)


def headers_reader(host: str, name: str) -> Callable[[bool, Sequence[str]], Outcome]:
    """Headers that do not come are a warning: a driver may bring a module for just this kernel."""

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        if done:
            return Outcome()
        told = packages.fault(host, f"package {name}", lines)
        why = "a driver that has no module for just this kernel builds one with it"
        mend = f"{told.mend}, where the driver's installation fails"
        return Outcome((warning("PREPARE-HEADERS", host, told.what, mend, why),))

    return read


def holding(work: Work, state: State, what: str) -> Step | None:
    """The kernel stays as it is: a newer one would come without this driver."""
    loose = [name for name in state.kernels if name not in state.held]
    if not loose or work.host.in_container or not work.host.family:
        return None
    script = packages.hold(work.host.family, state.kernels)
    return Step(f"kernel {work.host.kernel} held ({what} is built for it)", script, seconds=400)
