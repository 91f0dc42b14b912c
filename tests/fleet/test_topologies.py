"""The seeds' topologies on booted hosts that pose as Atlas A3, Atlas A2 and HGX H100.

The real deploy, systemd and Docker, a stand-in engine in the containers. Each also loses a unit and a host, and is
whole again without a hand.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lab.fleet import Lab
from lab.hardware import dress_fleet
from lab.image import load_image
from tests.fleet.conftest import FLEET, Fleet, run, take_off

pytestmark = pytest.mark.lab

NAME, SUBNET = "racktest", "10.231.84.0/24"
HOSTS = [f"{NAME}-{i}" for i in range(6)]
RECIPES = Path(__file__).parents[2] / "files" / "recipes"
MODELS = ("vllm-ascend/Qwen3-235B-A22B-w8a8", "Qwen/Qwen3-235B-A22B")
PROMPT = "Why do fleets drift?"
# Within these the service is whole again: a start of the stand-in takes 2 s, systemd waits 10 s before it starts a
# unit again, a member that is gone is told after 3 s and a host that is silent after 15 s.
UNIT_SECONDS, HOST_SECONDS = 60, 120


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Six hosts with Docker; the folder of a model without its weights, which a stand-in does not read."""
    models = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (models / name).mkdir(parents=True)
        config = {"model_type": "qwen3_moe", "max_position_embeddings": 40960, "rope_theta": 1000000}
        (models / name / "config.json").write_text(json.dumps(config))
    lab = Lab(NAME, SUBNET, tmp_path_factory.mktemp("rack"), say=print, shared=True)
    lab.up(6, docker=True, mounts={str(models): "/mnt/models"})
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def a3(rack: Lab) -> Lab:
    """All six pose as Atlas 800 A3."""
    dress_fleet(rack, HOSTS, "ascend-a3")
    load_image(rack, HOSTS, {"quay.io/ascend/vllm-ascend:v0.13.0-a3": "0.13.0"})
    return rack


@pytest.fixture(scope="module")
def others(rack: Lab) -> Lab:
    """Two pose as Atlas 800 A2, one as HGX H100."""
    clean(rack)
    dress_fleet(rack, HOSTS[:2], "ascend-a2")
    load_image(rack, HOSTS[:2], {"quay.io/ascend/vllm-ascend:v0.13.0": "0.13.0"})
    dress_fleet(rack, HOSTS[2:3], "nvidia")
    load_image(rack, HOSTS[2:3], {"vllm/vllm-openai:v0.20.0": "0.20.0"})
    return rack


@pytest.fixture(autouse=True)
def leave_nothing(rack: Lab) -> Iterator[None]:
    yield
    clean(rack)


def clean(rack: Lab) -> None:
    """Take every service off every host."""
    take_off(rack, HOSTS)
    for host in HOSTS:
        rack.ssh(host, "docker rm -f $(docker ps -aq)")


def fleet(rack: Lab, folder: Path, groups: dict[str, list[int]], recipe: str, **data: object) -> Fleet:
    """An inventory of the rack's hosts by number, with a shipped recipe."""
    named = {role: [HOSTS[i] for i in numbers] for role, numbers in groups.items()}
    settings = {"recipe": recipe, "raise_limits": False, "env": {"VLLM_STANDIN_LOAD_S": 1}, **data}
    return Fleet(rack, folder, named, settings)


def deploy(one: Fleet) -> str:
    """Serve, and give what the entry answers to the prompt."""
    done = one.fleet("--yes")
    assert done.code == 0, done.text
    return complete(entry(done.text))


def entry(text: str) -> str:
    """The address in the line that can be pasted."""
    line = next(line for line in text.splitlines() if line.startswith("Try it: "))
    return next(word for word in line.split() if word.startswith("http")).removesuffix("/v1/completions")


