"""What the output holds, in which order, and what a resumed run makes of it."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santagen.errors import SantagenError
from santagen.io.manifest import manifest_path, read_manifest
from santagen.io.output_place import errors_path
from santagen.request import Request, SampleOutput, SamplingParams, TokenLogprob
from tests.io.output_runs import (
    IDENTITY,
    failure,
    files,
    open_writer,
    row_id,
    run,
    sample,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.jsonl"
    run(path)
    return path


def test_a_finished_file_is_in_input_order_with_the_standard_fields(whole: Path) -> None:
    found = records(whole)
    assert [(r["task_id"], r["index"]) for r in found] == [
        (row_id(n), i) for n in (0, 2, 4, 5) for i in (0, 1)
    ]
    assert found[0] == {
        "task_id": 0,
        "index": 0,
        "completion": "text 0 0\n",
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": {"prompt_tokens": 3, "completion_tokens": 3},
    }
    assert records(errors_path(whole)) == [
        {"task_id": f"t/{n}", "line": n + 1, "error": "bad", "hint": "mend"} for n in (1, 3)
    ]
    names = sorted(path.name for path in whole.parent.iterdir())
    assert names == ["whole.jsonl", "whole.jsonl.errors.jsonl", "whole.jsonl.manifest.json"]


def test_the_manifest_counts_and_says_that_it_is_complete(whole: Path) -> None:
    manifest = read_manifest(whole)
    assert manifest is not None and manifest["complete"] is True
    assert manifest["counts"] == {"samples": 8, "failed_rows": 2}
    assert manifest["run"]["seconds"] == 1.0 and manifest["run"]["started"]
    assert manifest["identity"]["sampling"] == {"seed": 0, "stop": ["a"]}


def test_no_failures_leave_no_errors_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path) as writer:
        writer.write(sample(0, 0))
        writer.finish([], {})
    assert not errors_path(path).exists()


def test_a_run_of_failures_only_leaves_an_empty_output(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for resume in (False, True):
        with open_writer(path, resume=resume) as writer:
            writer.fail(failure(3))
            writer.fail(failure(3))  # another sample of it
            writer.finish([], {})
        assert path.read_bytes() == b""
        assert len(records(errors_path(path))) == 1


def test_unordered_stays_as_it_ended_until_a_resume_orders_it(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "out.jsonl"
    run(path, order=5, unordered=True)
    ended = path.read_bytes()
    assert ended != whole.read_bytes() and sorted(ended) == sorted(whole.read_bytes())
    run(path, resume=True, unordered=True)
    assert path.read_bytes() == ended
    run(path, resume=True)
    assert files(path) == files(whole)


def test_resuming_a_complete_run_touches_nothing(whole: Path) -> None:
    everything = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.parent.iterdir()}
    run(whole, resume=True)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in whole.parent.iterdir()} == everything


@pytest.mark.parametrize("resume", [True, False], ids=["resume", "overwrite"])
def test_a_start_that_fails_leaves_the_earlier_run_alone(whole: Path, resume: bool) -> None:
    before = files(whole), read_manifest(whole)
    with open_writer(whole, resume=resume, overwrite=not resume) as writer:
        writer.fail(failure(4))  # and then the model does not load
    assert (files(whole), read_manifest(whole)) == before
    fresh = whole.with_name("fresh.jsonl")
    open_writer(fresh).close()
    assert not [p for p in whole.parent.iterdir() if p.name.startswith("fresh")]


def test_the_manifest_is_there_before_the_first_sample_ends(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path) as writer:
        writer.write(sample(4, 1))
        manifest = read_manifest(path)
        assert manifest is not None and manifest["complete"] is False
        assert len(records(path)) == 1  # flushed


def test_the_runs_before_a_resume_stay_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path) as writer:
        writer.write(sample(4, 1))
    run(path, resume=True)
    manifest = read_manifest(path)
    assert manifest is not None
    assert [set(r) for r in manifest["earlier_runs"]] == [{"started"}]
    assert manifest["counts"]["samples"] == 8


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_an_earlier_run_left_a_resume_ends_with_the_same_bytes(
    data: st.DataObject,
) -> None:
    form = data.draw(st.sampled_from(["jsonl", "openai-batch"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        run(path, format=form)
        wanted = files(path)
        lines = data.draw(st.permutations(wanted[0].splitlines(keepends=True)))
        left = b"".join(lines)
        path.write_bytes(left[: data.draw(st.integers(0, len(left)))])
        errors = wanted[1]
        errors_path(path).write_bytes(errors[: data.draw(st.integers(0, len(errors)))])
        run(path, order=data.draw(st.integers(0, 99)), format=form, resume=True)
        assert files(path) == wanted


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT | st.integers(), unique_by=str, min_size=1, max_size=5), TEXT)
def test_any_id_and_any_text_survive(ids: list[str | int], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        made = [
            SampleOutput(Request(i, n, (1,), SamplingParams()), 0, text, (), "length", None, 1)
            for n, i in enumerate(ids)
        ]
        with open_writer(path) as writer:
            for output in reversed(made):
                writer.write(output)
        assert [json.loads(line)["completion"] for line in path.open(encoding="utf-8")] == [
            text for _ in ids
        ]
        assert len(path.read_text(encoding="utf-8").splitlines()) == len(ids)
        with open_writer(path, resume=True) as writer:
            assert len(writer.done) == len(ids)
            assert all((i, 0) in writer.done and (str(i), 0) in writer.done for i in ids)
            assert (ids[0], 1) not in writer.done
            writer.finish(((i, n) for n, i in enumerate(ids)), {})
        assert [r["task_id"] for r in records(path)] == ids


def test_fragile_text_is_escaped_and_optional_fields_follow(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    text = "a\u2028b\u2029c\x85d\x1b]0;x\x07\x9b2J\x7f\x0be\x0cf\x1cg\ud800h\r\n\ti \x00 é"
    token = TokenLogprob(4, -0.5, ((4, -0.5), (9, float("-inf"))))
    output = sample(1, 0, text, prompt_text="p", truncated_tokens=3, keep={"k": [1], "index": "no"})
    with open_writer(path, echo=True, token_ids=True) as writer:
        writer.write(dataclasses.replace(output, logprobs=(token,)))
        writer.finish([], {})
    shown = path.read_text("utf-8").removesuffix("\n")
    assert shown.isprintable(), "a terminal would obey it"
    assert "é".encode() in path.read_bytes()
    (record,) = records(path)
    assert record["completion"] == text
    assert (record["prompt"], record["token_ids"], record["truncated_tokens"]) == ("p", [4, 5], 3)
    assert record["logprobs"] == [{"id": 4, "logprob": -0.5, "top": [[4, -0.5], [9, None]]}]
    assert record["k"] == [1] and record["index"] == 0


def test_without_a_tokenizer_the_ids_are_always_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path) as writer:
        writer.write(dataclasses.replace(sample(0, 0), completion=None))
        writer.finish([], {})
    (record,) = records(path)
    assert record["completion"] is None and record["token_ids"] == [4, 5]


def test_the_batch_form_answers_in_kind(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path, format="openai-batch") as writer:
        writer.write(dataclasses.replace(sample(5, 1), stop_reason="\n"))
        assert not path.exists()  # the row waits for its other sample
        writer.write(sample(5, 0))
        writer.fail(failure(3))
        writer.finish([], {})
    (record,) = records(path)
    assert set(record) == {"id", "custom_id", "response", "error"}
    assert record["custom_id"] == "t/5" and record["error"] is None
    assert record["response"]["status_code"] == 200
    body = record["response"]["body"]
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert [c["text"] for c in body["choices"]] == ["text 5 0\n", "text 5 1\n"]
    assert [c["stop_reason"] for c in body["choices"]] == [None, "\n"]
    assert body["usage"]["completion_tokens"] == 6
    (error,) = records(errors_path(path))
    assert error["custom_id"] == "t/3" and error["response"] is None
    assert "bad" in error["error"]["message"]
    manifest = read_manifest(path)
    assert manifest is not None and manifest["counts"]["samples"] == 2


def test_an_output_that_exists_is_refused_without_a_flag(whole: Path) -> None:
    before = files(whole)
    with pytest.raises(SantagenError, match="exists") as caught:
        open_writer(whole)
    assert "--resume" in caught.value.hint and "--overwrite" in caught.value.hint
    assert caught.value.exit_code == 2
    run(whole, order=7, overwrite=True)
    assert files(whole) == before


def test_overwrite_leaves_nothing_of_the_old_run(whole: Path) -> None:
    with open_writer(whole, overwrite=True, identity={"model": "other"}) as writer:
        writer.write(sample(0, 0))
    assert len(records(whole)) == 1
    assert errors_path(whole).read_bytes() == b""
    manifest = read_manifest(whole)
    assert manifest is not None and manifest["identity"] == {"model": "other"}
    assert manifest["earlier_runs"] == []


def test_other_settings_are_refused_by_name(whole: Path) -> None:
    before = files(whole)
    other = {**IDENTITY, "sampling": {"seed": 7, "stop": ["a"]}}
    with pytest.raises(SantagenError, match=r"sampling\.seed was 0 and is 7"):
        open_writer(whole, resume=True, identity=other)
    assert files(whole) == before
    # With no sample there is nothing to mix.
    whole.write_bytes(b"")
    open_writer(whole, resume=True, identity=other).close()
    whole.unlink()
    open_writer(whole, resume=True, identity=other).close()


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "[]",
        "{}",
        '{"task_id": 1}',
        '{"task_id": 1, "index": "x"}',
        '{"task_id": 1, "index": -1, "finish_reason": "stop"}',
        '{"task_id": 1, "index": 99999999999999, "finish_reason": "stop"}',
        '{"task_id": 1, "index": "7", "finish_reason": "stop"}',
        '{"task_id": 1, "index": 7.5, "finish_reason": "stop"}',
        '{"task_id": 1, "index": true, "finish_reason": "stop"}',
        '{"task_id": 1, "index": 7}',
        '{"task_id": null, "index": 7, "finish_reason": "stop"}',
        '{"task_id": [1], "index": 7, "finish_reason": "stop"}',
        '{"task_id": 0, "index": 0, "finish_reason": "stop"}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_a_line_of_something_else_is_named(whole: Path, line: str) -> None:
    with whole.open("a") as file:
        file.write(line + "\n")
    before = files(whole)
    with pytest.raises(SantagenError, match="line 9 is no record of this run"):
        open_writer(whole, resume=True)
    assert files(whole) == before


def test_a_sample_of_a_row_that_is_not_in_the_input_is_refused(whole: Path) -> None:
    with (
        open_writer(whole, resume=True) as writer,
        pytest.raises(SantagenError, match="not in the input"),
    ):
        writer.finish([(0, 0)], {})


def test_a_resume_needs_the_manifest(whole: Path) -> None:
    manifest_path(whole).unlink()
    before = whole.read_bytes()
    with pytest.raises(SantagenError, match=r"whole\.jsonl\.manifest\.json"):
        open_writer(whole, resume=True)
    assert whole.read_bytes() == before
