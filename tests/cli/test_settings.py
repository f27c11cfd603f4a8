"""Where a setting comes from, how it is read, and what is said when it can't be."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.cli.describe import resume_command, show_config
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import (
    NUMBER,
    SWITCH,
    TEXT,
    Resolved,
    option,
    resolve,
    settings_of,
    unescape,
    variable,
)
from santagen.config import parse_size
from santagen.errors import SantagenError
from tests.cli.helpers import Cli


def generate(
    flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> Resolved[GenerateOptions]:
    return resolve(GenerateOptions, "generate", flags or {}, environment or {})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def test_flags_win_over_environment_over_file_over_default(config: Path) -> None:
    config.write_text("top_p = 0.1\ntop_k = 1\nmin_p = 0.1\n")
    found = generate(
        {"config": str(config), "top_p": "0.3"},
        {"SANTAGEN_GENERATE_TOP_P": "0.2", "SANTAGEN_GENERATE_TOP_K": "2"},
    )
    options, origins = found.options, found.origins
    assert (options.top_p, options.top_k, options.min_p, options.seed) == (0.3, 2, 0.1, 0)
    assert origins["top_p"] == "flag --top-p"
    assert origins["top_k"] == "environment SANTAGEN_GENERATE_TOP_K"
    assert origins["min_p"] == f"file {config}"
    assert origins["seed"] == "default"


def test_the_command_s_table_wins_over_the_top_level(config: Path) -> None:
    config.write_text("n = 2\ntemperature = 1\n[generate]\nn = 3\nmax-tokens = '4k'\n")
    options = generate({"config": str(config)}).options
    assert (options.n, options.temperature, options.max_tokens) == (3, 1.0, 4000)


def test_config_itself_can_come_from_the_environment(config: Path) -> None:
    config.write_text("seed = 5\n")
    assert generate({}, {"SANTAGEN_GENERATE_CONFIG": str(config)}).options.seed == 5


@pytest.mark.parametrize("setting", settings_of(GenerateOptions), ids=lambda s: s.name)
def test_every_option_has_an_environment_variable(setting: Any, config: Path) -> None:
    config.write_text("")
    samples = {"TEXT": str(config), "SIZE": "4k", "N": "3", "X": "0.5", "": "true"}
    text = samples.get(setting.kind.metavar) or setting.kind.metavar.strip("[]").split("|")[-1]
    found = generate({}, {variable("generate", setting): text})
    assert found.origins[setting.name].startswith("environment SANTAGEN_GENERATE_")
    assert getattr(found.options, setting.name) not in (None, (), False)


def test_defaults_are_those_of_an_empty_command_line() -> None:
    assert generate().options == GenerateOptions()
    assert set(generate().origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"top_p": "abc"}, ["--top-p", "'abc'", "a number"]),
        ({"n": "1.5"}, ["--n", "whole number"]),
        ({"max_model_len": "12q"}, ["--max-model-len", "32K"]),
        ({"max_num_seqs": "0"}, ["--max-num-seqs", "at least 1"]),
        ({"limit": "1.5"}, ["--limit", "whole number"]),
        ({"max_tokens": "8."}, ["--max-tokens", "whole number"]),
        ({"dtype": "int8"}, ["--dtype", "bfloat16"]),
    ],
)
def test_a_bad_flag_is_named_with_what_it_takes(flags: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SantagenError) as caught:
        generate(flags)
    assert caught.value.exit_code == 2
    assert all(word in caught.value.message for word in words)


def test_a_bad_variable_or_key_names_its_place(config: Path) -> None:
    with pytest.raises(SantagenError, match="SANTAGEN_GENERATE_TOP_K"):
        generate({}, {"SANTAGEN_GENERATE_TOP_K": "many"})
    config.write_text("top_k = 1.5\n")
    with pytest.raises(SantagenError, match=r"top_k in .*run\.toml"):
        generate({"config": str(config)})
    config.write_text("top_k = [1, 2]\n")
    with pytest.raises(SantagenError, match="a single value"):
        generate({"config": str(config)})
    config.write_text("strict = 'perhaps'\n")
    with pytest.raises(SantagenError, match="true or false"):
        generate({"config": str(config)})


@pytest.mark.parametrize(
    ("content", "word"),
    [("topp = 1\n", "'topp'"), ("config = 'x'\n", "'config'"), ("= 3", "not TOML"),
     ("generate = 3\n", "not a table")],
)  # fmt: skip
def test_a_config_file_that_can_t_be_used(config: Path, content: str, word: str) -> None:
    config.write_text(content)
    with pytest.raises(SantagenError, match=word):
        generate({"config": str(config)})


def test_one_file_serves_several_commands(config: Path) -> None:
    others = ["generate", "eval", "bench"]
    config.write_bytes(b"\xef\xbb\xbf" + b"seed = 3\n[generate]\ntop_k = 5\n[eval]\nwhatever = 1\n")
    found = resolve(GenerateOptions, "generate", {"config": str(config)}, {}, others)
    assert (found.options.seed, found.options.top_k) == (3, 5)
    for content, word in (
        ("[generate]\nwhatever = 1\n[eval]\n", "'whatever'"),
        ("[evil]\nwhatever = 1\n", "'evil'"),
        ("eval = 1\n", "'eval'"),
    ):
        config.write_text(content)
        with pytest.raises(SantagenError, match=word):
            resolve(GenerateOptions, "generate", {"config": str(config)}, {}, others)


def test_every_command_leaves_the_others_their_tables(cli: Cli, config: Path) -> None:
    config.write_text("[generate]\nseed = 4\n[eval]\nquiet = true\n[doctor]\n")
    for command in ("generate", "bench"):
        ran = cli(command, "--config", config, "--show-config")
        assert ran.code == 0, ran.err


def test_a_missing_config_file(tmp_path: Path) -> None:
    with pytest.raises(SantagenError, match="absent"):
        generate({"config": str(tmp_path / "absent.toml")})


def test_a_config_file_that_is_nested_too_deep_is_named(config: Path) -> None:
    config.write_text("x = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(SantagenError, match=r"run\.toml is nested too deep"):
        generate({"config": str(config)})


def test_escapes_are_decoded_from_the_shell_but_not_from_a_file(config: Path) -> None:
    assert generate({"stop": [r"\ndef", r"a\\n", r"\t"]}).options.stop == ("\ndef", "a\\n", "\t")
    assert generate({}, {"SANTAGEN_GENERATE_STOP": r"\nclass "}).options.stop == ("\nclass ",)
    listed = r'["\ndef", "\\n"]'
    assert generate({}, {"SANTAGEN_GENERATE_STOP": listed}).options.stop == ("\ndef", "\\n")
    config.write_text(r"""stop = ["\ndef", '\n']""")
    assert generate({"config": str(config)}).options.stop == ("\ndef", "\\n")


@pytest.mark.parametrize(
    ("written", "text"),
    [(r"\n", "\n"), (r"\\n", "\\n"), (r"\q", r"\q"), ("\\", "\\"), (r"a\tb\r", "a\tb\r"), ("", "")],
)
def test_unescape(written: str, text: str) -> None:
    assert unescape(written) == text


def test_show_config_is_a_config_file(config: Path, tmp_path: Path) -> None:
    flags = {"stop": [r"\ndef", 'say "hi"'], "temperature": "0.2", "strict": True, "prompts": ["p"]}
    shown = show_config(generate({**flags, "hf_token": "hf_secret"}), "generate")
    assert "hf_secret" not in shown
    assert "hf_token is set" in shown
    assert "temperature = 0.2" in shown and "# flag --temperature" in shown
    config.write_text(shown)
    again = generate({"config": str(config)}).options
    assert (again.stop, again.temperature, again.strict) == (("\ndef", 'say "hi"'), 0.2, True)
    assert again.prompts == ("p",)
    assert set(tomllib.loads(shown)) == {"generate"}


def test_the_resume_command_repeats_the_run() -> None:
    flags = {"prompts": ["my prompts.jsonl"], "output": "o.jsonl", "stop": [r"\ndef", "--"]}
    environment = {"SANTAGEN_GENERATE_TOP_P": "0.5", "SANTAGEN_GENERATE_HF_TOKEN": "hf_secret"}
    found = generate({**flags, "overwrite": True, "progress": False}, environment)
    assert resume_command(found, "generate") == (
        r"santagen generate 'my prompts.jsonl' --top-p 0.5 --stop '\ndef' --stop=-- "
        "--output o.jsonl --no-progress --resume"
    )


@given(st.text(alphabet="\\ntr\n\t\r ab'\"-", max_size=12).filter(bool))
def test_a_stop_string_survives_the_resume_command(stop: str) -> None:
    import shlex

    from santagen.cli.describe import _escape

    assert unescape(_escape(stop)) == stop
    assert shlex.split(shlex.join([_escape(stop)])) == [_escape(stop)]


def test_a_secret_is_not_repeated_in_an_error() -> None:
    @dataclass(frozen=True)
    class Options:
        token: float = option("P", NUMBER, 0.0, "--token", help="A token.", secret=True)
        on: bool = option("P", SWITCH, False, "--on", help="A switch.")
        name: str | None = option("P", TEXT, None, "--name", help="A name.")

    with pytest.raises(SantagenError) as caught:
        resolve(Options, "x", {"token": "hf_secret"}, {})
    assert "hf_secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("text", "count"),
    [("12", 12), ("4k", 4000), ("1.5k", 1500), ("32K", 32768), ("1m", 2**20), ("24GiB", 24 * 2**30),
     ("24gb", 24 * 2**30), ("1TiB", 2**40), ("0.5T", 2**39)],
)  # fmt: skip
def test_units_of_a_size(text: str, count: int) -> None:
    assert parse_size(text) == count
