"""What people get wrong in inventories and recipes: each mistake ends in one clear line, before any connection."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.findings import FleetError
from tasks.guard import plan_of

INVENTORY = 'serve = ["10.0.0.11"]\n'
PAIR = 'prefill = ["10.0.0.11"]\ndecode = ["10.0.0.12"]\n'
# Line numbers in the table count from here: what a case appends begins at line 10.
RECIPE = """\
title: a tiny model
source: this test
platform: cpu
model:
  name: lab/tiny
  max_position_embeddings: 4096
engine: {vllm: 0.32.0}
roles:
  serve:
"""
SERVE = RECIPE + "    port: 8000\n"
PD = RECIPE.replace("  serve:\n", "  prefill: {}\n  decode: {}\n")
NIXL = "kv_transfer: {connector: NixlConnector}\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + last] * 9)}]\n" for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def case(
    name: str,
    *fragments: str,
    inventory: str | bytes = INVENTORY,
    data: str | bytes = "",
    recipe: str | bytes = SERVE,
) -> Any:
    """One row: the files, and what one line of the error must hold."""
    return pytest.param(inventory, data, recipe, fragments, id=name)


# Lists in lists in lists.
DEEP = "__import__('functools').reduce(lambda a, _: [a], range(5000), [])"

CASES = [
    # ---- the inventory file
    case("empty-inventory", "DIR/fleet.py", "empty", "serve = [", "[INV-EMPTY]", inventory=""),
    case("only-a-comment", "DIR/fleet.py", "empty", "[INV-EMPTY]", inventory="# hosts follow\n"),
    case("empty-role", "DIR/fleet.py", "no hosts", "[INV-EMPTY]", inventory="serve = []\n"),
    case("syntax-error", "DIR/fleet.py:2:", "not Python", "never closed", "[INV-READ]", inventory="\nserve = [\n"),
    case("exception", "DIR/fleet.py:2:", "division by zero", "[INV-READ]", inventory="x = 1\ny = x / 0\n"),
    case("exits", "DIR/fleet.py", "SystemExit", "[INV-READ]", inventory=INVENTORY + "raise SystemExit(0)\n"),
    case("missing-import", "DIR/fleet.py:1:", "No module named 'nobox'", "[INV-READ]", inventory="import nobox\n"),
    case("latin-1", "DIR/fleet.py", "not UTF-8", "[INV-READ]", inventory=INVENTORY.encode() + b"# caf\xe9\n"),
    case("utf-16", "DIR/fleet.py", "not UTF-8", "[INV-READ]", inventory=INVENTORY.encode("utf-16")),
    case(
        "byte-order-mark",  # pyinfra itself ends on it with a traceback
        *("DIR/fleet.py:1:", "byte order mark", "UTF-8 without it", "[INV-READ]"),
        inventory=b"\xef\xbb\xbf" + INVENTORY.encode(),
    ),
    case("nul-byte", "DIR/fleet.py", "null bytes", "[INV-READ]", inventory=INVENTORY.encode() + b"\0"),
    # ---- roles and hosts
    case("role-is-text", "DIR/fleet.py:1 serve", "list of hosts", "[INV-TYPE]", inventory='serve = "10.0.0.11"\n'),
    case("role-is-a-dict", "DIR/fleet.py:1 serve", "[INV-TYPE]", inventory='serve = {"10.0.0.11": {}}\n'),
    case("role-is-none", "DIR/fleet.py:1 serve", "[INV-TYPE]", inventory="serve = None\n"),
    case("role-is-computed-text", "serve", "[INV-TYPE]", inventory='host = "10.0.0.11"\nserve = host\n'),
    case("role-is-a-pair-of-texts", "serve", "[INV-", inventory='serve = ("10.0.0.11", "10.0.0.12")\n'),
    case("role-with-a-number", "serve", "[INV-TYPE]", inventory="serve = [11]\n"),
    case("second-role-with-a-none", "proxy", "[INV-TYPE]", inventory=INVENTORY + 'proxy = ["10.0.0.11", None]\n'),
    case("no-role", "DIR/fleet.py", "no group", "ray_worker", "[INV-ROLE]", inventory='machines = ["10.0.0.11"]\n'),
    case(
        "misspelt-role",
        *("DIR/fleet.py perfill", "host 10.0.0.11 is in no role", "write prefill", "[INV-ROLE]"),
        inventory='perfill = ["10.0.0.11"]\ndecode = ["10.0.0.12"]\n',
        recipe=PD + NIXL,
    ),
    case(
        "stray-host", "DIR/fleet.py spare", "10.0.0.12", "[INV-ROLE]", inventory=INVENTORY + 'spare = ["10.0.0.12"]\n'
    ),
    case(
        "listed-twice",
        *("DIR/fleet.py:1 serve", "10.0.0.11 is listed twice", "list it once", "[INV-TWICE]"),
        inventory='serve = ["10.0.0.11", "10.0.0.11"]\n',
    ),
    case("empty-name", "DIR/fleet.py", "[INV-", inventory='serve = [""]\n'),
    case("name-with-space", "'10.0.0.11 '", "no host name", "[INV-NAME]", inventory='serve = ["10.0.0.11 "]\n'),
    case("name-with-quote", "no host name", "letters, digits", "[INV-NAME]", inventory='serve = ["a\'b"]\n'),
    case("name-with-umlaut", "'höst'", "no host name", "[INV-NAME]", inventory='serve = ["höst"]\n'),
    case("name-with-newline", "no host name", "[INV-NAME]", inventory='serve = ["a\\nb"]\n'),
    case("connector", "'@docker/x'", "no host name", "[INV-NAME]", inventory='serve = ["@docker/x"]\n'),
    # ---- addresses
    case(
        "address-is-a-name",
        "DIR/fleet.py node1",
        "no IP address",
        "('node1', {'address': '",
        "[INV-ADDRESS]",
        inventory='serve = ["node1"]\n',
    ),
    case("address-out-of-range", "10.0.0.256", "no IP address", "[INV-ADDRESS]", inventory='serve = ["10.0.0.256"]\n'),
    case("address-is-loopback", "127.0.0.1", "cannot be reached", "[INV-ADDRESS]", inventory='serve = ["127.0.0.1"]\n'),
    case("address-is-any", "0.0.0.0", "cannot be reached", "[INV-ADDRESS]", inventory='serve = ["0.0.0.0"]\n'),
    case(
        "ssh-name-is-no-address",
        *("DIR/fleet.py a", "'box.example'", "[INV-ADDRESS]"),
        inventory='serve = [("a", {"ssh_hostname": "box.example"})]\n',
    ),
    case(
        "two-hosts-one-address",
        *("b and a have the same address 10.0.0.11", "give each host its own", "[INV-ADDRESS]"),
        inventory='serve = [("a", {"address": "10.0.0.11"}), ("b", {"address": "10.0.0.11"})]\n',
    ),
    # ---- group_data
    case("data-syntax", "DIR/group_data/fleet.py:2:", "not Python", "[INV-READ]", data="weights_dir =\n"),
    case("data-exception", "DIR/group_data/fleet.py:2:", "NameError", "[INV-READ]", data="weights_dir = models\n"),
    case("data-latin-1", "DIR/group_data/fleet.py", "not UTF-8", "[INV-READ]", data=b"# caf\xe9\n"),
    case("misspelt-key", "unknown key weight_dir", "write weights_dir", "[INV-KEY]", data='weight_dir = "/mnt"\n'),
    case("key-of-nobody", "unknown key colour", "use one of", "[INV-KEY]", data='colour = "red"\n'),
    case("devices-is-text", "devices", "'eight' is no number of devices and no list", data='devices = "eight"\n'),
    case("devices-is-none-of-them", "devices", "0 is no number of devices", "write 8, '8-15'", data="devices = 0\n"),
    case("devices-huge", "devices", "this int is no number of devices", "[INV-KEY]", data="devices = 10**5000\n"),
    case("devices-deep", "devices", "this list is no number of devices", "[INV-KEY]", data=f"devices = {DEEP}\n"),
    case(
        "devices-arabic", "devices", "'\u0660-\u0667' is no number of", "[INV-KEY]", data='devices = "\u0660-\u0667"\n'
    ),
    case("devices-long", "devices", "xxx... is no number", "[INV-KEY]", data='devices = "x" * 200000\n'),
    case("devices-long-list", "devices", "0,0,... is no number", "[INV-KEY]", data='devices = "0," * 100000 + "0"\n'),
    case("port-huge", "proxy_port", "[INV-KEY]", data="proxy_port = 10**5000\n"),
    case("port-deep", "proxy_port", "not this list", "[INV-KEY]", data=f"proxy_port = {DEEP}\n"),
    case("port-long", "proxy_port", "xxx...", "[INV-KEY]", data='proxy_port = "x" * 200000\n'),
    case("offset-huge", "port_offset", "[INV-KEY]", data="port_offset = 10**5000\n"),
    case("recipe-deep", "recipe", "not this list", "[INV-KEY]", data=f"recipe = {DEEP}\n"),
    case("mounts-is-text", "mounts", "list", "[INV-KEY]", data='mounts = "/data"\n'),
    case(
        "mount-is-relative", "'data:/data' is no mount", "/path:/inside", "[INV-KEY]", data='mounts = ["data:/data"]\n'
    ),
    case("mount-with-a-command", "is no mount", "[INV-KEY]", data='mounts = ["/data/$(id)"]\n'),
    case("mount-inside-with-a-command", "is no mount", "[INV-KEY]", data='mounts = ["/data:/d$(id):ro"]\n'),
    case("mount-with-backticks", "is no mount", "[INV-KEY]", data='mounts = ["/data/`id`"]\n'),
    case("mount-with-a-quote", "is no mount", "[INV-KEY]", data='mounts = ["/it\'s"]\n'),
    case("mount-with-two-quotes", "is no mount", "[INV-KEY]", data="mounts = ['/a\"b']\n"),
    case("mount-with-a-backslash", "is no mount", "[INV-KEY]", data="mounts = ['/a:/b\\\\']\n"),
    case("runtime-of-nobody", "runtime", "'docker' or 'native'", "[INV-KEY]", data='runtime = "podman"\n'),
    case("platform-of-nobody", "platform", "'ascend-a3'", "not 'a3'", "[INV-KEY]", data='platform = "a3"\n'),
    case("port-zero", "proxy_port", "not 0", "[INV-KEY]", data="proxy_port = 0\n"),
    case("port-too-high", "proxy_port", "65535", "not 70000", "[INV-KEY]", data="proxy_port = 70000\n"),
    case("port-is-text", "proxy_port", "integer", "not '8000'", "[INV-KEY]", data='proxy_port = "8000"\n'),
    case("ssh-port-too-high", "ssh_port", "70000 is no port", "[INV-KEY]", data="ssh_port = 70000\n"),
    case("ssh-port-is-yes", "ssh_port", "True is no port", "[INV-KEY]", data="ssh_port = True\n"),
    case(
        "misspelt-ssh-key",
        *("DIR/fleet.py 10.0.0.11", "unknown key ssh_usr", "write ssh_user", "[INV-KEY]"),
        data='ssh_usr = "ops"\n',
    ),
    case(
        "ssh-key-of-nobody",
        *("unknown key ssh_colour", "use one of", "ssh_user", "[INV-KEY]"),
        data='ssh_colour = "red"\n',
    ),
    case(
        "misspelt-sudo",
        *("DIR/fleet.py 10.0.0.11", "unknown key _suod", "write _sudo", "[INV-KEY]"),
        data="_suod = True\n",
    ),
    case(
        "misspelt-sudo-of-one-host",
        *("DIR/fleet.py 10.0.0.12", "unknown key _sudo_usr", "write _sudo_user", "[INV-KEY]"),
        inventory='serve = ["10.0.0.11", ("10.0.0.12", {"_sudo_usr": "x"})]\n',
    ),
    case(
        *("api-host-is-loopback", "api_host", "127.0.0.1 is not reached by other hosts", "write 0.0.0.0", "[INV-KEY]"),
        data='api_host = "127.0.0.1"\n',
    ),
    case("weights-with-space", "weights_dir", "'/mnt/my models'", "[INV-KEY]", data='weights_dir = "/mnt/my models"\n'),
    case("weights-relative", "weights_dir", "absolute path", "[INV-KEY]", data='weights_dir = "models"\n'),
    case("weights-climbing", "weights_dir", "absolute path", "[INV-KEY]", data='weights_dir = "/mnt/../etc"\n'),
    case("weights-with-percent", "weights_dir", "'/mnt/%h'", "[INV-KEY]", data='weights_dir = "/mnt/%h"\n'),
    case("venv-relative", "venv", "absolute path", "[INV-KEY]", data='venv = "~/vllm"\n'),
    case("interface-with-space", "interface", "leave it out", "[INV-KEY]", data='interface = "eth 0"\n'),
    case("host-env-name", "env", "'A B' is no name", "[INV-KEY]", data='env = {"A B": 1}\n'),
    case("host-env-secret", "env", "HF_TOKEN looks like a secret", "[INV-KEY]", data='env = {"HF_TOKEN": "hf_x"}\n'),
    case(
        *("host-env-url", "env", "PROXY_URL looks like a secret", "[INV-KEY]"),
        data='env = {"PROXY_URL": "http://me:pw@proxy:3128"}\n',
    ),
    case("image-with-space", "image", "'my image'", "[INV-KEY]", data='image = "my image"\n'),
    case("mirror-with-space", "registry_mirror", "[INV-KEY]", data='registry_mirror = "my mirror"\n'),
    case("version-of-nobody", "engine_version", "'newest'", "like 0.13.0", "[INV-", data='engine_version = "newest"\n'),
    case("version-with-v", "engine_version", "'v0.20.0' is no version", "[INV-", data='engine_version = "v0.20.0"\n'),
    case("version-is-a-number", "engine_version", "string", "not 0.32", "[INV-KEY]", data="engine_version = 0.32\n"),
    # ---- which recipe
    case("recipe-missing", "recipe is missing", "add recipe = ", "[INV-RECIPE]", data="del recipe\n"),
    case("recipe-is-a-number", "recipe", "string", "not 5", "[INV-KEY]", data="recipe = 5\n"),
    case(
        "recipe-near-miss",
        "'lab/replica'",
        "no such recipe",
        "write lab/replicas",
        "[RECIPE-NAME]",
        data='recipe = "lab/replica"\n',
    ),
    case("recipe-of-nobody", "'gpt'", "use one of", "lab/replicas", "[RECIPE-NAME]", data='recipe = "gpt"\n'),
    case("recipe-is-a-folder", "'lab'", "no such recipe", "[RECIPE-NAME]", data='recipe = "lab"\n'),
    case("recipe-name-too-long", "no such recipe", "[RECIPE-NAME]", data="recipe = 'x' * 300\n"),
    case(
        "recipes-differ",
        *("DIR/fleet.py", "different recipes", "lab/replicas", "[INV-RECIPE]"),
        inventory='serve = [("10.0.0.11", {"recipe": "lab/replicas"}), "10.0.0.12"]\n',
    ),
    # ---- the recipe file
    case("recipe-empty", "DIR/r.yaml", "empty", "[RECIPE-READ]", recipe=""),
    case("recipe-is-a-list", "DIR/r.yaml:1", "mapping", "not list", "[RECIPE-TYPE]", recipe="- serve\n"),
    case("recipe-is-text", "DIR/r.yaml:1", "mapping", "not str", "[RECIPE-TYPE]", recipe="hello\n"),
    case("recipe-with-tab", "DIR/r.yaml:2", "not YAML", r"'\t'", "[RECIPE-READ]", recipe="title: t\n\tsource: s\n"),
    case("recipe-syntax", "DIR/r.yaml:12", "not YAML", "[RECIPE-READ]", recipe=SERVE + "shared: [\n"),
    case("recipe-latin-1", "DIR/r.yaml", "not UTF-8", "[RECIPE-READ]", recipe=SERVE.encode() + b"# caf\xe9\n"),
    case("recipe-control-character", "DIR/r.yaml", "not YAML", "[RECIPE-READ]", recipe=SERVE + '# "\x01"\n'),
    case("recipe-two-documents", "DIR/r.yaml:11", "another document", "[RECIPE-READ]", recipe=SERVE + "---\na: 1\n"),
    case("recipe-unknown-alias", "DIR/r.yaml:11", "undefined alias", "[RECIPE-READ]", recipe=SERVE + "shared: *all\n"),
    case("recipe-too-large", "DIR/r.yaml", "under 1000000 bytes", "[RECIPE-READ]", recipe=SERVE + "#" * 1_000_000),
    case("recipe-too-deep", "DIR/r.yaml", "nested too deep", "[RECIPE-READ]", recipe="a: " + "[" * 1000 + "]" * 1000),
    case("recipe-holds-itself", "DIR/r.yaml", "[RECIPE-READ]", recipe="a: &a [*a]\n"),
    case("recipe-bomb", "DIR/r.yaml", "[RECIPE-READ]", recipe=BOMB + SERVE),
    case(
        "key-twice",
        "DIR/r.yaml:11",
        "title is given twice, first in line 1",
        "[RECIPE-READ]",
        recipe=SERVE + "title: u\n",
    ),
    case(
        "nested-key-twice",
        "DIR/r.yaml:11",
        "port",
        "first in line 10",
        "[RECIPE-READ]",
        recipe=SERVE + "    port: 8001\n",
    ),
    case("number-as-key", "DIR/r.yaml:11", "the key 1 is not text", "[RECIPE-READ]", recipe=SERVE + "1: one\n"),
    # ---- the recipe's keys and values
    case("unknown-key", "DIR/r.yaml:11 modle", "write model", "[RECIPE-KEY]", recipe=SERVE + "modle: x\n"),
    case(
        "unknown-key-of-the-model",
        *("DIR/r.yaml:5 model.nmae", "unknown key nmae", "write name", "[RECIPE-KEY]"),
        recipe=SERVE.replace("  name:", "  nmae:"),
    ),
    case(
        "unknown-key-of-a-role",
        *("DIR/r.yaml:11 roles.serve.tensor_paralel_size", "write tensor_parallel_size", "[RECIPE-KEY]"),
        recipe=SERVE + "    tensor_paralel_size: 2\n",
    ),
    case(
        "unknown-role",
        "DIR/r.yaml:9 roles.server",
        "'serve'",
        "[RECIPE-KEY]",
        recipe=SERVE.replace("serve:", "server:"),
    ),
    case("keys-missing", "source is missing", "add it", "[RECIPE-KEY]", recipe="title: t\n"),
    case("no-roles", "DIR/r.yaml:8 roles", "not None", "[RECIPE-KEY]", recipe=RECIPE.replace("  serve:\n", "")),
    case("role-without-value", "DIR/r.yaml:9 roles.serve", "not None", "[RECIPE-KEY]", recipe=RECIPE),
    case(
        "wrong-type",
        "DIR/r.yaml:11 drain_seconds",
        "not 'soon'",
        "[RECIPE-KEY]",
        recipe=SERVE + "drain_seconds: soon\n",
    ),
    case(
        "version",
        "DIR/r.yaml:7 engine.vllm",
        "'new' is no version",
        "[RECIPE-KEY]",
        recipe=SERVE.replace("0.32.0", "new"),
    ),
    case(
        "version-like-a-tag",
        *("DIR/r.yaml:7 engine.vllm", "'v0.20.0' is no version", "write it like 0.13.0", "[RECIPE-KEY]"),
        recipe=SERVE.replace("0.32.0", "v0.20.0"),
    ),
    case(
        "version-as-number",
        "DIR/r.yaml:7 engine.vllm",
        "not 0.32",
        "[RECIPE-KEY]",
        recipe=SERVE.replace("0.32.0", "0.32"),
    ),
    case(
        "platform", "DIR/r.yaml:3 platform", "'nvidia'", "not 'gpu'", "[RECIPE-KEY]", recipe=SERVE.replace("cpu", "gpu")
    ),
    case(
        "model-name", "DIR/r.yaml:5 model.name", "'../etc'", "[RECIPE-KEY]", recipe=SERVE.replace("lab/tiny", "../etc")
    ),
    case(
        "served-name-of-two-lines",
        *("DIR/r.yaml:6 model.served_name", "[RECIPE-KEY]"),
        recipe=SERVE.replace("  max_pos", '  served_name: "a\\nExecStartPre=/bin/false"\n  max_pos'),
    ),
    *(
        case(
            f"served-name-{name}",
            *("DIR/r.yaml:6 model.served_name", "is no name", "one word", "[RECIPE-KEY]"),
            recipe=SERVE.replace("  max_pos", f"  served_name: {written}\n  max_pos"),
        )
        for name, written in {
            "with-percent": "q%n",
            "with-space": "q n",
            "with-quote": '"q\'n"',
            "with-dollar": "q$n",
            "empty": '""',
            "option": "-q",
        }.items()
    ),
    case("shm-size", "DIR/r.yaml:11 shm_size", "like 1g", "[RECIPE-KEY]", recipe=SERVE + "shm_size: 1gb\n"),
    case(
        "yarn-factor", "DIR/r.yaml:11 roles.serve.yarn.factor", "[RECIPE-KEY]", recipe=SERVE + "    yarn: {factor: 1}\n"
    ),
    case(
        "size-zero",
        "DIR/r.yaml:10 roles.serve.tensor_parallel_size",
        "not 0",
        recipe=RECIPE + "    tensor_parallel_size: 0\n",
    ),
    case("size-negative", "tensor_parallel_size", "not -1", recipe=RECIPE + "    tensor_parallel_size: -1\n"),
    case("size-as-text", "tensor_parallel_size", "not '8'", recipe=RECIPE + '    tensor_parallel_size: "8"\n'),
    case("size-and-a-half", "tensor_parallel_size", "not 3.5", recipe=RECIPE + "    tensor_parallel_size: 3.5\n"),
    case("size-yes", "tensor_parallel_size", "not True", recipe=RECIPE + "    tensor_parallel_size: yes\n"),
    case(
        "size-larger-than-a-host",
        *("DIR/fleet.py serve", "16 is more than the 8 devices", "executor: ray", "[PLAN-DEVICES]"),
        recipe=SERVE + "    tensor_parallel_size: 16\n",
        data="devices = 8\n",
    ),
    case(
        "ranks-that-do-not-divide",
        *("DIR/fleet.py serve", "data_parallel_size 3", "multiple of 2", "[PLAN-DEVICES]"),
        recipe=SERVE + "    data_parallel_size: 3\n",
        data="devices = 2\n",
    ),
    case(
        "prefill-alone", "give serve, or prefill and decode", "[RECIPE-KEY]", recipe=SERVE.replace("serve", "prefill")
    ),
    case("no-transfer", "need kv_transfer", "add kv_transfer", "[RECIPE-KEY]", recipe=PD, inventory=PAIR),
    case("transfer-for-nobody", "kv_transfer", "remove it", "[RECIPE-KEY]", recipe=SERVE + NIXL),
    case(
        "transfer-without-port",
        "DIR/r.yaml:11 kv_transfer",
        "add port: 36000",
        recipe=PD + "kv_transfer: {connector: MooncakeConnectorV1}\n",
    ),
    case(
        "transfer-of-nobody",
        "DIR/r.yaml:11 kv_transfer.connector",
        "'NixlConnector'",
        recipe=PD + "kv_transfer: {connector: Moon}\n",
    ),
    case(
        "transfer-sizes-typed",
        *("DIR/r.yaml:11 kv_transfer", "extra.prefill is derived", "[RECIPE-KEY]"),
        recipe=PD + "kv_transfer: {connector: NixlConnector, extra: {prefill: {tp_size: 8}}}\n",
    ),
    case(
        "ascend-without-plugin-version",
        *("engine.vllm_ascend is missing", "names the image", "[RECIPE-KEY]"),
        recipe=SERVE.replace("cpu", "ascend-a3"),
    ),
    # ---- arguments and environment
    case(
        "derived-size",
        *("DIR/r.yaml:11 roles.serve.args", "tensor-parallel-size is derived", "tensor_parallel_size", "[RECIPE-KEY]"),
        recipe=SERVE + "    args: {tensor-parallel-size: 8}\n",
    ),
    case("derived-size-short", "tp is derived", "[RECIPE-KEY]", recipe=SERVE + "    args: {tp: 8}\n"),
    *(
        case(
            f"derived-{flag}", f"{flag} is derived", from_, "[RECIPE-KEY]", recipe=SERVE + f"    args: {{{flag}: 1}}\n"
        )
        for flag, from_ in {
            "dpn": "data_parallel_size",
            "dpr": "data_parallel_size",
            "dpl": "data_parallel_size",
            "dpa": "the inventory",
            "dpp": "rpc_port",
            "q": "model.quantization",
            "model": "model.name",
        }.items()
    ),
    case(
        "derived-headless", "headless is derived", "order of the hosts", recipe=SERVE + "    args: {headless: true}\n"
    ),
    case("derived-transfer", "kv-transfer-config is derived", recipe=SERVE + "    args: {kv-transfer-config: {}}\n"),
    case(
        "derived-transfer-dotted",
        *("kv-transfer-config.kv_role", "derived", "[RECIPE-KEY]"),
        recipe=SERVE + "    args: {kv-transfer-config.kv_role: kv_both}\n",
    ),
    case(
        "derived-address",
        "data_parallel_address is derived",
        "the inventory",
        recipe=SERVE + "    args: {data_parallel_address: x}\n",
    ),
    case(
        "argument-with-dashes",
        "'--seed' is no argument name",
        "without dashes",
        recipe=SERVE + "    args: {--seed: 1}\n",
    ),
    case(
        "arguments-contradict",
        *("DIR/r.yaml:11 roles.serve.args", "no-enable-x contradicts enable-x", "[RECIPE-KEY]"),
        recipe=SERVE + "    args: {enable-x: true, no-enable-x: true}\n",
    ),
    case(
        "arguments-contradict-over-the-shared-ones",
        *("no-enable-x contradicts enable-x", "[RECIPE-KEY]"),
        recipe=SERVE + "    args: {enable-x: true}\nshared: {args: {no-enable-x: true}}\n",
    ),
    case(
        "arguments-repeat", "enable_x repeats enable-x", recipe=SERVE + "    args: {enable-x: true, enable_x: false}\n"
    ),
    case("negated-twice", "no-enable-x", "[RECIPE-KEY]", recipe=SERVE + "    args: {no-enable-x: false}\n"),
    case("secret-argument", "api-key", "secret", "[RECIPE-KEY]", recipe=SERVE + "    args: {api-key: sk-1}\n"),
    *(
        case(
            f"secret-argument-{flag}",
            *("DIR/r.yaml:11 roles.serve.args", f"{flag} is a secret", "world-readable", "[RECIPE-KEY]"),
            recipe=SERVE + f"    args: {{{flag}: x}}\n",
        )
        for flag in ("api_key", "hf-token", "hf_token", "ssl-keyfile-password", "ssl_keyfile_password")
    ),
    case(
        "secret-in-an-argument",
        *("otlp-endpoint is a secret", "[RECIPE-KEY]"),
        recipe=SERVE + "    args: {otlp-endpoint: 'http://me:pw@traces:4317'}\n",
    ),
    *(
        case(
            f"secret-{name}",
            *("DIR/r.yaml:11 roles.serve.env", f"{name} looks like a secret", "world-readable", "[RECIPE-KEY]"),
            recipe=SERVE + f"    env: {{{name}: x}}\n",
        )
        for name in (
            *("MYPASS", "PASSWD", "DB_PASSWORD", "PASSPHRASE", "MY_PASSPHRASE_X", "DB_PW", "DB_PWD", "OPENAI_KEY"),
            *("BASIC_AUTH", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PRIVKEY", "PRIVATE_KEY_PEM"),
            *("MY_TOKENIZER_SECRET", "my_token", "GOOGLE_CREDENTIALS"),
        )
    ),
    *(
        case(
            f"secret-url-{scheme}",
            *("REDIS_URL looks like a secret", "[RECIPE-KEY]"),
            recipe=SERVE + f"    env: {{REDIS_URL: '{scheme}://me:pw@cache:6379/0'}}\n",
        )
        for scheme in ("redis", "https")
    ),
    case(
        "secret",
        "DIR/r.yaml:11 roles.serve.env",
        "HF_TOKEN looks like a secret",
        recipe=SERVE + "    env: {HF_TOKEN: x}\n",
    ),
    case(
        "shared-secret",
        "DIR/r.yaml:11 shared.env",
        "VLLM_API_KEY looks",
        recipe=SERVE + "shared: {env: {VLLM_API_KEY: x}}\n",
    ),
    case("env-name", "'A-B' is no name of an environment variable", recipe=SERVE + "    env: {A-B: 1}\n"),
    case("env-list", "DIR/r.yaml:11 roles.serve.env.A", "[RECIPE-KEY]", recipe=SERVE + "    env: {A: [1]}\n"),
    *(
        case(
            f"host-is-loopback-{host}",
            *("DIR/r.yaml:11 roles.serve.host", f"{host} is not reached by other hosts", "0.0.0.0", "[RECIPE-KEY]"),
            recipe=SERVE + f"    host: '{host}'\n",
        )
        for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1")
    ),
    case("host-with-space", "DIR/r.yaml:11 roles.serve.host", "[RECIPE-KEY]", recipe=SERVE + '    host: "0.0.0.0 x"\n'),
    # ---- recipe and inventory together
    case(
        "hosts-left-over",
        *("DIR/fleet.py decode", "3 hosts", "instances of 2", "add 1 or take 1 away", "[PLAN-HOSTS]"),
        inventory='prefill = ["10.0.0.11"]\ndecode = ["10.0.0.12", "10.0.0.13", "10.0.0.14"]\n',
        recipe=PD.replace("decode: {}", "decode: {data_parallel_size: 2}") + NIXL,
    ),
    case(
        "no-host-for-decode",
        "decode",
        "add the group decode",
        "[PLAN-ROLE]",
        inventory='prefill = ["10.0.0.11"]\n',
        recipe=PD + NIXL,
    ),
    case("only-a-proxy", "serve", "the inventory has none", "[PLAN-ROLE]", inventory='proxy = ["10.0.0.11"]\n'),
    case(
        "role-without-work",
        "DIR/fleet.py decode",
        "nothing for the role decode",
        "[PLAN-ROLE]",
        inventory=INVENTORY + 'decode = ["10.0.0.12"]\n',
    ),
    case("ray-without-ray", "ray-worker", "[PLAN-ROLE]", inventory=INVENTORY + 'ray_worker = ["10.0.0.12"]\n'),
    case(
        "two-roles-on-one-host",
        *("10.0.0.11 has the roles prefill and decode", "share its devices", "[PLAN-ROLE]"),
        inventory='prefill = ["10.0.0.11"]\ndecode = ["10.0.0.11"]\n',
        recipe=PD + NIXL,
    ),
    case(
        "other-platform",
        "DIR/fleet.py 10.0.0.11",
        "host is nvidia",
        "for cpu",
        "[PLAN-PLATFORM]",
        data='platform = "nvidia"\n',
    ),
    case(
        "devices-differ",
        *("DIR/fleet.py serve", "different numbers of devices: [1, 2]", "[PLAN-DEVICES]"),
        inventory='serve = [("10.0.0.11", {"devices": 2}), "10.0.0.12"]\n',
    ),
    case(
        "proxy-on-the-engines-port",
        *("DIR/fleet.py 10.0.0.11", "vllm-front-door and vllm-serve-0 both want port 8000", "[PLAN-PORTS]"),
        inventory=INVENTORY + 'proxy = ["10.0.0.11"]\n',
        data="proxy_port = 8000\n",
    ),
    case(
        "ports-run-out",
        *(
            "DIR/fleet.py 10.0.0.12",
            "vllm-decode-0 would need port 65600 for kv",
            "lower the base port",
            "[PLAN-PORTS]",
        ),
        inventory=PAIR,
        recipe=PD + "kv_transfer: {connector: NixlConnector, port: 65500}\n",
    ),
    case(
        "versions-differ",
        *("different engine versions: 0.31.0, 0.32.0", "one engine_version", "[INV-VERSION]"),
        inventory='serve = [("10.0.0.11", {"engine_version": "0.31.0"}), "10.0.0.12"]\n',
        data='engine_version = "0.32.0"\n',
    ),
]


@pytest.mark.parametrize(("inventory", "data", "recipe", "fragments"), CASES)
def test_ends_in_one_clear_line(
    tmp_path: Path, inventory: str | bytes, data: str | bytes, recipe: str | bytes, fragments: tuple[str, ...]
) -> None:
    path = write(tmp_path, inventory, data, recipe)
    lines = refusal(path).replace(str(tmp_path), "DIR").splitlines()
    assert any(all(fragment in line for fragment in fragments) for line in lines), "\n".join(lines)
    assert all(line.startswith("error: ") for line in lines), "\n".join(lines)
    assert all(len(line) < 1500 for line in lines), max(map(len, lines))


@pytest.mark.parametrize(
    ("path", "fragments"),
    [
        ("inventories/nowhere/fleet.py", ["there is no such file", "[INV-READ]"]),
        ("inventories/a3pd.py", ["there is no such file", "write inventories/a3-pd.py", "[INV-READ]"]),
        ("inventories", ["a Python file", "[INV-READ]"]),
        ("README.md", ["a Python file", "[INV-READ]"]),
        ("x" * 5000, ["[INV-READ]"]),
        ("", ["[INV-READ]"]),
        ("10.0.0.11,10.0.0.12", ["there is no such file", "[INV-READ]"]),
        ("@local", ["there is no such file", "[INV-READ]"]),
    ],
    ids=["missing", "near-miss", "directory", "no-python", "too-long", "nothing", "list-of-hosts", "connector"],
)
def test_a_path_that_is_no_inventory(monkeypatch: pytest.MonkeyPatch, path: str, fragments: list[str]) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    line = refusal(path)
    assert all(fragment in line for fragment in fragments), line


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    recipe = SERVE.replace("platform: cpu\n", "platform: gpu\n") + "modle: x\n"
    rows = refusal(write(tmp_path, INVENTORY, "", recipe)).replace(str(tmp_path), "DIR").splitlines()
    assert [row.partition(":")[2].split(": ")[0] for row in rows] == [" DIR/r.yaml:3 platform", " DIR/r.yaml:11 modle"]


@pytest.mark.parametrize(
    ("inventory", "recipe"),
    [
        (INVENTORY.replace("\n", "\r\n"), SERVE),
        (INVENTORY, SERVE.replace("\n", "\r\n")),
        (INVENTORY, b"\xef\xbb\xbf" + SERVE.encode()),
        ('serve = [("10.0.0.11", {})]\n', SERVE),
        ('serve = (["10.0.0.11"], {"weights_dir": "/data"})\n', SERVE),
        ('SPARE = "10.0.0.99"\nserve = [f"10.0.0.{n}" for n in (11,)]\n', SERVE),
        (INVENTORY, SERVE.replace("this test", "*title").replace("title: a", "title: &title a")),
    ],
    ids=[
        *("windows-inventory", "windows-recipe", "recipe-with-bom"),
        *("host-with-data", "role-with-data", "computed-hosts", "alias"),
    ],
)
def test_unusual_and_right(tmp_path: Path, inventory: str | bytes, recipe: str | bytes) -> None:
    plan = plan_of(str(write(tmp_path, inventory, "", recipe)))
    assert [unit.at for unit in plan.units] == ["vllm-serve-0@10.0.0.11"]


def test_names_that_only_look_like_secrets_pass(tmp_path: Path) -> None:
    env = {
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_MAX_TOKENS_X": "1",
        "NUM_TOKENS": "2",
        "TASK_QUEUE_ENABLE": "1",
        "KEYS_AND_VALUES": "3",
        "AUTHOR": "me",
        "PASSES": "4",
        "HTTP_PROXY": "http://proxy:3128/a:b",
        "NO_USER": "redis://cache:6379/0",
        "ONLY_A_USER": "ssh://git@forge/x",
    }
    recipe = SERVE + "    env:\n" + "".join(f"      {name}: '{value}'\n" for name, value in env.items())
    (unit,) = plan_of(str(write(tmp_path, INVENTORY, "", recipe))).units
    assert {name: unit.env[name] for name in env} == env


def test_arguments_that_only_look_like_secrets_pass(tmp_path: Path) -> None:
    recipe = SERVE + "    args: {max-num-batched-tokens: 8192, tokenizer-mode: auto, ssl-keyfile: /etc/key.pem}\n"
    (unit,) = plan_of(str(write(tmp_path, INVENTORY, "", recipe))).units
    assert unit.argv[unit.argv.index("--max-num-batched-tokens") + 1] == "8192"
    assert unit.argv[unit.argv.index("--ssl-keyfile") + 1] == "/etc/key.pem"


@pytest.mark.parametrize("name", ["q", "qwen3", "Qwen/Qwen3-235B-A22B", "a.b_c:d@e+f", "千问"])
def test_a_served_name_is_one_word(tmp_path: Path, name: str) -> None:
    recipe = SERVE.replace("  max_pos", f"  served_name: '{name}'\n  max_pos")
    assert plan_of(str(write(tmp_path, INVENTORY, "", recipe))).served_name == name


def test_a_files_own_names_and_pyinfras_keys_pass(tmp_path: Path) -> None:
    data = "_helper = 1\n_sudo = True\n_sudo_user = 'x'\nssh_user = 'ops'\nssh_port = 2222\nssh_key = 'k'\n"
    plan = plan_of(str(write(tmp_path, INVENTORY, data, SERVE)))
    assert [unit.at for unit in plan.units] == ["vllm-serve-0@10.0.0.11"]


def test_plain_mounts_pass(tmp_path: Path) -> None:
    data = 'mounts = ["/data", "/etc/x:/y", "/srv/a-b_c.d:/e:ro", "/f:/g:rw"]\nruntime = "docker"\nimage = "i:1"\n'
    (unit,) = plan_of(str(write(tmp_path, INVENTORY, data, SERVE))).units
    assert unit.mounts[-4:] == ("/data:/data", "/etc/x:/y", "/srv/a-b_c.d:/e:ro", "/f:/g:rw")


def test_hosts_keep_the_order_in_which_their_role_lists_them(tmp_path: Path) -> None:
    """pyinfra orders a group by the first mention of its hosts in the whole file."""
    inventory = 'proxy = ["10.0.0.13"]\nprefill = ["10.0.0.11"]\ndecode = ["10.0.0.12", "10.0.0.13"]\n'
    recipe = PD.replace("decode: {}", "decode: {data_parallel_size: 2}") + NIXL
    plan = plan_of(str(write(tmp_path, inventory, "", recipe)))
    assert [member.node.name for member in plan.instances[1].members] == ["10.0.0.12", "10.0.0.13"]


def test_an_unreadable_inventory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, INVENTORY, "", SERVE)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert refusal(path).endswith("cannot read: permission denied; mend its permissions [INV-READ]")


# ---- how a row is tried


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: object) -> None:
        pytest.fail(f"connected to {address}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)


@contextmanager
def at_once() -> Iterator[None]:
    """A loader that hangs fails its test instead of the run."""

    def late(signum: int, frame: object) -> None:
        raise TimeoutError("not refused within ten seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write(folder: Path, inventory: str | bytes, data: str | bytes, recipe: str | bytes) -> Path:
    """An inventory whose group_data names the recipe beside it, and then says ``data``."""
    (folder / "group_data").mkdir()
    (folder / "r.yaml").write_bytes(as_bytes(recipe))
    (folder / "group_data" / "fleet.py").write_bytes(f"recipe = '{folder}/r.yaml'\n".encode() + as_bytes(data))
    (folder / "fleet.py").write_bytes(as_bytes(inventory))
    return folder / "fleet.py"


def refusal(path: Path | str) -> str:
    """All lines of the error that the inventory ends in."""
    with pytest.raises(FleetError) as caught, at_once():
        plan_of(str(path))
    return str(caught.value)


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
