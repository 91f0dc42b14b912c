"""Sets of prefill and decode with a router each, the front door before them, and what is left when hosts are lost."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet import admission, quorum, release, render, waiting
from fleet.findings import FleetError
from fleet.routing import backends, has_front_door
from fleet.snapshot import Snapshot
from fleet.topology import Plan
from tests.unit.plans import lay

MOONCAKE = """
title: t
source: s
platform: ascend-a3
model: {name: org/model, served_name: m, max_position_embeddings: 40960}
engine: {vllm: 0.13.0, vllm_ascend: 0.13.0}
roles:
  prefill: {port: 8000, tensor_parallel_size: 8, data_parallel_size: 2}
  decode: {port: 8001, tensor_parallel_size: 4, data_parallel_size: 8}
kv_transfer: {connector: MooncakeConnectorV1, port: 36000}
proxy: {port: 9000}
"""
NIXL = """
title: t
source: s
platform: cpu
runtime: native
model: {name: org/model, served_name: m, max_position_embeddings: 40960}
engine: {vllm: 0.32.0}
roles:
  prefill: {port: 8000}
  decode: {port: 8001}
kv_transfer: {connector: NixlConnector}
proxy: {port: 9000}
"""
REPLICAS = """
title: t
source: s
platform: cpu
runtime: native
model: {name: org/model, served_name: m, max_position_embeddings: 40960}
engine: {vllm: 0.32.0}
roles:
  serve: {port: 8000}
