"""Driver, fabric manager and container toolkit of hosts with GPUs, from the distribution's packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleet.findings import Finding, error, warning
from fleet.machine import common, scope
from fleet.prepare import drivers, kernel_modules, nvidia_packages, nvidia_unit, packages
from fleet.prepare.ascend_run import older, same
from fleet.prepare.common import DEBIAN, Outcome, Step, Work, plain, write
from fleet.prepare.nvidia_state import BLACKLIST, FABRIC, TOOLKIT, State, concerned, parse, sections
from fleet.stacks import GpuDriver, Part
from fleet.topology import Plan

__all__ = ["State", "between", "parse", "pending", "prove", "refuse", "sections", "steps"]

_NOUVEAU = "blacklist nouveau\noptions nouveau modeset=0\n"
_TOOLKIT_PARTS = (TOOLKIT, f"{TOOLKIT}-base", "libnvidia-container-tools", "libnvidia-container1")


def _state(work: Work) -> State:
    state = work.states["nvidia"]
    assert isinstance(state, State)
    return state


def _driver(work: Work) -> GpuDriver | None:
    """The driver of the catalogue's row."""
    return work.stack.gpu_driver if work.stack else None


def names(work: Work, driver: GpuDriver) -> list[str]:
    """Packages of the driver on this distribution, the driver's own first."""
    its = driver.apt if work.host.family == DEBIAN else driver.dnf
    kept = [name.replace("{version}", driver.version) for name in its if driver.fabric_manager or "fabric" not in name]
    return sorted(kept, key=lambda name: "fabric" in name)


def fits(part: Part, have: str | None) -> bool:
    """Whether a version is the row's."""
    return bool(have) and (same(have, part.version) if part.exact else part.fits(have or ""))


def there(work: Work, driver: GpuDriver) -> str | None:
    """The version of the driver that is installed, else of the one that runs."""
    state, its = _state(work), names(work, driver)
    return (state.version(its[0]) if its else None) or state.running or state.table.module


def changes(work: Work, driver: GpuDriver) -> bool:
    """Whether packages must be exchanged: one is missing or of another version, or they differ."""
    state = _state(work)
    versions = [state.version(name) for name in names(work, driver)]
    if state.foreign or not versions:
        return not fits(driver, there(work, driver))
    return not all(fits(driver, version) for version in versions) or len(set(versions)) > 1


# ---- before


def refuse(work: Work) -> list[Finding]:
    """Why nothing may be installed here now."""
    if not concerned(work.plan, work.node):
        return []
    driver, state = _driver(work), _state(work)
    if driver is None:
        none = not state.table.there and state.table.module is None
        return [drivers.left_alone(work, "GPU driver", None if none else state.table.driver or "of no known version")]
    if not changes(work, driver):
        return []
    have, its = there(work, driver), names(work, driver)
    found = []
    if not its:
        kind = "apt" if work.host.family == DEBIAN else "dnf"
        what = f"catalogue {drivers.row(work)} names no packages of the driver for {kind}"
        found.append(error("DRIVER-PACKAGE", work.name, what, f"write them into the row, under gpu_driver.{kind}"))
    least = driver.version.partition("*")[0].rstrip(".")
    if have and least and not fits(driver, have) and older(least, have):
        what = f"GPU driver {have} is newer than the {driver.version} of catalogue {drivers.row(work)}"
        mend = "name a row with this version or a newer one; or purge it by hand, restart, and run this again"
        found.append(error("DRIVER-DOWNGRADE", work.name, what, mend, "newer images may need the newer one"))
    if state.foreign:
        what = f"GPU driver {have or 'of no known version'} did not come in a package, and {driver.version} is wanted"
        mend = "nvidia-uninstall, restart the host, and run this again"
        why = "packages put their files over those of NVIDIA's own installer, and neither works"
        found.append(error("DRIVER-ORIGIN", work.name, what, mend, why))
    return [*found, *_busy(work, state, driver), *kernel_modules.unsigned(work, state.kernel)]


def _busy(work: Work, state: State, driver: GpuDriver) -> list[Finding]:
    what = f"GPU driver {driver.version}"
    if work.host.serving:
        return [drivers.busy(work, what)]
    if not state.table.processes:
        return []
    which = common.processes((p.pid, p.name) for p in state.table.processes)
    why = "its libraries no longer fit the module that it uses: Driver/library version mismatch"
    said = f"{which} on the GPUs, and {what} must be installed"
    return [error("DRIVER-BUSY", work.name, said, "end what is there, then run this again", why)]


# ---- the change


def steps(work: Work) -> list[Step]:
    """The driver with its fabric manager as one, then what goes around it."""
    if not concerned(work.plan, work.node):
        return []
    driver, state = _driver(work), _state(work)
    brings = driver is not None and not state.foreign and changes(work, driver)
    if driver is None and not state.table.there:
        return []
    found: list[Step | None] = []
    if driver and brings:
        found += [_nouveau(work, state), kernel_modules.building(work, state.kernel), _install(work, state, driver)]
    elif driver and not state.foreign:
        found.append(_hold(work, state, driver))
    if driver and driver.fabric_manager:
        found.append(_fabric(work, state, brings))
    found.append(_toolkit(work, state))
    if brings or _asleep(work, state) or not nvidia_unit.right(state):
        found.append(Step("persistence mode and device links of the GPUs, now and with each start",
                          nvidia_unit.script(), seconds=600))  # fmt: skip
    return [step for step in found if step]


