"""The folder for a rack without internet: what it holds, what hosts need of it, and files copied into it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from fleet import bundle, bundle_copy, bundle_needs, stacks
from fleet.bundle import Bundle, File
from fleet.bundle_copy import Copy
from fleet.bundle_needs import Held, Need
from fleet.findings import FleetError
from fleet.topology import Plan
from tests.unit.plans import lay

ONE = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"  # of b"one"
TWO = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"  # of b"two"
DRIVER = "Atlas-A3-hdk-npu-driver_25.5.1_linux-aarch64.run"
FIRMWARE = "Atlas-A3-hdk-npu-firmware_7.7.0.9.220.run"
TAR = "quay.io_ascend_vllm-ascend_v0.13.0-a3.tar"
A3 = """
title: t
source: s
platform: ascend-a3
model: {name: org/M, max_position_embeddings: 40960, weights_gb: 240}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
catalogue: a3-cann-8.5.0
roles: {serve: {tensor_parallel_size: 16}}
"""
H100 = """
title: t
source: s
platform: nvidia
model: {name: org/M, max_position_embeddings: 40960}
engine: {vllm: 0.20.0}
catalogue: h100-cuda-13.0
roles: {serve: {tensor_parallel_size: 8}}
"""


def put(folder: Path, **files: str) -> Path:
    """Files by their path, / written as __ and . as it is."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def told(folder: Path) -> list[str]:
    return [f"{f.where.removeprefix(str(folder))}: {f.what} [{f.rule}]" for f in bundle.scan(folder)[1]]


# ---- reading one


def test_files_with_their_sums(tmp_path: Path) -> None:
    put(tmp_path, **{"packages__a.run": "one", "apt__b.deb": "two", "SHA256SUMS": f"{ONE}  packages/a.run\n"})
    its = bundle.read(tmp_path)
    assert its.files == (
        File(tmp_path / "apt/b.deb", 3, None),
        File(tmp_path / "packages/a.run", 3, ONE),
    )
    assert [f.name for f in its.find("*.run")] == ["a.run"]
    assert [its.relative(f) for f in its.below("apt")] == ["apt/b.deb"]


def test_what_is_written_is_read_and_sha256sum_reads_it_too(tmp_path: Path) -> None:
    put(tmp_path, **{"packages__a.run": "one", "images__b.tar": "two"})
    bundle.write_sums(tmp_path, {"packages/a.run": (3, ONE), "images/b.tar": (3, TWO)})
    assert (tmp_path / "SHA256SUMS").read_text() == (
        f"#size 3 images/b.tar\n{TWO}  images/b.tar\n#size 3 packages/a.run\n{ONE}  packages/a.run\n"
    )
    assert {f.name: f.sha256 for f in bundle.read(tmp_path).files} == {"a.run": ONE, "b.tar": TWO}
    assert os.system(f"cd {tmp_path} && sha256sum -c --quiet SHA256SUMS") == 0


def test_a_copy_that_was_cut_off_is_told_by_its_size(tmp_path: Path) -> None:
    put(tmp_path, **{"packages__a.run": "on", "SHA256SUMS": f"#size 3 packages/a.run\n{ONE}  packages/a.run\n"})
    with pytest.raises(FleetError) as caught:
        bundle.read(tmp_path)
    assert [f.line() for f in caught.value.findings] == [
        f"error: {tmp_path}/packages/a.run: it has 2 bytes, SHA256SUMS lists 3 (a copy was cut off, or it was "
        "replaced); copy it again, or make the bundle anew: fleet bundle --collect [BUNDLE-SUMS]"
    ]


def test_a_file_that_is_listed_and_not_there(tmp_path: Path) -> None:
    put(tmp_path, SHA256SUMS=f"{ONE}  packages/a.run\n")
    assert told(tmp_path) == ["/packages/a.run: SHA256SUMS lists it, and it is not there [BUNDLE-SUMS]"]


@pytest.mark.parametrize(
    "line",
    [
        "packages/a.run",
        f"{ONE[:-1]}  packages/a.run",
        f"{ONE.upper()}  packages/a.run",
        f"{ONE} packages/a.run",
        f"{ONE}  /etc/passwd",
        f"{ONE}  ../outside",
        f"{ONE}  packages/../../outside",
    ],
)
def test_a_line_that_is_none_of_sha256sum(tmp_path: Path, line: str) -> None:
    put(tmp_path, SHA256SUMS=f"# ours\n\n{line}\n")
    assert told(tmp_path) == ["/SHA256SUMS:3: this is no line of sha256sum [BUNDLE-SUMS]"]


