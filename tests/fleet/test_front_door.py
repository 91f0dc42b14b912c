"""The front door on booted hosts: certificate, keys, paths, health by a real answer, out and back under load."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import ipaddress
import itertools
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from lab.fleet import Lab
from lab.standin.vllm_standin import words
from tests.fleet.conftest import NAME, SUBNET, Fleet, Run, recipe, take_off

pytestmark = pytest.mark.lab

A, B = f"{NAME}-0", f"{NAME}-1"
DOOR, OTHER = (str(ipaddress.ip_network(SUBNET)[10 + i]) for i in range(2))
HANDLE = "python3 /etc/vllm-fleet/current/run/door.py /run/vllm-fleet/vllm-front-door"
CONFIG = "/etc/vllm-fleet/current/proxy/haproxy.cfg"
ALICE, BOB = "alice-" + "k3" * 20, "bob-" + "q7" * 20


@pytest.fixture(autouse=True)
def clean_hosts(lab: Lab) -> Iterator[None]:
    """Every test begins with hosts on which nothing is deployed."""
    yield
    others = "systemctl kill -s KILL recorder squatter sampler; systemctl stop recorder squatter sampler"
    take_off(lab, (A, B), f"{others}; rm -f /usr/local/bin/base64")


# ---- what the tests are made with


@dataclass
class Client:
    """One client of the front door: each answer is checked whole, word by word."""

    port: int = 8080
    trust: Path | None = None
    key: str | None = None
    timeout: float = 60
    kept: http.client.HTTPConnection | None = None

    def connect(self) -> http.client.HTTPConnection:
        if self.trust is None:
            return http.client.HTTPConnection(DOOR, self.port, timeout=self.timeout)
        context = ssl.create_default_context(cafile=str(self.trust))
        return http.client.HTTPSConnection(DOOR, self.port, timeout=self.timeout, context=context)

    def close(self) -> None:
        """Let go of the kept connection."""
        if self.kept:
            self.kept.close()
        self.kept = None

    def ask(
        self, path: str = "/v1/models", body: Any = None, method: str = "", **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of one request on a connection of its own."""
        connection = self.connect()
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def complete(self, prompt: str, tokens: int, stream: bool = False, keep: bool = False) -> str:
        """What is wrong with the answer; empty for a whole and right one."""
        connection = self.kept if keep and self.kept else self.connect()
        if keep:
            self.kept = None
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        body = {"model": "qwen3", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read().decode()
        except (OSError, http.client.HTTPException) as reason:
            connection.close()
            return f"{type(reason).__name__}: {reason}"
        if keep and not answer.will_close:
            self.kept = connection
        else:
            connection.close()
        if answer.status != 200:
            return f"HTTP {answer.status} {raw[:80]}"
        return fault_of(raw, prompt, tokens, stream)


def fault_of(raw: str, prompt: str, tokens: int, stream: bool) -> str:
    """The stand-in's text follows from the prompt, so a whole answer is known beforehand."""
    wanted = "".join(words.token(words.seed_of(prompt), i) for i in range(tokens))
    if stream:
        events = [line[6:] for line in raw.splitlines() if line.startswith("data: ")]
        if events[-1:] != ["[DONE]"]:
            return f"a stream without its end after {len(events)} events"
        parts = [json.loads(event) for event in events[:-1]]
        text = "".join(part["choices"][0]["text"] for part in parts if part["choices"])
        ends, count = parts[-2]["choices"][0]["finish_reason"], parts[-1]["usage"]["completion_tokens"]
    else:
        answer = json.loads(raw)
        text, count = answer["choices"][0]["text"], answer["usage"]["completion_tokens"]
        ends = answer["choices"][0]["finish_reason"]
    return "" if (text, ends, count) == (wanted, "length", tokens) else f"truncated: {ends} after {count} tokens"


@dataclass
class Load:
    """Clients that ask without a pause: streams and plain answers, on new and on kept connections."""

    clients: int = 8
    tokens: int = 40
    make: Callable[[], Client] = Client
    pause: float = 0.02
    count: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[float, str]] = field(default_factory=list)
    since: float = 0

    def __enter__(self) -> Load:
        self.over = threading.Event()
        self.since = time.monotonic()
        self.threads = [threading.Thread(target=self._client, args=(i,)) for i in range(self.clients)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self.threads)

    def _client(self, number: int) -> None:
        client, turn = self.make(), number
        while not self.over.is_set():
            fault = client.complete(f"client {number} asks {turn}", self.tokens, turn % 2 == 0, number % 4 < 2)
            self.count["failed" if fault else "whole"] += 1
            if fault:
                self.faults.append((round(time.monotonic() - self.since, 2), fault))
            turn += 1
            # some clients keep a connection idle for a while
            self.over.wait(self.pause * (20 if number % 4 == 0 else 1))
        client.close()


