"""A recipe: one model on one shape of fleet, as a person writes it.

A person writes each number once; ``fleet.plan`` derives what follows from it. Unknown keys are errors.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fleet import FILES, yamlfile
from fleet.findings import FleetError, error
from fleet.flags.table import human_readable_int

PlatformName = Literal["ascend-a2", "ascend-a3", "nvidia", "cpu"]
RoleName = Literal["serve", "prefill", "decode"]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
Size = Annotated[int, Field(ge=1, le=4096, strict=True)]
Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Scalar = bool | int | float | str
Argument = Scalar | dict[str, Any] | list[Any] | None

# Arguments that the planner derives: typed again they could contradict it.
DERIVED = {
    "model": "model.name",
    "host": "host",
    "port": "port",
    "headless": "the order of the hosts",
    "tensor-parallel-size": "tensor_parallel_size",
    "pipeline-parallel-size": "pipeline_parallel_size",
    "data-parallel-size": "data_parallel_size",
    "data-parallel-size-local": "data_parallel_size",
    "data-parallel-start-rank": "data_parallel_size",
    "data-parallel-rank": "data_parallel_size",
    "data-parallel-address": "the inventory",
    "data-parallel-rpc-port": "rpc_port",
    "distributed-executor-backend": "executor",
    "served-model-name": "model.served_name",
    "quantization": "model.quantization",
    "kv-transfer-config": "kv_transfer",
    "shutdown-timeout": "drain_seconds",
    "rope-scaling": "yarn",
}
SHORT_FORMS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "q": "quantization",
}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET = re.compile(
    r"TOKEN(?!IZER|S_|S$)|SECRET|PASSW|PASS$|PASSPHRASE|PWD$|_PW$|KEY$|KEY_ID$|AUTH$|CREDENTIAL|PRIVATE_?KEY",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*\Z")


def check_version(value: str) -> str:
    """A version that can be compared."""
    try:
        if not value[:1].isdigit():
            raise InvalidVersion
        Version(value)
    except InvalidVersion as exc:
        raise ValueError(f"{value!r} is no version; write it like 0.13.0") from exc
    return value


def check_image(value: str) -> str:
    """An image's name, tag or digest included."""
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z", value):
        raise ValueError(f"{value!r} is no image name; write registry/name:tag or registry/name@sha256:...")
    return value


def check_listener(value: str) -> str:
    """An address or name to listen on."""
    if not re.match(r"[A-Za-z0-9.:_-]+\Z", value):
        raise ValueError(f"{value!r} is no address to listen on; write 0.0.0.0 or one of the host's own")
    if value.startswith("127.") or value in ("localhost", "::1"):
        raise ValueError(f"{value} is not reached by other hosts; write 0.0.0.0 or one of the host's own")
    return value


class Strict(BaseModel):
    """Unknown keys refused, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Strict):
    """The weights: ``name`` is also their folder under the inventory's weights_dir.

    What is named as in the weights' config.json is what stands there; checks of memory and sizes use it. ``weights_gb``
    is 10^9 bytes of files, ``experts_gb`` those of the routed experts among them.
    """

    name: str
    served_name: str | None = None
    quantization: str | None = None
    max_position_embeddings: Size | Annotated[int, Field(ge=1, le=10_000_000)]
    rope_theta: float | None = None
    original_max_position_embeddings: int | None = None
    weights_gb: float | None = Field(None, gt=0)
    experts_gb: float | None = Field(None, gt=0)
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_size: Count | None = None

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _MODEL_NAME.match(value) or ".." in value:
            raise ValueError(f"{value!r} is no model name; write it as organisation/name, without spaces")
        return value

    @field_validator("served_name", "quantization")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"\w[\w.:/@+-]*\Z", value):
            raise ValueError(f"{value!r} is no name; write one word of letters, digits and . _ - : / @ +")
        return value


class Engine(Strict):
    """The engine's version, and the image if it is not the vendor's usual one."""

    vllm: str
    vllm_ascend: str | None = None
    image: str | None = None

    @field_validator("vllm", "vllm_ascend")
    @classmethod
    def _is_version(cls, value: str | None) -> str | None:
        return value if value is None else check_version(value)

    @field_validator("image")
    @classmethod
    def _is_image(cls, value: str | None) -> str | None:
        return value if value is None else check_image(value)

    @cached_property
    def version(self) -> Version:
        return Version(self.vllm)


class Yarn(Strict):
    """Context extension: positions are scaled by ``factor``."""

    factor: float = Field(gt=1)


def check_env(env: dict[str, Any]) -> dict[str, Any]:
    """Names are names, and none of them holds a secret: what comes from here is world-readable on the hosts."""
    for name in env:
        if not _ENV_NAME.match(name):
            raise ValueError(f"{name!r} is no name of an environment variable; use letters, digits and _")
        if _SECRET.search(name) or _URL_WITH_PASSWORD.search(str(env[name])):
            raise ValueError(
                f"{name} looks like a secret; keep it out, what stands here becomes world-readable on the hosts"
            )
    return env


def dashed(name: str) -> str:
    """An argument's name with dashes; what follows a dot is a key of JSON, and stays as it is."""
    head, dot, key = name.partition(".")
    return head.replace("_", "-") + dot + key


