"""Which rows of an input a process takes: their numbers, and the rows themselves elsewhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from santagen.errors import SantagenError
from santagen.io.prompts import read_prompts
from santagen.request import SamplingParams


def test_numbers_and_samples_of_the_good_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "n": 5}, {"prompt": ""}, {"prompt": "c", "n": 1}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    defaults = SamplingParams(temperature=1.0, n=3)
    whole = read_prompts([str(path)], defaults=defaults)
    assert whole.numbers().tolist() == [row.number for row in whole] == [0, 1, 3, 4, 5, 7]
    assert whole.samples(3) == 2 * (3 + 5 + 1)
    part = read_prompts([str(path)], defaults=defaults, shard=(1, 3), limit=6)
    assert part.numbers().tolist() == [row.number for row in part] == [1, 4]
    assert part.samples(3) == 5 + 3


def test_selected_rows_are_the_same_in_another_process(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.json"
    first.write_text('{"prompt": "a"}\nbroken\n{"prompt": "c"}\n')
    second.write_text('[{"prompt": "d"}, {"prompt": "e"}]')
    prompts = read_prompts([str(first), str(second)])
    elsewhere = pickle.loads(pickle.dumps(prompts))
    for numbers in ([0, 2, 3, 4], [2, 4], [3], []):
        wanted = [row for row in prompts if row.number in numbers]
        assert list(prompts.select(numbers)) == list(elsewhere.select(numbers)) == wanted
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in (0, 2, 3):
            asked.append(number)
            yield number

    rows = prompts.select(numbers())
    next(rows)
    assert asked == [0]  # the next one is drawn when its row is wanted
    second.write_text("[]")
    with pytest.raises(SantagenError, match="changed while it was being read"):
        list(elsewhere.select([2, 3]))
