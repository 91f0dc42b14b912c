"""A table read from a small package that is built as vLLM is, as a folder and as a wheel."""

import zipfile
from pathlib import Path

import pytest

from fleet.flags.extract import main, read
from fleet.flags.table import Config, Flag, Table, from_json

FILES = {
    "vllm/__init__.py": "raise RuntimeError('imported')",
    "vllm/config/__init__.py": "from .cache import CacheConfig, PassConfig\nfrom .model import ModelConfig\n",
    "vllm/config/utils.py": 'def config(cls):\n    return dataclass(cls, config=ConfigDict(extra="forbid"))\n',
    "vllm/config/model.py": """
from typing import TYPE_CHECKING, Any, Literal, get_args
import torch
if TYPE_CHECKING:
    Methods = Literal["never"]
else:
    Methods = str
DType = Literal["half", "auto"]
More = Literal["auto", "half", "x"]
@config
class ModelConfig:
    model: str = "m"
    dtype: DType | torch.dtype = "auto"
    more: More | None = None
    tokenizer_mode: Literal["a", "b"] | str = "a"
    quantization: Methods | None = None
    max_model_len: int = Field(default=None, ge=-1)
    max_num_batched_tokens: int | None = None
    names: list[str] | None = None
    pair: tuple[int, int] = (1, 2)
    sleep: bool = False
    token: bool | str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    either: dict[str, Any] | str = ""
""",
    "vllm/config/cache.py": """
@config
class PassConfig:
    fuse: bool = True
@config
class CacheConfig:
    a: ClassVar[int] = 1
    size: int | None = None
    role: Literal["x", "y"] | None = None
    inner: PassConfig = field(default_factory=PassConfig)
    late: SkipValidation[int] = 1
    @field_validator("late", mode="before")
    def _late(cls, value): ...
""",
    "vllm/utils/argparse_utils.py": "class FlexibleArgumentParser:\n    # Move <model> to the front, e,g:\n    pass\n",
    "vllm/engine/arg_utils.py": """
from vllm.config import CacheConfig, ModelConfig, PassConfig
def _compute_kwargs(cls):
    kwargs["const"] = True
    human_readable_int_or_auto
    name in {"max_num_batched_tokens"}
class EngineArgs:
    cache: CacheConfig = None
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        model_group = parser.add_argument_group(title="ModelConfig")
        if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
            model_group.add_argument("--model", **model_kwargs["model"])
        model_kwargs["more"]["choices"].remove("x")
        for arg, type in [("--old-a", str), ("--old-b", bool)]:
            model_group.add_argument(arg, type=type, deprecated=True)
        model_group.add_argument("--dtype", **model_kwargs["dtype"])
        model_group.add_argument("--more", **model_kwargs["more"])
        model_group.add_argument("--tokenizer-mode", **model_kwargs["tokenizer_mode"])
        model_group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        model_group.add_argument("--max-model-len", **{**model_kwargs["max_model_len"], "default": 5})
        model_group.add_argument("--max-num-batched-tokens", **model_kwargs["max_num_batched_tokens"])
        model_group.add_argument("--names", **model_kwargs["names"])
        model_group.add_argument("--pair", **model_kwargs["pair"])
        model_group.add_argument("--sleep", "-s", **model_kwargs["sleep"])
        model_group.add_argument("--token", **model_kwargs["token"])
        model_group.add_argument("--overrides", **model_kwargs["overrides"])
        model_group.add_argument("--either", **model_kwargs["either"])
        own = get_kwargs(EngineArgs)["cache"]
        own["default"] = None
        parser.add_argument("--cache", "-c", **own)
        parser.add_argument("--where", dest="place", choices=["cpu"] + ([here] if here else []))
        parser.add_argument("--lower", type=lambda s: s.lower())
        return parser
class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser = EngineArgs.add_cli_args(parser)
        parser.add_argument("--log", action=argparse.BooleanOptionalAction, default=AsyncEngineArgs.log)
""",
    "vllm/entrypoints/somewhere/cli_args.py": """
from vllm.engine.arg_utils import AsyncEngineArgs
class BaseFrontendArgs:
    origins: list[str] = field(default_factory=lambda: ["*"])
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    modules: list[Path] | None = None
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs = super()._customize_cli_kwargs(frontend_kwargs)
        frontend_kwargs["origins"]["type"] = json.loads
        del frontend_kwargs["origins"]["nargs"]
        frontend_kwargs["modules"]["type"] = optional_type(str)
        frontend_kwargs["modules"]["action"] = LoRAParserAction
        return frontend_kwargs
def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true", default=False)
    parser = FrontendArgs.add_cli_args(parser)
""",
}

FLAGS = (
    Flag(("--headless",), "headless", "bool", 0, action="true", default="False"),
    Flag(("--origins",), "origins", "json", 1, default="lambda: ['*']"),
    Flag(("--port",), "port", "int", 2, default="8000"),
    Flag(("--modules",), "modules", "str", 3, action="lora", nargs="+", optional=True, default="None"),
    Flag(("--model",), "model", "str", 4, default="'m'"),
    Flag(("--old-a",), "old_a", "str", 5, deprecated=True),
    Flag(("--old-b",), "old_b", "truthy", 6, deprecated=True),
    Flag(("--dtype",), "dtype", "str", 7, choices=("auto", "half"), default="'auto'"),
    Flag(("--more",), "more", "str", 8, choices=("auto", "half", None), optional=True, default="None"),
    Flag(("--tokenizer-mode",), "tokenizer_mode", "str", 9, default="'a'"),
    Flag(("--quantization", "-q"), "quantization", "str", 10, optional=True, default="None"),
    Flag(("--max-model-len",), "max_model_len", "size-or-auto", 11, default="5"),
    Flag(("--max-num-batched-tokens",), "max_num_batched_tokens", "size", 12, optional=True, default="None"),
    Flag(("--names",), "names", "str", 13, nargs="+", optional=True, default="None"),
    Flag(("--pair",), "pair", "int", 14, nargs=2, default="(1, 2)"),
    Flag(("--sleep", "--no-sleep", "-s"), "sleep", "bool", 15, action="boolean", default="False"),
    Flag(("--token",), "token", "str", 16, nargs="?", default="None"),
    Flag(("--overrides",), "overrides", "dict", 17, default="dict"),
    Flag(("--either",), "either", "str-or-dict", 18, default="''"),
    Flag(("--cache", "-c"), "cache", "config", 19, default="None", config="CacheConfig"),
    Flag(("--where",), "place", "str", 20, choices=("cpu",), open=True),
    Flag(("--lower",), "lower", "name", 21),
    Flag(("--log", "--no-log"), "log", "bool", 22, action="boolean", default="AsyncEngineArgs.log"),
)
CONFIGS = {
    "CacheConfig": Config({"size": "int?", "role": ("x", "y", None), "inner": "PassConfig", "late": None}),
    "PassConfig": Config({"fuse": "bool"}),
}
TABLE = Table("9.9", FLAGS, CONFIGS, frozenset({"model-moved"}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_folder(folder: Path) -> None:
    assert read(folder, "9.9") == TABLE


def test_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "vllm-9.9-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    assert read(tmp_path / "vllm-9.9-py3-none-any.whl", "9.9") == TABLE


def test_as_a_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "9.9"]) == 0
    table = from_json(capsys.readouterr().out)
    assert {f.dest for f in table.flags} == {f.dest for f in FLAGS}
    assert main([]) == 2


def test_something_else(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no vLLM"):
        read(tmp_path, "1.0")
