"""Settings of rows at and past the edges of what a run can hold: the row fails, never the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import SantagenError
from santagen.io.prompts import read_prompts
from santagen.request import MAX_SAMPLES, SamplingParams


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 10**400},
        {"top_p": 10**400},
        {"min_p": -(10**400)},
        {"repetition_penalty": 10**400},
        {"repetition_penalty": 1e-40},  # nothing in float32: every logit would be infinite
        {"repetition_penalty": 1e39},
        {"temperature": 1e39},
        {"n": MAX_SAMPLES + 1, "temperature": 1},  # each sample is an entry in memory
        {"n": 10**30, "temperature": 1},
    ],
    ids=str,
)
def test_a_number_no_run_can_hold_fails_its_row_alone(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"id": "wild", "prompt": "x", **settings}, {"id": "tame", "prompt": "x"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_prompts([str(path)])
    assert [row.row_id for row in found] == ["tame"]
    (failure,) = found.failures
    assert failure.row_id == "wild" and f"{path}, line 1: " in failure.error
    assert next(iter(settings)) in failure.error and next(iter(settings)) in failure.hint
    assert len(failure.error) < len(str(path)) + 200


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1e-6},
        {"repetition_penalty": 1e6},
        {"temperature": 1e6},
        {"temperature": 1e-300},
        {"temperature": 1, "n": MAX_SAMPLES},
        {"max_tokens": 10**30},  # ends at the last position
        {"top_k": 10**30},
    ],
    ids=str,
)
def test_large_and_small_numbers_that_mean_something_are_taken(settings: dict[str, Any]) -> None:
    SamplingParams(**settings)


def test_the_hint_says_what_to_write() -> None:
    with pytest.raises(SantagenError) as caught:
        SamplingParams(n=0)
    assert caught.value.hint == "Make n at least 1."


def test_the_column_of_a_broken_line_is_on_that_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "x"\r\n')
    (failure,) = read_prompts([str(path)]).failures
    assert "column 15" in failure.error
