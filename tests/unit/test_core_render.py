"""From a plan to text: scripts, systemd units, container wrappers, releases."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleet import ROOT, inventory, recipe, release, render
from fleet.cli.main import main
from fleet.plan import plan
from fleet.topology import Plan, Unit
from tasks.guard import plan_of

H100_SCRIPT = r"""#!/bin/bash
# vllm-serve-0 on 10.20.0.11: written by vllm-fleet, replaced at the next run.
set -eu
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_WORKER_MULTIPROC_METHOD=spawn
export CUDA_DEVICE_MAX_CONNECTIONS=1
cd /mnt/models
exec vllm serve Qwen/Qwen3-235B-A22B \
  --tensor-parallel-size 8 \
  --distributed-executor-backend mp \
  --gpu-memory-utilization 0.90 \
  --max-num-batched-tokens 8192 \
  --max-num-seqs 512 \
  --enable-chunked-prefill \
  --enable-prefix-caching \
  --max-model-len 8192 \
  --moe-backend triton \
  --shutdown-timeout 60
"""
H100_WRAPPER = r"""#!/bin/bash
# vllm-serve-0 on 10.20.0.11: written by vllm-fleet, replaced at the next run.
set -eu
# After a boot the driver may take minutes to show its devices.
nvidia-modprobe -u -c=0 2>/dev/null || true  # makes those that else appear at the first use
for device in /dev/nvidia0 /dev/nvidia1 /dev/nvidia2 /dev/nvidia3 /dev/nvidia4 /dev/nvidia5 /dev/nvidia6 /dev/nvidia7 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
  for second in $(seq 0 600); do
    [ ! -e "$device" ] || break
    [ $(( second % 30 )) != 1 ] || echo "waiting for $device, which the driver has not made yet"
    sleep 1
  done
  [ -e "$device" ] || { echo "error: there is no $device after 600 s" >&2; exit 1; }
done
docker rm -f vllm-serve-0 >/dev/null 2>&1 || true
exec docker run --rm --init --name vllm-serve-0 \
  --net=host --shm-size=16g --stop-timeout 110 \
  --gpus '"device=0,1,2,3,4,5,6,7"' \
  --device /dev/nvidia0 \
  --device /dev/nvidia1 \
  --device /dev/nvidia2 \
  --device /dev/nvidia3 \
  --device /dev/nvidia4 \
  --device /dev/nvidia5 \
  --device /dev/nvidia6 \
  --device /dev/nvidia7 \
  --device /dev/nvidiactl \
  --device /dev/nvidia-uvm \
  --device /dev/nvidia-uvm-tools \
  -v /mnt/models:/mnt/models:ro \
  --ulimit memlock=-1 \
  -v /var/cache/vllm-fleet/vllm-serve-0:/root/.cache \
  -v /etc/vllm-fleet/current/run:/run/vllm-fleet:ro \
  --entrypoint /bin/bash vllm/vllm-openai:v0.20.0 /run/vllm-fleet/vllm-serve-0.sh
"""  # noqa: E501
RAY_EXEC = r"""#!/bin/bash
# vllm-serve-0 on 10.10.0.11: written by vllm-fleet, replaced at the next run.
# Runs in the container of vllm-ray-serve-0, whose sockets and shared memory it needs.
set -eu
case "${1:-}" in
  stop) exec docker exec vllm-ray-serve-0 /bin/sh -c 'kill -TERM "$(cat /tmp/vllm-serve-0.pid)"' ;;
esac
for _ in $(seq 60); do
  docker exec vllm-ray-serve-0 true >/dev/null 2>&1 && break
  sleep 1
done
exec docker exec vllm-ray-serve-0 /bin/bash -c 'echo $$ >/tmp/vllm-serve-0.pid; exec /bin/bash /run/vllm-fleet/vllm-serve-0.sh'
"""  # noqa: E501


# ---- scripts


def test_a_script_is_what_an_engineer_would_have_typed() -> None:
    assert render.script(shipped("h100").units[0]) == H100_SCRIPT


AWKWARD = {
    "PLAIN": "expandable_segments:True",
    "SPACES": "two  words ",
    "QUOTES": """it's "so" """,
    "DOLLAR": "$HOME and ${HOME} and $(id) and $",
    "BACKTICKS": "`id` \\`id\\`",
    "BACKSLASH": "a\\b\\\\c\\",
    "UNICODE": "Grüße 你好",
    "LINES": "one\ntwo",
    "TILDE": "~/models",
    "GLOB": "*.py [a] {a,b} !x #y ;z &a |b >c",
    "EMPTY": "",
    "EQUALS": "=enp67s0f0",
    "JSON": '{"a": "b c", "d": [1, "$e"]}',
    "LIKE_A_PATH": "$PATHOLOGY and $LD_LIBRARY_PATHS",
}


def test_values_and_arguments_reach_the_program_unchanged() -> None:
    words = ["", "a b", "it's", '"', "$HOME", "`id`", "\\", "ünï", "--x=$y", '{"a": "b c"}', "*"]
    code = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    unit = engine(env=AWKWARD, argv=(sys.executable, "-c", code, *words))
    environment, argv = json.loads(run_script(render.script(unit)))
    assert {name: environment.get(name) for name in AWKWARD} == AWKWARD
    assert argv == words


