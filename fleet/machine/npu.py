"""NPUs of a host against the plan: are they there, well, free, and of versions that go together?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import common, hccn, npu_pods, npu_table, npu_versions
from fleet.machine.common import alike, named
from fleet.machine.npu_table import FIRST, State
from fleet.topology import Plan

__all__ = ["FIRST", "State", "between", "judge", "parse", "sections"]

# MB. An idle NPU has 2.8 to 3.5 GB in use, by its own software; far more without a process is a context that leaked.
IDLE = 5000

# What npu-smi says instead of an answer: text, what it means, how to mend it, source.
REFUSALS = (
    ("ret is -8005", "the devices are held by a container, or npu-smi may not open them",
     "run as root, and stop what holds them: docker ps, then docker inspect for /dev/davinci*",
     "vllm-ascend issue 2698"),
    ("ret is -8020", "the devices are in use by a container",
     "stop it: docker ps, then docker inspect for /dev/davinci*", "cann-container-image issue 46"),
    ("ret is -8001", "the driver cannot be used",
     "install the driver again with --upgrade, then restart the host", "Huawei Cloud cce_faq_00494"),
    ("DrvMngGetConsoleLogLevel failed", "the driver does not answer",
     "look at the driver's version and at the permissions of /dev/davinci*", "vllm-ascend issue 13399"),
    ("error while loading shared libraries", "npu-smi does not find the driver's libraries",
     "add /usr/local/Ascend/driver/lib64 to /etc/ld.so.conf.d and run ldconfig", "driver installation guide"),
)  # fmt: skip
NO_CARD = "There is no NPU card"
# Of a state without a word: what may be done without risk.
HEALTH_MEND = "npu-smi info -t health -i <card> -c <chip> tells the code; look it up in the health manual, then repair"


def sections(plan: Plan, node: Node, whole: bool = True) -> list[str]:
    """The parts of a host's snapshot; none where the plan uses no device of it.

    Unless the ``whole`` is wanted, the network is not asked for where the plan's engines run: that proves it.
    """
    devices = common.used(plan, node)
    if not devices or not plan.recipe.platform.startswith("ascend"):
        return []
    cluster = common.together(plan, node)
    dies = plan.recipe.platform == "ascend-a3"
    parts = npu_table.sections(devices, dies, pod=cluster and dies)
    running = () if whole else tuple(unit.name for unit in plan.units_of(node.name) if unit.serves_model)
    return parts + (hccn.sections(plan.recipe.platform, devices, running) if cluster else [])


def parse(sections: Mapping[str, list[str]]) -> State:
    """Read the answers; whatever they are, this raises nothing."""
    return npu_table.parse(sections, *hccn.parse(sections))


def judge(plan: Plan, node: Node, state: State, ours: frozenset[int], serving: bool = False) -> list[Finding]:
    """What is wrong with one host's NPUs. ``ours`` are the processes of this plan's own units and containers."""
    devices = common.used(plan, node)
    if not devices:
        return []
    found = list(_installed(node.name, state))
    if stop := _unreadable(node.name, state):
        return [*found, stop]
    if stop := _other_family(plan, node.name, state):
        return [*found, stop]
    missing = [index for index in devices if state.chip(index) is None]
    if missing:
        found.append(_missing(node.name, missing, state))
    found += _health(node.name, devices, state)
    found += _foreign(node.name, devices, state, ours)
    found += _leaked(node.name, devices, state, serving)
    found += npu_versions.judge(plan, node, state)
    found += _memory(plan, node, state)
    if common.together(plan, node):
        found += _network(plan, node.name, state)
    return found


def _installed(host: str, state: State) -> Iterator[Finding]:
    """/etc/ascend_install.info, which containers have mounted and npu-smi itself looks at."""
    if not state.there or state.install == "complete":
        return
    says = "is missing" if state.install is None else f"says Driver_Install_Status={state.install or 'nothing'}"
    yield error(
        "NPU-INSTALL",
        host,
        f"{npu_table.INSTALL_INFO} {says}",
        "install the driver again and let it end: --full --install-for-all, or --upgrade",
        "the driver may not be completely installed, and Docker makes a folder of a file that is not there to mount",
        "npu-smi source, check_file; vllm-ascend installation guide",
    )


def _unreadable(host: str, state: State) -> Finding | None:
    """Why there is no table to judge."""
    text = " ".join(state.words)
    if not state.there:
        mend = "install driver and firmware; npu-smi comes with the driver, in /usr/local/bin"
        return error("NPU-TOOL", host, "npu-smi is not installed", mend, "the NPUs cannot be used without the driver")
    if state.late:
        what = f"npu-smi gave no answer in {npu_table.SECONDS} s"
        mend = "look at dmesg and the driver's log; a restart of the host clears a driver that hangs"
        return error("NPU-TOOL", host, what, mend, "a driver that does not answer serves no engine either")
    if state.chips:
        return None
    if NO_CARD in text:
        mend = "look for the cards with lspci -d 19e5:, then at the driver"
        return error("NPU-COUNT", host, "npu-smi finds no NPU", mend, "the plan uses them", "npu-smi source")
    for words, meaning, mend, source in REFUSALS:
        if words in text:
            line = next(word for word in state.words if words in word)
            return error("NPU-DCMI", host, meaning, mend, line, source)
    what = f"npu-smi's answer is not understood: {(state.words or ('an empty table',))[0][:80]}"
    return warning("NPU-TOOL", host, what, "look at npu-smi info on the host", "its devices are not checked")


def _other_family(plan: Plan, host: str, state: State) -> Finding | None:
    """A3's table has a column Phy-ID and names its dies Ascend910, A2's names are 910B1 to 910B4."""
    names = sorted({chip.name for chip in state.chips})
    seen = None
    if state.dies and names == ["Ascend910"]:
        seen = "ascend-a3"
    elif not state.dies and all(name.startswith("910B") for name in names):
        seen = "ascend-a2"
    if seen in (None, plan.recipe.platform):
        return None
    return error(
        "NPU-FAMILY",
        host,
        f"this is {seen} ({', '.join(names)}), recipe {plan.fleet.recipe} is for {plan.recipe.platform}",
        f"choose a recipe for {seen}, or take the host out of the inventory",
        "an image of the other family ends late, with: the socversion of bin package does not match",
        "vllm-ascend issue 6676",
    )


def _missing(host: str, missing: list[int], state: State) -> Finding:
    there = [chip.index for chip in state.chips]
    return error(
        "NPU-COUNT",
        host,
        f"{named(missing)} of the plan {'is' if len(missing) == 1 else 'are'} not there",
        "look for the card with lspci -d 19e5: and in dmesg; or give devices in the inventory",
        f"npu-smi shows {span(sorted(there))}",
        "npu-smi info",
    )


def _health(host: str, devices: tuple[int, ...], state: State) -> Iterator[Finding]:
    """Health words of the table: OK, Warning, Alarm, Critical, UNKNOWN."""
    words = {}
    for index in devices:
        chip = state.chip(index)
        if chip and chip.health and chip.health != "OK":
            code = f", code {state.errors[index]}" if index in state.errors else ""
            words[index] = f"{chip.health}{code}"
    for which, word in alike(words):
        say = warning if word.startswith("Warning") else error
        yield say("NPU-HEALTH", host, f"health of {which} is {word}", HEALTH_MEND, "", "npu-smi info -t health")


def _foreign(host: str, devices: tuple[int, ...], state: State, ours: frozenset[int]) -> Iterator[Finding]:
    """Processes of others on the plan's devices. One with a small context is told and no more."""
    others = [p for p in state.processes if p.index in devices and p.pid not in ours]
    for say, its in common.by_size(others):
        yield say(
            "NPU-PROCESS",
            host,
            f"{common.processes((p.pid, p.name) for p in its)} on {named(p.index for p in its)}, "
            f"{sum(p.memory or 0 for p in its)} MB",
            "end what is not needed, or give this service other devices; systemctl status <pid> tells whose it is",
            "not of this service: its memory is missing at the start, and a device that is held may be refused",
            "vllm-ascend issues 9372, 7308",
        )


