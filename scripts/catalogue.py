"""Writes docs/catalogue.md from files/catalogue.

python scripts/catalogue.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fleet.cli.catalogue import HEADS, cells  # noqa: E402
from fleet.stacks import Stack, all_rows  # noqa: E402

INTRODUCTION = """\
# Versions that go together

One file under files/catalogue is one row: what is installed on a host from the driver up, and the engine that goes with
it. A recipe names its row, an inventory may name another:

    catalogue = "a3-cann-8.5.1"            # in group_data; or the path of a .yaml file of your own

`fleet catalogue` prints what of it fits a terminal, `fleet catalogue show a3-cann-8.5.0` all of a row, and
`fleet catalogue check [NAME or FILE]` holds rows against the vendors' tables in files/versions. `deploy/prepare.py`
installs what the plan's row says ([prepare.md](prepare.md)).

*the package's*: no source tells the number, so the version of the file that you bring counts. *not pinned*: the
vendors' checksums are not known here; `fleet bundle --collect` writes those of the files that you downloaded to
SHA256SUMS, and every host is held to them. In a row of your own they go below the package:

    driver:
      version: 25.5.1
      packages:
      - pattern: "*A3*npu-driver_25.5.1_linux*{arch}.run"
        sha256:
          <file name>: <64 digits>

Made from files/catalogue by `make docs`."""


def main() -> None:
    (ROOT / "docs" / "catalogue.md").write_text(page(all_rows()))


def page(rows: Sequence[Stack]) -> str:
    """The whole page."""
    lines = [
        *INTRODUCTION.splitlines(),
        "",
        _row(HEADS),
        _row(["---"] * len(HEADS)),
        *(_row(cells(row)) for row in rows),
    ]
    for row in rows:
        lines += ["", f"## {row.name}", "", f"{row.title}.", ""]
        lines += [f"- `{package.pattern}`" for package in row.packages]
        if row.gpu_driver:
            pairs = (("apt", row.gpu_driver.apt), ("dnf", row.gpu_driver.dnf))
            lines += [f"- {kind}: {', '.join(f'`{n}`' for n in names)}" for kind, names in pairs if names]
        lines += [f"- {note}" for note in row.notes] + [f"- Source: {row.source}"]
    return "\n".join(lines) + "\n"


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"


if __name__ == "__main__":
    main()
