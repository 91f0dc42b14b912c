"""npu-smi as its users' reports and its source show it, and what a fault of a scenario does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sim import dressed

HEAD = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.5.1                   Version: 25.5.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
"""
A2 = f"""\
{HEAD}\
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.1        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3418 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Alarm         | 93.1        36                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          58500/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 669096        | VLLMWorker_TP            | 55124                   |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
A3 = f"""\
{HEAD}\
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.8       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3397 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3186 / 65536         |
+===========================+===============+====================================================+
| 1     Ascend910           | OK            | 178.8       36                0    / 0             |
| 0     2                   | 0000:99:00.0  | 0           0    / 0          3397 / 65536         |
+------------------------------------------------------------------------------------------------+
| 1     Ascend910           | OK            | -           36                0    / 0             |
| 1     3                   | 0000:9B:00.0  | 0           0    / 0          3186 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       1                 | 4711          | python                   | 200                     |
+===========================+===============+====================================================+
"""
BOARD = """\
\tNPU ID                         : 2
\tProduct Name                   : IT23MMDB
\tModel                          : NA
\tManufacturer                   : NA
\tSerial Number                  : 1024B0010002
\tSoftware Version               : 25.5.1
\tFirmware Version               : 7.5.0.5.220
\tCompatibility                  : NOK
\tBoard ID                       : 0xb0
\tMain Board ID                  : 0x1c
\tPCB ID                         : A
\tBOM ID                         : 1
\tPCIe Bus Info                  : 0000:95:00.0
\tSlot ID                        : 0
\tClass ID                       : NA
\tPCI Vendor ID                  : 0x19E5
\tPCI Device ID                  : 0xD803
\tSubsystem Vendor ID            : 0x19E5
\tSubsystem Device ID            : 0x3003
\tChip Count                     : 2
"""
USAGES = """\
\tNPU ID                         : 3
\tChip Count                     : 1

