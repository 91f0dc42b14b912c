"""Devices that the inventory gives."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.findings import Finding, warning
from fleet.topology import Plan, platform_of


def dies_apart(plan: Plan) -> Iterator[Finding]:
    """An A3's device has two dies; two services on one device disturb each other."""
    if plan.recipe.platform != "ascend-a3":
        return
    for node in plan.fleet.nodes:
        given = node.settings.device_indices(platform_of(plan.recipe).devices_per_host)
        alone = [i for i in given if i ^ 1 not in given]
        if node.settings.shares_host and alone:
            yield warning(
                "DEVICES-PAIRS",
                f"{plan.fleet.source} {node.name}",
                f"device {alone[0]} is given without {alone[0] ^ 1}, the other die of the same NPU",
                "give dies in pairs: devices = '0-7'",
                "the two dies of an NPU share its memory bandwidth and its network",
                "vllm-ascend installation guide, Atlas A3",
            )


def devices_beyond_family(plan: Plan) -> Iterator[Finding]:
    """Device indices that the family's usual host does not have."""
    usual = platform_of(plan.recipe).devices_per_host
    if plan.recipe.platform == "cpu":
        return
    for node in plan.fleet.nodes:
        highest = max(node.settings.device_indices(usual))
        if node.settings.shares_host and highest >= usual:
            yield warning(
                "DEVICES-COUNT",
                f"{plan.fleet.source} {node.name}",
                f"device {highest} is given, the usual {plan.recipe.platform} host has 0 to {usual - 1}",
                "mend devices, unless this host has more",
                "a unit waits for a device that is not there, and gives up after ten minutes",
            )


CHECKS = (dies_apart, devices_beyond_family)
