"""The tiny model of the lab, made by the engine's own Python from a seed; nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from lab.cache import build_once, cache_dir
from lab.engine import DEFAULT_VERSION, ensure_engine
from lab.progress import Say, silent, step
from lab.shell import run

NAME = "lab/tiny-qwen3-moe"
HOST_MODELS = Path("/opt/models")
SCRIPT = Path(__file__).parent / "make_model.py"


def models_dir() -> Path:
    """The folder that hosts see at /opt/models."""
    return cache_dir() / "models"


def ensure_model(version: str = DEFAULT_VERSION, say: Say = silent) -> Path:
    """The model's directory, made on the first call (about 20 s, 0.7 MB) with the engine of the given version.

    Hosts see it at /opt/models/lab/tiny-qwen3-moe. The same script gives the same bytes each time. Raises LabError.
    """
    return build_once(models_dir() / NAME, lambda temporary: build(temporary, ensure_engine(version, say=say), say))


def build(target: Path, engine: Path, say: Say) -> None:
    """Run the script that writes the model, offline."""
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
    }
    with step(say, "making the tiny model", usual_s=20):
        run([engine / "bin/python", SCRIPT, target], doing="making the tiny model", timeout=300, env=env)
