"""YAML that remembers its lines, so that an error can name the file, the key and the line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from fleet.findings import Finding, FleetError, error

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000

Path_ = tuple[str | int, ...]


@dataclass
class Document:
    """A parsed file: plain data, and the line (from 1) at which each key stands."""

    path: Path
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    values: int = 0

    def where(self, loc: Path_) -> str:
        """``file:line key.path`` of the nearest known place."""
        for size in range(len(loc), -1, -1):
            line = self.lines.get(loc[:size])
            if line is not None:
                break
        else:
            line = 1
        key = ".".join(str(part) for part in loc)
        return f"{self.path}:{line}" + (f" {key}" if key else "")


def read(path: Path, rule: str = "RECIPE-READ") -> Document:
    """Parse one file; a FleetError says why it cannot be read."""
    where = str(path)
    try:
        raw = path.read_bytes()
    except OSError as exc:
        reason = (exc.strerror or "not readable").lower()
        raise FleetError(error(rule, where, f"cannot read: {reason}", "give the path of a readable file")) from exc
    if len(raw) > MAX_BYTES:
        what = f"{len(raw)} bytes is no hand-written file"
        raise FleetError(error(rule, where, what, f"keep it under {MAX_BYTES} bytes"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        what = f"byte {exc.start} is not UTF-8"
        raise FleetError(error(rule, where, what, "save the file as UTF-8")) from exc
    return parse(text, path, rule)


def parse(text: str, path: Path, rule: str = "RECIPE-READ") -> Document:
    """Parse text as the content of ``path``."""
    document = Document(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise FleetError(
                error(rule, str(path), "the file is empty", "write what belongs there, or name another file")
            )
        document.data = _plain(node, (), document, rule)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(exc, "problem", None) or "not YAML"
        raise FleetError(error(rule, where, f"not YAML: {problem}", "mend the syntax of this line")) from exc
    except RecursionError as exc:
        raise FleetError(error(rule, str(path), "nested too deeply", "flatten the file")) from exc
    return document


def _plain(node: yaml.Node, loc: Path_, document: Document, rule: str) -> Any:
    """The plain data of a node; a key given twice is an error, an alias is plain data again."""
    document.lines.setdefault(loc, node.start_mark.line + 1)
    document.values += 1
    if document.values > MAX_VALUES:
        what = f"more than {MAX_VALUES} values, aliases counted"
        raise FleetError(error(rule, str(document.path), what, "write less, or fewer aliases"))
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            line = key_node.start_mark.line + 1
            where = f"{document.path}:{line}"
            if not isinstance(key, str):
                raise FleetError(error(rule, where, f"the key {key!r} is not text", "put it in quotes"))
            here = (*loc, key)
            if key in result:
                first = document.lines[here]
                what = f"{key} is given twice, first in line {first}"
                raise FleetError(error(rule, where, what, "keep one of them"))
            document.lines[here] = line
            result[key] = _plain(value_node, here, document, rule)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, (*loc, i), document, rule) for i, child in enumerate(node.value)]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as exc:  # 2026-13-40 looks like a date and is none
        raise yaml.constructor.ConstructorError(None, None, str(exc), node.start_mark) from exc
    finally:
        loader.dispose()


def nearest(name: str, known: list[str]) -> str:
    """``; did you mean X?`` for a near miss, else the known names."""
    close = difflib.get_close_matches(name, known, 1, 0.7)
    return f"write {close[0]}" if close else "use one of " + ", ".join(sorted(known))


def explain(exc: ValidationError, document: Document, model: type[BaseModel], rule: str) -> list[Finding]:
    """Turn pydantic's errors into findings that name file, line and key."""
    findings = []
    for item in exc.errors(include_url=False):
        loc = _real_location(tuple(item["loc"]), document)
        where = document.where(loc)
        kind, message = item["type"], item["msg"]
        if kind == "extra_forbidden":
            known = _fields_at(model, loc[:-1])
            what, mend = f"unknown key {loc[-1]}", nearest(str(loc[-1]), known) if known else "remove it"
        elif kind == "missing":
            what, mend = f"{loc[-1]} is missing", "add it"
        elif kind == "value_error":
            what, _, mend = message.removeprefix("Value error, ").partition("; ")
            mend = mend or "mend the value"
        else:
            text = message[0].lower() + message[1:]
            what, mend = f"{text}, not {_short(item.get('input'))}", "mend the value"
        findings.append(error(rule, where, what, mend))
    return _unique(findings)


def _unique(findings: list[Finding]) -> list[Finding]:
    """Drop repeats: a union type complains once per member about one value."""
    seen: dict[str, Finding] = {}
    for finding in findings:
        seen.setdefault(finding.where, finding)
    return list(seen.values())


def _real_location(loc: Path_, document: Document) -> Path_:
    """Without the names that pydantic adds for members of a union."""
    real: Path_ = ()
    for part in loc:
        if (*real, part) in document.lines or part == loc[-1]:
            real = (*real, part)
    while len(real) > 1 and real not in document.lines and real[:-1] in document.lines:
        data = document.data
        for part in real[:-1]:
            data = data[part]
        if isinstance(data, dict):
            break
        real = real[:-1]
    return real


def _fields_at(model: type[BaseModel], loc: Path_) -> list[str]:
    """Names of the fields of the model that stands at ``loc``."""
    current: Any = model
    for part in loc:
        info = current.model_fields.get(str(part))
        if info is None:  # the key of a mapping of models
            continue
        found = list(_models(info.annotation))
        if not found:
            return []
        current = found[0]
    return list(current.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models that an annotation names, inside unions and mappings too."""
    stack: list[Any] = [annotation]
    while stack:
        item = stack.pop(0)
        if isinstance(item, type) and issubclass(item, BaseModel):
            yield item
        stack.extend(getattr(item, "__args__", ()))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
