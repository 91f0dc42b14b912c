"""HCCL's and NCCL's environment: within its bounds, and the same on everything that must work together.

Bounds, defaults and what must be equal: HCCL environment reference (mirror-cann/hccl docs/zh/user_guide/hccl_env).
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Plan

SOURCE = "HCCL environment reference"
# Whole numbers, with the least and the largest that HCCL takes.
BOUNDS = {
    "HCCL_CONNECT_TIMEOUT": (120, 7200),
    "HCCL_BUFFSIZE": (1, None),
    "HCCL_IF_BASE_PORT": (1024, 65520),
    "HCCL_RDMA_TIMEOUT": (5, 20),
    "HCCL_RDMA_RETRY_CNT": (1, 7),
    "HCCL_RDMA_SL": (0, 7),
    "HCCL_RDMA_TC": (0, 255),
    "HCCL_MULTI_QP_THRESHOLD": (1, 8192),
}
# What a host may have of its own: names of its interfaces and adapters, its address, its ports.
OWN = {
    *("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE"),
    *("HCCL_IF_BASE_PORT", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_DEBUG_FILE"),
}
COMMON = ("HCCL_", "NCCL_", "VLLM_ASCEND_")
ROCE, PCIE = "HCCL_INTRA_ROCE_ENABLE", "HCCL_INTRA_PCIE_ENABLE"
CONNECT_DEFAULT = 120
# Weights of this size take longer on one host than on another by more than HCCL waits, in GB.
LARGE_GB = 100
BUFFER_DEFAULT, BUFFER_LEAST = 200, 512
# Experts over so many devices exchange more than the default buffer holds.
MANY = 16


def _is_ascend(plan: Plan) -> bool:
    return plan.recipe.platform.startswith("ascend")


def out_of_bounds(plan: Plan) -> Iterator[Finding]:
    """Values that HCCL refuses (EI0001)."""
    if not _is_ascend(plan):
        return
    told: set[tuple[str, str]] = set()
    for unit in plan.units:
        for name, (least, most) in BOUNDS.items():
            given = unit.env.get(name)
            if given is None or (name, given) in told:
                continue
            value = look.number(given)
            if value is None or value < least or (most is not None and value > most):
                told.add((name, given))
                allowed = f"{least} to {most}" if most is not None else f"{least} or more"
                what = f"{name} is {given}, HCCL takes {allowed}"
                why = "the first collective fails with EI0001"
                where = f"{plan.fleet.recipe} {unit.instance}"
                yield error("HCCL-BOUNDS", where, what, f"give it {allowed}", why, SOURCE)


def links_inside_a_host(plan: Plan) -> Iterator[Finding]:
    """RoCE and PCIe inside a host exclude each other, and both ends must have chosen the same."""
    if not _is_ascend(plan):
        return
    envs = look.first_env(plan)
    chosen: dict[tuple[str, ...], str] = {}
    for where, instance in look.roles(plan):
        env = envs[instance.name]
        mine = tuple(name for name in (ROCE, PCIE) if env.get(name) == "1")
        chosen.setdefault(mine, instance.role)
        if len(mine) == 2:
            what, mend = f"{ROCE} and {PCIE} are both 1", "leave one of them out"
            yield error("HCCL-INTRA", where, what, mend, "HCCL supports one of them", SOURCE)
        elif mine == (PCIE,) and plan.recipe.platform == "ascend-a3":
            what = f"{PCIE} is 1 on Atlas A3"
            yield error("HCCL-INTRA", where, what, "leave it out", "A3 has no such link", SOURCE)
    if len(chosen) > 1:
        words = [f"{role} has {' and '.join(names) or 'neither'}" for names, role in chosen.items()]
        yield error(
            "HCCL-INTRA",
            plan.fleet.recipe,
            f"of {ROCE} and {PCIE}, {', '.join(words)}",
            "write it once, under shared.env",
            "prefill and decode would choose different links and not reach each other",
            f"{SOURCE}; Mooncake issue 3749",
        )


def ranks_differ(plan: Plan) -> Iterator[Finding]:
    """Ranks of one instance must agree on how they speak with each other."""
    for name, units in look.engines(plan).items():
        if len(units) < 2:
            continue
        first = units[0]
        names = {n for unit in units for n in unit.env if n.startswith(COMMON)} - OWN
        for variable in sorted(names):
            other = next((u for u in units if u.env.get(variable) != first.env.get(variable)), None)
            if other:
                values = [u.env.get(variable, "not set") for u in (first, other)]
                yield warning(
                    "HCCL-DIFFERS",
                    f"{plan.fleet.source} {name}",
                    f"{variable} is {values[0]} on {first.host} and {values[1]} on {other.host}",
                    "write it once, in the recipe or in group_data",
                    "ranks that are set up differently wait for each other, or fail at the first collective",
                    "vllm-ascend issues 5949, 3978 and 2211",
                )


def hurried(plan: Plan) -> Iterator[Finding]:
    """Hosts that load large weights are not ready within HCCL's 120 s of each other."""
    weights = plan.recipe.model.weights_gb or 0
    if not _is_ascend(plan) or weights < LARGE_GB:
        return
    envs = look.first_env(plan)
    waits = [(i, look.number(envs[i.name].get("HCCL_CONNECT_TIMEOUT", CONNECT_DEFAULT))) for _, i in look.roles(plan)]
    for instance, waits_for in waits:
        if instance.is_group and waits_for is not None and waits_for <= CONNECT_DEFAULT:
            yield warning(
                "HCCL-TIMEOUT",
                f"{plan.fleet.recipe} {instance.role}",
                f"its {len(instance.members)} hosts must load {weights:g} GB within {waits_for} s of each other",
                "set HCCL_CONNECT_TIMEOUT: 400 or more under shared.env",
                "the ranks that were ready first give up with EI0006",
                "vllm-ascend weekly test QWEN3_235B_PD",
            )


def small_buffer(plan: Plan) -> Iterator[Finding]:
    """Experts over many devices send each other more than HCCL's buffer holds."""
    if not _is_ascend(plan):
        return
    envs = look.first_env(plan)
    for where, instance in look.roles(plan):
        size = look.expert_parallel_size(instance.spec)
        given = envs[instance.name].get("HCCL_BUFFSIZE")
        has = look.number(given) if given is not None else BUFFER_DEFAULT
        if size >= MANY and has is not None and 1 <= has < BUFFER_LEAST:
            yield warning(
                "HCCL-BUFFER",
                where,
                f"HCCL_BUFFSIZE is {has} MB for experts over {size} devices",
                "set HCCL_BUFFSIZE: 1024",
                "dispatch fails with HCCL_BUFFSIZE is too SMALL, and names what it needs",
                "vllm-ascend issues 2674, 5287 and 16835",
            )


CHECKS = (out_of_bounds, links_inside_a_host, ranks_differ, hurried, small_buffer)
