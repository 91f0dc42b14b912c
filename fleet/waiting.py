"""Shell texts that start units, wait for them on the node itself, and ask the served model.

A wait ends by itself: no session is held for a poll, and an abandoned one does not run on for ever.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.inventory import Node
from fleet.topology import Plan, Unit

PROGRESS_SECONDS = 15
CURL = "curl --noproxy '*' -sf -m 10"
# Words and numbers of files/group/group.py: its exit for the others' sake, and a member whose host says that nobody is
# there. A unit that systemd starts again is there after 10 s.
EXIT_PEERS, NOT_RUNNING, DYING = 75, "its unit does not run", "its engine has died"
PEERS_SECONDS = 60
LAST_WORDS = 600
IN_VAIN = "in vain:"
# Before it a login shell may have printed anything.
MARK = "@@ answer"


@dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit, and the id of what it was started with."""

    active: str
    started: str

    @property
    def runs(self) -> bool:
        return self.active in ("active", "reloading", "activating")


def ask_states(units: Iterable[str]) -> str:
    """State and started id of each unit."""
    names = " ".join(shlex.quote(u) for u in units)
    return (
        f'for u in {names}; do echo "$u $(systemctl show -p ActiveState --value $u.service) '
        '$(cat /run/vllm-fleet/$u/id 2>/dev/null)"; done'
    )


def read_states(lines: Iterable[str]) -> dict[str, UnitState]:
    """The answer to ``ask_states``."""
    states = {}
    for line in lines:
        name, _, rest = line.partition(" ")
        active, _, started = rest.partition(" ")
        if name.startswith("vllm-"):
            states[name] = UnitState(active, started.strip())
    return states


def start(units: Iterable[Unit]) -> str:
    """Start or restart units; a unit that gave up earlier gets a new set of tries.

    One that can read its configuration anew does so where it runs: no request is dropped.
    """
    units = list(units)
    names = " ".join(f"{u.name}.service" for u in units)
    limit = max((u.stop_seconds for u in units), default=60) + 60
    lines = [f"systemctl reset-failed {names} 2>/dev/null"]
    # what a group remembers of earlier starts; systemd keeps it over a restart
    old = [f"/run/vllm-fleet/{u.name}/{file}" for u in units if u.group for file in ("group", "deaths")]
    lines[0] += f"; rm -f {' '.join(old)}" if old else ""
    for verb, chosen in (
        ("restart", [u for u in units if not u.reload]),
        ("reload-or-restart", [u for u in units if u.reload]),
    ):
        if chosen:
            lines.append(f"timeout {limit} systemctl {verb} " + " ".join(f"{u.name}.service" for u in chosen))
    return lines[0] + "; " + " && ".join(lines[1:])


def wait(plan: Plan, unit: Unit, node: Node, seconds: int, head: str = "") -> str:
    """Until the unit's server answers (or, without an API, is active); 3 if it died, 4 if time ran out, 5 if it waits
    in vain for the other members of its instance.

    ``head`` is the address of its instance's API on another host: then until that one answers. Prints what it waits
    for every 15 s.
    """
    api = unit.ports.get("api")
    ready = _answers(plan, unit, _own_url(plan, unit, node, api)) if api else "true"
    if head:
        ready = f"{CURL} -o /dev/null {head}/health"
    service = shlex.quote(f"{unit.name}.service")
    return "\n".join(
        [
            f"u={service}; begin=$(date +%s); told=0",
            # asked at once: between two questions the unit may go on to another state
            "asked=ActiveState,SubState,NRestarts,ExecMainStatus; first=",
            "while :; do",
            '  for line in $(systemctl show -p "$asked" "$u"); do case "$line" in '
            "ActiveState=*) state=${line#*=};; SubState=*) sub=${line#*=};; NRestarts=*) tries=${line#*=};; "
            "ExecMainStatus=*) code=${line#*=};; esac; done",
            "  first=${first:-$tries}; now=$(( $(date +%s) - begin ))",
            *(_group_deaths(unit) if unit.group else _DEATHS),
            f'  if [ "$state" = active ] && {ready}; then exit 0; fi',
            *(_DYING if unit.group else []),
            f'  if [ "$now" -ge {seconds} ]; then exit 4; fi',
            f"  if [ $(( now - told )) -ge {PROGRESS_SECONDS} ]; then told=$now; "
            f'echo "{unit.name}: not ready after $now s of at most {seconds}; it says: '
            '$(journalctl -u "$u" -n 1 -o cat --no-pager | cut -c1-160)"; fi',
            "  sleep 1",
            "done",
        ]
    )


_DEATHS = (
    '  case "$state/$sub" in failed/*|inactive/*|*/auto-restart) exit 3;; esac',
    '  [ "$tries" = "$first" ] || exit 3',
)


# Deaths that were told before this wait may have been mended; a further one is in vain.
_DYING = (
    '  was=${was-$why}; [ "${why%; *}" = "${was%; *}" ] || '
    f'case "$why" in *"{DYING}"*) echo "{IN_VAIN} ${{why%; *}}"; exit 5;; esac',
)