@pytest.mark.parametrize(
    ("before", "after"),
    [({"LD_LIBRARY_PATH": "/usr/local/lib"}, "/opt/moon cake:/usr/local/lib"), ({}, "/opt/moon cake:")],
    ids=["set", "unset"],
)
def test_a_search_path_is_added_to_what_is_there(before: dict[str, str], after: str) -> None:
    unit = engine(env={"LD_LIBRARY_PATH": "/opt/moon cake:$LD_LIBRARY_PATH"}, argv=("printenv", "LD_LIBRARY_PATH"))
    assert run_script(render.script(unit), before) == after + "\n"


def test_an_expanded_value_keeps_everything_else_as_written() -> None:
    value = '"a" `id` $HOME \\ ${PYTHONPATH} $PATH'
    unit = engine(env={"PYTHONPATH": value}, argv=("printenv", "PYTHONPATH"))
    printed = run_script(render.script(unit), {"PYTHONPATH": "/old", "PATH": "/usr/bin:/bin"})
    assert printed == '"a" `id` $HOME \\ /old /usr/bin:/bin\n'


def test_a_native_unit_finds_its_own_programs_first(tmp_path: Path) -> None:
    (tmp_path / "v 1" / "bin").mkdir(parents=True)
    program = tmp_path / "v 1" / "bin" / "vllm"
    program.write_text("#!/bin/sh\necho found $*\n")
    program.chmod(0o755)
    unit = engine(argv=("vllm", "serve"), venv=str(tmp_path / "v 1"))
    assert run_script(render.script(unit)) == "found serve\n"


def test_a_toolkits_own_settings_are_read_first_and_may_be_sloppy(tmp_path: Path) -> None:
    setup = tmp_path / "set_env.sh"
    setup.write_text('false; export A="$UNSET_BEFORE"toolkit B=toolkit\n')
    unit = engine(env={"B": "ours"}, argv=("sh", "-c", 'echo "$A $B"'), setup_files=(str(setup), "/nowhere/set_env.sh"))
    assert run_script(render.script(unit)) == "toolkit ours\n"


def test_settings_that_only_an_interactive_shell_reads_are_read_too(tmp_path: Path) -> None:
    """A .bashrc that begins like those of the vendor's images."""
    setup = tmp_path / ".bashrc"
    setup.write_text('[ -z "$PS1" ] && return\nexport A="$UNSET_BEFORE"toolkit\n')
    unit = engine(argv=("printenv", "A"), setup_files=(str(setup),))
    assert run_script(render.script(unit)) == "toolkit\n"


