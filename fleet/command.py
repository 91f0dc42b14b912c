"""An instance's units: the command line and environment of each of its hosts.

Everything derived is derived here: headless, ranks, addresses, ports, engine ids, both sides of the
key-value transfer, device lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet import engine, ports
from fleet.inventory import Node
from fleet.recipe import Argument, Recipe, dashed
from fleet.topology import Group, Instance, Member, Unit, home_of, open_interface, platform_of

# Above the drain: the workers' own exit took up to 35 s on a loaded machine.
STOP_MARGIN_SECONDS = 60


def engine_units(recipe: Recipe, instance: Instance) -> tuple[Unit, ...]:
    """All units of one instance, in the order of its hosts."""
    units: list[Unit] = []
    ray = instance.spec.executor == "ray" and len(instance.members) > 1
    for position, member in enumerate(instance.members):
        if ray:
            units.append(_ray_unit(recipe, instance, member, position == 0))
        if not ray or position == 0:
            units.append(_engine_unit(recipe, instance, member, position == 0, ray))
    return tuple(units)


def words(args: Mapping[str, Argument]) -> list[str]:
    """Arguments as command-line words: true is a flag, false its negation, a mapping is JSON."""
    result: list[str] = []
    for name, value in args.items():
        flag = "--" + dashed(name)
        if value is True:
            result.append(flag)
        elif value is False:
            result.append("--no-" + flag[2:])
        elif isinstance(value, dict):
            result += [flag, as_json(value)]
        elif isinstance(value, list):
            result += [flag, *(v if isinstance(v, str) else as_json(v) for v in value)]
        elif value is not None:
            result += [flag, str(value)]
    return result


def as_json(value: Any) -> str:
    """JSON without spaces, keys as written."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _engine_unit(recipe: Recipe, instance: Instance, member: Member, head: bool, ray: bool) -> Unit:
    spec = instance.spec
    argv = ["vllm", "serve", recipe.model.name]
    argv += _listen(instance, member.node)
    argv += _parallel(recipe, instance, member, head)
    args = engine.args_of(recipe.engine.version, recipe.model, spec)
    if "--headless" in argv:  # ranks without an API refuse it
        args.pop("api-server-count", None)
    argv += words(args)
    if recipe.model.quantization:
        argv += ["--quantization", recipe.model.quantization]
    if recipe.model.served_name:
        argv += ["--served-model-name", recipe.model.served_name]
    if recipe.drain_seconds and engine.exists("shutdown-timeout", recipe.engine.version):
        argv += ["--shutdown-timeout", str(recipe.drain_seconds)]
    argv += _kv_transfer(recipe, instance)
    base = _base_unit(recipe, instance, member)
    used = {"api": instance.api_port}
    if instance.is_group and not ray:
        used = {"api": instance.api_port, "rpc": instance.rpc_port} if head else {}
        used["group"] = instance.group_port
    elif _is_distributed(recipe, instance) and spec.data_parallel_size > 1 and spec.executor != "ray":
        used["rpc"] = instance.rpc_port
    if instance.kv_port is not None:
        used["kv"] = instance.kv_port
    ray_unit = _ray_name(instance, member) if ray else None
    return Unit(
        name=unit_name(member.node, instance.name),
        role=instance.role,
        kind="engine",
        argv=tuple(argv),
        ports=used,
        needs=(ray_unit,) if ray_unit else (),
        inside=ray_unit if base["runtime"] == "docker" else None,
        group=_group(instance, member) if instance.is_group and not ray else None,
        awaits_nodes=len(instance.members) if ray else 0,
        **base,
    )


def _ray_unit(recipe: Recipe, instance: Instance, member: Member, head: bool) -> Unit:
    own_address = f"--node-ip-address={member.node.address}"
    offset = member.node.settings.port_offset
    port = ports.RAY_PORT + offset
    # beside another Ray of the host, out of the range that its workers take
    client = ports.RAY_CLIENT_PORT if not offset else ports.RAY_WORKER_PORTS.stop + 1 + offset
    if head:
        argv = ["ray", "start", "--head", f"--port={port}", own_address]
        argv += ["--include-dashboard=false", "--disable-usage-stats"]
        if offset:
            argv.append(f"--ray-client-server-port={client}")
    else:
        argv = ["ray", "start", f"--address={instance.head.at(port)}", own_address]
    if offset:  # another Ray on this host has the usual range
        argv += ["--min-worker-port=0", "--max-worker-port=0"]
    argv.append("--block")
    return Unit(
        name=_ray_name(instance, member),
        role="ray-head" if head else "ray-worker",
        kind="ray",
        argv=tuple(argv),
        ports={"group": instance.group_port} | ({"ray": port, "client": client} if head else {}),
        group=_group(instance, member),
        **_base_unit(recipe, instance, member),
    )


def unit_name(node: Node, name: str) -> str:
    """The name of a systemd unit: services of one host keep theirs apart."""
    service = node.settings.service
    return f"vllm-{service}-{name}" if service else f"vllm-{name}"


def _ray_name(instance: Instance, member: Member) -> str:
    return unit_name(member.node, f"ray-{instance.name}")


def _group(instance: Instance, member: Member) -> Group:
    """The members' own ports: each tells there that it lives, and asks the others."""
    peers = tuple(
        (f"{instance.name}@{m.node.name}", m.node.address, instance.group_port)
        for m in instance.members
        if m is not member
    )
    return Group(f"{instance.name}@{member.node.name}", (member.node.address, instance.group_port), peers)