@pytest.mark.parametrize("line", [f"{ONE} *./a.run", f"{ONE}  a.run", f"{ONE}  a.run\n{ONE}  ./a.run"])
def test_lines_as_sha256sum_writes_them(tmp_path: Path, line: str) -> None:
    put(tmp_path, **{"a.run": "one", "SHA256SUMS": f"{line}\n"})
    assert [f.sha256 for f in bundle.read(tmp_path).files] == [ONE]


def test_two_sums_of_one_file(tmp_path: Path) -> None:
    put(tmp_path, **{"a.run": "one", "SHA256SUMS": f"{ONE}  a.run\n{TWO}  a.run\n"})
    assert told(tmp_path) == ["/SHA256SUMS:2: a.run is listed twice, with two sums [BUNDLE-SUMS]"]


def test_sums_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff\xfe")
    assert told(tmp_path) == ["/SHA256SUMS: this is no text of sha256sum [BUNDLE-SUMS]"]
    monkeypatch.setattr(bundle, "LARGEST_SUMS", 4)
    (tmp_path / "SHA256SUMS").write_bytes(b"# ours")
    assert told(tmp_path) == ["/SHA256SUMS: this is no text of sha256sum [BUNDLE-SUMS]"]


def test_sums_from_windows(tmp_path: Path) -> None:
    put(tmp_path, **{"a.run": "one"})
    (tmp_path / "SHA256SUMS").write_bytes(b"\xef\xbb\xbf" + f"{ONE}  a.run\r\n".encode())
    assert [f.sha256 for f in bundle.read(tmp_path).files] == [ONE]


def test_a_folder_where_a_file_is_to_be(tmp_path: Path) -> None:
    put(tmp_path, **{"SHA256SUMS__x": ""})
    with pytest.raises(FleetError, match="cannot write: is a directory; remove that folder, or name another place"):
        bundle.write_sums(tmp_path, {})


@pytest.mark.parametrize("name", ["a b.run", "a'b.run", "$(reboot).run", "a\nb.run"])
def test_a_name_that_no_command_may_hold(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    its, faults = bundle.scan(tmp_path)
    assert its.files == ()
    assert [f.rule for f in faults] == ["BUNDLE-NAME"]


def test_hidden_files_and_what_was_cut_off_are_no_part_of_it(tmp_path: Path) -> None:
    put(
        tmp_path,
        **{".DS_Store": "", "packages__.a.run.part": "on", "packages__b.run.part": "t", "packages__c.run": "c"},
    )
    assert [f.name for f in bundle.read(tmp_path).files] == ["c.run"]


def test_folders_that_are_too_deep(tmp_path: Path) -> None:
    put(tmp_path, **{"1__2__3__4__5__fits": "", "1__2__3__4__5__6__deep": ""})
    its, faults = bundle.scan(tmp_path)
    assert [f.name for f in its.files] == ["fits"]
    assert [f.rule for f in faults] == ["BUNDLE-SIZE"]


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST", 2)
    put(tmp_path, a="", b="", c="")
    with pytest.raises(FleetError, match=r"more than 2 files are no bundle; .* \[BUNDLE-SIZE\]"):
        bundle.read(tmp_path)


def test_a_link_to_nothing_and_a_link_to_a_file(tmp_path: Path) -> None:
    put(tmp_path, **{"elsewhere__a.run": "one"})
    put(tmp_path, **{"b__x": ""})
    (tmp_path / "b/x").unlink()
    (tmp_path / "b/a.run").symlink_to(tmp_path / "elsewhere/a.run")
    (tmp_path / "b/gone.run").symlink_to(tmp_path / "gone")
    its, faults = bundle.scan(tmp_path / "b")
    assert [(f.name, f.size) for f in its.files] == [("a.run", 3)]
    assert [f.line() for f in faults] == [
        f"error: {tmp_path}/b/gone.run: cannot read: no such file or directory; mend its rights, or run as who may "
        "read it [BUNDLE-READ]"
    ]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        FleetError, match=r"there is no such folder; give the bundle's folder, or make one.* \[BUNDLE-READ\]"
    ):
        bundle.read(tmp_path / "gone")


# ---- what hosts need


