"""Flag tables: what the command line of one vLLM version takes, as data.

Standard library only, and nothing else of this project: the stand-in engine runs a copy of this file in a container.
The tables lie in files/flags/<version>.json, written by ``python -m fleet.flags.extract``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "files" / "flags"

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What a field of a configuration class takes: anything (None), one of these words, or by name int, str, bool (with
# a question mark: or null), or an object of another class.
Shape = str | tuple[Any, ...] | None


@dataclass(frozen=True)
class Flag:
    """One argument of ``vllm serve``, as argparse knows it.

    ``kind`` is one of bool, int, float, str, size (64M, 1k), size-or-auto, json (any text of JSON), dict (the same,
    refused in other words), config (an object of the class ``config``), str-or-dict, name (lower case, _ for -), csv,
    truthy (any text). ``options`` holds the --no- forms too, in the order in which errors name them.
    """

    options: tuple[str, ...]
    dest: str
    kind: str
    at: int = 0  # place in the parser; ambiguous options are listed in this order
    action: str = "store"  # store, true (takes no value), boolean (true with a --no- form), append, lora
    nargs: str | int | None = None
    choices: tuple[Any, ...] | None = None
    open: bool = False  # a plugin or the platform may add choices, so none is refused
    optional: bool = False  # the words "None" and "" mean None
    default: str | None = None  # as written in the source
    config: str | None = None
    deprecated: bool = False

    @property
    def negatable(self) -> bool:
        """Whether there is a --no- form."""
        return self.action == "boolean"


@dataclass(frozen=True)
class Config:
    """A configuration class that is given as JSON; ``open`` where keys that it lacks are not refused."""

    fields: Mapping[str, Shape]
    open: bool = False


@dataclass(frozen=True)
class Table:
    """Everything that the command line of one version takes.

    ``features`` are habits of its parser: model-moved, served-name-needs-model, level (-O sets -O.level),
    human-dotted, human-json, task-hint. ``environment`` are the variables VLLM_... that its code reads; empty where
    they were not looked for.
    """

    version: str
    flags: tuple[Flag, ...]
    configs: Mapping[str, Config] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()

    def flag(self, option: str) -> Flag | None:
        """The flag with this option string (``--max-num-seqs``, ``--max_num_seqs``, ``-tp``); prefixes do not count."""
        name = option.replace("_", "-") if option.startswith("--") else option
        return next((f for f in self.flags if name in f.options), None)


def load(version: str, folder: Path = FOLDER) -> Table:
    """The table of exactly this version; FileNotFoundError where there is none."""
    return from_json((folder / f"{version}.json").read_text(encoding="utf-8"))


def nearest(version: str, folder: Path = FOLDER) -> Table:
    """The table of this version, else of the nearest older one, else the oldest; its ``version`` says which."""
    known = versions(folder)
    if not known:
        raise FileNotFoundError(f"no flag tables in {folder}")
    older = [v for v in known if _order(v) <= _order(version)]
    return load(older[-1] if older else known[0], folder)


def versions(folder: Path = FOLDER) -> tuple[str, ...]:
    """Versions that have a table, oldest first."""
    return tuple(sorted((p.stem for p in folder.glob("*.json")), key=_order))


def is_older(one: str, other: str) -> bool:
    """Whether version ``one`` comes before ``other``."""
    return _order(one) < _order(other)


def is_same(one: str, other: str) -> bool:
    """Whether both name one release, as 0.20, 0.20.0 and 0.20.0.post1 do."""
    return _order(one) == _order(other)


def from_json(text: str) -> Table:
    """A table from the text of its file."""
    raw = json.loads(text)
    flags = tuple(Flag(**{k: _frozen(v) for k, v in one.items()}) for one in raw["flags"])
    configs = {
        name: Config({k: _frozen(v) for k, v in one["fields"].items()}, one.get("open", False))
        for name, one in raw["configs"].items()
    }
    environment = frozenset(raw.get("environment", ()))
    return Table(raw["version"], flags, configs, frozenset(raw["features"]), environment)


def to_json(table: Table) -> str:
    """The text of a table's file: sorted, one flag a line, so that two versions can be compared with diff."""
    plain = {f.name: f.default for f in fields(Flag)}
    flags = [
        _line({k: v for k, v in asdict(flag).items() if v != plain.get(k)})
        for flag in sorted(table.flags, key=lambda f: f.options)
    ]
    configs = [
        f"{_line(name)}: {_line({'fields': dict(one.fields), **({'open': True} if one.open else {})})}"
        for name, one in sorted(table.configs.items())
    ]
    head = f'"version": {_line(table.version)},\n"features": {_line(sorted(table.features))},\n'
    parts = [
        '"configs": {\n' + ",\n".join(configs) + "\n}",
        '"flags": [\n' + ",\n".join(flags) + "\n]",
    ]
    if table.environment:
        parts.append('"environment": [\n' + ",\n".join(_line(name) for name in sorted(table.environment)) + "\n]")
    return "{\n" + head + ",\n".join(parts) + "\n}\n"


