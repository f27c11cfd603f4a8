"""Two result files side by side: the difference of pass@k, problem by problem.

The same problems were put to both, so the differences are paired: what makes a problem hard cancels
out. The interval is a bootstrap over problems, the p-value that of flipping the signs of the
differences at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from santagen.errors import SantagenError
from santagen.evaluation.pass_at_k import bootstrap_interval, pass_at_k, useful_ks

FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A for one k. `better` counts problems that B does better on."""

    k: int
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    better: int
    worse: int
    equal: int

    def as_json(self) -> dict[str, Any]:
        names = ("a", "b", "difference", "p_value", "better", "worse", "equal")
        return {**{name: getattr(self, name) for name in names}, "interval": list(self.interval)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Over the problems that both results have; `only_a` and `only_b` are the others."""

    task: str
    problems: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[Difference, ...]
    changed: tuple[
        tuple[str, float], ...
    ]  # task ids with their difference of pass@1, largest first

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "problems": self.problems,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "pass_at_k": {str(item.k): item.as_json() for item in self.differences},
            "changed": dict(self.changed),
        }


def compare(a: dict[str, Any], b: dict[str, Any], ks: Sequence[int] = (1, 10, 100)) -> Comparison:
    """Compare two parsed RESULT.json; raises SantagenError where they have nothing in common."""
    if a["task"] != b["task"]:
        raise SantagenError(
            f"The results are of different tasks, {a['task']} and {b['task']}.",
            "Compare two of the same task.",
        )
    first, second = a["problems"], b["problems"]
    both = [task_id for task_id in first if task_id in second]
    if not both:
        raise SantagenError(
            "The results have no problem in common.", "Compare runs over the same problems."
        )
    pairs = [(_counts(first[task_id]), _counts(second[task_id])) for task_id in both]
    usable = useful_ks([counts for pair in pairs for counts in pair], ks)
    differences = tuple(_difference(pairs, k) for k in usable)
    moved = [
        (task_id, two[1] / two[0] - one[1] / one[0])
        for task_id, (one, two) in zip(both, pairs, strict=True)
    ]
    changed = sorted((item for item in moved if item[1]), key=lambda item: (-abs(item[1]), item[0]))
    return Comparison(
        a["task"],
        len(both),
        tuple(task_id for task_id in first if task_id not in second),
        tuple(task_id for task_id in second if task_id not in first),
        differences,
        tuple(changed),
    )


def _counts(problem: dict[str, Any]) -> tuple[int, int]:
    return problem["n"], problem["c"]


def _difference(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]], k: int) -> Difference:
    a = np.array([pass_at_k(*one, k) for one, _ in pairs])
    b = np.array([pass_at_k(*two, k) for _, two in pairs])
    gap = b - a
    mean = float(gap.mean())
    draws = np.random.Generator(np.random.PCG64(1))
    extreme = 0
    for _ in range(FLIPS // 500):
        signs = draws.integers(0, 2, size=(500, len(gap)), dtype=np.int8) * 2.0 - 1.0
        extreme += int((np.abs(signs @ gap) / len(gap) >= abs(mean) - 1e-12).sum())
    return Difference(
        k,
        float(a.mean()),
        float(b.mean()),
        mean,
        bootstrap_interval(gap),
        (extreme + 1) / (FLIPS + 1),
        int((gap > 0).sum()),
        int((gap < 0).sum()),
        int((gap == 0).sum()),
    )