def check_args(args: dict[str, Any]) -> dict[str, Any]:
    """Names are names, none is derived or secret, and none contradicts another."""
    seen: dict[str, str] = {}
    for name in args:
        flag = dashed(name)
        if not re.match(r"[a-z0-9][a-z0-9-]*(\.[\w.-]+)?\Z", flag):
            raise ValueError(f"{name!r} is no argument name; write it without dashes in front, in lower case")
        flag = SHORT_FORMS.get(flag, flag)
        if flag.partition(".")[0] in DERIVED:
            raise ValueError(f"{name} is derived; remove it, it follows from {DERIVED[flag.partition('.')[0]]}")
        if re.search(r"api-key$|-token$|password$", flag) or _URL_WITH_PASSWORD.search(str(args[name])):
            raise ValueError(f"{name} is a secret; keep it out, what stands here becomes world-readable on the hosts")
        if flag.startswith("no-") and args[name] is False:
            raise ValueError(f"{name}: false denies twice; write {flag[3:]}: true")
        if flag in seen:
            raise ValueError(f"{name} repeats {seen[flag]}; keep one of them")
        seen[flag] = name
    for flag, name in seen.items():
        if flag.startswith("no-") and flag[3:] in seen:
            raise ValueError(f"{name} contradicts {seen[flag[3:]]}; keep one of them")
    return args


class Shared(Strict):
    """Arguments and environment that every role of the recipe has."""

    args: dict[str, Argument] = {}
    env: dict[str, Scalar | None] = {}

    _env = field_validator("env")(check_env)
    _args = field_validator("args")(check_args)


class Role(Shared):
    """What one instance of a role runs. Sizes are those of the whole instance, over all its hosts."""

    tensor_parallel_size: Size = 1
    pipeline_parallel_size: Size = 1
    data_parallel_size: Size = 1
    executor: Literal["mp", "ray", "uni"] | None = None
    host: str | None = None
    port: Port | None = None
    rpc_port: Port = 13389
    yarn: Yarn | None = None

    @field_validator("host")
    @classmethod
    def _is_listener(cls, value: str | None) -> str | None:
        return value if value is None else check_listener(value)

    def wrote(self, field: str) -> bool:
        """Whether the recipe gives the field, as against its default."""
        return field in self.model_fields_set

    @property
    def max_model_len(self) -> int | None:
        """--max-model-len in tokens, also where it is written as the engine reads it (128k); None where it is open."""
        value = self.args.get("max-model-len", self.args.get("max_model_len"))
        if isinstance(value, str):
            try:
                value = human_readable_int(value)
            except (ValueError, argparse.ArgumentTypeError):  # told as a wrong kind
                return None
        return value if isinstance(value, int) and value is not True and value > 0 else None

    @property
    def world_size(self) -> int:
        """Devices of one whole instance."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class KvTransfer(Strict):
    """How prefill hands its key-value cache to decode; both sides' blocks follow from this."""

    connector: Literal["MooncakeConnectorV1", "NixlConnector"]
    port: Port | None = None
    module_path: str | None = None
    extra: dict[str, Any] = {}
    config: dict[str, Scalar] = {}

    @model_validator(mode="after")
    def _port_where_needed(self) -> KvTransfer:
        if self.connector == "MooncakeConnectorV1" and self.port is None:
            raise ValueError("MooncakeConnectorV1 needs a port; add port: 36000")
        clash = {"prefill", "decode"} & set(self.extra)
        if clash:
            raise ValueError(f"extra.{min(clash)} is derived; remove it, it follows from the roles' sizes")
        derived = {"kv_connector", "kv_role", "kv_port", "engine_id", "kv_connector_module_path"} & set(self.config)
        if derived:
            raise ValueError(f"config.{min(derived)} is derived; remove it")
        return self