def _asleep(work: Work, state: State) -> bool:
    """Whether what our unit does has not been done, although the driver answers."""
    links = state.links or not scope.in_docker(work.plan, work.node)
    return bool(state.table.gpus) and (any(g.persistence == "Disabled" for g in state.table.gpus) or not links)


def _nouveau(work: Work, state: State) -> Step | None:
    if not state.nouveau or state.blacklisted or work.host.in_container:
        return None
    script = (
        f"{write(BLACKLIST, _NOUVEAU)} || exit 1\n"
        "if command -v update-initramfs >/dev/null; then update-initramfs -u; else dracut -f; fi"
    )

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        if done:
            return Outcome(reboot="the kernel's own driver nouveau has the GPUs")
        said = [line for line in plain(lines) if line.strip()]
        what = f"nouveau could not be kept from the next start: {(said or ['no reason given'])[-1][:300]}"
        return Outcome((error("DRIVER-FAILED", work.name, what, "mend that and run this again"),))

    return Step("nouveau kept away from the GPUs", script, seconds=600, read=read)


def _install(work: Work, state: State, driver: GpuDriver) -> Step:
    its = names(work, driver)
    have = [f"{name} {state.version(name)}" for name in its if name in state.installed]
    own = state.version(its[0]) if its else None
    # A fabric manager alone that went ahead is brought back to the driver, where a source still has that version.
    patterns = [own, driver.version] if own and fits(driver, own) and own != driver.version else [driver.version]
    held = sorted(name for name in state.installed if name in state.kernel.held)
    script = nvidia_packages.install(work.host.family, its, patterns, held) if its else "exit 1"
    load = "" if work.host.in_container else "modprobe nvidia 2>&1\n"
    script += (
        f"\n{load}m=$(sed -n 's/^NVRM version:.* \\([0-9][0-9]*[.][0-9.]*\\) .*/\\1/p' /proc/driver/nvidia/version "
        '2>/dev/null)\necho "@ picked $picked"; [ -z "$m" ] || echo "@ loaded $m"\n'
        "timeout -k 5 60 nvidia-smi >/dev/null 2>&1 </dev/null && echo '@ answers'; exit 0"
    )
    instead = ", ".join(have) or there(work, driver) or "none"
    name = f"GPU driver {driver.version}: {', '.join(its)} (there is {instead})"
    return Step(name, script, seconds=3600, read=_read(work.name, driver))


def _read(host: str, driver: GpuDriver) -> Callable[[bool, Sequence[str]], Outcome]:
    def read(done: bool, lines: Sequence[str]) -> Outcome:
        said = [line.strip() for line in plain(lines) if line.strip()]
        nowhere = next((line for line in said if line.startswith(nvidia_packages.NOWHERE)), None)
        if nowhere:
            mend = "name a source that has them by package_source, or put them into the bundle's apt or dnf folder"
            why = "driver and fabric manager must be the same"
            return Outcome((error("DRIVER-PACKAGE", host, nowhere, mend, why),))
        if not done:
            return Outcome((packages.fault(host, f"GPU driver {driver.version}", lines),))
        told = {words[1]: words[2:] for words in (line.split() for line in said if line.startswith("@ "))}
        picked, loaded = ((told.get(key) or [""])[0] for key in ("picked", "loaded"))
        if "answers" in told and (not loaded or same(loaded, picked)):
            return Outcome()
        runs = f", {loaded} is loaded" if loaded else ""
        return Outcome(reboot=f"GPU driver {picked} takes effect with the next start{runs}")

    return read


def held(work: Work, state: State, driver: GpuDriver) -> bool:
    """Whether no upgrade of the system can take one of the driver's packages along."""
    its = names(work, driver)
    if work.host.family == DEBIAN:
        version = state.version(its[0]) if its else None
        its = [name for name in state.installed if state.version(name) == version]
    return all(name in state.kernel.held for name in its)


def _hold(work: Work, state: State, driver: GpuDriver) -> Step | None:
    its = names(work, driver)
    if held(work, state, driver) or not its:
        return None
    script = nvidia_packages.hold(work.host.family, its)
    return Step(f"GPU driver {there(work, driver)} held with all its packages", script, seconds=400)


