"""The system below everything else: packages of the distribution, the clock, and the kernel's settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from pydantic import ValidationError

from fleet import FILES, yamlfile
from fleet.findings import Finding, FleetError, error, warning
from fleet.inventory import Node
from fleet.machine.host import TIME_SERVICES
from fleet.prepare import ascend_state, common, kernel_modules, packages, tuning
from fleet.prepare.common import BROUGHT, DEBIAN, Outcome, Source, Step, Work
from fleet.recipe import Strict
from fleet.topology import Plan

SOURCES_FILE = "/etc/chrony/sources.d/vllm-fleet.sources"
TIMESYNCD_FILE = "/etc/systemd/timesyncd.conf.d/vllm-fleet.conf"
_BEGINS, _ENDS = "# vllm-fleet begins", "# vllm-fleet ends"
# chrony's own configuration: Debian's and the RHEL family's place.
_CHRONY = "c=/etc/chrony/chrony.conf; test -e $c || c=/etc/chrony.conf"
# What tells a package manager what a repository holds: compared by content, because its size may stay the same.
_INDEX = ("Packages", "Packages.gz", "Packages.xz", "Release", "InRelease", "repomd.xml")


class Need(Strict):
    """A program or file that must be there, and the package that brings it."""

    program: str = ""
    paths: tuple[str, ...] = ()
    apt: str
    dnf: str
    whose: Literal["every", "ascend", "firewall"] = "every"
    optional: bool = False

    def name(self, family: str, kernel: str) -> str:
        return (self.apt if family == DEBIAN else self.dnf).replace("{kernel}", kernel)

    @property
    def mark(self) -> str:
        return self.program or self.paths[0]


class _Table(Strict):
    title: str
    source: str
    needs: tuple[Need, ...]


@cache
def table() -> tuple[Need, ...]:
    """What files/prepare/packages.yaml says."""
    document = yamlfile.read(FILES / "prepare" / "packages.yaml")
    try:
        return _Table.model_validate(document.data).needs
    except ValidationError as exc:
        raise FleetError(*yamlfile.explain(exc, document, _Table, "RULE-KEY")) from exc


@dataclass(frozen=True)
class State:
    """How the host is now."""

    there: frozenset[str] = frozenset()  # marks of needs that are met
    unfinished: bool = False  # dpkg was cut in the middle
    driver: str = ""  # of Ascend, where one is installed
    source: str = ""  # sha256 of our service's part of the file that names our sources
    taken: bool = False  # in another service's part is a repository of the usual name
    repository: Mapping[str, int] = field(default_factory=dict)  # files of apt/ and dnf/ that were brought, with sizes
    index: Mapping[str, str] = field(default_factory=dict)  # their sums, of those that say what the others are
    time: frozenset[str] = frozenset()  # services that set the clock
    time_servers: tuple[str, ...] = ()  # that we gave them
    synchronised: bool | None = None
    tuning: tuning.State = field(default_factory=tuning.State)


def sections(plan: Plan, node: Node) -> list[str]:
    """Asked of every host."""
    tests = []
    for need in table():
        paths = [path.replace("{kernel}", "$(uname -r)") for path in need.paths]
        test = " || ".join([*([f"command -v {need.program} >/dev/null"] if need.program else []),
                            *(f'test -e "{path}"' for path in paths)])  # fmt: skip
        tests.append(f"{{ {test}; }} && echo '{need.mark}'")
    index = " -o ".join(f"-name {name}" for name in _INDEX)
    service = plan.fleet.settings.service
    folders = f"{_folder('apt', service)} {_folder('dnf', service)}"
    own, others = _parts(service)
    return [
        f"echo '@@ needs'; ( PATH=$PATH:/usr/sbin:/sbin; {'; '.join(tests)} ); "
        "sed -n 's/^Version=/driver /p' /usr/local/Ascend/driver/version.info 2>/dev/null; "
        "command -v dpkg >/dev/null && timeout -k 2 20 dpkg --audit </dev/null 2>/dev/null | grep -q . "
        "&& echo unfinished",
        f"echo '@@ packagesource'; for f in {packages.APT_SOURCE} {packages.DNF_SOURCE}; do test -f $f || continue; "
        f'{own} $f | sha256sum | sed "s|-|$f|"; {others} $f | grep -qxF "[{packages.DNF_REPOSITORY}]" && '
        f"echo 'taken yes'; done; ( cd {BROUGHT} && find {folders} -type f -printf '%s %p\\n'; cd {BROUGHT} && "
        f"find {folders} -type f \\( {index} \\) -exec sha256sum {{}} + ) 2>/dev/null",
        f"echo '@@ time'; for s in {' '.join(TIME_SERVICES)}; do "
        'systemctl is-active -q $s 2>/dev/null && echo "active $s"; done; '
        f"{_CHRONY}; {{ cat {SOURCES_FILE}; sed -n '/^{_BEGINS}/,/^{_ENDS}/p' $c; }} 2>/dev/null | "
        "sed -n 's/^server \\([^ ]*\\).*/server \\1/p'; "
        f"sed -n 's/^NTP=//p' {TIMESYNCD_FILE} 2>/dev/null | tr ' ' '\\n' | sed 's/^/server /'; "
        "timeout -k 2 10 timedatectl show -p NTPSynchronized 2>/dev/null",
        *tuning.sections(plan, node),
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    needs, time = sections.get("needs", []), sections.get("time", [])
    pairs = [line.split(None, 1) for line in sections.get("packagesource", []) if " " in line]
    synchronised = next((line.partition("=")[2] for line in time if line.startswith("NTPSynchronized=")), "")
    return State(
        there=frozenset(needs),
        unfinished="unfinished" in needs,
        driver=next((line.partition(" ")[2] for line in needs if line.startswith("driver ")), ""),
        source=next((s for s, path in pairs if path.startswith("/")), ""),
        taken=["taken", "yes"] in pairs,
        repository={path: int(size) for size, path in pairs if size.isdigit() and len(size) < 64},
        index={path: s for s, path in pairs if len(s) == 64 and not path.startswith("/")},
        time=frozenset(line[7:] for line in time if line.startswith("active ")),
        time_servers=tuple(line[7:] for line in time if line.startswith("server ")),
        synchronised={"yes": True, "no": False}.get(synchronised),
        tuning=tuning.parse(sections),
    )


def refuse(work: Work) -> list[Finding]:
    """Nothing is known of other distributions: neither packages nor places of files. And of a folder that is silent
    nobody knows what it holds."""
    if work.host.silent:
        what = f"{', '.join(work.host.silent)}, its bundle_on_host, gave no answer in {common.PLACE_SECONDS} s"
        mend = "see that what is mounted there is up, or take bundle_on_host out"
        return [error("PREPARE-PLACE", work.name, what, mend, "a share whose server is gone never answers")]
    tools = {DEBIAN: {"apt-get"}}.get(work.host.family, {"dnf", "yum"})
    if work.host.family and work.host.tools & tools:
        return []
    what = f"this is {work.host.system or 'an unknown system'} {work.host.system_version}".rstrip()
    if work.host.family:
        what += f", without {' or '.join(sorted(tools))}"
    why = "prepare knows Debian, Ubuntu and their like by apt-get, openEuler and the RHEL family by dnf or yum"
    return [error("PREPARE-SYSTEM", work.name, what, "install one of these, or prepare this host by hand", why)]


def steps(work: Work) -> list[Step]:
    """Packages, the clock, settings."""
    state: State = work.states["base"]
    return [
        *_packages(work, state),
        *_time(work, state),
        *tuning.steps(work, state.tuning),
    ]


def sources(work: Work) -> list[Step]:
    """What must be so before any part installs a package: nothing half installed, and our own sources known."""
    state: State = work.states["base"]
    return [*_unfinished(work, state), *_source(work, state)]


def _unfinished(work: Work, state: State) -> list[Step]:
    if not state.unfinished or work.host.family != DEBIAN:
        return []
    script = (
        "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l LC_ALL=C; "
        "dpkg --configure -a --force-confdef --force-confold </dev/null && "
        "apt-get -y -q -o DPkg::Lock::Timeout=300 -f install </dev/null"
    )
    return [Step("packages whose installation was cut off, configured", script, 1800,
                 read=packages.reader(work.name, "configuring what was cut off"))]  # fmt: skip


def _folder(kind: str, service: str) -> str:
    """Where below BROUGHT a repository is. Services of one host have one each: two bundles have other packages."""
    return f"{kind}-{service}" if service else kind


def _parts(service: str) -> tuple[str, str]:
    """Commands that print the service's part of a file of sources, and all else of it.

    Package managers are told of one file, so services of a host share it; one without a name has what is in no marks.
    """
    which = service or "[a-z0-9]*"
    marked = f"/^# vllm-fleet {which} begins$/,/^# vllm-fleet {which} ends$/"
    inside, outside = f"sed -n '{marked}p'", f"sed '{marked}d'"
    return (inside, outside) if service else (outside, inside)


def repository(work: Work) -> tuple[str | None, tuple[Source, ...]]:
    """Where on the host the bundle's repository is, and the files of it that must be brought there first."""
    kind = "apt" if work.host.family == DEBIAN else "dnf"
    own = work.node.settings.bundle_on_host
    if own and any(path.startswith(f"{own.rstrip('/')}/{kind}/") for path in work.host.files):
        return f"{own.rstrip('/')}/{kind}", ()
    state: State = work.states["base"]
    bundle, its = work.bundle, _folder(kind, work.plan.fleet.settings.service)
    at_hand = [(bundle.relative(f), f) for f in bundle.below(kind)] if bundle else []
    if not at_hand:
        # Brought by an earlier run; this one has no bundle.
        return (f"{BROUGHT}/{its}" if any(p.startswith(f"{its}/") for p in state.repository) else None), ()
    new = [
        Source(f"{BROUGHT}/{path}", file.name, file.path, file.size, file.sha256)
        for path, file in ((f"{its}{path.removeprefix(kind)}", file) for path, file in at_hand)
        if state.repository.get(path) != file.size
        or (path in state.index and file.sha256 not in (None, state.index[path]))
    ]
    # What the others are is brought last, so that a repository that was cut off lacks what it does not name.
    return f"{BROUGHT}/{its}", tuple(sorted(new, key=lambda s: (s.name in _INDEX, s.path)))


