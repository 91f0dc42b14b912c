"""The core of vllm-fleet: pure functions that decide what runs where.

Nothing here opens a socket or imports pyinfra; only ``fleet.cli`` touches the edge.
"""

from pathlib import Path

__version__ = "0.1.0"

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "files"
