"""From an inventory and a recipe to a plan: which host runs which ranks, and in which order things start.

Nothing here depends on a machine, a clock or the order of a dictionary: the same two files give the same plan.
"""

from __future__ import annotations

import math
from typing import Any

from fleet import ports
from fleet.command import engine_units
from fleet.findings import Finding, FleetError, error
from fleet.inventory import Fleet, Node
from fleet.recipe import Recipe, Role, RoleName
from fleet.routing import routing_units
from fleet.topology import Instance, Member, Plan, Set, Unit, platform_of


def plan(fleet: Fleet, recipe: Recipe) -> Plan:
    """Lay the recipe's roles over the fleet's hosts; a FleetError carries every reason why it does not fit."""
    recipe = _with_engine_version(fleet, recipe)
    instances = _instances(fleet, recipe)
    _refuse_doorless(fleet)
    sets = _sets(fleet, recipe, instances)
    units = tuple(u for i in instances for u in engine_units(recipe, i))
    units += routing_units(fleet, recipe, instances, sets)
    made = Plan(fleet, recipe, instances, units, _start_order(units), sets)
    if found := ports.conflicts(made):
        raise FleetError(*found)
    return made


def _with_engine_version(fleet: Fleet, recipe: Recipe) -> Recipe:
    """The recipe with the version that the inventory asks for instead of its own."""
    wanted = {n.settings.engine_version for n in fleet.nodes if n.settings.engine_version}
    if not wanted:
        return recipe
    if len(wanted) > 1:
        what = f"hosts ask for different engine versions: {', '.join(sorted(wanted))}"
        raise FleetError(error("INV-VERSION", fleet.source, what, "give the whole inventory one engine_version"))
    update: dict[str, Any] = {"vllm": wanted.pop()}
    engine = type(recipe.engine).model_validate({**recipe.engine.model_dump(exclude_none=True), **update})
    return recipe.model_copy(update={"engine": engine})


def _instances(fleet: Fleet, recipe: Recipe) -> tuple[Instance, ...]:
    findings: list[Finding] = []
    findings += _role_mismatch(fleet, recipe)
    findings += _platform_mismatch(fleet, recipe)
    if findings:
        raise FleetError(*findings)
    shaped: list[tuple[RoleName, Role, list[tuple[Member, ...]]]] = []
    for name in ("serve", "prefill", "decode"):
        if name not in recipe.roles:
            continue
        role = recipe.role(name)
        try:
            shaped.append((name, role, _members(fleet, recipe, name, role)))
        except FleetError as exc:
            findings += exc.findings
    if findings:
        raise FleetError(*findings)
    stride, base = ports.kv_stride(role for _, role, _ in shaped), ports.kv_base(recipe, fleet)
    offset = fleet.settings.port_offset
    instances: list[Instance] = []
    for name, role, groups in shaped:
        for number, members in enumerate(groups):
            index = len(instances)
            instances.append(
                Instance(
                    name=f"{name}-{number}",
                    role=name,
                    index=index,
                    spec=role,
                    members=members,
                    api_port=(role.port or ports.API_PORT) + offset,
                    rpc_port=role.rpc_port + index + offset,
                    kv_port=base + stride * index if base else None,
                    group_port=ports.GROUP_PORT + offset,
                )
            )
    return tuple(instances)


def _refuse_doorless(fleet: Fleet) -> None:
    """What only a front door can do must not be passed over: engines would stand open where keys are asked for."""
    settings = fleet.settings
    wanted = [key for key in ("api_keys", "tls_certificate", "cache_aware", "front_door") if getattr(settings, key)]
    wanted += [f"sets = {settings.sets}"] if settings.sets > 1 else []
    if wanted and not fleet.of("proxy"):
        what = f"{wanted[0]} needs a front door, and no host has the role proxy"
        raise FleetError(error("PLAN-ROLE", fleet.source, what, "add the group proxy = [...]"))
    if fleet.of("prefill") and settings.cache_aware:
        what = "cache_aware is for replicas; a set's own router chooses among its instances"
        raise FleetError(error("PLAN-ROLE", fleet.source, what, "leave cache_aware out"))


