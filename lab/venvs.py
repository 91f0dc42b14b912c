"""Python environments made with uv from wheels, at a path of the cache but usable wherever hosts see them mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lab.errors import LabError
from lab.shell import run

MIN_PYTHON = (3, 11)
INSTALL_TIMEOUT_S = 1800.0


def uv() -> list[str]:
    """How to call uv: the one of the running environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "uv"
    if beside.is_file():
        return [str(beside)]
    try:
        as_module = subprocess.run(
            [sys.executable, "-m", "uv", "--version"], capture_output=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        as_module = None
    if as_module is not None and as_module.returncode == 0:
        return [sys.executable, "-m", "uv"]
    if found := shutil.which("uv"):
        return [found]
    raise LabError("uv, which installs the engines, is not in this Python environment: pip install -e '.[dev]'")


def find_links(environ: dict[str, str] | None = None) -> list[str]:
    """The folders and pages of wheels that pip is told to look into on this machine."""
    environ = dict(os.environ) if environ is None else environ
    text = environ.get("PIP_FIND_LINKS") or pip_setting("find-links")
    return text.split()


def pip_setting(name: str) -> str:
    """One value of pip's configuration files; empty when it is not set or pip is not there."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def has_wheel(links: list[str], pattern: str) -> bool:
    """Whether one of the folders holds a wheel whose name matches the pattern."""
    return any(any(Path(link.removeprefix("file://")).glob(pattern)) for link in links)


def make_venv(target: Path) -> None:
    """An empty environment whose scripts find it wherever it is mounted."""
    if sys.version_info < MIN_PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        raise LabError(f"the engines need Python 3.11 or newer and this is {have} ({sys.executable}): use a newer one")
    command = [*uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, str(target)]
    run(command, doing="making a Python environment", timeout=120)


def install(venv: Path, requirements: list[str], options: list[str]) -> None:
    """Install packages into the environment, compiled to bytecode.

    Without the bytecode every start of an engine pays for compiling: 90 s instead of 50 s.
    """
    command = [*uv(), "pip", "install", "--quiet", "--python", str(venv / "bin/python"), "--compile-bytecode"]
    for link in find_links():
        command += ["--find-links", link]
    for option in ("index-url", "extra-index-url"):
        for value in index_urls(option):
            command += [f"--{option}", value]
    run([*command, *options, *requirements], doing=f"installing {requirements[0]}", timeout=INSTALL_TIMEOUT_S)


def drop_unfinished(venv: Path, requirements: Iterable[str]) -> None:
    """Forget that packages (name==version) are installed, so that an install that was killed midway is done again."""
    for requirement in requirements:
        name = requirement.partition("==")[0].replace("-", "_")
        for folder in site_packages(venv).glob(f"{name}-*.dist-info"):
            shutil.rmtree(folder)


def index_urls(option: str) -> list[str]:
    """A package index other than the default one that the environment gives to pip; uv does not read pip's settings."""
    return os.environ.get(f"PIP_{option.upper().replace('-', '_')}", "").split()


def site_packages(venv: Path) -> Path:
    """The environment's package folder. Raises LabError when there is none."""
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    if not found:
        raise LabError(f"{venv} is not a Python environment: delete it and run `fleet lab up` again")
    return found[0]


def base_prefix() -> Path | None:
    """Where the interpreter that the environments link to lives, when hosts must have it mounted too; None for /usr."""
    prefix = Path(sys.base_prefix).resolve()
    return None if prefix == Path("/usr") else prefix


def require_interpreter(rootfs: Path) -> None:
    """Raise LabError when hosts would not have the interpreter: the system's own of another distribution."""
    interpreter = Path(sys.executable).resolve()
    if base_prefix() is None and not (rootfs / interpreter.relative_to("/")).exists():
        raise LabError(
            f"hosts do not have {interpreter}, which the engines would link to: "
            "run vllm-fleet from a Python of its own (uv venv --python 3.11 --managed-python)"
        )


def write_dist_info(venv: Path, name: str, version: str, extra: dict[str, str] | None = None) -> None:
    """Write the metadata of a distribution by hand, so that importlib.metadata (and `uv pip list`) knows it."""
    folder = site_packages(venv) / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "INSTALLER": "vllm-fleet-lab\n",
    }
    files |= extra or {}
    for file, text in files.items():
        (folder / file).write_text(text)
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in [*files, "RECORD"]))
