"""`santagen generate` where something is not as it should be: outputs, resumes, closed streams."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import santagen.checkpoint.source
from santagen.checkpoint.source import bundled_model
from tests.cli.helpers import PROGRAM, Cli, process, read_jsonl, write_jsonl

FEW = ("--max-tokens", "3")


def manifest_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{output}.manifest.json").read_text())
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_model(), tmp_path / "model"))


def test_an_output_that_exists_is_refused_before_anything_is_fetched(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*arguments: Any, **settings: Any) -> Path:
        raise AssertionError("a model was fetched")

    monkeypatch.setattr(santagen.checkpoint.source, "fetch_snapshot", fetch)
    output.write_text("{}\n")
    ran = cli.generate(prompts, "-o", output, "-m", "some/model")
    assert ran.code == 2 and f"{output} exists" in ran.err and "--overwrite" in ran.err
    ran = cli.generate(prompts, "-o", output.parent / "absent" / "o", "-m", "some/model")
    assert ran.code == 2 and "mkdir" in ran.err
    ran = cli.generate(prompts, "-o", prompts / "o", "-m", "some/model")
    assert ran.code == 2 and f"{prompts}, where o would go, is no folder" in ran.err
    link = output.parent / "link"
    link.symlink_to(output.parent / "gone" / "o")
    ran = cli.generate(prompts, "-o", link, "-m", "some/model")
    assert ran.code == 2 and f"The folder {output.parent / 'gone'}" in ran.err


ENDINGS = (
    "", ".tmp", ".lock", ".errors.jsonl", ".errors.jsonl.tmp", ".manifest.json",
    ".manifest.json.tmp", ".part-00001", ".part-00001.index",
)  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", ["name", "hard link", "symbolic link"])
@pytest.mark.parametrize("flag", ["--overwrite", "--resume", "--dry-run"])
def test_no_file_of_the_output_is_an_input(
    cli: Cli, tmp_path: Path, ending: str, way: str, flag: str
) -> None:
    output = tmp_path / "out.jsonl"
    place = Path(f"{output}{ending}")
    place.write_text('["def f("]\n')
    prompts = place if way == "name" else tmp_path / "prompts.json"
    if way == "hard link":
        prompts.hardlink_to(place)
    elif way == "symbolic link":
        prompts.symlink_to(place)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ran = cli.generate(prompts, "-o", output, flag, *FEW)
    said = f"-o would replace {place}, which is one of the prompt files."
    assert ran.code == 2 and said in ran.err
    ran = cli.generate("--dataset", prompts, "-o", output, flag, *FEW)
    assert ran.code == 2 and said in ran.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_setting_and_no_weight_is_an_output(cli: Cli, prompts: Path, model: Path) -> None:
    config = model.parent / "run.toml"
    config.write_text("[generate]\nmax_tokens = 3\n")
    before = {path: path.read_bytes() for path in [config, *model.iterdir()]}
    weights = next(path for path in model.iterdir() if path.suffix == ".safetensors")
    for output in (config, weights, model / "config.json", model / "tokenizer.json"):
        words = ("-m", model, "--config", config, "--overwrite")
        ran = cli.generate(prompts, "-o", output, *words)
        assert ran.code == 2 and f"-o would replace {output}, which is read." in ran.err
    assert {path: path.read_bytes() for path in before} == before
    assert cli.generate(prompts, "-m", model, "-o", model / "out.jsonl", *FEW).code == 0


def test_a_device_may_be_input_and_output(cli: Cli) -> None:
    ran = cli.generate("/dev/null", "-o", "/dev/null")
    assert "would replace" not in ran.err


@pytest.mark.parametrize("option", ["", "-o", "-m", "--tokenizer", "--dataset", "--config"])
def test_a_name_that_is_no_name_is_the_user_s_fault(
    cli: Cli, prompts: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    long = "x" * 300 + ".csv"
    ran = cli.generate(*([prompts, option, long] if option else [long]))
    assert ran.code == 2 and "File name too long" in ran.err and "fault in santagen" not in ran.err
    assert ran.err.count("error: ") == ran.err.count("hint: ") == 1


@pytest.mark.parametrize("form", ["jsonl", "openai-batch"])
@pytest.mark.parametrize(
    ("task_id", "indices", "said"),
    [
        ("b", [7], "line 2 holds other samples of row 'b' than those from 0 to 1."),
        ("c", [3], "line 2 holds other samples of row 'c' than those from 0 to 2."),
        ("x", [0, 1], "line 2 belongs to a row that is not in the input."),
    ],
)
def test_a_foreign_line_is_refused_before_anything_is_generated(
    cli: Cli,
    tmp_path: Path,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    task_id: str,
    indices: list[int],
    said: str,
) -> None:
    rows: list[dict[str, Any]] = [{"id": name, "prompt": "def f("} for name in "abc"]
    rows[2]["n"] = 3
    words = [write_jsonl(tmp_path / "p.jsonl", rows), "-o", output, "--n", "2", *FEW]
    words += ["--temperature", "1", "--format", form]
    assert cli.generate(*words).code == 0
    lines = output.read_bytes()
    (record, *_), keep = read_jsonl(output), lines.splitlines(keepends=True)[:1]
    if form == "jsonl":
        foreign = [record | {"task_id": task_id, "index": index} for index in indices]
    else:
        choices = record["response"]["body"]["choices"]
        record["response"]["body"]["choices"] = [choices[0] | {"index": i} for i in indices]
        foreign = [record | {"custom_id": task_id}]
    output.write_bytes(keep[0] + "".join(json.dumps(row) + "\n" for row in foreign).encode())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr("santagen.cli.generate.Job._load", lambda _: pytest.fail("a model loads"))
        ran = cli.generate(*words, "--resume")
    assert ran.code == 2 and f"error: {output}, {said}" in ran.err and "that line" in ran.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    output.write_bytes(keep[0])  # as the hint says
    assert cli.generate(*words, "--resume").code == 0
    assert output.read_bytes() == lines


def test_a_batch_row_without_all_its_samples_is_refused(
    cli: Cli, prompts: Path, output: Path
) -> None:
    words = [prompts, "-o", output, "--n", "2", "--temperature", "1", "--format", "openai-batch"]
    assert cli.generate(*words, *FEW).code == 0
    first, *others = read_jsonl(output)
    del first["response"]["body"]["choices"][1]
    write_jsonl(output, [first, *others])
    ran = cli.generate(*words, *FEW, "--resume")
    assert ran.code == 2 and "line 1 holds other samples of row" in ran.err


def test_a_resume_with_another_dtype_is_refused(cli: Cli, prompts: Path, output: Path) -> None:
    assert cli.generate(prompts, "-o", output, *FEW).code == 0
    identity = manifest_of(output)["identity"]
    assert (identity["device"], identity["dtype"]) in (("cpu", "float32"), ("cuda", "bfloat16"))
    whole = output.read_bytes()
    ran = cli.generate(prompts, "-o", output, *FEW, "--resume", "--dtype", "float16")
    assert ran.code == 2
    assert f"dtype was '{identity['dtype']}' and is 'float16'" in ran.err and "hint: " in ran.err
    ran = cli.generate(prompts, "-o", output, *FEW, "--resume", "--block-size", "128")
    assert ran.code == 2 and "block_size was None and is 128" in ran.err
    assert output.read_bytes() == whole
    # What auto stood for, said aloud, is the same run.
    same = ("--dtype", identity["dtype"], "--device", identity["device"])
    assert cli.generate(prompts, "-o", output, *FEW, "--resume", *same).code == 0


def test_a_resume_with_another_tokenizer_is_refused(
    cli: Cli, prompts: Path, output: Path, model: Path
) -> None:
    assert cli.generate(prompts, "-o", output, "-m", model, *FEW).code == 0
    same = ("-m", model, *FEW, "--resume", "--tokenizer", bundled_model())
    assert cli.generate(prompts, "-o", output, *same).code == 0
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"][1]["content"] = "<fim_prefix>"
    path.write_text(json.dumps(content))
    for resume in (("-m", model), ("--tokenizer", model)):
        ran = cli.generate(prompts, "-o", output, *FEW, "--resume", *resume)
        assert ran.code == 2 and "tokenizer was" in ran.err and "hint: " in ran.err


def test_a_block_longer_than_any_sequence_is_refused(cli: Cli, prompts: Path) -> None:
    for size in ("1M", "1032"):
        ran = cli.generate(prompts, "--block-size", size, *FEW)
        assert ran.code == 2 and "the 1024 tokens that a sequence" in ran.err
        assert "at most 1024" in ran.err
    assert cli.generate(prompts, "--block-size", "1024", *FEW).code == 0


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_tokenizer_that_is_not_there_is_called_one(
    cli: Cli, prompts: Path, flags: tuple[str, ...]
) -> None:
    ran = cli.generate(prompts, "--tokenizer", "./nope", *flags)
    assert ran.code == 2 and "There is no tokenizer folder './nope'" in ran.err
    ran = cli.generate(prompts, "--tokenizer", prompts, *flags)
    assert ran.code == 2 and f"{prompts} is a file, not a tokenizer folder" in ran.err


def test_a_long_silence_is_explained(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import santagen.cli.generate as generate
    import santagen.cli.generate_inputs as inputs

    assert cli.generate(prompts, "-o", output, *FEW).err.count("every prompt") == 0

    def slowly(call: Any) -> Any:
        def slow(*arguments: Any, **settings: Any) -> Any:
            time.sleep(0.3)
            return call(*arguments, **settings)

        return slow

    monkeypatch.setattr(inputs, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(inputs, "read_prompts", slowly(inputs.read_prompts))
    monkeypatch.setattr(generate.Job, "_open_writer", slowly(generate.Job._open_writer))
    ran = cli.generate(prompts, "-o", output, "--resume", *FEW, "--no-progress")
    assert "reading and checking every prompt" in ran.err and f"what {output} holds" in ran.err
    assert "every prompt" not in cli.generate(prompts, "-o", output, "--resume", *FEW, "-q").err


def test_a_table_given_as_a_text_is_remarked_upon(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "my prompts.csv"
    path.write_text("prompt\ndef f(x):\n")
    ran = cli.generate(path, *FEW)
    assert ran.code == 0 and [s["task_id"] for s in ran.samples] == [str(path)]
    assert f"{path} is taken as one prompt" in ran.err and f"--dataset '{path}'" in ran.err


def test_an_interruption_before_the_first_sample_promises_nothing(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("santagen.llm.LLM", stop)
        ran = cli.generate(prompts, "-o", output, *FEW)
    assert ran.code == 130 and not output.exists()
    assert f"before the first sample: {output} was not made" in ran.err
    assert "safe" not in ran.err and "Run the same command again" in ran.err
    assert cli.generate(prompts, "-o", output, *FEW).code == 0
    whole = output.read_bytes()
    monkeypatch.setattr("santagen.llm.LLM", stop)
    ran = cli.generate(prompts, "-o", output, *FEW, "--overwrite")
    assert ran.code == 130 and f"{output} is as it was" in ran.err and "--resume" not in ran.err
    assert output.read_bytes() == whole
    output.write_bytes(whole.splitlines(keepends=True)[0])
    ran = cli.generate(prompts, "-o", output, *FEW, "--resume")
    assert ran.code == 130 and "0 of 2 samples" in ran.err and "--resume" in ran.err


def test_the_manifest_holds_the_command(cli: Cli, prompts: Path, output: Path) -> None:
    stop = ("--stop", r"\n\n", "--hf-token", "secret-of-mine", "--echo")
    assert cli.generate(prompts, "-o", output, *FEW, *stop).code == 0
    command = manifest_of(output)["command"]
    assert "secret-of-mine" not in Path(f"{output}.manifest.json").read_text()
    words = shlex.split(command)
    assert words[:2] == ["santagen", "generate"] and str(prompts) in words and r"\n\n" in words
    whole = output.read_bytes()
    assert cli(*words[1:]).code == 2  # the output exists now
    assert cli(*[word for word in words[1:] if word != "--"], "--overwrite").code == 0
    assert output.read_bytes() == whole


def test_a_device_is_not_said_to_have_files(cli: Cli, tmp_path: Path) -> None:
    rows = [{"prompt": "def f(x):"}, *({"prompt": ""} for _ in range(8))]
    path = write_jsonl(tmp_path / "p.jsonl", rows)
    ran = cli.generate(path, "-o", "/dev/null", *FEW)
    assert ran.code == 1
    assert "errors.jsonl" not in ran.err and "8 rows failed" in ran.err
    assert ran.err.count("the prompt is empty") == 8  # nothing else lists them


def test_an_input_without_rows_is_remarked_upon(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n\n")
    ran = cli.generate(path)
    assert (ran.code, ran.out) == (0, "") and "warning: The input holds no rows" in ran.err


def test_a_row_is_counted_once_however_often_it_fails(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from santagen.engine.llm_engine import LLMEngine
    from santagen.request import RowFailure

    def run(self: LLMEngine, requests: Any) -> Any:
        for request in list(requests):
            for part in range(2):
                yield RowFailure(request.row_id, request.number, request.line, f"no {part}", "")

    monkeypatch.setattr(LLMEngine, "run", run)
    ran = cli.generate(prompts, "-o", output, *FEW)
    assert ran.code == 1 and "3 rows failed" in ran.err and "no 1" not in ran.err
    assert len(read_jsonl(Path(f"{output}.errors.jsonl"))) == 3
    assert manifest_of(output)["counts"]["failed_rows"] == 3


def shell(line: str, *arguments: str | Path) -> Any:
    """`line` in a shell, with the program's words as "$@"."""
    import subprocess

    words = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", line, "sh", *words], capture_output=True, encoding="utf-8", timeout=120
    )


def test_a_closed_stdout_is_named() -> None:
    ran = shell('"$@" >&-', "generate", "-")
    assert ran.returncode == 2
    ran = shell('echo \'{"prompt": "x"}\' | "$@" >&-', "generate", "-")
    assert ran.returncode == 2 and "Standard output is closed" in ran.stderr


def test_with_stderr_closed_stdout_holds_data_alone(prompts: Path) -> None:
    ran = shell('"$@" 2>&-', "generate", prompts, *FEW)
    assert ran.returncode == 0
    assert [json.loads(line)["index"] for line in ran.stdout.splitlines()] == [0, 0, 0]
    ran = shell('"$@" 2>&-', "generate", "absent.jsonl")
    assert (ran.returncode, ran.stdout) == (2, "")


def test_a_closed_stdin_is_named() -> None:
    ran = shell('"$@" <&-', "generate", "-")
    assert ran.returncode == 2 and "stdin is closed" in ran.stderr
    assert process("generate", "-", input="").code == 0
