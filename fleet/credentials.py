"""What clients prove themselves with, and what the front door proves itself with: API keys and a TLS certificate.

Keys never leave the operator's machine: hosts get SHA-256 hashes with the clients' names. A key is long and random, so
its hash tells nothing; the file is readable by root alone all the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from fleet.findings import Finding, FleetError, error

# Shorter ones can be guessed from their hash.
SHORTEST_KEY = 24
_LINE = re.compile(r"(?P<client>[A-Za-z0-9._@-]{1,64})\s+(?P<key>[\x21-\x7e]+)\Z")


@dataclass(frozen=True)
class SecretFile:
    """A file for a host, readable by root alone. Its text is never shown."""

    name: str
    text: str = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal digits: how the host's file is compared."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def key_hashes(text: str, where: str) -> SecretFile:
    """The front door's map of hashes to clients, from lines of ``client key``; a FleetError names every bad line."""
    findings: list[Finding] = []
    clients: dict[str, int] = {}
    hashes: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        at, match = f"{where}:{number}", _LINE.match(line)
        if not match:
            mend = "write a line as: client key, the key without spaces"
            findings.append(error("SECRET-KEYS", at, "this is no client and key", mend))
            continue
        client, key = match["client"], match["key"]
        if len(key) < SHORTEST_KEY:
            what = f"the key of {client} is shorter than {SHORTEST_KEY} characters"
            findings.append(error("SECRET-KEYS", at, what, "make one with: openssl rand -hex 24"))
        digest = hashlib.sha256(key.encode()).hexdigest().upper()
        if client in clients:
            what = f"{client} has a key in line {clients[client]} already"
            findings.append(error("SECRET-KEYS", at, what, "give each client one name and one key"))
        if digest in hashes:
            what = f"{client} has the same key as {hashes[digest]}"
            findings.append(error("SECRET-KEYS", at, what, "give each client its own"))
        clients[client], hashes[digest] = number, client
    if findings:
        raise FleetError(*findings[:10])
    if not hashes:
        raise FleetError(error("SECRET-KEYS", where, "the file has no keys", "write a line as: client key"))
    return SecretFile("api_keys", "".join(f"{digest} {client}\n" for digest, client in sorted(hashes.items())))


def certificate(text: str, where: str) -> SecretFile:
    """A PEM file with a certificate (its chain after it) and the private key that belongs to it."""
    data = text.encode()
    mend = "put certificate, chain and private key into one PEM file"
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError as exc:
        raise FleetError(error("SECRET-TLS", where, "the file has no certificate that can be read", mend)) from exc
    try:
        key = load_pem_private_key(_key_block(text), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        what = "the file has no private key that can be read without a password"
        raise FleetError(error("SECRET-TLS", where, what, mend)) from exc
    shape = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        theirs = found[0].public_key().public_bytes(*shape)
    except (UnsupportedAlgorithm, ValueError) as exc:
        what = "the certificate is for a kind of key that is not known here"
        raise FleetError(error("SECRET-TLS", where, what, "use an RSA or elliptic-curve key")) from exc
    if key.public_key().public_bytes(*shape) != theirs:
        what = "the private key does not belong to the first certificate"
        raise FleetError(error("SECRET-TLS", where, what, "put the server's own certificate first"))
    return SecretFile("tls.pem", text)


def _key_block(text: str) -> bytes:
    match = re.search(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", text, re.DOTALL)
    return match[0].encode() if match else b""
