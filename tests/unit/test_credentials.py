"""API keys and certificates: the operator's files, good and bad, and what of them reaches a host."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from fleet import ROOT, credentials, inventory, recipe
from fleet.findings import FleetError
from fleet.plan import plan
from fleet.topology import Plan
from tasks.credentials import SecretDigests, _take_on, _write, files_of

ALICE, BOB = "0123456789abcdef0123456789", "sk-" + "Zz9!~" * 6
NOW = datetime.now(timezone.utc)


# ---- keys


def test_hosts_get_hashes_and_names() -> None:
    made = credentials.key_hashes(f"alice {ALICE}\nbob\t{BOB}\n", "keys")
    assert made.name == "api_keys"
    assert set(made.text.splitlines()) == {
        f"{hashlib.sha256(ALICE.encode()).hexdigest().upper()} alice",
        f"{hashlib.sha256(BOB.encode()).hexdigest().upper()} bob",
    }
    assert made.text.endswith("\n")
    assert ALICE not in made.text
    assert made.digest == hashlib.sha256(made.text.encode()).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        f"bob {BOB}\nalice {ALICE}\n",
        f"alice {ALICE}\nbob {BOB}",
        f"\n# clients\n  alice \t {ALICE}  \r\n\r\nbob {BOB}\r\n   # the end\n",
    ],
    ids=["turned", "no-last-newline", "comments-and-spaces"],
)
def test_the_same_keys_are_the_same_file(text: str) -> None:
    assert credentials.key_hashes(text, "k").text == credentials.key_hashes(f"alice {ALICE}\nbob {BOB}\n", "k").text


@pytest.mark.parametrize("client", ["a", "team@example.org", "a.b-c_d", "A1", "x" * 64])
def test_clients_have_plain_names(client: str) -> None:
    assert credentials.key_hashes(f"{client} {ALICE}", "k").text.endswith(f" {client}\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["k: the file has no keys; write a line as: client key"]),
        ("\n# alice was here\n", ["k: the file has no keys; write a line as: client key"]),
        ("alice\n", ["k:1: this is no client and key; write a line as: client key, the key without spaces"]),
        (f"{ALICE}\n", ["k:1: this is no client and key; write a line as: client key, the key without spaces"]),
        (f"alice {ALICE} x\n", ["k:1: this is no client and key; write a line as: client key, the key without spaces"]),
        (f"alice: {ALICE}\n", ["k:1: this is no client and key; write a line as: client key, the key without spaces"]),
        (f"älice {ALICE}\n", ["k:1: this is no client and key; write a line as: client key, the key without spaces"]),
        (
            f"{'x' * 65} {ALICE}\n",
            ["k:1: this is no client and key; write a line as: client key, the key without spaces"],
        ),
        (
            "alice ключ-ключ-ключ-ключ-ключ\n",
            ["k:1: this is no client and key; write a line as: client key, the key without spaces"],
        ),
        (
            f"\ufeffalice {ALICE}\n",
            ["k:1: this is no client and key; write a line as: client key, the key without spaces"],
        ),
        (
            f"# x\nalice {ALICE[:23]}\n",
            ["k:2: the key of alice is shorter than 24 characters; make one with: openssl rand -hex 24"],
        ),
        (
            f"alice {ALICE}\nalice {BOB}\n",
            ["k:2: alice has a key in line 1 already; give each client one name and one key"],
        ),
        (f"alice {ALICE}\nbob {ALICE}\n", ["k:2: bob has the same key as alice; give each client its own"]),
        (
            f"alice {ALICE}\nalice {ALICE}\n",
            [
                "k:2: alice has a key in line 1 already; give each client one name and one key",
                "k:2: alice has the same key as alice; give each client its own",
            ],
        ),
        (
            "alice\n\nbob short\ncarol\n",
            [
                "k:1: this is no client and key; write a line as: client key, the key without spaces",
                "k:3: the key of bob is shorter than 24 characters; make one with: openssl rand -hex 24",
                "k:4: this is no client and key; write a line as: client key, the key without spaces",
            ],
        ),
    ],
    ids=[
        *("empty", "comments-only", "no-key", "no-client", "three-words", "colon", "letters", "long-name"),
        *("no-ascii", "byte-order-mark", "short", "two-keys", "one-key-for-two", "twice", "all-at-once"),
    ],
)
def test_bad_key_files(text: str, told: list[str]) -> None:
    with pytest.raises(FleetError) as refused:
        credentials.key_hashes(text, "k")
    assert [f.line() for f in refused.value.findings] == [f"error: {line} [SECRET-KEYS]" for line in told]


def test_a_key_of_the_shortest_length_will_do() -> None:
    assert credentials.key_hashes(f"alice {ALICE[:24]}", "k").text.count("\n") == 1


def test_no_key_is_ever_told() -> None:
    text = f"alice {ALICE}\nbob {ALICE}\nbob short-key\nbob {BOB} {BOB}\n"
    with pytest.raises(FleetError) as refused:
        credentials.key_hashes(text, "k")
    said = str(refused.value)
    assert not [key for key in (ALICE, BOB, "short-key") if key in said]


def test_the_text_of_a_secret_file_is_not_shown() -> None:
    made = credentials.key_hashes(f"alice {ALICE}", "k")
    assert repr(made) == "SecretFile(name='api_keys')"


# ---- certificates


@pytest.mark.parametrize("kind", ["ec", "rsa", "ed25519"])
def test_a_certificate_with_its_key(kind: str) -> None:
    text = pem(kind) + key_text(kind)
    made = credentials.certificate(text, "c.pem")
    assert (made.name, made.text) == ("tls.pem", text)
    assert made.text not in repr(made)


@pytest.mark.parametrize(
    ("form", "begins"),
    [(PrivateFormat.PKCS8, "-----BEGIN PRIVATE KEY"), (PrivateFormat.TraditionalOpenSSL, "-----BEGIN EC PRIVATE KEY")],
)
def test_either_form_of_key_is_read(form: PrivateFormat, begins: str) -> None:
    key = key_text("ec", form)
    assert key.startswith(begins)
    credentials.certificate(pem("ec") + key, "c.pem")


def test_the_key_may_stand_first_and_a_chain_may_follow() -> None:
    credentials.certificate(key_text("ec") + pem("ec") + pem("rsa"), "c.pem")


def test_what_stands_between_the_blocks_is_passed_over() -> None:
    text = f"subject=/CN=h\n{pem('ec')}\nBag Attributes\n{key_text('ec')}"
    assert credentials.certificate(text.replace("\n", "\r\n"), "c.pem").text.count("\r\n") > 3


ONE_FILE = "; put certificate, chain and private key into one PEM file"
NO_CERTIFICATE = "the file has no certificate that can be read" + ONE_FILE
NO_KEY = "the file has no private key that can be read without a password" + ONE_FILE
NOT_ITS_KEY = "the private key does not belong to the first certificate; put the server's own certificate first"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", NO_CERTIFICATE),
        ("no certificate\n", NO_CERTIFICATE),
        ("KEY", NO_CERTIFICATE),
        ("CUT", NO_CERTIFICATE),
        ("CERT", NO_KEY),
        ("CERT+LOCKED", NO_KEY),
        ("CERT+LOCKED-OLD", NO_KEY),
        ("CERT+DAMAGED", NO_KEY),
        ("CERT+OTHER", NOT_ITS_KEY),
        ("CHAIN-FIRST", NOT_ITS_KEY),
    ],
)
def test_bad_certificate_files(text: str, told: str) -> None:
    key = key_text("ec")
    locked = BestAvailableEncryption(b"secret")
    files = {
        "KEY": key,
        "CUT": pem("ec")[:200] + "\n-----END CERTIFICATE-----\n" + key,
        "CERT": pem("ec"),
        "CERT+LOCKED": pem("ec") + key_text("ec", encryption=locked),
        "CERT+LOCKED-OLD": pem("ec") + key_text("ec", PrivateFormat.TraditionalOpenSSL, locked),
        "CERT+DAMAGED": pem("ec") + key[:40] + "A" * 20 + key[60:],
        "CERT+OTHER": pem("ec") + key_text("other"),
        "CHAIN-FIRST": pem("rsa") + pem("ec") + key,
    }
    with pytest.raises(FleetError) as refused:
        credentials.certificate(files.get(text, text), "c.pem")
    assert [f.line() for f in refused.value.findings] == [f"error: c.pem: {told} [SECRET-TLS]"]


def test_a_certificate_for_a_kind_of_key_that_nobody_knows() -> None:
    der = base64.b64decode("".join(pem("ec").splitlines()[1:-1]))
    kind = bytes.fromhex("06072a8648ce3d0201")  # id-ecPublicKey
    unknown = base64.encodebytes(der.replace(kind, kind[:-1] + b"\x09")).decode()
    with pytest.raises(FleetError):
        credentials.certificate(
            f"-----BEGIN CERTIFICATE-----\n{unknown}-----END CERTIFICATE-----\n{key_text('ec')}", "c.pem"
        )


# ---- from the operator's files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys").write_text(f"alice {ALICE}\n")
    (tmp_path / "c.pem").write_text(pem("ec") + key_text("ec"))
    return tmp_path


def test_both_are_read(folder: Path) -> None:
    found = files_of(lay(tls_certificate=str(folder / "c.pem"), api_keys=str(folder / "keys")))
    assert [f.name for f in found] == ["tls.pem", "api_keys"]


def test_nothing_is_read_where_nothing_is_asked_for() -> None:
    assert files_of(lay()) == ()


def test_a_path_may_begin_with_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert [f.name for f in files_of(lay(api_keys="~/keys"))] == ["api_keys"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", "cannot be read: no such file or directory; mend the path or its rights"),
        ("folder", "cannot be read: is a directory; mend the path or its rights"),
        ("keys/x", "cannot be read: not a directory; mend the path or its rights"),
        ("x" * 300, "cannot be read: file name too long; mend the path or its rights"),
        ("binary", "the file is no text; name the right one"),
        ("large", "the file is larger than 1 MB; name the right one"),
    ],
)
@pytest.mark.parametrize(("key", "rule"), [("api_keys", "SECRET-KEYS"), ("tls_certificate", "SECRET-TLS")])
def test_files_that_cannot_be_read(folder: Path, name: str, told: str, key: str, rule: str) -> None:
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "large").write_bytes(b"#" * 1_000_001)
    path = str(folder / name)
    with pytest.raises(FleetError) as refused:
        files_of(lay(**{key: path}))
    assert [f.line() for f in refused.value.findings] == [f"error: {path}: {told} [{rule}]"]


@pytest.mark.parametrize("path", ["~nobody-of-that-name/keys", "keys\0"])
def test_paths_that_no_file_can_have(path: str) -> None:
    with pytest.raises(FleetError):
        files_of(lay(api_keys=path))


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (400, None),
        (-3, f"the certificate expired on {NOW - timedelta(days=3):%Y-%m-%d}; put a new one there"),
    ],
)
def test_an_expired_certificate_is_refused(folder: Path, days: int, told: str | None) -> None:
    path = folder / "c.pem"
    path.write_text(pem("ec", until=NOW + timedelta(days=days)) + key_text("ec"))
    if told is None:
        assert files_of(lay(tls_certificate=str(path)))
        return
    with pytest.raises(FleetError) as refused:
        files_of(lay(tls_certificate=str(path)))
    assert [f.line() for f in refused.value.findings] == [f"error: {path}: {told} [SECRET-TLS]"]


@pytest.mark.parametrize(
    ("starts", "valid"),
    [(timedelta(hours=-1), True), (timedelta(hours=1), False), (timedelta(days=3), False)],
    ids=["an-hour-ago", "in-an-hour", "in-three-days"],
)
def test_a_certificate_that_is_not_valid_yet_is_refused(folder: Path, starts: timedelta, valid: bool) -> None:
    path, first = folder / "c.pem", NOW + starts
    path.write_text(pem("ec", since=first) + key_text("ec"))
    if valid:
        assert [f.name for f in files_of(lay(tls_certificate=str(path)))] == ["tls.pem"]
        return
    with pytest.raises(FleetError) as refused:
        files_of(lay(tls_certificate=str(path)))
    assert [f.line() for f in refused.value.findings] == [
        f"error: {path}: the certificate is not valid before {first:%Y-%m-%d %H:%M} UTC; "
        "wait, or set this machine's clock [SECRET-TLS]"
    ]


def test_the_first_certificate_counts_not_the_chain(folder: Path) -> None:
    path = folder / "c.pem"
    path.write_text(pem("ec") + pem("rsa", since=NOW + timedelta(days=1)) + key_text("ec"))
    assert [f.name for f in files_of(lay(tls_certificate=str(path)))] == ["tls.pem"]


@pytest.mark.parametrize("path", ["", "  "])
@pytest.mark.parametrize("key", ["api_keys", "tls_certificate"])
def test_an_empty_path_is_no_path(key: str, path: str) -> None:
    with pytest.raises(FleetError, match=rf"{key}: this is no path; name a file on this machine, or leave it out"):
        lay(**{key: path})


# ---- on the host


def test_a_secret_is_written_beside_and_renamed_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/chown").write_text(f'#!/bin/sh\nstat -c %a "$2" > {tmp_path}/mode\necho "$*" > {tmp_path}/chown\n')
    (tmp_path / "bin/chown").chmod(0o755)
    secrets = tmp_path / "home/secrets"
    text = _write(str(secrets), "api_keys")
    for content in ("one\n", "two\n"):
        shell(text, tmp_path, base64.b64encode(content.encode()).decode())
        assert (secrets / "api_keys").read_text() == content
    assert sorted(p.name for p in secrets.iterdir()) == [".api_keys.old", "api_keys"]
    assert (secrets / ".api_keys.old").read_text() == "one\n"  # until the front door has taken the new one on
    assert (secrets / ".api_keys.old").stat().st_mode & 0o777 == 0o600
    assert (secrets.stat().st_mode & 0o777, (secrets / "api_keys").stat().st_mode & 0o777) == (0o700, 0o600)
    assert (tmp_path / "mode").read_text() == "600\n"  # before its owner was changed
    assert (tmp_path / "chown").read_text() == f"root:root {secrets}/.api_keys.new\n"


@pytest.mark.parametrize(
    ("running", "takes", "code", "left"),
    [
        (True, True, 0, {"api_keys": "new\n", "tls.pem": "new\n"}),
        (True, False, 1, {"api_keys": "old\n", "tls.pem": "new\n"}),  # there was no certificate before
        (False, False, 0, {"api_keys": "new\n", "tls.pem": "new\n"}),
    ],
    ids=["taken-on", "refused", "not-running"],
)
def test_the_old_secret_is_kept_until_the_front_door_has_taken_the_new_one_on(
    tmp_path: Path, running: bool, takes: bool, code: int, left: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("systemctl", f'case "$1" in is-active) exit {int(not running)};; reload) exit {int(not takes)};; esac'),
        ("journalctl", "echo unable to load certificate"),
        ("chown", ":"),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    secrets = tmp_path / "home/secrets"
    shell(_write(str(secrets), "api_keys"), tmp_path, base64.b64encode(b"old\n").decode())
    for name in ("api_keys", "tls.pem"):
        shell(_write(str(secrets), name), tmp_path, base64.b64encode(b"new\n").decode())
    done = shell(_take_on(str(secrets), "vllm-front-door", ["api_keys", "tls.pem"]), tmp_path, check=False)
    assert (done.returncode, done.stdout) == (code, "unable to load certificate\n" if code else "")
    assert {p.name: p.read_text() for p in secrets.iterdir()} == left


@pytest.mark.parametrize("key", ["api_keys", "tls_certificate"])
@pytest.mark.parametrize("kind", ["pipe", "device", "device-without-end"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, key: str, kind: str) -> None:
    path = {"pipe": str(tmp_path / "pipe"), "device": "/dev/null", "device-without-end": "/dev/zero"}[kind]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FleetError) as refused:
        files_of(lay(**{key: path}))
    rule = "SECRET-KEYS" if key == "api_keys" else "SECRET-TLS"
    assert [f.line() for f in refused.value.findings] == [f"error: {path}: this is no file; name a file [{rule}]"]


@pytest.mark.parametrize("mask", ["022", "077", "000"])
def test_what_lies_beside_the_secrets_stays_readable(tmp_path: Path, mask: str) -> None:
    """Engines read their commands there as other users; whatever the login's own mask, and also on a bare host."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/chown").symlink_to("/bin/true")
    home = tmp_path / "vllm-fleet/services/chat"
    text = _write(str(home / "secrets"), "api_keys")
    for content in ("one\n", "two\n"):
        shell(f"umask {mask}; {text}", tmp_path, base64.b64encode(content.encode()).decode())
        modes = [p.stat().st_mode & 0o777 for p in (home.parents[1], home.parent, home, home / "secrets")]
        assert modes == [0o755, 0o755, 0o755, 0o700]
        assert (home / "secrets/api_keys").stat().st_mode & 0o777 == 0o600