def needs_of(text: str = A3, arch: tuple[str, ...] = ("aarch64",), **data: Any) -> list[Need]:
    plan = lay(text, data, serve=["10.0.0.1"])
    return bundle_needs.needs(plan, stacks.of_plan(plan), arch, system="apt")


def plan_of(text: str = A3, **data: Any) -> Plan:
    return lay(text, data, serve=["10.0.0.1"])


def test_what_an_a3_host_needs() -> None:
    assert [(n.what, n.patterns[:1]) for n in needs_of()] == [
        ("driver 25.5.1, aarch64", ("*A3*npu-driver_25.5.1_linux*aarch64.run",)),
        ("firmware", ("*A3*npu-firmware_*.run",)),
        ("image quay.io/ascend/vllm-ascend:v0.13.0-a3", (TAR,)),
        ("packages for Debian, Ubuntu", ("Packages",)),
        ("weights org/M", ()),
    ]


def test_both_architectures_where_none_is_told() -> None:
    plan = plan_of()
    assert bundle_needs.arches(plan) == ("aarch64", "x86_64")
    drivers = [n.what for n in needs_of(arch=("aarch64", "x86_64")) if n.what.startswith("driver")]
    assert drivers == ["driver 25.5.1, aarch64", "driver 25.5.1, x86_64"]


def test_cann_where_engines_run_outside_containers() -> None:
    found = [n for n in needs_of(runtime="native") if n.what.startswith("CANN")]
    assert [n.patterns[0] for n in found] == [
        "Ascend-cann-toolkit_8.5.0_linux-aarch64.run",
        "*[aA]3*-ops_8.5.0_linux-aarch64.run",
        "Ascend-cann-nnal_8.5.0_linux-aarch64.run",
    ]
    assert [n.what for n in needs_of() if n.what.startswith("CANN")] == []


def test_gpu_hosts_take_their_driver_from_packages() -> None:
    names = next(n.names for n in needs_of(H100) if n.kind == "repository")
    assert {"nvidia-driver-580-server-open", "nvidia-fabricmanager-580", "nvidia-container-toolkit", "docker.io"} <= {
        *names
    }
    assert bundle_needs.arches(plan_of(H100)) == ("x86_64",)


def test_no_packages_where_the_rack_has_a_source_of_its_own() -> None:
    assert [n for n in needs_of(package_source="http://10.0.0.250/ubuntu") if n.kind == "repository"] == []


def test_headers_have_a_name_where_the_kernel_is_told() -> None:
    assert bundle_needs.repositories(plan_of(), None)[0].optional == ("apparmor", "dkms", "docker-cli")
    for text in (A3, H100):
        apt, dnf = bundle_needs.repositories(plan_of(text), None, ["6.8.0-60-generic"])
        assert "linux-headers-6.8.0-60-generic" in apt.optional
        assert "kernel-devel-6.8.0-60-generic" in dnf.optional


def test_without_a_row_it_is_not_known_what_is_needed() -> None:
    with pytest.raises(
        FleetError, match=r"neither inventory nor recipe names a row of the catalogue.*\[CATALOGUE-NAME\]"
    ):
        needs_of(A3.replace("catalogue: a3-cann-8.5.0\n", ""))


def test_the_names_that_an_images_tar_may_have() -> None:
    image = next(n for n in needs_of() if n.kind == "image")
    assert image.patterns[:2] == (TAR, f"{TAR}.gz")
    assert TAR.replace(".tar", ".arm64.tar") in image.patterns


def test_where_hosts_may_have_either_architecture_a_tars_name_says_which() -> None:
    images = [n for n in needs_of(arch=("aarch64", "x86_64")) if n.kind == "image"]
    assert [(n.what, n.patterns[0]) for n in images] == [
        ("image quay.io/ascend/vllm-ascend:v0.13.0-a3, aarch64", TAR.replace(".tar", ".arm64.tar")),
        ("image quay.io/ascend/vllm-ascend:v0.13.0-a3, x86_64", TAR.replace(".tar", ".amd64.tar")),
    ]


# ---- what is there of it


def held(need: Need, folder: Path) -> Held:
    return bundle_needs.held(need, bundle.scan(folder)[0], lambda file: bundle.digest(file.path))


def state(need: Need, folder: Path) -> tuple[str, str]:
    its = held(need, folder)
    return its.state, its.checksum