def _group_deaths(unit: Unit) -> tuple[str, ...]:
    """A member that starts anew for the others' sake is not dead; one that waits for a dead one waits in vain."""
    return (
        '  case "$state/$sub" in failed/*|inactive/*) exit 3;; */auto-restart) '
        f'[ "$code" = {EXIT_PEERS} ] || exit 3;; esac',
        "  phase=; why=",  # between two starts the file still says what was so in the earlier one
        f'  [ "$sub" = auto-restart ] || '
        f"read -r phase since why 2>/dev/null </run/vllm-fleet/{unit.name}/group || true",
        f'  case "$phase/$why" in waiting/*"{NOT_RUNNING}"*) '
        f'if [ $(( $(date +%s) - since )) -ge {PEERS_SECONDS} ]; then echo "{IN_VAIN} $why"; exit 5; fi;; esac',
    )


def _own_url(plan: Plan, unit: Unit, node: Node, port: int) -> str:
    """Where the host itself asks the unit, as words for curl."""
    if unit.kind == "proxy" and plan.fleet.settings.tls_certificate:
        return f"-k https://{node.at(port)}"  # whatever name the certificate is for, it is this host that is asked
    return f"http://{unit.listens}:{port}" if unit.listens else f"http://{node.at(port)}"


def last_words(unit: Unit) -> str:
    """State, then the journal of the last start, without systemd's own talk of starting.

    Its end, of a length that is bounded: each worker of eight prints its own traceback, and the root cause stands above
    the tracebacks of those that only saw it die.
    """
    service = shlex.quote(f"{unit.name}.service")
    return (
        f"echo '{MARK}'; systemctl show -p ActiveState --value {service}; "
        f"id=$(systemctl show -p InvocationID --value {service}); "
        f"journalctl -n {LAST_WORDS} -o cat --no-pager _SYSTEMD_INVOCATION_ID=$id + INVOCATION_ID=$id "
        "| grep -v -e '^Start' -e '^Stop'"
    )


def _answers(plan: Plan, unit: Unit, url: str) -> str:
    """Healthy, names the model, and, where an instance serves alone, gives a token."""
    tests = [f"{CURL} -o /dev/null {url}{unit.health}"]
    if unit.kind == "engine":
        tests.append(f"{CURL} {url}/v1/models | grep -qF {_either(plan.served_name)}")
    if unit.role == "serve" and unit.kind == "engine":
        tests.append(f"{_completion(plan, url, 1, 120)} | grep -q '\"text\"'")
    return " && ".join(tests)


def _either(name: str) -> str:
    """Patterns for a name in JSON, escaped or not."""
    return " ".join(f"-e {shlex.quote(json.dumps(name, ensure_ascii=ascii))}" for ascii in (True, False))


def _completion(plan: Plan, url: str, tokens: int, seconds: int) -> str:
    body = json.dumps(request_body(plan, tokens))
    return (
        f"curl --noproxy '*' -sf -m {seconds} {url}/v1/completions -H 'Content-Type: application/json' "
        f"-d {shlex.quote(body)}"
    )


def request_body(plan: Plan, tokens: int = 16) -> Mapping[str, object]:
    """A small request at temperature 0."""
    return {"model": plan.served_name, "prompt": "The future of AI is", "max_tokens": tokens, "temperature": 0}


def ask_model(plan: Plan, url: str, socket: str | None = None) -> str:
    """One real completion through an entry, body and status; tries for a minute while routes settle.

    ``socket`` is the front door's own on the host: it needs no key, and leads to the same backends.
    """
    body = shlex.quote(json.dumps(request_body(plan)))
    target = f"--unix-socket {socket} http://front-door" if socket else url
    request = (
        f"curl --noproxy '*' -s -m 120 -w '\\n%{{http_code}}\\n' {target}/v1/completions "
        f"-H 'Content-Type: application/json' -d {body}"
    )
    return (
        f'n=0; while :; do out=$({request}); code=$(printf "%s\\n" "$out" | tail -n 1); n=$((n+1)); '
        'if [ "$code" = 200 ] || [ $n -ge 30 ]; then echo "@@ answer"; printf "%s\\n" "$out"; break; fi; sleep 2; done'
    )


def after_mark(lines: list[str]) -> list[str]:
    """What the command itself printed."""
    return lines[lines.index(MARK) + 1 :] if MARK in lines else lines


def read_answer(lines: list[str]) -> tuple[str, str]:
    """(text, fault): exactly one of them is empty."""
    lines = after_mark(lines)
    if not lines:
        return "", "no answer"
    status, body = lines[-1].strip(), "\n".join(lines[:-1])
    if status != "200":
        return "", "no connection" if status == "000" else f"HTTP {status} {' '.join(body.split())[:200]}"
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        text = str(choice["text"] or "")
    except (ValueError, KeyError, IndexError, TypeError):
        return "", f"HTTP 200 with something that is no completion: {body[:100]}"
    if not text.strip():
        return "", f"HTTP 200 with an empty text (finish_reason {choice.get('finish_reason')})"
    return text, ""


def curl_line(plan: Plan, url: str) -> str:
    """A line to paste."""
    body = json.dumps({"model": plan.served_name, "prompt": "The future of AI is", "max_tokens": 16})
    settings = plan.fleet.settings
    options = f"--cacert {shlex.quote(settings.tls_certificate)} " if settings.tls_certificate else ""
    options += '-H "Authorization: Bearer $API_KEY" ' if settings.api_keys else ""
    return f"curl {options}{url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
