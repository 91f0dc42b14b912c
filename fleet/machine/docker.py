"""Docker: whether it answers, what it lets containers have, and what other containers take.

Sources: a device that another container holds is refused with dcmi -8005 or -8020 (vllm-ascend issue 2698);
with systemd's cgroup driver a daemon-reload takes GPUs away from containers that got them by request only
(nvidia-container-toolkit issues 48 and 1227); limits of containers come from containerd (mlperf-automations 664).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from fleet.findings import Finding, error, warning
from fleet.inventory import Node, span
from fleet.machine import host, scope
from fleet.topology import Plan

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# An engine's image unpacked, and beside it the layers that are being pulled.
IMAGE_BYTES = 40_000_000_000
NO_ANSWER = "no answer in 20 s"
_CAN_RAISE_LIMITS = 24  # CAP_SYS_RESOURCE, as a bit
_INFO = "{{.ServerVersion}}|{{.CgroupDriver}}|{{.DefaultRuntime}}|{{.DockerRootDir}}|{{.SecurityOptions}}"
_CONTAINER = (
    "{{.Id}}|{{.Name}}|{{.State.Running}}|{{.HostConfig.Privileged}}|{{if .HostConfig.DeviceRequests}}yes{{end}}|"
    "{{.HostConfig.Runtime}}|{{range .HostConfig.Devices}}{{.PathOnHost}} {{end}}|"
    '{{range .Config.Env}}{{$p := split . "="}}{{if eq (index $p 0) "ASCEND_VISIBLE_DEVICES"}}'
    "{{index $p 1}}{{end}}{{end}}"
)


@dataclass(frozen=True)
class Container:
    """One container of the host."""

    name: str
    running: bool = True
    privileged: bool = False
    asks_for_gpus: bool = False
    runtime: str = "runc"
    devices: tuple[str, ...] = ()
    visible: str = ""  # ASCEND_VISIBLE_DEVICES, which Ascend's runtime reads


@dataclass(frozen=True)
class State:
    """``why_not`` is Docker's own word where the daemon does not answer. Sizes in bytes, limits with -1 for none."""

    version: str = ""
    why_not: str = ""
    cgroup_driver: str = ""
    default_runtime: str = ""
    security: str = ""
    root: str = ""
    root_free: int | None = None
    containers: tuple[Container, ...] = ()
    linked: frozenset[str] = frozenset()
    images: tuple[tuple[str, str], ...] = ()  # name, architecture
    arch: str = ""
    memlock: int | None = None
    open_files: int | None = None
    raises_limits: bool = True
    has_gpu_hook: bool = True
    has_gpu_links: bool = False
    proxied: bool = False


def sections(plan: Plan, node: Node) -> list[str]:
    """Where a unit of the host has a container; each call ends by itself when the daemon hangs."""
    if not scope.in_docker(plan, node):
        return []
    parts = [
        # Where it is not installed, that is told, and not that it does not answer.
        "command -v docker >/dev/null && echo '@@ docker'; "
        f"i=$(timeout -k 2 20 docker info -f '{_INFO}' 2>&1 </dev/null); docker_rc=$?; echo \"$i\"",
        "echo '@@ dockerroot'; df -Pk \"$(echo \"$i\" | sed -n 's/^[^|]*|[^|]*|[^|]*|\\([^|]*\\)|.*/\\1/p')\" "
        "2>/dev/null | tail -n 1",
        # A daemon that gave no answer gives none to the next question either.
        "echo '@@ containers'; test $docker_rc -lt 124 && "
        "set -- $(timeout -k 2 20 docker ps -aq --no-trunc 2>/dev/null) && "
        f"test $# -gt 0 && timeout -k 2 20 docker inspect -f '{_CONTAINER}' \"$@\" 2>/dev/null",
        "echo '@@ containerd'; for p in $(systemctl show -p MainPID containerd docker 2>/dev/null | "
        "sed -n 's/^MainPID=//p'); do test -r /proc/$p/limits && test $p != 0 && "
        "{ grep -e 'Max locked memory' -e 'Max open files' /proc/$p/limits; "
        "grep CapEff /proc/$p/status; break; }; done",
        # Nothing else of it: it may hold a proxy's password.
        "echo '@@ dockerconfig'; head -c 20000 /etc/docker/daemon.json 2>/dev/null | tr -d '\\n' | "
        "grep -o -e '\"memlock\": *{[^}]*}' -e '\"nofile\": *{[^}]*}'; "
        "grep -qs '\"https*Proxy\"' /root/.docker/config.json && echo proxied",
    ]
    if plan.recipe.platform == "nvidia":
        parts.append(
            "echo '@@ gpuhook'; for t in nvidia-container-runtime-hook nvidia-container-toolkit; do "
            "command -v $t; done; ls /etc/cdi/*nvidia* /var/run/cdi/*nvidia* 2>/dev/null; "
            "test -e /dev/char/195:255 && echo links"
        )
    return parts


