"""GPUs of a host against the plan: are they there, well, free, and does the driver fit the image?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet import versions
from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import common, gpu_table, xid
from fleet.machine.common import alike, named
from fleet.machine.gpu_table import FIRST, Gpu, State, parse
from fleet.topology import Plan

__all__ = ["FIRST", "State", "between", "judge", "parse", "sections"]

# MiB. An idle GPU has none in use, with some drivers up to 600; more without a process is a context that leaked.
IDLE = 2048
# Bits of the clocks' reasons that the hardware sets to protect itself: slowdown, thermal, power brake (nvml.h).
SLOWED = {0x08: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}

# What nvidia-smi says instead of an answer: text, what it means, how to mend it, source.
REFUSALS = (
    ("Driver/library version mismatch", "the driver in the kernel is not the one that is installed",
     "restart the host, or unload the old module", "nvidia-smi"),
    ("Failed to initialize NVML", "the driver's library does not start",
     "look at dmesg; in a container the devices were taken away by a daemon-reload",
     "nvidia-container-toolkit issue 1227"),
    ("couldn't communicate with the NVIDIA driver", "the driver does not run",
     "install the driver for this kernel (dkms status tells of it), then restart the host", "nvidia-smi"),
    ("GPU is lost", "a GPU is lost", "restart the host; where it happens again, have the GPU replaced", "nvidia-smi"),
    ("Unable to determine the device handle", "a GPU does not answer",
     "restart the host; where it happens again, have the GPU replaced", "nvidia-smi"),
)  # fmt: skip
NO_GPU = "No devices were found"


def sections(plan: Plan, node: Node) -> list[str]:
    """The parts of a host's snapshot; none where the plan uses no GPU of it."""
    return gpu_table.sections() if plan.recipe.platform == "nvidia" and common.used(plan, node) else []


def judge(plan: Plan, node: Node, state: State, ours: frozenset[int], serving: bool = False) -> list[Finding]:
    """What is wrong with one host's GPUs. ``ours`` are the processes of this plan's own units and containers."""
    devices = common.used(plan, node)
    if not devices:
        return []
    if stop := _unreadable(node.name, state):
        return [stop]
    gpus = [gpu for index in devices if (gpu := state.gpu(index))]
    found: list[Finding] = []
    if missing := [index for index in devices if state.gpu(index) is None]:
        found.append(_missing(node.name, missing, state))
    found += _fabric(node.name, gpus, state)
    found += _driver(plan, node, state)
    found += _memory_errors(node.name, gpus)
    found += _xids(node.name, gpus, state)
    found += _settings(node.name, gpus)
    found += _foreign(node.name, gpus, state, ours)
    found += _leaked(node.name, gpus, state, serving)
    found += _memory(plan, node, state)
    return found


def _unreadable(host: str, state: State) -> Finding | None:
    """Why there is no table to judge."""
    text = " ".join(state.words)
    if not state.there:
        mend = "install the driver; nvidia-smi comes with it"
        return error(
            "GPU-TOOL", host, "nvidia-smi is not installed", mend, "the GPUs cannot be used without the driver"
        )
    if state.late:
        what = f"nvidia-smi gave no answer in {gpu_table.SECONDS} s"
        mend = "look at dmesg for Xid errors; a restart of the host clears a driver that hangs"
        return error("GPU-TOOL", host, what, mend, "a driver that does not answer serves no engine either")
    if state.gpus:
        return None
    if NO_GPU in text:
        mend = "look for the GPUs with lspci -d 10de:, then at dmesg"
        return error("GPU-COUNT", host, "nvidia-smi finds no GPU", mend, "the plan uses them", "nvidia-smi")
    for words, meaning, mend, source in REFUSALS:
        if words in text:
            line = next(word for word in state.words if words in word)
            return error("GPU-NVML", host, meaning, mend, line.rstrip("."), source)
    what = f"nvidia-smi's answer is not understood: {(state.words or ('nothing',))[0][:80]}"
    return warning("GPU-TOOL", host, what, "look at nvidia-smi on the host", "its GPUs are not checked")


def _missing(host: str, missing: list[int], state: State) -> Finding:
    return error(
        "GPU-COUNT",
        host,
        f"{named(missing)} of the plan {'is' if len(missing) == 1 else 'are'} not there",
        "look for the GPU with lspci -d 10de: and in dmesg; or give devices in the inventory",
        f"nvidia-smi shows {span(sorted(gpu.index for gpu in state.gpus))}",
        "nvidia-smi",
    )


