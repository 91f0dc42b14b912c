"""Shell text that touches files which may lie on a share that is gone: it ends in time, whatever they do."""

from __future__ import annotations


def bounded(seconds: int, text: str) -> str:
    """What the text prints, for so many seconds; the status is 124 where it goes on.

    Nobody can end a process that waits for a dead share, so no shell may wait for it: it runs in the background, and
    the reader of its output has the time.
    """
    return f"{{ {{ {text}; }} </dev/null 2>/dev/null & }} | timeout -k 2 {seconds} cat"
