"""Environment variables that a recipe or an inventory gives, against what this version reads.

vLLM warns of a variable that it does not know and goes on; vllm-ascend and HCCL say nothing at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fleet.checks import look
from fleet.checks.arguments import SOURCE, table_for
from fleet.findings import Finding, warning
from fleet.flags import history, known
from fleet.flags.variables import PREFIX
from fleet.topology import Plan

NOBODY = "no version is known to read it"
# What vllm-ascend is asked for, and not vLLM.
PLUGINS = "VLLM_ASCEND_"
# Why a name is not read, and what to do.
Told = tuple[str, str]


def unread(plan: Plan) -> Iterator[Finding]:
    """A variable that nothing of this version reads."""
    for where, name in dict.fromkeys(_given(plan)):
        who, told = _reader(plan, name)
        if told is not None:
            why, mend = told
            source = known.plugin().source if who.startswith("vllm-ascend") else SOURCE
            yield warning("ENV-UNREAD", where, f"{who} does not read {name}, it has no effect", mend, why, source)


def _given(plan: Plan) -> Iterator[tuple[str, str]]:
    """What was written by hand, and where: for a role of the recipe, or for hosts of the inventory."""
    for role in plan.recipe.roles:
        yield from ((f"{plan.fleet.recipe} {role}", name) for name in plan.recipe.role(role).env)
    hosts: dict[str, list[str]] = {}
    for node in {m.node.name: m.node for i in plan.instances for m in i.members}.values():
        for name in node.settings.env:
            hosts.setdefault(name, []).append(node.name)
    yield from ((look.hosts(plan, names), name) for name, names in hosts.items())


def _reader(plan: Plan, name: str) -> tuple[str, Told | None]:
    """Who would read the variable, and why it does not; None where it does, or where nobody can say.

    The lists are read only where a name needs them: a fleet of vLLM's own variables is judged by the table alone.
    """
    vllm, is_ascend = plan.recipe.engine.vllm, plan.recipe.platform.startswith("ascend")
    if name.startswith("HCCL_"):
        return "HCCL", _slip(name, known.hccl()) if is_ascend else None
    table, _ = table_for(plan)
    if not name.startswith(PREFIX) or table is None or not table.environment or name in table.environment:
        return "", None
    if name.startswith(tuple(known.replaced().elsewhere)):
        return "", None
    if is_ascend and (name.startswith(PLUGINS) or name in known.plugin().variables):
        plugin, version = known.plugin(), plan.recipe.engine.vllm_ascend or vllm
        return f"vllm-ascend {version}", plugin.why_not(plugin.variables, name, version)
    if name.startswith(PLUGINS):
        return f"vLLM {vllm}", (f"it is vllm-ascend's, and this is {plan.recipe.platform}", "remove it")
    return f"vLLM {vllm}", _gone(vllm, name) or _slip(name, table.environment) or (NOBODY, "remove it")


def _gone(version: str, name: str) -> Told | None:
    """Another version of vLLM reads it."""
    life = history.of_variable(name)
    if life is None:
        return None
    instead = known.replaced().variables.get(name) if life.is_gone(version) else None
    return life.told(version), known.use(instead)


def _slip(name: str, names: Collection[str]) -> Told | None:
    """A name that is not there and looks like one that is."""
    close = None if name in names else known.nearest(name, names)
    return (NOBODY, f"write {close}") if close else None


CHECKS = (unread,)
