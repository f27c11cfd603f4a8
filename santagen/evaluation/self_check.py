"""Before any score: known right programs must all pass, and known wrong ones must all fail.

A sandbox that fails everything, a missing module or a broken clock shows here, as an error and
never as 0 %. It also settles two things about single problems: whose tests have to run in the
program's own process, and whose right solution is slower than the usual limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from santagen.errors import SantagenError
from santagen.evaluation.decoys import decoys, plain
from santagen.evaluation.execution import Pool
from santagen.evaluation.languages import find_language
from santagen.evaluation.outcomes import Outcome, ProgramTest
from santagen.evaluation.problems import Problem
from santagen.evaluation.tasks import Task

WRONG_PROGRAMS = 20
SLOW_FACTOR = 10  # how much longer a canonical solution may take before it counts as broken
GARBAGE = "@@@ ) this is no program in any language ( @@@\n"
_SMOKE = ProgramTest("def right():\n    return 1\n", test="assert right() == 1", entry=("right",))


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What was run and what it showed; `task` is the task with its problems settled."""

    task: Task
    right: int = 0
    wrong: int = 0
    in_process: tuple[str, ...] = ()
    slow: dict[str, float] = field(default_factory=dict)  # task_id: the time limit it got

    def as_json(self) -> dict[str, Any]:
        return {"right_passed": self.right, "wrong_failed": self.wrong, "slow": self.slow}


def self_check(task: Task, pool: Pool) -> SelfCheck:
    """Run it; raises SantagenError, and then nothing may be scored."""
    if not task.runs_programs:
        return SelfCheck(task)
    settled, right, slow = _check_canonical(task, pool)
    task = replace(task, problems=tuple(settled[problem.task_id] for problem in task.problems))
    right += _check_smoke(task, pool)
    wrong = _check_wrong(task, pool)
    marked = tuple(problem.task_id for problem in task.problems if problem.mode == "in_process")
    return SelfCheck(task, right, wrong, marked, slow)


def _check_canonical(task: Task, pool: Pool) -> tuple[dict[str, Problem], int, dict[str, float]]:
    """Problems as they turned out, how many different right programs passed, and the slow ones."""
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in task.problems:
        if problem.canonical is not None:
            alike.setdefault((problem.program(problem.canonical), problem.test), []).append(problem)
    groups = list(alike.values())
    outcomes = pool.run([_canonical_test(group[0]) for group in groups])
    settled = {problem.task_id: problem for problem in task.problems}
    slow: dict[str, float] = {}
    for group, outcome in zip(groups, outcomes, strict=True):
        if outcome.passed:
            continue
        change = _second_chance(group[0], outcome, pool)
        if "timeout" in change:
            slow.update((problem.task_id, change["timeout"]) for problem in group)
        for problem in group:
            settled[problem.task_id] = replace(problem, **change)
    return settled, len(groups), slow


def _canonical_test(problem: Problem) -> ProgramTest:
    return problem.testing(problem.program(problem.canonical or ""))


def _second_chance(problem: Problem, outcome: Outcome, pool: Pool) -> dict[str, Any]:
    """What has to change for the problem's own solution to pass; raises SantagenError if nothing
    helps.
    """
    if outcome.kind == "timeout":
        patient = replace(problem, timeout=problem.timeout * SLOW_FACTOR)
        again = pool.run([_canonical_test(patient)])[0]
        if again.passed:
            return {"timeout": patient.timeout}
    elif problem.mode == "pipe":
        change: dict[str, Any] = {"mode": "in_process", "test": plain(problem.test)}
        beside = replace(problem, **change)
        if pool.run([_canonical_test(beside)])[0].passed:
            return {**change, "decoys": _working_decoys(beside, pool)}
    raise SantagenError(
        f"The self-check failed: the solution of {problem.task_id} ended with {outcome.result!r}.",
        "Nothing was scored. Check the problem file, and the limits of memory and time here.",
    )


def _working_decoys(problem: Problem, pool: Pool) -> tuple[str, ...]:
    """Those wrong tests that the right solution fails."""
    wrong = decoys(problem.test)
    tests = [replace(_canonical_test(problem), test=test) for test in wrong]
    outcomes = pool.run(tests)
    return tuple(test for test, found in zip(wrong, outcomes, strict=True) if not found.passed)


def _check_smoke(task: Task, pool: Pool) -> int:
    """A right program of our own: for data without solutions, and per language."""
    tests = [_SMOKE]
    commands = {problem.language: problem for problem in task.problems if problem.mode == "command"}
    for name, problem in commands.items():
        tests.append(replace(problem, test="").testing(find_language(name).right))
    for test, outcome in zip(tests, pool.run(tests), strict=True):
        if not outcome.passed:
            what = test.commands[-1][0] if test.commands else "Python"
            raise SantagenError(
                f"The self-check failed: a right program for {what} ended with {outcome.result!r}.",
                f"Nothing was scored. See that {what} works, inside the limits of the sandbox.",
            )
    return len(tests)


def _check_wrong(task: Task, pool: Pool) -> int:
    step = max(1, len(task.problems) // WRONG_PROGRAMS)
    chosen: Sequence[Problem] = task.problems[::step][:WRONG_PROGRAMS]
    tests = [problem.testing(problem.wrong_program() or GARBAGE) for problem in chosen]
    for problem, outcome in zip(chosen, pool.run(tests), strict=True):
        if outcome.passed:
            raise SantagenError(
                f"The self-check failed: a wrong program passes the test of {problem.task_id}.",
                "Nothing was scored. The problem's test checks nothing, or the sandbox is broken.",
            )
    return len(tests)