def _fabric(host: str, gpus: list[Gpu], state: State) -> Iterator[Finding]:
    """NVSwitch machines need a fabric manager of the driver's version, exactly; it brings the fabric to Completed.

    A guest has GPUs of a fabric that its host manages: completed, without a manager of its own.
    """
    waiting = {gpu.index: gpu.fabric_state for gpu in gpus if gpu.fabric_state not in (None, "Completed")}
    failed = {gpu.index: gpu.fabric_status for gpu in gpus if gpu.fabric_status not in (None, "Success")}
    if not state.switches and all(gpu.fabric_state is None for gpu in gpus):
        return
    say, what, mend = error, "", "systemctl enable --now nvidia-fabricmanager"
    if state.manager and state.driver and state.manager != state.driver:
        what = f"fabric manager {state.manager}, driver {state.driver}: they must be the same"
        mend = f"install nvidia-fabricmanager={state.driver} and hold both packages (apt-mark hold)"
    elif state.manager and not state.manager_active:
        what = "the fabric manager is not active"
        say = error if waiting or state.switches else warning
    elif waiting and not state.manager:
        what = "the fabric manager is not installed"
        mend = f"install nvidia-fabricmanager={state.driver}, then {mend}"
    elif waiting or failed:
        which, word = alike({i: str(w) for i, w in (waiting or failed).items()})[0]
        what = f"the fabric of {which} is {word}"
        mend = "look at journalctl -u nvidia-fabricmanager; a start takes a minute"
    if what:
        yield say(
            "GPU-FABRIC",
            host,
            what,
            mend,
            "the engine ends with CUDA error 802, system not yet initialized",
            "fabric manager user guide; gpu-operator issue 544",
        )


def _driver(plan: Plan, node: Node, state: State) -> Iterator[Finding]:
    """The driver's branch against the CUDA of the images."""
    driver = state.driver
    branch = driver.partition(".")[0] if driver else ""
    for image in sorted({u.image for u in plan.units_of(node.name) if u.serves_model and u.image}):
        cuda = versions.cuda_of(image, plan.recipe.engine.vllm)
        least = versions.driver_branch_for(cuda) if cuda else None
        if cuda and least and branch.isdigit() and int(branch) < least:
            yield error(
                "GPU-CUDA",
                node.name,
                f"driver {driver} is older than CUDA {'.'.join(map(str, cuda))} of {image} needs",
                f"install a driver of branch {least} or newer, or set engine.image to one for an older CUDA",
                "the container does not start, or the engine ends with CUDA error 803",
                "CUDA compatibility guide; vLLM release notes 0.20.0",
            )


def _memory_errors(host: str, gpus: list[Gpu]) -> Iterator[Finding]:
    """Uncorrected errors since boot and ever, rows that wait for a reset, rows that could not be replaced."""
    source = "NVIDIA GPU memory error management"
    reset = "stop what uses it, then nvidia-smi --gpu-reset -i <index>, or restart the host"
    now = {gpu.index: str(gpu.ecc_volatile) for gpu in gpus if gpu.ecc_volatile}
    for which, count in alike(now):
        what = f"{count} uncorrected memory errors on {which} since the driver's start"
        yield error("GPU-ECC", host, what, reset, "a result may be wrong, an engine may die", source)
    ever = {gpu.index: str(gpu.ecc_aggregate) for gpu in gpus if gpu.ecc_aggregate and not gpu.ecc_volatile}
    for which, count in alike(ever):
        what = f"{count} uncorrected memory errors on {which} in its life"
        yield warning("GPU-ECC", host, what, "watch it; where they grow, have the GPU replaced", "", source)
    if failed := [gpu.index for gpu in gpus if gpu.remap_failed]:
        what = f"memory rows of {named(failed)} could not be remapped"
        yield error("GPU-ROWS", host, what, "have the GPU replaced", "it has no spare rows left", source)
    if pending := [gpu.index for gpu in gpus if gpu.remap_pending and not gpu.remap_failed]:
        what = f"memory rows of {named(pending)} wait to be remapped"
        yield error("GPU-ROWS", host, what, reset, "bad rows are in use until then", source)


