"""What config.json and generation_config.json may say: a wrong value is named with its file.

`generate --dry-run`, `inspect` and `convert` read them in one place, and must say the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import santagen
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from tests.cli.helpers import Cli, write_jsonl
from tests.fixture_writer import TINY, Spec, write_checkpoint

ENDS: list[Any] = ["x", True, 1.5, [0, "1"], [False], {}]
FLAGS: list[Any] = ["false", "yes", 1, []]
SIZES: list[Any] = [10**9, 0, -1, 2.0, "2", True]
FRACTIONS: list[Any] = ["x", -1, 0, 1, 10**400, float("nan"), float("inf"), True, []]
NAMES: list[Any] = [5, "GPT2LMHeadModel", [5], {}]
WRONG: dict[str, list[Any]] = {
    "eos_token_id": ENDS,
    "multi_query": FLAGS,
    "scale_attn_weights": FLAGS,
    "tie_word_embeddings": FLAGS,
    "scale_attn_by_inverse_layer_idx": FLAGS,
    "layer_norm_epsilon": FRACTIONS,
    "n_layer": SIZES,
    "n_embd": SIZES,
    "n_head": SIZES,
    "n_positions": SIZES,
    "n_inner": SIZES,
    "vocab_size": SIZES,
    "architectures": NAMES,
    "torch_dtype": [5],
    "dtype": [5],
    "activation_function": [5],
    "model_type": [5],
    "attention_head_type": ["x", 5],
}
ASSETS = Path(santagen.__file__).parent / "assets"
REFUSED = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_of_the_wrong_kind_is_named(name: str, value: Any) -> None:
    with pytest.raises(SantagenError) as caught:
        ModelConfig.from_dict(TINY | {name: value}, "here/config.json")
    assert "here/config.json" in caught.value.message and name in caught.value.message
    assert repr(value)[:20] in caught.value.message and len(caught.value.message) < 250
    assert caught.value.hint


def test_null_counts_as_left_out() -> None:
    names = (
        "eos_token_id", "multi_query", "scale_attn_weights", "tie_word_embeddings",
        "layer_norm_epsilon", "activation_function", "torch_dtype", "attention_head_type",
    )  # fmt: skip
    left_out = {key: value for key, value in TINY.items() if key not in names}
    assert ModelConfig.from_dict(TINY | dict.fromkeys(names)) == ModelConfig.from_dict(left_out)


def test_the_first_name_of_multi_query_is_read() -> None:
    older = {key: value for key, value in TINY.items() if key != "multi_query"}
    assert ModelConfig.from_dict(older | {"attention_head_type": "multiquery"}).multi_query
    assert not ModelConfig.from_dict(older | {"attention_head_type": "multihead"}).multi_query


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [-1, 96, 10**9, [0, 96]])
def test_an_end_outside_the_vocabulary_is_a_note(tmp_path: Path, file: str, value: Any) -> None:
    write_json(tmp_path / "config.json", TINY | {"eos_token_id": None})
    write_json(tmp_path / file, (TINY if file == "config.json" else {}) | {"eos_token_id": value})
    config = ModelConfig.from_directory(tmp_path)
    assert config.eos_token_ids == ((0,) if isinstance(value, list) else ())
    (note,) = config.notes
    assert str(tmp_path / file) in note and "eos_token_id" in note and "96" in note


def test_ends_of_both_files_are_joined(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", TINY | {"eos_token_id": 95})
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [3, 95]})
    assert ModelConfig.from_directory(tmp_path).eos_token_ids == (95, 3)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": "x"})
    with pytest.raises(SantagenError, match=r"generation_config\.json has eos_token_id = 'x'"):
        ModelConfig.from_directory(tmp_path)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), "utf-8")


def every_command(cli: Cli, folder: Path) -> dict[str, tuple[int, str]]:
    """(exit code, stderr) of each command that reads a model."""
    model = folder / "model"
    rows = write_jsonl(folder / "rows.jsonl", [{"id": 1, "prompt_token_ids": [1, 2]}])
    commands = {
        "generate": ("generate", rows, "-m", model, "--max-tokens", "2", "--device", "cpu",
                     "-o", folder / "out.jsonl"),
        "inspect": ("inspect", model),
        "convert": ("convert", model, folder / "converted"),
    }  # fmt: skip
    found = {}
    for name, command in commands.items():
        code, _, err = cli(*command)
        found[name] = (code, " ".join(err.split()))
    return found


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", "[" * 100_000, "nested too deep"),
        ("config.json", '{"a":' * 500 + "1" + "}" * 500, "nested too deep"),
        ("generation_config.json", "[" * 100_000, "nested too deep"),
        ("quantize_config.json", '{"a":' * 100_000, "nested too deep"),
        ("generation_config.json", '{"eos_token_id": true}', "eos_token_id = True"),
        ("config.json", json.dumps(TINY | {"multi_query": "false"}), "multi_query = 'false'"),
        ("config.json", json.dumps(TINY | {"n_layer": 10**9}), "n_layer = 1000000000"),
        ("config.json", json.dumps(TINY | {"n_layer": 9999}), "lacks the tensor"),
    ],
)
def test_every_command_refuses_it_alike(
    tmp_path: Path, cli: Cli, file: str, text: str, words: str
) -> None:
    (tmp_path / "model").mkdir()
    write_checkpoint(tmp_path / "model", Spec())
    (tmp_path / "model" / file).write_text(text, "utf-8")
    for command, (code, err) in every_command(cli, tmp_path).items():
        assert code == 2 and words in err and "fault in santagen" not in err, (command, err)


@pytest.mark.parametrize(
    "file", ["model.safetensors.index.json", "tokenizer_config.json", "tokenizer.json"]
)
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 500 + "1" + "}" * 500])
def test_generate_and_inspect_refuse_deep_files_alike(
    tmp_path: Path, cli: Cli, file: str, text: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(ASSETS, model)
    if file.endswith("index.json"):
        (model / "model.safetensors").unlink()
    (model / file).write_text(text, "utf-8")
    found = every_command(cli, tmp_path)
    for command in ("generate", "inspect"):
        code, err = found[command]
        assert code == 2 and f"{file} can't be read as JSON" in err, (command, err)
        assert "nested too deep" in err and "fault in santagen" not in err


def test_every_command_notes_an_end_outside_the_vocabulary(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "model").mkdir()
    write_checkpoint(tmp_path / "model", Spec(config={"eos_token_id": 50256}))
    for command, (code, err) in every_command(cli, tmp_path).items():
        assert code == 0 and "eos_token_id 50256" in err, (command, err)


def test_the_tokenizer_ends_where_the_settings_can_not(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    shutil.copytree(ASSETS, model)
    write_json(model / "generation_config.json", {"eos_token_id": 99999})
    raw = json.loads((model / "config.json").read_text("utf-8"))
    write_json(model / "config.json", raw | {"eos_token_id": 50256})
    code, out, _ = cli("inspect", model, "--json")
    report = json.loads(out)
    assert code == 0 and report["tokenizer"]["eos_ids"] == [4091]
    assert report["architecture"]["eos_token_ids"] == []
    assert [n for n in report["notes"] if "50256" in n] and str(report["notes"]).count("99999") == 1
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "def add(a, b):\n"}])
    ran = [
        cli("generate", rows, "-m", folder, "--device", "cpu", "--token-ids") for folder in
        (model, ASSETS)
    ]  # fmt: skip
    assert ran[0].code == 0 and ran[0].samples == ran[1].samples
