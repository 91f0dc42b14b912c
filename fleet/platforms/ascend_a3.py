"""Atlas 800 A3: eight NPUs of two dies each; every die is a device, so sixteen in one host."""

from __future__ import annotations

from fleet.platforms import _ascend

PLATFORM = _ascend.family("ascend-a3", devices_per_host=16, tag_suffix="-a3")
