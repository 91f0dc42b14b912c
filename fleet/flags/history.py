"""Since when and until when vLLM has a name, told from all tables there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fleet.flags.table import Table, is_older, load, versions


@dataclass(frozen=True)
class Life:
    """First and last version seen with a name, the first without it after that, and the first to call it deprecated."""

    first: str
    last: str
    gone: str | None = None
    deprecated: str | None = None

    def told(self, version: str) -> str:
        """Why ``version`` does not have it; empty where the tables do not say."""
        if is_older(version, self.first):
            return f"vLLM has it from {self.first} on"
        return f"last in {self.last}, gone by {self.gone}" if self.gone and is_older(self.last, version) else ""

    def is_gone(self, version: str) -> bool:
        """Whether a version before this one had it."""
        return is_older(self.last, version)


@cache
def table(version: str) -> Table:
    """A table, read once a run."""
    return load(version)


def of_option(option: str) -> Life | None:
    """The life of an argument, by its long form."""
    life = _life(lambda t: t.flag(option) is not None)
    old = next((v for v in versions() if (f := table(v).flag(option)) is not None and f.deprecated), None)
    return life and Life(life.first, life.last, life.gone, old)


def of_variable(name: str) -> Life | None:
    """The life of an environment variable."""
    return _life(lambda t: name in t.environment)


def of_key(config: str, key: str) -> Life | None:
    """The life of a key of a configuration class."""
    return _life(lambda t: config in t.configs and key in t.configs[config].fields)


def _life(has: Callable[[Table], bool]) -> Life | None:
    known = versions()
    seen = [v for v in known if has(table(v))]
    if not seen:
        return None
    after = [v for v in known if is_older(seen[-1], v)]
    return Life(seen[0], seen[-1], after[0] if after else None)
