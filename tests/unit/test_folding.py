"""What people scan: worst first, a host's lines together, equal findings of many hosts as one."""

from __future__ import annotations

import pytest

from fleet.findings import error, warning
from fleet.folding import fold, short


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a3-7"], "a3-7"),
        (["a3-0", "a3-1", "a3-2", "a3-9"], "a3-[0-2,9] (4 places)"),
        (["10.0.0.9", "10.0.0.10", "10.0.0.11"], "10.0.0.[9-11] (3 places)"),
        (["n08", "n09", "n10"], "n[08-10] (3 places)"),
        (["n9", "n09"], "n[9,09] (2 places)"),
        (["a", "b"], "a, b (2 places)"),
        (["a", "b1", "b2", "c", "d", "e", "f"], "a, b[1-2], c, d and 2 more (7 places)"),
        (["rack1-a", "rack2-a"], "rack[1-2]-a (2 places)"),
    ],
)
def test_names_are_written_short(names: list[str], text: str) -> None:
    assert short(names) == text


def test_worst_first_shared_first_then_host_by_host() -> None:
    found = [
        warning("W", "n2", "clock", "mend"),
        error("E", "n1", "port", "mend"),
        error("E", "n2", "disk", "mend"),
        error("E", "n1", "link", "mend"),
        error("E", "n3", "disk", "mend"),
        error("E", "n3", "disk", "mend"),
    ]
    assert [(f.severity, f.where, f.what) for f in fold(found)] == [
        ("error", "n[2-3] (2 places)", "disk"),
        ("error", "n1", "port"),
        ("error", "n1", "link"),
        ("warning", "n2", "clock"),
    ]


def test_what_differs_in_its_words_or_in_its_mend_stays_apart() -> None:
    found = [
        error("E", "a", "x", "m"),
        error("E", "b", "x", "n"),
        error("F", "c", "x", "m"),
        warning("E", "d", "x", "m"),
    ]
    assert len(fold(found)) == 4
