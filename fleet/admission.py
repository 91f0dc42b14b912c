"""What a host must have before anything is written to it: the question to ask it, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet import sharing
from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import clock, modules, owners
from fleet.machine.docker import parse as docker_of
from fleet.snapshot import PATH_SECONDS, Question, Snapshot
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
    for path in sorted(snapshot.silent):
        what = f"{path} gives no answer in {PATH_SECONDS} s"
        mend = "look at the mount below it (cat /proc/mounts, dmesg); umount -l it, and mount it again"
        why = "an engine would wait for it without an end, and cannot be stopped"
        findings.append(error("HOST-MOUNT", name, what, mend, why))
    if _serves(units) and _weights(plan, node) not in snapshot.paths | snapshot.silent:
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
    taken = {port for other in others for port in other.ports}  # told as the two services' matter
    if snapshot.user_id == 0:  # others are not told who holds a port, and Docker and the devices seem to be broken
        findings += _ports(plan, node, snapshot, {p: user for p, user in mine.ports.items() if p not in taken})
    short = [(m, free) for m, free in snapshot.disk_free.items() if free < NEEDED_BYTES]
    for mount, free in short:
        what = f"{mount} has {free // 1000} kB left, {NEEDED_BYTES // 1_000_000} MB are needed"
        findings.append(error("HOST-DISK", name, what, "free some space there"))
    if snapshot.readonly and snapshot.user_id == 0:
        what = f"{' and '.join(snapshot.readonly)} cannot be written to"
        mend = "look at dmesg for the disk's errors, and at /etc/fstab; then mount -o remount,rw"
        findings.append(error("HOST-DISK", name, what, mend, "a disk with errors is often made read-only"))
    if snapshot.user_id == 0:
        findings += modules.judge(plan, node, modules.parse(snapshot.sections))
    return tuple(findings)


def interface_of(node: Node, snapshot: Snapshot) -> str | None:
    """The interface that carries the host's address, or the one that the inventory insists on."""
    return node.settings.interface or snapshot.interfaces.get(node.address)


def _serves(units: tuple[Unit, ...]) -> bool:
    return any(u.serves_model for u in units)


def _weights(plan: Plan, node: Node) -> str:
    return f"{node.settings.weights_dir}/{plan.recipe.model.name}/config.json"


def _network(node: Node, snapshot: Snapshot) -> list[Finding]:
    name, insisted = interface_of(node, snapshot), node.settings.interface
    if insisted and snapshot.links and insisted not in snapshot.links:
        what = f"there is no interface {insisted} (there are: {', '.join(sorted(snapshot.links))})"
        mend = "mend interface in the inventory, or leave it out: it is found from the address"
        return [error("NET-INTERFACE", node.name, what, mend, "HCCL, NCCL and Gloo end where they do not find it")]
    if name is None:
        there = ", ".join(sorted(snapshot.interfaces)) or "none"
        what = f"no interface carries {node.address} (addresses here: {there})"
        return [error("NET-ADDRESS", node.name, what, "mend address in the inventory, or configure the interface")]
    if name in snapshot.down:
        what = f"interface {name}, which carries {node.address}, is down"
        return [error("NET-LINK", node.name, what, f"bring it up: ip link set {name} up; look at its cable")]
    carrier = snapshot.interfaces.get(node.address)
    if insisted and carrier not in (None, insisted):
        what = f"interface {insisted}, which the inventory names, does not carry {node.address}: {carrier} does"
        mend = "leave interface out: it is found from the address"
        return [warning("NET-INTERFACE", node.name, what, mend, "peers are told one address and sought on another")]
    return []


def _ports(plan: Plan, node: Node, snapshot: Snapshot, claimed: Mapping[int, str]) -> list[Finding]:
    """Ports that the plan takes here and that something else than a unit of ours (or its container) holds."""
    state = owners.parse(snapshot.sections)
    units = owners.own_units(plan, node, state)
    uses = {p: f"{u.name} needs for {why}" for u in plan.units_of(node.name) for why, p in u.ports.items()}
    held: dict[tuple[str, str], list[int]] = {}
    for port, user in claimed.items():
        group = snapshot.listeners.get(port)
        if group is not None and not owners.is_ours(group, units, state):
            holder = group.rpartition("/")[2] or "a process outside any service"
            held.setdefault((uses.get(port, f"{user} may take"), holder), []).append(port)
    findings = []
    for (use, holder), found in held.items():
        ports = f"port{'s' * (len(found) > 1)} {span(sorted(found))}"
        what = f"{ports}, which {use}, {'is' if len(found) == 1 else 'are'} held by {holder}"
        mend = f"stop it (ss -ltnp 'sport = {found[0]}'), or move one"
        findings.append(error("HOST-PORT", node.name, what, mend))
    return findings


