"""Writes docs/topologies.md and its pictures from the inventories: ``make docs``.

Everything but the words in ``TOPOLOGIES`` comes from the plans, so the page cannot say what the code does not do.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet import ROOT
from fleet import recipe as recipes
from fleet.picture import draw
from fleet.picture_text import ports
from fleet.plan import plan
from fleet.topology import Plan
from tasks.inventory import fleet_of

PAGE, PICTURES = "docs/topologies.md", "docs/topologies"


@dataclass(frozen=True)
class Topology:
    """One section. ``files`` are pasted into the page where no inventory of the repository is meant."""

    name: str  # of its picture
    title: str
    inventories: tuple[str, ...]
    text: str
    was_run: str
    files: tuple[tuple[str, str], ...] = ()


STAND_IN = (
    "the whole deploy on booted hosts that pose as these machines, through Docker, with a stand-in engine that loads in a "
    "second"
)
REAL = "the whole deploy with the real engine (vLLM 0.32 on CPUs, two cores in all) on booted hosts"
TESTS = "`tests/fleet/test_topologies.py`"
REAL_TESTS = "`tests/fleet/test_topologies_real.py`"

_RECIPE = """\
title: Qwen3-235B-A22B w8a8 on half of an Atlas 800 A3 host, {what}
source: the recipe qwen3-235b-a22b-w8a8/a3-single, with half of its ranks
platform: ascend-a3
model:
  name: vllm-ascend/Qwen3-235B-A22B-w8a8
  served_name: {service}
  quantization: ascend
  max_position_embeddings: 40960
  rope_theta: 1000000
  weights_gb: 240
engine:
  vllm: 0.13.0
  vllm_ascend: 0.13.0
shared:
  env:
    VLLM_USE_MODELSCOPE: true
    PYTORCH_NPU_ALLOC_CONF: "expandable_segments:True"
    HCCL_BUFFSIZE: 512
    HCCL_OP_EXPANSION_MODE: AIV
    OMP_PROC_BIND: false
    OMP_NUM_THREADS: 1
    VLLM_ASCEND_ENABLE_FLASHCOMM1: 1
    TASK_QUEUE_ENABLE: 1
roles:
  serve:
    host: 0.0.0.0
    port: 8000
    tensor_parallel_size: 4
    data_parallel_size: 2
    args:
      seed: 1024
      max-num-seqs: {seqs}
      max-model-len: {length}
      max-num-batched-tokens: 8192
      enable-expert-parallel: true
      trust-remote-code: true
      gpu-memory-utilization: 0.9
      compilation-config: {{ cudagraph_mode: FULL_DECODE_ONLY }}
      async-scheduling: true
