"""One file to N hosts over links of so many Mbit/s each way, by several engines, against one copy over such a link.

    .venv/bin/python -m benchmarks.fan_out --hosts 8 --mbit 200 --megabytes 1000 [--swarm FOLDER] [--star]

On hosts of the lab. A star sends to each at once; a chain hands on what it gets; a swarm is libtorrent with explicit
peers, its wheel unpacked in FOLDER. ``origin`` is what the host that had the file sent, in copies of it.
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.fleet import Lab

HERE, THERE, PORT = Path(__file__).parent, "/opt/fan-out", 7395
MAKE = """\
import sys; sys.path.insert(0, '/opt/swarm'); import libtorrent as t
files = t.file_storage(); t.add_files(files, '/srv/data/file'); made = t.create_torrent(files, 1 << 20)
t.set_piece_hashes(made, '/srv/data'); open('/srv/torrent', 'wb').write(t.bencode(made.generate()))
"""


class Bench:
    """Hosts with shaped links; the first has the file."""

    def __init__(self, lab: Lab, mbit: int, megabytes: int) -> None:
        self.lab, self.hosts = lab, [host.name for host in lab.hosts]
        self.address = {host.name: host.address for host in lab.hosts}
        self.bytes = megabytes << 20
        shape = f"root tbf rate {mbit}mbit burst 256kb latency 100ms"
        for name in self.hosts:  # the machine's side limits what a host receives, its own what it sends
            subprocess.run(["tc", "qdisc", "replace", "dev", f"vb-{name}"[:15], *shape.split()], check=True)
        self.all(f"tc qdisc replace dev host0 {shape}; mkdir -p /srv/data")
        self.on(self.hosts[0], f"head -c {self.bytes} /dev/urandom >/srv/data/file")
        self.sum = self.on(self.hosts[0], "sha256sum </srv/data/file")

    def on(self, name: str, command: str) -> str:
        done = self.lab.ssh(name, command, timeout=3600)
        if done.returncode:
            raise SystemExit(f"{name}: {command[:60]}: {done.stderr or done.stdout}")
        return done.stdout.strip()

    def all(self, command: str | Callable[[str], str], names: Iterable[str] | None = None) -> list[str]:
        text = command if callable(command) else lambda _: command
        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(lambda name: self.on(name, text(name)), names or self.hosts))

    def start(self, name: str, program: str, given: dict[str, object]) -> str:
        """A program in the background of a host, as shell text."""
        inner = f"python3 {THERE}/{program}.py {shlex.quote(json.dumps(given))} >/srv/said 2>&1"
        return f"systemctl reset-failed fan 2>/dev/null; systemd-run -q --collect --unit=fan sh -c {shlex.quote(inner)}"

    def measure(self, engine: str, run: Callable[[], float], one: float | None) -> float:
        """Run it, prove every copy, and print a line; seconds."""
        self.all("rm -f /srv/data/file /srv/stop /srv/said", self.hosts[1:])
        self.on(self.hosts[0], "rm -f /srv/stop")
        before = self.sent()
        seconds = run()
        copies = (self.sent() - before) / self.bytes
        sums = [s for s in self.all("test ! -e /srv/data/file || sha256sum </srv/data/file", self.hosts[1:]) if s]
        right = f"{sums.count(self.sum)} of {len(sums)} right"
        factor = seconds / (one or seconds)
        print(f"{engine:<8} {seconds:7.1f} s  {factor:5.2f} x  origin {copies:5.2f} copies  {right}", flush=True)
        return seconds

    def sent(self) -> int:
        return int(self.on(self.hosts[0], "cat /sys/class/net/host0/statistics/tx_bytes"))

    def chain(self, names: list[str]) -> float:
        def given(name: str) -> dict[str, object]:
            after = names[names.index(name) + 1 :][:1]
            ends = {"next": [self.address[after[0]], PORT]} if after else {}
            return {"listen": [self.address[name], PORT], "target": "/srv/data/file", **ends}

        self.all(lambda name: self.start(name, "chain", given(name)), names[1:])
        return self.send(names[1])

    def star(self) -> float:
        for name in self.hosts[1:]:
            at = {"listen": [self.address[name], PORT], "target": "/srv/data/file"}
            self.on(name, self.start(name, "chain", at))
        with ThreadPoolExecutor(32) as pool:
            return max(pool.map(self.send, self.hosts[1:]))

    def send(self, to: str) -> float:
        given = json.dumps({"source": "/srv/data/file", "next": [self.address[to], PORT]})
        began = time.monotonic()
        self.on(self.hosts[0], f"python3 {THERE}/chain.py {shlex.quote(given)}")
        return time.monotonic() - began

    def swarm(self) -> float:
        self.on(self.hosts[0], f"python3 -c {shlex.quote(MAKE)}")
        torrent = base64.b64encode(base64.b64decode(self.on(self.hosts[0], "base64 -w0 /srv/torrent"))).decode()
        self.all(f"echo {torrent} | base64 -d >/srv/torrent", self.hosts[1:])

        def given(name: str) -> dict[str, object]:
            return {
                "lib": "/opt/swarm", "address": self.address[name], "port": PORT, "torrent": "/srv/torrent",
                "save": "/srv/data", "stop": "/srv/stop", "seeder": name == self.hosts[0],
                "peers": [address for other, address in self.address.items() if other != name],
            }  # fmt: skip

        began = time.time()
        self.all(lambda name: self.start(name, "swarm", given(name)))
        deadline = time.monotonic() + 3600
        while time.monotonic() < deadline:
            said = self.all("cat /srv/said 2>/dev/null || true", self.hosts[1:])
            if all(said):
                break
            time.sleep(0.5)
        self.all("touch /srv/stop")
        return max(float(line) for line in said) - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--swarm", type=Path)
    parser.add_argument("--star", action="store_true")
    given = parser.parse_args()
    mounts = {str(HERE): THERE} | ({str(given.swarm.absolute()): "/opt/swarm"} if given.swarm else {})
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab("fanout", "10.231.99.0/24", Path(folder) / "lab", shared=True)
        try:
            lab.up(given.hosts + 1, mounts=mounts)
            bench = Bench(lab, given.mbit, given.megabytes)
            print(f"{given.megabytes} MB to {given.hosts} hosts at {given.mbit} Mbit/s each way")
            one = bench.measure("one copy", lambda: bench.chain(bench.hosts[:2]), None)
            bench.measure("chain", lambda: bench.chain(bench.hosts), one)
            if given.swarm:
                bench.measure("swarm", bench.swarm, one)
            if given.star:
                bench.measure("star", bench.star, one)
        finally:
            lab.down()


if __name__ == "__main__":
    main()
