"""What machine families differ in: one module each, one table here."""

from __future__ import annotations

from fleet.platforms import ascend_a2, ascend_a3, cpu, nvidia
from fleet.platforms.base import Platform

PLATFORMS: dict[str, Platform] = {
    p.name: p for p in (ascend_a2.PLATFORM, ascend_a3.PLATFORM, nvidia.PLATFORM, cpu.PLATFORM)
}

__all__ = ["PLATFORMS", "Platform"]
