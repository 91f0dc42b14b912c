"""The weights' files, without reading them: whether all are there, and whether each is as long as it says.

A safetensors file begins with the length of its header (8 bytes, little-endian), then the header, which ends with
the data's last offset (safetensors, format). A file of Git LFS's pointers begins with "version https://git-lfs".
Older writers put tensors in any order, so that the last offset of a header is at least a lower bound.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.findings import Finding, error, warning
from fleet.inventory import Node
from fleet.machine import scope
from fleet.machine.bounded import bounded
from fleet.topology import Plan

MOST_SHARDS = 400
SECONDS = 60  # 118 files take 0.4 s from a disk
_POINTER = int.from_bytes(b"version ", "little")
_MOST_HEADER = 100_000_000  # safetensors refuses larger ones


@dataclass(frozen=True)
class Shard:
    """``size`` and ``header`` in bytes; ``ends`` is the data's last offset, None where the file has none there."""

    name: str
    size: int
    header: int
    ends: int | None = None


@dataclass(frozen=True)
class State:
    """``wanted`` are the files that an index names; ``free`` is in bytes, where the weights are or would be."""

    shards: tuple[Shard, ...] = ()
    wanted: frozenset[str] = frozenset()
    there: bool = True
    late: bool = False  # whether the files did not answer in time
    free: int | None = None


def folder(plan: Plan, node: Node) -> str:
    """Where the model's files are on the host."""
    return f"{node.settings.weights_dir}/{plan.recipe.model.name}"


def sections(plan: Plan, node: Node) -> list[str]:
    """A few bytes of each shard, and the names in the index; nothing where there is no such folder."""
    if not scope.engines(plan, node):
        return []
    at = shlex.quote(folder(plan, node))
    some = f"(cd {at} 2>/dev/null && set -- $(ls | grep '\\.safetensors$' | head -n {MOST_SHARDS}) && test $# -gt 0 && "
    parts = [
        f"echo '@@ shards'; {some} stat -L -c '%s %n' \"$@\")",
        # All first eight bytes at once, then one call a shard for the end of its header; of files, whose mode begins
        # with 8, alone.
        f"echo '@@ headers'; {some} set -- $(stat -L -c '%s %f %n' \"$@\" | "
        "awk '$1 >= 8 && $2 ~ /^8/ {print $3}') && "
        'test $# -gt 0 && head -q -c 8 "$@" | od -An -v -tu8 -w8 | while read -r h; do printf "%s %s " "$1" "$h"; '
        f"test ${{#h}} -lt {len(str(_MOST_HEADER))} && "
        'dd if="$1" bs=1 skip=$((h > 192 ? h - 192 : 8)) count=200 2>/dev/null; '
        "shift; echo; done | tr -cd '\\40-\\176\\n')",
        f"echo '@@ index'; (cd {at} 2>/dev/null && "
        # Beside it another may tell of files in another form, which nobody needs.
        "i=model.safetensors.index.json && test -f $i || i=$(ls *.safetensors.index.json) && cat $i | "
        "head -c 60000000 | awk -v RS='\"' '/^[^:]+\\.safetensors$/ {s[$0]} END {for (n in s) print n}')",
        f"echo '@@ weightsdisk'; d={at}; test -d \"$d\" && echo there; "
        'while ! test -d "$d"; do d=$(dirname "$d"); done; df -Pk "$d" 2>/dev/null | tail -n 1',
    ]
    late = "case $? in (124|137) printf '\\n@@ weightslate\\n';; esac"
    return [f"{bounded(SECONDS, '; '.join(parts))} || {late}"]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    headers = {}
    for line in sections.get("headers", []):
        name, length, *end = line.split(" ", 2)
        offsets = re.findall(r'"data_offsets":\s*\[\d+,\s*(\d+)\]', "".join(end))
        headers[name] = (int(length) if length.isdigit() else 0, int(offsets[-1]) if offsets else None)
    sizes = [line.partition(" ") for line in sections.get("shards", [])]
    shards = [Shard(name, int(size), *headers.get(name, (0, None))) for size, _, name in sizes if size.isdigit()]
    disk = sections.get("weightsdisk", [])
    last = disk[-1].split() if disk else []
    free = int(last[3]) * 1024 if len(last) > 5 and last[3].isdigit() else None
    return State(tuple(shards), frozenset(sections.get("index", [])), "there" in disk, "weightslate" in sections, free)


def judge(plan: Plan, node: Node, state: State) -> list[Finding]:
    """Shards that are missing or cut short; room for the weights where there are none."""
    at, name = folder(plan, node), node.name
    if state.late:
        what = f"the files in {at} were not looked at in {SECONDS} s"
        mend = "look at the mount below it (cat /proc/mounts, dmesg)"
        return [warning("HOST-MOUNT", name, what, mend, "whether they are whole is not checked")]
    found = []
    broken = [why for shard in state.shards if (why := _broken(shard))]
    if broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        what = f"{at} has files that are cut short: {broken[0]}{more}"
        why = "loading ends with MetadataIncompleteBuffer or HeaderTooLarge"
        mend = "fetch them again (git lfs pull, or the download of these files)"
        found.append(error("WEIGHTS-TRUNCATED", name, what, mend, why, "vllm issue 15445; vllm-ascend issue 955"))
    missing = _missing(state)
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        what, mend = f"{at} lacks {missing[0]}{more}", "fetch what is missing"
        found.append(error("WEIGHTS-SHARDS", name, what, mend, "loading ends in the middle, or leaves layers empty"))
    needed = plan.recipe.model.weights_gb
    if not state.there and state.free is not None and needed and state.free < needed * 1e9:
        what = f"{node.settings.weights_dir} has {state.free / 1e9:.0f} GB left, the weights need {needed:g} GB"
        found.append(warning("WEIGHTS-DISK", name, what, "free some space, or mount a larger disk there"))
    return found


def _broken(shard: Shard) -> str:
    """What is wrong with a shard, in a few words; empty for a whole one."""
    if shard.header == _POINTER:
        return f"{shard.name} is a pointer of Git LFS, not the file"
    if shard.size < 8 or shard.header > _MOST_HEADER or shard.size < 8 + shard.header:
        return f"{shard.name} ({shard.size} bytes) ends in its header"
    if shard.ends is not None and shard.size < 8 + shard.header + shard.ends:
        return f"{shard.name} has {shard.size} of {8 + shard.header + shard.ends} bytes"
    return ""


def _missing(state: State) -> list[str]:
    """Files that the index, or the numbers in the names of the others, tell of."""
    there = {shard.name for shard in state.shards}
    if not there or len(there) >= MOST_SHARDS:
        return sorted(state.wanted) if not there and state.there else []
    wanted = set(state.wanted)
    for shard in state.shards:
        if match := re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})\.safetensors", shard.name):
            wanted |= {f"{match[1]}{n:05}-of-{match[3]}.safetensors" for n in range(1, min(int(match[3]), 9999) + 1)}
    return sorted(wanted - there)
