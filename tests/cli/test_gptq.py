"""`--quantization` on the command line, and what is said of output that looks broken."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from santagen.cli.degenerate import Degenerate
from santagen.distributed import TensorParallel
from santagen.llm import LLM
from santagen.request import Request, SampleOutput, SamplingParams
from tests.cli.helpers import PROGRAM, TIMEOUT, Cli, read_jsonl, write_jsonl
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, Spec(gptq=GPTQSpec(sym=False, act_order=True)))
    return folder


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    rows = [{"prompt_token_ids": [5, 9, 2, 40]}, {"prompt_token_ids": [7]}]
    return write_jsonl(tmp_path / "ids.jsonl", rows)


RUN = ("--device", "cpu", "--max-tokens", "12", "--token-ids", "--ignore-eos")


def test_both_ways_write_the_same_samples(
    cli: Cli, model: Path, ids: Path, tmp_path: Path
) -> None:
    found = {}
    for way, words in (("gptq", "kept packed"), ("none", "dequantised at load"),
                       ("auto", "dequantised at load")):  # fmt: skip
        output = tmp_path / f"{way}.jsonl"
        ran = cli.generate(ids, "-m", model, "-o", output, "--quantization", way, *RUN)
        assert ran.code == 0, ran.err
        assert ran.err.count(words) == 1
        assert "4 bits in groups of 32, act-order" in ran.err
        found[way] = [sample["token_ids"] for sample in read_jsonl(output)]
        manifest = json.loads(Path(f"{output}.manifest.json").read_text())
        assert manifest["settings"]["quantization"] == way
        assert manifest["identity"]["quantization"] == way
    assert found["gptq"] == found["none"] == found["auto"]
    assert len(found["gptq"]) == 2 and all(len(row) == 12 for row in found["gptq"])


def test_a_resumed_run_keeps_to_its_way(cli: Cli, model: Path, ids: Path, tmp_path: Path) -> None:
    start = (ids, "-m", model, "-o", tmp_path / "o.jsonl", *RUN)
    assert cli.generate(*start, "--quantization", "gptq").code == 0
    ran = cli.generate(*start, "--quantization", "none", "--resume")
    assert ran.code != 0 and "quantization was 'gptq' and is 'none'" in ran.err


class BesideASmallOne(TensorParallel):
    """Another rank has a kilobyte left."""

    def smallest(self, value: int) -> int:
        return 1000 if value > 10**6 else value  # bytes, not blocks


def test_what_auto_means_follows_from_the_poorest_rank(model: Path) -> None:
    alone = LLM(str(model), device="cpu")
    beside = LLM(str(model), device="cpu", parallel=BesideASmallOne())
    assert any("dequantised at load" in note for note in alone.notes)
    assert any("kept packed" in note and "would not fit" in note for note in beside.notes)


def test_packed_weights_need_a_gptq_checkpoint(cli: Cli, prompts: Path) -> None:
    for more in ((), ("--dry-run",)):
        ran = cli.generate(prompts, "--quantization", "gptq", "--device", "cpu", *more)
        assert ran.code == 2
        assert "--quantization gptq" in ran.err and "not quantised" in ran.err
        assert "hint: Leave the option out" in ran.err


def test_an_unknown_way_is_named(cli: Cli, prompts: Path) -> None:
    ran = cli.generate(prompts, "--quantization", "int4")
    assert ran.code == 2 and "'int4'" in ran.err and "auto, none, gptq" in ran.err


def test_a_dry_run_shows_the_settings(cli: Cli, model: Path, ids: Path) -> None:
    ran = cli.generate(ids, "-m", model, "--dry-run", "--quantization", "none")
    assert ran.code == 0
    assert "GPTQ weights of 4 bits in groups of 32, act-order; --quantization none" in ran.err
    shown = cli.generate(ids, "--quantization", "gptq", "--show-config")
    assert 'quantization = "gptq"' in shown.out


REQUEST = Request(0, 0, (1,), SamplingParams(), (0,))
SOUND = SampleOutput(REQUEST, 0, None, (1, 2, 3, 4, 5, 6, 7, 8, 9), "length", None, 9)
EMPTY = replace(SOUND, token_ids=(), finish_reason="stop", generated_tokens=1)
SAME = replace(SOUND, token_ids=(4,) * 9)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([SOUND, EMPTY, SAME], ""),
        ([], ""),
        ([EMPTY, EMPTY], "every one of 2 samples of this run ended at once."),
        ([SAME], "the only sample of this run repeats one token."),
        ([SAME, EMPTY], "every one of 2 samples of this run ended at once or repeats one token."),
        ([replace(EMPTY, stop_reason="\n")], ""),  # the user's stop string
        ([replace(EMPTY, stop_reason=3)], "the only sample of this run ended at once."),
        ([replace(SAME, token_ids=(4,) * 7)], ""),
    ],
)
def test_degenerate_output_is_told_from_sound(outputs: list[SampleOutput], words: str) -> None:
    seen = Degenerate()
    for output in outputs:
        seen.add(output)
    assert seen.warning() == words


def test_groups_add_up_what_they_saw() -> None:
    first, second = Degenerate(), Degenerate()
    first.add(SAME)
    second.add(SOUND)
    first.update(second)
    assert first.warning() == "" and first.samples == 2
    second.update(Degenerate(2, 1, 1))
    assert second.warning() == ""
    alone = Degenerate()
    alone.update(Degenerate(2, 1, 1))
    assert "every one of 2 samples" in alone.warning()


def test_all_groups_count_for_degenerate_output(
    model: Path, ids: Path, tmp_path: Path
) -> None:
    """As many samples as there are, whichever group made them."""
    words = [*PROGRAM, "generate", ids, "-m", model, "-o", tmp_path / "o.jsonl", *RUN, "-dp", "2"]
    ran = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=TIMEOUT)
    assert ran.returncode == 0, ran.stderr
    assert "every one of 2 samples of this run repeats one token." in ran.stderr, ran.stderr


def test_the_summary_points_out_degenerate_output(
    cli: Cli, model: Path, ids: Path, tmp_path: Path
) -> None:
    """Random weights with a tied head repeat the token they are given; drawn, they do not."""
    broken = cli.generate(ids, "-m", model, "-o", tmp_path / "broken.jsonl", *RUN)
    assert broken.code == 0
    assert "warning: every one of 2 samples of this run repeats one token." in broken.err
    assert "hint: Damaged or badly quantised weights" in broken.err
    drawn = (*RUN, "--temperature", "40")
    sound = cli.generate(ids, "-m", model, "-o", tmp_path / "sound.jsonl", *drawn)
    assert sound.code == 0 and "warning" not in sound.err