def _sets(fleet: Fleet, recipe: Recipe, instances: tuple[Instance, ...]) -> tuple[Set, ...]:
    """Prefill and decode instances dealt evenly, in order; the router of a set runs on its first prefill host."""
    count = fleet.settings.sets
    if recipe.kv_transfer is None:
        if count > 1:
            what = f"sets = {count}, but recipe {fleet.recipe} has no prefill and decode"
            raise FleetError(error("PLAN-SETS", fleet.source, what, "leave sets out"))
        return ()
    roles = {name: [i for i in instances if i.role == name] for name in ("prefill", "decode")}
    for name, its in roles.items():
        if len(its) % count:
            what = f"{len(its)} {name} instances do not divide into {count} sets"
            raise FleetError(error("PLAN-SETS", fleet.source, what, f"choose a number of sets that divides {len(its)}"))

    def share(name: str, index: int) -> tuple[Instance, ...]:
        size = len(roles[name]) // count
        return tuple(roles[name][index * size : (index + 1) * size])

    port = ports.ROUTER_PORT + fleet.settings.port_offset
    return tuple(
        Set(k, share("prefill", k), share("decode", k), share("prefill", k)[0].head, port) for k in range(count)
    )


def _hosts_of(fleet: Fleet, role: RoleName) -> tuple[Node, ...]:
    """The hosts of a role, heads first where Ray's groups say who is one."""
    if role != "serve":
        return fleet.of(role)
    return fleet.of("serve") or fleet.of("ray-head") + fleet.of("ray-worker")


def _role_mismatch(fleet: Fleet, recipe: Recipe) -> list[Finding]:
    findings = []
    for role in recipe.roles:
        if not _hosts_of(fleet, role):
            what = f"recipe {fleet.recipe} needs hosts with the role {role}, the inventory has none"
            findings.append(error("PLAN-ROLE", fleet.source, what, f"add the group {role} = [...]"))
    allowed = {*recipe.roles, "proxy"}
    if any(r.executor == "ray" for r in recipe.roles.values()):
        allowed |= {"ray-head", "ray-worker"}
    for group in fleet.groups:
        if group not in allowed:
            what = f"recipe {fleet.recipe} has nothing for the role {group} to do"
            mend = "use the roles of the recipe: " + ", ".join(sorted(recipe.roles))
            findings.append(error("PLAN-ROLE", f"{fleet.source} {group}", what, mend))
    for node in fleet.nodes:
        both = [r for r in node.roles if r != "proxy"]
        if len(both) > 1:
            what = f"{node.name} has the roles {' and '.join(both)}, which would share its devices"
            findings.append(error("PLAN-ROLE", fleet.source, what, "give each host one of them"))
    return findings


def _platform_mismatch(fleet: Fleet, recipe: Recipe) -> list[Finding]:
    findings = []
    for node in fleet.nodes:
        given = node.settings.platform
        if given and given != recipe.platform:
            what = f"host is {given}, recipe {fleet.recipe} is for {recipe.platform}"
            mend = "choose a recipe for this machine family, or mend platform"
            findings.append(error("PLAN-PLATFORM", f"{fleet.source} {node.name}", what, mend))
    return findings


