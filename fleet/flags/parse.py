"""What vLLM's own parser would say of a command line, told from a flag table.

    parsed = parse(load("0.32.0"), ["Qwen/Qwen3-8B", "-tp", "8", "--max-num-seqs", "many"])
    parsed.values              # {"model": "Qwen/Qwen3-8B", "tensor_parallel_size": 8}
    parsed.faults[0].line      # "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'"

vLLM stands on argparse, and so does this: the words are rewritten as its FlexibleArgumentParser rewrites them, then
argparse judges them. argparse ends at the first fault; this goes on, so the first fault is what the engine prints and
the others are what it would print next. Standard library only: a copy runs in a container (see ``table``).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from .table import Config, Flag, Table, human_readable_int, human_readable_int_or_auto, misfits, short

TASK_HINT = (
    "\n\nHint: --task is not a vllm serve option. For embedding, reranking, or reward models, use --runner pooling. "
    "To adapt a generative model for pooling, also use --convert embed, --convert classify, or --convert reward."
)


@dataclass(frozen=True)
class Fault:
    """One refusal. ``prog`` is what argparse puts before it; empty where vLLM ends with an exception instead."""

    text: str
    prog: str = "vllm serve"

    @property
    def line(self) -> str:
        """The line that the engine prints (the last one of a traceback, where it raises)."""
        return f"{self.prog}: error: {self.text}" if self.prog else self.text


INDEX_ERROR = Fault("IndexError: list index out of range", "")


@dataclass(frozen=True)
class Parsed:
    """Values that were given, by dest (``model`` among them), without defaults; faults, in the order of argparse."""

    values: dict[str, Any]
    faults: tuple[Fault, ...]
    deprecated: tuple[str, ...] = ()  # first option of each flag that was given and is deprecated


def parse(table: Table, argv: Iterable[str]) -> Parsed:
    """Judge the words after ``vllm serve``."""
    faults: list[Fault] = []
    words, config = _without_config(_model_first(table, list(argv), faults), faults)
    words = _joined(table, _dashed(table, words), faults)
    values, found, stopped = _run(table, words)
    if stopped:
        values, more = _further(table, words, found)
        found += more
    faults += [f for i, f in enumerate(found) if f not in found[:i]]
    values |= {} if config is None else {"config": config}
    deprecated = tuple(f.options[0] for f in table.flags if f.deprecated and f.dest in values)
    return Parsed(values, tuple(faults), deprecated)


def _model_first(table: Table, words: list[str], faults: list[Fault]) -> list[str]:
    """--model becomes the positional model where the version does that, and is refused where it does not."""
    at = next((i for i, w in enumerate(words) if re.match(r"^--model(=.+|$)", w)), None)
    if at is not None and "model-moved" not in table.features and words[at] == "--model":
        text = "you should provide the model as a positional argument or in a config file instead of via the `--model`"
        faults.append(Fault(f"ValueError: With `vllm serve`, {text} option.", ""))
    elif at is not None and "model-moved" in table.features:
        value = words[at + 1 : at + 2] if words[at] == "--model" else [words[at].removeprefix("--model=")]
        if not value:
            faults.append(INDEX_ERROR)
        words = [*value, *words[:at], *words[at + (2 if words[at] == "--model" else 1) :]]
    if (
        "served-name-needs-model" in table.features
        and words[:1]
        and words[0].startswith("-")
        and not any(re.match(r"^--config(=.+|$)", w) for w in words)
        and any(re.match(r"^--served[-_]model[-_]name(=.+|$)", w) for w in words)
    ):
        text = "`model` should be provided as the first positional argument when using `vllm serve`."
        faults.append(Fault(f"ValueError: {text} i.e. `vllm serve <model> --<arg> <value>`.", ""))
    return words


def _without_config(words: list[str], faults: list[Fault]) -> tuple[list[str], str | None]:
    """vLLM puts the words of the file in place of ``--config FILE``; here the file lies elsewhere and is not read."""
    if "--config" not in words:
        return words, None
    at = words.index("--config")
    if at == len(words) - 1:
        text = "No config file specified! Please check your command-line arguments."
        faults.append(Fault(f"ValueError: {text}", ""))
    return words[:at] + words[at + 2 :], next(iter(words[at + 1 :]), None)


def _dashed(table: Table, words: list[str]) -> list[str]:
    """Underscores of names become dashes (but for what follows a dot), -O3 becomes the option that it stands for."""
    result: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("--help="):
            result.append("--help")
        elif word.startswith("--"):
            head, dot, tail = name.partition(".")
            result.append(head.replace("_", "-") + dot + tail + equals + value)
        elif word == "-O" and following in ("0", "1", "2", "3"):
            result.append("-O.level" if "level" in table.features else "--optimization-level")
        elif not word.startswith("-O") or word == "-O" or ("level" in table.features and word[2] == "."):
            result.append(word)
        else:
            level = word[3:] if word[2] == "=" else word[2:]
            result += [f"-O.level={level}"] if "level" in table.features else ["--optimization-level", level]
    return result


def _joined(table: Table, words: list[str], faults: list[Fault]) -> list[str]:
    """Dotted options (--json.key value, --json.list+ a,b) become one option with JSON each, at the end."""
    rest: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, text = word.partition("=")
        if not word.startswith("-") or "." not in name:
            rest.append(word)
            continue
        if not equals and not queue:
            faults.append(INDEX_ERROR)
            break
        text = text if equals else queue.pop(0)
        key, *keys = name.removesuffix("+").split(".")
        value: Any = text.split(",") if name.endswith("+") else _json_or_text(table, text)
        for part in reversed(keys):
            value = {part: value}
        _merge(objects.setdefault(key, {}), value)
    return rest + [w for key, value in objects.items() for w in (key, json.dumps(value))]


def _json_or_text(table: Table, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return human_readable_int(text) if "human-dotted" in table.features else text
    except (ValueError, argparse.ArgumentTypeError):
        return text


def _merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):
            into[key] += value
        else:
            into[key] = value


class _Stopped(Exception):
    """argparse met a fault that it cannot pass over."""


class _Parser(argparse.ArgumentParser):
    """Collects faults of values instead of ending at the first."""

    def __init__(self, *args: Any, faults: list[Fault] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.faults: list[Fault] = [] if faults is None else faults

    def error(self, message: str) -> NoReturn:
        self.faults.append(Fault(message, self.prog))
        raise _Stopped

    def note(self, message: str) -> None:
        """Keep a fault and go on."""
        self.faults.append(Fault(message, self.prog))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as exc:
            self.note(str(exc))
            return _REFUSED

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if value is _REFUSED:
            return
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as exc:
            self.note(str(exc))


_REFUSED = object()


class _Help(argparse.Action):
    """--help prints and ends with 0: nothing would be served."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, _Parser)
        parser.faults.append(Fault("--help prints the help and ends", ""))
        raise _Stopped