def until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until it is true."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - begin


def states(fleet: Fleet) -> dict[str, str]:
    """What the front door says of each backend."""
    rows = [line.split("\t") for line in fleet.ssh(A, f"{HANDLE} status").splitlines()]
    return {name: state for name, state, *_ in rows}


def answered(fleet: Fleet, host: str) -> int:
    """Requests that the engine of a host has finished."""
    said = fleet.ssh(host, "curl -s localhost:8000/metrics | grep ^vllm:request_success_total")
    return round(sum(float(line.split()[-1]) for line in said.splitlines()))


def started(fleet: Fleet) -> list[str]:
    """Main process of every unit, and when it was started."""
    ask = "systemctl show -p Id,MainPID,ExecMainStartTimestampMonotonic 'vllm-*'"
    return [fleet.ssh(host, ask) for host in (A, B)]


def changes(done: Run) -> str:
    """How many operations changed something: a number, or - for none."""
    assert done.code == 0, done.text
    return done.line("Grand total").split()[3]


def pasted(done: Run, **environment: str) -> str:
    """What the printed line gives, pasted into a shell."""
    line = done.text.strip().splitlines()[-1]
    assert line.startswith("Try it: curl ")
    out = subprocess.run(
        line.removeprefix("Try it: "), shell=True, capture_output=True, text=True, timeout=30,
        env={**os.environ, **environment},
    )  # fmt: skip
    return out.stdout


def certificate(path: Path, key: Any = None) -> Path:
    """A self-signed certificate for the front door's address, with its private key after it."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "front door")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(DOOR))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(pem) + private)
    return path


def served_serial() -> int:
    """Serial number of the certificate that a new connection is given."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((DOOR, 8080), 10) as plain, context.wrap_socket(plain) as wrapped:
        return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"").serial_number


def serial_of(path: Path) -> int:
    return x509.load_pem_x509_certificates(path.read_bytes())[0].serial_number


def write(fleet: Fleet, host: str, path: str, text: str) -> None:
    """A file on a host."""
    fleet.ssh(host, f"echo {base64.b64encode(text.encode()).decode()} | base64 -d >{path}")


SAMPLER = """
import glob, time
seen = set()
with open("/run/sampled", "w") as out:
    while True:
        for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            try:
                text = open(path, errors="replace").read()
            except OSError:
                continue
            if text not in seen:
                seen.add(text)
                out.write(text.replace(chr(0), " ") + chr(10))
                out.flush()
        time.sleep(0.02)
"""


