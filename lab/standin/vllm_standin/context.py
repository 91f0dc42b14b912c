"""The model's folder, and how long a context it allows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .arguments import Args, to_int
from .settings import Version, refuse, version

ROPE_PARAMETERS: Version = (0, 12, 0)
YARN_NOT_MULTIPLIED: Version = (0, 30, 0)
KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def max_model_len(args: Args, model: str) -> int:
    """The context that is served; ends the process where more is asked for than the model has."""
    config = _config(model)
    overrides = args.mapping("hf_overrides")
    config = {**config, **config.get("text_config", {}), **overrides}
    key = next((k for k in KEYS if config.get(k)), KEYS[0])
    derived = int(config.get(key) or 2048)
    factor, original = _yarn(args, config)
    if factor and version() < YARN_NOT_MULTIPLIED:
        derived = int((original or derived) * factor)
    if not args.has("max_model_len"):
        return derived
    wanted = to_int(args.get("max_model_len"))
    if wanted == -1:
        return derived
    longest = config.get("model_max_length")
    if wanted > derived and (longest is None or wanted > longest) and not _long_allowed():
        refuse(
            "pydantic_core._pydantic_core.ValidationError",
            "1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({wanted}) is greater than the derived max_model_len "
            f"({key}={derived} or model_max_length={longest} in model's config.json). To allow overriding this "
            "maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        )
    return wanted


def _config(model: str) -> dict[str, Any]:
    """config.json of the model's folder; a name that is no folder would be looked for on a hub."""
    folder = Path(model)
    if not folder.is_dir():
        refuse(
            "OSError",
            f"We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
            f"cached files. (stand-in: no folder {model} in {Path.cwd()})",
        )
    file = folder / "config.json"
    if not file.is_file():
        refuse("ValueError", f"Invalid repository ID or local directory specified: '{model}'.")
    try:
        found = json.loads(file.read_text())
    except ValueError:
        refuse("OSError", f"It looks like the config file at '{file}' is not a valid JSON file.")
    return dict(found)


def _yarn(args: Args, config: dict[str, Any]) -> tuple[float, int | None]:
    """Factor (0 without yarn) and window, under the key that this version reads; others are ignored, as they are."""
    if version() >= ROPE_PARAMETERS:
        rope = config.get("rope_parameters") or {}
    else:
        rope = args.mapping("rope_scaling") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    return (float(rope.get("factor", 1)), rope.get("original_max_position_embeddings")) if kind == "yarn" else (0, None)


def _long_allowed() -> bool:
    return os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true")
