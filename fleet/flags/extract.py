"""A flag table read from a vLLM wheel or a site-packages folder, without importing it.

    python -m fleet.flags.extract vllm-0.32.0-...whl 0.32.0 > files/flags/0.32.0.json

vLLM fills its parser in three places: ``make_arg_parser`` (a few flags by hand), ``FrontendArgs`` (a flag per field)
and ``EngineArgs.add_cli_args`` (flags by hand over ``get_kwargs(SomeConfig)``, which turns a field's type into
keywords for argparse). This module follows the same three, statement by statement, over their syntax trees.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.flags.source import Found, Hint, Source, name_of
from fleet.flags.table import Config, Flag, Shape, Table, to_json
from fleet.flags.variables import variables

Keywords = dict[str, Any]

ENGINE = "vllm.engine.arg_utils"
# Platform plugins add choices to these when they register (vllm-ascend: ascend; MetaX, SUPA: their device).
EXTENSIBLE = frozenset({"quantization", "device", "block_size"})
# A habit of the version's parser, and the words in its source that give it away.
HABITS = {
    "model-moved": "Move <model> to the front",
    "served-name-needs-model": "should be provided as the first positional argument",
    "level": "-O.level",
    "human-dotted": "value = human_readable_int(value_str)",
    "task-hint": "--task is not a vllm serve option",
}
KINDS = {
    "int": "int",
    "float": "float",
    "str": "str",
    "bool": "truthy",
    "loads": "json",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size-or-auto",
    "union_dict_and_str": "str-or-dict",
}


@dataclass
class Reader:
    """The flags found so far, and what is needed to find more."""

    source: Source
    habits: str  # text of the module that turns types into keywords
    sizes: frozenset[str]  # fields that take 64M
    flags: list[Flag]

    def add(self, options: list[str], keywords: Keywords) -> None:
        """Take one ``add_argument``."""
        long = next((o for o in options if o.startswith("--")), options[0])
        dest = keywords.get("dest") or long.lstrip("-").replace("-", "_")
        action = keywords.get("action", "store")
        names = [n for o in options for n in ([o, "--no-" + o[2:]] if action == "boolean" and o[:2] == "--" else [o])]
        choices = keywords.get("choices")
        self.flags.append(
            Flag(
                options=tuple(names),
                dest=dest,
                kind="bool" if action in ("true", "boolean") else keywords.get("kind", "str"),
                at=len(self.flags),
                action=action,
                nargs=keywords.get("nargs"),
                choices=tuple(choices) if choices is not None else None,
                open=choices is not None and (keywords.get("open", False) or dest in EXTENSIBLE),
                optional=keywords.get("optional", False),
                default=keywords.get("default"),
                config=keywords.get("config"),
                deprecated=keywords.get("deprecated", False),
            )
        )

    def keywords(self, found: Found) -> dict[str, Keywords]:
        """What ``get_kwargs`` makes of a configuration class: keywords by field."""
        return {name: self._of_field(name, *item) for name, item in self.source.fields(found).items()}

    def _of_field(self, name: str, module: str, item: ast.AnnAssign) -> Keywords:
        """The branches of ``_compute_kwargs``, in its order."""
        hints = {h.name: h for h in self.source.hints(module, item.annotation)}
        if "dict-class" in hints:
            hints["dict" if "def is_dict_subclass" in self.habits else "other"] = hints.pop("dict-class")
        result: Keywords = {"default": _default(item.value)}
        if "dataclass" in hints:
            result |= {"kind": "config", "config": hints["dataclass"].values[0]}
        elif set(hints) == {"bool", "str", "none"} and '"const"' in self.habits:
            result |= {"kind": "str", "nargs": "?"}
        elif "bool" in hints:
            return result | {"action": "boolean"}
        elif "literal" in hints:
            result |= _literal(hints["literal"], "str" in hints)
        elif sequence := hints.get("tuple") or hints.get("list") or hints.get("set"):
            result |= self._collection(sequence)
        elif "int" in hints:
            auto = name == "max_model_len" and "human_readable_int_or_auto" in self.habits
            result["kind"] = "size-or-auto" if auto else "size" if name in self.sizes else "int"
        elif "float" in hints:
            result["kind"] = "float"
        elif "dict" in hints:
            result["kind"] = "str-or-dict" if {"str", "other"} & set(hints) else "dict"
        else:
            result["kind"] = "str"
        if "none" in hints and "bool" not in hints:
            result["optional"] = True
            if result.get("choices"):
                result["choices"] = [*result["choices"], None]
        return result

    def _collection(self, hint: Hint) -> Keywords:
        assert hint.node is not None
        parts = list(hint.node.elts) if isinstance(hint.node, ast.Tuple) else [hint.node]
        fixed = hint.name == "tuple" and not any(isinstance(p, ast.Constant) and p.value is ... for p in parts)
        inner = {h.name: h for h in self.source.hints(hint.module, parts[0])}
        keywords: Keywords = {"nargs": len(parts) if fixed else "+"}
        if set(inner) == {"literal"}:
            return keywords | _literal(inner["literal"], False)
        return keywords | {"kind": KINDS.get(next(iter(inner)), "str") if len(inner) == 1 else "str"}


class Body:
    """One function that fills the parser, followed statement by statement."""

    def __init__(self, reader: Reader, module: str, names: dict[str, Any] | None = None) -> None:
        self.reader, self.module = reader, module
        self.names: dict[str, Any] = dict(names or {})

    def run(self, body: list[ast.stmt]) -> None:
        """Take what the statements add or change; the rest (groups, help texts) is passed over."""
        for item in body:
            if isinstance(item, ast.Assign):
                self._assign(item.targets[0], item.value)
            elif isinstance(item, ast.AugAssign):
                self._assign(item.target, ast.BinOp(item.target, item.op, item.value))
            elif isinstance(item, ast.Delete):
                for target in item.targets:
                    if isinstance(target, ast.Subscript):
                        (self._value(target.value) or {}).pop(_word(target.slice), None)
            elif isinstance(item, ast.If):
                self.run(item.body)  # both tests that occur (--help asked, nargs present) are true when serving
            elif isinstance(item, ast.For):
                self._loop(item)
            elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
                self._call(item.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = self._value(value)
        elif isinstance(target, ast.Subscript) and isinstance(into := self._value(target.value), dict):
            into.update(self._keyword(_word(target.slice), value))

    def _loop(self, item: ast.For) -> None:
        """A loop over rows of constants; one over the fields of a class is taken by ``_frontend``."""
        if not isinstance(item.iter, (ast.List, ast.Tuple)) or not isinstance(item.target, ast.Tuple):
            return
        for row in item.iter.elts:
            inner = Body(self.reader, self.module, self.names)
            for name, cell in zip(item.target.elts, getattr(row, "elts", []), strict=False):
                inner.names[name_of(name)] = cell
            inner.run(item.body)

    def _call(self, call: ast.Call) -> None:
        if name_of(call.func) == "remove" and isinstance(call.func, ast.Attribute):
            choices = self._value(call.func.value)
            for word in self.reader.source.literals(self.module, call.args[0])[0] if isinstance(choices, list) else []:
                choices.remove(word)
        if name_of(call.func) != "add_argument":
            return
        options = [str(_constant(self.names.get(name_of(a), a))) for a in call.args]
        keywords: Keywords = {}
        for one in call.keywords:
            if one.arg is None:
                keywords |= self._value(one.value) or {}
            else:
                node = self.names.get(name_of(one.value))
                keywords |= self._keyword(one.arg, node if isinstance(node, ast.expr) else one.value)
        if options[0].startswith("-"):
            self.reader.add(options, keywords)

    def _value(self, node: ast.expr) -> Any:
        """Keywords by field, keywords of one, one of them, or None for what is of no concern here."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Subscript):
            held = self._value(node.value)
            return held.get(_word(node.slice)) if isinstance(held, dict) else None
        if isinstance(node, ast.Dict):
            merged: Keywords = {}
            for key, value in zip(node.keys, node.values, strict=True):
                merged |= (self._value(value) or {}) if key is None else self._keyword(_word(key), value)
            return merged
        if isinstance(node, ast.Call) and name_of(node.func) == "get_kwargs":
            found = self.reader.source.find(self.module, name_of(node.args[0]))
            return self.reader.keywords(found) if found is not None else None
        return None

    def _keyword(self, name: str, value: ast.expr) -> Keywords:
        """One keyword of ``add_argument``, as this module keeps it."""
        if name == "type":
            return _type(value)
        if name == "action":
            known = {"BooleanOptionalAction": "boolean", "LoRAParserAction": "lora", "store_true": "true"}
            return {"action": known.get(name_of(value) or str(_constant(value)), _constant(value) or "store")}
        if name == "choices":
            held = value.left if isinstance(value, ast.BinOp) else value
            known_words = self._value(held)
            words, whole = self.reader.source.literals(self.module, value)
            if isinstance(known_words, list):
                return {"choices": known_words, "open": True}
            return {"choices": words, "open": not whole}
        if name == "default":
            return {"default": _default(value)}
        if name in ("nargs", "dest", "deprecated"):
            return {name: _constant(value)}
        return {}


