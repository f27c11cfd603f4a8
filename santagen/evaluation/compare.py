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
from santagen.evaluation.pass_at_k import (
    DRAWN_AT_ONCE,
    bootstrap_interval,
    pass_at_k,
    useful_ks,
)

FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A for one score, in shares of 1. `better` counts problems that B does better on."""

    name: str  # "pass@10", "exact match"
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
    """Over the problems that both results have; `only_a` and `only_b` are the others. `partial`
    names the results ("a", "b") that lack problems of their task.
    """

    task: str
    problems: int
    partial: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    pass_at_k: dict[int, Difference]
    exact_match: Difference | None  # where both results have it
    changed: tuple[tuple[str, float], ...]  # task ids with their difference, largest first
    changed_in: str  # what that is a difference of

    @property
    def differences(self) -> list[Difference]:
        """All scores that are compared."""
        return [*self.pass_at_k.values(), *filter(None, [self.exact_match])]

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "problems": self.problems,
            "partial": list(self.partial),
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "pass_at_k": {str(k): item.as_json() for k, item in self.pass_at_k.items()},
            "exact_match": None if self.exact_match is None else self.exact_match.as_json(),
            "changed": dict(self.changed),
            "changed_in": self.changed_in,
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
    exact = None
    if all("exact" in side[task_id] for side in (first, second) for task_id in both):
        matches = [tuple(_counts(side[i], "exact") for side in (first, second)) for i in both]
        exact = _difference("exact match", matches, 1)
    compared = _are_compared(a, b)
    moved = [
        (task_id, two[1] / two[0] - one[1] / one[0])
        for task_id, (one, two) in zip(both, pairs, strict=True)
    ]
    changed = sorted((item for item in moved if item[1]), key=lambda item: (-abs(item[1]), item[0]))
    return Comparison(
        task=a["task"],
        problems=len(both),
        partial=tuple(name for name, result in (("a", a), ("b", b)) if result.get("partial")),
        only_a=tuple(task_id for task_id in first if task_id not in second),
        only_b=tuple(task_id for task_id in second if task_id not in first),
        pass_at_k={} if compared else {k: _difference(f"pass@{k}", pairs, k) for k in usable},
        exact_match=exact,
        changed=tuple(changed),
        changed_in="exact match" if compared else "pass@1",
    )


def _are_compared(*results: dict[str, Any]) -> bool:
    """Whether no program was run: answers passed where they are the original text."""
    if any(result.get("pass_at_k") for result in results):
        return False
    problems = [problem for result in results for problem in result["problems"].values()]
    return all(problem.get("exact") == problem["c"] for problem in problems)


def _counts(problem: dict[str, Any], right: str = "c") -> tuple[int, int]:
    return problem["n"], problem[right]


def _difference(name: str, pairs: Sequence[Sequence[tuple[int, int]]], k: int) -> Difference:
    a = np.array([pass_at_k(*one, k) for one, _ in pairs])
    b = np.array([pass_at_k(*two, k) for _, two in pairs])
    gap = b - a
    mean = float(gap.mean())
    draws = np.random.Generator(np.random.PCG64(1))
    extreme = 0
    for _ in range(FLIPS // DRAWN_AT_ONCE):
        signs = draws.integers(0, 2, size=(DRAWN_AT_ONCE, len(gap)), dtype=np.int8) * 2.0 - 1.0
        extreme += int((np.abs(signs @ gap) / len(gap) >= abs(mean) - 1e-12).sum())
    return Difference(
        name,
        a=float(a.mean()),
        b=float(b.mean()),
        difference=mean,
        interval=bootstrap_interval(gap),
        p_value=(extreme + 1) / (FLIPS + 1),
        better=int((gap > 0).sum()),
        worse=int((gap < 0).sum()),
        equal=int((gap == 0).sum()),
    )
