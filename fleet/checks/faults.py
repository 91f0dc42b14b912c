"""What the engine's parser says of a value, in the words of a finding: argparse's messages, and pydantic's for JSON."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from fleet.flags import history, known
from fleet.flags.table import Flag, Table

# rule, what, mend
Told = tuple[str, str, str]
_JSON_KINDS = ("json", "dict", "config", "str-or-dict")
# pydantic's two lines on one key: where, then what with its type and the value that was given.
_MISFIT = re.compile(
    r"(?:^(?P<key>\S+)\n)?^  (?P<what>.*?) \[type=(?P<type>\w+), input_value=(?P<got>.*), input_t", re.M
)


def told(table: Table, text: str) -> Iterator[Told]:
    """One entry for each thing that is wrong with the value; ``text`` is the message of a Fault."""
    match = re.match(r"argument ([^:\s]+): (.*)", text, re.DOTALL)
    if match is None:
        yield "ARG-REFUSED", f"the engine refuses the command line: {text.splitlines()[0]}", "mend the recipe"
        return
    option, message = match[1].partition("/")[0], match[2]
    flag = table.flag(option)
    if "validation error" in message:
        yield from _misfits(table, option, flag, message)
    elif "invalid choice" in message and flag is not None:
        yield _choice(option, flag, message)
    elif flag is not None and flag.kind in _JSON_KINDS and "expected" not in message:
        got = _value(message) or message.splitlines()[0]
        mend = "write it as a mapping of the recipe"
        if option.startswith("--allowed-"):  # lists
            mend = """write it as JSON in quotes, such as '["*"]'"""
        yield "ARG-JSON", f"{option} takes JSON, {got!r} is none", mend
    elif (got := _value(message)) is not None:
        yield "ARG-KIND", f"{option} takes {_kind(flag)}, not {got}", "mend the value"
    else:
        yield "ARG-KIND", f"{option}: {message.splitlines()[0]}", f"give it {_kind(flag)}"


def no_key(table: Table, option: str, name: str, path: str) -> Told:
    """A key that its class does not have; a nested one belongs to the class of the field that holds it."""
    *above, key = path.split(".")
    for part in above:
        shape = table.configs[name].fields.get(part) if name in table.configs else None
        name = shape if isinstance(shape, str) else ""
    fields = list(table.configs[name].fields) if name in table.configs else []
    life = history.of_key(name, key)
    instead = known.replaced().keys.get(f"{name}.{key}")
    close = difflib.get_close_matches(key, fields, 1, 0.7)
    why = f" ({life.told(table.version)})" if life and life.told(table.version) else ""
    mend = f"use {instead}" if instead else f"write {close[0]}" if close and not life else "remove it"
    return "ARG-JSON", f"{option}: {name or 'its class'} of vLLM {table.version} has no key {path}{why}", mend


def _choice(option: str, flag: Flag, message: str) -> Told:
    got = (re.match(r"invalid choice: (.*?) \(choose", message) or ["", message])[1].strip("'")
    words = [str(choice) for choice in flag.choices or () if choice is not None]
    close = difflib.get_close_matches(got, words, 1, 0.6)
    mend = f"write {close[0]}" if close else f"use one of {', '.join(words)}"
    return "ARG-CHOICE", f"{option} does not take {got}", mend


def _misfits(table: Table, option: str, flag: Flag | None, message: str) -> Iterator[Told]:
    name = (flag.config if flag else None) or ""
    for match in _MISFIT.finditer(message):
        key, what = match["key"] or "", match["what"]
        if match["type"] == "json_invalid":
            yield "ARG-JSON", f"{option}: {_first_lower(what)}", "write it as a mapping of the recipe"
        elif match["type"] == "unexpected_keyword_argument":
            yield no_key(table, option, name, key)
        else:
            at = f"key {key}: " if key else ""
            words = re.findall(r"'([^']+)'", what) if match["type"] == "literal_error" else []
            close = difflib.get_close_matches(match["got"].strip("'"), words, 1, 0.7)
            mend = f"write {close[0]}" if close else "mend the value"
            yield "ARG-JSON", f"{option}: {at}{_first_lower(what)}, not {match['got']}", mend


def _value(message: str) -> str | None:
    """The value that argparse names in its message."""
    forms = (r"invalid \S+ value: (.*)", r"Value (.*) cannot be converted", r"ignored explicit argument (.*)")
    return next((m[1].strip("'") for form in forms if (m := re.match(form, message, re.DOTALL))), None)


def _kind(flag: Flag | None) -> str:
    if flag is None:
        return "what its help says"
    if flag.kind == "bool":
        return "no value"
    kinds = {"int": "a whole number", "float": "a number", "size": "a whole number or one like 64M"}
    return kinds.get(flag.kind.removesuffix("-or-auto"), "one value")


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]
