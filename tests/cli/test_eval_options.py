"""`santagen eval` takes the model options of `santagen generate`, and they reach the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from santagen.cli.eval_options import EvalOptions
from santagen.cli.eval_progress import Counts
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import settings_of
from santagen.config import EngineConfig
from santagen.evaluation.files import Sample
from santagen.evaluation.runner import Verdict
from tests.cli.helpers import Cli

ENGINE = {field.name for field in dataclasses.fields(EngineConfig)}
SHARED = [setting for setting in settings_of(GenerateOptions) if setting.name in ENGINE]


@pytest.mark.parametrize("setting", SHARED, ids=lambda s: s.name)
def test_every_engine_option_of_generate_is_one_of_eval(setting: object) -> None:
    ours = {found.name: found for found in settings_of(EvalOptions)}
    assert ours.get(setting.name) == setting  # type: ignore[attr-defined]


def test_help_shows_every_option(cli: Cli) -> None:
    shown = cli("eval", "--help").out
    for setting in settings_of(EvalOptions):
        assert all(flag.split("/")[0] in shown for flag in setting.flags)
        assert f"\n{setting.panel}:\n" in shown


def test_they_reach_the_engine(cli: Cli, tmp_path: Path) -> None:
    words = ["eval", "mini-infilling", "--limit", 1, "--no-progress", "-v"]
    ran = cli(*words, "--attention", "torch", "--block-size", 16, "--max-num-seqs", 3)
    assert ran.code == 0, ran.err
    assert "attention torch" in ran.err and "blocks of 16 tokens" in ran.err
    assert "up to 3 sequences" in ran.err
    ran = cli(*words, "--attention", "flash", "--device", "cpu")
    assert ran.code == 2 and "--attention flash needs" in ran.err


def test_the_token_reaches_the_task_s_problems(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def load(*names: str, token: str | None, **settings: str) -> list[dict[str, object]]:
        asked.append(token)
        return [{"task_id": 11, "text": "Do.", "code": "x = 1", "test_list": ["assert x"]}]

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load)
    rows = tmp_path / "rows.jsonl"
    ran = cli("eval", "mbpp", "--prompts-out", rows, "--hf-token", "a-token")
    assert (ran.code, asked) == (0, ["a-token"]), ran.err
    assert "MBPP/11" in rows.read_text() and "a-token" not in ran.err + rows.read_text()


def test_the_preset_is_printed(cli: Cli) -> None:
    ran = cli("eval", "mini-infilling", "--limit", 1, "--no-progress")
    first, second = ran.err.splitlines()[:2]
    assert "1 problem from" in first and "temperature 0.2, top_p 0.95" in first
    assert "taken to the letter; answers end at the model's own end only" in second


def test_scores_stream_with_both_intervals() -> None:
    counts = Counts()
    assert counts.scores((1, 10)) == []

    def judge(task_id: str, passed: int, of: int) -> None:
        for index in range(of):
            sample = Sample(task_id, index, "")
            counts.add(Verdict(sample, "passed", index < passed, "passed"))

    judge("a", 2, 4)
    judge("b", 1, 2)
    assert counts.scores((1, 2, 10)) == ["pass@1 50.0% ±56.6 ±0.0", "pass@2 91.7%"]
    judge("c", 0, 1)
    first, second = counts.scores((1, 2, 10))
    assert first.startswith("pass@1 33.3% ±") and counts.judged == 7
    assert second == "pass@2 91.7% of 2 problems"
