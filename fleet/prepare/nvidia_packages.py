"""The packages of a GPU driver as shell text: the version picked, pinned, installed as one, and held.

Driver and fabric manager must be of one version exactly: "fabric manager NVIDIA GPU driver interface version ... don't
match with driver version" (gpu-operator issue 544). An upgrade of one alone is the usual cause, so all are held, and on
apt pinned too, which also makes apt take dependencies of that version where there are newer ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fleet.prepare import packages
from fleet.prepare.common import DEBIAN

PINS = "/etc/apt/preferences.d/vllm-fleet-gpu.pref"
_PINNED = "nvidia-* libnvidia-* xserver-xorg-video-nvidia* cuda-drivers*"
# What is said where no source has them.
NOWHERE = "no source has "

_APT_VERSIONS = """\
versions() { apt-cache madison "$1" 2>/dev/null | sed -n 's/^[^|]*| *\\([^ |]*\\) *|.*/\\1/p'; }
named() { echo "$1=$2"; }
update() { apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
-o Acquire::https::Timeout=20 update </dev/null >/dev/null 2>&1; true; }"""
_DNF_VERSIONS = """\
d=dnf; command -v dnf >/dev/null || d=yum
versions() { timeout -k 5 300 $d -q repoquery --showduplicates --qf '%{version}-%{release}\\n' "$1" 2>/dev/null \
</dev/null | sed 's/\\\\n$//' | grep . | sort -rVu; }
named() { echo "$1-$2"; }
update() { $d -q makecache </dev/null >/dev/null 2>&1; true; }"""


def pick(family: str, names: Sequence[str], patterns: Sequence[str]) -> str:
    """Shell text that sets ``chosen``: all names in the newest version that fits and that all have, or ends.

    A pattern is a version, or one with *; the first for which there is anything counts. ``picked`` is the version.
    """
    first, *others = [shlex.quote(name) for name in names]
    same = "\n".join(
        f'found=; for f in $(versions {name}); do [ "$(upstream $f)" = "$u" ] && {{ found=$f; break; }}; done\n'
        f'[ -n "$found" ] || continue\nchosen="$chosen $(named {name} $found)"'
        for name in others
    )
    tries = " || ".join(f"pick {shlex.quote(pattern)}" for pattern in patterns)
    missing = f"no source has {', '.join(names)} in one version {patterns[-1]}"
    return f"""export LC_ALL=C
{_APT_VERSIONS if family == DEBIAN else _DNF_VERSIONS}
upstream() {{ v=${{1#*:}}; echo "${{v%%-*}}"; }}
pick() {{
for full in $(versions {first}); do
u=$(upstream $full)
case $u in ($1) ;; (*) continue;; esac
chosen=$(named {first} $full)
{same}
picked=$u; return 0
done
return 1
}}
{tries} || {{ update; {tries}; }} || {{ echo {shlex.quote(missing)}; exit 1; }}
echo "picked: $chosen\""""


def install(family: str, names: Sequence[str], patterns: Sequence[str], held: Sequence[str]) -> str:
    """Shell text that brings the driver's packages in one transaction; ``held`` are those that hold it up now."""
    word = "CHOSEN=1" if family == DEBIAN else "CHOSEN"
    put = packages.install(family, [word]).replace(word, "$chosen")
    free = packages.unhold(family, held) if held else "true"
    return "\n".join(
        [pick(family, names, patterns), _pin() if family == DEBIAN else "true", f"{free} || exit 1", f"{put}; rc=$?",
         hold(family, names), "[ $? -eq 0 ] || [ $rc -ne 0 ] || rc=1", "[ $rc -eq 0 ] || exit $rc"]
    )  # fmt: skip


def _pin() -> str:
    return (
        f"mkdir -p {PINS.rpartition('/')[0]} && printf 'Package: %s\\nPin: version %s*\\nPin-Priority: 999\\n' "
        f"'{_PINNED}' \"$picked\" >{PINS}.new && mv -f {PINS}.new {PINS} || exit 1"
    )


def hold(family: str, names: Sequence[str]) -> str:
    """Shell text that holds the named packages, and on apt all of the driver that came with them.

    dnf's packages of one driver ask for each other in just their version: where the named ones stay, all do.
    """
    if family != DEBIAN:
        return packages.hold(family, names)
    first = shlex.quote(names[0])
    word = "NAMES"
    return f"""v=$(dpkg-query -W -f '${{Version}}' {first} 2>/dev/null | sed -e 's/^[0-9]*://' -e 's/-.*//')
all=$([ -z "$v" ] || dpkg-query -W -f '${{Package}} ${{Version}} ${{db:Status-Abbrev}}\\n' {_globs()} 2>/dev/null | \
sed -n 's/^\\([^ ]*\\) \\([0-9]*:\\)*\\([^- ]*\\)[^ ]* .i.*/\\1 \\3/p' | while read -r n u; do \
[ "$u" = "$v" ] && echo "$n"; done)
[ -z "$all" ] || {packages.hold(family, [word]).replace(f" {word} ", " $all ")}"""


def _globs() -> str:
    return " ".join(f"'{name}'" for name in _PINNED.split())


def install_alone(family: str, names: Sequence[str], pattern: str) -> str:
    """Shell text that installs packages that must be of one version, and holds nothing."""
    word = "CHOSEN=1" if family == DEBIAN else "CHOSEN"
    return f"{pick(family, names, [pattern])}\n{packages.install(family, [word]).replace(word, '$chosen')}"