def _fabric(work: Work, state: State, brings: bool) -> Step | None:
    """Enabled, and started where the driver answers; before the restart it could not meet its driver."""
    waits = state.mismatch or bool(work.host.reboot) or not state.running
    if not brings and state.enabled(FABRIC) and (state.active(FABRIC) or waits):
        return None
    script = (
        f"systemctl daemon-reload; systemctl enable {FABRIC} 2>&1 || exit 1\n"
        f"timeout -k 5 120 systemctl restart {FABRIC} && exit 0\n"
        "timeout -k 5 60 nvidia-smi >/dev/null 2>&1 </dev/null || { echo 'it starts with the host'; exit 0; }\n"
        f"journalctl -u {FABRIC} -n 5 --no-pager -o cat 2>/dev/null; exit 1"
    )

    def read(done: bool, lines: Sequence[str]) -> Outcome:
        if done:
            return Outcome()
        said = [line.strip() for line in plain(lines) if line.strip()]
        mend = f"see journalctl -u {FABRIC}; it must be of the driver's version exactly"
        why = (said or ["no reason given"])[-1][:300]
        return Outcome((error("DRIVER-FABRIC", work.name, "the fabric manager does not start", mend, why),))

    return Step("fabric manager enabled and started", script, seconds=300, read=read)


def _toolkit(work: Work, state: State) -> Step | None:
    """Without it no container gets a GPU; the container engine is told of it by its own part."""
    part = work.stack.toolkit if work.stack else None
    have = state.version(TOOLKIT)
    if not scope.in_docker(work.plan, work.node) or not scope.engines(work.plan, work.node) or not work.host.family:
        return None
    if (part is None and have) or (part and fits(part, have)):
        return None
    what = f"{TOOLKIT} {part.version if part and part.exact else ''}".rstrip()
    family = work.host.family
    if part and part.exact:
        script = nvidia_packages.install_alone(family, _TOOLKIT_PARTS, part.version)
    else:
        script = packages.install(family, [TOOLKIT])
    return Step(f"{what} (there is {have or 'none'})", script, seconds=1800, read=packages.reader(work.name, what))


# ---- after


def pending(work: Work) -> str:
    """Why a restart is needed: what is installed is not what is loaded."""
    driver = _driver(work)
    if driver is None or not concerned(work.plan, work.node):
        return ""
    state, its = _state(work), names(work, driver)
    have = state.version(its[0]) if its else None
    if not have or changes(work, driver):
        return ""
    if state.nouveau and state.blacklisted:
        return "the kernel's own driver nouveau has the GPUs"
    runs = state.table.driver
    if state.mismatch or (runs and not same(runs, have)):
        return f"GPU driver {have} is installed, {runs or 'another'} is loaded"
    return ""


def prove(work: Work) -> list[Finding]:
    """What still is not as the catalogue's row says, once all is installed and the host restarted."""
    driver = _driver(work)
    if driver is None or not concerned(work.plan, work.node):
        return []
    state, name = _state(work), work.name
    if not state.running or not state.table.gpus:
        said = "no answer in time" if state.table.late else (state.table.words or ("nvidia-smi says nothing",))[0][:120]
        mend = "restart the host; if it stays so, see dmesg for NVRM and dkms status"
        what = f"GPU driver {there(work, driver) or driver.version} does not answer"
        return [error("DRIVER-RUNNING", name, what, mend, said)]
    found = []
    if not fits(driver, state.running):
        what = f"GPU driver {state.running} runs, and it should be {driver.version}"
        found.append(error("DRIVER-RUNNING", name, what, "restart the host, and run this again"))
    wanted = drivers.expected(work.plan, work.node)
    missing = [index for index in wanted if state.table.gpu(index) is None]
    if missing:
        what = f"{common.named(missing)} of {len(wanted)} GPUs cannot be seen"
        mend = "look for the card with lspci -d 10de: and dmesg, or give devices in the inventory"
        why = "a card that fell out is not seen until an engine waits"
        found.append(error("DRIVER-DEVICES", name, what, mend, why))
    if driver.fabric_manager:
        found += _fabric_findings(name, state)
    if _asleep(work, state):
        what = "persistence mode is off, or /dev/char has no links to the GPUs' nodes"
        mend = "systemctl status vllm-fleet-gpu tells why"
        why = "a daemon-reload takes the GPUs from containers that got them by request"
        found.append(warning("DRIVER-LINKS", name, what, mend, why))
    return found


def _fabric_findings(name: str, state: State) -> list[Finding]:
    manager, mend = state.table.manager, "run this again; a package of just that version must be in a source"
    if not same(manager, state.running):
        have = f"fabric manager {manager}" if manager else "no fabric manager"
        what = f"there is {have}, and driver {state.running} runs"
        return [error("DRIVER-FABRIC", name, what, mend, "it works with a driver of its own version only")]
    if not state.active(FABRIC):
        what, mend = "the fabric manager does not run", f"see journalctl -u {FABRIC}"
        return [error("DRIVER-FABRIC", name, what, mend, "GPUs behind NVSwitches cannot be used without it")]
    return []


def between(plan: Plan, works: Mapping[str, Work]) -> list[Finding]:
    """One driver on all hosts of an instance, and of a set."""
    versions = {host: _state(work).running for host, work in works.items() if concerned(plan, work.node)}
    return drivers.mixed(plan, versions, "NCCL is tested with one driver on all its hosts")
