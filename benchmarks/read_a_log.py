"""`fleet explain` on a log of N megabytes, against grep for one of its words: the ratio is what the catalogue costs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOURNALS = ROOT / "tests" / "unit" / "data" / "journals"


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    healthy = (JOURNALS / "real-healthy-cpu-0.32.log").read_bytes()
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        for _ in range(megabytes * 1_000_000 // len(healthy) + 1):
            log.write(healthy)
        log.write((JOURNALS / "real-truncated.log").read_bytes())
        log.flush()
        nothing = seconds([sys.executable, "-m", "fleet.cli.main", "explain", "LOG-READ"])
        reading = seconds([sys.executable, "-m", "fleet.cli.main", "explain", log.name]) - nothing
        searching = seconds(["grep", "-c", "SafetensorError", log.name])
    print(f"megabytes      {megabytes}")
    print(f"grep           {searching:6.2f} s")
    print(f"fleet explain  {reading:6.2f} s   {reading / searching:.1f} x   ({nothing:.2f} s to start)")


def seconds(command: list[str], tries: int = 3) -> float:
    """Of the quickest of some runs."""
    times = []
    for _ in range(tries):
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    main()
