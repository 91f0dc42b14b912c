"""HGX H100 and its like: eight GPUs in one host.

The device nodes are named besides ``--gpus``: with systemd's cgroup driver a daemon-reload otherwise takes
the GPUs away from running containers (nvidia-container-toolkit issue 48). NCCL_SOCKET_IFNAME is a list of
prefixes, a leading = makes it one exact name; GLOO_SOCKET_IFNAME is an exact name (NCCL user guide).
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.platforms.base import Platform
from fleet.recipe import Engine

_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def _image(engine: Engine) -> str | None:
    return engine.image or f"vllm/vllm-openai:v{engine.vllm}"


def _devices(indices: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"/dev/nvidia{i}" for i in indices) + _CONTROL


def _docker_options(indices: Sequence[int]) -> tuple[str, ...]:
    return ("--gpus", '"device=' + ",".join(str(i) for i in indices) + '"')


def _network_env(address: str, interface: str) -> dict[str, str]:
    return {
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "VLLM_HOST_IP": address,
    }


def _visible_env(indices: Sequence[int]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in indices)}


PLATFORM = Platform(
    name="nvidia",
    devices_per_host=8,
    runtime="docker",
    network_env=_network_env,
    devices=_devices,
    image=_image,
    docker_options=_docker_options,
    ray_env=_visible_env,
    visible_env=_visible_env,
    limits={"LimitMEMLOCK": "infinity", "LimitNOFILE": "1048576"},
)
