"""The arguments of a command line as they were typed: which flag each word stands for, before any value is judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.flags.table import Flag, Table


@dataclass(frozen=True)
class Given:
    """One argument: its name as typed, without a value, and the options that the version takes it for.

    None: the version does not know it. One: that is it. More: argparse refuses it as ambiguous.
    """

    name: str  # --max-num-seqs, --compilation-config
    options: tuple[str, ...]
    flag: Flag | None
    value: tuple[str, ...] = ()
    dotted: bool = False  # --compilation-config.mode

    @property
    def is_short(self) -> bool:
        """Whether only the beginning of the option was typed."""
        return len(self.options) == 1 and self.options[0] != self.name


def given(table: Table, argv: Sequence[str]) -> Iterator[Given]:
    """The arguments among the words after ``vllm serve``, in their order.

    Long ones may be typed with ``_`` for ``-``, as ``--x=y``, with a path into their JSON, or as a beginning that no
    other option has; of the short ones (-tp) only those that the table has are told.
    """
    options = {option: flag for flag in table.flags for option in flag.options}
    at = [i for i, word in enumerate(argv) if word.startswith("--") or re.split(r"[=.]", word)[0] in options]
    for i, following in zip(at, [*at[1:], len(argv)], strict=False):
        typed, equals, value = argv[i].partition("=")
        head, dot, _ = typed.partition(".")
        name = head.replace("_", "-") if head.startswith("--") else head
        if name in ("--help", "--"):
            continue
        fits = (name,) if name in options else tuple(o for o in options if o.startswith(name) and name[:2] == "--")
        values = ((value,) if equals else ()) + tuple(argv[i + 1 : following])
        flag = options[fits[0]] if len(fits) == 1 else None
        yield Given(name, fits, flag, values, bool(dot))