def _source(work: Work, state: State) -> list[Step]:
    folder, new = repository(work)
    path, text = packages.source(work.host.family, folder, work.node.settings.package_source)
    service = work.plan.fleet.settings.service
    if state.taken:
        text = re.sub(r"(?m)^(\[|name=)vllm-fleet", rf"\g<1>{packages.DNF_REPOSITORY}.{service or 'main'}", text)
    if text and service:
        text = f"# vllm-fleet {service} begins\n{text}# vllm-fleet {service} ends\n"
    same = state.source == (common.sum_of(text) if text else "")
    # Without a source of ours, what stands there is not touched: another inventory's run may have written it.
    if not text or (same and not new):
        return []
    what = " and ".join(filter(None, [folder, "package_source" if work.node.settings.package_source else ""]))
    brought = f", {len(new)} files of it brought" if new else ""
    # Files were proved as they were brought; a script that checks some hundred is longer than a command may be.
    return [Step(f"source of packages: {what}{brought}", _put(path, text, _parts(service)[1]), 600, sources=new)]


def _put(path: str, text: str, others: str) -> str:
    """Shell text that writes our part of a file that services of the host share; the others' stay."""
    return (
        f"mkdir -p {path.rpartition('/')[0]} && {{ {others} {path} 2>/dev/null; printf %s {shlex.quote(text)}; }} "
        f">{path}.new && chmod 644 {path}.new && {{ sync -d {path}.new 2>/dev/null; mv -f {path}.new {path}; }}"
    )


