"""``fleet bundle``: lists what a rack without internet needs, and collects it for real into folders."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleet.bundle_needs import Need
from fleet.cli import closure
from fleet.cli.main import main
from tests.unit.test_bundle import DRIVER, FIRMWARE, TAR, put

ROOT = Path(__file__).parents[2]
A3 = ROOT / "inventories/a3-single.py"
LAB = ROOT / "inventories/lab.py"
IMAGE = "quay.io/ascend/vllm-ascend:v0.13.0-a3"
# Stands in for Docker: it writes down what it was asked, and saves a short file.
DOCKER = """#!/bin/sh
echo "$*" >>"$0.log"
test "$1" != "$(cat "$0.fails" 2>/dev/null)" || { echo 'Error response from daemon: no route to host' >&2; exit 1; }
test "$1" != save || printf two >"$3"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder with the vendors' files, and others."""
    return put(tmp_path / "disk", **{DRIVER: "one", f"hdk__{FIRMWARE}": "firmware", "notes.txt": "call them"})


def docker(folder: Path) -> Path:
    for name in ("cat",):
        (folder / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or "")
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    return folder / "docker"


def bundle(inventory: Path, *words: object) -> Result:
    return CliRunner().invoke(main, ["bundle", str(inventory), *map(str, words)], catch_exceptions=False)


def collect(to: Path, *words: object) -> Result:
    return bundle(A3, "--arch", "aarch64", "--system", "none", "--collect", to, *words)


def states(result: Result) -> dict[str, str]:
    """State and checksum of each need of the list."""
    lines = [line for line in result.stdout.split("\n\n")[0].splitlines() if line[0] != " "]
    return {line[29:]: f"{line[:9].strip()} {line[9:17].strip()}" for line in lines}


# ---- the list


def test_what_is_needed_before_there_is_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bundle(A3, "--arch", "aarch64", "--system", "none")
    assert result.exit_code == 1
    assert states(result) == {
        "driver 25.5.1, aarch64": "missing -",
        "firmware": "missing -",
        f"image {IMAGE}": "missing -",
        "weights vllm-ascend/Qwen3-235B-A22B-w8a8": "by hand -",
    }
    assert "\n         packages/*A3*npu-driver_25.5.1_linux*aarch64.run\n" in result.stdout
    assert "\n         the vendor's support site, driver of Ascend HDK 25.5.1\n" in result.stdout
    assert max(map(len, result.stdout.splitlines())) < 80
    assert result.stdout.endswith("bundle: 0 B, 3 of 3 missing or wrong\n")


def test_a_whole_bundle_ends_with_0(tmp_path: Path) -> None:
    put(tmp_path, **{f"packages__{DRIVER}": "1", f"packages__{FIRMWARE}": "2", f"images__{TAR}": "3"})
    result = bundle(A3, "--arch", "aarch64", "--system", "none", "--dir", tmp_path)
    assert result.exit_code == 0
    assert states(result)["firmware"] == "have unpinned"
    assert result.stdout.endswith(f"{tmp_path}: 3 B, everything is there and right\n")


def test_the_list_for_scripts(tmp_path: Path) -> None:
    put(tmp_path, **{f"packages__{DRIVER}": "12"})
    data = json.loads(bundle(A3, "--arch", "aarch64", "--system", "apt", "--dir", tmp_path, "--json").stdout)
    assert (data["complete"], data["bytes"], data["findings"]) == (False, 2, [])
    assert data["needs"][0]["files"] == [f"packages/{DRIVER}"]
    assert data["needs"][0]["state"] == "have"
    assert "dkms" not in data["needs"][3]["packages"]
    assert {"gcc", "docker.io", "python3"} <= set(data["needs"][3]["packages"])


def test_both_families_and_both_architectures_where_nothing_is_told(tmp_path: Path) -> None:
    result = bundle(A3, "--dir", tmp_path)
    assert [name for name in states(result) if "packages" in name or "driver" in name] == [
        "driver 25.5.1, aarch64",
        "driver 25.5.1, x86_64",
        "packages for Debian, Ubuntu",
        "packages for openEuler, RHEL",
    ]
    assert "Of the repositories one will do: --system apt or --system dnf, as the hosts are.\n" in result.stdout
    assert result.stdout.endswith("6 of 6 missing or wrong\n")


