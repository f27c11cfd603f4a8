"""What a run's verdicts add up to: scores with intervals, counts per problem, failure classes.

Pure arithmetic on verdicts; `result` writes it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from santagen.evaluation.pass_at_k import Estimate, estimate, useful_ks
from santagen.evaluation.runner import Verdict
from santagen.evaluation.statistics import sample_statistics
from santagen.evaluation.tasks import Task


def summarise(
    task: Task,
    verdicts: Iterable[Verdict],
    *,
    greedy: bool = False,
    ks: Sequence[int] = (1, 10, 100),
) -> dict[str, Any]:
    """The part of RESULT.json that follows from the verdicts alone."""
    by_problem: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_problem.setdefault(verdict.sample.task_id, []).append(verdict)
    order = [problem.task_id for problem in task.problems if problem.task_id in by_problem]
    problems = {task_id: _problem_summary(by_problem[task_id]) for task_id in order}
    missing = [problem.task_id for problem in task.problems if problem.task_id not in by_problem]
    counts = [(problem["n"], problem["c"]) for problem in problems.values()]
    summary: dict[str, Any] = {
        "task": task.name,
        "partial": bool(missing) or task.partial,
        "missing": missing,
        "pass_at_k": {},
    }
    if task.runs_programs:
        for k in useful_ks(counts, ks):
            found = estimate(counts, k, greedy=greedy)
            if found is not None:
                summary["pass_at_k"][str(k)] = found.as_json()
    if task.infilling:
        matches = exact_match(by_problem.values(), greedy)
        summary["exact_match"] = None if matches is None else matches.as_json()
    classes: Counter[str] = Counter()
    for problem in problems.values():
        classes.update(problem["classes"])
    extras = (verdict.sample.extra for group in by_problem.values() for verdict in group)
    generation = sample_statistics(extras)
    return {
        **summary,
        "classes": dict(sorted(classes.items())),
        "generation": generation if len(generation) > 1 else None,
        "problems": problems,
    }


def exact_match(groups: Iterable[Sequence[Verdict]], greedy: bool = False) -> Estimate | None:
    """The share of answers that are the original text, with the intervals of pass@1."""
    counts = [
        (len(group), sum(verdict.exact_match is True for verdict in group)) for group in groups
    ]
    return estimate(counts, 1, greedy=greedy)


def _problem_summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    classes = Counter(verdict.kind for verdict in verdicts)
    exceptions = Counter(verdict.exception for verdict in verdicts if verdict.kind == "exception")
    summary: dict[str, Any] = {
        "n": len(verdicts),
        "c": sum(verdict.passed for verdict in verdicts),
        "classes": dict(sorted(classes.items())),
    }
    if exceptions:
        summary["exceptions"] = dict(sorted(exceptions.items()))
    if any(verdict.exact_match is not None for verdict in verdicts):
        summary["exact"] = sum(verdict.exact_match is True for verdict in verdicts)
    if any(verdict.in_process for verdict in verdicts):
        summary["in_process"] = True
    return summary
