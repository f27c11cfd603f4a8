from __future__ import annotations

import json
from pathlib import Path

import pytest

from santagen.errors import SantagenError
from santagen.evaluation.files import FORMATS, Sample, read_samples, write_samples
from santagen.evaluation.tasks import Task
from tests.evaluation.conftest import ROWS, write_rows

SAMPLES = [
    Sample(row["task_id"], index, text)
    for row in ROWS
    for index, text in enumerate(
        [row["canonical_solution"], "    return None\n", "    x = '\u2028'\n"]
    )
]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_comes_back_as_the_same_programs(
    task: Task, tmp_path: Path, form: str
) -> None:
    name = {"samples": "s.jsonl", "evalplus": "e.jsonl", "bigcode": "generations_mini.json"}.get(
        form, "folder"
    )
    write_samples(tmp_path / name, SAMPLES, task, form)
    found = read_samples(tmp_path / name, task)
    problems = task.by_id()

    def programs(samples: object) -> list[tuple[str, int, str]]:
        return sorted((s.task_id, s.index, s.program_for(problems[s.task_id])) for s in samples)  # type: ignore[attr-defined]

    assert found.format == form and found.echoes == 0
    assert programs(found.samples) == programs(SAMPLES)


def test_santagens_own_output_and_human_evals_results_are_read(task: Task, tmp_path: Path) -> None:
    rows = [
        {
            "task_id": "Mini/0",
            "index": 4,
            "completion": " a",
            "finish_reason": "stop",
            "result": "passed",
            "passed": True,
        },
        {"task_id": "Mini/0", "completion": "  b", "completion_id": 7},
    ]
    found = read_samples(write_rows(tmp_path / "s.jsonl", rows), task)
    assert [(s.index, s.completion) for s in found.samples] == [(4, " a"), (5, "  b")]
    assert found.samples[0].extra == {"finish_reason": "stop"}


def test_a_repeated_prompt_is_dropped_and_counted(task: Task, tmp_path: Path) -> None:
    prompt = ROWS[1]["prompt"]
    rows = [
        {"task_id": "Mini/1", "completion": text}
        for text in (prompt + "return 1", prompt.rstrip() + "\n    return 1")
    ]
    found = read_samples(write_rows(tmp_path / "s.jsonl", rows), task)
    assert found.echoes == 2
    assert [s.completion for s in found.samples] == ["return 1"] * 2  # the same program either way


def test_bigcode_lists_keep_their_places_for_some_problems(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "generations_mini.json"
    some = task.only(["Mini/1"])
    write_samples(path, [Sample("Mini/1", 0, "return 5\n")], some, "bigcode")
    assert json.loads(path.read_text()) == [[], [some.problems[0].prompt + "return 5\n"]]
    assert [s.task_id for s in read_samples(path, task).samples] == ["Mini/1"]


def test_bigcode_lists_are_prompt_and_completion_by_order(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(
        json.dumps(
            [[ROWS[0]["prompt"].strip() + "\n    return 4"], ["import os\ndef first(x): pass"]]
        )
    )
    first, second = read_samples(path, task).samples
    assert (first.task_id, first.completion, first.program) == ("Mini/0", "    return 4", None)
    assert second.program == "import os\ndef first(x): pass"
    path.write_text(json.dumps([["x"]] * 4))
    with pytest.raises(SantagenError, match="4 problems, and task mini has 3"):
        read_samples(path, task)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no samples"),
        ([{"task_id": "Mini/7", "completion": "x"}], "row 1: task mini has no problem Mini/7"),
        ([{"task_id": "Mini/0"}], "no text in `completion`"),
        ([{"task_id": "Mini/0", "completion": None}], "no text in `completion`"),
        ([{"task_id": "Mini/0", "index": 1, "completion": "x"}] * 2, "sample 1 of Mini/0 twice"),
    ],
)
def test_bad_sample_files_are_named_by_row(
    task: Task, tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(SantagenError, match=message):
        read_samples(write_rows(tmp_path / "s.jsonl", rows), task)


def test_a_broken_line_is_named(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"task_id": "Mini/0", "completion": "x"}\n{"task_id": "Mini/0", "comp')
    with pytest.raises(SantagenError, match="line 2: not JSON"):
        read_samples(path, task)
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(SantagenError, match="neither a list of generations"):
        read_samples(tmp_path / "x.json", task)