def _missing(work: Work, state: State) -> list[Need]:
    """What is not there. In a container the driver is the machine's, and so are the kernel's headers."""
    ascend = ascend_state.concerned(work.plan, work.node) and not work.host.in_container
    wanted = work.stack.driver if work.stack else None
    builds = ascend and wanted is not None and (not state.driver or not wanted.fits(state.driver))
    asked = {"every", *(["ascend"] if builds else []), *(["firewall"] if work.node.settings.firewall else [])}
    return [need for need in table() if need.whose in asked and need.mark not in state.there]


def _packages(work: Work, state: State) -> list[Step]:
    missing, family = _missing(work, state), work.host.family
    found = []
    names = list(dict.fromkeys(n.name(family, work.host.kernel) for n in missing if not n.optional))
    if names:
        what = f"package{'s' * (len(names) > 1)} {', '.join(names)}"
        found.append(Step(what, packages.install(family, names), 1800, read=packages.reader(work.name, what)))
    for name in dict.fromkeys(n.name(family, work.host.kernel) for n in missing if n.optional):
        read = kernel_modules.headers_reader(work.name, name)
        found.append(Step(f"package {name}", packages.install(family, [name]), 1800, read=read))
    return found


def _time(work: Work, state: State) -> list[Step]:
    """A container has the clock of the machine that it runs on."""
    servers = tuple(work.node.settings.time_servers)
    if work.host.in_container:
        return []
    install = not state.time
    if not install and (not servers or servers == state.time_servers or _other(state)):
        return []
    script, names = "", []
    if install:
        script += packages.install(work.host.family, ["chrony"]) + " || exit $?\n"
        names.append("time service chrony (there is none)")
    if servers and state.time == {"systemd-timesyncd"}:
        text = f"[Time]\nNTP={' '.join(servers)}\n"
        script += f"{common.write(TIMESYNCD_FILE, text)} && systemctl restart systemd-timesyncd\n"
    else:
        script += _chrony(servers)
    if servers:
        names.append(f"time servers {', '.join(servers)} (there are {', '.join(state.time_servers) or 'none of ours'})")
    return [Step("; ".join(names), script, 1800 if install else 120, read=_time_reader(work.name))]


