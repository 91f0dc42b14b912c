"""Driver, fabric manager and toolkit of GPU hosts: what is installed, held, started and refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.machine.gpu_table import Gpu, Process
from fleet.machine.gpu_table import State as Table
from fleet.prepare import nvidia, nvidia_packages, nvidia_unit
from fleet.prepare.common import Outcome, Step, Work
from fleet.prepare.kernel_modules import State as Kernel
from fleet.prepare.nvidia_state import State, upstream
from fleet.stacks import Stack
from tests.unit.drivers import calls, names, plan_of, sh, stack_of, told, tool, work_of

H100 = plan_of("nvidia")
MAIN, FABRIC = "nvidia-driver-580-server-open", "nvidia-fabricmanager-580"
BRANCH = stack_of(
    "nvidia",
    gpu_driver={"version": "580.*", "apt": [MAIN, FABRIC], "dnf": ["nvidia-open", "nvidia-fabricmanager"]},
    toolkit={"version": "*"},
)
EXACT = stack_of("nvidia", gpu_driver={"version": "580.95.05", "apt": [MAIN, FABRIC]}, toolkit={"version": "1.17.8"})
APT = {
    MAIN: "580.95.05-0ubuntu0.22.04.2",
    FABRIC: "580.95.05-0ubuntu0.22.04.1",
    "libnvidia-compute-580-server": "580.95.05-0ubuntu0.22.04.2",
    "nvidia-container-toolkit": "1.17.8-1",
    "libnvidia-container1": "1.17.8-1",
}
HELD = frozenset({MAIN, FABRIC, "libnvidia-compute-580-server"})
UNITS = {
    "nvidia-fabricmanager": ("enabled", "active"),
    "nvidia-persistenced": ("enabled", "active"),
    "vllm-fleet-gpu": ("enabled", "active"),
}

STARTED = "fabric manager enabled and started"
LASTING = "persistence mode and device links of the GPUs, now and with each start"


def table(driver: str = "580.95.05", persistence: str = "Enabled", count: int = 8, **more: Any) -> Table:
    """What nvidia-smi says of eight GPUs."""
    one = Gpu(0, "", "", driver, persistence, 81559, 0, "Disabled", 0, 0, "NVIDIA H100 80GB HBM3")
    gpus = tuple(replace(one, index=index) for index in range(count))
    return Table(True, False, gpus=gpus, module=driver, manager=more.pop("manager", driver), **more)


def there(installed: Mapping[str, str] = APT, held: frozenset[str] = HELD, **more: Any) -> State:
    """A host where all is as it should be."""
    given: dict[str, Any] = {"table": table(), "units": UNITS, "sums": nvidia_unit.SUMS, "links": True, "owned": True}
    kernel = more.pop("kernel", Kernel(headers=True, held=held))
    return State(**{**given, "installed": installed, "kernel": kernel, **more})


BARE = State(kernel=Kernel(headers=True))
OLD = {MAIN.replace("580", "570"): "570.133.20-0ubuntu0.22.04.1", "libnvidia-compute-570-server": "570.133.20-0ubuntu1"}
OLDER = there(OLD, frozenset(), table=table("570.133.20", manager=None))


def host(state: State, stack: Stack | None = BRANCH, **facts: Any) -> Work:
    return work_of(H100, state, stack, "nvidia", **facts)


# ---- what is to be done


def test_a_bare_host_gets_everything() -> None:
    assert names(nvidia.steps(host(BARE))) == [
        f"GPU driver 580.*: {MAIN}, {FABRIC} (there is none)",
        STARTED,
        "nvidia-container-toolkit (there is none)",
        LASTING,
    ]


def test_a_second_run_has_nothing_to_do() -> None:
    for stack in (BRANCH, EXACT):
        assert nvidia.steps(host(there(), stack)) == []
        assert nvidia.refuse(host(there(), stack, serving=("vllm-serve-0.service",))) == []
        assert nvidia.prove(host(there(), stack)) == []
        assert nvidia.pending(host(there(), stack)) == ""


def test_another_version_of_the_branch_is_exchanged_only_where_the_row_is_exact() -> None:
    newer = {**APT, MAIN: "580.105.08-0ubuntu1", FABRIC: "580.105.08-0ubuntu1"}
    found = there(newer, HELD, table=table("580.105.08"))
    assert nvidia.steps(host(found)) == []
    older = {**APT, MAIN: "580.82.07-0ubuntu1", FABRIC: "580.82.07-0ubuntu1"}
    assert names(nvidia.steps(host(there(older, table=table("580.82.07")), EXACT)))[0] == (
        f"GPU driver 580.95.05: {MAIN}, {FABRIC} (there is {MAIN} 580.82.07, {FABRIC} 580.82.07)"
    )


def test_an_older_branch_is_exchanged() -> None:
    assert names(nvidia.steps(host(OLDER)))[0] == f"GPU driver 580.*: {MAIN}, {FABRIC} (there is 570.133.20)"


def test_a_fabric_manager_that_went_ahead_is_brought_back() -> None:
    step = nvidia.steps(host(there({**APT, FABRIC: "580.105.08-0ubuntu1"})))[0]
    assert step.name == f"GPU driver 580.*: {MAIN}, {FABRIC} (there is {MAIN} 580.95.05, {FABRIC} 580.105.08)"
    assert "pick 580.95.05 || pick '580.*' ||" in step.script


def test_a_missing_fabric_manager_comes_in_the_drivers_version() -> None:
    step = nvidia.steps(host(there({k: v for k, v in APT.items() if k != FABRIC})))[0]
    assert step.name == f"GPU driver 580.*: {MAIN}, {FABRIC} (there is {MAIN} 580.95.05)"


def test_a_machine_without_nvswitches_has_no_fabric_manager() -> None:
    stack = stack_of("nvidia", gpu_driver={"version": "580.*", "apt": [MAIN, FABRIC], "fabric_manager": False})
    step, *others = nvidia.steps(host(BARE, stack))
    assert step.name == f"GPU driver 580.*: {MAIN} (there is none)"
    assert names(others) == [
        "nvidia-container-toolkit (there is none)",
        LASTING,
    ]
    assert nvidia.prove(host(there(table=table(manager=None), units={}), stack)) == []


def test_what_is_not_held_is_held() -> None:
    loose = there(held=frozenset({MAIN, FABRIC}))
    assert names(nvidia.steps(host(loose))) == ["GPU driver 580.95.05 held with all its packages"]


def test_with_dnf_the_named_packages_are_held() -> None:
    rpms = {
        "nvidia-open": "3:580.95.05-1.el9",
        "nvidia-fabricmanager": "0:580.95.05-1",
        "nvidia-driver-libs": "3:580.95.05-1",
    }
    tools = {"nvidia-container-toolkit": "0:1.17.8-1"}
    loose = there({**rpms, **tools}, frozenset({"nvidia-open"}))
    (step,) = nvidia.steps(host(loose, family="redhat"))
    assert "dnf -q versionlock add nvidia-open nvidia-fabricmanager </dev/null" in step.script
    done = there({**rpms, **tools}, frozenset({"nvidia-open", "nvidia-fabricmanager"}))
    assert nvidia.steps(host(done, family="redhat")) == []


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (there(units={**UNITS, "nvidia-fabricmanager": ("disabled", "active")}), STARTED),
        (there(units={**UNITS, "nvidia-fabricmanager": ("enabled", "failed")}), STARTED),
        (there(table=table(persistence="Disabled")), LASTING),
        (there(links=False), LASTING),
        (there(sums={}), LASTING),
        (there({k: v for k, v in APT.items() if "toolkit" not in k}), "nvidia-container-toolkit (there is none)"),
    ],
)  # fmt: skip
def test_one_thing_that_is_missing_is_mended_alone(state: State, name: str) -> None:
    assert names(nvidia.steps(host(state))) == [name]


def test_the_fabric_manager_waits_for_a_restart_that_is_due() -> None:
    waiting = there(units={**UNITS, "nvidia-fabricmanager": ("enabled", "failed")})
    assert nvidia.steps(host(waiting, reboot=("GPU driver 580.95.05 takes effect with the next start",))) == []


def test_nouveau_is_kept_away_before_the_driver_comes() -> None:
    steps = nvidia.steps(host(replace(BARE, nouveau=True)))
    assert names(steps)[:2] == [
        "nouveau kept away from the GPUs",
        f"GPU driver 580.*: {MAIN}, {FABRIC} (there is none)",
    ]
    assert steps[0].read and steps[0].read(True, []) == Outcome(reboot="the kernel's own driver nouveau has the GPUs")
    assert "blacklist nouveau" in steps[0].script
    assert names(nvidia.steps(host(replace(BARE, nouveau=True, blacklisted=True))))[0].startswith("GPU driver")


@pytest.mark.parametrize(
    ("family", "name"),
    [("debian", "linux-headers-5.15.0-25-generic"), ("redhat", "kernel-devel-5.15.0-25-generic")],
)
def test_headers_come_before_the_driver(family: str, name: str) -> None:
    step = nvidia.steps(host(State(), family=family))[0]
    assert step.name == f"{name} (the driver builds its module with it)"
    assert step.read
    (finding,) = step.read(False, [f"E: Unable to locate package {name}"]).findings
    assert (finding.rule, finding.severity) == ("PREPARE-HEADERS", "warning")
    assert finding.what == f"package {name}: no source of packages has {name}"
    assert finding.mend.endswith(", where the driver's installation fails")


def test_without_a_row_what_is_there_is_made_to_last() -> None:
    assert nvidia.steps(host(BARE, None)) == []
    assert names(nvidia.steps(host(there(sums={}), None))) == [LASTING]


def test_engines_without_containers_need_no_toolkit() -> None:
    plan = plan_of("nvidia", "native")
    found = there({k: v for k, v in APT.items() if "container" not in k}, links=False)
    assert nvidia.steps(work_of(plan, found, BRANCH, "nvidia")) == []


def test_an_exact_toolkit_comes_with_its_parts_of_the_same_version() -> None:
    (step,) = nvidia.steps(host(there({**APT, "nvidia-container-toolkit": "1.16.2-1"}), EXACT))
    assert step.name == "nvidia-container-toolkit 1.17.8 (there is 1.16.2)"
    assert "in one version 1.17.8" in step.script


def test_other_platforms_have_nothing_to_do_with_it() -> None:
    plan = plan_of("ascend-a3")
    work = work_of(plan, nvidia.parse({}), None, "nvidia")
    assert nvidia.sections(plan, plan.fleet.nodes[0]) == []
    assert (nvidia.refuse(work), nvidia.steps(work), nvidia.prove(work), nvidia.pending(work)) == ([], [], [], "")


# ---- what is refused


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (
            host(OLDER, serving=("vllm-serve-0.service",)),
            "error: 10.0.0.11: vllm-serve-0.service serves, and GPU driver 580.* must be installed (requests in flight "
            "would be lost); drain the host, systemctl stop vllm-serve-0.service, then run this again [DRIVER-BUSY]",
        ),
        (
            host(replace(OLDER, table=table("570.133.20", processes=(Process("", 71, "python", 900),)))),
            "error: 10.0.0.11: process 71 (python) on the GPUs, and GPU driver 580.* must be installed (its libraries "
            "no longer fit the module that it uses: Driver/library version mismatch); end what is there, then run this "
            "again [DRIVER-BUSY]",
        ),
        (
            host(there({MAIN: "590.48.01-0ubuntu1", FABRIC: "590.48.01-0ubuntu1"}, table=table("590.48.01"))),
            "error: 10.0.0.11: GPU driver 590.48.01 is newer than the 580.* of catalogue row (newer images may need "
            "the newer one); name a row with this version or a newer one; or purge it by hand, restart, and run this "
            "again [DRIVER-DOWNGRADE]",
        ),
        (
            host(there({}, owned=False, table=table("570.133.20"))),
            "error: 10.0.0.11: GPU driver 570.133.20 did not come in a package, and 580.* is wanted (packages put "
            "their files over those of NVIDIA's own installer, and neither works); nvidia-uninstall, restart the host, "
            "and run this again [DRIVER-ORIGIN]",
        ),
        (
            host(replace(BARE, kernel=Kernel(headers=True, secure_boot=True))),
            "warning: 10.0.0.11: Secure Boot is on, and the kernel loads signed modules only (a driver built on the "
            "host is not loaded); enrol the key that signs the module (mokutil --import), or switch Secure Boot off "
            "[DRIVER-SECUREBOOT]",
        ),
        (
            host(BARE, EXACT, family="redhat"),
            "error: 10.0.0.11: catalogue row names no packages of the driver for dnf; write them into the row, under "
            "gpu_driver.dnf [DRIVER-PACKAGE]",
        ),
        (
            host(BARE, None),
            "error: 10.0.0.11: there is no GPU driver, and no catalogue is named; name a row by catalogue in the "
            "inventory or the recipe; fleet catalogue lists them [DRIVER-CATALOGUE]",
        ),
        (
            host(there(), None),
            "warning: 10.0.0.11: GPU driver 580.95.05 is left as it is, because no catalogue is named; name a row by "
            "catalogue in the inventory or the recipe; fleet catalogue lists them [DRIVER-CATALOGUE]",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Work) else value.rpartition("[")[2],
)
def test_what_is_told_before_anything_is_changed(work: Work, line: str) -> None:
    assert told(nvidia.refuse(work)) == [line]


def test_an_installed_driver_of_another_origin_that_is_right_is_left() -> None:
    own = there({"nvidia-container-toolkit": "1.17.8-1"}, frozenset(), owned=False)
    assert nvidia.refuse(host(own)) == []
    assert nvidia.steps(host(own)) == []


# ---- the packages, as the script picks them


APT_SOURCE = f"""
 {MAIN} | 590.48.01-0ubuntu1 | local noble Packages
 {MAIN} | 580.105.08-0ubuntu1 | local noble Packages
 {MAIN} | 580.95.05-0ubuntu0.22.04.2 | local noble Packages
 {MAIN} | 580.65.06-0ubuntu1 | local noble Packages
 {FABRIC} | 580.95.05-0ubuntu0.22.04.1 | local noble Packages
 {FABRIC} | 580.65.06-0ubuntu1 | local noble Packages