def test_a_folder_of_secrets_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/chown").symlink_to("/bin/true")
    home, secrets = tmp_path / "home", tmp_path / "home/secrets"
    secrets.mkdir(parents=True)
    home.chmod(0o755)
    secrets.chmod(0o755)
    shell(_write(str(secrets), "api_keys"), tmp_path, base64.b64encode(b"x\n").decode())
    assert (home.stat().st_mode & 0o777, secrets.stat().st_mode & 0o777) == (0o755, 0o700)


def test_a_cut_upload_leaves_the_old_secret(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "api_keys").write_text("old\n")
    done = shell(_write(str(secrets), "api_keys"), tmp_path, "b25!", check=False)
    assert done.returncode != 0
    assert (secrets / "api_keys").read_text() == "old\n"


@pytest.mark.skipif(os.getuid() != 0, reason="the files must be root's")
def test_what_is_there_is_told_by_its_hash_where_its_rights_are_right(tmp_path: Path) -> None:
    for name, mode in (("api_keys", 0o600), ("tls.pem", 0o644)):
        (tmp_path / name).write_text("x\n")
        (tmp_path / name).chmod(mode)
    fact = SecretDigests.__new__(SecretDigests)
    output = shell(fact.command(str(tmp_path)), tmp_path).stdout.splitlines()
    assert fact.process(output) == {"api_keys": hashlib.sha256(b"x\n").hexdigest()}
    assert shell(fact.command(str(tmp_path / "none")), tmp_path).stdout == ""


# ---- how it is tried


@cache
def key_of(kind: str) -> Any:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())


def key_text(
    kind: str,
    form: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption = NoEncryption(),  # noqa: B008
) -> str:
    text: bytes = key_of(kind).private_bytes(Encoding.PEM, form, encryption)
    return text.decode()


@cache
def pem(kind: str, until: datetime = NOW + timedelta(days=30), since: datetime = NOW - timedelta(days=90)) -> str:
    """A certificate that its own key has signed."""
    key, name = key_of(kind), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "h")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, since, until)
    return builder.sign(key, None if kind == "ed25519" else hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def lay(**data: Any) -> Plan:
    own = {"recipe": "lab/replicas", **data}
    fleet = inventory.build("fleet.py", {"serve": ["10.0.0.1"], "proxy": ["10.0.0.1"]}, {"10.0.0.1": own})
    return plan(fleet, recipe.load(recipe.find("lab/replicas", ROOT / "files/recipes")))


def shell(text: str, folder: Path, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", text], input=stdin, env=environment, capture_output=True, text=True, check=check, timeout=10
    )
