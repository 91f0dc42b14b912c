"""Atlas 800 A2: eight NPUs, one die each, in one host."""

from __future__ import annotations

from fleet.platforms import _ascend
from fleet.platforms.base import Platform
from fleet.recipe import Engine


def _image(engine: Engine) -> str | None:
    return engine.image or f"quay.io/ascend/vllm-ascend:v{engine.vllm_ascend}"


PLATFORM = Platform(
    name="ascend-a2",
    devices_per_host=8,
    runtime="docker",
    network_env=_ascend.network_env,
    devices=_ascend.devices,
    image=_image,
    mounts=_ascend.MOUNTS,
    cluster_mounts=_ascend.CLUSTER_MOUNTS,
    setup_files=_ascend.SETUP_FILES,
    container_setup_files=_ascend.CONTAINER_SETUP_FILES,
    ray_env=_ascend.ray_env,
    limits=_ascend.LIMITS,
)