def human_readable_int(value: str) -> int:
    """64M as 67108864, 1k as 1000, as vLLM reads them."""
    value = value.strip()
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", value):
        number, suffix = match.groups()
        if suffix in DECIMAL:
            return int(float(number) * DECIMAL[suffix])
        try:
            return int(number) * BINARY[suffix]
        except ValueError as exc:
            instead = f"Did you mean to use {number}{suffix.lower()} instead?"
            raise argparse.ArgumentTypeError(
                f"Decimals are not allowed with binary suffixes like {suffix}. {instead}"
            ) from exc
    return int(value)


def human_readable_int_or_auto(value: str) -> int:
    """The same; -1 and auto are -1."""
    return -1 if value.strip() == "-1" or value.strip().lower() == "auto" else human_readable_int(value)


def misfits(table: Table, shape: Config, value: Any, where: str) -> Iterable[str]:
    """What pydantic has against a value, one text each, in its order."""
    if not isinstance(value, dict):
        yield _misfit(where, "Input should be an object", "dataclass_type", value)
        return
    for key, wanted in shape.fields.items():
        if key not in value or wanted is None:
            continue
        got, below = value[key], f"{where}.{key}".lstrip(".")
        if isinstance(wanted, str) and wanted.strip("?") in SCALARS:
            if (got is not None or not wanted.endswith("?")) and (fault := SCALARS[wanted.strip("?")](got)):
                yield _misfit(below, *fault, got)
        elif isinstance(wanted, str):
            if isinstance(got, dict) and wanted in table.configs:
                yield from misfits(table, table.configs[wanted], got, below)
        elif got not in wanted:
            words = [repr(w) for w in wanted if w is not None]
            told = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
            yield _misfit(below, f"Input should be {told}", "literal_error", got)
    for key in value:
        if key not in shape.fields and not shape.open:
            below = f"{where}.{key}".lstrip(".")
            yield _misfit(below, "Unexpected keyword argument", "unexpected_keyword_argument", value[key])


def _misfit(where: str, what: str, kind: str, got: Any) -> str:
    place = f"{where}\n" if where else ""
    return f"{place}  {what} [type={kind}, input_value={short(got)}, input_type={type(got).__name__}]"


def short(value: Any) -> str:
    """As pydantic shows a value: 50 characters, cut in the middle."""
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:25]}...{text[-24:]}"


def _no_int(got: Any) -> tuple[str, str] | None:
    """Why pydantic takes a value for no integer, None where it takes it; booleans and texts of digits pass."""
    what = "Input should be a valid integer"
    if isinstance(got, str) and not re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0*)?\s*", got):
        return f"{what}, unable to parse string as an integer", "int_parsing"
    if isinstance(got, float) and not got.is_integer():
        return f"{what}, got a number with a fractional part", "int_from_float"
    return None if isinstance(got, (int, float, str)) else (what, "int_type")


def _no_str(got: Any) -> tuple[str, str] | None:
    return None if isinstance(got, str) else ("Input should be a valid string", "string_type")


def _no_bool(got: Any) -> tuple[str, str] | None:
    what = "Input should be a valid boolean"
    if isinstance(got, str):
        known = got.lower() in ("0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes")
        return None if known else (f"{what}, unable to interpret input", "bool_parsing")
    if isinstance(got, (int, float)):
        return None if got in (0, 1) else (f"{what}, unable to interpret input", "bool_parsing")
    return what, "bool_type"


SCALARS = {"int": _no_int, "str": _no_str, "bool": _no_bool}


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _order(version: str) -> tuple[tuple[int, ...], bool]:
    """Sort key: the release, and a pre-release before its release."""
    match = re.match(r"v?(\d+(?:\.\d+)*)(.*)", version)
    if match is None:
        return (), False
    numbers = tuple(int(n) for n in match[1].split("."))
    return numbers + (0,) * (4 - len(numbers)), not re.match(r"[.-]?(a|b|rc|dev)\d*", match[2])