"""


def apt(folder: Path) -> None:
    """apt and dpkg that know these packages, and note what they are asked to do."""
    tool(folder, "apt-cache", f'test "$1" = madison && cat <<\'END\' | grep "^ $2 |"\n{APT_SOURCE.strip(chr(10))}\nEND')
    tool(folder, "apt-get", f'echo "apt-get $*" >>{folder}/calls')
    tool(folder, "apt-mark", f'echo "apt-mark $*" >>{folder}/calls')
    tool(
        folder,
        "dpkg-query",
        f"""
case "$*" in
(*'${{Package}}'*) printf '%s\\n' '{MAIN} 580.95.05-0ubuntu0.22.04.2 ii ' '{FABRIC} 580.95.05-0ubuntu0.22.04.1 hi ' \\
  'libnvidia-compute-580-server 1:580.95.05-0ubuntu0.22.04.2 ii ' 'libnvidia-old 570.1-1 ii ' \\
  'nvidia-gone 580.95.05-1 rc ' 'nvidia-container-toolkit 1.17.8-1 ii ';;
(*) printf '580.95.05-0ubuntu0.22.04.2';;
esac""",
    )


def changed(script: str, folder: Path) -> str:
    """A script whose files lie in a folder."""
    for path in ("/var/lib/vllm-fleet", nvidia_packages.PINS.rpartition("/")[0], "/etc/apt/sources.list.d"):
        script = script.replace(path, str(folder))
    return script


def chosen(folder: Path, patterns: list[str]) -> tuple[int, list[str]]:
    return sh(nvidia_packages.pick("debian", [MAIN, FABRIC], patterns), folder)


@pytest.mark.parametrize(
    ("patterns", "picked"),
    [
        (["580.*"], "580.95.05-0ubuntu0.22.04.2"),  # 580.105.08 has no fabric manager
        (["580.65.06"], "580.65.06-0ubuntu1"),
        (["580.82.07", "580.*"], "580.95.05-0ubuntu0.22.04.2"),
    ],
)
def test_the_newest_version_that_all_packages_have_is_picked(tmp_path: Path, patterns: list[str], picked: str) -> None:
    apt(tmp_path)
    rc, lines = chosen(tmp_path, patterns)
    assert rc == 0
    assert lines[0].startswith(f"picked: {MAIN}={picked} {FABRIC}=")
    assert calls(tmp_path) == []


def test_the_lists_are_updated_where_nothing_fits(tmp_path: Path) -> None:
    apt(tmp_path)
    assert chosen(tmp_path, ["600.*"]) == (1, [f"no source has {MAIN}, {FABRIC} in one version 600.*"])
    assert [line.split()[-1] for line in calls(tmp_path)] == ["update"]


def test_all_is_installed_as_one_pinned_and_held(tmp_path: Path) -> None:
    apt(tmp_path)
    tool(tmp_path, "nvidia-smi", "exit 0")
    step = nvidia.steps(host(OLDER, kernel="k", in_container=True))[0]
    rc, lines = sh(changed(step.script, tmp_path), tmp_path)
    assert rc == 0, lines
    done = [line for line in calls(tmp_path) if not line.endswith("update")]
    assert done[0].endswith(f"{MAIN}=580.95.05-0ubuntu0.22.04.2 {FABRIC}=580.95.05-0ubuntu0.22.04.1")
    assert done[1:] == [f"apt-mark hold {MAIN} {FABRIC} libnvidia-compute-580-server"]
    assert (tmp_path / "vllm-fleet-gpu.pref").read_text() == (
        "Package: nvidia-* libnvidia-* xserver-xorg-video-nvidia* cuda-drivers*\nPin: version 580.95.05*\n"
        "Pin-Priority: 999\n"
    )
    assert lines[-2:] == ["@ picked 580.95.05", "@ answers"]


def test_held_packages_are_let_go_of_first(tmp_path: Path) -> None:
    apt(tmp_path)
    held = replace(OLDER, kernel=Kernel(headers=True, held=frozenset(OLD)))
    assert sh(changed(nvidia.steps(host(held, in_container=True))[0].script, tmp_path), tmp_path)[0] == 0
    assert calls(tmp_path)[0] == f"apt-mark unhold {' '.join(sorted(OLD))}"


def test_where_the_installation_fails_what_is_there_is_held_again(tmp_path: Path) -> None:
    apt(tmp_path)
    tool(tmp_path, "apt-get", f'echo "apt-get $*" >>{tmp_path}/calls; case "$*" in (*update) exit 0;; esac; exit 100')
    rc, _ = sh(changed(nvidia.steps(host(OLDER, in_container=True))[0].script, tmp_path), tmp_path)
    assert rc == 100
    assert calls(tmp_path)[-1].startswith("apt-mark hold ")


def test_dnf_picks_and_installs_by_name_and_version(tmp_path: Path) -> None:
    tool(
        tmp_path,
        "dnf",
        f"""