class Proxy(Strict):
    """What clients talk to."""

    port: Port = 8080


class Bench(Strict):
    """Arguments of ``vllm bench serve`` with which the reference was measured."""

    args: dict[str, Argument]


class Reference(Strict):
    """A published result: what was measured, with what, and the figures as printed there."""

    measured_with: dict[str, str] = {}
    results: dict[str, float] = {}
    baseline: dict[str, float] = {}
    accuracy: dict[str, Scalar] = {}
    notes: list[str] = []


class Recipe(Strict):
    """One model on one shape of fleet."""

    title: str
    source: str
    platform: PlatformName
    model: Model
    engine: Engine
    catalogue: str | None = None  # the row of versions that go together, for deploy/prepare.py
    runtime: Literal["docker", "native"] | None = None
    device_memory_gb: float | None = Field(None, gt=0)  # of one device, as its vendor names it: 64, 80
    shm_size: str = "1g"
    drain_seconds: Annotated[int, Field(ge=0, le=3600, strict=True)] = 60
    start_timeout_seconds: Annotated[int, Field(ge=30, le=14400, strict=True)] = 3600
    shared: Shared = Shared()
    roles: dict[RoleName, Role]
    kv_transfer: KvTransfer | None = None
    proxy: Proxy = Proxy()
    workload: Bench | None = None
    reference: Reference | None = None

    @field_validator("shm_size")
    @classmethod
    def _is_size(cls, value: str) -> str:
        if not re.match(r"[1-9][0-9]*[kmg]\Z", value):
            raise ValueError(f"{value!r} is no size; write it like 1g or 512m")
        return value

    @model_validator(mode="after")
    def _roles_fit(self) -> Recipe:
        names = set(self.roles)
        if not names:
            raise ValueError("roles is empty; give serve, or prefill and decode")
        if names not in ({"serve"}, {"prefill", "decode"}):
            raise ValueError("these roles do not go together; give serve, or prefill and decode")
        if "prefill" in names and self.kv_transfer is None:
            raise ValueError("prefill and decode need kv_transfer; add kv_transfer with its connector")
        for name in self.roles:
            check_args(self.role(name).args)
        if "serve" in names and self.kv_transfer is not None:
            raise ValueError("kv_transfer without prefill and decode has no effect; remove it")
        if self.platform.startswith("ascend") and self.engine.vllm_ascend is None and self.engine.image is None:
            raise ValueError("engine.vllm_ascend is missing; add the plugin's version, it names the image")
        return self

    def role(self, name: RoleName) -> Role:
        """The role with the shared arguments and environment under its own; a null takes one away."""
        own = self.roles[name]
        args = _merge(self.shared.args, own.args)
        env = {k: v for k, v in {**self.shared.env, **own.env}.items() if v is not None}
        return own.model_copy(update={"args": args, "env": env})


def _merge(shared: dict[str, Argument], own: dict[str, Argument]) -> dict[str, Argument]:
    merged = {dashed(k): v for k, v in shared.items()}
    merged.update({dashed(k): v for k, v in own.items()})
    return {k: v for k, v in merged.items() if v is not None}


def find(name: str, base: Path = FILES / "recipes") -> Path:
    """The file of a recipe's name; a FleetError lists the names there are."""
    candidates = [base / f"{name}.yaml", base / name]
    if name.endswith((".yaml", ".yml")):
        candidates.append(Path(name))
    for path in candidates:
        with contextlib.suppress(OSError):  # a name that no file can have
            if path.is_file() and path.suffix in (".yaml", ".yml"):
                return path
    known = sorted(str(p.relative_to(base).with_suffix("")) for p in base.rglob("*.yaml"))
    mend = yamlfile.nearest(name, known)
    raise FleetError(error("RECIPE-NAME", f"recipe {name!r}", f"there is no such recipe under {base.name}/", mend))


def load(path: Path) -> Recipe:
    """Read and validate one recipe; a FleetError carries every fault found."""
    document = yamlfile.read(path)
    if not isinstance(document.data, dict):
        what = f"a recipe is a mapping of keys, not {type(document.data).__name__}"
        raise FleetError(error("RECIPE-TYPE", document.where(()), what, "start with title:, source:, platform:"))
    try:
        return Recipe.model_validate(document.data)
    except ValidationError as exc:
        raise FleetError(*yamlfile.explain(exc, document, Recipe, "RECIPE-KEY")) from exc