def test_a_driver_that_is_missing_there_right_or_wrong(tmp_path: Path) -> None:
    driver = needs_of()[0]
    assert state(driver, tmp_path) == ("missing", "")
    put(tmp_path, **{f"packages__{DRIVER}": "one"})
    assert state(driver, tmp_path) == ("have", "unpinned")
    bundle.write_sums(tmp_path, {f"packages/{DRIVER}": (3, ONE)})
    assert state(driver, tmp_path) == ("have", "ok")
    put(tmp_path, **{f"packages__{DRIVER}": "onE"})
    assert state(driver, tmp_path) == ("have", "WRONG")
    assert not held(driver, tmp_path).right
    assert [f.rule for f in bundle_needs.findings([held(driver, tmp_path)])] == ["BUNDLE-CHECKSUM"]


def test_the_catalogues_sum_goes_before_that_of_the_bundle(tmp_path: Path) -> None:
    need = Need("package", "driver", "", "packages", ("*.run",), {"a.run": TWO})
    put(tmp_path, **{"packages__a.run": "one", "SHA256SUMS": f"{ONE}  packages/a.run\n"})
    assert state(need, tmp_path) == ("have", "WRONG")


def test_two_files_for_one_pattern(tmp_path: Path) -> None:
    put(tmp_path, **{f"packages__{FIRMWARE}": "one", "packages__Atlas-A3-hdk-npu-firmware_7.8.0.run": "two"})
    its = held(needs_of()[1], tmp_path)
    assert (its.state, its.right) == ("several", False)
    assert [f.what for f in bundle_needs.findings([its])] == [
        f"2 files fit *A3*npu-firmware_*.run: {FIRMWARE}, Atlas-A3-hdk-npu-firmware_7.8.0.run"
    ]


def test_an_images_tar_may_be_compressed_and_is_there_once(tmp_path: Path) -> None:
    image = next(n for n in needs_of() if n.kind == "image")
    assert held(image, tmp_path).lacks == (TAR,)
    put(tmp_path, **{f"images__{TAR}.gz": "one"})
    assert state(image, tmp_path) == ("have", "unpinned")
    put(tmp_path, **{f"images__{TAR}": "two"})
    assert state(image, tmp_path) == ("several", "unpinned")


def test_a_file_in_the_wrong_folder_is_not_there(tmp_path: Path) -> None:
    put(tmp_path, **{f"images__{DRIVER}": "one"})
    assert state(needs_of()[0], tmp_path) == ("missing", "")


def test_a_repository_names_what_it_lacks(tmp_path: Path) -> None:
    need = Need("repository", "packages", "", "apt", ("Packages",), names=("curl", "tar"))
    assert held(need, tmp_path).lacks == ("Packages", "curl", "tar")
    put(tmp_path, **{"apt__Packages": "", "apt__curl_8.5_amd64.deb": "", "apt__tar-doc_1_all.deb": ""})
    assert held(need, tmp_path).lacks == ("tar",)


def test_a_repository_of_dnf_where_one_of_several_names_will_do(tmp_path: Path) -> None:
    need = Need("repository", "packages", "", "dnf", ("repomd.xml",), names=("docker-ce|docker-engine", "tar"))
    put(tmp_path, **{"dnf__repodata__repomd.xml": "", "dnf__docker-engine-18.09-1.aarch64.rpm": ""})
    put(tmp_path, **{"dnf__docker-ce-cli-27.0-1.aarch64.rpm": "", "dnf__tar-1.35-1.aarch64.rpm": ""})
    assert state(need, tmp_path) == ("have", "unpinned")
    (tmp_path / "dnf/docker-engine-18.09-1.aarch64.rpm").unlink()
    assert held(need, tmp_path).lacks == ("docker-ce|docker-engine",)


def test_a_package_in_another_version_than_the_rows_is_not_there(tmp_path: Path) -> None:
    driver = "nvidia-driver-580-server-open"
    need = Need("repository", "packages", "", "apt", (), names=(driver,), versions={driver: "580.65.06"})
    put(tmp_path, **{f"apt__{driver}_580.95.05-0ubuntu1_amd64.deb": ""})
    assert held(need, tmp_path).lacks == (f"{driver} 580.65.06",)
    put(tmp_path, **{f"apt__{driver}_1%3a580.65.06-0ubuntu1_amd64.deb": ""})
    assert held(need, tmp_path).lacks == ()
    assert need.asked(driver) == f"{driver}-580.65.06"