def _members(fleet: Fleet, recipe: Recipe, name: RoleName, role: Role) -> list[tuple[Member, ...]]:
    """Cut the role's hosts, in inventory order, into instances."""
    hosts = _hosts_of(fleet, name)
    where = f"{fleet.source} {name}"
    counts = {len(_devices_of(node, recipe)) for node in hosts}
    if len(counts) > 1:
        what = f"hosts of one role have different numbers of devices: {sorted(counts)}"
        raise FleetError(error("PLAN-DEVICES", where, what, "split them into roles or inventories"))
    per_host = counts.pop()
    needed, ranks = _shape(role, per_host, where)
    over = len(hosts) % needed
    if over:
        what = f"{len(hosts)} hosts do not divide into instances of {needed}"
        mend = f"add {needed - over} or take {over} away"
        why = f"{role.world_size} devices an instance, {per_host} a host"
        raise FleetError(error("PLAN-HOSTS", where, what, mend, why))
    if role.executor == "ray" and fleet.groups.get("ray-head"):
        hosts = _ray_order(fleet, needed, where)
    groups = [hosts[i : i + needed] for i in range(0, len(hosts), needed)]
    share = role.tensor_parallel_size * role.pipeline_parallel_size
    used = role.world_size // needed if needed > 1 else ranks * share
    return [
        tuple(Member(node, i * ranks, ranks, _devices_of(node, recipe)[:used]) for i, node in enumerate(group))
        for group in groups
    ]


def _ray_order(fleet: Fleet, needed: int, where: str) -> tuple[Node, ...]:
    """One head and its workers, instance after instance."""
    heads, workers = fleet.of("ray-head"), fleet.of("ray-worker")
    if len(workers) != len(heads) * (needed - 1):
        what = f"{len(heads)} ray_head and {len(workers)} ray_worker hosts do not make instances of {needed}"
        raise FleetError(error("PLAN-HOSTS", where, what, f"give each head {needed - 1} workers"))
    ordered: list[Node] = []
    for i, head in enumerate(heads):
        ordered += [head, *workers[i * (needed - 1) : (i + 1) * (needed - 1)]]
    return tuple(ordered)


def _devices_of(node: Node, recipe: Recipe) -> tuple[int, ...]:
    return node.settings.device_indices(platform_of(recipe).devices_per_host)


def _shape(role: Role, per_host: int, where: str) -> tuple[int, int]:
    """(hosts of one instance, data-parallel ranks on each)."""
    share = role.tensor_parallel_size * role.pipeline_parallel_size
    if role.executor == "ray":
        hosts = math.ceil(role.world_size / per_host)
        if hosts > 1 and role.world_size % per_host:
            what = f"{role.world_size} devices do not fill whole hosts of {per_host}"
            raise FleetError(error("PLAN-DEVICES", where, what, "choose sizes whose product is a multiple of it"))
        return hosts, role.data_parallel_size
    if share > per_host:
        what = f"tensor x pipeline size {share} is more than the {per_host} devices of a host"
        mend = "lower tensor_parallel_size, or set executor: ray to span hosts"
        raise FleetError(error("PLAN-DEVICES", where, what, mend))
    ranks = min(per_host // share, role.data_parallel_size)
    if role.data_parallel_size % ranks:
        what = f"data_parallel_size {role.data_parallel_size} does not divide into {ranks} ranks a host"
        why = f"{per_host} devices a host, {share} a rank"
        mend = f"make data_parallel_size a multiple of {ranks}"
        if per_host % share:
            mend = f"choose tensor and pipeline sizes whose product divides {per_host}"
        raise FleetError(error("PLAN-DEVICES", where, what, mend, why))
    return role.data_parallel_size // ranks, ranks


def _start_order(units: tuple[Unit, ...]) -> tuple[tuple[str, ...], ...]:
    """Ray heads, Ray workers, ranks without an API, heads, routers, proxies: each stage after the one before it."""

    def stage(unit: Unit) -> int:
        if unit.kind == "ray":
            return 0 if unit.role == "ray-head" else 1
        if unit.kind == "engine":
            return 2 if "--headless" in unit.argv else 3
        return 4 if unit.kind == "router" else 5

    stages: dict[int, list[str]] = {}
    for unit in units:
        stages.setdefault(stage(unit), []).append(unit.at)
    return tuple(tuple(stages[key]) for key in sorted(stages))
