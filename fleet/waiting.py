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
    """Start or restart units; a unit that gave up earlier gets a new set of tries."""
    names = " ".join(f"{u.name}.service" for u in units)
    limit = max((u.stop_seconds for u in units), default=60) + 60
    return f"systemctl reset-failed {names} 2>/dev/null; timeout {limit} systemctl restart {names}"


def wait(plan: Plan, unit: Unit, node: Node, seconds: int) -> str:
    """Until the unit's server answers (or, without an API, is active); 3 if it died, 4 if time ran out.

    Prints what it waits for every 15 s.
    """
    api = unit.ports.get("api")
    ready = _answers(plan, unit, f"http://{node.at(api)}") if api else "true"
    service = shlex.quote(f"{unit.name}.service")
    return "\n".join(
        [
            f"u={service}; begin=$(date +%s); told=0",
            'tries() { systemctl show -p NRestarts --value "$u"; }; first=$(tries)',
            "while :; do",
            '  state=$(systemctl show -p ActiveState --value "$u"); sub=$(systemctl show -p SubState --value "$u")',
            "  now=$(( $(date +%s) - begin ))",
            '  case "$state/$sub" in failed/*|inactive/*|*/auto-restart) exit 3;; esac',
            '  [ "$(tries)" = "$first" ] || exit 3',
            f'  if [ "$state" = active ] && {ready}; then exit 0; fi',
            f'  if [ "$now" -ge {seconds} ]; then exit 4; fi',
            f"  if [ $(( now - told )) -ge {PROGRESS_SECONDS} ]; then told=$now; "
            f'echo "{unit.name}: not ready after $now s of at most {seconds}; it says: '
            '$(journalctl -u "$u" -n 1 -o cat --no-pager | cut -c1-160)"; fi',
            "  sleep 1",
            "done",
        ]
    )


def last_words(unit: Unit) -> str:
    """State, then the journal of the last start, without systemd's own talk of starting."""
    service = shlex.quote(f"{unit.name}.service")
    return (
        f"echo '{MARK}'; systemctl show -p ActiveState --value {service}; "
        f"id=$(systemctl show -p InvocationID --value {service}); "
        "journalctl -n 120 -o cat --no-pager _SYSTEMD_INVOCATION_ID=$id + INVOCATION_ID=$id "
        "| grep -v -e '^Start' -e '^Stop'"
    )


def _answers(plan: Plan, unit: Unit, url: str) -> str:
    """Healthy, names the model, and, where an instance serves alone, gives a token."""
    curl = "curl --noproxy '*' -sf -m 10"
    tests = [f"{curl} -o /dev/null {url}/health"]
    if unit.kind == "engine":
        tests.append(f"{curl} {url}/v1/models | grep -qF {_either(plan.served_name)}")
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


def ask_model(plan: Plan, url: str) -> str:
    """One real completion through an entry, body and status; tries for a minute while routes settle."""
    body = shlex.quote(json.dumps(request_body(plan)))
    request = (
        f"curl --noproxy '*' -s -m 120 -w '\\n%{{http_code}}\\n' {url}/v1/completions "
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
    return f"curl {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