proxy: {port: 9000}
"""
P, D = [f"10.0.1.{n}" for n in range(1, 9)], [f"10.0.2.{n}" for n in range(1, 17)]
SERVE = [f"10.0.3.{n}" for n in range(1, 5)]


# ---- how instances are dealt


@pytest.mark.parametrize(
    ("prefills", "decodes", "sets", "dealt"),
    [
        (1, 1, 1, [(["prefill-0"], ["decode-0"])]),
        (2, 2, 1, [(["prefill-0", "prefill-1"], ["decode-0", "decode-1"])]),
        (2, 2, 2, [(["prefill-0"], ["decode-0"]), (["prefill-1"], ["decode-1"])]),
        (
            2,
            4,
            2,
            [(["prefill-0"], ["decode-0", "decode-1"]), (["prefill-1"], ["decode-2", "decode-3"])],
        ),
        (
            4,
            2,
            2,
            [(["prefill-0", "prefill-1"], ["decode-0"]), (["prefill-2", "prefill-3"], ["decode-1"])],
        ),
    ],
)
def test_instances_are_dealt_evenly_and_in_order(
    prefills: int, decodes: int, sets: int, dealt: list[tuple[list[str], list[str]]]
) -> None:
    made = pd(MOONCAKE, prefills, decodes, sets=sets)
    assert [([i.name for i in s.prefill], [i.name for i in s.decode]) for s in made.sets] == dealt
    assert [s.name for s in made.sets] == [f"set-{k}" for k in range(sets)]
    assert all(s.instances == s.prefill + s.decode for s in made.sets)


def test_the_router_of_a_set_runs_on_its_first_prefill_host() -> None:
    made = pd(MOONCAKE, 4, 2, sets=2)
    assert [(s.router_host.name, s.router_port) for s in made.sets] == [(P[0], 8200), (P[2], 8200)]
    assert [u.at for u in made.units if u.kind == "router"] == [f"vllm-proxy-0@{P[0]}", f"vllm-proxy-1@{P[2]}"]


@pytest.mark.parametrize(
    ("prefills", "decodes", "sets", "told"),
    [
        (3, 2, 2, ["3 prefill instances do not divide into 2 sets; choose a number of sets that divides 3"]),
        (2, 3, 2, ["3 decode instances do not divide into 2 sets; choose a number of sets that divides 3"]),
        (1, 2, 2, ["1 prefill instances do not divide into 2 sets; choose a number of sets that divides 1"]),
    ],
)
def test_what_cannot_be_dealt_evenly_is_refused(prefills: int, decodes: int, sets: int, told: list[str]) -> None:
    with pytest.raises(FleetError) as refused:
        pd(MOONCAKE, prefills, decodes, sets=sets)
    assert [f.line() for f in refused.value.findings] == [f"error: fleet.py: {line} [PLAN-SETS]" for line in told]


def test_replicas_have_no_sets() -> None:
    assert lay(REPLICAS, {}, serve=SERVE).sets == ()
    with pytest.raises(FleetError, match=r"fleet.py: sets = 2, but recipe r has no prefill and decode; leave sets out"):
        lay(REPLICAS, {"sets": 2}, serve=SERVE, proxy=[SERVE[0]])


@pytest.mark.parametrize("sets", [0, -1, 65, 1.5, "2", True])
def test_what_is_no_number_of_sets_is_refused(sets: Any) -> None:
    with pytest.raises(FleetError, match=r"sets: .*\[INV-KEY\]"):
        pd(MOONCAKE, 2, 2, sets=sets)


# ---- what stands before them


@pytest.mark.parametrize(
    ("text", "data", "units"),
    [
        (MOONCAKE, {}, [("vllm-proxy", "proxy", "docker")]),
        (
            MOONCAKE,
            {"front_door": True},
            [("vllm-proxy-0", "router", "docker"), ("vllm-front-door", "proxy", "native")],
        ),
        (MOONCAKE, {"api_keys": "k"}, [("vllm-proxy-0", "router", "docker"), ("vllm-front-door", "proxy", "native")]),
        (
            MOONCAKE,
            {"tls_certificate": "c"},
            [("vllm-proxy-0", "router", "docker"), ("vllm-front-door", "proxy", "native")],
        ),
        (
            MOONCAKE,
            {"sets": 2},
            [
                ("vllm-proxy-0", "router", "docker"),
                ("vllm-proxy-1", "router", "docker"),
                ("vllm-front-door", "proxy", "native"),
            ],
        ),
        (NIXL, {}, [("vllm-router", "proxy", "native")]),
        (NIXL, {"front_door": True}, [("vllm-router-0", "router", "native"), ("vllm-front-door", "proxy", "native")]),
    ],
    ids=["mooncake", "asked", "keys", "tls", "two-sets", "nixl", "nixl-asked"],
)
def test_a_set_alone_needs_no_front_door_and_may_have_one(
    text: str, data: dict[str, Any], units: list[tuple[str, str, str]]
) -> None:
    made = pd(text, 2, 2, **data)
    assert [(u.name, u.kind, u.runtime) for u in made.units if not u.serves_model] == units
    assert has_front_door(made.fleet, made.sets) is (units[-1][0] == "vllm-front-door")
    assert made.start_order[-1] == (f"{units[-1][0]}@{P[0]}",)


def test_replicas_always_have_one() -> None:
    made = lay(REPLICAS, {}, serve=SERVE[:2], proxy=["10.0.9.1", SERVE[0]])
    assert [u.at for u in made.units if u.kind == "proxy"] == [
        "vllm-front-door@10.0.9.1",
        f"vllm-front-door@{SERVE[0]}",
    ]
    assert [(b.name, b.at) for b in backends(made)] == [
        ("serve-0", f"{SERVE[0]}:8000"),
        ("serve-1", f"{SERVE[1]}:8000"),
    ]


def test_without_a_proxy_host_nothing_stands_before_the_instances() -> None:
    made = lay(MOONCAKE, {}, prefill=P[:2], decode=D[:4])
    assert {u.kind for u in made.units} == {"engine"}
    assert made.entries == tuple(i.url for i in made.instances)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"api_keys": "k"}, "api_keys needs a front door"),
        ({"tls_certificate": "c"}, "tls_certificate needs a front door"),
        ({"cache_aware": True}, "cache_aware needs a front door"),
        ({"front_door": True}, "front_door needs a front door"),
        ({"sets": 2}, "sets = 2 needs a front door"),
    ],
    ids=["keys", "tls", "cache-aware", "front-door", "sets"],
)
@pytest.mark.parametrize("role", ["serve", "prefill"])
def test_what_only_a_front_door_does_is_refused_without_one(role: str, data: dict[str, Any], what: str) -> None:
    """Keys that nobody asks for would leave the engines open."""
    hosts = {"serve": SERVE[:2]} if role == "serve" else {"prefill": P[:2], "decode": D[:4]}
    with pytest.raises(FleetError) as refused:
        lay(REPLICAS if role == "serve" else MOONCAKE, data, **hosts)
    assert [f.line() for f in refused.value.findings] == [
        f"error: fleet.py: {what}, and no host has the role proxy; add the group proxy = [...] [PLAN-ROLE]"
    ]


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("text", [MOONCAKE, NIXL], ids=["mooncake", "nixl"])
def test_before_prefill_and_decode_nothing_is_cache_aware(text: str, sets: int) -> None:
    with pytest.raises(FleetError) as refused:
        pd(text, 2, 2, sets=sets, cache_aware=True)
    assert [f.line() for f in refused.value.findings] == [
        "error: fleet.py: cache_aware is for replicas; a set's own router chooses among its instances; "
        "leave cache_aware out [PLAN-ROLE]"
    ]


def test_the_front_door_sends_to_the_sets_routers() -> None:
    made = pd(NIXL, 2, 2, sets=2)
    assert [(b.name, b.at, [i.name for i in b.instances]) for b in backends(made)] == [
        ("set-0", f"{P[0]}:8200", ["prefill-0", "decode-0"]),
        ("set-1", f"{P[1]}:8200", ["prefill-1", "decode-1"]),
    ]
    assert made.entries == (f"http://{P[0]}:9000",)


def test_vllm_routers_command() -> None:
    made = pd(NIXL, 2, 2, sets=2)
    router = next(u for u in made.units if u.name == "vllm-router-1")
    assert router.argv == (
        *("vllm-router", "--host", P[1], "--port", "8200", "--vllm-pd-disaggregation"),
        *("--prefill", f"http://{P[1]}:8000", "--decode", f"http://{D[1]}:8001"),
        *("--prefill-policy", "round_robin", "--decode-policy", "round_robin"),
        *("--health-check-interval-secs", "2", "--health-failure-threshold", "2"),
        *("--health-success-threshold", "1", "--worker-startup-check-interval", "1"),
        *("--worker-startup-timeout-secs", "30"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "29000"),
    )
    assert (dict(router.ports), router.venv, router.health, router.listens) == (
        {"api": 8200, "metrics": 29000},
        "/opt/vllm-router",
        "/readiness",
        None,
    )


def test_vllm_ascends_proxys_command() -> None:
    made = pd(MOONCAKE, 2, 4, sets=2)
    router = next(u for u in made.units if u.name == "vllm-proxy-1")
    assert router.argv[2:] == (
        *("--host", P[1], "--port", "8200", "--prefiller-hosts", P[1], "--prefiller-ports", "8000"),
        *("--decoder-hosts", D[4], D[6], "--decoder-ports", "8001", "8001"),
    )
    assert (router.image, router.health) == ("quay.io/ascend/vllm-ascend:v0.13.0-a3", "/healthcheck")


def test_a_router_that_is_the_entry_listens_to_clients_and_one_behind_to_the_fleet() -> None:
    one, behind = (pd(MOONCAKE, 1, 1, front_door=door) for door in (False, True))
    (entry,) = [u for u in one.units if not u.serves_model]
    router, _ = [u for u in behind.units if not u.serves_model]
    assert (entry.argv[3], dict(entry.ports)) == ("0.0.0.0", {"api": 9000})
    assert (router.argv[3], dict(router.ports)) == (P[0], {"api": 8200})


def test_a_cache_aware_router_stands_between_the_front_door_and_the_replicas() -> None:
    made = lay(REPLICAS, {"cache_aware": True}, serve=SERVE[:2], proxy=[SERVE[0]])
    assert [(u.name, u.kind) for u in made.units_of(SERVE[0])] == [
        ("vllm-serve-0", "engine"),
        ("vllm-router", "router"),
        ("vllm-front-door", "proxy"),
    ]
    router = made.units_of(SERVE[0])[1]
    assert router.argv == (
        *("vllm-router", "--host", "127.0.0.1", "--port", "8200"),
        *("--worker-urls", f"http://{SERVE[0]}:8000", f"http://{SERVE[1]}:8000", "--policy", "cache_aware"),
        *("--health-check-interval-secs", "2", "--health-failure-threshold", "2"),
        *("--health-success-threshold", "1", "--worker-startup-check-interval", "1"),
        *("--worker-startup-timeout-secs", "30"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "29000"),
    )
    assert (router.health, router.listens) == ("/readiness", "127.0.0.1")
    (backend,) = backends(made)
    assert (backend.name, backend.at, backend.instances) == ("router", "127.0.0.1:8200", made.instances)


def test_the_door_knows_the_router_behind_it() -> None:
    made = lay(REPLICAS, {"cache_aware": True}, serve=SERVE[:2], proxy=[SERVE[0]])
    files = render.unit_files(made, made.units_of(SERVE[0])[2])
    assert json.loads(files["proxy/router.json"][1]) == {
        "router": "http://127.0.0.1:8200",
        "replicas": {"serve-0": f"http://{SERVE[0]}:8000", "serve-1": f"http://{SERVE[1]}:8000"},
    }
    assert "router.json /run/vllm-fleet/vllm-front-door/router.json" in files["units/vllm-front-door.service"][1]
    plain = lay(REPLICAS, {}, serve=SERVE[:2], proxy=[SERVE[0]])
    assert "proxy/router.json" not in render.unit_files(plain, plain.units_of(SERVE[0])[1])


def test_a_wait_asks_a_router_where_it_listens() -> None:
    made = lay(REPLICAS, {"cache_aware": True}, serve=SERVE[:2], proxy=[SERVE[0]])
    router = made.units_of(SERVE[0])[1]
    text = waiting.wait(made, router, made.fleet.node(SERVE[0]), 60)
    assert " http://127.0.0.1:8200/readiness; then" in text
    assert SERVE[0] not in text


@pytest.mark.parametrize(
    ("text", "unit", "url"),
    [
        (NIXL, "vllm-router-0", f"http://{P[0]}:8200/readiness"),
        (MOONCAKE, "vllm-proxy-0", f"http://{P[0]}:8200/healthcheck"),
        (NIXL, "vllm-front-door", f"http://{P[0]}:9000/health"),
    ],
)
def test_each_router_is_asked_for_its_own_health(text: str, unit: str, url: str) -> None:
    made = pd(text, 2, 2, sets=2)
    found = next(u for u in made.units if u.name == unit)
    assert f" {url}; then" in waiting.wait(made, found, made.fleet.node(P[0]), 60)


def test_a_change_of_one_set_leaves_the_other_running() -> None:
    before = pd(NIXL, 2, 2, sets=2)
    after = pd(NIXL, 2, 2, sets=2, of={D[1]: {"env": {"A": "1"}}})
    changed = {
        f"{unit}@{node.name}"
        for node in before.fleet.nodes
        for unit, its_id in release.build(before, node.name, "eth0").unit_ids.items()
        if release.build(after, node.name, "eth0").unit_ids[unit] != its_id
    }
    assert changed == {f"vllm-decode-1@{D[1]}"}


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("vllm-router-1", "vllm-fleet router of router-1, m"),
        ("vllm-front-door", "vllm-fleet entry for m"),
        ("vllm-decode-1", "vLLM decode-1, m"),
    ],
)
def test_units_say_what_they_are(name: str, description: str) -> None:
    made = pd(NIXL, 2, 2, sets=2)
    assert render.describe(made, next(u for u in made.units if u.name == name)) == description


def test_the_plan_as_data_tells_the_sets() -> None:
    data = render.as_data(pd(NIXL, 2, 2, sets=2, service="chat"))
    assert data["service"] == "chat"
    assert data["sets"] == [
        {"name": "set-0", "prefill": ["prefill-0"], "decode": ["decode-0"], "router": P[0]},
        {"name": "set-1", "prefill": ["prefill-1"], "decode": ["decode-1"], "router": P[1]},
    ]


# ---- the front door's configuration


def config(made: Plan) -> str:
    return render.config_of(made, next(u for u in made.units if u.config))


def section(text: str, name: str) -> list[str]:
    """The lines of one section, comments left out."""
    found = re.search(rf"^{name}\n((?:[ #\n].*\n|\n)*)", text, re.MULTILINE)
    assert found, name
    return [line.strip() for line in found[1].splitlines() if line.strip() and not line.strip().startswith("#")]


def test_models_are_asked_of_decode_and_the_rest_of_the_sets() -> None:
    text = config(pd(MOONCAKE, 2, 4, sets=2))
    assert [line for line in section(text, "backend service") if line.startswith("server")] == [
        f"server set-0 {P[0]}:8200",
        f"server set-1 {P[1]}:8200",
    ]
    assert [line for line in section(text, "backend models") if line.startswith("server")] == [
        f"server decode-{k} {D[2 * k]}:8001" for k in range(4)
    ]
    assert "use_backend models if { path /v1/models }" in section(text, "frontend api")
    assert "backend models" not in config(lay(REPLICAS, {}, serve=SERVE, proxy=[SERVE[0]]))


def test_without_certificate_and_keys_there_is_neither() -> None:
    text = config(pd(MOONCAKE, 2, 2, sets=2))
    assert "bind *:9000" in section(text, "frontend api")
    assert "ssl" not in text
    assert "401" not in text
    assert "secrets" not in text


def test_a_certificate_and_keys() -> None:
    made = pd(MOONCAKE, 2, 2, sets=2, tls_certificate="c.pem", api_keys="keys")
    lines = section(text := config(made), "frontend api")
    assert "bind *:9000 ssl crt /etc/vllm-fleet/secrets/tls.pem alpn http/1.1" in lines
    assert "ssl-default-bind-options ssl-min-ver TLSv1.2" in section(text, "global")
    refused = next(n for n, line in enumerate(lines) if line.startswith("http-request return status 401"))
    assert lines[refused].endswith("unless { var(txn.client) -m found }")
    assert "sha2(256),hex,map_str(/etc/vllm-fleet/secrets/api_keys)" in lines[refused - 1]
    assert lines[refused + 1] == "http-request del-header Authorization"
    assert lines.index("http-request deny deny_status 404 if is_twisted or !is_api") < refused
    body = re.search(r"string '(.*)' unless", lines[refused])
    assert body
    assert json.loads(body[1])["error"]["code"] == 401
    assert made.entries == (f"https://{P[0]}:9000",)


def test_the_secrets_of_a_service_are_its_own() -> None:
    text = config(pd(MOONCAKE, 2, 2, sets=2, service="chat", tls_certificate="c.pem", api_keys="keys"))
    assert set(re.findall(r"/etc/vllm-fleet/\S*?secrets", text)) == {"/etc/vllm-fleet/services/chat/secrets"}
    assert set(re.findall(r"/run/vllm-fleet/([\w-]+)/", text)) == {"vllm-chat-front-door"}


def test_no_secret_is_in_a_release(tmp_path: Path) -> None:
    made = pd(MOONCAKE, 2, 2, sets=2, tls_certificate=str(tmp_path / "no.pem"), api_keys=str(tmp_path / "no"))
    built = release.build(made, P[0], "eth0")  # the files are not even read
    assert not [path for path in built.files if "secret" in path or path.endswith(".pem")]
    assert not [path for path, (_, text) in built.files.items() if str(tmp_path) in text]


def test_an_ipv6_front_door_listens_to_both() -> None:
    hosts = [("a", "fd00::1"), ("b", "fd00::2")]
    made = lay(REPLICAS, {}, serve=hosts, proxy=hosts[:1])
    assert "bind :::9000 v4v6" in section(config(made), "frontend api")
    assert "server serve-1 [fd00::2]:8000" in section(config(made), "backend service")


@pytest.mark.parametrize("name", ["千问+b", "a:b@c/d+e"])
def test_a_backend_is_asked_by_the_served_name(name: str) -> None:
    made = pd(MOONCAKE.replace("served_name: m", f"served_name: '{name}'"), 2, 2, sets=2)
    (sent,) = [line for line in section(config(made), "backend service") if line.startswith("http-check send")]
    assert json.loads(shlex.split(sent)[-1])["model"] == name


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({}, ""),
        ({"tls_certificate": "/a b/c.pem"}, "--cacert '/a b/c.pem' "),
        ({"api_keys": "k"}, '-H "Authorization: Bearer $API_KEY" '),
        ({"tls_certificate": "c.pem", "api_keys": "k"}, '--cacert c.pem -H "Authorization: Bearer $API_KEY" '),
    ],
)
def test_the_line_to_paste_has_what_the_front_door_wants(data: dict[str, Any], options: str) -> None:
    made = pd(MOONCAKE, 2, 2, sets=2, **data)
    assert waiting.curl_line(made, "https://h:1").startswith(f"curl {options}https://h:1/v1/completions ")


def test_a_wait_for_tls_asks_this_host_whatever_name_the_certificate_is_for() -> None:
    made = pd(MOONCAKE, 2, 2, sets=2, tls_certificate="c.pem")
    text = {u.name: waiting.wait(made, u, made.fleet.node(u.host), 60) for u in made.units if u.host == P[0]}
    assert f"-k https://{P[0]}:9000/health" in text["vllm-front-door"]
    assert f"http://{P[0]}:8200/healthcheck" in text["vllm-proxy-0"]


def test_the_model_is_asked_at_the_front_doors_own_socket_without_a_key() -> None:
    made = pd(MOONCAKE, 2, 2, sets=2, api_keys="k")
    text = waiting.ask_model(made, made.entries[0], "/run/vllm-fleet/vllm-front-door/api.sock")
    assert "--unix-socket /run/vllm-fleet/vllm-front-door/api.sock http://front-door/v1/completions" in text
    assert "Authorization" not in text


@pytest.mark.parametrize("data", [{"api_keys": "k"}, {"tls_certificate": "c.pem"}, {"cache_aware": True}])
def test_what_only_a_front_door_can_do_is_refused_without_one(data: dict[str, Any]) -> None:
    with pytest.raises(FleetError):
        lay(REPLICAS, data, serve=SERVE[:2])


# ---- what is left when hosts are lost


@pytest.mark.parametrize(
    ("lost", "unserved"),
    [
        ([], ""),
        ([P[1]], ""),
        ([D[0]], ""),
        ([D[1]], ""),  # the other host of decode-0
        ([D[0], D[2]], ""),  # set-0 has no decode, set-1 is whole
        (P[:2], "prefill"),
        ([D[0], D[2], D[4], D[7]], "decode"),
        ([P[1], D[0], D[2]], "a whole set"),
        ([P[0], D[4], D[6]], "a whole set"),
        ([P[1], "10.0.9.1"], "proxy"),
        (["10.0.9.1"], "proxy"),
    ],
    ids=[
        *("none", "a-prefill", "a-decode", "its-other-host", "a-sets-decode", "all-prefill", "all-decode"),
        *("one-of-each", "one-of-each-turned", "door-and-a-set", "door"),
    ],
)
def test_two_sets_of_one_prefill_and_two_decode(lost: list[str], unserved: str) -> None:
    made = lay(MOONCAKE, {"sets": 2}, prefill=P[:2], decode=D[:8], proxy=["10.0.9.1"])
    assert quorum.unserved(made, set(lost)) == unserved


def test_a_set_without_the_host_of_its_router_is_no_set() -> None:
    """Its first prefill host; the second prefill is whole."""
    made = pd(NIXL, 4, 2, sets=2, proxy=["10.0.9.1"])
    assert quorum.unserved(made, {P[0]}) == ""
    assert quorum.unserved(made, {P[0], P[3]}) == ""  # set-1 has its router and prefill-2
    assert quorum.unserved(made, {P[0], P[2]}) == "a whole set"


def test_where_the_entry_itself_routes_any_prefill_will_do() -> None:
    made = pd(NIXL, 2, 2, proxy=["10.0.9.1"])
    assert quorum.unserved(made, {P[0], D[1]}) == ""
    assert quorum.unserved(made, {P[0], P[1]}) == "prefill"


@pytest.mark.parametrize(
    ("lost", "unserved"),
    [
        ([SERVE[1]], ""),
        (SERVE[:3], ""),
        (SERVE, "serve"),
        (["10.0.9.1"], ""),
        (["10.0.9.1", "10.0.9.2"], "proxy"),
    ],
)
def test_replicas_behind_two_doors(lost: list[str], unserved: str) -> None:
    made = lay(REPLICAS, {}, serve=SERVE, proxy=["10.0.9.1", "10.0.9.2"])
    assert quorum.unserved(made, set(lost)) == unserved


def test_without_a_door_none_is_missed() -> None:
    assert quorum.unserved(lay(REPLICAS, {}, serve=SERVE), set(SERVE[:3])) == ""


# ---- the hosts of an instance run the same

ENGINES = ("vllm-0.13.0+empty", "ray-2.47.1", "python-3.11.9")
IMAGE = "quay.io/ascend/vllm-ascend:v0.13.0-a3"


def differences(made: Plan, **seen: Snapshot) -> list[str]:
    names = {"head": D[0], "other": D[1], "apart": D[2], "prefill": P[0]}
    return [f.line() for f in admission.differences(made, {names[k]: s for k, s in seen.items()})]


def docker(image_id: str) -> Snapshot:
    return Snapshot(user_id=0, images={IMAGE: image_id})


def native(*distributions: str) -> Snapshot:
    return Snapshot(user_id=0, engines={"/opt/vllm": distributions})


def test_another_image_of_the_same_name_is_told() -> None:
    made = lay(MOONCAKE, {}, prefill=P[:1], decode=D[:4])
    assert differences(made, head=docker("sha256:4bc9"), other=docker("sha256:4bc9"), apart=docker("sha256:0f")) == []
    assert differences(made, head=docker("sha256:4bc9" + "0" * 60), other=docker("sha256:77aa" + "0" * 60)) == [
        f"error: {D[1]}: image {IMAGE} is sha256:77aa00000000, {D[0]}, the head of decode-0, has sha256:4bc900000000; "
        "put the same on all hosts of an instance [VERSION-DIFFERS]"
    ]


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (ENGINES, []),
        (("vllm-0.13.0+empty", "ray-2.48.0", "python-3.11.9"), ["ray is 2.48.0, HEAD has 2.47.1"]),
        (("vllm-0.13.1", "ray-2.47.1", "python-3.11.9"), ["vllm is 0.13.1, HEAD has 0.13.0+empty"]),
        (("vllm-0.13.0+empty", "ray-2.47.1", "python-3.10.14"), ["python is 3.10.14, HEAD has 3.11.9"]),
        (
            ("vllm-0.13.1", "ray-2.47.1", "python-3.10.14"),
            ["python is 3.10.14, HEAD has 3.11.9", "vllm is 0.13.1, HEAD has 0.13.0+empty"],
        ),
        ((), []),  # nothing is known, which admission tells
    ],
    ids=["same", "ray", "vllm", "python", "two", "unknown"],
)
def test_another_engine_ray_or_python_is_told(theirs: tuple[str, ...], told: list[str]) -> None:
    made = lay(MOONCAKE, {"runtime": "native"}, prefill=P[:1], decode=D[:2])
    head = f"{D[0]}, the head of decode-0,"
    assert differences(made, head=native(*ENGINES), other=native(*theirs), prefill=native("vllm-0.1.0")) == [
        f"error: {D[1]}: {line.replace('HEAD', head)}; put the same on all hosts of an instance [VERSION-DIFFERS]"
        for line in told
    ]


def test_a_host_that_gave_no_answer_is_another_rules_matter() -> None:
    made = lay(MOONCAKE, {"runtime": "native"}, prefill=P[:1], decode=D[:2])
    assert differences(made, head=native(*ENGINES)) == []
    assert differences(made, other=native(*ENGINES)) == []


# ---- how it is tried


def pd(text: str, prefills: int, decodes: int, *, proxy: list[str] | None = None, **data: Any) -> Plan:
    """So many instances; a decode instance of MOONCAKE has two hosts. ``of`` is data of single hosts."""
    hosts = 2 if "MooncakeConnectorV1" in text else 1
    return lay(text, data, prefill=P[:prefills], decode=D[: decodes * hosts], proxy=proxy or P[:1])
