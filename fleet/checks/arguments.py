"""Every engine's command line against the flag table of its version: what its own parser would refuse or misread.

A table of an older version stands in for one that is missing; what it refuses may be new, so that nothing but a
warning follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps

from fleet import engine
from fleet.checks import faults
from fleet.findings import Finding, error, warning
from fleet.flags import history, known
from fleet.flags.given import Given, given
from fleet.flags.parse import Parsed, parse
from fleet.flags.table import Table, is_older, is_same, misfits, nearest, versions
from fleet.topology import Plan

ENDS = "the engine ends at once"
SOURCE = "the argument and configuration classes of vLLM's packages, 0.11.0 to 0.33.0"


@dataclass(frozen=True)
class Line:
    """The words after ``vllm serve`` of a role's units that are alike but for addresses and ranks."""

    where: str
    version: str
    table: Table
    exact: bool
    words: tuple[str, ...]

    @property
    def parsed(self) -> Parsed:
        return _parsed(self.table.version, self.words)

    @property
    def given(self) -> tuple[Given, ...]:
        return _given(self.table.version, self.words)

    def fault(self, rule: str, what: str, mend: str, why: str = "") -> Finding:
        """An error, or a warning where the table is another version's."""
        return (error if self.exact else warning)(rule, self.where, what, mend, why, SOURCE)

    def hint(self, rule: str, what: str, mend: str, why: str = "") -> Finding:
        """What the engine takes, and should not be left so."""
        return warning(rule, self.where, what, mend, why, SOURCE)


def lines(plan: Plan) -> Iterator[Line]:
    """A role's command lines, one of each shape; none where no table is old enough to judge them."""
    table, exact = table_for(plan)
    if table is None:
        return
    seen = set()
    for unit in plan.units:
        shape = (unit.role, "--headless" in unit.argv, len(unit.argv))
        if unit.kind == "engine" and unit.argv[:2] == ("vllm", "serve") and shape not in seen:
            seen.add(shape)
            where = f"{plan.fleet.recipe} {unit.role}"
            yield Line(where, plan.recipe.engine.vllm, table, exact, unit.argv[2:])


def table_for(plan: Plan) -> tuple[Table | None, bool]:
    """The table that the plan's engine is judged by, and whether it is its own; None before the oldest."""
    version = plan.recipe.engine.vllm
    table = history.table(nearest(version).version)
    if is_older(version, table.version):
        return None, False
    return table, is_same(version, table.version)


def once(check: Callable[[Plan], Iterator[Finding]]) -> Callable[[Plan], Iterator[Finding]]:
    """A check that tells each finding once, though the head and the other hosts of a role have it alike."""

    @wraps(check)
    def folded(plan: Plan) -> Iterator[Finding]:
        yield from dict.fromkeys(check(plan))

    return folded


def version_without_table(plan: Plan) -> Iterator[Finding]:
    """There is no flag table of this very version."""
    table, exact = table_for(plan)
    version, oldest = plan.recipe.engine.vllm, versions()[0]
    if not exact:
        instead = f"that of {table.version} stands in" if table else f"the oldest is {oldest}; nothing is judged"
        yield warning(
            "VERSION-TABLE",
            f"{plan.fleet.recipe} engine.vllm",
            f"there is no flag table of vLLM {version}, {instead}",
            f"make it of its package: fleet flags add WHEEL {version}",
            "arguments and variables may have come or gone between the two" if table else "",
        )


def argument_left_out(plan: Plan) -> Iterator[Finding]:
    """An argument that this version does not have is not passed on."""
    version = plan.recipe.engine.version
    for name in plan.recipe.roles:
        for argument in plan.recipe.role(name).args:
            if not engine.exists(argument, version):
                life = history.of_option(f"--{argument}")
                instead = known.replaced().arguments.get(f"--{argument}")
                yield warning(
                    "VERSION-ARGUMENT",
                    f"{plan.fleet.recipe} {name}",
                    f"vLLM {version} has no --{argument}; it is left out",
                    known.use(instead) if instead else "remove it from the recipe, or choose a version that has it",
                    life.told(str(version)) if life else "",
                    SOURCE,
                )


