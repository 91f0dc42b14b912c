"""CANN on hosts without containers: what is installed, found and refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.prepare import ascend_run, cann
from fleet.prepare.cann import State
from fleet.prepare.common import Outcome, Work
from fleet.stacks import Stack
from tests.unit.drivers import bundle_of, calls, names, plan_of, sh, stack_of, told, tool, work_of

PACKAGES = (
    "Ascend-cann-toolkit_8.5.1_linux-aarch64.run",
    "Ascend-cann-A3-ops_8.5.1_linux-aarch64.run",
    "Ascend-cann-nnal_8.5.1_linux-aarch64.run",
)
NATIVE = plan_of("ascend-a3", "native")
ALL = State({"toolkit": "8.5.1", "ops": "8.5.1", "nnal": "8.5.1"})


def row(version: str = "8.5.1") -> Stack:
    patterns = ["Ascend-cann-toolkit_{v}_linux-{{arch}}.run", "*A3*ops_{v}_linux-{{arch}}.run",
                "Ascend-cann-nnal_{v}_linux-{{arch}}.run"]  # fmt: skip
    return stack_of(
        "ascend-a3", cann={"version": version, "packages": [{"pattern": p.format(v=version)} for p in patterns]}
    )


def host(state: State, stack: Stack | None = None, packages: Sequence[str] = PACKAGES, **facts: object) -> Work:
    return work_of(NATIVE, state, stack or row(), "cann", bundle_of(*packages), **facts)


def test_a_bare_host_gets_all_three_in_order() -> None:
    steps = cann.steps(host(State({})))
    assert names(steps) == [
        "CANN toolkit 8.5.1 (there is none)", "CANN ops 8.5.1 (there is none)", "CANN nnal 8.5.1 (there is none)",
    ]  # fmt: skip
    assert [s.name for step in steps for s in step.sources] == list(PACKAGES)
    assert "run --full --quiet" in steps[0].script
    assert "run --install --quiet" in steps[1].script


def test_only_what_is_missing_or_older_is_installed() -> None:
    found = State({"toolkit": "8.5.1", "ops": "8.3.RC2"})
    assert names(cann.steps(host(found))) == ["CANN ops 8.5.1 (there is 8.3.RC2)", "CANN nnal 8.5.1 (there is none)"]


def test_a_new_toolkit_lies_beside_the_old_one() -> None:
    step = cann.steps(host(State({"toolkit": "8.3.RC2"})))[0]
    assert step.name == "CANN toolkit 8.5.1 (there is 8.3.RC2)"
    assert "run --install --quiet" in step.script


def test_a_second_run_has_nothing_to_do() -> None:
    assert cann.steps(host(ALL)) == []
    assert cann.refuse(host(ALL, packages=(), serving=("vllm-serve-0.service",))) == []
    assert cann.prove(host(ALL)) == []


def test_operators_were_called_kernels_once() -> None:
    stack = stack_of(
        "ascend-a2",
        cann={
            "version": "8.3.RC2",
            "packages": [
                {"pattern": "Ascend-cann-nnal_8.3.RC2_linux-{arch}.run"},
                {"pattern": "Ascend-cann-kernels-910b_8.3.RC2_linux-{arch}.run"},
                {"pattern": "Ascend-cann-toolkit_8.3.RC2_linux-{arch}.run"},
            ],
        },
    )
    files = [p.pattern.format(arch="aarch64") for p in stack.cann.packages] if stack.cann else []
    assert names(cann.steps(host(State({}), stack, files))) == [
        "CANN toolkit 8.3.RC2 (there is none)", "CANN ops 8.3.RC2 (there is none)", "CANN nnal 8.3.RC2 (there is none)",
    ]  # fmt: skip


def test_engines_in_containers_bring_their_own() -> None:
    plan = plan_of("ascend-a3", "docker")
    work = work_of(plan, State({}), row(), "cann")
    assert cann.sections(plan, plan.fleet.nodes[0]) == []
    assert (cann.steps(work), cann.refuse(work), cann.prove(work)) == ([], [], [])


def test_without_cann_in_the_row_it_is_left_alone() -> None:
    work = host(State({}), stack_of("ascend-a3"))
    assert (cann.steps(work), cann.refuse(work), cann.prove(work)) == ([], [], [])


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (
            host(State({"toolkit": "9.0.0"})),
            "error: 10.0.0.11: CANN toolkit 9.0.0 is newer than the 8.5.1 of catalogue row (engines in use may be "
            "built for the newer one); name a row with this CANN or a newer one, or uninstall it by hand and run this "
            "again [DRIVER-DOWNGRADE]",
        ),
        (
            host(State({}), serving=("vllm-serve-0.service", "vllm-router.service")),
            "error: 10.0.0.11: vllm-serve-0.service, vllm-router.service serve, and CANN 8.5.1 must be installed (an "
            "engine loads operators from CANN while it runs); drain the host, systemctl stop vllm-serve-0.service "
            "vllm-router.service, then run this again [DRIVER-BUSY]",
        ),
        (
            host(State({}), packages=PACKAGES[:2]),
            "error: 10.0.0.11: CANN nnal 8.5.1 must be installed, and no file Ascend-cann-nnal_8.5.1_linux-aarch64.run "
            "is at hand; put it into packages/ of a folder that the inventory names as bundle, or into a folder of the "
            "host that bundle_on_host names [DRIVER-PACKAGE]",
        ),
    ],
    ids=["newer", "serving", "package"],
)
def test_what_stops_a_host(work: Work, line: str) -> None:
    assert told(cann.refuse(work)) == [line]


def test_what_is_still_missing_is_told() -> None:
    assert told(cann.prove(host(State({"toolkit": "8.5.1", "ops": "8.3.RC2", "nnal": "8.5.1"})))) == [
        "error: 10.0.0.11: CANN ops is 8.3.RC2, the catalogue's row says 8.5.1 (an engine ends when it loads its "
        "operators); run this again; if it stays so, install the package by hand and read what it says [CANN-VERSION]"
    ]


# ---- what is found on a host

NEW = {
    "cann-8.5.1/aarch64-linux/ascend_toolkit_install.info": "package_name=Ascend-cann-toolkit\nversion=8.5.1\n",
    "cann-8.5.1/aarch64-linux/ascend_ops_install.info": "package_name=Ascend-cann-A3-ops\nversion=8.5.1\n",
    "nnal/atb/8.5.1/version.info": "    Ascend-cann-atb : 8.5.1\n    Ascend-cann-atb Version : 8.5.1.B030\n",
}
OLD = {
    "ascend-toolkit/8.1.RC1/aarch64-linux/ascend_toolkit_install.info": (
        "package_name=Ascend-cann-toolkit\nversion=8.1.RC1\ninnerversion=V100R001C21SPC001B238\narch=aarch64\n"
    ),
    "ascend-toolkit/8.1.RC1/opp_kernel/version.info": "Version=7.7.0.1.238\nversion_dir=8.1.RC1\ntimestamp=1\n",
}


@pytest.mark.parametrize(
    ("files", "links", "found"),
    [
        (NEW, {"cann": "cann-8.5.1", "nnal/atb/latest": "8.5.1"},
         {"toolkit": "8.5.1", "ops": "8.5.1", "nnal": "8.5.1"}),
        (OLD, {"ascend-toolkit/latest": "8.1.RC1"}, {"toolkit": "8.1.RC1", "ops": "8.1.RC1"}),
        ({}, {}, {}),
    ],
    ids=["from 8.5 on", "before", "none"],
)  # fmt: skip
def test_versions_are_found(
    tmp_path: Path, files: dict[str, str], links: dict[str, str], found: dict[str, str]
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path, target in links.items():
        (tmp_path / path).symlink_to(target)
    (text,) = cann.sections(NATIVE, NATIVE.fleet.nodes[0])
    _, lines = sh(text.replace("/usr/local/Ascend", str(tmp_path)), tmp_path)
    assert lines[0] == "@@ cann"
    assert cann.parse({"cann": lines[1:]}) == State(found)


# ---- its packages, run


def test_operators_are_installed_in_the_toolkits_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_run, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(cann, "SETUP", (str(tmp_path / "missing.sh"), str(tmp_path / "set_env.sh")))
    (tmp_path / "set_env.sh").write_text("export ASCEND_TOOLKIT_HOME=/here")
    path = tool(tmp_path, PACKAGES[2], f'echo "$ASCEND_TOOLKIT_HOME $*" >>{tmp_path}/calls')
    there = State({"toolkit": "8.5.1", "ops": "8.5.1"})
    (step,) = cann.steps(host(there, packages=(), files={str(path): path.stat().st_size}))
    assert sh(step.script, tmp_path) == (0, ["it ended with 0"])
    assert calls(tmp_path) == [" --check", "/here --install --quiet"]


@pytest.mark.parametrize(
    ("done", "line", "rule"),
    [
        (False, "[ERROR] The package is for x86_64, this machine is aarch64", "DRIVER-ARCH"),
        (False, "Error in SHA256 checksums: 1 is different from 2", "DRIVER-CORRUPT"),
        (False, "[ERROR] something new", "CANN-FAILED"),
        (True, "[Toolkit] [ERROR] ERR_NO:0x0090;ERR_DES:failed to uninstall package", "CANN-FAILED"),
        (True, "Ascend-cann-toolkit install failed", "CANN-FAILED"),
    ],
)
def test_a_package_that_fails_is_told(done: bool, line: str, rule: str) -> None:
    read = cann.steps(host(State({})))[0].read
    assert read
    (finding,) = read(done, [line, "it ended with 1"]).findings
    assert (finding.rule, finding.severity) == (rule, "error")
    assert line in finding.why


def test_a_package_that_is_installed() -> None:
    read = cann.steps(host(State({})))[0].read
    assert read
    assert read(True, ["[INFO] Ascend-cann-toolkit install success", "it ended with 0"]) == Outcome()