def test_no_such_bundle(tmp_path: Path) -> None:
    result = bundle(A3, "--dir", tmp_path / "gone")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}/gone: there is no such folder; ")


def test_what_does_not_go_together(tmp_path: Path) -> None:
    result = bundle(A3, "--dir", tmp_path, "--collect", tmp_path)
    assert (result.exit_code, "--dir and --collect both name the bundle; leave --dir out" in result.stderr) == (2, True)
    result = bundle(A3, "--kernel", "../x;y")
    assert (result.exit_code, "'../x;y' is no kernel's release; write what uname -r" in result.stderr) == (2, True)


def test_collecting_is_asked_for(tmp_path: Path) -> None:
    result = bundle(A3, "--from", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: fleet bundle: --from and --packages are for collecting; add --collect DIR")


# ---- collecting


def test_collecting_the_vendors_files_and_the_image(tmp_path: Path, tools: Path, disk: Path) -> None:
    its = docker(tools)
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 0, result.output
    assert set(states(result).values()) == {"have ok", "by hand -"}
    assert (tmp_path / f"b/packages/{DRIVER}").read_text() == "one"
    assert its.with_name("docker.log").read_text().splitlines() == [
        f"pull --platform linux/arm64 {IMAGE}",
        f"save -o .{TAR}.part {IMAGE}",
    ]
    names = sorted(line.split()[-1] for line in (tmp_path / "b/SHA256SUMS").read_text().splitlines() if line[0] != "#")
    assert names == [f"images/{TAR}", f"packages/{DRIVER}", f"packages/{FIRMWARE}"]


def test_a_second_run_copies_and_pulls_nothing(tmp_path: Path, tools: Path, disk: Path) -> None:
    its = docker(tools)
    collect(tmp_path / "b", "--from", disk)
    before = (tmp_path / f"b/packages/{DRIVER}").stat().st_ino
    sums = (tmp_path / "b/SHA256SUMS").read_text()
    its.with_name("docker.log").unlink()
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 0
    assert f"packages/{DRIVER}: is there, 3 B\n" in result.stderr
    assert (tmp_path / f"b/packages/{DRIVER}").stat().st_ino == before
    assert (tmp_path / "b/SHA256SUMS").read_text() == sums
    assert not its.with_name("docker.log").exists()


def test_a_copy_that_was_cut_off_is_gone_on_with(tmp_path: Path, tools: Path, disk: Path) -> None:
    put(tmp_path / "b", **{f"packages__{DRIVER}": "on", f"packages__.{FIRMWARE}.part": "fir", f"images__{TAR}": "two"})
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 0
    assert (tmp_path / f"b/packages/{DRIVER}").read_text() == "one"
    assert sorted(p.name for p in (tmp_path / "b/packages").iterdir()) == [DRIVER, FIRMWARE]


def test_a_flipped_byte_is_told_and_mended_from_the_folder_that_it_came_from(
    tmp_path: Path, tools: Path, disk: Path
) -> None:
    put(disk, **{TAR: "two"})
    to = tmp_path / "b"
    assert collect(to, "--from", disk).exit_code == 0
    put(to, **{f"packages__{DRIVER}": "onE"})
    listed = bundle(A3, "--arch", "aarch64", "--system", "none", "--dir", to)
    assert (listed.exit_code, states(listed)["driver 25.5.1, aarch64"]) == (1, "have WRONG")
    assert listed.stderr.startswith(f"error: {to}/packages/{DRIVER}: its SHA-256 is not the one that is known; ")
    alone = collect(to)
    assert alone.exit_code == 1
    assert alone.stderr.count("[BUNDLE-CHECKSUM]") == 1
    mended = collect(to, "--from", disk)
    assert (mended.exit_code, set(states(mended).values())) == (0, {"have ok", "by hand -"})


def test_a_damaged_file_of_another_bundle_is_not_taken(tmp_path: Path, tools: Path, disk: Path) -> None:
    put(disk, **{TAR: "two"})
    collect(tmp_path / "one", "--from", disk)
    put(tmp_path / "one", **{f"packages__{DRIVER}": "onE"})
    result = collect(tmp_path / "two", "--from", tmp_path / "one")
    assert result.exit_code == 1
    assert states(result)["driver 25.5.1, aarch64"] == "missing -"
    assert f"error: {tmp_path}/one/packages/{DRIVER}: its SHA-256 is not the one that is known" in result.stderr
    assert states(result)["firmware"] == "have ok"


def test_two_candidates(tmp_path: Path, tools: Path, disk: Path) -> None:
    put(disk, **{"Atlas-A3-hdk-npu-firmware_7.8.0.run": "newer"})
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 1
    assert "error: firmware: 2 files fit *A3*npu-firmware_*.run: " in result.stderr
    assert "leave the one that you mean in these folders [BUNDLE-TWO]\n" in result.stderr
    assert states(result)["driver 25.5.1, aarch64"] == "have ok"


def test_without_docker_the_commands_are_told(tmp_path: Path, tools: Path, disk: Path) -> None:
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 1
    assert f"    docker pull --platform linux/arm64 {IMAGE}\n    docker save -o {TAR} {IMAGE}\n" in result.stderr
    assert states(result)[f"image {IMAGE}"] == "missing -"


@pytest.mark.parametrize("verb", ["pull", "save"])
def test_an_image_that_docker_cannot_have(tmp_path: Path, tools: Path, disk: Path, verb: str) -> None:
    docker(tools).with_name("docker.fails").write_text(verb)
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 1
    assert f"error: {IMAGE}: docker {verb}: Error response from daemon: no route to host; mend that" in result.stderr
    assert list((tmp_path / "b/images").iterdir()) == []


def test_an_image_for_each_architecture_where_none_is_told(tmp_path: Path, tools: Path) -> None:
    its = docker(tools)
    result = bundle(A3, "--system", "none", "--collect", tmp_path / "b")
    assert states(result)[f"image {IMAGE}, aarch64"] == "have ok"
    assert its.with_name("docker.log").read_text().splitlines() == [
        f"pull --platform linux/arm64 {IMAGE}",
        f"save -o .{TAR.replace('.tar', '.arm64.tar')}.part {IMAGE}",
        f"pull --platform linux/amd64 {IMAGE}",
        f"save -o .{TAR.replace('.tar', '.amd64.tar')}.part {IMAGE}",
    ]


def test_an_interrupt(tmp_path: Path, tools: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    result = collect(tmp_path / "b", "--from", disk)
    assert result.exit_code == 130
    assert result.stderr == (
        f"error: {tmp_path}/b: the collecting was interrupted; run the same line again to go on [RUN-INTERRUPTED]\n"
    )
    assert not (tmp_path / "b/SHA256SUMS").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = collect(tmp_path / "b", "--from", tmp_path / "gone")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"error: {tmp_path}/gone: there is no such folder; name the folder with what you downloaded [BUNDLE-READ]"
    )
    assert not (tmp_path / "b").exists(), "nothing is made before it is known what of"


def test_a_bundle_that_cannot_be_written(tmp_path: Path) -> None:
    put(tmp_path, file="")
    result = collect(tmp_path / "file")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}/file: cannot write: file exists; ")