@once
def unknown_argument(plan: Plan) -> Iterator[Finding]:
    """The version does not have the argument: the engine ends with "unrecognized arguments"."""
    for line in lines(plan):
        for one in line.given:
            if not one.options:
                yield _unknown(line, one.name)


@once
def short_argument(plan: Plan) -> Iterator[Finding]:
    """Only the beginning of an argument, which argparse takes while no other begins so."""
    for line in lines(plan):
        for one in line.given:
            if one.is_short:
                yield line.hint(
                    "ARG-PREFIX",
                    f"{one.name} is read as {one.options[0]}",
                    "write it in full",
                    "a version with another argument that begins so refuses it",
                )
            elif len(one.options) > 1:
                some = ", ".join(one.options[:4]) + (", ..." if len(one.options) > 4 else "")
                yield line.fault("ARG-AMBIGUOUS", f"{one.name} could be {some}", "write one of them in full")


@once
def argument_twice(plan: Plan) -> Iterator[Finding]:
    """One argument given twice, whether by two names, with its --no- form, or as JSON and by paths into it."""
    for line in lines(plan):
        by_dest: dict[str, list[Given]] = {}
        for one in line.given:
            if one.flag is not None and one.flag.action != "append":
                by_dest.setdefault(one.flag.dest, []).append(one)
        for group in by_dest.values():
            whole = [one for one in group if not one.dotted]
            first, last = group[0], group[-1]
            names = f"{first.name} and {last.name}" if first.name != last.name else f"{first.name} twice"
            if whole and len(whole) < len(group):
                json, path = whole[0].name, next(one.name for one in group if one.dotted)
                why = "the paths become JSON of their own, which replaces the other"
                yield line.fault("ARG-TWICE", f"{json} and {path}.… are both given", "write all of it as JSON", why)
            elif len(whole) > 1 and len({one.options[0].startswith("--no-") for one in whole}) > 1:
                yield line.fault("ARG-CONTRADICTION", f"{names} contradict each other", "keep one of them")
            elif len(whole) > 1 and len({one.value for one in whole}) > 1:
                why = "the engine takes the last without a word"
                yield line.fault("ARG-TWICE", f"{names}, with different values", "keep one of them", why)
            elif len(whole) > 1:
                yield line.hint("ARG-TWICE", f"{names}, with the same value", "keep one of them")


@once
def refused_value(plan: Plan) -> Iterator[Finding]:
    """A value of the wrong kind, a choice that there is not, JSON that the engine cannot take."""
    for line in lines(plan):
        bare = [one for one in line.given if one.flag and one.flag.action in ("true", "boolean") and one.value]
        for one in bare:
            what = f"{one.name} takes no value, not {' '.join(one.value)}"
            yield line.fault("ARG-KIND", what, "give it true, or false for its --no- form", ENDS)
        covered = bool(bare) or any(len(one.options) != 1 for one in line.given)
        for fault in line.parsed.faults:
            if covered and fault.text.startswith(("unrecognized arguments", "ambiguous option")):
                continue
            for rule, what, mend in faults.told(line.table, fault.text):
                yield line.fault(rule, what, mend, ENDS)


@once
def unknown_key(plan: Plan) -> Iterator[Finding]:
    """A key or value of an object that the parser takes as it is, and its class then refuses (--speculative-config)."""
    for line in lines(plan):
        for flag in line.table.flags:
            shape = line.table.configs.get(flag.config or "")
            value = line.parsed.values.get(flag.dest)
            if flag.kind != "dict" or shape is None or shape.open or not isinstance(value, dict):
                continue
            found = list(misfits(line.table, shape, value, ""))
            text = "\n".join([f"argument {flag.options[0]}: {len(found)} validation errors", *found])
            for rule, what, mend in faults.told(line.table, text) if found else ():
                # vllm-ascend's patches may add keys and words of its own
                tell = line.hint if plan.recipe.platform.startswith("ascend") else line.fault
                yield tell(rule, what, mend, ENDS)


