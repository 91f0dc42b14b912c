"""The front door's handle, against a stand-in for HAProxy's admin socket; and its configuration, where HAProxy is."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fleet import ROOT, inventory, recipe, render
from fleet.plan import plan
from fleet.topology import Plan

DOOR = ROOT / "files/proxy/door.py"
# The columns of HAProxy 2.6 that are read, among some that are not.
COLUMNS = ["pxname", "svname", "qcur", "qmax", "scur", "smax", "stot", "status", "weight", "check_status"]
HEAD = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state "
    "bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr "
    "srv_agent_addr srv_agent_port\n"
)
STATE = "{} {} {} {} 10.0.0.1 2 {} 1 1 4 15 3 4 6 0 0 0 - {} - 0 0 - - 0\n"
ROWS = [(3, "service", 1, "set-0", 0), (3, "service", 2, "set-1", 8)]
STATES = HEAD + "".join(STATE.format(*row, 8200) for row in ROWS)
CONFIG = """\
global
    server-state-file /run/x/state
backend service
    # server of old
    default-server check inter 10s
    server set-0 10.0.0.1:8200
    server set-1 [::1]:8200
backend models
    server decode-0 10.0.0.2:8001
"""


@dataclass
class Admin:
    """What HAProxy would answer, and what it was told."""

    folder: Path
    servers: dict[str, tuple[str, int, int]]
    told: list[str] = field(default_factory=list)
    refusal: str = ""
    taken: dict[str, int] = field(default_factory=lambda: {"set-0": 0, "set-1": 8})
    resort: dict[str, int] = field(default_factory=lambda: {"set-0": 0, "set-1": 8})
    on_resort: dict[str, tuple[int, int]] = field(default_factory=dict)
    more: str = ""
    deaf: int = 0  # so many orders are a former worker's to hear
    worker: int = field(default_factory=os.getpid)

    def configure(self, text: str) -> None:
        """As a release has it: the program under run/, the configuration under proxy/."""
        (self.folder / "release/proxy").mkdir(parents=True, exist_ok=True)
        (self.folder / "release/proxy/haproxy.cfg").write_text(text)

    def answer(self, text: str) -> str:
        self.told.append(text)
        if text == "show stat":
            return self.stat()
        if text == "show servers state":
            return self.states()
        if text == "show info":
            return f"Name: HAProxy\nPid: {self.worker}\nUptime: 0d\n"
        order = re.fullmatch(r"set server (service)/(\S+) state (drain|ready)", text)
        if order and not self.refusal:
            self.deaf -= 1
            if self.deaf < 0:
                self.taken[order[2]] = 8 if order[3] == "drain" else 0
        return self.refusal or "\n"

    def states(self) -> str:
        rows = [STATE.format(3, "service", n, *its, 8200) for n, its in enumerate(self.taken.items(), 1)]
        return HEAD + "".join(rows) + self.more

    def stat(self) -> str:
        rows: list[tuple[str, str, str, int, int]] = [("api", "FRONTEND", "OPEN", 7, 0)]
        rows += [("service", name, status, scur, qcur) for name, (status, scur, qcur) in self.servers.items()]
        rows += [
            ("service", "BACKEND", "UP", 5, 1),
            ("models", "decode-0", "UP", 2, 0),
            ("models", "BACKEND", "UP", 2, 0),
        ]
        lines = [
            ",".join(
                {"pxname": px, "svname": sv, "qcur": str(q), "scur": str(s), "status": st}.get(c, "") for c in COLUMNS
            )
            for px, sv, st, s, q in rows
        ]
        return "# " + ",".join(COLUMNS) + ",\n" + "".join(f"{line},\n" for line in lines) + "\n"


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setattr(PROGRAM, "__file__", str(tmp_path / "release/run/door.py"))
    monkeypatch.setattr(PROGRAM, "time", SimpleNamespace(sleep=lambda seconds: None))
    made = Admin(tmp_path, {"set-0": ("UP", 3, 0), "set-1": ("DOWN 1/2", 0, 0), "set-2": ("DRAIN", 1, 2)})
    made.configure(CONFIG)
    (tmp_path / "release/run").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "admin.sock"))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    text = b""
                    while not text.endswith(b"\n"):
                        text += connection.recv(4096)
                    raw = made.answer(text.decode().strip()).encode()
                    for start in range(0, len(raw), 100):  # in parts, as sockets give it
                        connection.sendall(raw[start : start + 100])

        threading.Thread(target=serve, daemon=True).start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)


SPEC = importlib.util.spec_from_file_location("door", DOOR)
assert SPEC
assert SPEC.loader
PROGRAM = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PROGRAM)


def door(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and errors; in this process, which is faster."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = PROGRAM.main(str(folder), *words)
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def typed(folder: Path, *words: str) -> tuple[int, str, str]:
    """The same, as somebody types it."""
    done = subprocess.run(
        [sys.executable, str(DOOR), str(folder), *words], capture_output=True, text=True, check=False, timeout=20
    )
    return done.returncode, done.stdout, done.stderr


# ---- before sets or replicas


def test_every_backend_and_what_is_on_it(admin: Admin) -> None:
    told = (0, "set-0\tin service\t3\t0\nset-1\tdown\t0\t0\nset-2\tout\t1\t2\n", "")
    assert door(admin.folder, "status") == typed(admin.folder, "status") == told


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("UP", "in service"),
        ("UP 1/3", "in service"),
        ("DOWN", "down"),
        ("DOWN 1/2", "down"),
        ("DRAIN", "out"),
        ("MAINT", "out"),
        ("MAINT (via service/set-0)", "out"),
        ("NOLB", "nolb"),
    ],
)
def test_haproxys_words_for_a_state(admin: Admin, status: str, state: str) -> None:
    admin.servers = {"set-0": (status, 0, 0)}
    assert door(admin.folder, "status") == (0, f"set-0\t{state}\t0\t0\n", "")


@pytest.mark.parametrize(("verb", "name", "state"), [("out", "set-0", "drain"), ("back", "set-1", "ready")])
def test_a_backend_is_taken_out_and_back_and_a_reload_will_know(admin: Admin, verb: str, name: str, state: str) -> None:
    assert door(admin.folder, verb, name) == (0, "", "")
    assert admin.told == [
        *("show stat", f"set server service/{name} state {state}"),
        *["show servers state"] * 6,  # to remember them; and it stays so for a second
    ]
    assert admin.taken[name] == (8 if verb == "out" else 0)
    assert (admin.folder / "state").read_text() == admin.states()
    assert not (admin.folder / "state.new").exists()


@pytest.mark.parametrize("deaf", [1, 3])
def test_what_a_reload_takes_back_is_said_again(admin: Admin, deaf: int) -> None:
    """A former worker heard it, or the new one had read the states a moment before."""
    admin.deaf = deaf
    assert door(admin.folder, "out", "set-0") == (0, "", "")
    assert admin.told.count("set server service/set-0 state drain") == deaf + 1
    assert (admin.folder / "state").read_text() == admin.states()
    assert admin.taken["set-0"] == 8


def test_reloads_without_an_end_are_told(admin: Admin) -> None:
    admin.deaf = 1000
    told = "error: the front door is reloaded again and again; set-0 is not out\n"
    assert door(admin.folder, "out", "set-0") == (2, "", told)


@pytest.mark.parametrize("mode", [1, 8, 9])
def test_one_that_is_out_in_either_way_is_out_also_where_it_is_down(admin: Admin, mode: int) -> None:
    admin.taken["set-1"] = mode | 0x20
    assert PROGRAM.is_out(str(admin.folder), "set-1")
    assert not PROGRAM.is_out(str(admin.folder), "set-0")
    assert not PROGRAM.is_out(str(admin.folder), "set-9")


def test_what_haproxy_refuses_is_told_and_not_remembered(admin: Admin) -> None:
    admin.refusal = "Permission denied\n\n"
    assert door(admin.folder, "out", "set-1") == (2, "", "error: Permission denied\n")
    assert not (admin.folder / "state").exists()


@pytest.mark.parametrize(
    ("on_it", "code", "said"), [((0, 0), 0, "0\n"), ((3, 0), 1, "3\n"), ((0, 2), 1, "2\n"), ((3, 2), 1, "5\n")]
)
def test_drained_is_when_no_request_runs_or_waits(admin: Admin, on_it: tuple[int, int], code: int, said: str) -> None:
    admin.servers["set-0"] = ("DRAIN", *on_it)
    assert door(admin.folder, "drained", "set-0") == (code, said, "")


def test_states_are_saved(admin: Admin) -> None:
    (admin.folder / "state").write_text("old\n")
    assert door(admin.folder, "save") == (0, "", "")
    assert (admin.folder / "state").read_text() == STATES


def test_states_are_saved_for_the_configuration_that_comes(admin: Admin) -> None:
    """Ports are the new configuration's, and what it no longer has is left out."""
    admin.more = STATE.format(3, "service", 3, "set-2", 8, 8200) + STATE.format(5, "models", 1, "set-0", 0, 8001)
    admin.configure(CONFIG.replace("10.0.0.1:8200", "10.0.0.1:8300"))
    assert door(admin.folder, "save") == (0, "", "")
    assert (admin.folder / "state").read_text() == (
        HEAD + "".join(STATE.format(*row, 8300 if row[3] == "set-0" else 8200) for row in ROWS)
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(("holder", "count"), [("former", 1), ("worker", 0)])
def test_requests_of_workers_from_before_a_reload_count(admin: Admin, address: str, holder: str, count: int) -> None:
    """Of the worker that runs, HAProxy tells itself; a former one is another child of the same master."""
    sleeps = "import socket, sys, time; c = [socket.create_connection((sys.argv[1], int(sys.argv[2])))"
    sleeps += " for _ in range(int(sys.argv[3]))]; print('up', flush=True); time.sleep(60)"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener, contextlib.ExitStack() as ended:
        port = listener.getsockname()[1]
        pids = {}
        for name in ("worker", "former"):
            words = [sys.executable, "-S", "-c", sleeps, address, str(port), str(int(name == holder))]
            process = ended.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            ended.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            pids[name] = process.pid
        admin.worker = pids["worker"]
        admin.servers["set-0"] = ("DRAIN", 0, 0)
        admin.configure(f"backend service\n    server set-0 {f'[{address}]' if ':' in address else address}:{port}\n")
        assert door(admin.folder, "drained", "set-0") == (count, f"{count}\n", "")
        admin.servers["set-0"] = ("DRAIN", 2, 0)
        assert door(admin.folder, "drained", "set-0") == (1, f"{2 + count}\n", "")


@pytest.mark.parametrize("verb", ["out", "back", "drained"])
@pytest.mark.parametrize("name", ["set-3", "decode-0", "BACKEND"])
def test_what_is_no_backend_is_refused_with_those_there_are(admin: Admin, verb: str, name: str) -> None:
    assert door(admin.folder, verb, name) == (
        2,
        "",
        f"error: there is no backend {name}; there are: set-0, set-1, set-2\n",
    )
    assert admin.told == ["show stat"]


@pytest.mark.parametrize("words", [(), ("out",), ("drained",), ("up",)])
def test_half_a_command_is_answered_with_how_it_is_used(admin: Admin, words: tuple[str, ...]) -> None:
    code, out, err = typed(admin.folder, *words)
    assert (code, out) == (2, "")
    assert "door.py DIRECTORY out NAME" in err
    assert admin.told == []


def test_an_unknown_verb_is_one_line(admin: Admin) -> None:
    code, out, err = door(admin.folder, "up", "set-0")
    assert (code, out, err) == (2, "", f"error: unknown verb up; see the head of {PROGRAM.__file__}\n")


def test_a_front_door_that_does_not_run_is_one_line(tmp_path: Path) -> None:
    code, out, err = door(tmp_path, "status")
    assert (code, out) == (2, "")
    assert err == (
        f"error: {tmp_path}/admin.sock does not answer ([Errno 2] No such file or directory): is the unit running?\n"
    )


# ---- before a router and its replicas


class Behind(http.server.BaseHTTPRequestHandler):
    """vllm-router and its replicas in one: workers are listed, added and removed; metrics by the replica's path."""

    def do_GET(self) -> None:
        if self.path in self.state.get("refuses", ()):
            self.give(" busy\n", 503)
        elif self.path == "/workers":
            self.give(json.dumps({"workers": [{"url": url} for url in self.state["workers"]]}))
        else:
            self.give(self.state["metrics"].get(self.path, ""), 200 if self.path in self.state["metrics"] else 404)

    def do_POST(self) -> None:
        path, _, query = self.path.partition("?")
        self.state["asked"].append((path, urllib.parse.parse_qs(query)["url"][0]))
        refused = path in self.state.get("refuses", ())
        self.give(" busy\n" if refused else "ok", 503 if refused else 200)

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.state  # type: ignore[attr-defined]
        return found

    def give(self, text: str, code: int = 200) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # of the machine, and not for what is asked here
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Behind) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        metrics = '# HELP vllm:num_requests_running n\nvllm:num_requests_running{{engine="0"}} {}\n'
        metrics += 'vllm:num_requests_waiting{{engine="0"}} {}\nvllm:num_requests_waiting_by_reason{{reason="x"}} 9.0\n'
        metrics += 'vllm:num_requests_running{{engine="1"}} 0.0\n'
        state = {
            "url": url,
            "workers": [f"{url}/a/"],
            "asked": [],
            "metrics": {"/a/metrics": metrics.format("2.0", "1.0"), "/b/metrics": metrics.format("0.0", "0.0")},
        }
        server.state = state  # type: ignore[attr-defined]
        (tmp_path / "router.json").write_text(
            json.dumps({"router": url, "replicas": {"serve-0": f"{url}/a", "serve-1": f"{url}/b"}})
        )
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield state
        server.shutdown()