# ---- packages, with the real apt on a repository of this test's own

needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="this machine has no apt-get and dpkg-deb"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two packages, of which one needs the other; it is all that apt knows."""
    folder = tmp_path / "source"
    deb(tmp_path, "one", "1:1.0", "Depends: two\n")
    deb(tmp_path, "two", "1:1.0")
    for version in ("580.65.06-1", "580.95.05-1"):
        deb(tmp_path, "nvidia-driver", version, f"Depends: libnvidia (= {version})\n")
        deb(tmp_path, "libnvidia", version)
    assert closure.index(folder) == []
    put(tmp_path, **{"sources.list": f"deb [trusted=yes] copy:{folder} ./\n"})
    config = f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "-";\n'
    put(tmp_path, **{"apt.conf": config})
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return folder


def deb(folder: Path, name: str, version: str, more: str = "") -> None:
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: us\n{more}Description: {name}\n"
    put(folder / name, DEBIAN__control=control)
    (folder / "source").mkdir(exist_ok=True)
    target = folder / "source" / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(folder / name), str(target)], check=True, stdout=subprocess.DEVNULL)


def want(*names: str, optional: tuple[str, ...] = (), **versions: str) -> Need:
    its = {name.replace("_", "-"): version for name, version in versions.items()}
    return Need("repository", "packages", "", "apt", ("Packages",), names=names, optional=optional, versions=its)


@needs_apt
def test_packages_come_with_all_that_they_need(tmp_path: Path, source: Path) -> None:
    said: list[str] = []
    (tmp_path / "apt").mkdir()
    assert closure.collect(tmp_path / "apt", want("one", optional=("three",)), closure.arch_here(), said.append) == []
    assert sorted(p.name for p in (tmp_path / "apt").iterdir()) == [
        "Packages",
        "one_1%3a1.0_all.deb",
        "two_1%3a1.0_all.deb",
    ]
    index = (tmp_path / "apt/Packages").read_text()
    assert all(part in (source / "Packages").read_text() for part in index.split("\n\n"))
    assert "Filename: ./two_1%3a1.0_all.deb\n" in index
    assert said[-1] == "three: no source has it; left out, as not all hosts need it"


@needs_apt
def test_a_folder_below_the_one_that_is_run_in(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("apt").mkdir()
    assert closure.collect(Path("apt"), want("two"), closure.arch_here(), print) == []
    assert sorted(p.name for p in Path("apt").iterdir()) == ["Packages", "two_1%3a1.0_all.deb"]


@needs_apt
@pytest.mark.parametrize(("asked", "version"), [("580.*", "580.95.05"), ("580.65.06", "580.65.06")])
def test_the_rows_version_comes_with_what_it_needs_of_that_version(
    tmp_path: Path, source: Path, asked: str, version: str
) -> None:
    (tmp_path / "apt").mkdir()
    need = want("nvidia-driver", nvidia_driver=asked)
    assert closure.collect(tmp_path / "apt", need, closure.arch_here(), print) == []
    assert sorted(p.name for p in (tmp_path / "apt").glob("*.deb")) == [
        f"libnvidia_{version}-1_all.deb",
        f"nvidia-driver_{version}-1_all.deb",
    ]


@needs_apt
def test_a_package_that_no_source_has(tmp_path: Path, source: Path) -> None:
    (tmp_path / "apt").mkdir()
    (finding,) = closure.collect(tmp_path / "apt", want("one", "nvidia-driver-580"), closure.arch_here(), print)
    assert finding.line() == (
        f"error: {tmp_path}/apt: no source of this machine has nvidia-driver-580; add the source that has it (the "
        "vendor's, for drivers and container toolkit), or check the release [BUNDLE-PACKAGES]"
    )


@needs_apt
def test_what_is_no_package_is_told(tmp_path: Path) -> None:
    put(tmp_path, **{"broken_1_all.deb": "half"})
    (finding,) = closure.index(tmp_path)
    assert finding.where == f"{tmp_path}/broken_1_all.deb"
    assert finding.what.startswith("this is no package: ")


def test_packages_of_another_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(closure, "arch_here", lambda: "x86_64")
    (finding,) = closure.collect(tmp_path, want("one"), "aarch64", print)
    assert finding.line().startswith(
        f"error: {tmp_path}: the hosts are aarch64, this machine is x86_64; run this on a machine of aarch64"
    )


def test_a_machine_without_apt(tmp_path: Path, tools: Path) -> None:
    result = bundle(LAB, "--system", "apt", "--collect", tmp_path / "b", "--packages")
    assert result.exit_code == 1
    assert f"error: {tmp_path}/b/apt: this machine has no apt-get and dpkg-deb; " in result.stderr
    assert states(result)["packages for Debian, Ubuntu"] == "missing -"


def test_a_command_that_does_not_end() -> None:
    well, said = closure._run(["sleep", "60"], 0)
    assert (well, said) == (False, ["sleep did not end within 0 s"])