def test_a_typed_script_finds_the_interface_itself(tmp_path: Path) -> None:
    tool = tmp_path / "ip"
    tool.write_text('#!/bin/sh\n[ "$*" = "-o addr show to 10.10.0.12" ] && echo "3: enp67s0f0    inet 10.10.0.12/24"\n')
    tool.chmod(0o755)
    unit = next(u for u in shipped("a3-pd").units if u.host == "10.10.0.12")
    unit = replace(unit, workdir="/", setup_files=(), argv=("printenv", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    printed = run_script(render.typed(unit, "10.10.0.12"), {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert printed == "=enp67s0f0\nenp67s0f0\n"


def test_no_lookup_where_nothing_asks_for_an_interface() -> None:
    assert "ifname" not in render.typed(shipped("h100").units[0], "10.20.0.11")


def test_an_engines_id_is_new_with_every_start_and_the_rest_as_written() -> None:
    words = ("--a", '{"engine_id":"1-<start>","x":"$HOME `id` \\\\ \\""}', "$start")
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    text = render.script(engine(argv=(sys.executable, "-c", code, *words)))
    first, second = (json.loads(run_script(text)) for _ in range(2))
    ids = [json.loads(argv[1])["engine_id"] for argv in (first, second)]
    assert ids[0] != ids[1]
    assert all(re.fullmatch(r"1-[0-9a-f]{8}", its) for its in ids)
    assert [first[1].replace(ids[0], "1-<start>"), first[0], first[2]] == [words[1], words[0], words[2]]


def test_a_container_is_started_once_its_devices_are_there(tmp_path: Path) -> None:
    """With a sleep during which the driver makes them."""
    device = tmp_path / "davinci0"
    for name, text in (("sleep", f"touch {device}"), ("docker", '[ "$1" = rm ] || echo up')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    unit = replace(shipped("a3-single").units[0], devices=(str(device),))
    said = run_script(render.wrapper_of(unit), {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert said.splitlines()[-1] == "up"
    assert device.exists()


# ---- containers


def test_a_container_is_started_as_the_document_says() -> None:
    files = render.unit_files(shipped("h100"), shipped("h100").units[0])
    assert files["run/vllm-serve-0.docker.sh"] == (0o755, H100_WRAPPER)


def test_an_ascend_container_reads_the_images_own_settings_first() -> None:
    files = render.unit_files(shipped("a3-single"), shipped("a3-single").units[0])
    _, text = files["run/vllm-serve-0.docker.sh"]
    assert text.splitlines()[-2:] == [
        "  -v /etc/vllm-fleet/current/run:/run/vllm-fleet:ro \\",
        "  --entrypoint /bin/bash quay.io/ascend/vllm-ascend:v0.13.0-a3 /run/vllm-fleet/vllm-serve-0.sh",
    ]
    _, script = files["run/vllm-serve-0.sh"]
    assert script.splitlines()[3] == (
        "[ ! -r /root/.bashrc ] || { set +eu; PS1=vllm-fleet; . /root/.bashrc; set -eu; }"
    )
    assert script.splitlines()[4].startswith("export ")
    assert text.count("--device /dev/davinci") == 17  # sixteen, and the manager


@pytest.mark.parametrize("name", ["h100", "lab"])
def test_no_other_platforms_script_reads_a_bashrc(name: str) -> None:
    assert [u.at for u in shipped(name).units if ".bashrc" in render.script(u)] == []


def test_every_container_starts_its_own_script_by_bash() -> None:
    made = [shipped(name) for name in ("a2-ray", "a3-pd", "a3-single", "h100")]
    wrappers = {u.at: render.wrapper_of(u).splitlines() for plan in made for u in plan.units if not u.inside}
    assert len(wrappers) == 8
    for at, lines in wrappers.items():
        name = at.partition("@")[0]
        assert lines[-2] == "  -v /etc/vllm-fleet/current/run:/run/vllm-fleet:ro \\"
        assert re.fullmatch(rf"  --entrypoint /bin/bash \S+ /run/vllm-fleet/{name}\.sh", lines[-1])


# ---- Ray in a container


def test_the_engine_on_ray_runs_in_rays_container() -> None:
    made = shipped("a2-ray")
    assert [(u.at, u.inside) for u in made.units] == [
        ("vllm-ray-serve-0@10.10.0.11", None),
        ("vllm-serve-0@10.10.0.11", "vllm-ray-serve-0"),
        ("vllm-ray-serve-0@10.10.0.12", None),
    ]
    files = render.unit_files(made, made.units[1])
    assert files["run/vllm-serve-0.docker.sh"] == (0o755, RAY_EXEC)
    assert render.wrapper_of(made.units[1]) == RAY_EXEC
    assert files["run/vllm-serve-0.sh"][1].splitlines()[3] == (
        "[ ! -r /root/.bashrc ] || { set +eu; PS1=vllm-fleet; . /root/.bashrc; set -eu; }"
    )


def test_native_ray_needs_no_container() -> None:
    made = with_data("a2-ray", runtime="native")
    assert {u.inside for u in made.units} == {None}
    assert "run/vllm-serve-0.docker.sh" not in render.unit_files(made, made.units[1])


def test_the_engine_on_ray_waits_for_its_container_and_stops_by_its_own_process(tmp_path: Path) -> None:
    """With a docker that runs in this machine what it is to run in the container."""
    (tmp_path / "docker").write_text(
        f'#!/bin/bash\necho "$*" >> {tmp_path}/log\nshift 2\n'
        f'if [ "$1" = true ]; then [ "$(grep -c "serve-0 true" {tmp_path}/log)" -ge 3 ]; exit; fi\n'
        f'text=${{3//\\/tmp\\//{tmp_path}/}}\nexec "$1" "$2" "${{text//\\/run\\/vllm-fleet\\//{tmp_path}/}}"\n'
    )
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "vllm-serve-0.sh").write_text(
        f"trap 'echo drained; exit 0' TERM\necho up > {tmp_path}/up\nfor _ in $(seq 200); do /bin/sleep 0.05; done\n"
    )
    for name in ("docker", "sleep"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "exec.sh").write_text(RAY_EXEC)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(tmp_path / "exec.sh")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        for _ in range(200):
            if (tmp_path / "up").exists():
                break
            time.sleep(0.02)
        subprocess.run([*command, "stop"], env=environment, check=True, timeout=10)
        output, _ = running.communicate(timeout=10)
    assert (output, running.returncode) == ("drained\n", 0)
    assert (tmp_path / "log").read_text().splitlines() == [
        *["exec vllm-ray-serve-0 true"] * 3,
        "exec vllm-ray-serve-0 /bin/bash -c echo $$ >/tmp/vllm-serve-0.pid; "
        "exec /bin/bash /run/vllm-fleet/vllm-serve-0.sh",
        'exec vllm-ray-serve-0 /bin/sh -c kill -TERM "$(cat /tmp/vllm-serve-0.pid)"',
    ]


# ---- images and wrappers


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = "quay.io/ascend/vllm-ascend@sha256:" + "0123456789abcdef" * 4
    made = with_image(digest)
    assert {u.image for u in made.units} == {digest}
    _, text = render.unit_files(made, made.units[0])["run/vllm-serve-0.docker.sh"]
    assert f"  --entrypoint /bin/bash {digest} /run/vllm-fleet/vllm-serve-0.sh\n" in text


def test_a_wrapper_is_one_command_that_docker_would_take(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1" = rm ] && exit 1\nfor word; do printf "%s\\n" "$word"; done\n')
    docker.chmod(0o755)
    made = shipped("a3-pd")
    unit = replace(
        next(u for u in made.units if u.name == "vllm-prefill-0"), mounts=("/my data:/data:ro",), devices=("/dev/null",)
    )
    _, text = render.unit_files(made, unit)["run/vllm-prefill-0.docker.sh"]
    words = run_script(text, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}).splitlines()
    assert words[:5] == ["run", "--rm", "--init", "--name", "vllm-prefill-0"]
    assert words[words.index("-v") + 1] == "/my data:/data:ro"
    assert words[-6:] == [
        *("-v", "/etc/vllm-fleet/current/run:/run/vllm-fleet:ro"),
        *("--entrypoint", "/bin/bash"),
        *("quay.io/ascend/vllm-ascend:v0.13.0-a3", "/run/vllm-fleet/vllm-prefill-0.sh"),
    ]


# ---- systemd units


def test_a_unit_restarts_with_a_limit_and_not_after_a_refused_command_line() -> None:
    text = service("h100", "10.20.0.11", "vllm-serve-0")
    assert setting(text, "Restart") == ["always"]
    assert setting(text, "StartLimitIntervalSec") == ["7200"]
    assert setting(text, "StartLimitBurst") == ["5"]
    assert setting(text, "RestartPreventExitStatus") == ["2"]
    assert setting(text, "SuccessExitStatus") == ["143"]


def test_a_unit_waits_for_its_weights_and_comes_back_after_a_boot() -> None:
    text = service("h100", "10.20.0.11", "vllm-serve-0")
    assert setting(text, "RequiresMountsFor") == ["/mnt/models"]
    assert setting(text, "WantedBy") == ["multi-user.target"]
    assert setting(text, "Requires") == ["docker.service"]
    assert setting(text, "After") == ["network-online.target docker.service"]


def test_a_stop_has_time_to_drain() -> None:
    text = service("h100", "10.20.0.11", "vllm-serve-0")  # --shutdown-timeout 60
    assert setting(text, "TimeoutStopSec") == ["120"]
    assert setting(text, "ExecStop") == ["/usr/bin/docker stop -t 110 vllm-serve-0"]


def test_the_drain_of_the_recipe_moves_the_stop() -> None:
    made = with_recipe("h100", drain_seconds=600)
    text = unit_text(made, made.units[0])
    assert setting(text, "TimeoutStopSec") == ["660"]
    assert setting(text, "ExecStop") == ["/usr/bin/docker stop -t 650 vllm-serve-0"]


def test_a_native_unit_knows_no_docker() -> None:
    text = service("lab", "lab-0", "vllm-serve-0")
    assert "docker" not in text
    assert setting(text, "ExecStart") == ["/etc/vllm-fleet/current/run/vllm-serve-0.sh"]
    assert setting(text, "KillMode") == ["mixed"]


def test_a_proxy_needs_no_weights() -> None:
    assert setting(service("lab", "lab-0", "vllm-front-door"), "RequiresMountsFor") == []


def test_the_engine_on_ray_goes_down_and_up_with_ray() -> None:
    text = service("a2-ray", "10.10.0.11", "vllm-serve-0")
    assert setting(text, "Requires") == ["docker.service", "vllm-ray-serve-0.service"]
    assert setting(text, "PartOf") == ["vllm-ray-serve-0.service"]
    assert setting(text, "After") == ["network-online.target vllm-ray-serve-0.service docker.service"]
    assert setting(text, "ExecStart") == ["/etc/vllm-fleet/current/run/vllm-serve-0.docker.sh"]
    assert setting(text, "ExecStop") == ["/etc/vllm-fleet/current/run/vllm-serve-0.docker.sh stop"]


def test_ray_itself_is_stopped_as_a_container() -> None:
    text = service("a2-ray", "10.10.0.11", "vllm-ray-serve-0")
    assert setting(text, "ExecStop") == ["/usr/bin/docker stop -t 110 vllm-ray-serve-0"]
    assert setting(text, "ExecStopPost") == ["-/bin/sh -c '/usr/bin/docker rm -f vllm-ray-serve-0 >/dev/null 2>&1'"]


def test_ray_runs_under_what_keeps_its_hosts_together_and_the_engine_on_it_does_not() -> None:
    run = "/etc/vllm-fleet/current/run"
    text = service("a2-ray", "10.10.0.11", "vllm-ray-serve-0")
    assert setting(text, "ExecStart") == [
        f"/usr/bin/env python3 {run}/group.py {run}/vllm-ray-serve-0.group.json {run}/vllm-ray-serve-0.docker.sh"
    ]
    assert setting(text, "RestartForceExitStatus") == ["75"]
    assert setting(service("a2-ray", "10.10.0.11", "vllm-serve-0"), "RestartForceExitStatus") == []


def test_no_container_is_left_whatever_ended_its_client() -> None:
    text = service("h100", "10.20.0.11", "vllm-serve-0")
    assert setting(text, "ExecStopPost") == ["-/bin/sh -c '/usr/bin/docker rm -f vllm-serve-0 >/dev/null 2>&1'"]
    assert setting(service("lab", "lab-0", "vllm-serve-0"), "ExecStopPost") == []
    # the engine on Ray has no container of its own
    assert setting(service("a2-ray", "10.10.0.11", "vllm-serve-0"), "ExecStopPost") == []


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_engine_on_ray_waits_until_ray_has_all_its_hosts(tmp_path: Path, nodes: int) -> None:
    """With a ray that gets one more host each time it is asked."""
    (tmp_path / "ray").write_text(
        f"#!/bin/bash\necho x >> {tmp_path}/asked\necho 'Active:'\n"
        f"for n in $(seq $(wc -l < {tmp_path}/asked)); do echo \" 1 node_$n\"; done\necho 'Pending:'\n"
    )
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for name in ("ray", "sleep"):
        (tmp_path / name).chmod(0o755)
    text = render.script(engine(argv=("echo", "up"), awaits_nodes=nodes))
    assert run_script(text, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == "up\n"
    assert len((tmp_path / "asked").read_text().splitlines()) == nodes


def test_a_unit_over_several_hosts_is_told_who_the_others_are() -> None:
    made = shipped("a3-pd")
    unit = next(u for u in made.units_of("10.10.0.13") if u.name == "vllm-decode-0")
    files = render.unit_files(made, unit)
    assert files["run/group.py"] == (0o755, (ROOT / "files/group/group.py").read_text())
    mode, text = files["run/vllm-decode-0.group.json"]
    assert mode == 0o644
    data = json.loads(text)
    assert re.fullmatch("[0-9a-f]{12}", data.pop("settings"))
    assert data == {
        "unit": "vllm-decode-0.service",
        "me": "decode-0@10.10.0.13",
        "kill_seconds": 5,
        "listen": ["10.10.0.13", 7390],
        "peers": [["decode-0@10.10.0.12", "10.10.0.12", 7390]],
    }
    service_text = files["units/vllm-decode-0.service"][1]
    assert setting(service_text, "RestartForceExitStatus") == ["75"]
    assert setting(service_text, "RestartPreventExitStatus") == ["78", "2"]
    assert setting(service_text, "RuntimeDirectoryPreserve") == ["restart"]  # its count of deaths lies there


def test_members_of_an_instance_have_the_same_settings_and_other_commands_are_others() -> None:
    def settings(made: Plan) -> list[str]:
        units = [u for u in made.units if u.name == "vllm-decode-0"]
        assert len(units) == 2
        return [json.loads(render.unit_files(made, u)["run/vllm-decode-0.group.json"][1])["settings"] for u in units]

    one, two = settings(shipped("a3-pd"))
    assert one == two
    first, second = settings(with_data("a3-pd", env={"A": "1"}))
    assert first == second != one


def test_a_unit_of_one_host_alone_keeps_together_with_nobody() -> None:
    made = shipped("a3-pd")
    files = render.unit_files(made, made.units_of("10.10.0.11")[0])
    assert [path for path in files if "group" in path] == []
    text = files["units/vllm-prefill-0.service"][1]
    assert "group.py" not in text
    assert setting(text, "RestartPreventExitStatus") == ["2"]
    assert setting(text, "RuntimeDirectoryPreserve") == []


@pytest.mark.parametrize(
    ("name", "unit", "description"),
    [
        ("qwen3", "vllm-serve-0", "vLLM serve-0, qwen3"),
        ("100%n", "vllm-serve-0", "vLLM serve-0, 100%%n"),
        ("100%n", "vllm-front-door", "vllm-fleet entry for 100%%n"),
    ],
)
def test_a_description_says_nothing_that_systemd_would_read_as_its_own(name: str, unit: str, description: str) -> None:
    model = shipped("lab").recipe.model.model_copy(update={"served_name": name})
    made = with_recipe("lab", model=model)
    text = unit_text(made, next(u for u in made.units_of("lab-0") if u.name == unit))
    assert setting(text, "Description") == [description]


def test_limits_are_raised_unless_the_inventory_says_otherwise() -> None:
    assert setting(service("h100", "10.20.0.11", "vllm-serve-0"), "LimitMEMLOCK") == ["infinity"]
    made = with_data("h100", raise_limits=False)
    assert setting(unit_text(made, made.units[0]), "LimitMEMLOCK") == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With stand-ins for what the host has and this machine may not: the programs, and Docker's unit."""
    for name, host in (("a2-ray", "10.10.0.11"), ("lab", "lab-0"), ("lab-pd", "lab-0")):
        made = shipped(name)
        for unit in made.units_of(host):
            text = unit_text(made, unit)
            text = re.sub(r"^(Exec\w+)=.*", r"\1=/bin/true", text, flags=re.MULTILINE)
            (tmp_path / f"{unit.name}.service").write_text(text)
    (tmp_path / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    units = sorted(str(path) for path in tmp_path.glob("vllm-*.service"))
    assert len(units) == 5
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "vllm-" in line]
    assert (complaints, done.returncode) == ([], 0), done.stderr


# ---- the front door


def test_the_front_door_names_every_replica_and_nothing_but_the_api() -> None:
    made = shipped("lab")
    door = next(u for u in made.units if u.name == "vllm-front-door")
    mode, text = render.unit_files(made, door)["proxy/haproxy.cfg"]
    lines = [line.strip() for line in text.splitlines()]
    assert mode == 0o644
    assert "bind *:8080" in lines
    assert "http-request deny deny_status 404 if is_twisted or !is_api" in lines
    assert r"acl is_twisted path_sub .. // % \\" in lines
    assert [line for line in lines if line.startswith("acl is_api")] == [
        "acl is_api path /v1/models /v1/completions /v1/chat/completions /v1/embeddings /v1/responses /v1/messages",
        "acl is_api path /v1/rerank /v1/score /v1/audio/transcriptions /v1/audio/translations",
        "acl is_api path_beg /v1/models/ /v1/responses/",
    ]
    servers = ["server serve-0 10.231.77.10:8000", "server serve-1 10.231.77.11:8000"]
    by_backend = {
        part.split("\n", 1)[0]: [line.strip() for line in part.splitlines() if line.strip().startswith("server ")]
        for part in text.split("\nbackend ")[1:]
    }
    assert by_backend == {"service": servers}


def test_the_front_door_asks_each_backend_for_a_token() -> None:
    made = shipped("lab")
    text = render.config_of(made, next(u for u in made.units if u.name == "vllm-front-door"))
    (sent,) = [line for line in text.splitlines() if "http-check send" in line]
    assert shlex.split(sent) == [
        *("http-check", "send", "meth", "POST", "uri", "/v1/completions", "ver", "HTTP/1.1"),
        *("hdr", "Host", "vllm-front-door", "hdr", "Content-Type", "application/json", "body"),
        '{"model":"qwen3","prompt":"The future of AI is","max_tokens":1,"temperature":0}',
    ]


def test_a_front_door_reads_its_configuration_anew_without_a_gap() -> None:
    text = service("lab", "lab-0", "vllm-front-door")
    run = "/run/vllm-fleet/vllm-front-door"
    reload = setting(text, "ExecReload")
    assert reload[0].startswith("haproxy -c ")
    assert reload[0].endswith(" -f /etc/vllm-fleet/current/proxy/haproxy.cfg")
    assert f"-/usr/bin/env python3 /etc/vllm-fleet/current/run/door.py {run} save" in reload
    assert "/bin/kill -USR2 $MAINPID" in reload
    assert reload[-1] == f"/bin/cp /etc/vllm-fleet/current/run/vllm-front-door.id {run}/id"
    assert setting(text, "KillSignal") == ["SIGUSR1"]


def test_nothing_else_is_reloaded() -> None:
    for name, host, unit in (
        ("lab", "lab-0", "vllm-serve-0"),
        ("lab-pd", "lab-0", "vllm-router"),
        ("a3-pd", "10.10.0.11", "vllm-proxy"),
    ):
        assert setting(service(name, host, unit), "ExecReload") == []


# ---- releases


def test_a_release_holds_these_files() -> None:
    files = release.build(shipped("lab"), "lab-0", None).files
    assert {path: oct(mode) for path, (mode, _) in files.items()} == {
        "manifest.json": "0o644",
        "proxy/haproxy.cfg": "0o644",
        "run/door.py": "0o755",
        "run/vllm-front-door.id": "0o644",
        "run/vllm-front-door.sh": "0o755",
        "run/vllm-serve-0.id": "0o644",
        "run/vllm-serve-0.sh": "0o755",
        "units/vllm-front-door.service": "0o644",
        "units/vllm-serve-0.service": "0o644",
    }
    assert list(files) == sorted(files)


def test_a_release_is_named_by_its_content() -> None:
    built = release.build(shipped("lab"), "lab-0", None)
    assert re.fullmatch(r"[0-9a-f]{12}", built.id)
    assert built.path == f"/etc/vllm-fleet/releases/{built.id}"
    assert built.id == release.build(plan_of(str(ROOT / "inventories/lab.py")), "lab-0", None).id
    assert built.id == release.digest(built.files)


def test_the_name_covers_paths_modes_and_content() -> None:
    digests = {
        release.digest(files)
        for files in (
            {"a": (0o644, "x"), "b": (0o644, "y")},
            {"a": (0o755, "x"), "b": (0o644, "y")},
            {"a": (0o644, "y"), "b": (0o644, "x")},
            {"a": (0o644, "xy"), "b": (0o644, "")},
            {"a": (0o644, "x"), "c": (0o644, "y")},
        )
    }
    assert len(digests) == 5


def test_its_manifest_says_what_is_in_it() -> None:
    built = release.build(shipped("lab"), "lab-0", None)
    assert json.loads(built.files["manifest.json"][1]) == {
        "engine": "0.32.0",
        "recipe": "lab/replicas",
        "service": "",
        "units": {"vllm-front-door": built.unit_ids["vllm-front-door"], "vllm-serve-0": built.unit_ids["vllm-serve-0"]},
        "devices": [],
        "ports": {"8000": "vllm-serve-0", "8080": "vllm-front-door"},
    }
    assert built.files["manifest.json"][1].count("\n") == 1  # one line, as other services read it
    assert built.files["run/vllm-serve-0.id"][1] == built.unit_ids["vllm-serve-0"] + "\n"


def test_the_interface_is_written_into_the_release() -> None:
    built = release.build(shipped("a3-pd"), "10.10.0.12", "enp67s0f0")
    _, text = built.files["run/vllm-decode-0.sh"]
    assert "export GLOO_SOCKET_IFNAME=enp67s0f0\n" in text
    assert "export HCCL_SOCKET_IFNAME==enp67s0f0\n" in text
    assert not any("<interface" in text for _, text in built.files.values())
    assert built.id != release.build(shipped("a3-pd"), "10.10.0.12", "bond0").id


def test_one_changed_argument_changes_what_it_touches_and_nothing_else() -> None:
    before, after = shipped("lab"), with_data("lab", host="lab-1", env={"A": "1"})
    for host, same in (("lab-0", True), ("lab-1", False)):
        assert (release.build(before, host, None).id == release.build(after, host, None).id) is same


def test_another_replica_restarts_only_the_front_door() -> None:
    groups = {"serve": ["lab-0", "lab-1", "lab-2"], "proxy": ["lab-0"]}
    data = {name: {"recipe": "lab/replicas", "address": f"10.0.0.{n}"} for n, name in enumerate(groups["serve"], 1)}
    two = inventory.build(
        "f.py", {"serve": ["lab-0", "lab-1"], "proxy": ["lab-0"]}, {k: data[k] for k in ("lab-0", "lab-1")}
    )
    three = inventory.build("f.py", groups, data)
    spec = recipe.load(recipe.find("lab/replicas"))
    before = release.build(plan(two, spec), "lab-0", None).unit_ids
    after = release.build(plan(three, spec), "lab-0", None).unit_ids
    assert before["vllm-serve-0"] == after["vllm-serve-0"]
    assert before["vllm-front-door"] != after["vllm-front-door"]


def test_a_change_on_one_host_restarts_its_whole_instance() -> None:
    before, after = shipped("a3-pd"), with_data("a3-pd", host="10.10.0.13", env={"A": "1"})
    ids = [{u: release.build(made, host, "eth0").unit_ids[u] for host, u in HOSTS_OF_A3_PD} for made in (before, after)]
    assert ids[0]["vllm-prefill-0"] == ids[1]["vllm-prefill-0"]
    assert ids[0]["vllm-decode-0"] != ids[1]["vllm-decode-0"]


HOSTS_OF_A3_PD = [("10.10.0.11", "vllm-prefill-0"), ("10.10.0.12", "vllm-decode-0")]


def test_an_archive_has_the_same_bytes_each_time_and_nothing_of_this_machine() -> None:
    built = release.build(shipped("lab"), "lab-0", None)
    raw = release.archive(built)
    assert raw == release.archive(release.build(plan_of(str(ROOT / "inventories/lab.py")), "lab-0", None))
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        members = tar.getmembers()
        text = tar.extractfile("run/vllm-serve-0.sh").read().decode()  # type: ignore[union-attr]
    assert [m.name for m in members] == list(built.files)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert {m.name: m.mode for m in members} == {path: mode for path, (mode, _) in built.files.items()}
    assert text == built.files["run/vllm-serve-0.sh"][1]


def test_an_archive_counts_bytes_not_letters() -> None:
    built = release.Release("0" * 12, {"a": (0o644, "Grüße\n"), "b": (0o644, "你好\n")}, {}, "/etc/vllm-fleet")
    with tarfile.open(fileobj=io.BytesIO(release.archive(built))) as tar:
        assert [tar.extractfile(m).read().decode() for m in tar] == ["Grüße\n", "你好\n"]  # type: ignore[union-attr]


# ---- fleet render


def test_render_prints_the_script_of_each_unit() -> None:
    result = fleet("render", "inventories/h100.py")
    assert result.exit_code == 0
    assert result.stdout == (
        "# ---- vllm-serve-0@10.20.0.11 (serve, docker)\n"
        + H100_WRAPPER.split("\n", 4)[4]
        + "\n# and in the container, vllm-serve-0.sh\n"
        + H100_SCRIPT.split("\n", 3)[3]
        + "\n# start order: vllm-serve-0@10.20.0.11\n"
    )


def test_render_prints_how_the_engine_gets_into_rays_container() -> None:
    out = fleet("render", "inventories/a2-ray.py", "--host", "10.10.0.11").stdout
    head = "# ---- vllm-serve-0@10.10.0.11 (serve, docker)\n"
    assert out[out.index(head) :].startswith(
        head
        + RAY_EXEC.split("\n", 4)[4]
        + "\n# and in the container, vllm-serve-0.sh\n"
        + "ifname=$(ip -o addr show to 10.10.0.11 | awk '{print $2; exit}')\n"
        + "[ ! -r /root/.bashrc ] || { set +eu; PS1=vllm-fleet; . /root/.bashrc; set -eu; }\n"
    )


def test_render_prints_the_proxys_configuration() -> None:
    made = shipped("lab")
    door = next(u for u in made.units if u.name == "vllm-front-door")
    _, written = render.unit_files(made, door)["proxy/haproxy.cfg"]
    assert render.config_of(made, door) == written
    assert render.config_of(made, made.units[0]) == ""
    assert fleet("render", "inventories/lab.py", "--host", "lab-0").stdout.endswith(
        "# ---- vllm-front-door@lab-0 (proxy, native)\n"
        "cd /\n"
        "exec haproxy -Ws -f /etc/vllm-fleet/current/proxy/haproxy.cfg\n"
        "\n"
        "# /etc/vllm-fleet/current/proxy/haproxy.cfg\n" + written + "\n"
        "# start order: vllm-serve-0@lab-0, vllm-serve-1@lab-1; then vllm-front-door@lab-0\n"
    )


def test_render_names_no_container_where_there_is_none() -> None:
    out = fleet("render", "inventories/lab.py").stdout
    assert "container" not in out
    assert "docker" not in out


def test_render_of_one_host() -> None:
    out = fleet("render", "inventories/a3-pd.py", "--host", "10.10.0.11").stdout
    heads = [line for line in out.splitlines() if line.startswith("# ----")]
    assert heads == [
        "# ---- vllm-prefill-0@10.10.0.11 (prefill, docker)",
        "# ---- vllm-proxy@10.10.0.11 (proxy, docker)",
    ]


def test_render_as_json_is_a_stable_interface() -> None:
    data = json.loads(fleet("render", "inventories/a3-pd.py", "--json").stdout)
    assert list(data) == ["recipe", "service", "hosts", "sets", "start_order"]
    assert data["recipe"] == "qwen3-235b-a22b-w8a8/a3-pd"
    assert data["service"] == ""
    assert data["sets"] == [{"name": "set-0", "prefill": ["prefill-0"], "decode": ["decode-0"], "router": "10.10.0.11"}]
    assert list(data["hosts"]) == ["10.10.0.11", "10.10.0.12", "10.10.0.13"]
    assert data["start_order"] == [
        ["vllm-decode-0@10.10.0.13"],
        ["vllm-prefill-0@10.10.0.11", "vllm-decode-0@10.10.0.12"],
        ["vllm-proxy@10.10.0.11"],
    ]
    host = data["hosts"]["10.10.0.11"]
    assert host["platform"] == "ascend-a3"
    keys = ["name", "role", "instance", "kind", "runtime", "image", "env", "argv", "devices", "mounts", "ports"]
    assert [list(unit) for unit in host["units"]] == [keys, keys]
    assert [(u["name"], u["role"], u["instance"], u["kind"], u["runtime"]) for u in host["units"]] == [
        ("vllm-prefill-0", "prefill", "prefill-0", "engine", "docker"),
        ("vllm-proxy", "proxy", "proxy", "proxy", "docker"),
    ]
    assert host["units"][0]["ports"] == {"api": 8000, "rpc": 13389, "kv": 30000}
    assert host["units"][0]["argv"][:3] == ["vllm", "serve", "vllm-ascend/Qwen3-235B-A22B-w8a8"]


def test_render_as_json_of_one_host() -> None:
    data = json.loads(fleet("render", "inventories/a3-pd.py", "--json", "--host", "10.10.0.13").stdout)
    assert [(host, [u["name"] for u in data["hosts"][host]["units"]]) for host in data["hosts"]] == [
        ("10.10.0.13", ["vllm-decode-0"])
    ]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_render_of_a_host_that_is_not_there(options: list[str]) -> None:
    result = fleet("render", "inventories/a3-pd.py", "--host", "10.10.0.14", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "there is no host 10.10.0.14; write 10.10.0.1" in result.stderr
    assert "[INV-HOST]" in result.stderr


def test_render_of_no_inventory() -> None:
    result = fleet("render", "inventories/a3pd.py")
    assert result.exit_code == 2
    assert result.stderr == "error: inventories/a3pd.py: there is no such file; write inventories/a3-pd.py [INV-READ]\n"
    assert result.stdout == ""


# ---- how it is tried


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def fleet(*words: str) -> Any:
    return CliRunner().invoke(main, words)


def shipped(name: str) -> Plan:
    return plan_of(str(ROOT / "inventories" / f"{name}.py"))


def with_data(name: str, host: str | None = None, **data: object) -> Plan:
    """A shipped plan with other data for one host, or for all."""
    made = shipped(name)
    nodes = tuple(
        replace(n, settings=n.settings.model_copy(update=data)) if host in (None, n.name) else n
        for n in made.fleet.nodes
    )
    return plan(replace(made.fleet, nodes=nodes), made.recipe)


def with_recipe(name: str, **update: object) -> Plan:
    made = shipped(name)
    return plan(made.fleet, made.recipe.model_copy(update=update))


def with_image(image: str) -> Plan:
    engine_of = shipped("a3-single").recipe.engine
    return with_recipe("a3-single", engine=engine_of.model_copy(update={"image": image}))


def engine(**fields: Any) -> Unit:
    given = {"argv": ("true",), **fields}
    return Unit(name="vllm-x", host="h", role="serve", instance="x", kind="engine", runtime="native", **given)


def run_script(text: str, env: dict[str, str] | None = None) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "LC_ALL": "C.UTF-8", **(env or {})}
    return subprocess.run(
        ["bash"], input=text, env=environment, capture_output=True, text=True, check=True, timeout=20
    ).stdout


def unit_text(made: Plan, unit: Unit) -> str:
    return render.unit_files(made, unit)[f"units/{unit.name}.service"][1]


def service(name: str, host: str, unit: str) -> str:
    made = shipped(name)
    return unit_text(made, next(u for u in made.units_of(host) if u.name == unit))


def setting(text: str, name: str) -> list[str]:
    """The values of a setting, one for each line that gives it."""
    return re.findall(rf"^{name}=(.*)$", text, flags=re.MULTILINE)