def _time_reader(host: str) -> Callable[[bool, Sequence[str]], Outcome]:
    """A clock that nobody sets is told at the end of every run, and keeps no host from serving alone."""

    def read(well: bool, lines: Sequence[str]) -> Outcome:
        told = packages.fault(host, "the time service", lines)
        return Outcome(() if well else (warning("PREPARE-TIME", host, told.what, told.mend, told.why),))

    return read


def _chrony(servers: tuple[str, ...]) -> str:
    """The servers as a file of their own where chrony reads such, else between two marks in its configuration."""
    lines = "".join(f"server {server} iburst\n" for server in servers)
    block = shlex.quote(f"{_BEGINS}\n{lines}{_ENDS}\n")
    give = (
        f"{_CHRONY}\nif grep -qs '^sourcedir */etc/chrony/sources.d' $c; then {common.write(SOURCES_FILE, lines)}\n"
        f"else cp -p $c $c.new && {{ sed '/^{_BEGINS}/,/^{_ENDS}/d' $c; printf %s {block}; }} >$c.new && "
        "mv -f $c.new $c\nfi || exit 1\n"
    )
    # Debian calls it chrony, the RHEL family chronyd.
    return (give if servers else "") + (
        "for s in chronyd chrony; do systemctl cat $s.service >/dev/null 2>&1 && break; done\n"
        "systemctl enable $s 2>&1; systemctl restart $s || exit 1\n"
        "timeout -k 2 40 chronyc waitsync 10 0 0 3 >/dev/null 2>&1; true\n"
    )


def _other(state: State) -> str:
    """A time service that we do not know how to give servers to; the one that runs counts."""
    known = {"chronyd", "chrony", "systemd-timesyncd"}
    return "" if state.time & known else ", ".join(sorted(state.time))


def prove(work: Work) -> list[Finding]:
    """What is missing still, and whether the clock follows anybody."""
    state: State = work.states["base"]
    host, found = work.name, []
    names = [n.name(work.host.family, work.host.kernel) for n in _missing(work, state) if not n.optional]
    if names:
        what = f"{', '.join(dict.fromkeys(names))} should have been installed, and is not there"
        found.append(error("PREPARE-PACKAGE", host, what, "install it by hand, and see what is said then"))
    if not work.host.in_container:
        found += _clock(work, state)
    return [*found, *tuning.prove(work, state.tuning)]


def _clock(work: Work, state: State) -> list[Finding]:
    host, found = work.name, []
    if not state.time:
        what, mend = "no service sets the clock", "install and enable chrony"
        found.append(warning("PREPARE-TIME", host, what, mend))
    elif state.synchronised is False:
        what = f"the clock is not synchronised yet, although {', '.join(sorted(state.time))} runs"
        mend = "name servers that it reaches by time_servers; chronyc sources shows them"
        found.append(warning("PREPARE-TIME", host, what, mend, "it takes some minutes after a start"))
    if work.node.settings.time_servers and _other(state):
        what = f"the clock is set by {_other(state)}, which is not given the inventory's time_servers"
        found.append(warning("PREPARE-TIME", host, what, "give them to it by hand, or remove it: chrony takes over"))
    return found