\tDDR Capacity(MB)               : 0
\tDDR Usage Rate(%)              : 0
\tDDR Hugepages Total(page)      : 0
\tDDR Hugepages Usage Rate(%)    : 0
\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 5
\tAicore Usage Rate(%)           : 0
\tAivector Usage Rate(%)         : 0
\tAicpu Usage Rate(%)            : 0
\tCtrlcpu Usage Rate(%)          : 0
\tDDR Bandwidth Usage Rate(%)    : 0
\tHBM Bandwidth Usage Rate(%)    : 0
\tNPU Utilization(%)             : 0
\tAicube Usage Rate(%)           : 0
\tChip ID                        : 0
"""
ECC = """\
\tHBM Single Bit Error Count               : 7
\tHBM Double Bit Error Count               : 2
\tHBM Single Bit Aggregate Total Err Cnt   : 0
\tHBM Double Bit Aggregate Total Err Cnt   : 0
\tHBM Single Bit Isolated Pages Count      : 0
\tHBM Double Bit Isolated Pages Count      : 0
"""
MAPPING_A3 = f"""\
\tNPU ID                         Chip ID                        Chip Logic ID                  \
Chip Phy-ID                    Chip Name
\t0                              0                              0                              \
0                              Ascend910
\t0                              1                              1                              \
1                              Ascend910
\t0                              2                              -                              \
-                              {"Mcu":<30}
"""
GONE = {"present": False}


def without(first: int, last: int) -> dict[str, dict[str, object]]:
    return {str(number): dict(GONE) for number in range(first, last + 1)}


def test_the_table_of_an_a2(tmp_path: Path) -> None:
    busy = [{"pid": 669096, "name": "VLLMWorker_TP", "memory": 55124}]
    devices = {"0": {"processes": busy}, "1": {"health": "Alarm", "hbm_used": 58500}, **without(2, 7)}
    host = dressed(tmp_path, "ascend-a2", {"devices": devices})
    done = host.call("npu_smi", "info")
    assert (done.text, done.code) == (A2, 0)
    assert host.typed("npu_smi", "info") == done


def test_the_table_of_an_a3(tmp_path: Path) -> None:
    devices = {"3": {"processes": [{"pid": 4711, "name": "python", "memory": 200}]}, **without(4, 15)}
    done = dressed(tmp_path, "ascend-a3", {"devices": devices}).call("npu_smi", "info")
    assert (done.text, done.code) == (A3, 0)


def test_all_lines_of_a_full_table_are_equally_long(tmp_path: Path) -> None:
    lines = dressed(tmp_path, "ascend-a3").call("npu_smi", "info").lines
    assert {len(line) for line in lines} == {98}
    assert len([line for line in lines if "Ascend910" in line]) == 16


def test_the_board_tells_the_versions_of_a_card(tmp_path: Path) -> None:
    changes = {"compatibility": "NOK", "devices": {"4": {"firmware": "7.5.0.5.220"}}}
    done = dressed(tmp_path, "ascend-a3", changes, index=1).call("npu_smi", "info", "-t", "board", "-i", "2")
    assert (done.text, done.code) == (BOARD, 0)


def test_usages_and_ecc(tmp_path: Path) -> None:
    host = dressed(tmp_path, "ascend-a2", {"devices": {"3": {"ecc": {"single": 7, "double": 2}}}})
    assert host.call("npu_smi", "info", "-t", "usages", "-i", "3").text == USAGES
    assert host.call("npu_smi", "info", "-t", "ecc", "-i", "3", "-c", "0").text == ECC


def test_health_tells_codes_and_words(tmp_path: Path) -> None:
    sick = {"health": "Alarm", "error_codes": ["80E01801", "80CD8003"], "error_information": "node type=HBM"}
    host = dressed(tmp_path, "ascend-a2", {"devices": {"5": sick}})
    assert host.call("npu_smi", "info", "-t", "health", "-i", "5", "-c", "0").text == (
        "\tHealth Status                  : Alarm\n"
        "\tError Code                     : 80E01801 80CD8003\n"
        "\tError Information              : node type=HBM\n"
    )
    assert host.call("npu_smi", "info", "-t", "health", "-i", "0").text == (
        "\tNPU ID                         : 0\n\tChip Count                     : 1\n\n"
        "\tHealth Status                  : OK\n"
        "\tError Code                     : NA\n"
        "\tError Information              : NA\n"
        "\tChip ID                        : 0\n"
    )


def test_the_place_in_the_super_pod_follows_from_server_chip_and_die(tmp_path: Path) -> None:
    host = dressed(tmp_path, "ascend-a3", {"super_pod_id": 3, "devices": {"0": {"sdid": 77}}}, index=5)
    assert host.call("npu_smi", "info", "-t", "spod-info", "-i", "7", "-c", "1").text == (
        f"\tSDID                           : {5 << 22 | 7 << 18 | 1 << 16 | 15}\n"
        "\tSuper Pod Size                 : 384\n"
        "\tSuper Pod ID                   : 3\n"
        "\tServer Index                   : 5\n"
    )
    assert (
        "SDID                           : 77\n"
        in host.call("npu_smi", "info", "-t", "spod-info", "-i", "0", "-c", "0").text
    )


def test_lists(tmp_path: Path) -> None:
    a3 = dressed(tmp_path / "a3", "ascend-a3", {"devices": without(2, 15)})
    assert a3.call("npu_smi", "info", "-m").text == MAPPING_A3
    assert a3.call("npu_smi", "info", "-l").text == (
        "\tTotal Count                    : 1\n\n"
        "\tNPU ID                         : 0\n\tChip Count                     : 2\n\n"
    )
    a2 = dressed(tmp_path / "a2", "ascend-a2")
    assert a2.call("npu_smi", "info", "-m").lines[1].split() == ["0", "0", "0", "Ascend", "910B3"]
    assert a2.call("npu_smi", "info", "-m").lines[-1].split() == ["7", "1", "-", "Mcu"]


@pytest.mark.parametrize(
    ("family", "changes", "arguments", "text"),
    [
        ("ascend-a2", {"devices": {"*": GONE}}, "info", "There is no NPU card on this server.\n"),
        ("ascend-a2", {}, "info -t spod-info -i 0 -c 0", "This device does not support querying spod-info.\n"),
        ("ascend-a3", {}, "info -t spod-info -i 8 -c 0", "Error parameter of -i\n"),
        ("ascend-a3", {}, "info -t spod-info -i 0 -c 2", "Error parameter of -c\n"),
        ("ascend-a3", {}, "info -t nonsense -i 0", "Error parameter of -t\n"),
        ("ascend-a3", {"dcmi_error": -8001}, "info", "dcmi module initialize failed. ret is -8001\n"),
        ("ascend-a3", {"dcmi_error": -8005}, "info -m", "dcmi module initialize failed. ret is -8005\n"),
        (
            "ascend-a2",
            {"dcmi_error": -8020},
            "info",
            "dcmi model initialized failed, because the device is used. ret is -8020\n",
        ),
    ],
)
def test_refusals(tmp_path: Path, family: str, changes: dict[str, object], arguments: str, text: str) -> None:
    done = dressed(tmp_path, family, changes).call("npu_smi", *arguments.split())
    assert done.text == text
    assert (done.code == 0) == text.startswith("There is no")


def test_an_unfinished_installation_is_warned_of(tmp_path: Path) -> None:
    done = dressed(tmp_path, "ascend-a2", {"install_status": "uncomplete"}).call("npu_smi", "info")
    assert done.code == 0
    assert done.lines[-1] == (
        "[WARNING]The driver package may not be completely installed, which may cause function abnormal. "
        "Please reinstall it."
    )


def test_a_container_sees_the_devices_that_it_was_given(tmp_path: Path) -> None:
    control = ("davinci_manager", "devmm_svm", "hisi_hdc")
    box = dressed(tmp_path / "a", "ascend-a3").container("davinci4", "davinci5", *control)
    table = box.call("npu_smi", "info").text
    assert "| 2     Ascend910 " in table
    assert "| 0     Ascend910 " not in table
    (box.root / "etc/ascend_install.info").unlink()
    assert "WARNING" not in box.call("npu_smi", "info").text, "only told on a bare machine"
    poor = dressed(tmp_path / "b", "ascend-a3").container("davinci4", "davinci_manager")
    assert poor.call("npu_smi", "info").text == "dcmi module initialize failed. ret is -8005\n"