# An engine that writes down what reaches it; what it answers follows the word in /run/recorder.mode.
RECORDER = """
import json, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        mode = open("/run/recorder.mode").read().strip()
        broken = mode == "broken" and self.command == "POST"
        answer = {"choices": [{"text": " recorded", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}
        data = b"" if self.path == "/health" else json.dumps({"error": "broken"} if broken else answer).encode()
        with open("/run/recorded", "a") as out:
            out.write(json.dumps([self.command, self.path, dict(self.headers)]) + chr(10))
        self.send_response(500 if broken else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


def record(fleet: Fleet) -> None:
    """Put the recorder in the place of the second engine."""
    write(fleet, B, "/root/recorder.py", RECORDER)
    fleet.ssh(
        B,
        "echo fine >/run/recorder.mode; rm -f /run/recorded; systemctl stop vllm-serve-1; "
        "systemd-run -q --unit recorder python3 /root/recorder.py",
    )
    until(lambda: fleet.lab.ssh(B, "curl -sf localhost:8000/health").returncode == 0, 10, "the recorder answers")
    # the front door looks every 3 s after one that is down
    until(lambda: states(fleet)["serve-1"] != "down", 8, "the recorder is in service")


def recorded(fleet: Fleet) -> list[tuple[str, str, dict[str, str]]]:
    """What has reached the recorder, less the front door's own checks and the host's own question."""
    found = [tuple(json.loads(line)) for line in fleet.ssh(B, "cat /run/recorded").splitlines()]
    hosts = [{name.lower(): value for name, value in row[2].items()}.get("host") for row in found]
    own = ("vllm-front-door", "localhost:8000")
    return [row for row, host in zip(found, hosts, strict=True) if host not in own]  # type: ignore[misc]


# ---- 1. the certificate


def test_a_certificate_is_served_kept_secret_and_renewed_without_a_gap(two: Fleet, tmp_path: Path) -> None:
    pem = certificate(tmp_path / "door.pem")
    two.data["tls_certificate"] = str(pem)
    slow = '#!/bin/sh\nsleep 0.3\nexec /usr/bin/base64 "$@"\n'  # so that what writes the secret is seen at work
    write(two, A, "/usr/local/bin/base64", slow)
    write(two, A, "/root/sampler.py", SAMPLER)
    two.ssh(A, "chmod +x /usr/local/bin/base64; systemd-run -q --unit sampler python3 /root/sampler.py")

    first = two.fleet("--yes", "-vvv")
    assert first.code == 0, first.text
    two.ssh(A, "rm /usr/local/bin/base64; systemctl stop sampler")
    assert "https://" in first.text.strip().splitlines()[-1]
    assert "stand-in " in pasted(first)
    with pytest.raises((OSError, http.client.HTTPException)):
        Client().ask()
    status, _, _ = Client(trust=pem).ask("/health")
    assert status == 200

    modes = two.ssh(A, "stat -c '%a %U %G' /etc/vllm-fleet /etc/vllm-fleet/secrets /etc/vllm-fleet/secrets/tls.pem")
    assert modes.splitlines() == ["755 root root", "700 root root", "600 root root"]
    assert two.ssh(A, "find /etc/vllm-fleet/secrets -type f") == "/etc/vllm-fleet/secrets/tls.pem"
    sampled = two.ssh(A, "cat /run/sampled")
    assert "/usr/local/bin/base64 -d" in sampled, "the sampler saw the write"
    said = two.ssh(A, "journalctl --no-pager -o cat; find /etc/vllm-fleet/releases -type f -exec cat {} +")
    for secret in fragments(pem):
        for where, text in (("output", first.text), ("process list", sampled), ("journal or release", said)):
            assert secret not in text, f"a piece of the private key is in the {where}"

    before = started(two)
    other = certificate(tmp_path / "renewed.pem")
    assert served_serial() == serial_of(pem)
    pem.write_bytes(other.read_bytes())
    seen: Counter[int] = Counter()
    refused: list[str] = []
    over = threading.Event()

    def connect() -> None:
        while not over.is_set():
            try:
                seen[served_serial()] += 1
            except OSError as reason:
                refused.append(repr(reason))

    threads = [threading.Thread(target=connect) for _ in range(3)]
    for thread in threads:
        thread.start()
    second = two.pyinfra("-y")
    until(lambda: served_serial() == serial_of(other), 5, "the new certificate is served")
    over.set()
    for thread in threads:
        thread.join(20)
    assert refused == []
    assert set(seen) == {serial_of(other)} or len(seen) == 2
    assert sum(seen.values()) > 20
    assert changes(second) == "1" and "certificate and keys" in second.line("certificate and keys", " 1 ")
    assert started(two) == before, "a renewed certificate restarts nothing"
    assert "stand-in " in pasted(second)
    assert changes(two.pyinfra("-y")) == "-"
    print(f"connections while the certificate was renewed: {sum(seen.values())}, refused: {len(refused)}")


def fragments(pem: Path) -> list[str]:
    """Pieces of the private key, as text and as it travels."""
    text = pem.read_text()
    lines = text.partition("PRIVATE KEY-----\n")[2].splitlines()[:-1]
    whole = base64.b64encode(text.encode()).decode()
    start = text.index("-----BEGIN PRIVATE") // 3 * 4
    return [*(line[:40] for line in lines), *(whole[i : i + 40] for i in range(start, len(whole) - 40, 40))]


# ---- 2. keys


def test_keys_let_their_clients_in_and_go_no_further(two: Fleet, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# clients\nalice {ALICE}\nbob {BOB}\n")
    two.data["api_keys"] = str(keys)
    first = two.fleet("--yes", "-vvv")
    assert first.code == 0, first.text
    assert "stand-in " in pasted(first, API_KEY=ALICE)

    for key, wanted in ((None, 401), (ALICE + "x", 401), ("", 401), (ALICE, 200), (BOB, 200)):
        status, body, headers = Client(key=key).ask()
        assert status == wanted, (key, body)
        if status == 401:
            assert headers["content-type"] == "application/json"
            assert json.loads(body)["error"]["code"] == 401
    for value in (ALICE, f"Basic {ALICE}", f"Bearer  {ALICE}x", f"Bearer x {ALICE}", "Bearer"):
        assert Client().ask(Authorization=value)[0] == 401, value
    assert Client().ask("/health")[0] == 200
    assert Client().ask("/metrics")[0] == 404
    for host in (A, B):
        for key in (ALICE, BOB):
            asked = f"grep -rlF {key[:20]} /etc/vllm-fleet /run/vllm-fleet; journalctl --no-pager | grep -cF {key[:20]}"
            assert two.lab.ssh(host, asked).stdout.strip() == "0", "no key is on a host"
    assert ALICE[:20] not in first.text and BOB[:20] not in first.text
    assert two.ssh(A, "stat -c '%a %U' /etc/vllm-fleet/secrets/api_keys") == "600 root"

    record(two)
    two.ssh(A, f"{HANDLE} out serve-0")
    assert Client(key=ALICE).ask("/v1/completions", {"prompt": "x"}, **{"X-Request-Id": "seen"})[0] == 200
    rows = recorded(two)
    assert len(rows) == 1, rows
    row = rows[0]
    names = {name.lower() for name in row[2]}
    assert "x-request-id" in names and "authorization" not in names
    two.ssh(B, "systemctl stop recorder; systemctl start vllm-serve-1")
    two.ssh(A, f"{HANDLE} back serve-0")
    until(lambda: set(states(two).values()) == {"in service"}, 15, "both engines are in service")

    before = started(two)
    keys.write_text(f"alice {ALICE}\n")
    bob = Client(key=BOB)
    assert bob.complete("kept", 2, keep=True) == "" and bob.kept
    with Load(make=lambda: Client(key=ALICE)) as load:
        time.sleep(1)
        second = two.pyinfra("-y")
        refused = bob.complete("gone", 2)
        late = [bob.complete(f"late {i}", 2, keep=True) for i in range(2)]
        time.sleep(1)
    assert refused.startswith("HTTP 401"), "a key that was taken out is refused after the run"
    assert late[0] == "" or late[0].startswith("HTTP 401"), "a connection from before may bring one more request"
    assert late[1].startswith("HTTP 401")
    bob.close()
    assert load.faults == [] and load.count["whole"] > 50
    assert changes(second) == "1"
    assert started(two) == before
    assert changes(two.pyinfra("-y")) == "-"
    print(f"requests of the other client while a key was taken out: {dict(load.count)}")


# ---- 3. which paths pass


def test_only_the_api_passes(two: Fleet) -> None:
    recipe(two.folder, env={"VLLM_STANDIN_TOKENS_PER_S": 20})
    assert two.pyinfra("-y").code == 0
    client = Client()
    text = {"model": "qwen3", "prompt": "x", "max_tokens": 2}
    talk = {"model": "qwen3", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for path, body in (("/v1/models", None), ("/v1/completions", text), ("/v1/chat/completions", talk)):
        for query in ("", "?x=1"):
            status, raw, _ = client.ask(path + query, body)
            assert status == 200, (path + query, raw)
            assert b"stand-in" in raw or b'"qwen3"' in raw

    began = time.monotonic()
    connection = client.connect()
    body = json.dumps({**talk, "max_tokens": 20, "stream": True})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    arrived = [time.monotonic() - began for line in answer if line.startswith(b"data: ")]
    connection.close()
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrived)]
    assert len(arrived) >= 20
    assert arrived[0] < 0.5 and arrived[-1] > 0.9, "parts arrive while they are made, 50 ms apart"
    assert max(gaps) < 0.5, gaps

    began = time.monotonic()
    large = {**text, "prompt": "x" * 5_000_000}
    assert client.ask("/v1/completions", large)[0] == 200
    took = time.monotonic() - began
    assert client.complete("one", 2, keep=True) == "" and (kept := client.kept)
    assert client.complete("two", 2, keep=True) == "" and client.kept is kept, "one connection, two requests"
    client.close()

    record(two)
    two.ssh(A, f"{HANDLE} out serve-0")
    closed = [
        *("/", "/metrics", "//metrics", "/docs", "/openapi.json", "/version", "/load", "/ping", "/tokenize"),
        *("/v1", "/v1/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/V1/models", "/v1/Models", "/METRICS"),
        *("/v1/..%2fmetrics", "/v1/../metrics", "/v1/models/../../metrics", "/v1/models/..%2f..%2fmetrics"),
        *("/v1/models/%2e%2e/%2e%2e/metrics", "/v1/responses/../load_lora_adapter", "/v1/models//../../metrics"),
        *("/v1//models", "//v1/models", "/v1/models/..\\..\\metrics", "/v1/models/../load_lora_adapter?x=1"),
        *("/v1/models/.%2e/load_lora_adapter", "/health?x=1", "/health/", "/v1/models%2f..%2f..%2fmetrics"),
    ]
    got = {path: (client.ask(path)[0], client.ask(path, {"x": 1})[0]) for path in closed}
    assert {path: found for path, found in got.items() if found != (404, 404)} == {}
    assert [row[1] for row in recorded(two)] == [], "none of them reached an engine"
    for path in ("/v1/models/qwen/Qwen3-235B", "/v1/responses/resp_1/cancel", "/v1/embeddings", "/v1/messages"):
        assert client.ask(path, {})[0] == 200, path
    assert len(recorded(two)) == 4
    print(f"refused paths: {len(closed)}; first part after {arrived[0]:.2f} s, last after {arrived[-1]:.2f} s, "
          f"longest gap {max(gaps):.2f} s; 5 MB in {took:.2f} s")  # fmt: skip


# ---- 4. health is a real answer


def test_an_engine_that_is_alive_but_gives_no_token_is_taken_out_and_comes_back(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    record(two)
    until(lambda: states(two)["serve-1"] == "in service", 8, "the recorder is in service")
    outcome: list[tuple[float, int]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            body = {"model": "qwen3", "prompt": "x", "max_tokens": 2}
            outcome.append((time.monotonic(), Client(timeout=20).ask("/v1/completions", body)[0]))
            over.wait(0.05)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    two.ssh(B, "echo broken >/run/recorder.mode")
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    assert two.lab.ssh(B, "curl -sf localhost:8000/health").returncode == 0, "its /health stays green"
    out_after = until(lambda: states(two)["serve-1"] == "down", 20, "the broken engine is out")
    is_out = time.monotonic()
    time.sleep(3)
    two.ssh(B, "echo fine >/run/recorder.mode")
    mended = time.monotonic()
    until(lambda: states(two)["serve-1"] == "in service", 10, "the mended engine is back")
    back_after = time.monotonic() - mended
    over.set()
    for thread in threads:
        thread.join(30)
    failed = [when for when, status in outcome if status != 200]
    assert out_after < 15, "a check each 10 s, another after 2 s"
    assert back_after < 6, "a check each 3 s"
    assert failed and max(failed) <= is_out, "once it is out nothing fails"
    print(
        f"broken engine out after {out_after:.1f} s, back {back_after:.1f} s after it was mended; of {len(outcome)} "
        f"requests {len(failed)} failed, all within {max(failed) - begin:.1f} s"
    )


def test_an_engine_that_hangs_is_taken_out_and_comes_back(two: Fleet) -> None:
    """With 3 s instead of 90 s for a check's answer: one that hangs is out after 12 s and twice that at most."""
    assert two.pyinfra("-y").code == 0
    text = two.ssh(A, f"cat {CONFIG}")
    assert "timeout check 90s" in text and "inter 10s fastinter 2s downinter 3s fall 2 rise 1" in text
    two.ssh(A, f"sed -i 's/timeout check 90s/timeout check 3s/' {CONFIG}; systemctl reload vllm-front-door")
    process = two.ssh(B, "systemctl show -p MainPID --value vllm-serve-1")
    with Load(clients=8, tokens=10) as load:
        time.sleep(1)
        two.ssh(B, f"kill -STOP {process}")
        try:
            out_after = until(lambda: states(two)["serve-1"] == "down", 25, "the hung engine is out")
            stuck = int(two.ssh(A, f"{HANDLE} status | grep serve-1 | cut -f3"))
            before, served = load.count["whole"], answered(two, A)
            with Load(clients=4, tokens=10) as after:
                time.sleep(3)
            assert int(two.ssh(A, f"{HANDLE} status | grep serve-1 | cut -f3")) == stuck, "nothing more goes to it"
        finally:
            two.ssh(B, f"kill -CONT {process}")
        back_after = until(lambda: states(two)["serve-1"] == "in service", 10, "the engine is back")
        time.sleep(1)
    assert out_after < 10 + 2 * 3 + 2 + 3
    assert back_after < 6
    assert 0 < stuck <= 8
    assert after.faults == [] and after.count["whole"] > 50
    assert answered(two, A) - served >= after.count["whole"] and load.count["whole"] > before
    assert load.faults == [], "those on the hung engine were answered when it went on"
    print(f"hung engine out after {out_after:.1f} s with {stuck} requests on it, back after {back_after:.1f} s; "
          f"meanwhile {dict(load.count + after.count)}")  # fmt: skip


