"""`santagen generate` from its files to its files, on the bundled model, with every option."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import santagen.llm
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import settings_of
from tests.cli.helpers import Cli, read_jsonl, write_jsonl

FEW = ("--max-tokens", "6")
BATCH = ("--format", "openai-batch")


def test_prompts_in_jsonl_out(cli: Cli, prompts: Path) -> None:
    ran = cli.generate(prompts, *FEW)
    assert ran.code == 0
    assert "small model that ships with santagen" in ran.err
    assert [(s["task_id"], s["index"]) for s in ran.samples] == [
        ("add", 0), ("is_even", 0), ("square", 0)
    ]  # fmt: skip
    for sample in ran.samples:
        assert set(sample) == {
            "task_id", "index", "completion", "finish_reason", "stop_reason", "usage"
        }  # fmt: skip
        assert 0 < sample["usage"]["completion_tokens"] <= 6
    assert ran.samples[0]["completion"].startswith(" a + b")


def test_output_is_in_input_order_with_a_manifest(cli: Cli, prompts: Path, output: Path) -> None:
    to_file = cli.generate(prompts, "-o", output, *FEW, "--hf-token", "hf_secret")
    assert (to_file.code, to_file.out) == (0, "")
    assert [row["task_id"] for row in read_jsonl(output)] == ["add", "square", "is_even"]
    manifest = Path(f"{output}.manifest.json").read_text()
    run = json.loads(manifest)["run"]
    assert run["generated_tokens"] > 0 and 0 < run["generation_seconds"] < run["seconds"]
    assert json.loads(manifest)["versions"]["torch"]
    assert "hf_secret" not in manifest + to_file.err + output.read_text()
    on_screen = cli.generate(prompts, *FEW).out
    assert sorted(output.read_text().splitlines()) == sorted(on_screen.splitlines())
    assert cli.generate(prompts, *FEW, "-o", "-").out == on_screen


def test_an_output_that_exists_needs_resume_or_overwrite(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.generate(prompts, "-o", output, *FEW).code == 0
    whole = output.read_bytes()
    again = cli.generate(prompts, "-o", output, *FEW)
    assert again.code == 2
    assert "--resume" in again.err and "--overwrite" in again.err
    assert output.read_bytes() == whole
    assert cli.generate(prompts, "-o", output, *FEW, "--overwrite").code == 0
    assert output.read_bytes() == whole
    # Nothing is left to do, so no model is loaded.
    monkeypatch.setattr(santagen.llm, "LLM", None)
    assert cli.generate(prompts, "-o", output, *FEW, "--resume").code == 0
    assert output.read_bytes() == whole


def test_resume_ends_with_the_same_bytes(cli: Cli, prompts: Path, output: Path) -> None:
    drawn = ("--n", "3", "--temperature", "0.9", "--seed", "4", *FEW)
    assert cli.generate(prompts, "-o", output, *drawn).code == 0
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 9
    output.write_bytes(lines[7] + lines[0] + lines[2] + lines[4][:20])
    refused = cli.generate(prompts, "-o", output, *drawn, "--resume", "--top-p", "0.5")
    assert refused.code == 2
    assert output.read_bytes() != whole
    assert cli.generate(prompts, "-o", output, *drawn, "--resume").code == 0
    assert output.read_bytes() == whole


def test_bad_rows_are_listed_and_the_others_finish(cli: Cli, tmp_path: Path, output: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"prompt": "def f(x):"}\nnot json\n{"prompt": ""}\n{"prompt": "x = "}\n')
    ran = cli.generate(path, "-o", output, *FEW)
    assert ran.code == 1
    assert [row["task_id"] for row in read_jsonl(output)] == [0, 3]
    errors = read_jsonl(Path(f"{output}.errors.jsonl"))
    assert [row["line"] for row in errors] == [2, 3]
    assert all(row["error"] and row["hint"] for row in errors)
    assert "line 2" in ran.err


def test_strict_stops_before_the_model_loads(
    cli: Cli, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(santagen.llm, "LLM", None)
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"prompt": "def f(x):"}\nnot json\n')
    ran = cli.generate(path, "-o", output, "--strict")
    assert ran.code == 2
    assert "line 2" in ran.err
    assert not output.exists()


def test_a_run_of_bad_rows_only_loads_no_model(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(santagen.llm, "LLM", None)
    path = tmp_path / "bad.jsonl"
    path.write_text("not json\n")
    ran = cli.generate(path)
    assert (ran.code, ran.out) == (1, "")


def test_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = io.TextIOWrapper(io.BytesIO(b'{"id": 7, "prompt": "def f(x):"}\n'))
    monkeypatch.setattr(sys, "stdin", rows)
    assert [s["task_id"] for s in cli.generate("-", *FEW).samples] == [7]


def test_dry_run_counts_and_writes_nothing(
    cli: Cli, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(santagen.llm, "LLM", None)
    rows: list[dict[str, Any]] = [{"prompt": "x = 1\n" * 40}, {"prompt": "x"}, {"prompt": "y"}]
    path = write_jsonl(tmp_path / "p.jsonl", rows)
    ran = cli.generate(path, "-o", output, "--dry-run")
    assert (ran.code, ran.out) == (0, "")
    assert "3 would run, 0 would fail, 0 would be truncated" in ran.err
    limits = ("--dry-run", "--max-model-len", "32", "--max-tokens", "8")
    ran = cli.generate(path, *limits)
    assert ran.code == 1
    assert "2 would run, 1 would fail" in ran.err
    ran = cli.generate(path, *limits, "--truncate", "left")
    assert ran.code == 0
    assert "3 would run, 0 would fail, 1 would be truncated" in ran.err
    assert not output.exists()


def test_show_config_runs_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANTAGEN_GENERATE_TOP_P", "0.5")
    ran = cli.generate("absent.jsonl", "--show-config", "--n", "2")
    assert (ran.code, ran.err) == (0, "")
    assert "top_p = 0.5" in ran.out and "# environment SANTAGEN_GENERATE_TOP_P" in ran.out
    assert "n = 2" in ran.out and "# flag --n" in ran.out


def test_config_file_and_environment_reach_the_engine(
    cli: Cli, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("max_tokens = 3\nlimit = 1\nignore_eos = true\n")
    monkeypatch.setenv("SANTAGEN_GENERATE_LIMIT", "2")
    samples = cli.generate(prompts, "--config", config).samples
    assert [s["usage"]["completion_tokens"] for s in samples] == [3, 3]
    config.write_text("max_tokenz = 3\n")
    ran = cli.generate(prompts, "--config", config)
    assert ran.code == 2 and "'max_tokenz'" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--resume", "--overwrite", "-o", "x"],
        ["--resume"],
        ["-q", "-v"],
        ["--n", "2"],
        ["--shard", "2/2"],
        ["--shard", "half"],
        ["--split", "train"],
        ["--temperature", "-1"],
        ["--revision", "main", "-m", "."],
        ["-m", "./no/such/model"],
        ["-m", "no-such-owner/no-such-model"],
        ["--tokenizer", "./no/such/tokenizer"],
        ["--device", "cuda:9"],
        ["--block-size", "0"],
    ],
)
def test_settings_that_can_t_be_used(cli: Cli, prompts: Path, arguments: list[str]) -> None:
    ran = cli.generate(prompts, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 1 and "\nhint: " in ran.err


class TestOptions:
    """What each option does to the output."""

    def test_sampling(self, cli: Cli, prompts: Path) -> None:
        drawn = ["--temperature", "0.8", "-n", "2", *FEW]
        plain = cli.generate(prompts, *drawn).samples
        assert [s["index"] for s in plain] == [0, 1] * 3
        assert cli.generate(prompts, *drawn).samples == plain
        for change in (
            ["--seed", "1"],
            ["--top-p", "0.01"],
            ["--top-k", "1"],
            ["--min-p", "1"],
            ["--repetition-penalty", "20"],
        ):
            assert cli.generate(prompts, *drawn, *change).samples != plain, change

    def test_stops(self, cli: Cli, prompts: Path) -> None:
        stop = ["--stop", r"\n", "--max-new-tokens", "24"]
        for sample in cli.generate(prompts, *stop).samples:
            assert "\n" not in sample["completion"]
            assert (sample["finish_reason"], sample["stop_reason"]) == ("stop", "\n")
        for sample in cli.generate(prompts, *stop, "--include-stop").samples:
            assert sample["completion"].endswith("\n")

    def test_ignore_eos(self, cli: Cli, prompts: Path) -> None:
        for sample in cli.generate(prompts, "--ignore-eos", "--max-tokens", "40").samples:
            assert sample["usage"]["completion_tokens"] == 40
            assert sample["finish_reason"] == "length"

    def test_what_a_record_holds(self, cli: Cli, prompts: Path) -> None:
        more = ["--echo", "--token-ids", "--logprobs", "2", "--keep", "level"]
        sample = cli.generate(prompts, *FEW, *more).samples[0]
        assert sample["prompt"] == "def add(a, b):\n    return"
        drawn = [entry["id"] for entry in sample["logprobs"]]  # the end token is among them
        assert sample["token_ids"] == drawn[: len(sample["token_ids"])]
        assert len(sample["logprobs"][0]["top"]) == 2
        assert sample["level"] == 1

    def test_which_rows(self, cli: Cli, prompts: Path) -> None:
        def ids(*arguments: str) -> list[str]:
            return [s["task_id"] for s in cli.generate(prompts, *FEW, *arguments).samples]

        assert ids("--limit", "2") == ["add", "square"]
        assert ids("--shard", "0/2") == ["add", "is_even"]
        assert ids("--shard", "1/2") == ["square"]
        assert ids("--unordered") == ["add", "is_even", "square"]

    def test_prompt_sources(self, cli: Cli, tmp_path: Path) -> None:
        table = tmp_path / "table.csv"
        table.write_text("task_id,code\na,def f(x):\n")
        column = ["--prompt-column", "code", *FEW, "--echo"]
        (sample,) = cli.generate("--dataset", table, "--split", "train", *column).samples
        assert (sample["task_id"], sample["prompt"]) == ("a", "def f(x):")
        rows = write_jsonl(tmp_path / "rows.jsonl", [{"code": "def g(x):"}])
        assert cli.generate(rows, *column).samples[0]["prompt"] == "def g(x):"
        text = tmp_path / "whole.py"
        text.write_text("def h(x):\n    return")
        assert cli.generate(text, *FEW).samples[0]["task_id"] == str(text)

    def test_fim_mode(self, cli: Cli, tmp_path: Path) -> None:
        row = {"prefix": "def area(w, h):\n    return ", "suffix": "\n"}
        path = write_jsonl(tmp_path / "p.jsonl", [row])
        for mode in ("psm", "spm"):
            ran = cli.generate(path, "--fim-mode", mode, *FEW, "--echo")
            assert ran.code == 0 and ran.samples[0]["completion"]

    def test_trim_overlap(self, cli: Cli, tmp_path: Path) -> None:
        row = {"prefix": "def area(w, h):\n    return ", "suffix": " * h\n"}
        rows = [row, {**row, "trim_overlap": True}, {**row, "trim_overlap": False}]
        path = write_jsonl(tmp_path / "p.jsonl", rows)

        def told(*options: str) -> list[tuple[str, str | None]]:
            samples = cli.generate(path, *FEW, *options).samples
            return [(s["completion"], s.get("trimmed_overlap")) for s in samples]

        raw, cut = ("w * h", None), ("w", " * h")
        assert told() == [raw, cut, raw]
        assert told("--trim-overlap") == [cut, cut, raw]
        bad = write_jsonl(tmp_path / "bad.jsonl", [{**row, "trim_overlap": 1}])
        assert "trim_overlap is 1" in cli.generate(bad).err

    def test_openai_batch(self, cli: Cli, tmp_path: Path) -> None:
        row = {
            "custom_id": "r1", "method": "POST", "url": "/v1/completions",
            "body": {"model": "m", "prompt": "def f(x):", "max_tokens": 4},
        }  # fmt: skip
        path = write_jsonl(tmp_path / "batch.jsonl", [row])
        (answer,) = cli.generate(path, "--format", "openai-batch").samples
        assert answer["custom_id"] == "r1"
        assert answer["response"]["body"]["choices"][0]["text"]

    def test_openai_batch_heeds_what_is_asked_of_records(self, cli: Cli, tmp_path: Path) -> None:
        prompt = "x = 1\n" * 40
        rows = [
            {"custom_id": f"r{i}", "level": i, "body": {"prompt": prompt, "n": 2, "max_tokens": 4}}
            for i in range(2)
        ]
        path = write_jsonl(tmp_path / "batch.jsonl", rows)
        way = (path, *FEW, "--temperature", "1", "--max-model-len", "32", "--truncate", "left")
        kept = ("--keep", "level", "--keep", "custom_id")
        asked = ("--token-ids", "--echo", "--logprobs", "1", *kept)
        plain = cli.generate(*way, *asked).samples
        batch = [json.loads(a) for a in cli.generate(*way, *asked, *BATCH).out.splitlines()]
        assert [sample["task_id"] for sample in plain] == ["r0", "r0", "r1", "r1"]
        for answer in batch:
            own = [sample for sample in plain if sample["task_id"] == answer["custom_id"]]
            body = answer["response"]["body"]
            for name in ("token_ids", "logprobs", "finish_reason", "stop_reason"):
                assert [c[name] for c in body["choices"]] == [sample[name] for sample in own]
            for name in ("prompt", "truncated_tokens"):
                assert [body[name]] * 2 == [sample[name] for sample in own]
            assert [answer["level"]] * 2 == [sample["level"] for sample in own]
        assert len(batch) == 2 and body["prompt"] == prompt and body["truncated_tokens"] > 0
        for line in cli.generate(*way, *BATCH).out.splitlines():
            answer = json.loads(line)
            assert "prompt" not in answer["response"]["body"] and "level" not in answer
            assert "token_ids" not in answer["response"]["body"]["choices"][0]

    def test_limits_and_engine_change_no_byte(
        self, cli: Cli, prompts: Path, bundled_model: Path
    ) -> None:
        plain = cli.generate(prompts, *FEW).samples
        for same in (
            ["--max-num-seqs", "2", "--max-num-batched-tokens", "64"],
            ["--max-model-len", "128"],
            ["--block-size", "32", "--enforce-eager", "--gpu-memory-utilization", "0.5"],
            ["--invariant"],
            ["--device", "cpu", "--dtype", "float32", "--attention", "torch"],
            ["--quantization", "none"],
            ["-m", str(bundled_model), "--tokenizer", str(bundled_model)],
        ):
            ran = cli.generate(prompts, *FEW, *same)
            assert (ran.code, ran.samples) == (0, plain), same

    def test_what_is_said(self, cli: Cli, prompts: Path, output: Path) -> None:
        quiet = cli.generate(prompts, *FEW, "-q")
        assert (quiet.code, quiet.err) == (0, "")
        for arguments in (["-v"], ["--progress"], ["--no-progress"]):
            ran = cli.generate(prompts, *FEW, *arguments)
            assert ran.out == quiet.out
            assert "samples" in ran.err


def test_every_option_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    untried = [
        setting.name
        for setting in settings_of(GenerateOptions)
        if setting.flags
        and not any(f'"{part}"' in source for flag in setting.flags for part in flag.split("/"))
    ]
    assert untried == []


def test_fp8_needs_a_gpu(cli: Cli, prompts: Path, output: Path) -> None:
    ran = cli("generate", prompts, "-o", output, "--device", "cpu", "--quantization", "fp8")
    assert ran.code == 2 and "--quantization fp8 needs a CUDA device" in ran.err
    assert not output.exists()


def test_one_sample_of_one_token_is_told_as_such(cli: Cli, tmp_path: Path, output: Path) -> None:
    prompts = write_jsonl(tmp_path / "one.jsonl", [{"prompt": "def f("}])
    ran = cli("generate", prompts, "-o", output, "--max-tokens", "1")
    assert "\n1 sample, 1 token in " in ran.err


def test_an_output_that_is_an_input_is_refused(cli: Cli, prompts: Path) -> None:
    before = prompts.read_bytes()
    ran = cli("generate", prompts, "-o", prompts, "--overwrite")
    assert ran.code == 2 and "one of the prompt files" in ran.err
    assert prompts.read_bytes() == before


def test_the_model_is_looked_up_once(
    cli: Cli, prompts: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from santagen import llm
    from santagen.checkpoint import source

    asked: list[str | None] = []
    find = source.resolve_model

    def count(model: str | None, **settings: str | None) -> source.ModelSource:
        asked.append(model)
        return find(model, **settings)

    monkeypatch.setattr(source, "resolve_model", count)
    monkeypatch.setattr(llm, "resolve_model", count)
    assert cli("generate", prompts, "-o", output, "--max-tokens", "2").code == 0
    assert asked == [None]


@pytest.mark.parametrize("flag", ["-tp", "--tensor-parallel-size", "-dp", "--data-parallel-size"])
def test_parallel_sizes(cli: Cli, prompts: Path, flag: str) -> None:
    """What they do is tested in tests/distributed; 1 starts no other process."""
    refused = cli.generate(prompts, flag, "0")
    assert refused.code == 2 and "at least 1" in refused.err
    assert cli.generate(prompts, *FEW, flag, "1").samples == cli.generate(prompts, *FEW).samples
