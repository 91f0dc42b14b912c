"""Atlas 800 A2: eight NPUs, one die each, in one host."""

from __future__ import annotations

from fleet.platforms import _ascend

PLATFORM = _ascend.family("ascend-a2", devices_per_host=8, tag_suffix="")
