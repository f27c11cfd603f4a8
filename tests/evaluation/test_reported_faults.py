"""Faults that users of other evaluators reported: a score that the model isn't to blame for."""

from __future__ import annotations

import pytest

from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample
from santagen.evaluation.problems import Problem
from santagen.evaluation.runner import Scorer, score
from santagen.evaluation.tasks import Task


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        ("    if n:\n\treturn 2 * n\n", "TabError"),
        ("    x = 2\n  return x * n\n", "unindent"),
        ("    return\u00a02 * n\n", "U+00A0"),
    ],
)
def test_a_program_that_can_not_be_read_says_why(
    task: Task, pool: Pool, completion: str, words: str
) -> None:
    (verdict,) = score([Sample("Mini/0", 0, completion)], Scorer(task, pool))
    assert verdict.kind == "syntax" and words in f"{verdict.result} {verdict.exception}"


def test_bodies_with_blank_lines_and_inner_functions_pass(task: Task, pool: Pool) -> None:
    body = "    def twice(x):\n\n        return x + x\n\n    return twice(n)\n"
    (verdict,) = score([Sample("Mini/0", 0, body)], Scorer(task, pool))
    assert verdict.passed


def test_blank_lines_around_an_infilled_line_are_no_difference() -> None:
    problem = Problem("x", "", "a\n", "    y = x\n", "", suffix="c\n")
    assert problem.exact_match(" \n\n    y = x") is True
    assert problem.exact_match("    y = x\n  \n") is True
    assert problem.exact_match(" \n") is False
    assert problem.exact_match("    y = x\n    z = x\n") is False
