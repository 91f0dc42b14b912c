"""The lab: N real hosts on one Linux machine, booted in parallel, and cleaned up whatever happened to the last run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab import access, host, network
from lab.cache import cache_dir, lock
from lab.connections import Connections
from lab.engine import HOST_ENGINES, HOST_ROUTER, engines_dir, router_dir
from lab.errors import LabError
from lab.host import Host, HostFiles
from lab.model import HOST_MODELS, models_dir
from lab.mounts import remove_tree
from lab.plan import DEFAULT_NAME, DEFAULT_SUBNET, Address, make_plan
from lab.progress import Say, silent, step
from lab.requirements import require
from lab.rootfs import ensure_rootfs
from lab.state import HostState, LabState, load, save
from lab.venvs import base_prefix

LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class HostStatus:
    """A host as it is now. `state` is up, booting, off, dead or unfinished; `since` Unix seconds, 0 when unknown."""

    name: str
    address: str
    state: str
    since: float
    pid: int


class Lab:
    """A named lab. Two labs with different names and subnets live side by side.

    `directory` holds everything of the lab when given. Otherwise state and overlays lie in the cache, and the lab
    called "lab" puts its key, known_hosts, ssh_config and inventory.py into .lab/ of the current directory.
    `say` gets progress lines. With `shared`, commands as root share one connection to each host, until `down`. All
    methods raise LabError for what a user can cause.
    """

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        subnet: str = DEFAULT_SUBNET,
        directory: Path | None = None,
        say: Say = silent,
        shared: bool = False,
    ) -> None:
        self.plan = make_plan(name, subnet)
        self.name = name
        self.say = say
        self.directory = directory.absolute() if directory else cache_dir() / "labs" / name
        is_users = directory is None and name == DEFAULT_NAME
        self.access_dir = Path.cwd() / ".lab" if is_users else self.directory
        self.connections = Connections(self.directory) if shared else None

    # Where things are

    @property
    def state_file(self) -> Path:
        """The lab's state on disk."""
        return self.directory / "state.json"

    @property
    def ssh_config(self) -> Path:
        """The ssh configuration that reaches all hosts, wherever the caller stands."""
        return self.directory / "ssh_config"

    @property
    def inventory(self) -> Path:
        """The pyinfra inventory of all hosts."""
        return self.access_dir / "inventory.py"

    @property
    def hosts(self) -> list[Host]:
        """All hosts of the lab, running or not; empty when the lab is down."""
        state = load(self.state_file)
        return [self._host(entry) for entry in state.hosts] if state else []

    def files(self, name: str) -> HostFiles:
        """Where the files of one host lie."""
        return HostFiles(self.directory / "hosts" / name)

    # The verbs

    def up(
        self,
        count: int = 2,
        docker: bool = False,
        mounts: Mapping[str, str] | None = None,
        cpus: Sequence[int] = (),
    ) -> list[Host]:
        """Boot `count` hosts, or what is missing of them, and wait until all answer ssh.

        `mounts` adds read-only mounts (path here -> path in the hosts) to the default ones. `cpus` binds host i to
        one core, cpus[i % len(cpus)]; empty leaves hosts free, which measured no slower (docs/lab.md). A lab that a
        dead run left half-made is cleaned first. Hosts beyond `count` are left alone.
        """
        require()
        wanted = self.plan.hosts(count)
        rootfs = ensure_rootfs(docker, say=self.say)
        with self._locked():
            state = self._usable_state(docker)
            fresh = state is None
            if state is None:
                state = self._new_state(docker)
            state = replace(state, rootfs=state.rootfs or str(rootfs), access=str(self.access_dir))
            state = replace(state, mounts=dict(mounts or {}), cpus=list(cpus))
            try:
                self._boot_missing(state, wanted)
            except BaseException:
                if fresh:
                    self._clean()
                raise
        return self.hosts

    def down(self) -> None:
        """Remove the lab: processes, mounts, bridge, overlays and files; also what a killed run left without a word."""
        if self.connections:
            self.connections.close_all()
        with self._locked():
            self._clean()

    def status(self) -> list[HostStatus]:
        """Each host as it is now, not as it was last written down."""
        state = load(self.state_file)
        return [self._status(entry) for entry in state.hosts] if state else []

    def power_off(self, name: str) -> None:
        """Pull the plug of a host: everything in it ends at once, what it wrote stays."""
        with self._locked():
            state = self._loaded()
            entry = state.host(name)
            if self.connections:
                self.connections.close(name)
            host.kill(self.files(name), name, entry.pid)
            save(self.state_file, state.with_host(replace(entry, phase="off", pid=0, since=time.time())))

    def boot(self, name: str) -> Host:
        """Boot a host that is off, with everything it had written. A running one is left alone."""
        with self._locked():
            state = self._loaded()
            entry = state.host(name)
            if not host.is_running(self.files(name), entry.pid):
                state = self._start(state, entry)
                self._await(state, [name])
        return self._host(self._loaded().host(name))

    def reset(self, name: str) -> Host:
        """Boot a host afresh: everything it had written is gone, its ssh key and address stay."""
        with self._locked():
            state = self._loaded()
            entry = state.host(name)
            if self.connections:
                self.connections.close(name)
            host.kill(self.files(name), name, entry.pid)
            state = state.with_host(replace(entry, phase="new", pid=0))
            save(self.state_file, state)
            host.erase(self.files(name))
            self._await(self._start(state, state.host(name)), [name])
        return self._host(self._loaded().host(name))

    def ssh(
        self, name: str, command: str, timeout: float = 60.0, user: str = "root"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host by the system's ssh with strict host keys; `timeout` in seconds.

        The exit code is the command's own, 255 when ssh itself failed. Raises LabError on an unknown host or when
        the time is over.
        """
        self._loaded().host(name)
        ssh = self.ssh_command(user)
        shared = self.connections.options(ssh, name) if self.connections and user == "root" else []
        try:
            return subprocess.run(
                [*ssh, *shared, name, command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"host {name}: `{command[:60]}` did not end within {timeout:.0f} s") from None

    def ssh_command(self, user: str = "root") -> list[str]:
        """The system's ssh with the lab's configuration, to be followed by a host's name."""
        return ["ssh", "-F", str(self.ssh_config), "-l", user]

    # How they are done

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One run at a time changes a lab."""
        path = self.directory.parent / f".{self.directory.name}.lock"
        with lock(path, LOCK_WAIT_S, f"lab {self.name}"):
            yield

    def _loaded(self) -> LabState:
        """The state of a lab that is there."""
        state = load(self.state_file)
        if state is None:
            raise LabError(f"lab {self.name} is not up (no {self.state_file}): fleet lab up")
        return state

    def _host(self, entry: HostState) -> Host:
        return Host(entry.name, entry.address, entry.pid, self.files(entry.name).root)

    def _new_state(self, docker: bool) -> LabState:
        return LabState(self.name, str(self.plan.subnet), self.plan.bridge, str(self.access_dir), docker)

    def _usable_state(self, docker: bool) -> LabState | None:
        """The state to go on with; a lab that cannot be gone on with is cleaned first, which leaves None."""
        try:
            state = load(self.state_file)
        except LabError:
            state = None
        alive = [entry for entry in state.hosts if self._status(entry).state in ("up", "off")] if state else []
        if state is None or not alive:
            self._clean()
            return None
        if (state.docker, state.subnet) != (docker, str(self.plan.subnet)):
            have = f"{'with' if state.docker else 'without'} Docker on {state.subnet}"
            raise LabError(f"lab {self.name} runs {have}; to have it otherwise: fleet lab down, then up")
        return state

    def _boot_missing(self, state: LabState, wanted: Sequence[Address]) -> None:
        """Boot those of the wanted hosts that do not run, all at once."""
        known = {entry.name for entry in state.hosts}
        added = [HostState(address.name, address.address) for address in wanted if address.name not in known]
        state = replace(state, hosts=[*state.hosts, *added])
        save(self.state_file, state)
        missing = [entry for entry in state.hosts[: len(wanted)] if self._status(entry).state != "up"]
        network.bridge_up(self.plan)
        network.allow_inotify(len(state.hosts))
        if not missing:
            self._write_access(state)
            return
        with step(self.say, f"booting {', '.join(entry.name for entry in missing)}", usual_s=4):
            for entry in missing:
                host.kill(self.files(entry.name), entry.name, entry.pid)
                if entry.phase in ("new", "booting"):
                    host.erase(self.files(entry.name))
                state = self._start(state, entry)
            self._write_access(state)
            self._await(state, [entry.name for entry in missing])

    def _start(self, state: LabState, entry: HostState) -> LabState:
        """Prepare one host and start it; does not wait."""
        files, address = self.files(entry.name), Address(entry.name, entry.address)
        public_key = access.ensure_key(self.directory / access.KEY, f"vllm-fleet {self.name}")
        save(
            self.state_file, state.with_host(replace(entry, phase="new" if entry.phase == "new" else "booting", pid=0))
        )
        host.prepare(files, Path(state.rootfs), address, self.plan, public_key)
        index = [known.name for known in state.hosts].index(entry.name)
        cpu = state.cpus[index % len(state.cpus)] if state.cpus else None
        mounts = default_mounts() | state.mounts
        command = host.nspawn_command(files, address, self.plan.bridge, mounts, state.docker, cpu)
        await_unplugged(entry.name)
        pid = host.boot(files, address, command)
        started = state.with_host(replace(entry, phase="booting", pid=pid, since=time.time()))
        save(self.state_file, started)
        return started

    def _await(self, state: LabState, names: Sequence[str]) -> None:
        """Wait until the named hosts answer ssh, and write down that they are up."""
        deadline = time.monotonic() + host.BOOT_TIMEOUT_S
        for name in names:
            entry = state.host(name)
            host.wait_ssh(self.files(name), Address(name, entry.address), entry.pid, deadline)
            state = state.with_host(replace(entry, phase="up"))
            save(self.state_file, state)

    def _write_access(self, state: LabState) -> None:
        """Write keys, known_hosts, ssh_config and inventory for all hosts that have a key."""
        addresses = [Address(entry.name, entry.address) for entry in state.hosts]
        keys = [access.ensure_key(self.files(address.name).key, f"root@{address.name}") for address in addresses]
        for directory in {self.directory, self.access_dir}:
            access.write_access(directory, self.directory / access.KEY, addresses, keys)
        if self.access_dir != self.directory:
            access.link_hosts(self.access_dir, self.directory / "hosts")

    def _status(self, entry: HostState) -> HostStatus:
        running = host.is_running(self.files(entry.name), entry.pid)
        seen = {"off": "off", "new": "unfinished"}.get(entry.phase, "dead")
        if running:
            seen = "up" if host.greets(entry.address) else "booting"
        return HostStatus(entry.name, entry.address, seen, entry.since, entry.pid if running else 0)

    def _clean(self) -> None:
        """Take away everything of this lab, from the state file and from what the kernel says."""
        try:
            state = load(self.state_file)
        except LabError:
            state = None
        entries = {entry.name: entry.pid for entry in state.hosts} if state else {}
        folder = self.directory / "hosts"
        found = {path.name: 0 for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else {}
        for name, pid in (found | entries).items():
            host.kill(self.files(name), name, pid)
        remove_tree(folder)
        network.bridge_down(self.plan)
        for directory in {self.access_dir, Path(state.access) if state else self.access_dir}:
            access.remove_access(directory)
        self.state_file.unlink(missing_ok=True)
        for unfinished in self.directory.glob(".*.tmp-*"):  # of a run killed between writing and renaming
            unfinished.unlink(missing_ok=True)
        access.remove_access(self.directory)


def await_unplugged(name: str, timeout: float = 5.0) -> None:
    """Wait until the cable of a host that was just killed is gone: the kernel takes it away a moment after the last
    process, and until then nspawn ends with "Failed to add new veth interfaces: File exists".
    """
    cable = Path("/sys/class/net") / f"vb-{name}"[:15]
    deadline = time.monotonic() + timeout
    while cable.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def default_mounts() -> dict[str, str]:
    """What every host gets read-only: engines, router, models, and the interpreter that their environments link to."""
    for folder in (engines_dir(), models_dir()):
        folder.mkdir(parents=True, exist_ok=True)
    mounts = {str(engines_dir()): str(HOST_ENGINES), str(models_dir()): str(HOST_MODELS)}
    if router_dir().is_dir():
        mounts[str(router_dir())] = str(HOST_ROUTER)
    if base := base_prefix():
        mounts[str(base)] = str(base)
    return mounts
