"""The output survives kills, resumes to the same bytes, and refuses what would mix two runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import SantagenError
from santagen.io.manifest import read_manifest
from santagen.io.writer import OutputWriter, errors_path
from santagen.request import Request, RowFailure, SampleOutput, SamplingParams, TokenLogprob

IDENTITY = {"model": "m", "sampling": {"seed": 0, "stop": ("a",)}, "prompts": "p"}
INFO = {"model": "tiny", "command": "x --hf-token hf_abcdefghijkl", "settings": {"hf_token": "hf_abcdefghijkl"}}
ROWS = 30
IDS = [f"t/{i}" if i % 2 else i for i in range(ROWS)]


def sample(number: int, index: int, text: str | None = None, **request: Any) -> SampleOutput:
    params = SamplingParams(n=2, temperature=1.0)
    return SampleOutput(
        Request(IDS[number], number, (1, 2, 3), params, (0, 1), **request), index,
        text if text is not None else f"text {number} {index}", (4, 5), "stop", None, 3,
    )


def open_writer(path: Path, **settings: Any) -> OutputWriter:
    identity = settings.pop("identity", IDENTITY)
    return OutputWriter.open(path, identity=identity, info=INFO, **settings)


def run(path: Path, seed: int, resume: bool, pause: float = 0.0, **settings: Any) -> None:
    """A whole run: samples end in random order, two rows fail."""
    with open_writer(path, resume=resume, **settings) as writer:
        for number in (3, 7):
            writer.fail(RowFailure(IDS[number], number, number + 1, "bad", "mend"))
        wanted = [
            (n, i) for n in range(ROWS) if n not in (3, 7) for i in (0, 1) if (IDS[n], i) not in writer.done
        ]
        random.Random(seed).shuffle(wanted)
        for number, index in wanted:
            writer.write(sample(number, index))
            time.sleep(pause)
        writer.finish(((row_id, n) for n, row_id in enumerate(IDS)), {"seconds": 1.0})


@pytest.fixture
def unbroken(tmp_path: Path) -> Path:
    path = tmp_path / "whole.jsonl"
    run(path, 0, False)
    return path


def test_a_finished_file_is_in_input_order_with_standard_fields(unbroken: Path) -> None:
    records = [json.loads(line) for line in unbroken.read_bytes().splitlines()]
    wanted = [(IDS[n], i) for n in range(ROWS) if n not in (3, 7) for i in (0, 1)]
    assert [(r["task_id"], r["index"]) for r in records] == wanted
    assert records[0] == {
        "task_id": 0, "index": 0, "completion": "text 0 0", "finish_reason": "stop", "stop_reason": None,
        "usage": {"prompt_tokens": 3, "completion_tokens": 3},
    }
    errors = [json.loads(line) for line in errors_path(unbroken).read_bytes().splitlines()]
    assert errors == [
        {"task_id": IDS[n], "line": n + 1, "error": "bad", "hint": "mend"} for n in (3, 7)
    ]
    assert sorted(p.name for p in unbroken.parent.iterdir()) == [
        "whole.jsonl", "whole.jsonl.errors.jsonl", "whole.jsonl.manifest.json"
    ]


def test_the_manifest_holds_no_secret_and_says_it_is_complete(unbroken: Path) -> None:
    manifest = read_manifest(unbroken)
    assert manifest is not None and manifest["complete"] is True
    assert manifest["counts"] == {"samples": 56, "failed_rows": 2}
    assert "hf_abc" not in json.dumps(manifest)


@pytest.mark.parametrize("settings", [{}, {"format": "openai-batch"}], ids=["jsonl", "batch"])
def test_killed_at_random_moments_and_resumed_gives_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = tmp_path / "whole.jsonl"
    run(whole, 0, False, **settings)
    context = multiprocessing.get_context("fork")
    chance = random.Random(5)
    path = tmp_path / "out.jsonl"
    kills = 0
    for attempt in range(12):
        process = context.Process(target=run, args=(path, attempt, attempt > 0, 0.001), kwargs=settings)
        process.start()
        process.join(chance.uniform(0.005, 0.05))
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
    assert kills > 3
    run(path, 99, True, **settings)
    assert path.read_bytes() == whole.read_bytes()
    assert errors_path(path).read_bytes() == errors_path(whole).read_bytes()
    before = path.read_bytes()
    run(path, 100, True, **settings)  # resuming what is complete changes nothing
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_last_line_is_dropped(unbroken: Path, tmp_path: Path, cut: int) -> None:
    wanted = unbroken.read_bytes()
    os.truncate(unbroken, len(wanted) - cut)
    run(unbroken, 1, True)
    assert unbroken.read_bytes() == wanted


def test_existing_output_and_other_settings_are_refused(unbroken: Path) -> None:
    with pytest.raises(SantagenError, match="exists") as caught:
        open_writer(unbroken)
    assert "--resume" in caught.value.hint and "--overwrite" in caught.value.hint
    other = {**IDENTITY, "sampling": {"seed": 7, "stop": ["a"]}}
    with pytest.raises(SantagenError, match=r"sampling\.seed was 0 and is 7"):
        open_writer(unbroken, resume=True, identity=other)
    open_writer(unbroken, resume=True).close()  # tuples and lists are the same settings
    before = unbroken.read_bytes()
    run(unbroken, 3, False, overwrite=True)
    assert unbroken.read_bytes() == before


def test_a_second_run_on_one_output_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path), pytest.raises(SantagenError, match="Another run"):
        open_writer(path, resume=True)
    open_writer(path, resume=True).close()
    assert not path.with_name("out.jsonl.lock").exists()


def test_outputs_that_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(SantagenError, match="does not exist") as caught:
        open_writer(tmp_path / "no" / "out.jsonl")
    assert "mkdir" in caught.value.hint
    with pytest.raises(SantagenError, match="is a directory"):
        open_writer(tmp_path)
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("hello\n")
    with pytest.raises(SantagenError, match="manifest"):
        open_writer(foreign, resume=True)
    assert foreign.read_text() == "hello\n"


def test_a_full_disk_keeps_what_was_written() -> None:
    with OutputWriter.open(Path("/dev/full"), identity=IDENTITY, info=INFO) as writer:
        with pytest.raises(SantagenError, match="No space left") as caught:
            writer.write(sample(0, 0))
        assert "--resume" in caught.value.hint


def test_fragile_text_survives_any_reader(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\ud800h\r\n\ti \x00 é"
    with open_writer(path, echo=True, token_ids=True) as writer:
        token = TokenLogprob(4, -0.5, ((4, -0.5), (9, -1.25)))
        output = sample(1, 0, text, prompt_text="p", truncated_tokens=3, keep={"k": [1], "index": "no"})
        writer.write(SampleOutput(**{**{f: getattr(output, f) for f in output.__slots__}, "logprobs": (token,)}))
        writer.finish([], {})
    (line,) = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert record["completion"] == text
    assert (record["prompt"], record["token_ids"], record["truncated_tokens"]) == ("p", [4, 5], 3)
    assert record["logprobs"] == [{"id": 4, "logprob": -0.5, "top": [[4, -0.5], [9, -1.25]]}]
    assert record["k"] == [1] and record["index"] == 0


def test_batch_form_answers_in_kind(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path, format="openai-batch") as writer:
        writer.write(sample(1, 1))
        assert path.read_bytes() == b""  # the row waits for its other sample
        writer.write(sample(1, 0))
        writer.fail(RowFailure("t/3", 3, 4, "bad", "mend"))
        writer.finish([], {})
    record = json.loads(path.read_text())
    assert record["custom_id"] == "t/1" and record["response"]["status_code"] == 200
    body = record["response"]["body"]
    assert [c["text"] for c in body["choices"]] == ["text 1 0", "text 1 1"]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6}
    error = json.loads(errors_path(path).read_text())
    assert error["custom_id"] == "t/3" and "bad" in error["error"]["message"]
