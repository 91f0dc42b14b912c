"""The distribution's packages as shell text: apt on Debian and Ubuntu, dnf on openEuler and the RHEL family.

Each text is one command list in a subshell: it can stand alone or before ``&&``, sets nothing outside, and ends with 0
only where all is as asked. It never asks a person, and waits up to 300 s for another package manager.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from fleet.findings import Finding, error
from fleet.prepare.common import DEBIAN, KEPT, Outcome, plain

APT_SOURCE = "/etc/apt/sources.list.d/vllm-fleet.list"
DNF_SOURCE = "/etc/yum.repos.d/vllm-fleet.repo"
DNF_REPOSITORY = "vllm-fleet"
DNF_CONFIG = "/etc/dnf/dnf.conf"
# Touched by each update of the lists. The files below /var/lib/apt/lists carry the server's times, not ours.
_UPDATED = f"{KEPT}/apt-updated"
_LOCK_TRIES = 30  # 10 s apart

_APT = (
    "export LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1 "
    "APT_LISTCHANGES_FRONTEND=none UCF_FORCE_CONFFOLD=1\n"
    "apt() { apt-get -y -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confdef "
    # Ubuntu brings updates to some hosts later, the drivers of GPUs among them, and then keeps their dependencies back.
    "-o Dpkg::Options::=--force-confold -o APT::Get::Always-Include-Phased-Updates=true "
    "-o Acquire::Retries=1 -o Acquire::http::Timeout=20 "
    '-o Acquire::https::Timeout=20 "$@" </dev/null; }\n'
)


def install(family: str, names: Sequence[str]) -> str:
    """Installs these; a name may carry a version, as the family writes it: ``name=1.2`` (apt), ``name-1.2`` (dnf).

    Where a version is given it may be older than what is there. Held packages must be let go of before.
    """
    words = " ".join(shlex.quote(name) for name in names)
    if family == DEBIAN:
        return _apt_install(words, any("=" in n for n in names))
    # Who excludes kernels, as we do to hold one, means those that a host starts with.
    return _dnf_install(words, all(name.startswith(("kernel-devel", "kernel-headers")) for name in names))


def _apt_install(words: str, exact: bool) -> str:
    """First from the source that was brought along, alone: a rack's other sources may never answer."""
    flags = "--no-install-recommends" + (" --allow-downgrades" if exact else "")
    only = f"-o Dir::Etc::sourcelist={APT_SOURCE} -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
    return f"""({_APT}\
said=$(mktemp) && trap 'rm -f "$said"' EXIT
update() {{
  i=0
  while ! apt "$@" update >"$said" 2>&1 && grep -q 'Could not get lock' "$said" && [ $i -lt {_LOCK_TRIES} ]; do
    i=$((i + 1)); sleep 10
  done
  grep -E '^[EW]:' "$said"
  ! grep -q '^E:' "$said"
}}
put() {{
  apt "$@" install {flags} {words} >"$said" 2>&1; rc=$?
  if [ $rc -ne 0 ] && grep -q -e 'dpkg was interrupted' -e 'fix-broken install' "$said"; then
    dpkg --configure -a --force-confdef --force-confold </dev/null; apt "$@" -f install
    apt "$@" install {flags} {words} >"$said" 2>&1; rc=$?
  fi
  cat "$said"; return $rc
}}
if grep -qs '^deb .*file:' {APT_SOURCE}; then
  update {only} && put {only} && exit 0
  echo 'the source that was brought along does not have all of it: all sources are asked'
fi
if [ -n "$(find {_UPDATED} -mmin -60 2>/dev/null)" ] &&
  [ -z "$(find /etc/apt/sources.list /etc/apt/sources.list.d -newer {_UPDATED} 2>/dev/null)" ]; then
  put && exit 0
fi
mkdir -p {KEPT}
update && touch {_UPDATED} || echo 'some source of packages cannot be read; the others are used'
put)"""


