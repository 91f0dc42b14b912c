"""Docker, where a unit of the host has a container: installed, running, and with the inventory's configuration.

Docker of whatever package is left as it is. Units require docker.service: a restart of Docker restarts them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.findings import Finding, error, warning
from fleet.inventory import Node
from fleet.machine import scope
from fleet.prepare import daemon, packages
from fleet.prepare.common import DEBIAN, Outcome, Step, Work, plain, sum_of
from fleet.prepare.daemon import CONFIG, PENDING, PROXY
from fleet.topology import Plan

_INFO = "info {{.ServerVersion}}|{{.LiveRestoreEnabled}}|{{.LoggingDriver}}"
_HOOK_NEWS = "it does not know the GPU toolkit yet"
_HEAD = "# Written by vllm-fleet, replaced at the next run of prepare.\n"
# In this order; docker is not podman's imitation of that name only where the distribution has no such.
_OPENEULER = ("docker-engine", "moby-engine", "docker-ce", "docker")
_REDHAT = ("docker-ce", "moby-engine")
_OF_REDHAT = ("rhel", "centos", "rocky", "almalinux", "fedora", "ol")


# dockerd looks for the hook once, when it begins. The hook's time is its inode's, for packages keep the files' own. One
# that was only exchanged is newer too: then a container with a GPU that runs shows that the daemon knows it.
_HOOKLESS = (
    "echo '@@ dockerhook'; h=$(command -v nvidia-container-runtime-hook) && "
    "m=$(systemctl show -p ExecMainStartTimestampMonotonic --value docker 2>/dev/null) && "
    "b=$(sed -n 's/^btime //p' /proc/stat) && test $(stat -L -c %Z \"$h\") -gt $((b + ${m:-0} / 1000000)) && "
    "! { set -- $(timeout -k 2 20 docker ps -q 2>/dev/null </dev/null); test $# -gt 0 && timeout -k 2 20 docker "
    "inspect -f '{{json .HostConfig.DeviceRequests}}' \"$@\" 2>/dev/null </dev/null | grep -q Capabilities; } && "
    "echo hookless"
)


def needs_hook(plan: Plan, node: Node) -> bool:
    """Whether engines of the host are given GPUs by Docker."""
    in_docker = bool(scope.in_docker(plan, node)) and bool(scope.engines(plan, node))
    return plan.recipe.platform == "nvidia" and in_docker


@dataclass(frozen=True)
class State:
    """How Docker is on the host now. ``config`` is the whole file, and must not be shown."""

    asked: bool = False
    installed: bool = False
    is_podman: bool = False
    active: bool = False
    enabled: bool = False
    version: str = ""  # of the daemon that answers
    live_restore: bool = False
    running: tuple[str, ...] = ()  # containers
    config: bytes | None = field(default=None, repr=False)
    config_sum: str = ""
    proxy: str = ""  # sha256 of our drop-in
    no_proxy: tuple[str, ...] = ()  # what it reaches without the proxy
    pending: str = ""  # restart or reload: what a run that was cut off did not come to
    log_driver: str = ""  # of the daemon that answers
    hookless: bool = False  # it began before what gives containers their GPUs was there, and does not know it


def sections(plan: Plan, node: Node) -> list[str]:
    """The configuration is told as base64, so that no log of answers shows a password in it."""
    if not scope.in_docker(plan, node):
        return []
    return [
        "echo '@@ dockerengine'; echo asked; ( PATH=$PATH:/usr/sbin:/sbin; command -v dockerd >/dev/null || "
        "systemctl cat docker.service >/dev/null 2>&1 ) && echo installed; "
        "timeout -k 2 10 docker --version 2>/dev/null </dev/null | grep -qi podman && echo podman; "
        "systemctl is-active -q docker 2>/dev/null && echo active; "
        "systemctl is-enabled -q docker 2>/dev/null && echo enabled; "
        f"sed 's/^/pending /' {PENDING} 2>/dev/null; sha256sum {PROXY} 2>/dev/null | sed 's/^/proxy /'; "
        f"sed -n 's/^Environment=\"NO_PROXY=\\(.*\\)\"$/noproxy \\1/p' {PROXY} 2>/dev/null; "
        f"timeout -k 2 20 docker info -f '{_INFO}' 2>/dev/null </dev/null && "
        "timeout -k 2 20 docker ps --format 'running {{.Names}}' 2>/dev/null </dev/null",
        *([_HOOKLESS] if needs_hook(plan, node) else []),
        f"echo '@@ daemonjson'; test -e {CONFIG} && {{ sha256sum <{CONFIG}; base64 <{CONFIG}; }} 2>/dev/null",
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered; ``asked`` is False where no unit of the host has a container."""
    said, config = sections.get("dockerengine", []), sections.get("daemonjson", [])
    told = {key: rest for key, _, rest in (line.partition(" ") for line in said)}
    version, live, log_driver, *_ = [*told.get("info", "").split("|"), "", ""]
    raw: bytes | None = None
    if config:
        try:
            raw = base64.b64decode("".join(config[1:]), validate=True)
        except binascii.Error:
            raw = b"\xff"  # told as a file that cannot be read
    return State(
        asked="asked" in told,
        installed="installed" in told,
        is_podman="podman" in told,
        active="active" in told,
        enabled="enabled" in told,
        version=version,
        live_restore=live == "true",
        running=tuple(line.removeprefix("running ") for line in said if line.startswith("running ")),
        config=raw,
        config_sum=config[0].partition(" ")[0] if config else "",
        proxy=told.get("proxy", "").partition(" ")[0],
        no_proxy=tuple(filter(None, told.get("noproxy", "").replace("%%", "%").split(","))),
        pending=told.get("pending", ""),
        log_driver=log_driver,
        hookless="active" in told and bool(sections.get("dockerhook")),
    )


