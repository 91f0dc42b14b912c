"""What Atlas A2 and A3 share.

Devices, mounts and environment: vllm-ascend's Qwen3-235B-A22B tutorial and its multi-node guide, which adds
/etc/hccn.conf. HCCL reads HCCL_SOCKET_IFNAME as a list of prefixes; a leading = makes it one exact name
(HCCL environment reference). GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME are exact names.
The images set the toolkit's and ATB's paths, jemalloc and further library paths in root's ~/.bashrc (their
Dockerfiles), where the tutorial's interactive shell finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.platforms.base import Platform
from fleet.recipe import Engine

# HCCL takes this many ports from its base on, on the host and on each device (HCCL environment reference).
HCCL_HOST_PORT, HCCL_DEVICE_PORT, HCCL_PORTS = 60000, 16666, 32
ALWAYS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")

MOUNTS = (
    "/usr/local/dcmi:/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi:/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/",
    "/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info:/etc/ascend_install.info",
)
CLUSTER_MOUNTS = ("/etc/hccn.conf:/etc/hccn.conf",)
SETUP_FILES = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/nnal/atb/set_env.sh")
CONTAINER_SETUP_FILES = ("/root/.bashrc",)
LIMITS = {"LimitMEMLOCK": "infinity", "LimitNOFILE": "1048576"}


def devices(indices: Sequence[int]) -> tuple[str, ...]:
    """Device nodes of the given NPUs (of dies, on A3)."""
    return tuple(f"/dev/davinci{i}" for i in indices) + ALWAYS


def network_env(address: str, interface: str) -> dict[str, str]:
    """Variables that bind HCCL, Gloo and the engine to one interface of the host."""
    return {
        "HCCL_IF_IP": address,
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "HCCL_SOCKET_IFNAME": f"={interface}",
        "VLLM_HOST_IP": address,
    }


def ray_env(indices: Sequence[int]) -> dict[str, str]:
    """What must stand in the environment before ``ray start`` (vllm-ascend's Ray guide)."""
    return {"RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1", **visible_env(indices)}


def visible_env(indices: Sequence[int]) -> dict[str, str]:
    """The devices that a process outside a container may use."""
    return {"ASCEND_RT_VISIBLE_DEVICES": ",".join(str(i) for i in indices)}


def sharing_env(indices: Sequence[int]) -> dict[str, str]:
    """Ports of HCCL for a service beside another on one host: both would take 60000 on and 16666 on (EI0019, EI0020).

    HCCL environment reference: HCCL_HOST_SOCKET_PORT_RANGE goes before HCCL_IF_BASE_PORT; both ranges must be given
    on every rank.
    """
    host, device = hccl_slot(indices, HCCL_HOST_PORT), hccl_slot(indices, HCCL_DEVICE_PORT)
    return {
        "HCCL_HOST_SOCKET_PORT_RANGE": f"{host.start}-{host.stop - 1}",
        "HCCL_NPU_SOCKET_PORT_RANGE": f"{device.start}-{device.stop - 1}",
    }


def own_ports(indices: Sequence[int]) -> tuple[range, str]:
    """HCCL's ports on the host."""
    return hccl_slot(indices, HCCL_HOST_PORT), "HCCL"


def hccl_slot(indices: Iterable[int], base: int) -> range:
    """HCCL's ports for a service that has these devices of a shared host: disjoint wherever the devices are."""
    start = base + HCCL_PORTS * min(indices, default=0)
    return range(start, start + HCCL_PORTS)


def family(name: str, devices_per_host: int, tag_suffix: str) -> Platform:
    """A machine family of Atlas hosts; its image's tag ends with ``tag_suffix``."""

    def image(engine: Engine) -> str | None:
        return engine.image or f"quay.io/ascend/vllm-ascend:v{engine.vllm_ascend}{tag_suffix}"

    return Platform(
        name=name,
        devices_per_host=devices_per_host,
        runtime="docker",
        network_env=network_env,
        devices=devices,
        image=image,
        mounts=MOUNTS,
        cluster_mounts=CLUSTER_MOUNTS,
        setup_files=SETUP_FILES,
        container_setup_files=CONTAINER_SETUP_FILES,
        ray_env=ray_env,
        sharing_env=sharing_env,
        own_ports=own_ports,
        visible_env=visible_env,
        limits=LIMITS,
    )