"""
_DATA = """\
recipe = "two-services/{service}"
service = "{service}"
devices = "{devices}"
{offset}weights_dir = "/mnt/models"
ssh_user = "ops"
ssh_strict_host_key_checking = "yes"
_sudo = True
"""


def _service(service: str, what: str, devices: str, offset: str, seqs: int, length: int) -> tuple[tuple[str, str], ...]:
    """Inventory, its data and its recipe, as they would lie in the repository."""
    hosts = f'"""Qwen3-235B-A22B w8a8 on NPUs {devices} of an Atlas 800 A3: {what}."""\n\nserve = ["10.10.0.11"]\n'
    return (
        (f"inventories/{service}.py", hosts),
        (f"inventories/group_data/{service}.py", _DATA.format(service=service, devices=devices, offset=offset)),
        (
            f"files/recipes/two-services/{service}.yaml",
            _RECIPE.format(service=service, what=what, seqs=seqs, length=length),
        ),
    )


TOPOLOGIES = (
    Topology(
        "replicas",
        "Replicas behind the front door",
        ("inventories/lab.py",),
        "For a model that fits one host, where one host is too slow or must not be missed. Each host runs a whole"
        " instance of its own; they know nothing of each other. Clients talk to the front door (HAProxy), which "
        "gives each request to the replica with the fewest open ones and asks every replica for a token every ten"
        " seconds. When a replica dies, its running requests are lost, new ones go to the others within seconds, "
        "systemd starts it again, and it comes back into rotation by itself. Name several hosts in `proxy` for "
        "several front doors.",
        f"{REAL}: `make demo`, `tests/fleet/test_serve_real.py`; the front door under load and with faults: "
        "`tests/fleet/test_front_door.py`.",
    ),
    Topology(
        "one-a3",
        "One Atlas 800 A3",
        ("inventories/a3-single.py",),
        "The smallest way to serve the w8a8 model on Ascend, and the one that the published benchmark was run on:"
        " four data-parallel ranks of four NPUs each, in one container. Clients talk to vLLM itself. A rank that "
        "dies takes the unit with it; systemd starts the whole instance again, and until then nothing is served.",
        f"{STAND_IN} ({TESTS}): whole again 13 s after the engine was killed, 2 s after the host answered again "
        "after a loss of power.",
    ),
    Topology(
        "one-h100",
        "One HGX H100",
        ("inventories/h100.py",),
        "The BF16 model on eight GPUs as one tensor-parallel rank, tuned for throughput. Clients talk to vLLM "
        "itself. When it dies, systemd starts it again; until then nothing is served. For more than one such "
        "host, list them in `serve` and name one in `proxy`: they become replicas.",
        f"{STAND_IN} ({TESTS}): whole again 11 s after the engine was killed, 2 s after the host answered again "
        "after a loss of power.",
    ),
    Topology(
        "data-parallel",
        "Data parallel over two hosts",
        ("inventories/a2-32g.py",),
        "For weights that fit no single host: Atlas 800 A2 with 32 GB a device. Each host runs one data-parallel "
        "rank of eight NPUs; experts are spread over both. Only the first host, the head, has an API; it hands "
        "requests to the rank on the other by the data-parallel RPC, and all NPUs exchange data in each step. "
        "Neither rank can go on without the other, so on each host a small group program starts the engine and "
        "watches the other host: when a member dies, starts anew or cannot be reached, the rest end themselves "
        "too, all meet again, and the instance restarts as one, without a hand.",
        f"{STAND_IN} ({TESTS}): whole again 16 s after the head's engine was killed, 14 s after the other host answered "
        f"again after a loss of power. {REAL[0].upper()}{REAL[1:]} (`inventories/lab-dp.py`, {REAL_TESTS}): both hosts "
        "give tokens, the text is that of a single engine; whole again 44 s after the rank without an API was killed, "
        "53 s after the head's host lost its power.",
    ),
    Topology(
        "ray",
        "Tensor and pipeline over two hosts with Ray",
        ("inventories/a2-ray.py",),
        "The BF16 model cut into two pipeline stages, one on each Atlas 800 A2. Ray runs on both hosts; the "
        "engine runs beside Ray's head, in its container, waits until both nodes are there, and lets Ray start "
        "its workers. Clients talk to the engine. The group program keeps the two Ray units together: when one "
        "dies or its host is lost, the other ends too, the engine with it, and the instance restarts as one.",
        f"{STAND_IN} and a stand-in Ray ({TESTS}): whole again after 18 s. {REAL[0].upper()}{REAL[1:]} and the real Ray "
        f"2.56 (`inventories/lab-ray.py`, {REAL_TESTS}): tensor parallel over both hosts, the text is that of a single "
        "engine; whole again 63 s after the Ray worker was killed, 54 s after the head's host lost its power.",
    ),
    Topology(
        "prefill-decode",
        "Prefill and decode apart: one set",
        ("inventories/a3-pd.py",),
        "For many users with long prompts: reading prompts no longer holds up the writing of answers. One host "
        "reads prompts, two write answers as one instance of eight ranks. Clients talk to vllm-ascend's proxy on "
        "the prefill host; it sends each request to prefill, then to decode, and the NPUs pass the key-value "
        "cache from prefill to decode directly (Mooncake). When prefill dies, systemd starts it again; when a "
        "decode host dies, the group programs restart both as one. The proxy itself does not see a dead decode "
        "and answers with nothing: set `front_door = True` for a front door that asks for a token before it sends"
        " requests there.",
        f"{STAND_IN} and a stand-in proxy ({TESTS}): the key-value cache's handshake crosses; whole again 17 s after the "
        "decode engine without an API was killed, 13 s after the prefill engine was, 14 s after the decode head's host "
        "answered again after a loss of power.",
    ),
    Topology(
        "prefill-decode-nixl",
        "Prefill and decode apart with NIXL",
        ("inventories/lab-pd.py",),
        "The same idea with vLLM's own connector, on any machine that NIXL runs on; here on the embedded lab. "
        "Clients talk to vllm-router, which sends each request to prefill, then to decode; decode fetches the "
        "key-value cache from prefill, and finds it at the handshake port. Every unit is whole by itself: the one"
        " that dies is started again by systemd, and the router, which asks for its health every two seconds, "
        "uses it again.",
        f"{REAL}: one prefill and one decode (`tests/fleet/test_serve_real.py`), and two of each "
        f"(`inventories/lab-2p2d.py`, {REAL_TESTS}): the cache really crosses, the text is that of a single engine. With a "
        "decode killed the other serves after 2 s, with a prefill's host without power after 14 s; whole again after 58 "
        "and 41 s, without a restart of router or peers.",
    ),
    Topology(
        "two-sets",
        "Two sets behind a front door",
        ("inventories/a3-2p4d.py",),
        "Two whole services of one prefill and two decode hosts each, and a front door before them: more "
        "throughput, and an outage of one set is none of the service. The front door asks each set for a token "
        "through its router and sends requests to the one with the fewest open; the router of a set runs on its "
        "first prefill host and knows only its own set, and key-value caches stay within a set. When a decode "
        "host dies, its instance restarts as one by the group program on each of its hosts; meanwhile the front "
        "door uses the other set.",
        f"{STAND_IN} and stand-in proxies ({TESTS}): what is out stays out over a reload, nothing goes there; with a decode "
        "host without power the other set serves every request; both are whole again 16 s after it is back.",
    ),
    Topology(
        "two-services",
        "Two services on one host",
        ("inventories/chat.py", "inventories/docs.py"),
        "Two models, or one model set up in two ways, on the two halves of one Atlas 800 A3. Each is an inventory"
        " of its own, with a `service` name, its `devices`, and for the second one `port_offset = 100`: units, "
        "releases, ports and HCCL's port ranges are apart, so each is deployed, upgraded and removed without a "
        "look at the other. When one dies, systemd starts it again and the other goes on. `fleet check "
        "inventories/chat.py inventories/docs.py` says where two services would meet.",
        f"{STAND_IN} ({TESTS}): the second deploy leaves the first service's process alone; devices or ports of the other "
        "are refused, offline and on the host.",
        (
            *_service("chat", "many short talks", "0-7", "", 128, 16384),
            *_service("docs", "few long documents", "8-15", "port_offset = 100\n", 16, 40960),
        ),
    ),
)

HEAD = """\
# Topologies