@dataclass(frozen=True)
class _Change:
    """What is to become of the configuration."""

    keys: tuple[str, ...] = ()
    text: str = field(default="", repr=False)
    proxy: str = ""  # the drop-in's content, where it changes
    restarts: bool = False

    @property
    def is_none(self) -> bool:
        return not (self.keys or self.proxy or self.restarts)


def _change(work: Work, state: State) -> _Change:
    """A ValueError where daemon.json cannot be read."""
    old = daemon.read(state.config)
    new = daemon.merged(old, work.node.settings.docker_config)
    with_needs = daemon.with_needs(new, state.log_driver)
    # What only we want is no reason to take a service away; it comes with the next restart that is asked for.
    if not _stopped_by_restart(work, state) or not daemon.reloads(daemon.changed(old, new)):
        new = with_needs
    keys = daemon.changed(old, new)
    # Another service of this host has its own there; without them each run would restart Docker.
    drop_in = proxy_text(work, state.no_proxy if work.plan.fleet.settings.service else ())
    proxy = drop_in if drop_in and sum_of(drop_in) != state.proxy else ""
    restarts = bool(proxy) or not daemon.reloads(keys) or state.pending == "restart" or state.hookless
    return _Change(keys, daemon.text(new) if keys else "", proxy, restarts or bool(state.pending and not state.active))


def proxy_text(work: Work, there: Sequence[str] = ()) -> str:
    """The drop-in that gives Docker its proxy: older ones know none in daemon.json. The fleet's own are never asked
    through it."""
    url = work.node.settings.docker_proxy
    if not url:
        return ""
    own = ["localhost", "127.0.0.1", "::1", *(node.address for node in work.plan.fleet.nodes)]
    around = ",".join(dict.fromkeys([*there, *own, *work.node.settings.no_proxy]))
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": around}
    lines = [f'Environment="{key}={_quoted(value)}"\n' for key, value in values.items()]
    return f"{_HEAD}[Service]\n{''.join(lines)}"


