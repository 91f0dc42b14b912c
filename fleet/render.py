"""From units to text: the script an engineer would have typed, the systemd unit, the proxy's configuration."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fleet import FILES, routing, waiting
from fleet.inventory import span
from fleet.topology import START, Plan, Unit, open_interface

# Variables that a value may refer to; every other $ is meant literally.
_EXPANDED = "LD_LIBRARY_PATH|PATH|PYTHONPATH|ifname"
_REFERENCE = re.compile(rf"\$\{{({_EXPANDED})\}}|\$({_EXPANDED})(?![A-Za-z0-9_])")


def script(unit: Unit, interface_lookup: str | None = None) -> str:
    """Exports, then the command: what the unit runs, inside its container if it has one."""
    text: str = _template("units/engine.sh.j2").render(
        unit=unit, interface_lookup=interface_lookup, names_start=any(START in word for word in unit.argv)
    )
    return text


def typed(unit: Unit, address: str) -> str:
    """The script for reading and pasting: it finds the interface's name itself."""
    marker = open_interface(address)
    env = {key: value.replace(marker, "$ifname") for key, value in unit.env.items()}
    lookup = address if env != dict(unit.env) else None
    return script(replace(unit, env=env), lookup)


def wrapper_of(unit: Unit) -> str:
    """What puts the script into its container."""
    template = "units/exec.sh.j2" if unit.inside else "units/docker.sh.j2"
    text: str = _template(template).render(unit=unit, base=unit.current)
    return text


def config_of(plan: Plan, unit: Unit) -> str:
    """The configuration file that the unit reads; empty where it reads none."""
    if unit.config is None:
        return ""
    settings = plan.fleet.settings
    text: str = _template(unit.config).render(
        unit=unit,
        node=plan.fleet.node(unit.host),
        backends=routing.backends(plan),
        sets=plan.sets,
        secrets=f"{plan.home}/secrets",
        tls=settings.tls_certificate is not None,
        keys=settings.api_keys is not None,
        probe=json.dumps(waiting.request_body(plan, 1), separators=(",", ":")),
    )
    return text


def unit_files(plan: Plan, unit: Unit) -> dict[str, tuple[int, str]]:
    """All files of one unit but its id, as path within the release: (mode, text)."""
    docker = unit.runtime == "docker"
    run = f"run/{unit.name}.sh"
    files = {run: (0o755, script(unit))}
    start = f"{unit.current}/{run}"
    if docker:
        wrapper = f"run/{unit.name}.docker.sh"
        files[wrapper] = (0o755, wrapper_of(unit))
        start = f"{unit.current}/{wrapper}"
    if unit.config:
        files[unit.config.removesuffix(".j2")] = (0o644, config_of(plan, unit))
        files["run/door.py"] = (0o755, _plain("proxy/door.py"))
        if router := _router_behind(plan):
            files["proxy/router.json"] = (0o644, router)
    if unit.group:
        files["run/group.py"] = (0o755, _plain("group/group.py"))
        files[f"run/{unit.name}.group.json"] = (0o644, _group_config(plan, unit))
    service = _template("units/unit.service.j2").render(
        unit=unit,
        docker=docker,
        base=unit.current,
        start=start,
        routed=_router_behind(plan) is not None,
        description=describe(plan, unit),
    )
    files[f"units/{unit.name}.service"] = (0o644, service)
    return files


def _plain(name: str) -> str:
    """A program that goes onto the host as it is."""
    return (FILES / name).read_text()


def _group_config(plan: Plan, unit: Unit) -> str:
    """What ``group.py`` reads."""
    group = unit.group
    assert group is not None
    # Requests of a broken instance are lost anyway: no drain, and a start under way ignores the signal.
    settings = hashlib.sha256(instance_text(plan, unit.instance).encode()).hexdigest()[:12]
    data = {"unit": f"{unit.name}.service", "me": group.me, "kill_seconds": 5, "settings": settings}
    return json.dumps({**data, "listen": group.listen, "peers": group.peers}, indent=1) + "\n"


