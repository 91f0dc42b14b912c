"""A Python package read as text: modules, names followed through imports, classes and type hints.

Nothing is imported or executed. Names that lead out of the package (torch, typing) stay unknown, which for a type
means "some class", as vLLM's own code treats it.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILTIN = frozenset({"int", "str", "bool", "float", "dict", "list", "tuple", "set"})
TRANSPARENT = frozenset({"Annotated", "SkipValidation", "Final"})


@dataclass(frozen=True)
class Found:
    """A definition and the module that it stands in."""

    module: str
    node: ast.AST


@dataclass(frozen=True)
class Hint:
    """One member of a type: its name, and where it has any its arguments (literals) or nodes."""

    name: str  # a builtin, none, literal, dataclass or other
    values: tuple[Any, ...] = ()
    open: bool = False  # some literals are computed
    module: str = ""
    node: ast.AST | None = None


class Source:
    """A wheel, or a folder that packages lie in (site-packages)."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        self._folder = path
        self._files = frozenset(self._zip.namelist()) if self._zip else frozenset[str]()
        self._names: dict[str, dict[str, Found | tuple[str, str]]] = {}

    def text(self, file: str) -> str | None:
        """The text of a file (``vllm/config/model.py``), None where it is missing."""
        if self._zip is not None:
            return self._zip.read(file).decode() if file in self._files else None
        path = self._folder / file
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def modules(self, package: str) -> Iterator[str]:
        """Modules below a package, in order."""
        under = package.replace(".", "/") + "/"
        if self._zip is not None:
            files = sorted(f for f in self._files if f.startswith(under) and f.endswith(".py"))
        else:
            files = sorted(p.relative_to(self._folder).as_posix() for p in (self._folder / under).rglob("*.py"))
        for file in files:
            yield file[: -len(".py")].removesuffix("/__init__").replace("/", ".")

    def module(self, name: str) -> tuple[str, str] | None:
        """Text of a module, and the package that its relative imports start from."""
        path = name.replace(".", "/")
        if (text := self.text(f"{path}/__init__.py")) is not None:
            return text, name
        if (text := self.text(f"{path}.py")) is not None:
            return text, name.rpartition(".")[0]
        return None

    def find(self, module: str, name: str, depth: int = 0) -> Found | None:
        """Where a name of a module is defined, through imports."""
        entry = self._names_of(module).get(name)
        if isinstance(entry, Found) or entry is None or depth > 8:
            return entry if isinstance(entry, Found) else None
        return self.find(*entry, depth=depth + 1)

    def bases(self, found: Found) -> list[Found]:
        """The class and those that it inherits from, the furthest first."""
        assert isinstance(found.node, ast.ClassDef)
        chain = [found]
        for base in found.node.bases:
            above = self.find(found.module, base.id) if isinstance(base, ast.Name) else None
            if above is not None and isinstance(above.node, ast.ClassDef):
                chain = self.bases(above) + chain
        return chain

    def fields(self, found: Found) -> dict[str, tuple[str, ast.AnnAssign]]:
        """Fields of a dataclass: module and annotated assignment by name, in the order that dataclasses keep."""
        result: dict[str, tuple[str, ast.AnnAssign]] = {}
        for one in self.bases(found):
            assert isinstance(one.node, ast.ClassDef)
            for item in one.node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    outer = item.annotation.value if isinstance(item.annotation, ast.Subscript) else item.annotation
                    if name_of(outer) not in ("ClassVar", "InitVar"):
                        result[item.target.id] = (one.module, item)
        return result

    def is_dataclass(self, found: Found) -> bool:
        """Whether the class or one above it is decorated as a dataclass."""
        decorators = [d for one in self.bases(found) for d in getattr(one.node, "decorator_list", [])]
        return any(name_of(d.func if isinstance(d, ast.Call) else d) in ("dataclass", "config") for d in decorators)

    def hints(self, module: str, node: ast.AST) -> frozenset[Hint]:
        """What a type is made of: unions are flattened, Annotated is looked through, aliases are followed."""
        if isinstance(node, ast.Constant):
            return frozenset({Hint("none" if node.value is None else "other")})
        if isinstance(node, ast.BinOp):
            return self.hints(module, node.left) | self.hints(module, node.right)
        if isinstance(node, ast.Subscript):
            return self._subscript(module, node)
        if not isinstance(node, ast.Name):
            return frozenset({Hint("other")})
        found = self.find(module, node.id)
        if found is None:
            return frozenset({Hint(node.id if node.id in BUILTIN else "other")})
        if not isinstance(found.node, ast.ClassDef):
            return self.hints(found.module, found.node)
        name = "dataclass" if self.is_dataclass(found) else "other"
        above = [b for one in self.bases(found) for b in getattr(one.node, "bases", [])]
        if any(name_of(b.value if isinstance(b, ast.Subscript) else b) == "dict" for b in above):
            name = "dict-class"
        return frozenset({Hint(name, (found.node.name,), module=found.module, node=found.node)})

    def literals(self, module: str, node: ast.AST) -> tuple[list[Any], bool]:
        """The words of a Literal or a list of constants, as far as they are written down, and whether that is all."""
        if isinstance(node, ast.Constant):
            return [node.value], True
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            parts = [self.literals(module, e) for e in node.elts]
            return [v for values, _ in parts for v in values], all(whole for _, whole in parts)
        if isinstance(node, ast.Starred):
            return self.literals(module, node.value)
        if isinstance(node, ast.Subscript) and name_of(node.value) == "Literal":
            return self.literals(module, node.slice)
        if isinstance(node, ast.Call) and name_of(node.func) in ("get_args", "list", "tuple", "sorted"):
            return self.literals(module, node.args[0]) if node.args else ([], False)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.literals(module, node.left), self.literals(module, node.right)
            return left[0] + right[0], left[1] and right[1]
        if isinstance(node, ast.Name) and (found := self.find(module, node.id)) is not None:
            return self.literals(found.module, found.node)
        try:
            return [ast.literal_eval(node)], True
        except ValueError:
            return [], False

    def _subscript(self, module: str, node: ast.Subscript) -> frozenset[Hint]:
        outer = name_of(node.value)
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            values, whole = self.literals(module, node.slice)
            return frozenset({Hint("literal", tuple(dict.fromkeys(values)), not whole)})
        if outer in TRANSPARENT:
            return self.hints(module, inner[0])
        if outer in ("Optional", "Union"):
            members = frozenset(h for part in inner for h in self.hints(module, part))
            return members | ({Hint("none")} if outer == "Optional" else set())
        if outer.lower() in BUILTIN:
            return frozenset({Hint(outer.lower(), module=module, node=node.slice)})
        return frozenset({Hint("other")})

    def _names_of(self, module: str) -> dict[str, Found | tuple[str, str]]:
        if module not in self._names:
            got = self.module(module)
            self._names[module] = names = {}
            if got is not None:
                for key, value in _top(module, got[1], ast.parse(got[0]).body):
                    names[key] = value
        return self._names[module]


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name, empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _top(module: str, package: str, body: list[ast.stmt]) -> Iterator[tuple[str, Found | tuple[str, str]]]:
    """Names that the statements of a module define, as they are at run time."""
    for item in body:
        if isinstance(item, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - item.level + 1] if item.level else []
            origin = ".".join([*up, *([item.module] if item.module else [])])
            yield from ((alias.asname or alias.name, (origin, alias.name)) for alias in item.names)
        elif isinstance(item, (ast.ClassDef, ast.FunctionDef)):
            yield item.name, Found(module, item)
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            yield item.targets[0].id, Found(module, item.value)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            yield item.target.id, Found(module, item.value)
        elif isinstance(item, ast.If):
            # What only a type checker sees does not exist at run time; of other branches the first counts.
            checking = name_of(item.test) == "TYPE_CHECKING"
            yield from _top(module, package, item.orelse)
            yield from () if checking else _top(module, package, item.body)
        elif isinstance(item, ast.Try):
            yield from _top(module, package, [s for h in item.handlers for s in h.body])
            yield from _top(module, package, item.body)