def _xids(host: str, gpus: list[Gpu], state: State) -> Iterator[Finding]:
    """Errors that the driver wrote to the kernel's log since the machine started."""
    by_bus = {gpu.bus: gpu.index for gpu in gpus}
    listed = {gpu.bus for gpu in state.gpus}
    source = "NVIDIA Xid catalog"
    for say, known, mend in (
        (error, xid.ERRORS, "reset the GPU or restart the host; where it comes again, have the GPU looked at"),
        (warning, xid.WARNINGS, "look at what ran then: journalctl -k -b | grep Xid"),
    ):
        found: dict[int, set[int]] = {}
        for bus, codes in state.xids:
            if bus in listed and bus not in by_bus:
                continue  # a GPU of another service
            for code in codes:
                if code in known:
                    found.setdefault(code, set()).add(by_bus.get(bus, -1))
        for code, indices in sorted(found.items()):
            which = "a GPU that is gone" if indices == {-1} else named(indices - {-1})
            what = f"Xid {code} ({known[code]}) of {which} since boot"
            yield say("GPU-XID", host, what, mend, "", source)


def _settings(host: str, gpus: list[Gpu]) -> Iterator[Finding]:
    """How the GPUs are set, and whether the hardware slows itself down."""
    if mig := [gpu.index for gpu in gpus if gpu.mig == "Enabled"]:
        what = f"{named(mig)} cut into MIG instances"
        yield error(
            "GPU-MIG", host, what, "nvidia-smi -i <index> -mig 0", "the plan counts on whole GPUs", "MIG user guide"
        )
    if off := [gpu.index for gpu in gpus if gpu.persistence == "Disabled"]:
        what = f"persistence is off for {named(off)}"
        mend = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
        yield warning("GPU-PERSISTENCE", host, what, mend, "the driver sets each GPU up anew for every first process",
                      "NVIDIA driver persistence")  # fmt: skip
    slow = {}
    for gpu in gpus:
        if words := [word for bit, word in SLOWED.items() if gpu.reasons and gpu.reasons & bit]:
            slow[gpu.index] = " and ".join(words)
    for which, word in alike(slow):
        mend = "look at cooling and power supply: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE"
        yield warning(
            "GPU-CLOCKS", host, f"{which} held back by {word}", mend, "one slow GPU slows its whole group", "nvml.h"
        )


def _foreign(host: str, gpus: list[Gpu], state: State, ours: frozenset[int]) -> Iterator[Finding]:
    """Processes of others on the plan's GPUs. One with a small context is told and no more."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    others = [p for p in state.processes if p.uuid in index and p.pid not in ours]
    for say, its in common.by_size(others):
        yield say(
            "GPU-PROCESS",
            host,
            f"{common.processes((p.pid, p.name) for p in its)} on {named(index[p.uuid] for p in its)}, "
            f"{sum(p.memory or 0 for p in its)} MiB",
            "end what is not needed, or give this service other devices; systemctl status <pid> tells whose it is",
            "not of this service: its memory is missing at the start",
            "vLLM, gpu-memory-utilization",
        )


def _leaked(host: str, gpus: list[Gpu], state: State, serving: bool) -> Iterator[Finding]:
    """Memory in use on a GPU without a process: an engine that died and did not give it back."""
    busy = {process.uuid for process in state.processes}
    leaks = {g.index: g.memory_used for g in gpus if g.memory_used and g.memory_used > IDLE and g.uuid not in busy}
    if leaks:
        say = warning if serving else error
        yield say(
            "GPU-LEAK",
            host,
            f"up to {max(leaks.values())} MiB in use on {named(leaks)}, and no process there",
            "look for processes of an engine that ended (fuser -v /dev/nvidia*), end them, wait 10 s",
            f"an idle GPU has {IDLE} MiB in use at the most",
            "vLLM issue 32116",
        )


def _memory(plan: Plan, node: Node, state: State) -> Iterator[Finding]:
    """GPUs too small for the plan."""
    if found := common.tight(plan, node, {gpu.index: gpu.memory_total for gpu in state.gpus}):
        yield error(
            "GPU-MEMORY",
            node.name,
            found[0],
            "use more devices, smaller weights, or hosts with more memory a device",
            found[1],
            "nvidia-smi, memory.total",
        )


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """One driver on all hosts that work together."""

    def say(host: str, its: str, other: str, theirs: str, company: str) -> Finding:
        mend = f"install one driver on all hosts of {company}"
        why = "a fault or a limit of one driver then shows on one host alone"
        return warning("GPU-DRIVER", host, f"driver {its}, {other} has {theirs}", mend, why)

    return common.differing(common.companies(plan), {h: s.driver for h, s in states.items()}, say)
