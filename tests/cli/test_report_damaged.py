"""`santagen report` on files with a field of another kind: a page or one message, never a fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from santagen.cli.report_inputs import read_report
from santagen.errors import SantagenError
from santagen.evaluation.statistics import sample_statistics
from santagen.report.page import render
from tests.cli.report_pages import make_result

ODD = [None, 0, -1, True, "x", [], [None], {}, {"x": None}, float("nan"), 10**400]
GONE = object()
MANIFEST = {
    "format_version": 1, "model": "tiny", "complete": True, "counts": {"samples": 3},
    "run": {"started": "now", "seconds": 1.5, "generated_tokens": 9, "tokens_per_second": 6.0},
}  # fmt: skip
ANSWER = {
    "id": "c", "custom_id": "1", "error": None,
    "response": {
        "status_code": 200,
        "body": {"choices": [{"index": 0, "finish_reason": "stop"}],
                 "usage": {"completion_tokens": 2}},
    },
}  # fmt: skip


def damaged(whole: Any) -> Iterator[Any]:
    """`whole` with one of its parts, at any depth, left out or replaced by something odd."""
    for path in list(places(whole))[1:]:
        for odd in [*ODD, GONE]:
            made = copy.deepcopy(whole)
            holder = made
            for key in path[:-1]:
                holder = holder[key]
            if odd is GONE:
                del holder[path[-1]]
            else:
                holder[path[-1]] = odd
            yield made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    listed = value if isinstance(value, list) else []
    for key, part in value.items() if isinstance(value, dict) else enumerate(listed):
        yield from places(part, (*path, key))


def survives(*files: Path) -> bool:
    """Whether there is a page; a refusal has a hint, and anything else is raised."""
    try:
        return render(read_report(map(str, files))).startswith("<!doctype html>")
    except SantagenError as error:
        assert error.hint
        return False


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return make_result(tmp_path / "a.json", {"Mini/0": (2, 1)})


def test_any_field_of_a_result(result: Path, tmp_path: Path) -> None:
    other = make_result(tmp_path / "b.json", {"Mini/0": (2, 2)})
    samples = result.with_name("a.samples.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    samples.unlink()
    whole = json.loads(result.read_text())
    whole |= {"classes": {"passed": 1, "assertion": 1}, "exact_match": whole["pass_at_k"]["1"],
              "generation": sample_statistics(rows)}  # fmt: skip
    whole["problems"]["Mini/0"] |= {"exact": 0, "exceptions": {"ValueError": 1}}
    pages = []
    for made in damaged(whole):
        result.write_text(json.dumps(made))
        pages.append(survives(result, other))
    assert True in pages and False in pages


def test_no_scores_at_all(result: Path) -> None:
    for scores in (None, {}):
        whole = json.loads(result.read_text()) | {"pass_at_k": scores}
        result.write_text(json.dumps(whole))
        assert survives(result)


def test_any_field_of_a_sample(result: Path) -> None:
    samples = result.with_name("a.samples.jsonl")
    row = json.loads(samples.read_text().splitlines()[0])
    for made in damaged(row):
        samples.write_text(json.dumps(made) + "\n")
        assert survives(result)


def test_any_field_of_an_answer_or_a_manifest(tmp_path: Path) -> None:
    output = tmp_path / "o.jsonl"
    for made in damaged(ANSWER):
        output.write_text(json.dumps(made) + "\n")
        assert survives(output)
    for made in damaged(MANIFEST):
        output.with_name("o.jsonl.manifest.json").write_text(json.dumps(made))
        assert survives(output)