def parse(sections: Mapping[str, list[str]]) -> State | None:
    """What was answered; None where nothing was asked. ``linked``, ``images`` and ``host`` are others' sections."""
    if "docker" not in sections:
        return None
    said = [line for line in sections["docker"] if line.count("|") == 4 and not line.startswith("|")]
    if not said:
        words = [line for line in sections["docker"] if line.strip("|[] ")]
        # Where the daemon does not run, the last of them is about the form that was asked for; some say nothing else.
        own = [line.strip() for line in words if not line.startswith("template:")]
        return State(why_not=own[-1] if own else "its daemon does not run" if words else NO_ANSWER)
    version, driver, runtime, root, security = said[-1].split("|")
    free = " ".join(sections.get("dockerroot", [])).split()
    config = sections.get("dockerconfig", [])
    rights = re.search(r"CapEff:\s*([0-9a-f]+)", "\n".join(sections.get("containerd", [])))
    hook = sections.get("gpuhook", ["?"])
    return State(
        version=version,
        cgroup_driver=driver,
        default_runtime=runtime,
        security=security,
        root=root,
        root_free=int(free[3]) * 1024 if len(free) > 5 and free[3].isdigit() else None,
        containers=tuple(filter(None, map(_container, sections.get("containers", [])))),
        linked=frozenset(sections.get("linked", [])),
        images=tuple((w[0], w[2]) for line in sections.get("images", []) if len(w := line.split()) > 2),
        arch=host.parse(sections).arch,
        memlock=_given(config, "memlock") or _limit(sections.get("containerd", []), "Max locked memory"),
        open_files=_given(config, "nofile") or _limit(sections.get("containerd", []), "Max open files"),
        raises_limits=not rights or bool(int(rights[1], 16) >> _CAN_RAISE_LIMITS & 1),
        has_gpu_hook=any(line != "links" for line in hook),
        has_gpu_links="links" in hook,
        proxied="proxied" in config,
    )


def _container(line: str) -> Container | None:
    words = line.split("|")
    if len(words) != 8:
        return None
    return Container(
        name=words[1].lstrip("/"),
        running=words[2] == "true",
        privileged=words[3] == "true",
        asks_for_gpus=words[4] == "yes",
        runtime=words[5],
        devices=tuple(words[6].split()),
        visible=words[7].strip(),
    )


def _given(lines: list[str], name: str) -> int | None:
    """The hard limit that daemon.json's default-ulimits give every container."""
    match = re.search(rf'"{name}": *{{[^}}]*"Hard": *(-?\d+)', "\n".join(lines))
    return int(match[1]) if match else None


def _limit(lines: list[str], name: str) -> int | None:
    """The hard limit in a line of /proc/PID/limits."""
    words = next((line.removeprefix(name).split() for line in lines if line.startswith(name)), [])
    return host.limit(words[1]) if len(words) > 1 else None


def judge(plan: Plan, node: Node, state: State | None) -> list[Finding]:
    """What keeps containers of the plan from being started, or takes something away from them or from others."""
    if state is None or not scope.in_docker(plan, node):
        return []
    if not state.version:
        verb = "restart" if state.why_not == NO_ANSWER else "start"
        what, mend = "Docker does not answer", f"systemctl {verb} docker, and see journalctl -u docker there"
        return [error("DOCKER-DOWN", node.name, what, mend, state.why_not)]
    return [*_daemon(plan, node, state), *_limits(plan, node, state), *_others(plan, node, state)]


