"""On a host: a file comes from the host before, is written, and goes on to the next while it comes.

python3 chain.py '{"source": FILE, "next": [ADDRESS, PORT]}'                       the first
python3 chain.py '{"listen": [ADDRESS, PORT], "target": FILE, "next": [...]}'      the others; the last has no next
"""

import json
import socket
import sys
import time
from pathlib import Path

BLOCK = 1 << 18


def connect(to, seconds=30):
    """A connection to a host whose program may begin a moment later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(tuple(to), timeout=120)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    given = json.loads(sys.argv[1])
    after = connect(given["next"]) if given.get("next") else None
    if "source" in given:
        with Path(given["source"]).open("rb") as file:
            after.sendfile(file)
    else:
        with socket.create_server(tuple(given["listen"])) as server:
            before, _ = server.accept()
        block = memoryview(bytearray(BLOCK))
        with Path(given["target"]).open("wb") as file:
            while count := before.recv_into(block):
                file.write(block[:count])
                if after:
                    after.sendall(block[:count])
    if after:  # whoever sends hears when all behind it have the whole file
        after.shutdown(socket.SHUT_WR)
        assert after.recv(1) == b"k"
    if "source" not in given:
        before.sendall(b"k")


main()
