"""Failures that a log names after they happened: each log is a start that went wrong, with what followed from it."""

from __future__ import annotations

from pathlib import Path

from fleet import failures
from fleet.findings import Finding
from tests.unit.coverage.case import Case, Findings

LOGS = Path(__file__).parents[1] / "data" / "journals"
HEALTHY = ("healthy-ascend", "real-healthy-cpu-0.31", "real-healthy-cpu-0.32")


def _reading(*logs: str) -> Findings:
    def read() -> list[Finding]:
        return [
            cause.finding(f"{log}.log:{cause.number}")
            for log in logs
            for cause in failures.read_blocks([(LOGS / f"{log}.log").read_text(encoding="utf-8")])
        ]

    return read


def _case(failure: int, rule: str, log: str) -> Case:
    return Case(failure, rule, _reading(log), _reading(*HEALTHY))


CASES: tuple[Case, ...] = (
    _case(1, "LOG-EI0006", "01-links-superpods"),
    _case(2, "LOG-EI0006", "02-links-tls"),
    _case(3, "LOG-EI0006", "03-links-late"),
    _case(4, "LOG-EI0001", "04-ifname"),
    _case(5, "LOG-EI0015", "05-root-agent"),
    _case(5, "LOG-EI0015", "05-root-server"),
    _case(5, "LOG-EI0015", "05-root-screen"),
    _case(6, "LOG-GLOO-LOOPBACK", "06-gloo-loopback"),
    _case(8, "LOG-EI0019", "08-host-port"),
    _case(8, "LOG-EI0020", "08-npu-port"),
    _case(9, "LOG-EI0008", "09-hccl-versions"),
    _case(10, "LOG-HCCN-CONF", "10-hccn-conf"),
    _case(11, "LOG-EI0014", "11-super-device"),
    _case(13, "LOG-ZMQ-ADDRESS", "13-kv-port"),
    _case(14, "LOG-TORCH-PORT", "14-open-port"),
    _case(15, "LOG-MOONCAKE-TIMEOUT", "15-mooncake-timeout"),
    _case(16, "LOG-MOONCAKE-VERSION", "16-mooncake-connect"),
    _case(17, "LOG-ASCEND-TRANSPORT", "17-ascend-transport"),
    _case(18, "LOG-MOONCAKE-MEMORY", "18-fabric-memory"),
    _case(19, "LOG-MOONCAKE-MEMORY", "19-host-memory"),
    _case(20, "LOG-OOM-NPU", "20-npu-oom"),
    _case(24, "LOG-ENGINE-ID", "24-engine-id"),
    _case(24, "LOG-PD-TENSOR", "24-tensor-sizes"),
    _case(25, "LOG-NIXL-ENGINE", "25-nixl-engine"),
    _case(26, "LOG-ARGUMENT", "real-argument"),
    _case(27, "LOG-CONTEXT", "27-context"),
    _case(28, "LOG-ARGUMENT", "28-newer-argument"),
    _case(29, "LOG-SHM-BROADCAST", "29-broadcast"),
    _case(30, "LOG-DRIVER", "30-driver-old"),
    _case(31, "LOG-DCMI-8020", "31-device-held"),
    _case(32, "LOG-RAY-NPU", "32-ray-npu"),
    _case(33, "LOG-RAY-VERSION", "33-ray-version"),
    _case(34, "LOG-BUFFSIZE", "34-buffsize"),
    _case(35, "LOG-STREAMS", "35-streams"),
    _case(38, "LOG-MODULE", "real-module"),
    _case(38, "LOG-VERSION-TEXT", "38-invalid-version"),
    _case(39, "LOG-READY-TIMEOUT", "39-ready-timeout"),
    _case(40, "LOG-START-TIMEOUT", "40-start-timeout"),
    _case(41, "LOG-SAFETENSORS", "real-truncated"),
    _case(41, "LOG-SAFETENSORS", "real-lfs-pointer"),
    _case(45, "LOG-CONSISTENCY", "45-consistency"),
    _case(46, "LOG-EJ0001", "46-hccp-alive"),
    _case(48, "LOG-KV-NONE", "48-kv-none"),
    _case(50, "LOG-SHM", "50-shm"),
    _case(52, "LOG-NVML", "52-nvml"),
    _case(53, "LOG-CUDA-802", "53-cuda-802"),
    _case(54, "LOG-CUDA-803", "54-cuda-803"),
    _case(55, "LOG-MEMLOCK", "55-memlock"),
)