def _daemon(plan: Plan, node: Node, state: State) -> list[Finding]:
    found, name = [], node.name
    if hinders := re.search(r"name=(rootless|userns)", state.security):
        how = {"rootless": "runs without root", "userns": "maps root in containers to another user"}[hinders[1]]
        what, why = f"Docker {how}", "a container then has neither the host's network nor its devices"
        found.append(error("DOCKER-USERNS", name, what, "take userns-remap out of /etc/docker/daemon.json", why))
    for image, architecture in state.images:
        ours = ARCHITECTURES.get(state.arch, state.arch)
        if state.arch and architecture != ours:
            what = f"image {image} is for {architecture}, the host is {ours}"
            mend = f"docker pull --platform linux/{ours} {image}"
            found.append(error("IMAGE-ARCH", name, what, mend, "it ends with exec format error"))
    wanted = {u.image for u in scope.in_docker(plan, node) if u.image}
    missing = wanted - {image for image, _ in state.images}
    if missing and state.root_free is not None and state.root_free < IMAGE_BYTES:
        what = f"{state.root} has {state.root_free // 1_000_000_000} GB left, and {min(missing)} is not there yet"
        why = f"an engine's image takes about {IMAGE_BYTES // 1_000_000_000} GB with what is unpacked"
        found.append(warning("DOCKER-DISK", name, what, "docker system prune, or a larger disk for data-root", why))
    if plan.recipe.platform == "nvidia" and scope.engines(plan, node):
        if not state.has_gpu_hook:
            what, mend = "Docker cannot give GPUs to a container", "install nvidia-container-toolkit, restart docker"
            why = "docker run --gpus ends with could not select device driver"
            found.append(error("DOCKER-GPUS", name, what, mend, why))
        if state.default_runtime == "nvidia" and plan.recipe.engine.version >= Version("0.15"):
            what = "Docker's default runtime is nvidia"
            why = "newer images then load their own CUDA libraries and end with CUDA error 803"
            mend = "take default-runtime out of /etc/docker/daemon.json; --gpus works without"
            found.append(warning("DOCKER-RUNTIME", name, what, mend, why, "vllm issue 33447; gpustack issue 4678"))
    if state.proxied:
        what = "/root/.docker/config.json gives every container a proxy"
        why = "requests between the hosts may then go to that proxy"
        found.append(warning("HOST-PROXY", name, what, "name the hosts in its noProxy, or take proxies out", why))
    return found


def _limits(plan: Plan, node: Node, state: State) -> list[Finding]:
    asking = [u.name for u in scope.in_docker(plan, node) if u.limits]
    if asking and not state.raises_limits and state.memlock != host.UNLIMITED:
        what = f"{asking[0]} is to have no limit of locked memory, and Docker may not raise limits here"
        why = "docker run --ulimit memlock=-1 is refused with error setting rlimit"
        mend = "set raise_limits = False for this host, or give its Docker CAP_SYS_RESOURCE"
        return [error("HOST-MEMLOCK", node.name, what, mend, why)]
    return host.limits(plan, node, state.memlock, state.open_files, "Limit", "in containerd.service")


def _others(plan: Plan, node: Node, state: State) -> list[Finding]:
    """Containers that are not ours: on our devices, under our names, or hurt by our daemon-reload."""
    found, name = [], node.name
    own = state.linked
    indices = {i for u in scope.engines(plan, node) for i in u.device_indices}
    for one in state.containers:
        if one.name in own:
            continue
        if one.name in {u.name for u in scope.in_docker(plan, node)}:
            what = f"there is a container {one.name} that no unit of vllm-fleet started"
            why = "the start of our unit of that name would remove it"
            found.append(error("DOCKER-NAME", name, what, f"docker rm -f {one.name}, or docker rename it", why))
        if not one.running:
            continue
        taken = sorted(indices & _npus(one))
        if plan.recipe.platform.startswith("ascend") and taken:
            what = f"container {one.name} holds davinci{span(taken)}, which the plan gives to its engines"
            why = "a device that another container holds is refused with dcmi -8005 or -8020"
            found.append(error("DOCKER-DEVICES", name, what, f"docker stop {one.name}", why, "vllm-ascend issue 2698"))
        elif plan.recipe.platform.startswith("ascend") and one.privileged and indices:
            what = f"container {one.name} is privileged, so that it can take any NPU"
            why = "a device that another container holds is refused with dcmi -8005 or -8020"
            mend = f"give {one.name} the devices that it needs by --device"
            found.append(warning("DOCKER-DEVICES", name, what, mend, why, "vllm-ascend issue 2698"))
    hurt = [c.name for c in state.containers if c.name not in own and c.running and _loses_gpus(c)]
    if hurt and state.cgroup_driver == "systemd" and not state.has_gpu_links:
        what = f"container {', '.join(hurt)} has GPUs without their device nodes, and Docker's cgroup driver is systemd"
        why = "the daemon-reload of a deploy takes them away: Failed to initialize NVML: Unknown Error"
        mend = "nvidia-ctk system create-dev-char-symlinks --create-all, or start it with --device /dev/nvidia0 ..."
        found.append(warning("DOCKER-CGROUP", name, what, mend, why, "nvidia-container-toolkit issues 48, 1227"))
    return found


def _npus(one: Container) -> set[int]:
    """Indices of the NPUs that a container holds, by --device or by Ascend's runtime."""
    found = {int(d.removeprefix("/dev/davinci")) for d in one.devices if re.fullmatch(r"/dev/davinci\d+", d)}
    if one.runtime == "ascend":
        for part in one.visible.split(","):
            first, _, last = part.partition("-")
            if first.isdigit() and (last or first).isdigit():
                found |= set(range(int(first), int(last or first) + 1))
    return found


def _loses_gpus(one: Container) -> bool:
    asks = one.asks_for_gpus or one.runtime == "nvidia"
    return asks and not one.privileged and not any(re.fullmatch(r"/dev/nvidia\d+", d) for d in one.devices)