class _Lora(argparse.Action):
    """vLLM's LoRAParserAction: name=path, or an object of JSON."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        assert isinstance(parser, _Parser)
        modules: list[Any] = []
        for item in values:
            if item in (None, "", _REFUSED):
                continue
            if "=" in item and "," not in item:
                modules.append(dict(zip(("name", "path"), item.split("=", 1), strict=True)))
                continue
            try:
                modules.append(module := json.loads(item))
                _call_lora(module)
            except json.JSONDecodeError:
                parser.note(f"Invalid JSON format for --lora-modules: {item}")
            except TypeError as exc:
                parser.note(f"Invalid fields for --lora-modules: {item} - {exc}")
        setattr(namespace, self.dest, modules)


def _call_lora(module: Any) -> None:
    """Raise what ``LoRAModulePath(**module)`` raises for a missing field; unknown ones differ by version and pass."""
    if not isinstance(module, dict):
        raise TypeError(f"argument after ** must be a mapping, not {type(module).__name__}")
    missing = [repr(name) for name in ("name", "path") if name not in module]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        what = f"missing {len(missing)} required positional argument{plural}: {' and '.join(missing)}"
        raise TypeError(f"LoRAModulePath.__init__() {what}")


def _run(table: Table, words: list[str]) -> tuple[dict[str, Any], list[Fault], bool]:
    """Values, faults, and whether argparse gave up before the last word."""
    faults: list[Fault] = []
    top = _parsers(table, faults)
    space = argparse.Namespace()
    try:
        _, extra = top.parse_known_args(["serve", *words], space)
    except _Stopped:
        return {}, faults, True
    if extra:
        # The words are joined as they are, so a JSON value shows with the quotes that it has.
        message = f"unrecognized arguments: {' '.join(extra)}"
        hint = "task-hint" in table.features and re.search(r"(^|\s)--task(=|\s|$)", message)
        faults.append(Fault(message + (TASK_HINT if hint else ""), "vllm"))
    values = {k: v for k, v in vars(space).items() if k not in ("subparser", "_unrecognized_args")}
    if (model := values.pop("model_tag", None)) is not None:
        values["model"] = model
    return {k: v for k, v in values.items() if not _refused(v)}, faults, False


def _refused(value: Any) -> bool:
    return value is _REFUSED or (isinstance(value, list) and any(v is _REFUSED for v in value))


def _further(table: Table, words: list[str], known: list[Fault]) -> tuple[dict[str, Any], list[Fault]]:
    """Behind a fault at which argparse gives up: the word that it is about is left out, and the rest is read again."""
    last = known[-1]
    for i, word in enumerate(words):
        if not word.startswith("-"):
            continue
        ambiguous = last.text.startswith("ambiguous option")
        after = i + 1 + (ambiguous and i + 1 < len(words) and not words[i + 1].startswith("-"))
        rest = words[:i] + words[after:]
        values, faults, stopped = _run(table, rest)
        if last not in faults:
            deeper, more = _further(table, rest, faults) if stopped else (values, [])
            return deeper, faults + more
    return {}, []


def _parsers(table: Table, faults: list[Fault]) -> _Parser:
    """``vllm`` and ``vllm serve``, with every flag of the table."""
    top = _Parser(prog="vllm", add_help=False, faults=faults)
    commands = top.add_subparsers(dest="subparser", parser_class=_Parser)
    serve: _Parser = commands.add_parser("serve", add_help=False, prog="vllm serve", faults=faults)
    serve.add_argument("-h", "--help", action=_Help, nargs=0, default=argparse.SUPPRESS)
    serve.add_argument("model_tag", nargs="?", default=None)
    for flag in sorted(table.flags, key=lambda f: f.at):
        keywords: dict[str, Any] = {"dest": flag.dest, "default": argparse.SUPPRESS}
        if flag.action == "boolean":
            keywords["action"] = argparse.BooleanOptionalAction
        elif flag.action == "true":
            keywords["action"] = "store_true"
        else:
            keywords |= {"type": _type(table, flag), "nargs": flag.nargs}
            if flag.action == "lora":
                keywords["action"] = _Lora
            keywords |= {"const": True} if flag.nargs == "?" else {}
            keywords |= {"choices": flag.choices} if flag.choices is not None and not flag.open else {}
            if flag.action == "append":
                keywords["action"] = "append"
        # argparse makes the --no- form of a boolean by itself.
        own = [o for o in flag.options if not (flag.negatable and o.startswith("--no-"))]
        serve.add_argument(*own, **keywords)
    return top


def _type(table: Table, flag: Flag) -> Callable[[str], Any]:
    """The function that turns a word into the flag's value; its name is part of argparse's message."""
    shape = table.configs.get(flag.config or "", Config({}, open=True))
    plain: dict[str, tuple[Callable[[str], Any], str]] = {
        "int": (int, "<class 'int'>"),
        "float": (float, "<class 'float'>"),
        "truthy": (bool, "<class 'bool'>"),
        "size": (human_readable_int, "<function human_readable_int>"),
        "size-or-auto": (human_readable_int_or_auto, "<function human_readable_int_or_auto>"),
        "json": (json.loads, "<function loads>"),
        "dict": (_told(json.loads, "<function loads>"), "<function loads>"),
        "str-or-dict": (union_dict_and_str, "<function union_dict_and_str>"),
        "config": (lambda word: _config(table, flag.config or "", shape, word), "<class 'dict'>"),
        "name": (lambda word: word.lower().replace("-", "_"), ""),
        "csv": (_csv, ""),
    }
    convert, name = plain.get(flag.kind, (str, "<class 'str'>"))
    if not flag.optional:
        return convert
    return lambda word: None if word in ("", "None") else _told(convert, name)(word)


def _told(convert: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """vLLM's ``parse_type``; where it prints a function's address, this prints none."""

    def parse_type(word: str) -> Any:
        try:
            return convert(word)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"Value {word} cannot be converted to {name}.") from exc

    return parse_type


def union_dict_and_str(value: str) -> Any:
    """What stands in braces as JSON, anything else as text."""
    return _told(json.loads, "<function loads>")(value) if re.match(r"(?s)^\s*{.*}\s*$", value) else value


def _csv(value: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in (p.strip() for p in value.split(","))]


def _config(table: Table, name: str, shape: Config, word: str) -> Any:
    """An object of a configuration class: the keys that it takes, and the words of those that list them.

    The message is pydantic's, without its last line (a link), and for text that is no JSON with Python's reason.
    """
    if "human-json" in table.features:
        parts = re.split(r'("(?:[^"\\]|\\.)*")', word)
        for i in range(0, len(parts), 2):  # those outside of quotes
            number = r"\b\d+(?:\.\d+)?[kKmMgGtT]\b"
            parts[i] = re.sub(number, lambda m: str(human_readable_int(m[0])), parts[i])
        word = "".join(parts)
    try:
        value = json.loads(word)
        errors = list(misfits(table, shape, value, ""))
    except json.JSONDecodeError as exc:
        value, errors = None, [f"  Invalid JSON: {exc} [type=json_invalid, input_value={short(word)}, input_type=str]"]
    if errors:
        plural = "s" if len(errors) > 1 else ""
        raise argparse.ArgumentTypeError("\n".join([f"{len(errors)} validation error{plural} for {name}", *errors]))
    return value