def _dnf_install(words: str, exclude_none: bool) -> str:
    """dnf ends with 200 where another one works, if it may not wait without end; it takes any version that is named."""
    flags = "-y --setopt=install_weak_deps=False --setopt=exit_on_lock=True"
    if exclude_none:  # dnf 5 knows --disableexcludes no more
        flags += " --setopt=disable_excludes=main"
    brought = f"--disablerepo='*' --enablerepo={DNF_REPOSITORY}"
    return f"""(export LC_ALL=C
d=dnf; command -v dnf >/dev/null || d=yum
put() {{
  i=0
  while :; do
    $d {flags} "$@" install {words} </dev/null; rc=$?
    [ $rc -eq 200 ] && [ $i -lt {_LOCK_TRIES} ] || return $rc
    i=$((i + 1)); sleep 10
  done
}}
if grep -qs '^baseurl=file:' {DNF_SOURCE}; then
  put {brought} && exit 0
  echo 'the source that was brought along does not have all of it: all sources are asked'
fi
put --setopt='*.skip_if_unavailable=True')"""


def hold(family: str, names: Sequence[str]) -> str:
    """Keeps the installed versions, whatever an upgrade of the system would do."""
    bare = _bare(names)
    if family == DEBIAN:
        return _mark("hold", bare)
    return f"""(export LC_ALL=C
if dnf -q versionlock list >/dev/null 2>&1 </dev/null; then
  dnf -q versionlock delete {bare} >/dev/null 2>&1 </dev/null
  dnf -q versionlock add {bare} </dev/null
else
  {_exclude("hold", bare)}
fi)"""


def unhold(family: str, names: Sequence[str]) -> str:
    """Takes ``hold`` back; nothing where nothing is held."""
    bare = _bare(names)
    if family == DEBIAN:
        return _mark("unhold", bare)
    return f"""(export LC_ALL=C
if dnf -q versionlock list >/dev/null 2>&1 </dev/null; then
  dnf -q versionlock delete {bare} >/dev/null 2>&1 </dev/null
fi
{_exclude("unhold", bare)})"""


def _bare(names: Sequence[str]) -> str:
    return " ".join(shlex.quote(name.partition("=")[0]) for name in names)


def _mark(what: str, bare: str) -> str:
    """apt-mark writes to dpkg's database, and does not wait for its lock."""
    return f"""(export LC_ALL=C
i=0
while ! said=$(apt-mark {what} {bare} 2>&1 </dev/null); do
  case $said in *lock*) ;; *) echo "$said"; exit 1;; esac
  [ $i -lt {_LOCK_TRIES} ] || {{ echo "$said"; exit 1; }}
  i=$((i + 1)); sleep 10
done
echo "$said")"""


def _exclude(what: str, bare: str, config: str = DNF_CONFIG) -> str:
    """Puts names into the exclude line of dnf.conf, or takes them out; all else of the file stays as it is.

    dnf 4 takes one exclude line and knows no folder of settings. A line may go on in lines that begin with a space.
    """
    program = r"""
BEGIN { n = split(names, name, " ") }
function without(text,   i, k, word, kept) {
  k = split(text, word, /[ \t,]+/); kept = ""
  for (i = 1; i <= k; i++) if (word[i] != "" && !(word[i] in ours)) kept = kept (kept == "" ? "" : " ") word[i]
  return kept
}
function line() { done = 1; return "exclude=" (what == "hold" ? names : "") }
BEGIN { for (i = 1; i <= n; i++) ours[name[i]] = 1 }
/^\[/ { if (main && !done && what == "hold") print line(); main = ($0 ~ /^\[main\]/); inside = 0 }
main && /^(exclude|excludepkgs)[ \t]*=/ {
  rest = $0; sub(/^[^=]*=/, "", rest); rest = without(rest); inside = 1
  if (!done) { rest = line() (what == "hold" && rest != "" ? " " : "") rest; print rest; next }
  print "exclude=" rest; next
}
inside && /^[ \t]+[^ \t]/ { rest = without($0); if (rest != "") print "  " rest; next }
{ inside = 0; print }
END { if (main && !done && what == "hold") print line() }
"""
    return (
        f"touch {config} && {{ grep -q '^\\[main\\]' {config} || echo '[main]' >>{config}; }} && "
        f"awk -v what={what} -v names={shlex.quote(bare.replace(chr(39), ''))} {shlex.quote(program.strip())} {config} "
        f">{config}.new && {{ cmp -s {config}.new {config} && rm {config}.new || mv -f {config}.new {config}; }}"
    )