Every shape in which a model can be served, drawn from the inventory that makes it. Written by `make docs`; do not edit.
`fleet draw INVENTORY --output plan.svg` draws your own.

A thin box is a host, a thick frame one instance over several hosts (it starts and restarts as one), a
dashed frame a set of prefill and decode. The letters on the lines are told below each picture.

"""


TAIL = """
## What could not be run, and why

| what | on CPUs, with vLLM 0.32 |
|---|---|
| MooncakeConnectorV1 | vllm-ascend's, on NPUs only: `ModuleNotFoundError: No module named 'vllm_ascend'`; a stand-in engine takes its place |
| vLLM's own MooncakeConnector | dies at start: `Cannot access accelerator device when none is available` |
| MoE over several ranks | `NotImplementedError: all_gatherv` at the first request, with `--enable-expert-parallel` a segmentation fault; the lab's plugin `vllm_lab_ep.py` adds what is missing |
| Ray | `current platform cpu does not support ray`; the lab's plugin `vllm_lab_ray.py` names a resource for it; with a pipeline `assert self.intermediate_tensors is not None`, which it mends too |
| tensor parallel without `TORCHDYNAMO_DISABLE=1` | `InvalidCxxCompiler: No working C++ compiler`: the hosts have none |
| HCCL, NCCL, the devices themselves | there are none: tools are simulated, device nodes stand in, and of HCCL the host's ports alone |

The stand-in engine (`lab/standin/`) parses its command line with the flag table of the version that it stands for, binds the ports and waits for the
peers that the real one would, and holds both sides' transfer blocks against each other. It computes nothing.
"""


def pages() -> dict[str, str]:
    """Every file that is written, by its path in the repository."""
    made: dict[str, str] = {}
    sections = []
    for topology in TOPOLOGIES:
        plans = plans_of(topology)
        made[f"{PICTURES}/{topology.name}.svg"] = draw(*plans)
        sections.append(section(topology, plans))
    index = "".join(f"- [{t.title}](#{_anchor(t.title)})\n" for t in TOPOLOGIES)
    return {PAGE: HEAD + index + "\n" + "\n".join(sections) + TAIL, **made}


def plans_of(topology: Topology) -> list[Plan]:
    """The plans of its inventories, which lie in the repository or in ``files``."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in topology.files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        base = Path(folder) if topology.files else ROOT
        made = []
        for name in topology.inventories:
            fleet = fleet_of(str(base / name))
            made.append(plan(fleet, recipes.load(recipes.find(fleet.recipe, base / "files/recipes"))))
        return made


def section(topology: Topology, plans: Sequence[Plan]) -> str:
    parts = [
        f"## {topology.title}",
        f"![{topology.title}](topologies/{topology.name}.svg)",
        _filled(topology.text),
        _filled(f"**What was run:** {topology.was_run}"),
        *(f"`{name}`:\n\n```{_language(name)}\n{text}```" for name, text in _sources(topology)),
        port_table(plans),
    ]
    return "\n\n".join(parts) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def _sources(topology: Topology) -> list[tuple[str, str]]:
    if topology.files:
        return list(topology.files)
    names = [n for i in topology.inventories for n in (i, i.replace("inventories/", "inventories/group_data/"))]
    return [(name, (ROOT / name).read_text()) for name in names]


def port_table(plans: Sequence[Plan]) -> str:
    """Ports by host and unit."""
    rows = ["| host | unit | ports |", "|---|---|---|"]
    for one in plans:
        for node in one.fleet.nodes:
            for unit in one.units_of(node.name):
                used = ", ".join(f"{purpose} {number}" for purpose, number in ports(one, unit))
                rows.append(f"| {node.name} | `{unit.name}` | {used} |")
    return "\n".join(rows)


def _language(name: str) -> str:
    return "yaml" if name.endswith(".yaml") else "python"


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def main() -> None:
    os.chdir(ROOT)
    made = pages()
    for name, text in made.items():
        path = ROOT / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {name}")
    for path in (ROOT / PICTURES).glob("*.svg"):
        if f"{PICTURES}/{path.name}" not in made:
            path.unlink()
            print(f"removed {PICTURES}/{path.name}")


if __name__ == "__main__":
    main()
