"""Plain CPU hosts: one worker a host, unless the inventory says how many."""

from __future__ import annotations

from fleet.platforms.base import Platform


def _network_env(address: str, interface: str) -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface, "VLLM_HOST_IP": address}


PLATFORM = Platform(name="cpu", devices_per_host=1, runtime="native", network_env=_network_env)