def read(path: Path, version: str) -> Table:
    """The table of a wheel or of a folder that vllm lies in; LookupError where it does not look like vLLM."""
    source = Source(path)
    home = next((m for m in source.modules("vllm.entrypoints") if _defines(source, m, "def make_arg_parser(")), None)
    engine = source.module(ENGINE)
    if home is None or engine is None:
        raise LookupError(f"no vLLM with a make_arg_parser in {path}")
    parser = next(m for m in source.modules("vllm.utils") if _defines(source, m, "class FlexibleArgumentParser"))
    reader = Reader(source, engine[0], _sizes(engine[0]), [])
    front = source.find(home, "FrontendArgs")
    assert front is not None
    Body(reader, home).run(_function(source, home, None, "make_arg_parser"))
    _frontend(reader, front)
    for name in ("EngineArgs", "AsyncEngineArgs"):
        Body(reader, ENGINE).run(_function(source, ENGINE, name, "add_cli_args"))
    text = (source.module(parser) or ("", ""))[0]
    features = {habit for habit, words in HABITS.items() if words in text}
    features |= {"human-json"} if "_expand_json_human_readable_numbers" in engine[0] else set()
    return Table(version, tuple(reader.flags), _configs(reader), frozenset(features), variables(source))


def main(argv: list[str]) -> int:
    """Print the table of argv[0] as version argv[1]."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m fleet.flags.extract WHEEL_OR_DIR VERSION\n")
        return 2
    sys.stdout.write(to_json(read(Path(argv[0]), argv[1])))
    return 0


def _defines(source: Source, module: str, words: str) -> bool:
    return words in (source.module(module) or ("", ""))[0]


def _frontend(reader: Reader, front: Found) -> None:
    """A flag per field of FrontendArgs, after the changes that its own methods make to the keywords."""
    keywords = reader.keywords(front)
    for one in reader.source.bases(front):
        for item in getattr(one.node, "body", []):
            if isinstance(item, ast.FunctionDef) and item.name in ("_customize_cli_kwargs", "add_cli_args"):
                changes = [s for s in item.body if not (isinstance(s, ast.Assign) and "kwargs(" in ast.unparse(s))]
                Body(reader, one.module, {"frontend_kwargs": keywords}).run(changes)
    for name, values in keywords.items():
        reader.add([f"--{name.replace('_', '-')}"], values)


def _function(source: Source, module: str, owner: str | None, name: str) -> list[ast.stmt]:
    found = source.find(module, owner or name)
    assert found is not None
    inside = getattr(found.node, "body", []) if owner else [found.node]
    return next((i.body for i in inside if isinstance(i, ast.FunctionDef) and i.name == name), [])


def _configs(reader: Reader) -> dict[str, Config]:
    """Classes that flags take as JSON, and those that stand in their fields."""
    found: dict[str, Config] = {}
    wanted = [h for f in reader.flags if f.config for h in [_class_named(reader.source, f.config)] if h]
    while wanted:
        one = wanted.pop()
        assert isinstance(one.node, ast.ClassDef)
        if one.node.name in found:
            continue
        shapes: dict[str, Shape] = {}
        early, around = (_validated(reader.source, one, "field_validator", mode) for mode in ("before", "wrap"))
        for name, (module, item) in reader.source.fields(one).items():
            hints = reader.source.hints(module, item.annotation)
            shapes[name] = None
            if "SkipValidation" in ast.unparse(item.annotation) or name in early:
                continue
            inner = next((h for h in hints if h.name == "dataclass" and h.node is not None), None)
            if inner is not None and {h.name for h in hints} <= {"dataclass", "none"}:
                shapes[name] = inner.values[0]
                wanted.append(Found(inner.module, inner.node or one.node))
            elif name not in around:
                shapes[name] = _shape(hints)
        found[one.node.name] = Config(shapes, open=not _closed(reader.source, one))
    return found


def _class_named(source: Source, name: str) -> Found | None:
    for module in ("vllm.config", "vllm.config.vllm", ENGINE, *source.modules("vllm.config")):
        if (found := source.find(module, name)) is not None and isinstance(found.node, ast.ClassDef):
            return found
    return None


def _shape(hints: frozenset[Hint]) -> Shape:
    """What pydantic wants of a field, where that is plain enough to be judged from its type alone."""
    names = {h.name for h in hints} - {"none"}
    null = Hint("none") in hints
    if names == {"literal"} and not any(h.open for h in hints):
        words = [w for h in hints for w in h.values]
        return (*(sorted(words) if len(hints) - null > 1 else words), *([None] if null else []))
    if names in ({"int"}, {"str"}, {"bool"}):
        return names.pop() + ("?" if null else "")
    return None


def _closed(source: Source, found: Found) -> bool:
    """Whether pydantic refuses keys that the class lacks: it says so, or ``@config`` says it for all."""
    above = [ast.unparse(d) for one in source.bases(found) for d in getattr(one.node, "decorator_list", [])]
    forbids = any("forbid" in d for d in above) or "forbid" in (source.text("vllm/config/utils.py") or "")
    rewritten = _validated(source, found, "model_validator", "before")
    return forbids and not rewritten and not any("'allow'" in d or "'ignore'" in d for d in above)


def _validated(source: Source, found: Found, kind: str, mode: str) -> set[str]:
    """Fields with a validator of this kind that sees (and may rewrite) raw values; "" stands for the whole class."""
    calls = [
        decorator
        for one in source.bases(found)
        for item in getattr(one.node, "body", [])
        for decorator in getattr(item, "decorator_list", [])
        if isinstance(decorator, ast.Call) and name_of(decorator.func) == kind
    ]
    calls = [c for c in calls if any(k.arg == "mode" and _constant(k.value) == mode for k in c.keywords)]
    return {str(_constant(a)) for c in calls for a in c.args} | ({""} if any(not c.args for c in calls) else set())


def _literal(hint: Hint, also_text: bool) -> Keywords:
    """``literal_to_kwargs``: with str beside it, the words are only suggestions."""
    kind = KINDS.get(type(hint.values[0]).__name__, "str") if hint.values else "str"
    if also_text:
        return {"kind": kind}
    return {"kind": kind, "choices": sorted(hint.values), "open": hint.open}


def _type(node: ast.expr) -> Keywords:
    """What the keyword ``type`` does to values."""
    if isinstance(node, ast.Lambda):
        return {"kind": "csv" if ".split(" in ast.unparse(node) else "name", "optional": False}
    if isinstance(node, ast.Call) and name_of(node.func) in ("optional_type", "parse_type"):
        kind = KINDS.get(name_of(node.args[0]), "str")
        return {"kind": "dict" if kind == "json" else kind, "optional": name_of(node.func) == "optional_type"}
    return {"kind": KINDS.get(name_of(node), "str"), "optional": False}


def _sizes(text: str) -> frozenset[str]:
    """Fields that the version's ``_compute_kwargs`` lets take 64M: the strings of its sets and ``in`` tests."""
    tree = next((n for n in ast.parse(text).body if getattr(n, "name", "") == "_compute_kwargs"), None)
    groups = [n.elts for n in ast.walk(tree) if isinstance(n, (ast.Set, ast.Tuple))] if tree is not None else []
    return frozenset(e.value for g in groups for e in g if isinstance(e, ast.Constant) and isinstance(e.value, str))


def _default(node: ast.expr | None) -> str | None:
    """A default as written, without the wrapping of ``field()``; None where it is long or missing."""
    if isinstance(node, ast.Call) and name_of(node.func) in ("field", "Field"):
        named = {k.arg: k.value for k in node.keywords}
        node = named.get("default") or (node.args[0] if node.args else named.get("default_factory"))
    text = None if node is None else ast.unparse(node)
    return text if text is not None and len(text) <= 60 else None


def _constant(node: Any) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _word(node: ast.AST) -> str:
    return str(_constant(node))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
