"""The one error the lab raises for anything a user can cause."""

from __future__ import annotations


class LabError(Exception):
    """One line for a person: what failed, where, why, and how to mend it.

    The command line prints it as `error: ...` and exits 2; no traceback is shown.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
