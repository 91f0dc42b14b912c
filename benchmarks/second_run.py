"""A run of deploy/serve.py that changes nothing, against as many bare SSH round trips: what the tool adds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from tasks import inventory

ROOT = Path(__file__).parents[1]
PYINFRA = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "inventories/lab.py"
    command = [*PYINFRA, "-y", "-v", path, "deploy/serve.py"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=1800)  # what is not so becomes so
    seconds, output = timed(command)
    counts = {host: int(n) for host, n in re.findall(r"remote commands on (\S+): (\d+)", output)}
    busiest = max(counts.values())
    bare = sum(timed([*PYINFRA, path, "exec", "--", "true"])[0] for _ in range(3)) / 3
    print(f"hosts {len(inventory.fleet_of(path).nodes)}, remote commands {counts}")
    print(f"one command on every host  {bare:6.2f} s")
    print(f"a run that changes nothing {seconds:6.2f} s   {seconds / bare:.2f} x, with {busiest} commands on a host")


def timed(command: list[str]) -> tuple[float, str]:
    """Seconds, and what was printed."""
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    return time.perf_counter() - begin, done.stdout


if __name__ == "__main__":
    main()
