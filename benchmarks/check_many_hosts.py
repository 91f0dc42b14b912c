"""`fleet check` on an inventory of N hosts, against pyinfra's own loading of it: the ratio is what checking costs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYINFRA = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        inventory = write(Path(folder), count)
        loading = best([*PYINFRA, "--json", inventory, "debug-inventory"])
        checking = best([sys.executable, "-m", "fleet.cli.main", "check", inventory])
        rendering = best([sys.executable, "-m", "fleet.cli.main", "render", "--json", inventory])
    print(f"hosts {count}")
    print(f"pyinfra loads it   {loading:6.2f} s")
    print(f"fleet check        {checking:6.2f} s   {checking / loading:.2f} x")
    print(f"fleet render       {rendering:6.2f} s   {rendering / loading:.2f} x")


def write(folder: Path, count: int) -> str:
    """An inventory of replicas."""
    hosts = [f"10.{40 + i // 62500}.{i // 250 % 250}.{i % 250 + 1}" for i in range(count)]
    (folder / "many.py").write_text(f"serve = {hosts!r}\n")
    (folder / "group_data").mkdir()
    (folder / "group_data" / "many.py").write_text('recipe = "qwen3-235b-a22b/h100"\n')
    return str(folder / "many.py")


def best(command: list[str], tries: int = 3) -> float:
    """Seconds of the quickest of some runs."""
    times = []
    for _ in range(tries):
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    main()