echo "dnf $*" >>{tmp_path}/calls
case "$*" in
(*repoquery*nvidia-open) printf '%s\\n' 580.82.07-1.el9 580.105.08-1.el9 590.1-1 580.95.05-1.el9;;
(*repoquery*fabricmanager) printf '%s\\n' 580.95.05-1 580.82.07-1;;
esac""",
    )
    tool(tmp_path, "nvidia-smi", "exit 9")
    step = nvidia.steps(host(State(kernel=Kernel(headers=True)), family="redhat", in_container=True))[0]
    rc, lines = sh(changed(step.script, tmp_path), tmp_path)
    assert rc == 0, lines
    install = next(line for line in calls(tmp_path) if " install " in line)
    assert install.endswith("install nvidia-open-580.95.05-1.el9 nvidia-fabricmanager-580.95.05-1")
    assert "dnf -q versionlock add nvidia-open nvidia-fabricmanager" in calls(tmp_path)
    assert lines[-1] == "@ picked 580.95.05"


def read(state: State = BARE, stack: Stack = BRANCH) -> Any:
    step = next(s for s in nvidia.steps(host(state, stack)) if s.name.startswith("GPU driver"))
    assert step.read
    return step.read


@pytest.mark.parametrize(
    ("lines", "reboot"),
    [
        (["@ picked 580.95.05", "@ loaded 580.95.05", "@ answers"], ""),
        (["@ picked 580.95.05", "@ answers"], ""),
        (["@ picked 580.95.05"], "GPU driver 580.95.05 takes effect with the next start"),
        (
            ["@ picked 580.95.05", "@ loaded 570.133.20"],
            "GPU driver 580.95.05 takes effect with the next start, 570.133.20 is loaded",
        ),
    ],
)
def test_the_end_says_whether_a_restart_is_due(lines: list[str], reboot: str) -> None:
    assert read()(True, ["Setting up it", *lines]) == Outcome(reboot=reboot)


def test_a_package_that_is_nowhere_says_what_to_do() -> None:
    said = f"no source has {MAIN}, {FABRIC} in one version 580.*"
    (finding,) = read()(False, [said]).findings
    assert finding.line() == (
        f"error: 10.0.0.11: {said} (driver and fabric manager must be the same); name a source that has them by "
        "package_source, or put them into the bundle's apt or dnf folder [DRIVER-PACKAGE]"
    )


def test_an_installation_that_fails_is_told() -> None:
    (finding,) = read()(False, ["E: Unable to correct problems, you have held broken packages."]).findings
    assert (finding.rule, finding.severity) == ("PREPARE-PACKAGE", "error")


# ---- units


def fabric(folder: Path, restart: int, smi: int) -> tuple[int, list[str]]:
    tool(folder, "systemctl", f'echo "systemctl $*" >>{folder}/calls; test "$1" != restart || exit {restart}')
    tool(folder, "nvidia-smi", f"exit {smi}")
    tool(folder, "journalctl", "echo 'driver interface version does not match'")
    step: Step = next(s for s in nvidia.steps(host(BARE)) if s.name.startswith("fabric"))
    return sh(step.script, folder)


def test_the_fabric_manager_is_enabled_and_started(tmp_path: Path) -> None:
    assert fabric(tmp_path, 0, 0) == (0, [])
    assert calls(tmp_path)[1:] == ["systemctl enable nvidia-fabricmanager", "systemctl restart nvidia-fabricmanager"]


def test_before_the_restart_it_need_not_start(tmp_path: Path) -> None:
    assert fabric(tmp_path, 1, 18) == (0, ["it starts with the host"])


def test_a_fabric_manager_that_does_not_start_fails_the_host(tmp_path: Path) -> None:
    rc, lines = fabric(tmp_path, 1, 0)
    assert rc == 1
    step = next(s for s in nvidia.steps(host(BARE)) if s.name.startswith("fabric"))
    assert step.read
    assert told(step.read(False, lines).findings) == [
        "error: 10.0.0.11: the fabric manager does not start (driver interface version does not match); see journalctl "
        "-u nvidia-fabricmanager; it must be of the driver's version exactly [DRIVER-FABRIC]"
    ]


def links(folder: Path) -> tuple[int, list[str]]:
    text = nvidia_unit.SCRIPT.replace("/dev/char", str(folder / "char")).replace("/dev/nvidia", f"{folder}/nvidia")
    (folder / "char").mkdir(exist_ok=True)
    return sh(text.replace("test -c", "test -e"), folder)


def test_the_toolkit_makes_the_links(tmp_path: Path) -> None:
    for name in ("nvidia-smi", "nvidia-ctk"):
        tool(tmp_path, name, f'echo {name} "$@" >>{tmp_path}/calls')
    assert links(tmp_path)[0] == 0
    assert calls(tmp_path) == ["nvidia-smi -pm 1", "nvidia-ctk system create-dev-char-symlinks --create-all"]


def test_where_the_toolkit_cannot_they_are_made_by_hand(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "exit 1")
    tool(tmp_path, "nvidia-ctk", "exit 1")
    tool(tmp_path, "stat", "echo c3 ff")
    (tmp_path / "nvidiactl").touch()
    assert links(tmp_path)[0] == 0
    assert (tmp_path / "char" / "195:255").is_symlink()


def test_links_come_before_the_daemon_reload() -> None:
    script = nvidia_unit.script()
    assert script.index("\n/bin/sh /usr/local/lib") < script.index("systemctl daemon-reload")


# ---- what is asked and read


def test_an_answer_is_read() -> None:
    state = nvidia.parse(
        {
            "nvidia-packages": [f"{MAIN} 580.95.05-0ubuntu0.22.04.2", "nvidia-fabricmanager 3:580.95.05-1.el9"],
            "nvidia-host": ["nouveau", "links", "owned"],
            "kernel-build": ["secureboot"],
            "nvidia-units": ["nvidia-fabricmanager enabled active", "nvidia-persistenced none "],
            "nvidia-files": ["0a /etc/systemd/system/vllm-fleet-gpu.service"],
            "gpu": ["Failed to initialize NVML: Driver/library version mismatch", "rc 18"],
            "gpu-module": ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Thu Mar 20 2025"],
        }
    )  # fmt: skip
    assert (state.version(MAIN), state.version("nvidia-fabricmanager")) == ("580.95.05", "580.95.05")
    assert (state.nouveau, state.kernel.secure_boot, state.links, state.owned, state.blacklisted) == (
        True, True, True, True, False,
    )  # fmt: skip
    assert (state.enabled("nvidia-fabricmanager"), state.active("nvidia-fabricmanager")) == (True, True)
    assert not state.enabled("nvidia-persistenced")
    assert (state.mismatch, state.running, state.table.module) == (True, None, "570.133.20")
    assert not state.foreign


def test_a_machine_without_gpus_answers(tmp_path: Path) -> None:
    _, lines = sh("\n".join(nvidia.sections(H100, H100.fleet.nodes[0])), tmp_path)
    assert "@@ nvidia-host" in lines
    assert not [line for line in lines if "not found" in line or "rror" in line]


@pytest.mark.parametrize(
    ("whole", "plain"),
    [("580.95.05-0ubuntu0.22.04.2", "580.95.05"), ("3:580.95.05-1.el9", "580.95.05"), ("1.17.8-1", "1.17.8")],
)
def test_a_package_has_the_drivers_version_in_its_own(whole: str, plain: str) -> None:
    assert upstream(whole) == plain


# ---- afterwards


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (
            there(table=table("570.133.20", manager="570.133.20")),
            "error: 10.0.0.11: GPU driver 570.133.20 runs, and it should be 580.*; restart the host, and run this "
            "again [DRIVER-RUNNING]",
        ),
        (
            there(table=Table(True, False, ("Failed to initialize NVML: Driver/library version mismatch",))),
            "error: 10.0.0.11: GPU driver 580.95.05 does not answer (Failed to initialize NVML: Driver/library version "
            "mismatch); restart the host; if it stays so, see dmesg for NVRM and dkms status [DRIVER-RUNNING]",
        ),
        (
            there(table=table(manager="580.105.08")),
            "error: 10.0.0.11: there is fabric manager 580.105.08, and driver 580.95.05 runs (it works with a driver "
            "of its own version only); run this again; a package of just that version must be in a source "
            "[DRIVER-FABRIC]",
        ),
        (
            there(units={**UNITS, "nvidia-fabricmanager": ("enabled", "failed")}),
            "error: 10.0.0.11: the fabric manager does not run (GPUs behind NVSwitches cannot be used without it); see "
            "journalctl -u nvidia-fabricmanager [DRIVER-FABRIC]",
        ),
        (
            there(table=table(count=7)),
            "error: 10.0.0.11: device 7 of 8 GPUs cannot be seen (a card that fell out is not seen until an engine "
            "waits); look for the card with lspci -d 10de: and dmesg, or give devices in the inventory "
            "[DRIVER-DEVICES]",
        ),
        (
            there(links=False),
            "warning: 10.0.0.11: persistence mode is off, or /dev/char has no links to the GPUs' nodes (a "
            "daemon-reload takes the GPUs from containers that got them by request); systemctl status vllm-fleet-gpu "
            "tells why [DRIVER-LINKS]",
        ),
    ],
    ids=lambda value: "" if isinstance(value, State) else value.rpartition("[")[2],
)
def test_what_is_still_wrong_is_told(state: State, line: str) -> None:
    assert told(nvidia.prove(host(state))) == [line]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (there(table=table("570.133.20")), "GPU driver 580.95.05 is installed, 570.133.20 is loaded"),
        (
            there(table=Table(True, False, ("Failed to initialize NVML: Driver/library version mismatch",))),
            "GPU driver 580.95.05 is installed, another is loaded",
        ),
        (there(nouveau=True, blacklisted=True), "the kernel's own driver nouveau has the GPUs"),
        (OLDER, ""),  # there is something to install first
    ],
)
def test_a_restart_is_due_where_another_module_is_loaded(state: State, why: str) -> None:
    assert nvidia.pending(host(state)) == why


def test_the_host_with_another_driver_is_named() -> None:
    plan = plan_of("nvidia", hosts=2)
    states = (there(), there(table=table("580.82.07")))
    works = {
        node.name: replace(work_of(plan, state, BRANCH, "nvidia"), node=node)
        for node, state in zip(plan.fleet.nodes, states, strict=True)
    }
    assert told(nvidia.between(plan, works)) == [
        "error: 10.0.0.12: driver 580.82.07, 10.0.0.11 has 580.95.05 (NCCL is tested with one driver on all its "
        "hosts); name one row of the catalogue for all hosts of serve-0, and run this again [DRIVER-MIXED]"
    ]