def _base_unit(recipe: Recipe, instance: Instance, member: Member) -> dict[str, Any]:
    """What the units of one host of an instance share."""
    platform, node = platform_of(recipe), member.node
    settings = node.settings
    runtime = _runtime(recipe, node)
    docker = runtime == "docker"
    mounts = platform.mounts + (platform.cluster_mounts if _is_distributed(recipe, instance) else ())
    mounts += (f"{settings.weights_dir}:{settings.weights_dir}:ro",)
    mounts += tuple(m if ":" in m else f"{m}:{m}" for m in settings.mounts)
    return {
        "host": node.name,
        "home": home_of(settings.service),
        "device_indices": member.devices,
        "instance": instance.name,
        "runtime": runtime,
        "env": _env(recipe, instance, member),
        "image": image_of(recipe, node) if docker else None,
        "devices": platform.devices(member.devices),
        "docker_options": platform.docker_options(member.devices) if docker else (),
        "mounts": mounts if docker else (),
        "workdir": settings.weights_dir,
        "setup_files": platform.container_setup_files if docker else platform.setup_files,
        "shm_size": recipe.shm_size,
        "venv": None if docker else settings.venv,
        "stop_seconds": recipe.drain_seconds + STOP_MARGIN_SECONDS,
        "limits": platform.limits if settings.raise_limits else {},
    }


def _runtime(recipe: Recipe, node: Node) -> str:
    return node.settings.runtime or recipe.runtime or platform_of(recipe).runtime


def image_of(recipe: Recipe, node: Node) -> str:
    """The image's name, through the host's registry mirror if it has one."""
    image = node.settings.image or platform_of(recipe).image(recipe.engine) or ""
    mirror = node.settings.registry_mirror
    return f"{mirror.rstrip('/')}/{image}" if mirror and not node.settings.image else image


def _is_distributed(recipe: Recipe, instance: Instance) -> bool:
    """Whether the instance talks to other hosts: over several of them, or to its transfer peers."""
    return len(instance.members) > 1 or recipe.kv_transfer is not None


def _listen(instance: Instance, node: Node) -> list[str]:
    host = node.settings.api_host or instance.spec.host
    said = instance.spec.port is not None or node.settings.port_offset
    return (["--host", host] if host else []) + (["--port", str(instance.api_port)] if said else [])


def _parallel(recipe: Recipe, instance: Instance, member: Member, head: bool) -> list[str]:
    spec = instance.spec
    argv: list[str] = [] if head else ["--headless"]
    if spec.wrote("tensor_parallel_size"):
        argv += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    if spec.wrote("pipeline_parallel_size"):
        argv += ["--pipeline-parallel-size", str(spec.pipeline_parallel_size)]
    if spec.wrote("data_parallel_size"):
        argv += ["--data-parallel-size", str(spec.data_parallel_size)]
    if spec.data_parallel_size > 1 and _is_distributed(recipe, instance) and spec.executor != "ray":
        argv += ["--data-parallel-size-local", str(member.local_size)]
        if member.start_rank or engine.start_rank_zero_is_harmless(recipe.engine.version):
            argv += ["--data-parallel-start-rank", str(member.start_rank)]
        argv += ["--data-parallel-address", instance.head.address]
        argv += ["--data-parallel-rpc-port", str(instance.rpc_port)]
    if spec.executor:
        argv += ["--distributed-executor-backend", spec.executor]
    return argv


def _env(recipe: Recipe, instance: Instance, member: Member) -> dict[str, str]:
    """Set for the engine and, in Ray, before ``ray start``: Ray's workers inherit it from there."""
    node, platform = member.node, platform_of(recipe)
    env: dict[str, str] = {}
    if _is_distributed(recipe, instance):
        env |= platform.network_env(node.address, open_interface(node.address))
    # a container sees the devices that it is given, counted from 0
    seen = range(len(member.devices)) if _runtime(recipe, node) == "docker" else member.devices
    if instance.spec.executor == "ray":
        env |= platform.ray_env(seen)
    if node.settings.shares_host:
        env |= platform.sharing_env(member.devices)
        env |= platform.visible_env(member.devices) if _runtime(recipe, node) == "native" else {}
    if recipe.kv_transfer and recipe.kv_transfer.connector == "NixlConnector":
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = node.address
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(instance.kv_port)
        if recipe.platform == "cpu":  # over TCP, UCX would try every interface, and wait for those that lead nowhere
            env["UCX_NET_DEVICES"] = open_interface(node.address)
    if engine.reads_ready_timeout(recipe.engine.version):
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = str(recipe.start_timeout_seconds)
    env |= {k: _text(v) for k, v in instance.spec.env.items() if v is not None}
    return env | {k: _text(v) for k, v in node.settings.env.items()}


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kv_transfer(recipe: Recipe, instance: Instance) -> list[str]:
    transfer = recipe.kv_transfer
    if transfer is None:
        return []
    block: dict[str, Any] = {"kv_connector": transfer.connector}
    if transfer.connector == "NixlConnector":
        # The connector ignores the role (vLLM's NixlConnector guide); both is what its examples give.
        block |= {"kv_role": "kv_both", **transfer.config}
        if transfer.extra:
            block["kv_connector_extra_config"] = transfer.extra
        return ["--kv-transfer-config", as_json(block)]
    block["kv_role"] = "kv_producer" if instance.role == "prefill" else "kv_consumer"
    block["kv_port"] = str(instance.kv_port)
    block["engine_id"] = instance.engine_id
    module = engine.mooncake_module(recipe.engine.version)
    if module:
        block["kv_connector_module_path"] = module
    sizes = {
        name: {
            "dp_size": recipe.roles[name].data_parallel_size,
            "tp_size": recipe.roles[name].tensor_parallel_size,
        }
        for name in ("prefill", "decode")
    }
    block |= transfer.config
    block["kv_connector_extra_config"] = {**transfer.extra, **sizes}
    return ["--kv-transfer-config", as_json(block)]