def _quoted(value: str) -> str:
    """As systemd wants it between double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _stopped_by_restart(work: Work, state: State) -> tuple[str, ...]:
    """What a restart of Docker would take away: our units with a container, and foreign containers."""
    ours = {name.removesuffix(".service") for name in work.host.serving}
    planned = {unit.name for unit in scope.in_docker(work.plan, work.node)}
    foreign = () if state.live_restore else tuple(name for name in state.running if name not in ours)
    serving = ours & {*planned, *state.running}
    return (*sorted(serving), *foreign)


def refuse(work: Work) -> list[Finding]:
    """What cannot be merged, what only looks like Docker, and a restart that would take something away."""
    state: State = work.states["containers"]
    host = work.name
    if not state.asked:
        return []
    if state.is_podman:
        what = "docker is podman's imitation of it here"
        why = "units require docker.service, and options such as --gpus differ"
        return [error("DOCKER-INSTALL", host, what, "remove the package podman-docker, and run again", why)]
    try:
        change = _change(work, state)
    except ValueError as exc:
        what = f"{CONFIG} is no JSON ({exc})"
        why = "what stands there would be lost"
        return [error("DOCKER-CONFIG", host, what, f"mend it (python3 -m json.tool {CONFIG})", why)]
    stopped = _stopped_by_restart(work, state)
    hangs = state.active and not state.version
    if hangs and stopped and work.node.settings.reboot != "even-if-serving":
        what = f"Docker runs and does not answer, and its restart would stop {', '.join(stopped)}"
        return [error("DOCKER-DOWN", host, what, "systemctl restart docker once they may stop")]
    if not (change.restarts and stopped) or work.node.settings.reboot == "even-if-serving":
        return []
    what = f"Docker must be restarted ({_reasons(change, state)}), which would stop {', '.join(stopped)}"
    mend = "stop them and run again, or set reboot = 'even-if-serving'"
    return [error("DOCKER-BUSY", host, what, mend)]


def _reasons(change: _Change, state: State) -> str:
    reasons = [*(["its proxy changes"] if change.proxy else [])]
    reasons += [_HOOK_NEWS] if state.hookless else []
    keys = [key for key in change.keys if key not in daemon.RELOADABLE]
    reasons += [f"{', '.join(keys)} of daemon.json change"] if keys else []
    return "; ".join(reasons) or "an earlier change of its configuration is not in use yet"


def steps(work: Work) -> list[Step]:
    """Install, configure, start."""
    state: State = work.states["containers"]
    if not state.asked:
        return []
    found = []
    if not state.installed:
        found.append(_install(work))
    change = _change(work, state)
    if not change.is_none or state.pending:
        found.append(_configure(work, state, change))
    elif not (state.active and state.enabled and state.version):
        found.append(_start(work, state))
    return found


def _install(work: Work) -> Step:
    name = f"Docker ({_candidates(work)[0]}; there is none)"
    return Step(name, install_text(work), 1800, read=packages.reader(work.name, "Docker"))


def _candidates(work: Work) -> tuple[str, ...]:
    if work.host.family == DEBIAN:
        return ("docker.io",)
    return _REDHAT if work.host.system.lower() in _OF_REDHAT else _OPENEULER


def install_text(work: Work) -> str:
    """Shell text: the first of the packages that a source has. Debian has the client, and what loads profiles of
    AppArmor, in packages of their own."""
    family, names = work.host.family, _candidates(work)
    if family == DEBIAN:
        return (
            f"{packages.install(family, names)} || exit $?\n"
            f"command -v docker >/dev/null || {packages.install(family, ['docker-cli'])} || exit $?\n"
            'if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ] && '
            "! PATH=$PATH:/usr/sbin:/sbin command -v apparmor_parser >/dev/null; then\n"
            f"{packages.install(family, ['apparmor'])}\nfi"
        )
    return " ||\n".join(packages.install(family, [name]) for name in names)


def _start(work: Work, state: State) -> Step:
    lacks = [word for word, has in (("started", state.active and state.version), ("enabled", state.enabled)) if not has]
    # One that is active and does not answer has a daemon that hangs, or that its socket waits for.
    verb = "restart" if state.active and not state.version else "start"
    script = (
        f"{daemon.WAIT}systemctl enable docker 2>&1 || exit 1\nsystemctl reset-failed docker 2>/dev/null\n"
        f"timeout 120 systemctl {verb} docker || {{ why; exit 1; }}\nanswers || {{ why; exit 1; }}"
    )
    return Step(f"Docker {' and '.join(lacks)}", script, 300, read=_reader(work.name, CONFIG))


def _configure(work: Work, state: State, change: _Change) -> Step:
    whole = change.restarts or not (state.active and state.version)
    parts = [f"{', '.join(change.keys)} in daemon.json"] if change.keys else []
    parts += ["proxy"] if change.proxy else []
    parts += ["the GPU toolkit, which it does not know yet"] if state.hookless else []
    parts += ["an earlier change that was cut off"] if not parts else []
    how = ("restarted" if state.active else "started") if whole else "reloaded"
    return Step(
        f"Docker's configuration: {' and '.join(parts)}; Docker is {how}",
        daemon.configure_text(change.proxy, change.text, state.config_sum, whole),
        400,
        stdin=change.text or None,
        read=_reader(work.name, CONFIG),
    )


def _reader(host: str, config: str) -> Callable[[bool, Sequence[str]], Outcome]:
    def read(well: bool, lines: Sequence[str]) -> Outcome:
        if well:
            return Outcome()
        said = [line.strip() for line in plain(lines) if line.strip()]
        own = [re.sub(r"://\S*@", "://***@", line) for line in said if line != "put back"]
        reasons = [line for line in own if line.startswith(daemon.BECAUSE)]
        last = (reasons or own or ["it ended without a word"])[-1].removeprefix(daemon.BECAUSE)[:300]
        if last.startswith("refused "):
            what = f"Docker refuses the new {config}: {last.removeprefix('refused ')}"
            return Outcome((error("DOCKER-CONFIG", host, what, "mend docker_config; nothing was changed"),))
        if last.startswith(("the new daemon.json", "somebody else")):
            return Outcome((error("DOCKER-CONFIG", host, last, "run again; nothing was changed"),))
        back = "the old configuration is back, and Docker runs with it" if "put back" in said else ""
        mend = "mend docker_config or docker_proxy" if back else "see journalctl -u docker there"
        rule = "DOCKER-CONFIG" if back else "DOCKER-DOWN"
        return Outcome((error(rule, host, f"Docker did not come up: {last}", mend, back),))

    return read


def prove(work: Work) -> list[Finding]:
    """Docker answers, is started with the host, and has the configuration."""
    state: State = work.states["containers"]
    host = work.name
    if not state.asked:
        return []
    if not state.version:
        what = "Docker does not answer" if state.installed else "Docker is not installed"
        return [error("DOCKER-DOWN", host, what, "systemctl start docker, and see journalctl -u docker there")]
    found = []
    if not state.enabled:
        what = "Docker is not started with the host"
        found.append(error("DOCKER-DOWN", host, what, "systemctl enable docker"))
    try:
        change = _change(work, state)
    except ValueError as exc:
        return [*found, error("DOCKER-CONFIG", host, f"{CONFIG} is no JSON ({exc})", "mend it")]
    if not change.is_none or state.pending:
        what = f"Docker's configuration is not what it should be: {', '.join(change.keys) or _reasons(change, state)}"
        found.append(error("DOCKER-CONFIG", host, what, "run again; something else writes it too if it comes back"))
    if state.proxy and not work.node.settings.docker_proxy:
        what = f"Docker has a proxy that the inventory does not name, from an earlier run: {PROXY}"
        mend = "name it by docker_proxy, or remove the file, systemctl daemon-reload, systemctl restart docker"
        found.append(warning("DOCKER-PROXY", host, what, mend))
    return found
