"""Arguments against the flag table of the engine's version: what is refused, misread, or soon gone."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from fleet import engine
from fleet.checks.arguments import CHECKS, lines
from fleet.findings import Finding
from fleet.flags import history, known
from fleet.flags.given import Given, given
from fleet.flags.table import versions
from fleet.topology import Plan
from tests.unit.plans import lay


def plan_of(args: str, vllm: str = "0.13.0", platform: str = "nvidia", more: str = "") -> Plan:
    text = f"""
title: t
source: s
platform: {platform}
model: {{name: org/model, max_position_embeddings: 40960}}
engine: {{vllm: "{vllm}", vllm_ascend: "{vllm}"}}
roles:
  serve: {{tensor_parallel_size: 8, args: {args}, {more}}}
"""
    return lay(text, {}, serve=["10.0.0.1", "10.0.0.2"])


def told(args: str, vllm: str = "0.13.0", platform: str = "nvidia") -> list[Finding]:
    return [finding for check in CHECKS for finding in check(plan_of(args, vllm, platform))]


def lines_of(args: str, vllm: str = "0.13.0", platform: str = "nvidia") -> list[str]:
    return [finding.line() for finding in told(args, vllm, platform)]


# ---- what is fine


@pytest.mark.parametrize(
    ("args", "vllm"),
    [
        ("{}", "0.11.0"),
        ("{max_num_seqs: 8, max-model-len: 32k, gpu-memory-utilization: 0.9, enforce-eager: true}", "0.13.0"),
        ("{no-enable-prefix-caching: true, enable-chunked-prefill: false}", "0.18.0"),
        ("{moe-backend: triton}", "0.20.0"),
        ("{compilation-config: {cudagraph_mode: FULL_DECODE_ONLY, cudagraph_capture_sizes: [1, 2]}}", "0.13.0"),
        ("{compilation-config.mode: 3}", "0.13.0"),
        ("{speculative-config: {method: eagle3, model: x, num_speculative_tokens: 3}}", "0.23.0"),
        ("{kv-events-config: {publisher: zmq}, middleware: a}", "0.23.0"),
        ("{hf-overrides: {rope_parameters: {rope_type: yarn}}}", "0.12.0"),
        ("{hf-overrides: {rope_scaling: {rope_type: yarn}}}", "0.11.2"),
        ("{hf-overrides: {max_position_embeddings: 131072}}", "0.33.0"),
    ],
)
def test_what_the_engine_takes(args: str, vllm: str) -> None:
    assert told(args, vllm) == []


@pytest.mark.parametrize("platform", ["ascend-a2", "ascend-a3"])
def test_what_plugins_add_is_not_refused(platform: str) -> None:
    args = "{additional-config: {enable_flashcomm1: true, enable_fused_mc2: 1, refresh: true}}"
    assert told(args, "0.23.0", platform) == []


# ---- unknown


@pytest.mark.parametrize(
    ("args", "vllm", "line"),
    [
        (
            "{max-num-sqs: 8}",
            "0.13.0",
            "vLLM 0.13.0 has no --max-num-sqs (the engine ends at once); write --max-num-seqs",
        ),
        (
            "{task: embed}",
            "0.13.0",
            "vLLM 0.13.0 has no --task (last in 0.12.0, gone by 0.13.0); use --runner and --convert",
        ),
        (
            "{all2all-backend: x}",
            "0.11.0",
            "vLLM 0.11.0 has no --all2all-backend (vLLM has it from 0.11.1 on); "
            "remove it, or choose a version that has it",
        ),
        (
            "{enable-reasoning: true}",
            "0.13.0",
            "vLLM 0.13.0 has no --enable-reasoning (the engine ends at once); use --reasoning-parser alone",
        ),
        (
            "{num-gpus: 8}",
            "0.13.0",
            "vLLM 0.13.0 has no --num-gpus (the engine ends at once); remove it, since Ray counts the devices itself",
        ),
        (
            "{no-max-num-seqs: true}",
            "0.13.0",
            "vLLM 0.13.0 has no --no-max-num-seqs (the engine ends at once); "
            "leave it out, only --max-num-seqs can be given",
        ),
        ("{qqq: 1}", "0.13.0", "vLLM 0.13.0 has no --qqq (the engine ends at once); remove it"),
    ],
)
def test_an_argument_that_the_version_does_not_have(args: str, vllm: str, line: str) -> None:
    assert lines_of(args, vllm) == [f"error: r serve: {line} [ARG-UNKNOWN]"]


def test_each_unknown_argument_is_told_and_what_is_wrong_behind_it() -> None:
    assert [f.rule for f in told("{aaa: 1, bbb: {c: 1}, max-num-seqs: many}")] == ["ARG-UNKNOWN"] * 2 + ["ARG-KIND"]


def test_what_the_planner_leaves_out_says_what_stands_for_it() -> None:
    assert lines_of("{rope-theta: 1000000}") == [
        "warning: r serve: vLLM 0.13.0 has no --rope-theta; it is left out (last in 0.11.0, gone by 0.11.1); "
        "use --hf-overrides with rope_theta in rope_parameters [VERSION-ARGUMENT]"
    ]


# ---- beginnings


def test_the_beginning_of_a_name() -> None:
    assert lines_of("{max-num-seq: 8}") == [
        "warning: r serve: --max-num-seq is read as --max-num-seqs "
        "(a version with another argument that begins so refuses it); write it in full [ARG-PREFIX]"
    ]


def test_a_beginning_that_several_names_have() -> None:
    assert lines_of("{max-num: 8}") == [
        "error: r serve: --max-num could be --max-num-batched-tokens, --max-num-partial-prefills, --max-num-seqs; "
        "write one of them in full [ARG-AMBIGUOUS]"
    ]


# ---- twice


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ("{max-num-seqs: 8, max-num-seq: 9}", [("ARG-PREFIX", "warning"), ("ARG-TWICE", "error")]),
        ("{max-num-seqs: 8, max-num-seq: 8}", [("ARG-PREFIX", "warning"), ("ARG-TWICE", "warning")]),
        ("{tensor-parallel: 4}", [("ARG-PREFIX", "warning"), ("ARG-TWICE", "error")]),
        (
            "{enable-prefix-caching: true, no-enable-prefix-cachin: true}",
            [("ARG-PREFIX", "warning"), ("ARG-CONTRADICTION", "error")],
        ),
        ("{compilation-config: {mode: 3}, compilation-config.level: 3}", [("ARG-TWICE", "error")]),
        ("{compilation-config.mode: 3, compilation-config.level: 3}", []),
    ],
)
def test_one_argument_given_twice(args: str, found: list[tuple[str, str]]) -> None:
    assert [(f.rule, f.severity) for f in told(args)] == found


# ---- values


@pytest.mark.parametrize(
    ("args", "vllm", "rule", "what", "mend"),
    [
        (
            "{max-num-seqs: many}",
            "0.13.0",
            "ARG-KIND",
            "--max-num-seqs takes a whole number, not many",
            "mend the value",
        ),
        ("{seed: 1.5}", "0.13.0", "ARG-KIND", "--seed takes a whole number, not 1.5", "mend the value"),
        (
            "{gpu-memory-utilization: high}",
            "0.13.0",
            "ARG-KIND",
            "--gpu-memory-utilization takes a number, not high",
            "",
        ),
        (
            "{max-model-len: 3.5}",
            "0.32.0",
            "ARG-KIND",
            "--max-model-len takes a whole number or one like 64M, not 3.5",
            "",
        ),
        ("{enforce-eager: 1}", "0.13.0", "ARG-KIND", "--enforce-eager takes no value, not 1", "give it true"),
        ("{max-num-seqs: []}", "0.13.0", "ARG-KIND", "--max-num-seqs: expected one argument", "give it a whole number"),
        ("{scheduling-policy: fcsf}", "0.13.0", "ARG-CHOICE", "--scheduling-policy does not take fcsf", "write fcfs"),
        (
            "{scheduling-policy: x}",
            "0.13.0",
            "ARG-CHOICE",
            "--scheduling-policy does not take x",
            "use one of fcfs, priority",
        ),
        (
            "{compilation-config: '{mode: 3'}",
            "0.13.0",
            "ARG-JSON",
            "--compilation-config: invalid JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
            "write it as a mapping",
        ),
        ("{speculative-config: eagle}", "0.13.0", "ARG-JSON", "--speculative-config takes JSON, 'eagle' is none", ""),
        (
            "{compilation-config: {cudagraph_mod: FULL}}",
            "0.18.0",
            "ARG-JSON",
            "--compilation-config: CompilationConfig of vLLM 0.18.0 has no key cudagraph_mod",
            "write cudagraph_mode",
        ),
        (
            "{compilation-config: {level: 3}}",
            "0.18.0",
            "ARG-JSON",
            "--compilation-config: CompilationConfig of vLLM 0.18.0 has no key level (last in 0.17.1, gone by 0.18.0)",
            "use mode",
        ),
        (
            "{speculative-config: {methd: ngram}}",
            "0.32.0",
            "ARG-JSON",
            "--speculative-config: SpeculativeConfig of vLLM 0.32.0 has no key methd",
            "write method",
        ),
        (
            "{eplb-config: {window_size: many}}",
            "0.18.0",
            "ARG-JSON",
            "--eplb-config: key window_size: input should be a valid integer, "
            "unable to parse string as an integer, not 'many'",
            "mend the value",
        ),
    ],
)
def test_a_value_that_the_engine_refuses(args: str, vllm: str, rule: str, what: str, mend: str) -> None:
    (finding,) = told(args, vllm)
    assert (finding.rule, finding.severity, finding.where) == (rule, "error", "r serve")
    assert (finding.what, finding.why) == (what, "the engine ends at once")
    assert finding.mend.startswith(mend)


def test_each_key_that_is_wrong_is_told() -> None:
    assert [f.rule for f in told("{compilation-config: {aaa: 1, bbb: 2}}", "0.18.0")] == ["ARG-JSON"] * 2


def test_keys_that_the_plugin_may_have_added_are_only_warned_of() -> None:
    (finding,) = told("{speculative-config: {methd: ngram}}", "0.23.0", "ascend-a3")
    assert finding.severity == "warning"


# ---- deprecated


def test_a_deprecated_argument() -> None:
    assert lines_of("{guided-decoding-backend: xgrammar}", "0.11.0") == [
        "warning: r serve: --guided-decoding-backend is deprecated since 0.11.0 (0.12.0 does not have it any more); "
        "use --structured-outputs-config with backend [ARG-DEPRECATED]"
    ]


# ---- hf-overrides


@pytest.mark.parametrize(
    ("overrides", "vllm", "what"),
    [
        (
            "{rope_scaling: {factor: 4}}",
            "0.13.0",
            "--hf-overrides has rope_scaling, from 0.12.0 on the key is rope_parameters",
        ),
        (
            "{text_config: {rope_scaling: {}}}",
            "0.13.0",
            "--hf-overrides has rope_scaling, from 0.12.0 on the key is rope_parameters",
        ),
        (
            "{rope_parameters: {factor: 4}}",
            "0.11.0",
            "--hf-overrides has rope_parameters, before 0.12.0 the key is rope_scaling",
        ),
    ],
)
def test_the_key_of_another_version(overrides: str, vllm: str, what: str) -> None:
    (finding,) = told(f"{{hf-overrides: {overrides}}}", vllm)
    assert (finding.rule, finding.severity, finding.what) == ("ARG-ROPE-KEY", "warning", what)


def test_the_planners_own_yarn_has_the_right_key() -> None:
    for vllm in ("0.11.0", "0.11.1", "0.13.0", "0.33.0"):
        plan = plan_of("{max-model-len: 81920}", vllm, more="yarn: {factor: 2}")
        assert [f for check in CHECKS for f in check(plan)] == []


# ---- additional-config


@pytest.mark.parametrize(
    ("key", "version", "why", "mend"),
    [
        (
            "enable_fused_mc2",
            "0.18.0",
            "it is read from 0.20.2rc1 on",
            "use the variable VLLM_ASCEND_ENABLE_FUSED_MC2",
        ),
        ("ascend_scheduler_config", "0.13.0", "it was read up to 0.11.0", "remove it"),
        ("dynamic_eplb", "0.18.0", "it was read up to 0.13.0", "use eplb_config.dynamic_eplb"),
        ("enable_cpu_bind", "0.18.0", "no version is known to read it", "write enable_cpu_binding"),
        (
            "fuse_muls_add",  # stands outside in vllm-ascend's own tests
            "0.18.0",
            "it belongs into ascend_compilation_config",
            "write it there: ascend_compilation_config: {fuse_muls_add: ...}",
        ),
        ("zzz", "0.18.0", "no version is known to read it", "remove it"),
    ],
)
def test_a_key_that_vllm_ascend_passes_over(key: str, version: str, why: str, mend: str) -> None:
    (finding,) = told(f"{{additional-config: {{{key}: 1}}}}", version, "ascend-a3")
    assert (finding.rule, finding.severity) == ("ARG-ADDITIONAL-KEY", "warning")
    assert finding.what == f"vllm-ascend {version} ignores the key {key} of --additional-config without a word"
    assert (finding.why, finding.mend) == (why, mend)


def test_the_keys_of_another_platform_are_not_judged() -> None:
    assert told("{additional-config: {zzz: 1}}", "0.18.0", "nvidia") == []


# ---- versions without a table


def test_a_newer_version_is_judged_by_the_last_table_and_only_warned() -> None:
    found = told("{max-num-sqs: 8, seed: x}", "0.99.0")
    assert [(f.rule, f.severity) for f in found] == [
        ("VERSION-TABLE", "warning"),
        ("ARG-UNKNOWN", "warning"),
        ("ARG-KIND", "warning"),
    ]
    assert found[0].line() == (
        "warning: r engine.vllm: there is no flag table of vLLM 0.99.0, that of 0.33.0 stands in "
        "(arguments and variables may have come or gone between the two); "
        "make it of its package: fleet flags add WHEEL 0.99.0 [VERSION-TABLE]"
    )


def test_a_version_before_the_first_table_is_not_judged() -> None:
    assert lines_of("{max-num-sqs: 8}", "0.9.0") == [
        "warning: r engine.vllm: there is no flag table of vLLM 0.9.0, the oldest is 0.11.0; nothing is judged; "
        "make it of its package: fleet flags add WHEEL 0.9.0 [VERSION-TABLE]"
    ]


@pytest.mark.parametrize("vllm", ["0.13", "0.13.0.post1"])
def test_another_spelling_of_a_version_is_the_same(vllm: str) -> None:
    assert told("{}", vllm) == []


# ---- one judgement for all hosts


def test_hosts_that_differ_in_addresses_alone_are_judged_once() -> None:
    assert len(list(lines(plan_of("{}")))) == 1
    group = plan_of("{qqq: 1}", more="data_parallel_size: 2")
    assert len(list(lines(group))) == 2  # the head, and the one without an API
    assert [f.rule for check in CHECKS for f in check(group)] == ["ARG-UNKNOWN"]


# ---- words


@pytest.mark.parametrize(
    ("words", "name", "options", "value", "dotted"),
    [
        ("--max_num_seqs 8", "--max-num-seqs", ("--max-num-seqs",), ("8",), False),
        ("--max-num-seqs=8", "--max-num-seqs", ("--max-num-seqs",), ("8",), False),
        ("--max-num-se=8", "--max-num-se", ("--max-num-seqs",), ("8",), False),
        ("-tp 8", "-tp", ("-tp",), ("8",), False),
        ("-cc.mode=3", "-cc", ("-cc",), ("3",), True),
        (
            "--compilation_config.cudagraph_mode FULL",
            "--compilation-config",
            ("--compilation-config",),
            ("FULL",),
            True,
        ),
        ("--no-enforce-eager", "--no-enforce-eager", ("--no-enforce-eager",), (), False),
        ("--served-model-name a b", "--served-model-name", ("--served-model-name",), ("a", "b"), False),
        ("--nobody x", "--nobody", (), ("x",), False),
    ],
)
def test_a_word_and_what_it_stands_for(
    words: str, name: str, options: tuple[str, ...], value: tuple[str, ...], dotted: bool
) -> None:
    table = history.table("0.13.0")
    flag = table.flag(options[0]) if options else None
    assert list(given(table, ["model", *words.split()])) == [Given(name, options, flag, value, dotted)]


def test_values_with_a_dash_in_front_are_no_arguments() -> None:
    assert [one.name for one in given(history.table("0.13.0"), ["m", "--seed", "-1", "-x", "--help"])] == ["--seed"]


# ---- since when


def test_the_life_of_an_argument() -> None:
    life = history.of_option("--task")
    assert life is not None
    assert (life.first, life.last, life.gone, life.deprecated) == ("0.11.0", "0.12.0", "0.13.0", "0.11.0")
    assert life.told("0.13.0") == "last in 0.12.0, gone by 0.13.0"
    assert life.told("0.11.0") == ""
    assert history.of_option("--nobody") is None


# ---- the lists beside the tables


def test_what_stands_for_a_name_is_there_in_the_newest_version() -> None:
    newest, replaced = history.table(versions()[-1]), known.replaced()
    for instead in (*replaced.arguments.values(), *replaced.variables.values()):
        for option, key in re.findall(r"(--[\w-]+)(?: with (\w+))?", instead):
            flag = newest.flag(option)
            assert flag is not None, option
            assert not key or flag.kind != "config" or key in newest.configs[flag.config or ""].fields, instead
    assert [name for name in replaced.arguments if newest.flag(name) is not None] == []
    assert set(replaced.variables) & newest.environment == set()


@pytest.mark.parametrize("version", versions())
def test_what_the_planner_knows_of_arguments_is_what_the_tables_say(version: str) -> None:
    for name in (*engine.ADDED, *engine.REMOVED):
        assert engine.exists(name, Version(version)) == (history.table(version).flag(f"--{name}") is not None), name


@pytest.mark.parametrize(
    ("args", "what", "mend"),
    [
        ("{speculative-config: {method: eagel3}}", "key method: input should be 'ngram'", "write eagle3"),
        (
            "{speculative-config: {method: ngram, num_speculative_tokens: three}}",
            "key num_speculative_tokens: input should be a valid integer",
            "mend the value",
        ),
    ],
)
def test_a_value_inside_of_an_object_that_the_parser_does_not_read(args: str, what: str, mend: str) -> None:
    (finding,) = told(args, "0.19.1")
    assert (finding.rule, finding.severity, finding.mend) == ("ARG-JSON", "error", mend)
    assert what in finding.what


def test_a_list_that_the_engine_wants_as_json() -> None:
    (finding,) = told('{allowed-origins: ["*"]}', "0.33.0")
    assert finding.what == "--allowed-origins takes JSON, '*' is none"
    assert finding.mend == """write it as JSON in quotes, such as '["*"]'"""
    assert told("""{allowed-origins: '["*"]'}""", "0.33.0") == []
