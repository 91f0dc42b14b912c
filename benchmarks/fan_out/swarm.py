"""On a host: one peer of a BitTorrent swarm by libtorrent, with the peers that it is told and nobody else.

    python3 swarm.py '{"lib": FOLDER, "address": ..., "port": ..., "torrent": FILE, "save": FOLDER, "stop": FILE,
                       "peers": [...], "seeder": true, "settings": {...}}'

Prints the time at which the file was whole, and ends when the file ``stop`` is there.
"""

import json
import sys
import time
from pathlib import Path

ALONE = {
    **dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False),
    **dict.fromkeys(("enable_outgoing_utp", "enable_incoming_utp", "smooth_connects"), False),
    **dict.fromkeys(
        ("in_enc_policy", "out_enc_policy"), 2
    ),  # no encryption: within the fleet, and every piece is proved
    **dict.fromkeys(("connection_speed", "torrent_connect_boost", "connections_limit"), 200),
    "send_buffer_watermark": 4 << 20,
    "max_out_request_queue": 1500,
    "max_allowed_in_request_queue": 2000,
    "allow_multiple_connections_per_ip": True,
}


def main():
    given = json.loads(sys.argv[1])
    sys.path.insert(0, given["lib"])
    import libtorrent

    flags = libtorrent.torrent_flags
    here = {"listen_interfaces": f"{given['address']}:{given['port']}"}
    session = libtorrent.session({**ALONE, **here, **given.get("settings", {})})
    wanted = libtorrent.add_torrent_params()
    wanted.ti, wanted.save_path = libtorrent.torrent_info(given["torrent"]), given["save"]
    wanted.flags = (wanted.flags | flags.disable_pex) & ~flags.auto_managed & ~flags.paused
    if given.get("seeder"):
        wanted.flags |= flags.seed_mode | flags.super_seeding
    wanted.peers = [(address, given["port"]) for address in given["peers"]]
    handle, told = session.add_torrent(wanted), bool(given.get("seeder"))
    deadline = time.monotonic() + 3600
    while not Path(given["stop"]).exists() and time.monotonic() < deadline:
        if not told and handle.status().is_seeding:
            told = True
            print(time.time(), flush=True)
        time.sleep(0.05)


main()
