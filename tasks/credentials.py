"""Secrets: read from the operator's files before anything is connected to, written to hosts as files of root's alone.

They travel on standard input, never in an argument, and appear in no diff, log or release.
"""

from __future__ import annotations

import base64
import shlex
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation

from fleet import credentials, journal
from fleet.credentials import SecretFile
from fleet.findings import FleetError, error
from fleet.topology import Plan
from tasks import edge
from tasks.edge import host

_LARGEST = 1_000_000
_kept: dict[str, tuple[SecretFile, ...]] = {}


class SecretDigests(FactBase[dict[str, str]]):
    """SHA-256 of the secret files that are there, mode and owner as they should be."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self, folder: str) -> str:
        return f"cd {folder} 2>/dev/null && find . -type f -perm 600 -user root -exec sha256sum {{}} +; true"

    def process(self, output: list[str]) -> dict[str, str]:
        return {name.strip().removeprefix("./"): digest for digest, _, name in (line.partition(" ") for line in output)}


def files_of(plan: Plan) -> tuple[SecretFile, ...]:
    """What the front door needs; a FleetError says what is wrong with the operator's files."""
    settings = plan.fleet.settings
    found = []
    if settings.tls_certificate:
        text = _read(settings.tls_certificate, "SECRET-TLS")
        found.append(credentials.certificate(text, settings.tls_certificate))
        _refuse_expired(text, settings.tls_certificate)
    if settings.api_keys:
        found.append(credentials.key_hashes(_read(settings.api_keys, "SECRET-KEYS"), settings.api_keys))
    return tuple(found)


def of_this_run(plan: Plan) -> tuple[SecretFile, ...]:
    """As ``files_of``, but read once: what was checked before anything was connected to is what hosts get."""
    if plan.fleet.source not in _kept:
        _kept[plan.fleet.source] = files_of(plan)
    return _kept[plan.fleet.source]


def _read(path: str, rule: str) -> str:
    """The text of the operator's file."""
    path = path if path.isprintable() else repr(path)
    try:
        file = Path(path).expanduser()
        if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe would wait, a device never end
            raise FleetError(error(rule, path, "this is no file", "name a file"))
        if file.stat().st_size > _LARGEST:
            raise FleetError(error(rule, path, "the file is larger than 1 MB", "name the right one"))
        return file.read_text()
    except UnicodeDecodeError as exc:
        raise FleetError(error(rule, path, "the file is no text", "name the right one")) from exc
    except (OSError, RuntimeError, ValueError) as exc:  # also a home of nobody, a name that no file can have
        what = f"cannot be read: {(getattr(exc, 'strerror', None) or str(exc)).lower()}"
        raise FleetError(error(rule, path, what, "mend the path or its rights")) from exc


def _refuse_expired(text: str, where: str) -> None:
    first = x509.load_pem_x509_certificates(text.encode())[0]
    now = datetime.now(timezone.utc)
    if first.not_valid_after_utc < now:
        what = f"the certificate expired on {first.not_valid_after_utc:%Y-%m-%d}"
        raise FleetError(error("SECRET-TLS", where, what, "put a new one there"))
    if first.not_valid_before_utc > now:
        what = f"the certificate is not valid before {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise FleetError(error("SECRET-TLS", where, what, "wait, or set this machine's clock"))


@operation()
def install(plan: Plan) -> edge.Commands:
    """Write the front door's secrets where there is one and they differ; it reads them anew without a gap."""
    door = plan.front_door_of(host.name)
    if door is None:
        return
    wanted = of_this_run(plan)
    folder = f"{plan.home}/secrets"
    there: dict[str, Any] = host.get_fact(SecretDigests, folder=folder)
    due = [f for f in wanted if there.get(f.name) != f.digest]
    if not due:
        host.noop("certificate and keys are as they should be")
        return
    if not edge.executing():
        yield edge.changed()
        return
    for file in due:
        done, output, errors = edge.run_here(
            StringCommand(_write(folder, file.name)), stdin=base64.b64encode(file.text.encode()).decode()
        )
        if not done:
            last = (errors or output or ["no message"])[-1]
            edge.say(error("HOST-WRITE", host.name, f"cannot write secret {file.name}: {last}", "mend that, run again"))
            yield edge.refuse()
            return
    done, output, errors = edge.run_here(StringCommand(_take_on(folder, door.name, [f.name for f in due])))
    if done:
        yield edge.changed()
        return
    why = journal.reason(output or errors)
    what = f"{door.name} does not take on the new {' and '.join(f.name for f in due)}, the old one serves on: {why}"
    edge.say(error("SECRET-REFUSED", host.name, what, "mend the file and run again"))
    yield edge.refuse()


@operation()
def forget(plan: Plan) -> edge.Commands:
    """Remove secrets that the front door no longer asks for, once it reads them no more."""
    door = plan.front_door_of(host.name)
    if door is None:
        return
    folder = f"{plan.home}/secrets"
    wanted = {f.name for f in of_this_run(plan)}
    left = sorted(set(host.get_fact(SecretDigests, folder=folder)) - wanted)
    if not left:
        host.noop("no secret is left over")
        return
    if not edge.executing():
        yield edge.changed()
        return
    edge.run_here(StringCommand(f"cd {folder} && rm -f " + " ".join(shlex.quote(name) for name in left)))
    yield edge.changed()


def _take_on(folder: str, unit: str, names: list[str]) -> str:
    """Let a running front door read its files anew; where it refuses them, the old ones come back, and its words."""
    lines = [
        f"cd {folder}",
        f"systemctl is-active --quiet {unit} || {{ rm -f .*.old; exit 0; }}",
        f"systemctl reload {unit} && {{ rm -f .*.old; exit 0; }}",
        f"for f in {' '.join(names)}; do test ! -e .$f.old || mv .$f.old $f; done",
        f"journalctl -u {unit} -n 30 -o cat --no-pager",
        "exit 1",
    ]
    return "sh -c " + shlex.quote("\n".join(lines))


def _write(folder: str, name: str) -> str:
    """From standard input, beside it, then renamed; never readable by others, not for a moment. The old one is kept."""
    lines = [
        "set -eu",
        "umask 022",
        f"mkdir -p {folder.rpartition('/')[0]}",
        "umask 077",
        f"mkdir -p {folder}",
        f"chmod 700 {folder}",
        f"base64 -d >{folder}/.{name}.new",
        f"chown root:root {folder}/.{name}.new",
        f"test ! -e {folder}/{name} || cp -p {folder}/{name} {folder}/.{name}.old",
        f"mv {folder}/.{name}.new {folder}/{name}",
    ]
    return "sh -c " + shlex.quote("\n".join(lines))
