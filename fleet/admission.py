"""What a host must have before anything is written to it: the question to ask it, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet import sharing
from fleet.findings import Finding, error, warning
from fleet.inventory import Node
from fleet.snapshot import Question, Snapshot
from fleet.topology import Plan, Unit

# Room for a release, and for systemd and the journal to go on.
NEEDED_BYTES = 20_000_000


def question(plan: Plan, node: Node) -> Question:
    """What to ask this host for."""
    units = plan.units_of(node.name)
    tools = {"curl", "tar", "base64", "flock", "ip", "ss"} | {u.argv[0] for u in units if u.config}
    tools |= {"python3" for u in units if u.group or u.config}  # what keeps a group together; the front door's handle
    paths: set[str] = set()
    for unit in units:
        if unit.runtime == "docker":
            tools.add("docker")
        elif unit.venv:
            paths.add(f"{unit.venv}/bin/{unit.argv[0]}")
    if _serves(units):
        paths.add(_weights(plan, node))
    images = {u.image for u in units if u.image}
    venvs = {u.venv for u in units if u.venv and u.kind == "engine"}
    return Question(tuple(sorted(tools)), tuple(sorted(paths)), tuple(sorted(images)), tuple(sorted(venvs)), plan.home)


def judge(plan: Plan, node: Node, snapshot: Snapshot) -> tuple[Finding, ...]:
    """All reasons why this host cannot go on."""
    units, name = plan.units_of(node.name), node.name
    findings = []
    if snapshot.user_id != 0:
        mend = "set _sudo = True in the inventory's group_data, or ssh_user = 'root'"
        findings.append(error("HOST-ROOT", name, "the run has no root rights here", mend))
    if not snapshot.systemd:
        findings.append(error("HOST-SYSTEMD", name, "systemd does not run here", "use a host booted with systemd"))
    if "ip" in snapshot.tools:
        findings += _network(node, snapshot)
    for tool in sorted(set(question(plan, node).tools) - snapshot.tools):
        if tool == "haproxy":  # the deploy installs it
            continue
        packages = {"docker": "docker.io (or docker-ce)", "ip": "iproute2", "ss": "iproute2", "flock": "util-linux"}
        package = packages.get(tool, tool)
        what, mend = f"{tool} is not installed", f"install the package {package}"
        findings.append(error("HOST-TOOL", name, what, mend))
    if _serves(units) and _weights(plan, node) not in snapshot.paths:
        what = f"there are no weights at {_weights(plan, node)}"
        mend = "copy them there, mount the share, or mend weights_dir"
        findings.append(error("WEIGHTS-MISSING", name, what, mend))
    findings += _runtime(plan, node, snapshot)
    mine = sharing.claims(plan, node)
    others = [other for other in snapshot.others if other is not None]
    if len(others) < len(snapshot.others):
        what = "the manifest of another service on this host cannot be read, so what it takes is not known"
        findings.append(warning("HOST-MANIFEST", name, what, "run the deploy of that service again"))
    for other in others:
        findings += sharing.meetings(name, mine, other)
    taken = {port for other in others for port in other.ports}
    findings += [] if taken & set(mine.ports) else _ports(units, node, snapshot)
    short = [(m, free) for m, free in snapshot.disk_free.items() if free < NEEDED_BYTES]
    for mount, free in short:
        what = f"{mount} has {free // 1000} kB left, {NEEDED_BYTES // 1_000_000} MB are needed"
        findings.append(error("HOST-DISK", name, what, "free some space there"))
    return tuple(findings)


def interface_of(node: Node, snapshot: Snapshot) -> str | None:
    """The interface that carries the host's address, or the one that the inventory insists on."""
    return node.settings.interface or snapshot.interfaces.get(node.address)


def _serves(units: tuple[Unit, ...]) -> bool:
    return any(u.serves_model for u in units)


def _weights(plan: Plan, node: Node) -> str:
    return f"{node.settings.weights_dir}/{plan.recipe.model.name}/config.json"


