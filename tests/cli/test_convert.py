"""`santagen convert`: from the command line to a directory that runs, and each refusal."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from santagen.io.files import OutputLock
from tests.cli.helpers import PROGRAM, Cli, write_jsonl
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "santacoder"
    folder.mkdir()
    write_checkpoint(folder, Spec(conv1d=True, split=True))
    return folder


def test_what_was_done_is_said_on_stderr(cli: Cli, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "standard"
    ran = cli("convert", source, target, "--max-shard-size", "60K", "--dtype", "float32")
    assert (ran.code, ran.out) == (0, "")
    for words in (
        "wrote model-00001-of-0000", "Conv1D (transposed), split q/kv, tied head", str(target),
        "of float32 (asked for), read back and compared", "carried over: no tokenizer files",
    ):  # fmt: skip
        assert words in ran.err
    assert cli("convert", source, tmp_path / "quiet", "--quiet").err == ""
    again = cli("inspect", target)
    assert again.code == 0 and "Linear, fused c_attn" in again.err


def test_the_result_generates_the_same(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "standard"
    assert cli("convert", source, target).code == 0
    prompts = write_jsonl(tmp_path / "p.jsonl", [{"id": "a", "prompt_token_ids": [1, 2, 3]}])
    options = [prompts, "--token-ids", "--max-tokens", "20", "--ignore-eos", "--device", "cpu"]
    before, after = (cli.generate(*options, "-m", model) for model in (source, target))
    assert before.code == after.code == 0
    assert before.samples[0]["token_ids"] == after.samples[0]["token_ids"]


def test_the_bundled_model_and_its_tokenizer(
    cli: Cli, bundled_model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "tiny"
    ran = cli("convert", bundled_model, target)
    assert ran.code == 0 and "tokenizer.json" in ran.err
    first, second = (json.loads(cli("inspect", m, "--json").out) for m in (bundled_model, target))
    for part in ("architecture", "layout", "tokenizer", "parameters", "kv_cache"):
        assert first[part] == second[part]


def test_gptq(cli: Cli, tmp_path: Path) -> None:
    source, target = tmp_path / "gptq", tmp_path / "floats"
    source.mkdir()
    write_checkpoint(source, Spec(dtype="F16", gptq=GPTQSpec()))
    ran = cli("convert", source, target)
    assert ran.code == 2 and "hint: Give --dequantize" in ran.err and not target.exists()
    ran = cli("convert", source, target, "--dequantize")
    assert ran.code == 0 and "of float16" in ran.err
    assert json.loads(cli("inspect", target, "--json").out)["quantization"] is None


def test_a_label_that_values_overrule_is_told(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "gptq"
    source.mkdir()
    write_checkpoint(source, Spec(dtype="F16", gptq=GPTQSpec(form="v2")))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq"
    (source / "config.json").write_text(json.dumps(config))
    ran = cli("convert", source, tmp_path / "floats", "--dequantize")
    assert ran.code == 0 and "warning: GPTQ:" in ran.err


def test_overwrite(cli: Cli, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "standard"
    assert cli("convert", source, target).code == 0
    ran = cli("convert", source, target)
    assert ran.code == 2 and "exists already" in ran.err and "--overwrite" in ran.err
    assert cli("convert", source, target, "--overwrite", "--dtype", "float32").code == 0
    assert json.loads((target / "config.json").read_text())["torch_dtype"] == "float32"
    assert {path.name for path in tmp_path.iterdir()} == {"santacoder", "standard"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the model to convert and the directory"),
        (["santacoder"], "the model to convert and the directory"),
        (["absent/model/here", "out"], "no model folder"),
        (["santacoder", "no/such/out"], "does not exist"),
        (["santacoder", "santacoder"], "the source itself"),
        (["santacoder", ".", "--overwrite"], "under a name"),
        (["santacoder", "santacoder/..", "--overwrite"], "under a name"),
        (["santacoder", "/", "--overwrite"], "under a name"),
        (["santacoder", "", "--overwrite"], "under a name"),
        (["santacoder", "~no-such-user/out"], "does not exist"),
        (["santacoder", "out", "--dtype", "int8"], "--dtype"),
        (["santacoder", "out", "--max-shard-size", "big"], "--max-shard-size"),
        (["santacoder", "out", "--revision", "v1"], "no revisions"),
    ],
)
def test_usage(
    cli: Cli, source: Path, tmp_path: Path, arguments: list[str], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ran = cli("convert", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ") and words in ran.err and "\nhint: " in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"santacoder"}


def test_a_destination_that_another_run_writes(cli: Cli, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "standard"
    lock = OutputLock(target)
    lock.take()
    ran = cli("convert", source, target)
    lock.release()
    assert ran.code == 2 and f"Another run is writing {target}." in ran.err
    assert "hint: Wait for it to end, or choose another folder.\n" in ran.err


def test_a_destination_that_can_not_be_written(cli: Cli, source: Path) -> None:
    ran = cli("convert", source, "/proc/standard")
    assert ran.code == 2 and "/proc/standard" in ran.err and "hint: " in ran.err
    assert "Traceback" not in ran.err


def start_long_conversion(folder: Path, *before: str) -> subprocess.Popen[str]:
    """In a process of its own, after its first line; `before` stands before the command. Signals
    end it, also where the tests themselves run under nohup."""
    (folder / "source").mkdir()
    write_checkpoint(folder / "source", Spec(config={"n_layer": 60}))
    words = ["convert", str(folder / "source"), str(folder / "target"), "--max-shard-size", "1"]
    child = subprocess.Popen(
        [*before, *PROGRAM, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # type: ignore[arg-type]
    )  # fmt: skip
    assert child.stderr is not None
    assert any(line.startswith("wrote model-00001") for line in child.stderr)
    return child


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 2)]
)
def test_an_ending_signal_leaves_nothing(
    tmp_path: Path, number: signal.Signals, times: int
) -> None:
    child = start_long_conversion(tmp_path)
    for _ in range(times):  # a shell and the system both tell of a closed terminal
        child.send_signal(number)
    _, rest = child.communicate(timeout=60)
    assert child.returncode == 130, rest
    assert "interrupted" in rest and "Traceback" not in rest
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_closed_terminal_is_nothing_under_nohup(tmp_path: Path) -> None:
    child = start_long_conversion(tmp_path, "nohup")
    child.send_signal(signal.SIGHUP)
    _, rest = child.communicate(timeout=60)
    assert child.returncode == 0, rest
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def test_help_is_quick(cli: Cli) -> None:
    started = time.perf_counter()
    subprocess.run([*PROGRAM, "convert", "--help"], check=True, capture_output=True)
    assert time.perf_counter() - started < 1
    listed = cli("--help").out
    for command in ("inspect", "convert"):
        assert f"\n  {command} " in listed
        assert f"santagen {command} " in cli(command, "--help").out.replace("\n", " ")
