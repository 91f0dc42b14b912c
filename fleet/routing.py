"""What stands before the instances, in two levels.

A set of prefill and decode instances has a router of its own: vllm-router for NixlConnector, vllm-ascend's
load-balancing proxy, run from the engine's image, for MooncakeConnectorV1. Before sets and plain replicas stands the
front door, HAProxy: neither router has a drain, vllm-router's management has no authentication and sits on its public
port, its prefill/decode mode refuses to take a worker back, and vllm-ascend's proxy answers a dead decode with an
empty 200. A single set may stand without a front door; its router's port is then the entry.
"""

from __future__ import annotations

from typing import Any

from fleet import ports
from fleet.command import image_of, unit_name
from fleet.inventory import Fleet, Node
from fleet.recipe import Recipe
from fleet.topology import Backend, Instance, Plan, Set, Unit, home_of

ASCEND_PROXY_DIR = "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1"
ASCEND_PROXY = "load_balance_proxy_server_example.py"
# The router's own interval is 60 s: a dead worker would stay in rotation as long.
ROUTER_HEALTH = (
    *("--health-check-interval-secs", "2", "--health-failure-threshold", "2"),
    *("--health-success-threshold", "1", "--worker-startup-check-interval", "1"),
)


def routing_units(
    fleet: Fleet, recipe: Recipe, instances: tuple[Instance, ...], sets: tuple[Set, ...]
) -> tuple[Unit, ...]:
    """The routers of the sets, then one entry on each host with the role proxy."""
    proxies = fleet.of("proxy")
    if not has_front_door(fleet, sets):
        return tuple(_set_router(recipe, node, _port(recipe, node), s, entry=True) for node in proxies for s in sets)
    units = [_set_router(recipe, s.router_host, s.router_port, s, entry=False) for s in sets]
    for node in proxies:
        if not sets and fleet.settings.cache_aware:
            units.append(_replica_router(node, instances))
        units.append(_front_door(recipe, node))
    return tuple(units)


def has_front_door(fleet: Fleet, sets: tuple[Set, ...]) -> bool:
    """Whether clients talk to HAProxy: always before replicas and several sets, before one set where asked for."""
    settings = fleet.settings
    asked = settings.front_door or settings.tls_certificate or settings.api_keys
    return bool(fleet.of("proxy")) and (len(sets) != 1 or bool(asked))


def backends(plan: Plan) -> tuple[Backend, ...]:
    """What the front door sends requests to."""
    if plan.sets:
        return tuple(Backend(s.name, s.router_host.at(s.router_port), s.instances) for s in plan.sets)
    if plan.fleet.settings.cache_aware:
        port = ports.ROUTER_PORT + plan.fleet.settings.port_offset
        return (Backend("router", f"127.0.0.1:{port}", plan.instances),)
    return tuple(Backend(i.name, i.head.at(i.api_port), (i,)) for i in plan.instances)


def _port(recipe: Recipe, node: Node) -> int:
    return node.settings.proxy_port or recipe.proxy.port + node.settings.port_offset


def _front_door(recipe: Recipe, node: Node) -> Unit:
    config = f"{home_of(node.settings.service)}/current/proxy/haproxy.cfg"
    return _unit(
        node,
        "front-door",
        entry=True,
        runtime="native",
        argv=("haproxy", "-Ws", "-f", config),
        ports={"api": _port(recipe, node)},
        config="proxy/haproxy.cfg.j2",
        reload=f"haproxy -c -f {config}",
    )


def _set_router(recipe: Recipe, node: Node, port: int, one: Set, entry: bool) -> Unit:
    """Its own name where it is the entry; numbered, and bound to the fleet's side, behind a front door."""
    listen = "0.0.0.0" if entry else node.address
    suffix = "" if entry else f"-{one.index}"
    if recipe.kv_transfer and recipe.kv_transfer.connector == "NixlConnector":
        argv = ["--vllm-pd-disaggregation"]
        for role, its in (("prefill", one.prefill), ("decode", one.decode)):
            for instance in its:
                argv += [f"--{role}", instance.url]
        # round robin on both sides would run in step, and use as many pairs as the smaller side has instances
        # (vllm-router refuses power_of_two for a single decode)
        argv += ["--prefill-policy", "round_robin"]
        argv += ["--decode-policy", "power_of_two" if len(one.decode) > 1 else "round_robin"]
        return _vllm_router(node, f"router{suffix}", listen, port, argv, entry)
    argv = ["python", ASCEND_PROXY, "--host", listen, "--port", str(port)]
    for word, its in (("prefiller", one.prefill), ("decoder", one.decode)):
        argv += [f"--{word}-hosts", *(i.head.address for i in its)]
        argv += [f"--{word}-ports", *(str(i.api_port) for i in its)]
    return _unit(
        node,
        f"proxy{suffix}",
        entry=entry,
        runtime="docker",
        argv=tuple(argv),
        image=image_of(recipe, node),
        ports={"api": port},
        workdir=ASCEND_PROXY_DIR,
        health="/healthcheck",  # it has no /health
    )


def _replica_router(node: Node, instances: tuple[Instance, ...]) -> Unit:
    """Sends requests with a common beginning to the same replica; only the front door beside it reaches it."""
    argv = ["--worker-urls", *(i.url for i in instances), "--policy", "cache_aware"]
    return _vllm_router(node, "router", "127.0.0.1", ports.ROUTER_PORT + node.settings.port_offset, argv, entry=False)


def _vllm_router(node: Node, name: str, listen: str, port: int, own: list[str], entry: bool) -> Unit:
    metrics = ports.ROUTER_METRICS_PORT + node.settings.port_offset
    argv = ["vllm-router", "--host", listen, "--port", str(port), *own, *ROUTER_HEALTH]
    # Not the default of 600 s: one dead worker must not keep the others from serving.
    argv += ["--worker-startup-timeout-secs", "30"]
    argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    return _unit(
        node,
        name,
        entry=entry,
        runtime="native",
        argv=tuple(argv),
        ports={"api": port, "metrics": metrics},
        venv=node.settings.router_venv,
        health="/readiness",  # its /health is red as long as a single worker is
        listens=listen if listen == "127.0.0.1" else None,
    )


def _unit(node: Node, name: str, *, entry: bool, **own: Any) -> Unit:
    """A unit that requests pass through; two minutes for those that do to end."""
    kind, role = ("proxy", "proxy") if entry else ("router", "router")
    return Unit(
        name=unit_name(node, name),
        host=node.name,
        home=home_of(node.settings.service),
        role=role,
        instance=name,
        kind=kind,  # type: ignore[arg-type]
        stop_seconds=120,
        **own,
    )