def source(family: str, folder: str | None, given: str | None) -> tuple[str, str]:
    """The file that names our sources, as path and content; empty where there are none.

    ``folder`` is a repository on the host, which came with the bundle: its files' sums were compared when they were
    brought, so it is trusted as it is. ``given`` is the inventory's package_source.
    """
    if family == DEBIAN:
        lines = [f"deb [trusted=yes] file:{folder} ./"] * bool(folder)
        return APT_SOURCE, "".join(f"{line}\n" for line in [*lines, *([given] if given else [])])
    blocks = [_repository(DNF_REPOSITORY, f"file:{folder}", "gpgcheck=0\n")] * bool(folder)
    if given:
        url = given if "://" in given or given.startswith("file:") else f"file:{given}"
        # The host's own gpgcheck holds for what comes over a network.
        name = f"{DNF_REPOSITORY}-given" if folder else DNF_REPOSITORY
        blocks.append(_repository(name, url, "gpgcheck=0\n" if url.startswith("file:") else ""))
    return DNF_SOURCE, "".join(blocks)


def _repository(name: str, url: str, more: str) -> str:
    return f"[{name}]\nname={name}\nbaseurl={url}\nenabled=1\n{more}"


def reader(host: str, what: str) -> Callable[[bool, Sequence[str]], Outcome]:
    """Reads what ``install`` printed."""

    def read(well: bool, lines: Sequence[str]) -> Outcome:
        return Outcome() if well else Outcome((fault(host, what, lines),))

    return read


# What apt and dnf say, and what to do about it: the first that is found counts.
_FAULTS = (
    (
        r"Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate|"
        r"Version '(\S+)' for '\S+' was not found|No match for argument: (\S+)|No package (\S+) available",
        "no source of packages has {}",
        "name a source that has it by package_source, or put it into the bundle's apt or dnf folder",
    ),
    (
        r"Could not get lock|dpkg frontend lock|Failed to obtain.*lock|lock is already held|Waiting for process",
        "another package manager has worked for 5 minutes",
        "wait until it has ended (ps ax shows it), and run again",
    ),
    (r"No space left|don't have enough free space|needed on the .* filesystem", "the disk is full", "free some space"),
    (
        r"unmet dependencies|held broken packages|nothing provides (\S+)|conflicting requests|pkgProblemResolver",
        "what is installed stands against it",
        "install it by hand once, and see what the package manager proposes",
    ),
    (
        r"Failed to fetch|Temporary failure resolving|Could not resolve|Cannot download|Curl error|"
        r"Failed to download metadata",
        "the sources of packages do not answer",
        "name one that does by package_source, or give a bundle with an apt or dnf folder",
    ),
)


def fault(host: str, what: str, lines: Sequence[str]) -> Finding:
    """Why an installation failed, by what the package manager said."""
    text = plain(lines)
    own = [line.strip() for line in text if re.match(r"\s*(E: |Error: |error: |dpkg: error)", line)]
    said = (own or [line.strip() for line in text if line.strip()] or ["it ended without a word"])[-1]
    for pattern, told, mend in _FAULTS:
        if match := re.search(pattern, "\n".join(text)):
            name = next((g for g in match.groups() if g), "it")
            return error("PREPARE-PACKAGE", host, f"{what}: {told.format(name)}", mend, said[:300])
    return error("PREPARE-PACKAGE", host, f"{what}: {said[:300]}", "mend that and run again")