def _leaked(host: str, devices: tuple[int, ...], state: State, serving: bool) -> Iterator[Finding]:
    """Memory in use on a device without a process: an engine that died and did not give it back."""
    busy = {p.index for p in state.processes}
    leaks = {}
    for index in devices:
        chip = state.chip(index)
        if chip and chip.hbm_used is not None and chip.hbm_used > IDLE and index not in busy:
            leaks[index] = chip.hbm_used
    if leaks:
        say = warning if serving else error
        yield say(
            "NPU-LEAK",
            host,
            f"up to {max(leaks.values())} MB in use on {named(leaks)}, and no process there",
            "look for processes of an engine that ended (docker ps -a, ps aux | grep -i vllm), end them, wait 10 s",
            f"an idle NPU has {IDLE} MB in use at the most",
            "vLLM issue 32116; vllm-ascend issue 9888",
        )


def _memory(plan: Plan, node: Node, state: State) -> Iterator[Finding]:
    """Devices too small for the plan: a 910B4 has 32 GB where a recipe counts on 64."""
    found = common.tight(plan, node, {chip.index: chip.hbm_total for chip in state.chips})
    if found:
        yield error(
            "NPU-MEMORY",
            node.name,
            found[0],
            "use more devices, smaller weights, or hosts with more memory a device",
            f"{found[1]}; a 910B4 has 32",
            "npu-smi info, HBM-Usage",
        )


def _network(plan: Plan, host: str, state: State) -> Iterator[Finding]:
    """What hosts need that work together."""
    if state.hccn_conf is False:
        yield error(
            "NPU-HCCN-CONF",
            host,
            f"{hccn.CONF} is missing",
            "set the ports' addresses with hccn_tool, which writes it",
            "the transfer engine does not start without it; it is mounted into the containers",
            "vllm-ascend multi-node guide; Mooncake pull request 502",
        )
    if state.hccn:
        why = "links, TLS and addresses of the NPUs are not checked"
        say = error if "not installed" in state.hccn else warning
        yield say("NPU-TOOL", host, state.hccn, "run hccn_tool -i 0 -link -g on the host", why)
    ports = {index: port for index, port in state.ports.items() if state.chip(index)}
    yield from hccn.judge(host, plan.recipe.platform, ports)


def between(plan: Plan, states: Mapping[str, State]) -> list[Finding]:
    """What must agree over the hosts of an instance, and over those of a set."""
    return npu_versions.between(plan, states) + npu_pods.between(plan, states)