def instance_text(plan: Plan, name: str) -> str:
    """The command lines of all hosts of an instance: members start together only where this is the same."""
    return json.dumps([[u.at, list(u.argv), dict(u.env), u.image] for u in plan.units if u.instance == name])


def _router_behind(plan: Plan) -> str | None:
    """For ``door.py``: the router between the front door and the replicas, where there is one."""
    if plan.sets or not plan.fleet.settings.cache_aware:
        return None
    replicas = {i.name: i.url for i in plan.instances}
    return json.dumps({"router": f"http://{routing.backends(plan)[0].at}", "replicas": replicas}, indent=1) + "\n"


def describe(plan: Plan, unit: Unit) -> str:
    """One line for people."""
    name = plan.served_name.replace("%", "%%")  # systemd reads % as a specifier
    if unit.kind == "proxy":
        return f"vllm-fleet entry for {name}"
    if unit.kind == "router":
        return f"vllm-fleet router of {unit.instance}, {name}"
    what = {"engine": "vLLM", "ray": "Ray for vLLM"}[unit.kind]
    return f"{what} {unit.instance}, {name}"


def as_data(plan: Plan) -> dict[str, Any]:
    """The stable JSON form of a plan."""
    hosts = {}
    for node in plan.fleet.nodes:
        units = [
            {
                "name": u.name,
                "role": u.role,
                "instance": u.instance,
                "kind": u.kind,
                "runtime": u.runtime,
                "image": u.image,
                "env": dict(u.env),
                "argv": list(u.argv),
                "devices": list(u.devices),
                "mounts": list(u.mounts),
                "ports": dict(u.ports),
            }
            for u in plan.units_of(node.name)
        ]
        hosts[node.name] = {"platform": plan.recipe.platform, "units": units}
    return {
        "recipe": plan.fleet.recipe,
        "service": plan.fleet.settings.service,
        "hosts": hosts,
        "sets": [
            {
                "name": s.name,
                "prefill": [i.name for i in s.prefill],
                "decode": [i.name for i in s.decode],
                "router": s.router_host.name,
            }
            for s in plan.sets
        ],
        "start_order": [list(stage) for stage in plan.start_order],
    }


@cache
def environment() -> Environment:
    """Templates of files/, in which shell text and configurations are written."""
    environment = Environment(
        loader=FileSystemLoader(FILES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "quote": shlex.quote,
        "env": _env_value,
        "command": _command,
        "pairs": _pairs,
        "ports": span,
    }
    return environment


def _template(name: str) -> Any:
    return environment().get_template(name)


def _env_value(value: str) -> str:
    """Quoted for a shell; a reference to a search path is expanded, anything else stays as it is."""
    parts = _REFERENCE.split(value)
    if len(parts) == 1:
        return shlex.quote(value)
    # split() gives text, name in braces or None, bare name or None, text, ...
    words = []
    for i in range(0, len(parts), 3):
        words.append(re.sub(r'([\\"`$])', r"\\\1", parts[i]))
        if i + 2 < len(parts):
            words.append(f"${{{parts[i + 1] or parts[i + 2]}:-}}")
    return '"' + "".join(words) + '"'


def _command(argv: Sequence[str]) -> str:
    """One option a line, as people write long commands."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(_word(word))
    return " \\\n  ".join(" ".join(line) for line in lines)


def _word(word: str) -> str:
    """Quoted for a shell; what is new with every start is a variable of the script's."""
    if START not in word:
        return shlex.quote(word)
    return '"' + re.sub(r'([\\"`$])', r"\\\1", word).replace(START, "$start") + '"'


def _pairs(options: Sequence[str]) -> list[str]:
    return [f"{name} {shlex.quote(value)}" for name, value in zip(options[::2], options[1::2], strict=True)]
