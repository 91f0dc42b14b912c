"""/etc/docker/daemon.json: what an inventory wants, merged into what is there.

Its values are never shown: it may hold a proxy's password. Names of keys are.

Sources: Docker's dockerd reference, "configuration reload behavior"; moby's daemon/reload.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet.prepare.common import KEPT, sum_of, write

CONFIG = "/etc/docker/daemon.json"
PROXY = "/etc/systemd/system/docker.service.d/vllm-fleet-proxy.conf"
# While a new configuration is not yet in use: restart or reload. The file before it stands beside the configuration.
PENDING = f"{KEPT}/docker-pending"
# What a running daemon takes over with SIGHUP; all else needs a restart.
RELOADABLE = frozenset(
    (
        "allow-nondistributable-artifacts",
        "debug",
        "default-runtime",
        "features",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
    )
)
# An engine prints a line for every request; without these its container's log grows until the disk is full.
_LOG_OPTS = {"max-size": "100m", "max-file": "3"}


def read(raw: bytes | None) -> dict[str, Any]:
    """The settings that a file holds, none where there is no file or nothing in it; a ValueError says what is wrong.

    Its text tells the place and nothing of the content.
    """
    try:
        text = (raw or b"").decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ValueError(f"byte {exc.start} is not UTF-8") from None
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ValueError(f"line {exc.lineno}, column {exc.colno}: {exc.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object: { ... }")
    return found


def merged(old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The file's settings with those of the inventory: lists are joined, objects merged, all else is replaced."""
    found = dict(old)
    for key, value in given.items():
        mine = found.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            found[key] = merged(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            found[key] = mine + [item for item in value if item not in mine]
        else:
            found[key] = value
    return found


def with_needs(settings: Mapping[str, Any], running: str = "") -> dict[str, Any]:
    """The settings with what a service needs of them: logs that do not fill the disk.

    ``running`` is the logging driver of the daemon that runs. One that the file does not name came by a flag, as in
    Fedora's /etc/sysconfig/docker, and may know nothing of these options.
    ``live-restore`` is not among them. It would keep containers while Docker restarts, but our units require
    docker.service, so that systemd restarts them with it all the same, and a swarm refuses it.
    """
    driver, options = settings.get("log-driver", running or "json-file"), settings.get("log-opts", {})
    if driver not in ("json-file", "local") or not isinstance(options, Mapping) or "max-size" in options:
        return dict(settings)
    return {**settings, "log-opts": {**_LOG_OPTS, **options}}


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the settings that differ, in order."""
    return tuple(sorted(key for key in {*old, *new} if key not in old or key not in new or old[key] != new[key]))


def reloads(keys: tuple[str, ...]) -> bool:
    """Whether a running daemon takes all of these over without a restart."""
    return set(keys) <= RELOADABLE


def text(settings: Mapping[str, Any]) -> str:
    """The file's content, keys in the order in which they were there."""
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


# Before what the daemon said, as against what systemctl says of it.
BECAUSE = "because: "
# ``answers`` waits for the daemon; ``why`` tells why it did not come up. A password in an address is not shown.
MASK = "sed 's#://[^ ]*@#://***@#g'"
WAIT = (
    "answers() { i=0; while [ $i -lt 60 ]; do timeout -k 2 10 docker version -f '{{.Server.Version}}' >/dev/null 2>&1 "
    "</dev/null && return 0; i=$((i + 1)); sleep 1; done; return 1; }\n"
    "why() { journalctl -u docker -n 40 --no-pager -o cat 2>/dev/null | "
    "grep -v -e '^docker[.]service' -e '^Failed to start docker' -e level=info -e level=warning | "
    f"grep -i -e 'unable to' -e 'failed to' -e error | tail -n 1 | {MASK} | sed 's/^/{BECAUSE}/'; }}\n"
)


def configure_text(proxy: str, text: str, old_sum: str, restart: bool, config: str = CONFIG) -> str:
    """Shell text that puts the content from stdin there, has Docker use it, and puts all back where it does not.

    What has to be done yet is noted first: a run that is cut off anywhere is finished by the next one.
    """
    pending = "restart" if restart else "reload"
    lines = [f"{WAIT}f={config}; p={PROXY}; n={PENDING}; umask 077; mkdir -p -m 755 {KEPT}"]
    if text:
        new = sum_of(text)
        lines += [
            "mkdir -p -m 755 ${f%/*}; cat >$f.new || exit 1",
            f'[ "$(sha256sum <$f.new)" = "{new}  -" ] || '
            '{ rm -f $f.new; echo "the new daemon.json came in part"; exit 1; }',
            f'now=$(test -e $f && sha256sum <$f); [ "${{now%% *}}" = "{old_sum}" ] || '
            '{ rm -f $f.new; echo "somebody else changed $f meanwhile"; exit 1; }',
            "if [ -e $f ]; then chmod --reference=$f $f.new; chown --reference=$f $f.new; "
            "[ -e $f.before-vllm-fleet ] || cp -p $f $f.before-vllm-fleet; cp -p $f $f.last; "
            "else chmod 644 $f.new; rm -f $f.last; fi",
            "if dockerd --help 2>/dev/null | grep -q -e --validate; then "
            "said=$(timeout -k 2 30 dockerd --validate --config-file=$f.new 2>&1) || { rm -f $f.new; "
            f'echo "refused $said" | {MASK}; exit 3; }}; fi',
        ]
    lines.append(f'[ "$(cat $n 2>/dev/null)" = restart ] || echo {pending} >$n')
    if proxy:
        lines += [f"{{ {write(PROXY, proxy)}; }} || exit 1", "systemctl daemon-reload"]
    if text:
        lines.append("sync -d $f.new 2>/dev/null; mv -f $f.new $f || exit 1")
    lines.append("systemctl enable docker >/dev/null 2>&1; systemctl reset-failed docker 2>/dev/null")
    verb = "restart" if restart else "reload"
    lines.append(f"if timeout 180 systemctl {verb} docker && answers; then rm -f $n; exit 0; fi; why")
    if text:
        # Its old configuration, and Docker with it: a host that served before must serve after.
        lines += [
            "if [ -e $f.last ]; then mv -f $f.last $f; else rm -f $f; fi",
            "systemctl reset-failed docker 2>/dev/null; timeout 180 systemctl restart docker && answers && rm -f $n "
            "&& echo 'put back'; exit 4",
        ]
    return "\n".join([*lines, "exit 4"])
