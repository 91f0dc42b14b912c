"""The catalogue of versions that go together: its rows, rows of a user's own, and a plan against its row."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from fleet import recipe, stacks
from fleet.checks import stack as checks
from fleet.findings import Finding, FleetError
from fleet.stacks import Part, Stack
from fleet.topology import Plan
from scripts.catalogue import page
from tests.unit.plans import lay

ROOT = Path(__file__).parents[2]
A3 = """
title: t
source: s
platform: ascend-a3
model: {name: org/M, max_position_embeddings: 40960, weights_gb: 100}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
catalogue: a3-cann-8.5.0
roles: {serve: {tensor_parallel_size: 16}}
"""
H100 = """
title: t
source: s
platform: nvidia
model: {name: org/M, max_position_embeddings: 40960, weights_gb: 100}
engine: {vllm: 0.20.0}
catalogue: h100-cuda-13.0
roles: {serve: {tensor_parallel_size: 8}}
"""
ROW = """\
title: ours
source: our own rack
platform: ascend-a3
driver: {version: 25.5.1, packages: [{pattern: "*A3*npu-driver_25.5.1_linux*{arch}.run"}]}
cann: {version: 8.5.0}
vllm: 0.13.0
vllm_ascend: 0.13.0
image: registry.rack/ascend/vllm-ascend:v0.13.0-a3
"""


def plan_of(text: str = A3, **data: Any) -> Plan:
    return lay(text, data, serve=["10.0.0.1"])


def told(findings: Any) -> list[str]:
    return [f"{f.severity} {f.rule}: {f.what}" for f in findings]


def own_row(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in ROW
    path = folder / "ours.yaml"
    path.write_text(ROW.replace(old, new) if old else ROW)
    return path


# ---- the rows that come with the project


def test_the_rows_in_the_order_of_their_numbers() -> None:
    assert stacks.names() == [
        "a2-cann-8.3.rc2",
        "a2-cann-8.5.0",
        "a2-cann-8.5.1",
        "a2-cann-9.1.0",
        "a3-cann-8.3.rc2",
        "a3-cann-8.5.0",
        "a3-cann-8.5.1",
        "a3-cann-9.1.0",
        "h100-cuda-12.9",
        "h100-cuda-13.0",
    ]


@pytest.mark.parametrize("row", stacks.all_rows(), ids=lambda row: row.name)
def test_every_row_holds_against_the_vendors_tables(row: Stack) -> None:
    assert told(stacks.check(row)) == []


def test_the_row_of_the_published_tutorial() -> None:
    row = stacks.find("a3-cann-8.3.rc2")
    assert row.driver is not None and row.cann is not None
    assert (row.driver.version, row.cann.version, row.vllm, row.vllm_ascend) == (
        "25.3.RC1",
        "8.3.RC2",
        "0.13.0",
        "0.13.0rc1",
    )
    assert row.image == "quay.io/ascend/vllm-ascend:v0.13.0rc1-a3"


def test_a_row_of_gpus() -> None:
    row = stacks.find("h100-cuda-13.0")
    assert row.gpu_driver is not None
    assert (row.gpu_driver.version, row.gpu_driver.branch, row.cuda) == ("580.*", 580, "13.0")
    assert row.gpu_driver.apt == ("nvidia-driver-580-server-open", "nvidia-fabricmanager-580")
    assert row.image == "vllm/vllm-openai:v0.20.0"


@pytest.mark.parametrize(
    ("row", "file"),
    [
        ("a3-cann-8.5.0", "Atlas-A3-hdk-npu-driver_25.5.1_linux-aarch64.run"),
        ("a3-cann-8.5.0", "Atlas-A3-hdk-npu-firmware_7.7.0.9.220.run"),
        ("a2-cann-8.5.0", "Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run"),
        ("a3-cann-8.3.rc2", "Atlas-A3-hdk-npu-driver_25.3.rc1_linux-aarch64.run"),
        ("a3-cann-8.3.rc2", "Ascend-cann-toolkit_8.3.RC2_linux-aarch64.run"),
        ("a2-cann-8.3.rc2", "Ascend-cann-kernels-910b_8.3.RC2_linux-aarch64.run"),
        ("a2-cann-9.1.0", "Ascend-cann-910b-ops_9.1.0_linux-aarch64.run"),
        ("a2-cann-9.1.0", "Ascend-cann-nnal_9.1.0_linux-aarch64.run"),
    ],
)
def test_the_vendors_file_names_fit_one_pattern(row: str, file: str) -> None:
    patterns = [package.for_arch("aarch64") for package in stacks.find(row).packages]
    assert len([pattern for pattern in patterns if fnmatchcase(file, pattern)]) == 1


def test_a_file_of_the_other_family_fits_none() -> None:
    patterns = [package.for_arch("aarch64") for package in stacks.find("a3-cann-8.5.0").packages]
    assert not any(fnmatchcase("Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run", p) for p in patterns)


def test_every_recipe_of_accelerators_names_a_row_of_its_engine() -> None:
    for path in sorted((ROOT / "files/recipes").glob("qwen*/*.yaml")):
        its = recipe.load(path)
        assert its.catalogue is not None, path
        row = stacks.find(its.catalogue)
        assert (row.platform, row.vllm, row.vllm_ascend) == (its.platform, its.engine.vllm, its.engine.vllm_ascend)


def test_the_page_is_as_the_rows_are() -> None:
    assert (ROOT / "docs/catalogue.md").read_text() == page(stacks.all_rows()), "run make docs"


# ---- finding and reading


def test_an_unknown_row_names_the_nearest() -> None:
    with pytest.raises(FleetError) as caught:
        stacks.find("a3-cann-8.5.9")
    assert caught.value.findings[0].line() == (
        "error: catalogue 'a3-cann-8.5.9': there is no such row; write a3-cann-8.5.1, or give the path of a .yaml file "
        "[CATALOGUE-NAME]"
    )


@pytest.mark.parametrize("name", ["../versions/images", "/etc/passwd", "no\0name", "x" * 300])
def test_what_can_be_no_row(name: str) -> None:
    with pytest.raises(FleetError, match="CATALOGUE-NAME"):
        stacks.find(name)


def test_a_row_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    row = stacks.find(str(own_row(tmp_path)))
    assert (row.name, row.title, row.pinned) == ("ours", "ours", "not pinned")
    assert told(stacks.check(row)) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("title:", "titel:", 1, "unknown key titel"),
        ("cann: {version: 8.5.0}", "cann: {}", 5, "version is missing"),
        ("vllm: 0.13.0", "vllm: newest", 6, "'newest' is no version"),
        ("version: 25.5.1,", "version: 25 5,", 4, "'25 5' is no version"),
        ("*A3*npu", "../*A3*npu", 4, "is no pattern of a file name"),
        ("{arch}.run", "{machine}.run", 4, "is no pattern of a file name"),
        ("registry.rack", "-v /:/host registry.rack", 8, "is no image name"),
        ("title: ours", "title: ours\nname: other", 2, "unknown key name"),
    ],
)
def test_a_faulty_row_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    path = own_row(tmp_path, old, new)
    with pytest.raises(FleetError) as caught:
        stacks.find(str(path))
    finding = caught.value.findings[-1]
    assert finding.rule == "CATALOGUE-KEY"
    assert finding.where.startswith(f"{path}:{line}")
    assert what in finding.what


@pytest.mark.parametrize(("digest", "told"), [("ab" * 31, True), ("AB" * 32, True), ("ab" * 32, False)])
def test_a_checksum_has_64_digits(digest: str, told: bool) -> None:
    data = {"pattern": "*.run", "sha256": {"driver.run": digest}}
    if told:
        with pytest.raises(ValueError, match=r"the sum of driver\.run is no SHA-256"):
            stacks.Package.model_validate(data)
    else:
        assert stacks.Package.model_validate(data).sha256 == {"driver.run": "ab" * 32}


@pytest.mark.parametrize("text", ["- a\n- b\n", "", "{", "title: [\n"])
def test_what_is_no_row_at_all(tmp_path: Path, text: str) -> None:
    (tmp_path / "ours.yaml").write_text(text)
    with pytest.raises(FleetError, match="CATALOGUE-READ"):
        stacks.find(str(tmp_path / "ours.yaml"))


# ---- versions


@pytest.mark.parametrize(
    ("version", "found", "fits"),
    [
        ("25.3.RC1", "25.3.rc1", True),
        ("25.3.RC1", "25.3.1", False),
        ("580.*", "580.95.05", True),
        ("580.*", "570.86.15", False),
        ("*", "7.7.0.9.220", True),
    ],
)
def test_whether_what_a_host_has_is_the_version(version: str, found: str, fits: bool) -> None:
    assert Part(version=version).fits(found) is fits


# ---- a row against the vendors' tables


def changed(name: str, **changes: Any) -> list[str]:
    return told(stacks.check(stacks.find(name).model_copy(update=changes)))


def test_a_driver_that_does_not_carry_the_cann() -> None:
    assert changed("a3-cann-9.1.0", driver=Part(version="25.0.1")) == [
        "error CATALOGUE-DRIVER: HDK 25.0.1 does not carry CANN 9.1.0"
    ]


def test_a_driver_that_no_source_names_is_no_fault() -> None:
    assert changed("a3-cann-9.1.0", driver=Part(version="27.0.0")) == []


def test_a_cann_that_the_plugin_is_not_built_with() -> None:
    assert changed("a3-cann-8.5.0", cann=Part(version="8.5.1")) == [
        "error CATALOGUE-ENGINE: vllm-ascend 0.13.0 is built with CANN 8.5.0, not 8.5.1"
    ]


def test_a_vllm_that_the_plugin_is_not_built_for() -> None:
    assert changed("a3-cann-9.1.0", vllm="0.22.1") == [
        "error CATALOGUE-ENGINE: vllm-ascend 0.23.0 is built for vLLM 0.23.0, not 0.22.1"
    ]


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("quay.io/ascend/vllm-ascend:v0.13.0", "quay.io/ascend/vllm-ascend:v0.13.0 is made for ascend-a2"),
        ("quay.io/ascend/vllm-ascend:v0.18.0-a3", "quay.io/ascend/vllm-ascend:v0.18.0-a3 is 0.18.0"),
    ],
)
def test_an_image_of_another_family_or_version(image: str, what: str) -> None:
    assert [t.partition(", the row")[0] for t in changed("a3-cann-8.5.0", image=image)] == [
        f"error CATALOGUE-IMAGE: {what}"
    ]


def test_an_image_that_is_known_to_be_bad() -> None:
    its = changed("a3-cann-8.5.0", image="quay.io/ascend/vllm-ascend:v0.13.0rc2-a3")
    assert "error CATALOGUE-IMAGE: quay.io/ascend/vllm-ascend:v0.13.0rc2-a3: the image was built wrong" in its[1]


def test_an_image_that_moves_is_a_warning_and_a_digest_holds_it() -> None:
    moving = {"image": "quay.io/ascend/vllm-ascend:main-a3"}
    assert [t.split(":")[0] for t in changed("a3-cann-8.5.0", **moving)] == ["warning CATALOGUE-IMAGE"]
    assert changed("a3-cann-8.5.0", **moving, digest="sha256:" + "0" * 64) == []


def test_a_driver_that_does_not_run_the_cuda() -> None:
    driver = stacks.find("h100-cuda-12.9").gpu_driver
    assert changed("h100-cuda-13.0", gpu_driver=driver) == [
        "error CATALOGUE-DRIVER: driver 570.* does not run CUDA 13.0"
    ]


def test_an_image_of_another_cuda() -> None:
    assert changed("h100-cuda-13.0", image="vllm/vllm-openai:v0.20.0-cu129") == [
        "error CATALOGUE-IMAGE: vllm/vllm-openai:v0.20.0-cu129 is built on CUDA 12.9, the row says 13.0"
    ]


def test_a_row_without_a_driver_and_with_parts_of_the_other_family() -> None:
    assert changed("a3-cann-8.5.0", driver=None, cuda="13.0") == [
        "error CATALOGUE-PART: a row for ascend-a3 needs driver",
        "error CATALOGUE-PART: cuda does not belong in a row for ascend-a3",
    ]


# ---- a plan against its row


def of_row(plan: Plan) -> list[Finding]:
    return [finding for check in checks.CHECKS for finding in check(plan)]


def test_a_plan_and_its_row() -> None:
    plan = plan_of()
    row = stacks.of_plan(plan)
    assert row is not None and row.name == "a3-cann-8.5.0"
    assert told(of_row(plan)) == []


def test_the_inventorys_word_goes_before_the_recipes() -> None:
    row = stacks.of_plan(plan_of(catalogue="a3-cann-8.5.1"))
    assert row is not None and row.name == "a3-cann-8.5.1"


def test_a_plan_without_a_row() -> None:
    plan = plan_of(A3.replace("catalogue: a3-cann-8.5.0\n", ""))
    assert stacks.of_plan(plan) is None
    assert told(of_row(plan)) == []


def test_a_row_that_is_not_there_is_one_finding() -> None:
    (finding,) = of_row(plan_of(catalogue="a3"))
    assert finding.line().startswith("error: ")
    assert f"{plan_of().fleet.source} catalogue 'a3': there is no such row; " in finding.line()


def test_a_row_of_another_family() -> None:
    assert told(of_row(plan_of(catalogue="a2-cann-8.5.0"))) == [
        "error CATALOGUE-PLATFORM: catalogue a2-cann-8.5.0 is for ascend-a2, the recipe is for ascend-a3"
    ]


def test_another_engine_than_the_rows_is_a_warning() -> None:
    (finding,) = of_row(plan_of(catalogue="a3-cann-8.5.1"))
    assert finding.line() == (
        "warning: fleet.py: the engine is vllm_ascend 0.13.0, catalogue a3-cann-8.5.1 is for 0.18.0 (nobody says that "
        "these versions go together); name a row for vllm_ascend 0.13.0, see fleet catalogue; or a recipe for 0.18.0 "
        "[CATALOGUE-ENGINE]"
    )


def test_an_engine_that_the_rows_driver_does_not_carry_is_an_error(tmp_path: Path) -> None:
    own_row(tmp_path, "version: 25.5.1", "version: 25.0.1")
    text = A3.replace("{vllm: 0.13.0, vllm_ascend: 0.13.0}", "{vllm: 0.23.0, vllm_ascend: 0.23.0}")
    plan = plan_of(text, catalogue=str(tmp_path / "ours.yaml"))
    assert told(of_row(plan)) == [
        "error CATALOGUE-DRIVER: vllm_ascend 0.23.0 needs CANN 9.1.0, which the HDK 25.0.1 of catalogue ours does not "
        "carry"
    ]


def test_an_image_that_the_rows_driver_does_not_run() -> None:
    assert told(of_row(plan_of(H100, catalogue="h100-cuda-12.9"))) == [
        "error CATALOGUE-DRIVER: vllm/vllm-openai:v0.20.0 needs a driver of branch 580, catalogue h100-cuda-12.9 "
        "installs 570"
    ]
    fits = plan_of(H100, catalogue="h100-cuda-12.9", image="vllm/vllm-openai:v0.20.0-cu129")
    assert told(of_row(fits)) == []


def test_a_faulty_row_of_ones_own_is_told_by_the_plans_check(tmp_path: Path) -> None:
    plan = plan_of(catalogue=str(own_row(tmp_path, "version: 25.5.1", "version: 24.1.0")))
    assert told(of_row(plan)) == ["error CATALOGUE-DRIVER: HDK 24.1.0 does not carry CANN 8.5.0"]


def test_a_bundle_that_is_no_folder_is_told_and_stops_only_what_needs_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert told(of_row(plan_of(bundle=str(tmp_path / "gone")))) == ["warning BUNDLE-READ: there is no such folder"]
    assert told(of_row(plan_of(bundle=str(tmp_path / "file")))) == ["warning BUNDLE-READ: this is no folder"]
    assert told(of_row(plan_of(bundle=str(tmp_path)))) == []
