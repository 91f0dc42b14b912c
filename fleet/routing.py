"""What stands before the instances: the front door over replicas, or the router of one prefill/decode set.

Which one follows from the recipe: HAProxy for plain replicas, vllm-router for NixlConnector, vllm-ascend's
load-balancing proxy, run from the engine's image, for MooncakeConnectorV1.
"""

from __future__ import annotations

from typing import Any

from fleet.command import image_of
from fleet.inventory import Fleet, Node
from fleet.recipe import Recipe
from fleet.topology import CURRENT, Instance, Unit

ASCEND_PROXY_DIR = "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1"
ASCEND_PROXY = "load_balance_proxy_server_example.py"
HAPROXY_CONFIG = f"{CURRENT}/proxy/haproxy.cfg"
ROUTER_METRICS_PORT = 29000
# The router's own interval is 60 s: a dead worker would stay in rotation as long.
ROUTER_HEALTH = (
    *("--health-check-interval-secs", "2", "--health-failure-threshold", "2"),
    *("--health-success-threshold", "1", "--worker-startup-check-interval", "1"),
)


def proxy_units(fleet: Fleet, recipe: Recipe, instances: tuple[Instance, ...]) -> tuple[Unit, ...]:
    """One unit on each host with the role proxy."""
    return tuple(_proxy_unit(recipe, node, instances) for node in fleet.of("proxy"))


def _proxy_unit(recipe: Recipe, node: Node, instances: tuple[Instance, ...]) -> Unit:
    port = node.settings.proxy_port or recipe.proxy.port
    if recipe.kv_transfer is None:
        return _front_door(node, port)
    if recipe.kv_transfer.connector == "NixlConnector":
        return _vllm_router(node, port, instances)
    return _ascend_proxy(recipe, node, port, instances)


def _front_door(node: Node, port: int) -> Unit:
    return _entry(
        node,
        "front-door",
        runtime="native",
        argv=("haproxy", "-Ws", "-f", HAPROXY_CONFIG),
        ports={"api": port},
        config="proxy/haproxy.cfg.j2",
    )


def _vllm_router(node: Node, port: int, instances: tuple[Instance, ...]) -> Unit:
    argv = ["vllm-router", "--host", "0.0.0.0", "--port", str(port), "--vllm-pd-disaggregation"]
    for role in ("prefill", "decode"):
        for instance in instances:
            if instance.role == role:
                argv += [f"--{role}", instance.url]
    argv += ["--policy", "round_robin", *ROUTER_HEALTH, "--prometheus-host", "127.0.0.1"]
    argv += ["--prometheus-port", str(ROUTER_METRICS_PORT)]
    return _entry(
        node,
        "router",
        runtime="native",
        argv=tuple(argv),
        ports={"api": port, "metrics": ROUTER_METRICS_PORT},
        venv=node.settings.router_venv,
    )


def _ascend_proxy(recipe: Recipe, node: Node, port: int, instances: tuple[Instance, ...]) -> Unit:
    argv = ["python", ASCEND_PROXY, "--host", "0.0.0.0", "--port", str(port)]
    for role, word in (("prefill", "prefiller"), ("decode", "decoder")):
        chosen = [i for i in instances if i.role == role]
        argv += [f"--{word}-hosts", *(i.head.address for i in chosen)]
        argv += [f"--{word}-ports", *(str(i.api_port) for i in chosen)]
    return _entry(
        node,
        "proxy",
        runtime="docker",
        argv=tuple(argv),
        image=image_of(recipe, node),
        ports={"api": port},
        workdir=ASCEND_PROXY_DIR,
    )


def _entry(node: Node, name: str, **own: Any) -> Unit:
    """A unit that clients talk to; two minutes for what runs through it to end."""
    return Unit(name=f"vllm-{name}", host=node.name, role="proxy", instance=name, kind="proxy", stop_seconds=120, **own)