def test_one_whole_repository_will_do(tmp_path: Path) -> None:
    names = {"names": ("tar",)}
    apt = Need("repository", "apt", "", "apt", ("Packages",), **names)  # type: ignore[arg-type]
    dnf = Need("repository", "dnf", "", "dnf", ("repomd.xml",), **names)  # type: ignore[arg-type]
    both = [held(apt, tmp_path), held(dnf, tmp_path)]
    assert [i.need.what for i in bundle_needs.either(both)] == ["apt", "dnf"]
    put(tmp_path, **{"apt__Packages": "", "apt__tar_1_amd64.deb": ""})
    both = [held(apt, tmp_path), held(dnf, tmp_path)]
    assert [i.need.what for i in bundle_needs.either(both)] == ["apt"]


def test_weights_are_carried_by_hand(tmp_path: Path) -> None:
    its = held(needs_of()[-1], tmp_path)
    assert (its.state, its.bytes, its.right) == ("by hand", 240_000_000_000, True)
    assert its.need.get.endswith("copied by hand for now, to /mnt/models/org/M on every host with an engine")


# ---- copying


def job(tmp_path: Path, text: str = "one", sha256: str | None = None) -> Copy:
    put(tmp_path, **{"from__a.run": text, "to__x": ""})
    (tmp_path / "to/x").unlink()
    return Copy(File(tmp_path / "from/a.run", len(text)), tmp_path / "to/a.run", sha256)


def test_a_file_is_copied_once(tmp_path: Path) -> None:
    its = job(tmp_path)
    assert bundle_copy.copy(its) == (ONE, True)
    assert bundle_copy.copy(its) == (ONE, False)
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["a.run"]


def test_what_was_cut_off_is_copied_anew(tmp_path: Path) -> None:
    its = job(tmp_path)
    put(tmp_path, **{"to__a.run": "on", "to__.a.run.part": "o"})
    assert bundle_copy.copy(its) == (ONE, True)
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["a.run"]


def test_a_flipped_byte_is_copied_anew(tmp_path: Path) -> None:
    its = job(tmp_path)
    put(tmp_path, **{"to__a.run": "onE"})
    assert bundle_copy.copy(its) == (ONE, True)
    assert (tmp_path / "to/a.run").read_text() == "one"


def test_a_download_that_is_not_what_it_must_be_never_gets_there(tmp_path: Path) -> None:
    its = job(tmp_path, "onE", sha256=ONE)
    with pytest.raises(FleetError) as caught:
        bundle_copy.copy(its)
    assert caught.value.findings[0].line() == (
        f"error: {tmp_path}/from/a.run: its SHA-256 is not the one that is known ({_sha('onE')[:12]}..., not "
        "7692c3ad3540...); download or copy it again; if you changed it, remove SHA256SUMS and collect "
        "[BUNDLE-CHECKSUM]"
    )
    assert list((tmp_path / "to").iterdir()) == []


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    its = job(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        FleetError, match=r"cannot write: no space left on device; free some space there; what is copied"
    ):
        bundle_copy.copy(its)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_disk_that_is_too_small_is_told_before(tmp_path: Path) -> None:
    its = Copy(File(tmp_path / "a", 10**18), tmp_path / "b")
    (finding,) = bundle_copy.room([its], tmp_path)
    assert finding.what.startswith("1000000000.0 GB are to be copied, and ")
    assert finding.rule == "BUNDLE-WRITE"


def test_a_source_that_went_away(tmp_path: Path) -> None:
    its = job(tmp_path)
    its.source.path.unlink()
    with pytest.raises(FleetError, match=r"from/a\.run: cannot read: no such file or directory; .* \[BUNDLE-READ\]"):
        bundle_copy.copy(its)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    put(tmp_path, file="")
    with pytest.raises(FleetError, match=r"cannot write: not a directory.* \[BUNDLE-WRITE\]|file exists"):
        bundle_copy.make_folders(tmp_path / "file", ("packages",))


def copies(tmp_path: Path, *folders: str) -> tuple[list[str], list[str]]:
    files, faults = [], []
    for folder in folders:
        more, unread = bundle_copy.search(tmp_path / folder, needs_of(), tmp_path / "to")
        files += more
        faults += unread
    found, several = bundle_copy.plan_copies(needs_of(), files, tmp_path / "to")
    faults += several
    return [f"{c.source.path} {c.target}".replace(f"{tmp_path}/", "") for c in found], [f.what for f in faults]


