"""What others wrote (models, names, prompts) runs nothing, leads nowhere else and steers no
terminal; and no secret is shown."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from santagen.checkpoint import inspection_hub
from santagen.checkpoint.source import bundled_model
from santagen.cli.console import harmless
from tests.cli.helpers import Cli, process, write_jsonl
from tests.fixture_writer import Spec, write_checkpoint

FEW = ("--max-tokens", "3", "--device", "cpu")
TOKEN = "hf_" + "aB3" * 11
ESCAPES = "\x1b]0;title\x07 \x9b2J \x7f\x08 \u202e"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_model(), tmp_path / "model"))


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


# -- nothing is run --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
@pytest.mark.parametrize("command", ["generate", "inspect", "convert", "dry run"])
def test_a_pickled_call_is_not_made(
    cli: Cli, tmp_path: Path, prompts: Path, form: str, command: str
) -> None:
    model, marker = tmp_path / "model", tmp_path / "pwned"
    model.mkdir()
    write_checkpoint(model, Spec())
    (model / "model.safetensors").unlink()
    file, table = model / "pytorch_model.bin", {"wte.weight": Touch(marker)}
    if form == "bare":
        file.write_bytes(pickle.dumps(table))
    else:
        torch.save(table, file, _use_new_zipfile_serialization=form == "zip")
    words: dict[str, list[str | Path]] = {
        "generate": ["generate", prompts, "-m", model, *FEW],
        "dry run": ["generate", prompts, "-m", model, *FEW, "--dry-run"],
        "inspect": ["inspect", model],
        "convert": ["convert", model, tmp_path / "converted"],
    }
    ran = cli(*words[command])
    assert ran.code == 2 and "pytorch_model.bin" in ran.err
    assert not marker.exists()
    with file.open("rb") as trap:  # a real one
        pickle.load(trap) if form == "bare" else torch.load(trap, weights_only=False)
    assert marker.exists()


def test_code_beside_the_weights_is_not_imported(
    cli: Cli, tmp_path: Path, prompts: Path, model: Path
) -> None:
    trap = f"open({str(tmp_path / 'pwned')!r}, 'w')\n"
    for name in ("modeling_gpt2_mq.py", "configuration_gpt2_mq.py", "tokenization.py"):
        (model / name).write_text(trap)
    names = {"AutoConfig": "configuration_gpt2_mq.C", "AutoModelForCausalLM": "modeling_gpt2_mq.M",
             "AutoTokenizer": ["tokenization.T", None]}  # fmt: skip
    for file in ("config.json", "tokenizer_config.json"):
        value = json.loads((model / file).read_text())
        (model / file).write_text(json.dumps(value | {"auto_map": names}))
    ran = cli.generate(prompts, "-m", model, *FEW)
    assert ran.code == 0, ran.err
    assert cli("inspect", model).code == 0
    assert process("generate", prompts, "-m", ".", *FEW, cwd=model).code == 0
    assert not (tmp_path / "pwned").exists()


# -- nothing leads elsewhere -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/../../b", "/etc", "a/..", "a//b", "a/b/../../c", "a\\..\\b", "a/\x00"]
)
@pytest.mark.parametrize("option", ["-m", "--tokenizer"])
def test_a_name_with_a_way_out_is_no_hub_name(
    cli: Cli, prompts: Path, name: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*arguments: Any, **settings: Any) -> Path:
        raise AssertionError(f"asked the hub for {arguments}")

    monkeypatch.setattr("santagen.checkpoint.source.fetch_snapshot", fetch)
    ran = cli.generate(prompts, option, name, *FEW)
    assert ran.code == 2 and ran.err.count("error: ") == ran.err.count("hint: ") == 1
    assert "fault in santagen" not in ran.err and "asked the hub" not in ran.err


def test_a_hub_snapshot_is_asked_for_plain_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from santagen.checkpoint.source import resolve_model, resolve_tokenizer

    asked: list[dict[str, Any]] = []

    def download(model: str, **settings: Any) -> str:
        asked.append(settings)
        return str(bundled_model())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve_model("some/model")
    resolve_tokenizer("some/model")
    assert len(asked) == 2
    for settings in asked:
        assert settings["ignore_patterns"] == ["*/*"]  # nothing of a subfolder
        assert not any(p in ("*", "*.py") or p.endswith(".py") for p in settings["allow_patterns"])


# -- no secret is shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_token_is_in_no_output_no_file_and_no_traceback(
    tmp_path: Path, prompts: Path, debug: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environment = {**os.environ, "HF_TOKEN": TOKEN, "SANTAGEN_GENERATE_HF_TOKEN": TOKEN,
                   "SANTAGEN_DEBUG": debug, "HF_HUB_OFFLINE": "1",
                   "HF_HOME": str(tmp_path / "home")}  # fmt: skip
    commands: list[tuple[int, list[str | Path]]] = [
        (0, ["generate", prompts, *FEW, "-v", "--hf-token", TOKEN, "-o", out / "o.jsonl"]),
        (2, ["generate", prompts, *FEW, "--hf-token", TOKEN, "-m", "some/model"]),
        (0, ["generate", prompts, "--hf-token", TOKEN, "--show-config"]),
        (2, ["inspect", "some/model", "--hf-token", TOKEN]),
    ]
    for code, words in commands:
        ran = process(*words, env=environment)
        assert ran.code == code, ran.err
        assert TOKEN not in ran.out + ran.err
        assert not debug or code == 0 or "Traceback" in ran.err
    assert len(list(out.iterdir())) == 2
    assert all(TOKEN not in file.read_text() for file in out.iterdir())


def test_a_token_in_an_error_of_the_hub_is_not_shown(
    cli: Cli, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def fail(*arguments: Any, **settings: Any) -> str:
        raise ValueError(f"the header authorization: Bearer {TOKEN} is refused")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setenv("SANTAGEN_DEBUG", "1")
    for flags in ((), ("--hf-token", TOKEN)):
        ran = cli.generate(prompts, "-m", "some/model", *flags, *FEW)
        assert ran.code == 2 and "is refused" in ran.err and TOKEN not in ran.err


@pytest.mark.parametrize("given", ["flag", "environment", "none"])
def test_a_token_in_an_error_while_headers_are_fetched_is_not_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    secret = "an-internal-hub:" + "0123456789" * 3  # not of the form that is left out anywhere

    def fail(*arguments: Any, **settings: Any) -> Path:
        raise ValueError(f"{'long ' * 35}authorization: Bearer {secret} is refused")

    found = inspection_hub._Remote("some/model", "0" * 40, {"model.safetensors": 9}, secret)
    assert secret not in repr(found)
    monkeypatch.setattr(inspection_hub, "_remote", lambda *_: found)
    monkeypatch.setattr(inspection_hub, "fetch_snapshot", fail)
    monkeypatch.setenv("SANTAGEN_DEBUG", "1")
    monkeypatch.setenv("HF_TOKEN", secret if given == "environment" else "")
    if given == "none":
        monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    ran = cli("inspect", "some/model", *(["--hf-token", secret] if given == "flag" else []))
    assert ran.code == 2 and "could not be fetched" in ran.err and "Traceback" in ran.err
    if given == "none":  # nothing to hide: the traceback shows what lies behind
        assert "in fail" in ran.err
    else:
        assert secret[:8] not in ran.err and "authorization: Bearer ***" in ran.err


@pytest.mark.parametrize("given", ["flag", "environment"])
def test_a_token_in_an_error_of_a_data_set_is_not_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    datasets = pytest.importorskip("datasets")
    secret = "an-internal-hub:" + "0123456789" * 3

    def fail(*arguments: Any, **settings: Any) -> Any:
        raise ValueError(f"authorization: Bearer {secret} is refused")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setenv("SANTAGEN_DEBUG", "1")
    monkeypatch.setenv("HF_TOKEN", "" if given == "flag" else secret)
    flags = ("--hf-token", secret) if given == "flag" else ()
    ran = cli.generate("--dataset", "some/data", *flags, *FEW)
    assert ran.code == 2 and "Bearer *** is refused" in ran.err and secret[:8] not in ran.err


def test_the_token_opens_a_data_set_and_is_written_nowhere(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    rows, secret = [{"prompt": "def f(x):"}, {"prompt": ""}], "of-my-own-0123456789"
    asked: list[Any] = []

    def load(name: str, **settings: Any) -> Any:
        asked.append((name, settings["token"]))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    output = tmp_path / "out.jsonl"
    run = ("--dataset", "some/data", "-o", output, *FEW)
    for flags in (("--hf-token", secret), ("--hf-token", secret, "--resume", "-v")):
        ran = cli.generate(*run, *flags)
        assert ran.code == 1 and secret not in ran.out + ran.err
    assert cli.generate(*run, "--resume").code == 1
    assert asked == [("some/data", secret)] * 2 + [("some/data", None)]
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(written) >= 3 and all(secret not in path.read_text() for path in written)


# -- nothing steers a terminal ---------------------------------------------------------------------


def steers(text: str) -> bool:
    """Whether a terminal would do anything but show it."""
    return not text.replace("\n", "").replace("\t", "").isprintable()


def test_names_and_texts_of_others_are_shown_as_escapes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / f"prompts {ESCAPES}.jsonl".replace("/", "")
    rows = [{"id": f"bad {ESCAPES}", "prompt": ""}, {"id": f"bad {ESCAPES}", "prompt": "x"},
            {"id": f"good {ESCAPES}", "prompt": f"x{ESCAPES}", ESCAPES: ESCAPES},
            {ESCAPES: 1}]  # fmt: skip
    write_jsonl(path, rows)
    ran = cli.generate(path, *FEW, "-v", "--echo", "--keep", ESCAPES, "--stop", ESCAPES)
    assert ran.code == 1 and "\\x1b" in ran.err
    assert not steers(ran.err) and not any(c in ran.out for c in "\x1b\x07\x9b\x7f\x08")
    (sample,) = ran.samples
    assert sample["prompt"] == f"x{ESCAPES}" and sample[ESCAPES] == ESCAPES
    for words in ([tmp_path / ESCAPES], [path, "-m", f"./{ESCAPES}"], [path, "--dtype", ESCAPES]):
        ran = cli.generate(*words)
        assert ran.code == 2 and not steers(ran.err)


def test_names_in_a_config_are_escaped_in_json_too(cli: Cli, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = [ESCAPES]
    (model / "config.json").write_text(json.dumps(config))
    (model / "pytorch_model-\x9b2J.bin").write_bytes(b"")
    (model / os.fsdecode(b"pytorch_model-\xff.bin")).write_bytes(b"")  # no UTF-8 at all
    ran = cli("inspect", model, "--json")
    assert ran.code == 0 and not steers(ran.out) and not steers(ran.err)
    found = json.loads(ran.out)
    assert found["architecture"]["architectures"] == [ESCAPES]
    assert "pytorch_model-\x9b2J.bin" in found["files"]["unused"]


def test_a_traceback_steers_nothing_either(
    cli: Cli, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANTAGEN_DEBUG", "1")
    ran = cli.generate(prompts, "-m", f"./{ESCAPES}")
    assert "Traceback" in ran.err and not steers(ran.err)


def test_completions_hold_no_raw_control_character(
    cli: Cli, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from santagen.io.tokenizer import Tokenizer

    table = Tokenizer.from_directory(bundled_model()).token_bytes
    hostile = [ESCAPES.encode() if token else None for token in table]
    monkeypatch.setattr(Tokenizer, "token_bytes", hostile)
    ran = cli.generate(prompts, *FEW)
    assert ran.code == 0 and ran.samples[0]["completion"].startswith("\x1b]0;")
    assert not any(c in ran.out for c in "\x1b\x07\x9b\x7f\x08")


def test_what_is_harmless_stays_as_it_is() -> None:
    for text in ("def f(x):\n\treturn 'é 日本'", "model hf_internal/tiny, hf_home"):
        assert harmless(text) == text
    assert harmless(f"a\x1b[2J\r {TOKEN}") == "a\\x1b[2J\\r hf_***"