def test_replicas_behind_a_router_are_told_by_its_list_and_their_own_figures(
    behind: dict[str, Any], tmp_path: Path
) -> None:
    assert door(tmp_path, "status") == (0, "serve-0\tin service\t3\t0\nserve-1\tout\t0\t0\n", "")


@pytest.mark.parametrize(("verb", "path"), [("out", "/remove_worker"), ("back", "/add_worker")])
def test_a_replica_is_taken_out_of_the_router(behind: dict[str, Any], tmp_path: Path, verb: str, path: str) -> None:
    behind["workers"] = [f"{behind['url']}/{'b' if verb == 'out' else 'a'}"]
    assert door(tmp_path, verb, "serve-1") == (0, "", "")
    assert behind["asked"] == [(path, f"{behind['url']}/b")]


@pytest.mark.parametrize(("verb", "name"), [("out", "serve-1"), ("back", "serve-0")])
def test_what_is_so_already_is_not_asked_for(behind: dict[str, Any], tmp_path: Path, verb: str, name: str) -> None:
    assert door(tmp_path, verb, name) == (0, "", "")
    assert behind["asked"] == []


@pytest.mark.parametrize(("name", "code", "said"), [("serve-0", 1, "3\n"), ("serve-1", 0, "0\n")])
def test_a_replica_is_drained_by_its_own_figures(
    behind: dict[str, Any], tmp_path: Path, name: str, code: int, said: str
) -> None:
    assert door(tmp_path, "drained", name) == (code, said, "")