def _network(node: Node, snapshot: Snapshot) -> list[Finding]:
    name = interface_of(node, snapshot)
    if name is None:
        there = ", ".join(sorted(snapshot.interfaces)) or "none"
        what = f"no interface carries {node.address} (addresses here: {there})"
        return [error("NET-ADDRESS", node.name, what, "mend address in the inventory, or configure the interface")]
    if name in snapshot.down:
        what = f"interface {name}, which carries {node.address}, is down"
        return [error("NET-LINK", node.name, what, f"bring it up: ip link set {name} up")]
    return []


def _ports(units: tuple[Unit, ...], node: Node, snapshot: Snapshot) -> list[Finding]:
    """Ports of the plan that something else than a unit of ours (or its container) holds."""
    findings = []
    for unit in units:
        for purpose, port in unit.ports.items():
            group = snapshot.listeners.get(port)
            # a unit of another service is told by its manifest
            ours = group is not None and ("/vllm-" in group or (unit.runtime == "docker" and "docker" in group))
            if group is not None and not ours:
                holder = group.rpartition("/")[2] or "a process outside any service"
                what = f"port {port}, which {unit.name} needs for {purpose}, is held by {holder}"
                findings.append(
                    error("HOST-PORT", node.name, what, f"stop it (ss -ltnp 'sport = {port}'), or move one")
                )
    return findings


def _runtime(plan: Plan, node: Node, snapshot: Snapshot) -> list[Finding]:
    """The image is there, or the virtual environment and its version are."""
    findings = []
    for image in sorted({u.image for u in plan.units_of(node.name) if u.image}):
        if "docker" in snapshot.tools and image not in snapshot.images:
            what = f"image {image} is not on this host"
            mend = f"docker pull {image}, or docker load it from a file"
            findings.append(error("IMAGE-MISSING", node.name, what, mend))
    for unit in plan.units_of(node.name):
        if unit.venv is None:
            continue
        program = f"{unit.venv}/bin/{unit.argv[0]}"
        if program not in snapshot.paths:
            key = "venv" if unit.serves_model else "router_venv"
            what = f"there is no {program}"
            mend = f"install {unit.argv[0]} there, or mend {key} in the inventory"
            findings.append(error("HOST-ENGINE", node.name, what, mend))
        elif unit.kind == "engine":
            findings += _engine_version(plan, node, snapshot, unit.venv)
    return findings


def _engine_version(plan: Plan, node: Node, snapshot: Snapshot, venv: str) -> list[Finding]:
    wanted = plan.recipe.engine.version
    versions = {m[1] for d in snapshot.engines.get(venv, ()) if (m := re.match(r"vllm(?:_cpu)?-([0-9][^+-]*)", d))}
    if not versions or str(wanted) in versions:
        return []
    what = f"{venv} holds vLLM {', '.join(sorted(versions))}, the plan is for {wanted}"
    mend = "install that version, or set engine_version in the inventory"
    return [error("HOST-ENGINE", node.name, what, mend, "arguments differ between versions")]


def differences(plan: Plan, seen: Mapping[str, Snapshot]) -> list[Finding]:
    """Hosts of one instance that run other images, engines, Ray or Python than its head: they would not understand
    each other, or only almost."""
    findings = []
    for instance in plan.instances:
        head = _versions(plan, instance.head, seen)
        for member in instance.members[1:]:
            theirs = _versions(plan, member.node, seen)
            for what in sorted(set(head) & set(theirs)):
                if head[what] != theirs[what]:
                    text = (
                        f"{what} is {theirs[what]}, {instance.head.name}, the head of {instance.name}, has {head[what]}"
                    )
                    mend = "put the same on all hosts of an instance"
                    findings.append(error("VERSION-DIFFERS", member.node.name, text, mend))
    return findings


def _versions(plan: Plan, node: Node, seen: Mapping[str, Snapshot]) -> dict[str, str]:
    """What must be equal over an instance: image ids; distributions and Python of the environment."""
    snapshot = seen.get(node.name)
    if snapshot is None:
        return {}
    units = [u for u in plan.units_of(node.name) if u.serves_model]
    found = {f"image {u.image}": snapshot.images[u.image][:19] for u in units if u.image in snapshot.images}
    for venv in {u.venv for u in units if u.venv}:
        for distribution in snapshot.engines.get(venv, ()):
            name, _, version = distribution.partition("-")
            found[name] = version
    return found
