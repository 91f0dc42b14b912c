"""A lab of two hosts for whole deploys, beside a user's own, and short ways to run deploys on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from lab.fleet import Lab

REPOSITORY = Path(__file__).parents[2]
NAME, SUBNET = "fleettest", "10.231.80.0/24"
# The stand-in engine outside an image: its flag tables lie beside its folder.
STAND_IN = {
    str(REPOSITORY / "lab" / "standin"): "/opt/standin",
    str(REPOSITORY / "fleet" / "flags"): "/opt/flags",
    str(REPOSITORY / "files" / "flags"): "/opt/flags-tables",
}


@dataclass
class Run:
    """A finished command: exit code and everything it printed."""

    code: int
    text: str

    def line(self, *fragments: str) -> str:
        """The one line that holds all fragments; the whole output is shown if there is none."""
        for line in self.text.splitlines():
            if all(fragment in line for fragment in fragments):
                return line
        pytest.fail(f"no line with {fragments} in:\n{self.text}")


@dataclass
class Fleet:
    """An inventory for the lab's hosts in a folder of its own."""

    lab: Lab
    folder: Path
    groups: dict[str, list[str]]
    data: dict[str, object] = field(default_factory=dict)
    hosts: dict[str, dict[str, object]] = field(default_factory=dict)
    name: str = "fleet"

    @property
    def path(self) -> Path:
        """Writes the inventory and its group data, and gives the path."""
        lines, seen = [], set()
        addresses = {h.name: h.address for h in self.lab.hosts}
        for group, names in self.groups.items():
            entries = []
            for name in names:
                data = {"ssh_hostname": addresses.get(name, "10.231.80.99"), **self.hosts.get(name, {})}
                entries.append(repr(name) if name in seen else repr((name, data)))
                seen.add(name)
            lines.append(f"{group} = [{', '.join(entries)}]")
        (self.folder / "group_data").mkdir(exist_ok=True)
        path = self.folder / f"{self.name}.py"
        path.write_text("\n".join(lines) + "\n")
        values = {**access(self.lab), **self.data}
        text = "".join(f"{key} = {value!r}\n" for key, value in values.items())
        (self.folder / "group_data" / f"{self.name}.py").write_text(text)
        return path

    def pyinfra(self, *options: str, timeout: float = 300) -> Run:
        """``pyinfra OPTIONS INVENTORY deploy/serve.py`` from the repository's root."""
        return run([*PYINFRA, *options, str(self.path), "deploy/serve.py"], timeout)

    def fleet(self, *options: str, timeout: float = 300) -> Run:
        """``fleet run INVENTORY serve OPTIONS``."""
        return run([*FLEET, "run", str(self.path), "serve", *options], timeout)

    def ssh(self, host: str, command: str) -> str:
        """Output of a command that must succeed."""
        done = self.lab.ssh(host, command, timeout=120)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()


PYINFRA = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]
FLEET = [sys.executable, "-m", "fleet.cli.main"]


def run(command: list[str], timeout: float = 300) -> Run:
    environment = {**os.environ, "PYINFRA_PROGRESS": "off", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return Run(done.returncode, done.stdout)


def take_off(lab: Lab, hosts: Iterable[str], before: str = "true") -> None:
    """Take everything that a deploy put there off the hosts; ``before`` is done first. The lab's own units stay."""
    for host in hosts:
        lab.ssh(
            host,
            f"{before}; systemctl kill -s KILL 'vllm-[!l]*.service'; systemctl stop 'vllm-[!l]*.service'; "
            "systemctl reset-failed; rm -rf /etc/vllm-fleet /etc/systemd/system/vllm-[!l]*.service "
            "/etc/systemd/system/multi-user.target.wants/vllm-[!l]*; systemctl daemon-reload",
        )


def access(lab: Lab) -> dict[str, object]:
    """What an inventory says to reach the lab with strict host keys."""
    return {
        "ssh_user": "root",
        "ssh_key": str(lab.access_dir / "id_ed25519"),
        "ssh_known_hosts_file": str(lab.access_dir / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
        "ssh_look_for_keys": False,
        "ssh_allow_agent": False,
    }


def recipe(folder: Path, name: str = "recipe", **changes: object) -> str:
    """A recipe file for the stand-in, with the given arguments and environment of its one role."""
    data = {
        "title": "stand-in",
        "source": "tests",
        "platform": "cpu",
        "model": {"name": "lab/tiny-qwen3-moe", "served_name": "qwen3", "max_position_embeddings": 4096},
        "engine": {"vllm": "0.32.0"},
        "drain_seconds": 2,
        "start_timeout_seconds": 30,
        "roles": {
            "serve": {"host": "0.0.0.0", "port": 8000, "args": {"max-num-seqs": 8}, "env": {"VLLM_STANDIN_LOAD_S": 0}}
        },
    }
    serve = data["roles"]["serve"]  # type: ignore[index]
    for key, value in changes.items():
        if key in ("args", "env"):
            serve[key] |= value
        elif key == "data_parallel_size":
            serve[key] = value
        else:
            data[key] = value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two booted hosts with the stand-in at /opt/standin and the real engine at /opt/vllm/0.32.0."""
    from lab.engine import ensure_engine, ensure_router
    from lab.model import ensure_model

    ensure_engine(extras=["nixl"], say=print)
    ensure_router(say=print)
    ensure_model(say=print)
    made = Lab(NAME, SUBNET, tmp_path_factory.mktemp("lab"), say=print, shared=True)
    made.up(2, mounts=STAND_IN)
    yield made
    made.down()


@pytest.fixture
def two(lab: Lab, tmp_path: Path) -> Fleet:
    """Two replicas of the stand-in behind the front door."""
    data = {
        "recipe": recipe(tmp_path),
        "weights_dir": "/opt/models",
        "venv": "/opt/standin",
        "raise_limits": False,
    }
    names = [f"{NAME}-0", f"{NAME}-1"]
    return Fleet(lab, tmp_path, {"serve": names, "proxy": names[:1]}, data)