def complete(url: str, prompt: str = PROMPT, tokens: int = 12) -> str:
    """The text of a completion; empty for anything else."""
    body = json.dumps({"model": "qwen3", "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["choices"][0]["text"])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return ""


def is_whole(one: Fleet, url: str, text: str) -> bool:
    """Every unit runs, every group has met in one epoch, and several completions in a row are right."""
    epochs: dict[str, set[str]] = {}
    for host in {h for names in one.groups.values() for h in names}:
        done = one.lab.ssh(
            host,
            "for u in /etc/vllm-fleet/current/units/*.service; do systemctl is-active -q $(basename $u) || echo down; "
            "done; for g in /etc/vllm-fleet/current/run/*.group.json; do test -e $g && python3 - $g <<'END'\n"
            "import json, socket, sys\n"
            "c = json.load(open(sys.argv[1])); s = socket.create_connection(tuple(c['listen']), 2)\n"
            "a = json.loads(s.recv(4096)); print(a['member'].split('@')[0], a['epoch'] or '-')\nEND\ndone; true",
        )
        if done.returncode or "down" in done.stdout or done.stderr:
            return False
        for line in done.stdout.splitlines():
            instance, epoch = line.split()
            epochs.setdefault(instance, set()).add(epoch)
    if any(len(found) != 1 or "-" in found for found in epochs.values()):
        return False
    return all(complete(url) == text for _ in range(6))


def recovers(one: Fleet, url: str, text: str, seconds: float) -> float:
    """Seconds until the service is whole again."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if is_whole(one, url, text):
            print(f"{one.folder.name}: whole again after {time.monotonic() - begin:.0f} s")
            return time.monotonic() - begin
        time.sleep(1)
    for host in sorted({h for names in one.groups.values() for h in names}):
        ask = "systemctl --no-pager list-units 'vllm-*'; journalctl -n 40 --no-pager -o short-precise -u 'vllm-*'"
        print(host, one.lab.ssh(host, ask).stdout)
    pytest.fail(f"not whole again after {seconds} s")


def kill_engine(one: Fleet, host: str, unit: str) -> None:
    """The engine's process in the container ends as if it had crashed."""
    one.ssh(host, f"docker kill -s KILL {unit}")


def kill_host(one: Fleet, host: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Power gone, and back."""
    one.lab.power_off(host)
    meanwhile()
    one.lab.boot(host)


# ---- Atlas A3


def test_one_a3(a3: Lab, tmp_path: Path) -> None:
    one = fleet(a3, tmp_path, {"serve": [0]}, "qwen3-235b-a22b-w8a8/a3-single")
    text = deploy(one)
    assert text
    url = "http://10.231.84.10:8000"
    shown = json.loads(one.ssh(HOSTS[0], "docker inspect vllm-serve-0"))[0]["HostConfig"]
    assert len([d for d in shown["Devices"] if d["PathOnHost"][12:].isdigit()]) == 16
    kill_engine(one, HOSTS[0], "vllm-serve-0")
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[0])
    recovers(one, url, text, HOST_SECONDS)


def test_one_prefill_two_decode_hosts(a3: Lab, tmp_path: Path) -> None:
    one = fleet(a3, tmp_path, {"prefill": [0], "decode": [1, 2], "proxy": [0]}, "qwen3-235b-a22b-w8a8/a3-pd")
    text = deploy(one)
    assert text == complete("http://10.231.84.10:12347")
    crossed = one.ssh(HOSTS[1], "curl -s localhost:8000/metrics | grep external_kv_transfer | head -1")
    assert float(crossed.split()[-1]) > 0, "the prompt's cache came from the prefill host"

    again = one.pyinfra("-y")
    assert again.code == 0 and again.line("Grand total").split()[3] == "-"

    url = "http://10.231.84.10:12347"
    started = one.ssh(HOSTS[1], "docker inspect -f '{{.State.StartedAt}}' vllm-decode-0")
    kill_engine(one, HOSTS[2], "vllm-decode-0")  # a rank without an API: its head restarts too
    recovers(one, url, text, UNIT_SECONDS)
    assert one.ssh(HOSTS[1], "docker inspect -f '{{.State.StartedAt}}' vllm-decode-0") != started
    kill_engine(one, HOSTS[0], "vllm-prefill-0")
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[1])  # the head of the decode instance
    recovers(one, url, text, HOST_SECONDS)


def test_two_sets_behind_a_front_door(a3: Lab, tmp_path: Path) -> None:
    groups = {"prefill": [0, 3], "decode": [1, 2, 4, 5], "proxy": [0]}
    one = fleet(a3, tmp_path, groups, "qwen3-235b-a22b-w8a8/a3-pd", sets=2, proxy_port=8080)
    text = deploy(one)
    url = "http://10.231.84.10:8080"
    door = "python3 /etc/vllm-fleet/current/run/door.py /run/vllm-fleet/vllm-front-door"
    names = {"set-0", "set-1"}

    def in_service() -> set[str]:
        rows = [line.split("\t") for line in one.ssh(HOSTS[0], f"{door} status").splitlines()]
        return {name for name, state, *_ in rows if state == "in service"}

    assert in_service() == names
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:  # which the sets' own proxies do not know
        assert json.load(answer)["data"][0]["id"] == "qwen3"

    one.ssh(HOSTS[0], f"{door} out set-1")
    assert in_service() == {"set-0"}
    one.ssh(HOSTS[0], "systemctl reload vllm-front-door")
    assert in_service() == {"set-0"}, "what is out stays out over a reload"
    before = served_by(one, HOSTS[4])
    assert all(complete(url) == text for _ in range(6))
    assert served_by(one, HOSTS[4]) == before, "nothing goes to a set that is out"
    assert one.ssh(HOSTS[0], f"{door} drained set-1") == "0"
    one.ssh(HOSTS[0], f"{door} back set-1")

    def the_other_set_serves() -> None:
        # A check on its way to a host without power hangs until the kernel no longer believes in the neighbour (15 to
        # 45 s, and 8 to ask again), at most the check's own 90 s; the next one fails at once.
        deadline = time.monotonic() + 120
        while in_service() != {"set-0"} and time.monotonic() < deadline:
            time.sleep(1)
        assert in_service() == {"set-0"}
        assert [complete(url) for _ in range(12)] == [text] * 12

    kill_engine(one, HOSTS[5], "vllm-decode-1")
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[4], the_other_set_serves)
    recovers(one, url, text, HOST_SECONDS)
    deadline = time.monotonic() + 30
    while in_service() != names and time.monotonic() < deadline:
        time.sleep(1)
    assert in_service() == names


def served_by(one: Fleet, host: str) -> float:
    """Tokens that the engine of a host has given."""
    return float(one.ssh(host, "curl -s localhost:8000/metrics | grep ^vllm:generation_tokens_total").split()[-1])


def test_two_services_on_one_host(a3: Lab, tmp_path: Path) -> None:
    services = {}
    for name, devices, offset in (("chat", "0-7", 0), ("code", "8-15", 100)):
        recipe = yaml.safe_load((RECIPES / "qwen3-235b-a22b-w8a8" / "a3-single.yaml").read_text())
        recipe["roles"]["serve"] |= {"tensor_parallel_size": 4, "data_parallel_size": 2}
        (tmp_path / name / "group_data").mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        one = fleet(
            a3, tmp_path / name, {"serve": [0]}, str(tmp_path / name / "recipe.yaml"),
            service=name, devices=devices, port_offset=offset,
        )  # fmt: skip
        one.name = name
        services[name] = one
    assert run([*FLEET, "check", *(str(s.path) for s in services.values())]).code == 0
    assert deploy(services["chat"]) and complete("http://10.231.84.10:8000")
    pid = services["chat"].ssh(HOSTS[0], "systemctl show -p MainPID --value vllm-chat-serve-0")
    text = deploy(services["code"])
    assert text and complete("http://10.231.84.10:8100") == text
    assert services["chat"].ssh(HOSTS[0], "systemctl show -p MainPID --value vllm-chat-serve-0") == pid
    again = services["chat"].pyinfra("-y")
    assert again.code == 0 and again.line("Grand total").split()[3] == "-"

    services["code"].data["devices"] = "4-11"
    done = services["code"].fleet("--yes")
    assert done.code == 1
    done.line(f"{HOSTS[0]}: devices 4-7 belong to service chat too", "[PLAN-SHARING]")
    both = run([*FLEET, "check", *(str(s.path) for s in services.values())])
    assert both.code == 1
    both.line("devices 4-7 belong to service code too")
    assert complete("http://10.231.84.10:8100") == text, "what runs is left as it is"


# ---- Atlas A2 and HGX H100


def test_data_parallel_over_two_a2(others: Lab, tmp_path: Path) -> None:
    one = fleet(others, tmp_path, {"serve": [0, 1]}, "qwen3-235b-a22b-w8a8/a2-32g")
    text = deploy(one)
    url = "http://10.231.84.10:8000"
    kill_engine(one, HOSTS[0], "vllm-serve-0")  # the head: the rank without an API would wait for ever
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[1])
    recovers(one, url, text, HOST_SECONDS)
    one.ssh(HOSTS[1], "systemctl stop vllm-serve-0")
    time.sleep(6)
    assert complete(url) == "", "an instance stops as one"
    assert "waiting for serve-0@racktest-1: its unit does not run" in wait_for_words(one, HOSTS[0], "waiting for")
    one.ssh(HOSTS[1], "systemctl start vllm-serve-0")
    recovers(one, url, text, UNIT_SECONDS)


def wait_for_words(one: Fleet, host: str, words: str) -> str:
    """The last lines of the engine's unit, once they hold the words."""
    for _ in range(30):
        said = one.ssh(host, "journalctl -u vllm-serve-0 -n 3 -o cat --no-pager")
        if words in said:
            return said
        time.sleep(1)
    return said


def test_ray_over_two_a2(others: Lab, tmp_path: Path) -> None:
    one = fleet(others, tmp_path, {"ray_head": [0], "ray_worker": [1]}, "qwen3-235b-a22b/a2-ray")
    text = deploy(one)
    url = "http://10.231.84.10:8000"
    kill_engine(one, HOSTS[1], "vllm-ray-serve-0")
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[0])
    recovers(one, url, text, HOST_SECONDS)


def test_h100(others: Lab, tmp_path: Path) -> None:
    one = fleet(others, tmp_path, {"serve": [2]}, "qwen3-235b-a22b/h100")
    text = deploy(one)
    url = "http://10.231.84.12:8000"
    kill_engine(one, HOSTS[2], "vllm-serve-0")
    recovers(one, url, text, UNIT_SECONDS)
    kill_host(one, HOSTS[2])
    recovers(one, url, text, HOST_SECONDS)


def test_hosts_of_an_instance_with_other_images_are_told(others: Lab, tmp_path: Path) -> None:
    one = fleet(others, tmp_path, {"serve": [0, 1]}, "qwen3-235b-a22b-w8a8/a2-32g")
    name = "quay.io/ascend/vllm-ascend:v0.13.0"
    one.ssh(HOSTS[1], f"docker tag {name} keep:me && echo 'FROM keep:me' | docker build -q --label other=1 -t {name} -")
    try:
        done = one.fleet("--yes")
        assert done.code == 1
        done.line(
            f"error: {HOSTS[1]}: image {name} is sha256:", f"{HOSTS[0]}, the head of serve-0, has", "[VERSION-DIFFERS]"
        )
    finally:
        one.ssh(HOSTS[1], f"docker tag keep:me {name}")
