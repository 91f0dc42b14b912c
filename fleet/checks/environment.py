"""Environment variables that a recipe or an inventory gives, against what this version reads.

vLLM warns of a variable that it does not know and goes on; vllm-ascend and HCCL say nothing at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fleet.checks import look
from fleet.checks.arguments import SOURCE, table_for
from fleet.findings import Finding, error, warning
from fleet.flags import history, known
from fleet.flags.variables import PREFIX
from fleet.topology import Plan

NOBODY = "no version is known to read it"
# What vllm-ascend is asked for, and not vLLM.
PLUGINS = "VLLM_ASCEND_"
OFF = ("false", "no", "off", "none")
# Why a name is not read, and what to do.
Told = tuple[str, str]


def unread(plan: Plan) -> Iterator[Finding]:
    """A variable that nothing of this version reads."""
    for where, name in dict.fromkeys((where, name) for where, name, _ in _given(plan)):
        who, told = _reader(plan, name)
        if told is not None:
            why, mend = told
            source = known.plugin().source if who.startswith("vllm-ascend") else SOURCE
            yield warning("ENV-UNREAD", where, f"{who} does not read {name}, it has no effect", mend, why, source)


def slips(plan: Plan) -> Iterator[Finding]:
    """A variable of nobody's, one letter from one that CUDA, NCCL, torch or another library reads."""
    for where, name in dict.fromkeys((where, name) for where, name, _ in _given(plan)):
        if name.startswith((PREFIX, "HCCL_")) or name in known.variables().others:
            continue
        if close := known.one_letter_off(name, known.variables().others):
            what = f"{name} is one letter from {close}, and nothing is known to read it"
            yield warning("ENV-UNREAD", where, what, f"write {close}", "it has no effect")


def no_numbers(plan: Plan) -> Iterator[Finding]:
    """A switch that is read as a number, and was given as a word: YAML's true among them."""
    table, exact = table_for(plan)
    if table is None:
        return
    for where, name, value in dict.fromkeys(_given(plan)):
        if look.number(value) is not None or not name.startswith(PREFIX) or name not in known.variables().numbers:
            continue
        if name.startswith(PLUGINS) and not plan.recipe.platform.startswith("ascend"):
            continue
        if name in table.environment or name.startswith(PLUGINS):
            said = value or "empty"
            write = "write 1" if look.on(value) else "write 0" if value.lower() in OFF else "write a whole number"
            what = f"{name} is {said}, the engine reads a whole number"
            yield (error if exact else warning)("ENV-KIND", where, what, write, "it ends with a ValueError", SOURCE)


def _given(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """What was written by hand, where (for a role of the recipe, or for hosts of the inventory), and its value."""
    for role in plan.recipe.roles:
        for name, value in plan.recipe.role(role).env.items():
            yield f"{plan.fleet.recipe} {role}", name, _text(value)
    hosts: dict[tuple[str, str], list[str]] = {}
    for node in {m.node.name: m.node for i in plan.instances for m in i.members}.values():
        for name, value in node.settings.env.items():
            hosts.setdefault((name, _text(value)), []).append(node.name)
    yield from ((look.hosts(plan, names), name, value) for (name, value), names in hosts.items())


def _text(value: object) -> str:
    """As the unit gets it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reader(plan: Plan, name: str) -> tuple[str, Told | None]:
    """Who would read the variable, and why it does not; None where it does, or where nobody can say.

    The lists are read only where a name needs them: a fleet of vLLM's own variables is judged by the table alone.
    """
    vllm, is_ascend = plan.recipe.engine.vllm, plan.recipe.platform.startswith("ascend")
    if name.startswith("HCCL_"):
        other = (f"it is Ascend's, and this is {plan.recipe.platform}", "remove it")
        return ("HCCL", _slip(name, known.hccl())) if is_ascend else (f"vLLM {vllm}", other)
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


CHECKS = (unread, slips, no_numbers)
