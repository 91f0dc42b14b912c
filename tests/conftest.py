"""Tests of whole deploys need root and a bootable lab: in CI they fail without, on a laptop they skip and say why."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("lab")]
    if not wanted:
        return
    from lab.requirements import problems

    found = problems()
    if not found:
        return
    reason = "the lab cannot run here: " + "; ".join(found)
    if os.environ.get("VLLM_FLEET_CI"):
        raise pytest.UsageError(reason)
    for item in wanted:
        item.add_marker(pytest.mark.skip(reason=reason))