@once
def deprecated_argument(plan: Plan) -> Iterator[Finding]:
    """The version still takes the argument, and says that a later one will not."""
    for line in lines(plan):
        for option in line.parsed.deprecated:
            life = history.of_option(option)
            since = f"since {life.deprecated}" if life and life.deprecated else "here"
            until = f"{life.gone} does not have it any more" if life and life.gone else "a later version will refuse it"
            instead = known.replaced().arguments.get(option)
            mend = known.use(instead) if instead else "see what vllm serve --help says of it"
            yield line.hint("ARG-DEPRECATED", f"{option} is deprecated {since}", mend, until)


@once
def rope_key(plan: Plan) -> Iterator[Finding]:
    """--hf-overrides with the key that another version's transformers reads."""
    if plan.recipe.engine.version >= engine.ROPE_PARAMETERS:
        wrong, right, when = "rope_scaling", "rope_parameters", "from 0.12.0 on"
        why = "vLLM moves the old key over with transformers 4 alone; with 5 the context stays short"
    else:
        wrong, right, when = "rope_parameters", "rope_scaling", "before 0.12.0"
        why = "it is not read, and the context stays short"
    for line in lines(plan):
        overrides = line.parsed.values.get("hf_overrides")
        nested = overrides.values() if isinstance(overrides, dict) else ()
        if any(wrong in one for one in (overrides, *nested) if isinstance(one, dict)):
            what, mend = (
                f"--hf-overrides has {wrong}, {when} the key is {right}",
                f"write {right}, or yarn: in the role",
            )
            yield warning(
                "ARG-ROPE-KEY", line.where, what, mend, why, "vLLM transformers_utils/config.py, 0.11 to 0.33"
            )


@once
def additional_config_key(plan: Plan) -> Iterator[Finding]:
    """A key of --additional-config that this vllm-ascend does not look for."""
    if not plan.recipe.platform.startswith("ascend"):
        return
    version = plan.recipe.engine.vllm_ascend or plan.recipe.engine.vllm
    for line in lines(plan):
        config = line.parsed.values.get("additional_config")
        for key in config if isinstance(config, dict) else ():
            plugin = known.plugin()
            if (told := plugin.why_not(plugin.keys, key, version)) is not None:
                why, mend = told
                what = f"vllm-ascend {version} ignores the key {key} of --additional-config without a word"
                yield warning("ARG-ADDITIONAL-KEY", line.where, what, mend, why, plugin.source)


def _unknown(line: Line, name: str) -> Finding:
    """With what stands for it, or the nearest name, and the versions that have it."""
    options = [option for flag in line.table.flags for option in flag.options if option.startswith("--")]
    life = history.of_option(name)
    instead = known.replaced().arguments.get(name)
    close = known.nearest(name, options)
    if instead:
        mend = known.use(instead)
    elif name.startswith("--no-") and f"--{name[5:]}" in options:
        mend = f"leave it out, only --{name[5:]} can be given"
    elif close and not life:
        mend = f"write {close}"
    else:
        mend = "remove it, or choose a version that has it" if life else "remove it"
    return line.fault(
        "ARG-UNKNOWN",
        f"vLLM {line.version} has no {name}",
        mend,
        (life and life.told(line.version)) or ENDS,
    )


@lru_cache(maxsize=64)
def _parsed(version: str, words: tuple[str, ...]) -> Parsed:
    return parse(history.table(version), words)


@lru_cache(maxsize=64)
def _given(version: str, words: tuple[str, ...]) -> tuple[Given, ...]:
    return tuple(given(history.table(version), words))


CHECKS = (
    version_without_table,
    argument_left_out,
    unknown_argument,
    short_argument,
    argument_twice,
    refused_value,
    unknown_key,
    deprecated_argument,
    rope_key,
    additional_config_key,
)
