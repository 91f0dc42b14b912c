"""What the stand-in answers: a function of the prompt and the position alone, so that every instance agrees."""

from __future__ import annotations

import hashlib
import re
from typing import Any

NOUNS = (
    *("anvil", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "island", "juniper", "kettle"),
    *("lantern", "meadow", "nickel", "orchid", "pebble", "quartz", "raven", "silver", "timber", "umbra", "violet"),
    *("willow", "xenon", "yarrow", "zephyr", "acorn", "birch", "cobalt", "dune", "elm", "flint"),
)
FIRST = " stand-in"


def count(prompt: Any) -> int:
    """Tokens of a prompt: those given, or its words and marks."""
    return max(1, len(prompt)) if isinstance(prompt, list) else max(1, len(re.findall(r"\w+|[^\w\s]", prompt)))


def seed_of(prompt: Any) -> bytes:
    """What the answer depends on."""
    return hashlib.blake2b(repr(prompt).encode(), digest_size=16).digest()


def token(seed: bytes, position: int) -> str:
    """The text of one answered token."""
    if position == 0:
        return FIRST
    digest = hashlib.blake2b(seed + position.to_bytes(4, "big"), digest_size=4).digest()
    return " " + NOUNS[int.from_bytes(digest, "big") % len(NOUNS)]


def garbage(position: int) -> str:
    """A token of an engine that went on over cache blocks which never arrived."""
    return " !" if position else FIRST + " garbage"


def chat_prompt(messages: list[dict[str, Any]]) -> str:
    """A conversation as one text."""
    lines = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        lines.append(f"{message.get('role', 'user')}: {content}")
    return "\n".join(lines)
