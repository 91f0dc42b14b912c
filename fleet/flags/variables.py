"""The environment variables that a version of vLLM reads, from its source.

Most stand in one dictionary of vllm/envs.py, from which vLLM itself tells an "unknown vLLM environment variable"; a few
are read where they are needed, and vLLM complains of those although it obeys them.
"""

from __future__ import annotations

import ast
import re

from fleet.flags.source import Source

MODULE = "vllm.envs"
DICTIONARY = "environment_variables"
PREFIX = "VLLM_"
_ELSEWHERE = re.compile(
    r"""(?:environ(?:\.get|\.setdefault|\.pop)?|getenv)\s*[(\[]\s*["'](VLLM_[A-Z0-9_]+)["']"""
    r"""|["'](VLLM_[A-Z0-9_]+)["']\s+(?:not\s+)?in\s+os\.environ"""
)


def variables(source: Source) -> frozenset[str]:
    """Names VLLM_... that the package reads; none where the dictionary is not found, since most would be missing."""
    found = source.find(MODULE, DICTIONARY)
    if found is None or not isinstance(found.node, ast.Dict):
        return frozenset()
    names = {key.value for key in found.node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    for module in source.modules("vllm"):
        text = (source.module(module) or ("", ""))[0]
        names |= {one or other for one, other in _ELSEWHERE.findall(text)}
    return frozenset(name for name in names if name.startswith(PREFIX))
