"""Tests that run beside the program: who forges their verdict is found out by decoys."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from santagen.evaluation.decoys import decoys, plain
from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample
from santagen.evaluation.outcomes import Outcome, ProgramTest
from santagen.evaluation.runner import Scorer, score
from santagen.evaluation.self_check import self_check
from santagen.evaluation.tasks import Task, load_task
from tests.evaluation.conftest import write_rows

# An object of the test's own class can't cross, so this test runs beside the program.
TEST = """
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

def check(candidate):
    assert candidate(Point(3, 4)) == 7
    assert candidate(Point(-1, 4)) == 3
    assert candidate(Point(0, 0)) == 0
"""
ROW = {
    "task_id": "Mini/0", "prompt": "def total(p):\n", "entry_point": "total",
    "canonical_solution": "    return p.x + p.y\n", "test": TEST,
}  # fmt: skip

SEND = (
    "def say(message):\n    import json, os, struct\n    body = json.dumps(message).encode()\n"
    "    os.write(3, struct.pack('<I', len(body)) + body)\n    os._exit(0)\n"
)
FORGERIES = {
    "says_ready_with_the_nonce_of_a_frame": SEND
    + "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    for value in list(frame.f_locals.values()):\n"
    "        if isinstance(value, dict) and 'nonce' in value: say({'ready': value['nonce']})\n"
    "    frame = frame.f_back\n",
    "runs_no_test": "import santagen.evaluation.sandbox.program as p\n"
    "p._execute = lambda *a: None\n",
    "asserts_nothing": "import ast, santagen.evaluation.sandbox.program as p\n"
    "class Drop(ast.NodeTransformer):\n    def visit_Assert(self, node): return ast.Pass()\n"
    "def less(tree, *a, **k):\n"
    "    return compile(ast.fix_missing_locations(Drop().visit(tree)), *a, **k)\n"
    "p.compile = less\n",
    "believes_itself": "import santagen.evaluation.sandbox.program as p\n"
    "p._strictly_equal = lambda a, b: True\n",
    "reads_the_answers_in_the_test": "import sys, re\nframe = sys._getframe()\n"
    "while 'job' not in frame.f_locals: frame = frame.f_back\n"
    "answers = [int(n) for n in re.findall(r'== (-?[0-9]+)', frame.f_locals['job']['test'])]\n"
    "def total(p):\n    return answers.pop(0)\n",
    "swallows_the_assertion": "import builtins\n"
    "class Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\nimport sys\n"
    "def hook(frame, event, arg):\n    if event == 'exception': say(1)\n    return hook\n"
    "def total(p):\n    import os\n    os._exit(0)\n",
}  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return load_task("mini", write_rows(tmp_path / "p.jsonl", [ROW]))


@pytest.fixture
def settled(task: Task, pool: Pool) -> Task:
    check = self_check(task, pool)
    assert check.in_process == ("Mini/0",)
    return check.task


def judge(task: Task, pool: Pool, program: str, index: int = 0) -> Outcome:
    return pool.run([task.problems[0].testing(program)])[0]


def test_right_and_wrong_programs_get_their_verdicts(settled: Task, pool: Pool) -> None:
    assert len(settled.problems[0].decoys) == 3
    assert judge(settled, pool, "def total(p):\n    return sum((p.y, p.x))\n").passed
    assert judge(settled, pool, "def total(p):\n    return 7\n").kind == "assertion"
    (verdict,) = score([Sample("Mini/0", 0, ROW["canonical_solution"])], Scorer(settled, pool))
    assert verdict.passed and verdict.in_process


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(settled: Task, pool: Pool, name: str) -> None:
    program = "def total(p):\n    return 0\n" + FORGERIES[name]
    outcome = judge(settled, pool, program)
    assert outcome.kind in ("forged", "assertion", "exception"), outcome


def test_without_decoys_some_would(settled: Task, pool: Pool) -> None:
    """The list above holds programs that do forge, so that the decoys are what stops them."""
    problem = settled.problems[0]
    forged = [
        ProgramTest(FORGERIES[name], "in_process", problem.test, problem.entry)
        for name in FORGERIES
    ]
    assert sum(outcome.passed for outcome in pool.run(forged)) >= 3


def test_decoys_look_like_the_test_and_differ_in_one_value() -> None:
    made = decoys("x = 1\nassert f(1) == 2\nassert [3] == g()\nassert h(4)\n")
    assert made == (
        "x = 1\nassert f(1) == 3\nassert [3] == g()\nassert h(4)",
        "x = 1\nassert f(1) == 2\nassert [4] == g()\nassert h(4)",
    )
    assert plain("assert  f(1)==2 # so\n") == "assert f(1) == 2"
    assert decoys("assert f(1)\nassert f(2) == x\n") == ()


@pytest.mark.parametrize(
    "value", ["True", "0", "1e300", "-2.5", "''", "'a'", "[]", "(1,)", "[[1]]", "('a', True)"]
)
def test_a_changed_value_is_another_of_its_type(value: str) -> None:
    (made,) = decoys(f"assert f() == {value}")
    before, after = ast.literal_eval(value), ast.literal_eval(made.partition("== ")[2])
    assert before != after
    assert type(before) is type(after) or (value, after) == ("1e300", 0)