def test_which_file_goes_where(tmp_path: Path) -> None:
    put(tmp_path, **{f"disk__deep__{DRIVER}": "one", f"other__{TAR}": "two", "disk__readme.txt": ""})
    assert copies(tmp_path, "disk", "other") == (
        [f"disk/deep/{DRIVER} to/packages/{DRIVER}", f"other/{TAR} to/images/{TAR}"],
        [],
    )


def test_one_file_in_two_folders_is_no_doubt(tmp_path: Path) -> None:
    put(tmp_path, **{f"one__{FIRMWARE}": "one", f"two__{FIRMWARE}": "one"})
    assert copies(tmp_path, "one", "two") == ([f"one/{FIRMWARE} to/packages/{FIRMWARE}"], [])


def test_folders_may_be_called_anything_and_other_files_do_not_count(tmp_path: Path) -> None:
    put(
        tmp_path,
        **{f"My files (2)__Grüße__{DRIVER}": "one", "My files (2)__my photo.jpg": "", "1__2__3__4__5__6__7": ""},
    )
    (tmp_path / "My files (2)/gone").symlink_to(tmp_path / "nowhere")
    assert copies(tmp_path, "My files (2)") == ([f"My files (2)/Grüße/{DRIVER} to/packages/{DRIVER}"], [])
    assert copies(tmp_path, "1") == ([], [])


def test_a_browsers_second_download_has_the_vendors_name(tmp_path: Path) -> None:
    put(tmp_path, **{f"one__{DRIVER.replace('.run', ' (1).run')}": "one"})
    assert copies(tmp_path, "one") == (
        [f"one/{DRIVER.replace('.run', ' (1).run')} to/packages/{DRIVER}"],
        [],
    )
    put(tmp_path, **{f"one__{DRIVER}": "on"})
    assert copies(tmp_path, "one")[0] == [], "the first was cut off: which one is meant cannot be told"


def test_a_name_that_cannot_be_taken_is_told_where_the_file_is_wanted(tmp_path: Path) -> None:
    put(tmp_path, **{f"one__Copy of {FIRMWARE}": "one"})
    assert copies(tmp_path, "one") == ([], ["no host is given a file of this name"])


def test_the_bundle_itself_is_not_looked_into(tmp_path: Path) -> None:
    put(tmp_path, **{f"to__packages__{DRIVER}": "one"})
    assert copies(tmp_path, ".") == ([], [])


@pytest.mark.parametrize(("text", "what"), [("", "the file is empty"), ("\n<!DOCTYPE html>", "this is a web page")])
def test_what_a_vendors_site_says_instead_of_the_file(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(FleetError, match=f"{what}.*; download it again, logged in"):
        bundle_copy.copy(job(tmp_path, text))
    assert list((tmp_path / "to").iterdir()) == []


def test_two_files_that_could_be_meant(tmp_path: Path) -> None:
    put(tmp_path, **{f"one__{FIRMWARE}": "one", "one__Atlas-A3-hdk-npu-firmware_7.8.0.run": "two"})
    found, faults = copies(tmp_path, "one")
    assert found == []
    assert faults == [
        f"2 files fit *A3*npu-firmware_*.run: {tmp_path}/one/{FIRMWARE}, "
        f"{tmp_path}/one/Atlas-A3-hdk-npu-firmware_7.8.0.run"
    ]


def test_sums_that_were_listed_are_not_made_right(tmp_path: Path) -> None:
    put(tmp_path, **{"packages__a.run": "one", "packages__b.run": "two"})
    bundle.write_sums(tmp_path, {"packages/a.run": (3, ONE)})
    put(tmp_path, **{"packages__a.run": "onE"})
    found, told = bundle_copy.sums(bundle.scan(tmp_path)[0], {})
    assert found == {"packages/a.run": (3, ONE), "packages/b.run": (3, TWO)}
    assert [f.rule for f in told] == ["BUNDLE-CHECKSUM"]


def test_sums_of_what_this_run_proved_are_taken(tmp_path: Path) -> None:
    put(tmp_path, **{"packages__a.run": "two"})
    bundle.write_sums(tmp_path, {"packages/a.run": (3, ONE)})
    assert bundle_copy.sums(Bundle(tmp_path, bundle.scan(tmp_path)[0].files), {"packages/a.run": TWO}) == (
        {"packages/a.run": (3, TWO)},
        [],
    )