def test_a_dead_replica_does_not_hide_the_others(behind: dict[str, Any], tmp_path: Path) -> None:
    del behind["metrics"]["/b/metrics"]
    assert door(tmp_path, "status") == (0, "serve-0\tin service\t3\t0\nserve-1\tout\t0\t0\n", "")
    behind["workers"].append(f"{behind['url']}/b")
    assert door(tmp_path, "status") == (0, "serve-0\tin service\t3\t0\nserve-1\tdown\t0\t0\n", "")


def test_on_a_dead_replica_no_request_is_left(behind: dict[str, Any], tmp_path: Path) -> None:
    del behind["metrics"]["/b/metrics"]
    assert door(tmp_path, "drained", "serve-1") == (0, "0\n", "")
    gone = json.loads((tmp_path / "router.json").read_text())
    gone["replicas"]["serve-1"] = "http://127.0.0.1:1"  # where nobody listens
    (tmp_path / "router.json").write_text(json.dumps(gone))
    assert door(tmp_path, "drained", "serve-1") == (0, "0\n", "")


def test_a_replica_that_hangs_may_have_requests_left(
    behind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection and never answers: that is no 0."""
    monkeypatch.setattr(PROGRAM.http, "__defaults__", (0.2,))
    with socket.create_server(("127.0.0.1", 0)) as hung:
        known = json.loads((tmp_path / "router.json").read_text())
        known["replicas"]["serve-1"] = f"http://127.0.0.1:{hung.getsockname()[1]}"
        (tmp_path / "router.json").write_text(json.dumps(known))
        with pytest.raises(TimeoutError):  # which is one line and 2 where it is typed
            door(tmp_path, "drained", "serve-1")


def test_a_router_that_refuses_or_is_gone_is_one_line(behind: dict[str, Any], tmp_path: Path) -> None:
    behind["refuses"] = ["/remove_worker", "/add_worker"]
    for verb, name, path in (("out", "serve-0", "/remove_worker"), ("back", "serve-1", "/add_worker")):
        url = f"{behind['url']}/{'a' if verb == 'out' else 'b'}"
        asked = f"{behind['url']}{path}?url={urllib.parse.quote(url, safe='')}"
        assert door(tmp_path, verb, name) == (2, "", f"error: {asked} answers 503: busy\n")
    behind["refuses"] = ["/workers"]
    for words in (("status",), ("out", "serve-0"), ("back", "serve-1")):
        assert door(tmp_path, *words) == (2, "", f"error: {behind['url']}/workers answers 503: busy\n")
    (tmp_path / "router.json").write_text('{"router": "http://127.0.0.1:1", "replicas": {"serve-0": "http://x"}}')
    for words in (("out", "serve-0"), ("back", "serve-0"), ("status",)):
        code, out, err = door(tmp_path, *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: http://127.0.0.1:1/workers does not answer: ")


# ---- HAProxy itself reads what is written for it


def lay(name: str, groups: dict[str, list[str]], subnet: str, **data: Any) -> Plan:
    names = dict.fromkeys(n for hosts in groups.values() for n in hosts)
    fleet = inventory.build(
        "fleet.py", groups, {n: {"recipe": name, "address": n.replace("10.0.0.", subnet), **data} for n in names}
    )
    return plan(fleet, recipe.load(recipe.find(name)))


REPLICAS = {"serve": ["10.0.0.1", "10.0.0.2"], "proxy": ["10.0.0.1"]}
SETS = {"prefill": ["10.0.0.1", "10.0.0.2"], "decode": ["10.0.0.3", "10.0.0.4"], "proxy": ["10.0.0.9"]}


def own_certificate() -> str:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "h")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM) + private).decode()


@pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed; the lab's tests check it there")
@pytest.mark.parametrize("secret", [False, True], ids=["plain", "tls-and-keys"])
@pytest.mark.parametrize(
    ("name", "groups", "subnet", "data"),
    [
        ("lab/replicas", REPLICAS, "10.0.0.", {}),
        ("lab/replicas", REPLICAS, "10.0.0.", {"cache_aware": True, "service": "chat"}),
        ("lab/prefill-decode", SETS, "10.0.0.", {"sets": 2}),
        ("lab/replicas", REPLICAS, "fd00::", {}),
    ],
    ids=["replicas", "cache-aware", "sets", "ipv6"],
)
def test_haproxy_takes_the_configuration(
    tmp_path: Path, name: str, groups: dict[str, list[str]], subnet: str, data: dict[str, Any], secret: bool
) -> None:
    if secret:
        data = {**data, "tls_certificate": "c.pem", "api_keys": "keys"}
    made = lay(name, groups, subnet, **data)
    unit = next(u for u in made.units if u.config)
    text = render.config_of(made, unit).replace(f"/run/vllm-fleet/{unit.name}", str(tmp_path))
    text = text.replace(f"{made.home}/secrets", str(tmp_path)).replace("user haproxy", "").replace("group haproxy", "")
    (tmp_path / "state").touch()
    (tmp_path / "haproxy.cfg").write_text(text)
    if secret:
        (tmp_path / "tls.pem").write_text(own_certificate())
        (tmp_path / "api_keys").write_text(f"{'AB' * 32} alice\n")
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