# ---- 5. out, drained, back


def take_out_and_back(two: Fleet, name: str, host: str) -> dict[str, float]:
    """As a person or a rolling change does it: out, wait, stop, start, wait until it answers, back."""
    took, begin = {}, time.monotonic()
    two.ssh(A, f"{HANDLE} out {name}")
    until(lambda: two.lab.ssh(A, f"{HANDLE} drained {name}").returncode == 0, 30, f"{name} is drained")
    took["drained"] = time.monotonic() - begin
    assert states(two)[name] == "out"
    before = answered(two, host)
    time.sleep(1)
    assert answered(two, host) == before, "nothing goes to one that is out"
    two.ssh(host, f"systemctl stop vllm-{name}; systemctl start vllm-{name}")
    asked = "curl -sf localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"x\"}'"
    until(lambda: two.lab.ssh(host, asked).returncode == 0, 30, f"{name} answers")
    two.ssh(A, f"{HANDLE} back {name}")
    until(lambda: states(two)[name] == "in service", 10, f"{name} is in service")
    until(lambda: answered(two, host) > 3, 10, f"{name} serves")
    took["back"] = time.monotonic() - begin
    return took


def test_a_replica_goes_out_and_comes_back_under_load(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    with Load(clients=12, tokens=80) as load:
        time.sleep(1)
        took = take_out_and_back(two, "serve-1", B)
    assert load.faults == []
    assert load.count["whole"] > 100
    print(f"out and back under load: {dict(load.count)}, {took}")


def test_a_replica_goes_out_and_comes_back_while_the_front_door_is_reloaded(two: Fleet) -> None:
    recipe(two.folder, drain_seconds=1)
    assert two.pyinfra("-y").code == 0
    over, reloads = threading.Event(), []

    def reload() -> None:
        while not over.wait(0.7):
            reloads.append(two.lab.ssh(A, "systemctl reload vllm-front-door").returncode)

    reloader = threading.Thread(target=reload)
    with Load(clients=12, tokens=200) as load:  # each a second long, so that reloads meet requests in flight
        time.sleep(1)
        reloader.start()
        try:
            took = [take_out_and_back(two, "serve-1", B) for _ in range(2)]
        finally:
            over.set()
            reloader.join(60)
    assert load.faults == []
    assert load.count["whole"] > 60 and len(reloads) > 5 and set(reloads) == {0}
    print(f"out and back with {len(reloads)} reloads: {dict(load.count)}, {took}")


def test_a_replica_that_is_down_goes_out_too_and_a_reload_under_way_loses_nothing(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    two.ssh(B, "systemctl stop vllm-serve-1")
    until(lambda: states(two)["serve-1"] == "down", 20, "serve-1 is down")
    two.ssh(A, f"{HANDLE} out serve-1")
    two.ssh(B, "systemctl start vllm-serve-1")
    until(lambda: states(two)["serve-1"] == "out", 20, "serve-1 answers and stays out")
    wrong = []
    for turn in range(8):
        verb, wanted = ("back", "in service") if turn % 2 == 0 else ("out", "out")
        pause = 0.1 + turn * 0.03  # the new worker reads the states about then
        two.ssh(A, f"systemctl reload --no-block vllm-front-door; sleep {pause}; {HANDLE} {verb} serve-1; sleep 0.5")
        if states(two)["serve-1"] != wanted:
            wrong.append((turn, verb))
    assert wrong == []


def test_a_stream_outlives_a_reload_and_counts_until_it_ends(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    text = two.ssh(A, f"cat {CONFIG}")
    limits = {
        words[-2]: words[-1]
        for words in map(str.split, text.splitlines())
        if words[:1] in (["timeout"], ["hard-stop-after"])
    }
    assert limits["hard-stop-after"] == limits["server"], "a worker may finish what it has, as long as that may take"
    fault: list[str] = []
    stream = threading.Thread(target=lambda: fault.append(Client().complete("a long stream", 1400, stream=True)))
    stream.start()
    time.sleep(0.5)
    (name,) = (
        line.split("\t")[0] for line in two.ssh(A, f"{HANDLE} status").splitlines() if line.split("\t")[2] == "1"
    )
    two.ssh(A, f"systemctl reload vllm-front-door; sleep 0.5; {HANDLE} out {name}")
    begin, left = time.monotonic(), []
    while stream.is_alive() and time.monotonic() - begin < 30:
        left.append(two.lab.ssh(A, f"{HANDLE} drained {name}").stdout.strip())
    stream.join(1)
    assert fault == [""]
    assert set(left[:-1]) == {"1"} and len(left) > 3
    until(lambda: two.lab.ssh(A, f"{HANDLE} drained {name}").returncode == 0, 3, "drained")
    print(f"asked {len(left)} times while a stream from before the reload ran")


def test_other_ports_are_taken_on_by_a_reload(two: Fleet) -> None:
    assert two.pyinfra("-y").code == 0
    two.ssh(A, f"{HANDLE} out serve-1")
    door = two.ssh(A, "systemctl show -p MainPID --value vllm-front-door")
    path = Path(recipe(two.folder))
    data = yaml.safe_load(path.read_text())
    data["roles"]["serve"]["port"] = 8003
    path.write_text(yaml.safe_dump(data))
    done = two.pyinfra("-y")
    assert done.code == 0, done.text
    assert two.ssh(A, "systemctl show -p MainPID --value vllm-front-door") == door, "it was reloaded"
    assert states(two) == {"serve-0": "in service", "serve-1": "out"}, "what was out stays out"
    two.ssh(A, f"{HANDLE} back serve-1")
    until(lambda: set(states(two).values()) == {"in service"}, 10, "both are in service")
    assert [Client().complete(f"again {i}", 4) for i in range(8)] == [""] * 8


# ---- 6. vllm-router between


def test_replicas_behind_the_cache_aware_router(two: Fleet) -> None:
    two.data |= {"cache_aware": True}
    done = two.fleet("--yes")
    assert done.code == 0, done.text
    assert "stand-in " in pasted(done)
    its = "$(systemctl show -p ControlGroup --value vllm-router)"
    pids = two.ssh(A, f"cat /sys/fs/cgroup/{its}/cgroup.procs").split()
    listens = [row for row in two.ssh(A, "ss -ltnpH").splitlines() if any(f"pid={pid}," in row for pid in pids)]
    assert listens and all(row.split()[3].startswith("127.0.0.1:") for row in listens), listens
    assert set(states(two)) == {"serve-0", "serve-1"}
    for verb, wanted in (("back", "in service"), ("out", "out"), ("out", "out"), ("back", "in service")):
        two.ssh(A, f"{HANDLE} {verb} serve-1")
        assert states(two)["serve-1"] == wanted
    with Load(clients=8, tokens=80) as load:
        time.sleep(1)
        took = take_out_and_back(two, "serve-1", B)
    assert load.faults == []
    assert load.count["whole"] > 50
    assert min(answered(two, A), answered(two, B)) > 3
    print(f"out and back through the router: {dict(load.count)}, {took}")


# ---- 7. one that cannot start


def test_a_port_that_is_taken_is_told(two: Fleet) -> None:
    two.ssh(A, "systemd-run -q --unit squatter python3 -m http.server 8080")
    until(lambda: two.lab.ssh(A, "curl -sf localhost:8080").returncode == 0, 10, "the squatter answers")
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}: port 8080, which vllm-front-door needs for api, is held by squatter.service", "[HOST-PORT]")
    two.ssh(A, "systemctl stop squatter")
    assert two.pyinfra("-y").code == 0
    # the port of a door that runs already is changed to one that is taken
    two.ssh(A, "systemd-run -q --unit squatter python3 -m http.server 8090")
    until(lambda: two.lab.ssh(A, "curl -sf localhost:8090").returncode == 0, 10, "the squatter answers")
    two.data["proxy_port"] = 8090
    before = started(two)
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}: port 8090, which vllm-front-door needs for api, is held by squatter.service", "[HOST-PORT]")
    assert started(two) == before
    assert Client().complete("still there", 4) == ""


WEAK = "unable to load SSL certificate"  # an RSA key of 1024 bits: a certificate for us, none for OpenSSL


def test_a_front_door_that_cannot_start_is_told(two: Fleet, tmp_path: Path) -> None:
    pem = certificate(tmp_path / "weak.pem", rsa.generate_private_key(65537, 1024))
    two.data["tls_certificate"] = str(pem)
    done = two.pyinfra("-y")
    assert done.code == 1
    done.line(f"error: {A}:", "vllm-front-door", WEAK)
    certificate(pem)
    assert two.pyinfra("-y").code == 0


def test_a_certificate_that_cannot_be_taken_on_is_told_and_the_old_one_serves(two: Fleet, tmp_path: Path) -> None:
    pem, good = tmp_path / "door.pem", certificate(tmp_path / "good.pem")
    two.data["tls_certificate"] = str(pem)
    pem.write_bytes(good.read_bytes())
    assert two.pyinfra("-y").code == 0
    before = started(two)
    certificate(pem, rsa.generate_private_key(65537, 1024))
    with Load(make=lambda: Client(trust=good)) as load:
        done = two.pyinfra("-y")
    assert load.faults == [] and load.count["whole"] > 20, "the old one serves on"
    assert started(two) == before and served_serial() == serial_of(good)
    assert done.code == 1, done.text
    done.line(f"error: {A}:", "vllm-front-door", WEAK)
    pem.write_bytes(good.read_bytes())
    assert two.pyinfra("-y").code == 0


def test_a_broken_certificate_on_the_host_does_not_take_the_front_door_down(two: Fleet, tmp_path: Path) -> None:
    pem = certificate(tmp_path / "door.pem")
    two.data["tls_certificate"] = str(pem)
    assert two.pyinfra("-y").code == 0
    before = started(two)
    two.ssh(A, "echo broken >/etc/vllm-fleet/secrets/tls.pem")
    with Load(make=lambda: Client(trust=pem)) as load:
        assert two.lab.ssh(A, "systemctl reload vllm-front-door").returncode != 0
        time.sleep(1)
    assert load.faults == [] and load.count["whole"] > 20
    said = two.ssh(A, "journalctl -u vllm-front-door -n 20 -o cat --no-pager")
    assert "unable to load certificate" in said, said
    assert changes(two.pyinfra("-y")) == "1"
    assert started(two) == before
    assert two.lab.ssh(A, "systemctl reload vllm-front-door").returncode == 0


# ---- 8. after a reboot


def test_the_front_doors_host_reboots(two: Fleet, tmp_path: Path) -> None:
    keys, pem = tmp_path / "keys", certificate(tmp_path / "door.pem")
    keys.write_text(f"alice {ALICE}\n")
    two.data |= {"cache_aware": True, "api_keys": str(keys), "tls_certificate": str(pem)}
    assert two.pyinfra("-y").code == 0
    two.lab.power_off(A)
    two.lab.boot(A)
    begin = time.monotonic()
    client = Client(trust=pem, key=ALICE, timeout=5)
    until(lambda: client.complete("again", 4) == "", 60, "the front door serves")
    serves = time.monotonic() - begin
    with contextlib.suppress(AssertionError):
        until(lambda: set(states(two).values()) == {"in service"}, 30, "both engines are in service")
    assert set(states(two).values()) == {"in service"}
    whole = time.monotonic() - begin
    assert Client(trust=pem).ask()[0] == 401
    assert changes(two.pyinfra("-y")) == "-"
    print(f"serves {serves:.1f} s after the boot, both replicas after {whole:.1f} s")