def _runtime(plan: Plan, node: Node, snapshot: Snapshot) -> list[Finding]:
    """The image is there, or the virtual environment and its version are."""
    findings = []
    docker = docker_of(snapshot.sections)
    docker_answers = "docker" in snapshot.tools and (docker is None or bool(docker.version))
    for image in sorted({u.image for u in plan.units_of(node.name) if u.image}):
        if docker_answers and image not in snapshot.images:
            what = f"image {image} is not on this host"
            mend = f"docker pull {image}, or docker load it from a file"
            findings.append(error("IMAGE-MISSING", node.name, what, mend))
    for unit in plan.units_of(node.name):
        if unit.venv is None:
            continue
        program = f"{unit.venv}/bin/{unit.argv[0]}"
        if program in snapshot.silent:
            continue
        if program not in snapshot.paths:
            key = "venv" if unit.serves_model else "router_venv"
            what = f"there is no {program}"
            mend = f"install {unit.argv[0]} there, or mend {key} in the inventory"
            findings.append(error("HOST-ENGINE", node.name, what, mend))
        elif unit.kind == "engine":
            findings += _engine_version(plan, node, snapshot, unit.venv)
    return findings


def _engine_version(plan: Plan, node: Node, snapshot: Snapshot, venv: str) -> list[Finding]:
    """The environment holds the plan's engine, once, and the plugin that belongs to it."""
    there = snapshot.engines.get(venv, ())
    mend, why = "install that version, or set engine_version in the inventory", "arguments differ between versions"
    versions = {m[1] for d in there if (m := re.match(r"vllm(?:_cpu)?-([0-9][^+-]*)", d))}
    if len(versions) > 1:
        what = f"{venv} holds vLLM {' and '.join(sorted(versions))} at once"
        mixed = "parts of both are imported: ModuleNotFoundError, InvalidVersion"
        mend = "make the environment anew, with one of them"
        return [error("HOST-ENGINE", node.name, what, mend, mixed, "vllm-ascend issues 707, 5914")]
    if versions and plan.recipe.engine.vllm not in versions:
        what = f"{venv} holds vLLM {', '.join(sorted(versions))}, the plan is for {plan.recipe.engine.vllm}"
        return [error("HOST-ENGINE", node.name, what, mend, why)]
    plugins = {m[1] for d in there if (m := re.match(r"vllm_ascend-([0-9][^+-]*)", d))}
    wanted = plan.recipe.engine.vllm_ascend
    if plugins and wanted and plan.recipe.platform.startswith("ascend") and wanted not in plugins:
        what = f"{venv} holds vllm-ascend {', '.join(sorted(plugins))}, the plan is for {wanted}"
        return [error("HOST-ENGINE", node.name, what, "install that version", why)]
    return []


def differences(plan: Plan, seen: Mapping[str, Snapshot]) -> list[Finding]:
    """What does not agree over hosts that work together: versions and images, clocks, networks, devices."""
    return [
        *_other_versions(plan, seen),
        *clock.between(plan, {name: s.clock for name, s in seen.items() if s.clock}),
        *modules.between(plan, {name: modules.parse(s.sections) for name, s in seen.items()}),
    ]


def _other_versions(plan: Plan, seen: Mapping[str, Snapshot]) -> list[Finding]:
    """Hosts of one instance that run other images, engines, Ray or Python than its head: they would not understand
    each other, or only almost."""
    findings = []
    for instance in plan.instances:
        its, head = _versions(plan, instance.head, seen), instance.head.name
        for member in instance.members[1:]:
            theirs = _versions(plan, member.node, seen)
            for what in sorted(set(theirs) & set(its)):
                if not theirs[what] & its[what]:
                    text = f"{what} is {_any(theirs[what])}, {head}, the head of {instance.name}, has {_any(its[what])}"
                    mend = "put the same on all hosts of an instance"
                    findings.append(error("VERSION-DIFFERS", member.node.name, text, mend))
    return findings


def _any(values: frozenset[str]) -> str:
    return min(values)[:19]


def _versions(plan: Plan, node: Node, seen: Mapping[str, Snapshot]) -> dict[str, frozenset[str]]:
    """What must be equal over an instance, in any of its forms: an image by its id or its registry's digest (ids of
    one image differ between Docker's ways to store it); distributions and Python of the environment."""
    snapshot = seen.get(node.name)
    if snapshot is None:
        return {}
    units = [u for u in plan.units_of(node.name) if u.serves_model]
    found = {
        f"image {u.image}": frozenset({snapshot.images[u.image]}) | snapshot.digests.get(u.image, frozenset())
        for u in units
        if u.image in snapshot.images
    }
    for venv in {u.venv for u in units if u.venv}:
        for distribution in snapshot.engines.get(venv, ()):
            name, _, version = distribution.partition("-")
            found[name] = frozenset({version})
    return found
