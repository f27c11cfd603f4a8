"""Programs of other languages: passed by their exit code, held by the same sandbox."""

# ruff: noqa: E501
from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import SantagenError
from santagen.evaluation.execution import Pool
from santagen.evaluation.languages import LANGUAGES
from santagen.evaluation.outcomes import Outcome
from santagen.evaluation.self_check import self_check
from santagen.evaluation.tasks import Task, load_task
from tests.evaluation.conftest import write_rows

BASH = {
    "name": "twice",
    "language": "sh",
    "prompt": "f() {\n",
    "tests": '}\n[[ "$(f 2)" == 4 ]]',
    "stop_tokens": ["\n}"],
}
PROGRAMS = {
    "js": ("function f(x) {\n", "  return x + 1;", "}\nrequire('assert').equal(f(2), 3);"),
    "java": ("class Problem {\n  static int f(int x) {\n", "    return x + 1;",
             "  }\n  public static void main(String[] a) { assert f(2) == 3; }\n}"),
    "rs": ("fn f(x: i32) -> i32 {\n", "    x + 1", "}\nfn main() { assert_eq!(f(2), 3); }"),
    "cpp": ("#include <cassert>\nint f(int x) {\n", "  return x + 1;", "}\nint main() { assert(f(2) == 3); }"),
    "pl": ("sub f { my ($x) = @_;\n", "  return $x + 1;", "}\nexit(f(2) == 3 ? 0 : 1);"),
}  # fmt: skip


def load(tmp_path: Path, row: dict[str, Any]) -> Task:
    return load_task("multipl-e", write_rows(tmp_path / "p.jsonl", [row]))


def run(task: Task, pool: Pool, *completions: str) -> list[Outcome]:
    (problem,) = task.problems
    with Pool(workers=1, tier=pool.sandbox.tier, unsafe=True, readable=task.readable) as own:
        return own.run([problem.testing(problem.program(text)) for text in completions])


def test_the_exit_code_decides(tmp_path: Path, pool: Pool) -> None:
    task = load(tmp_path, BASH)
    outcomes = run(task, pool, "echo $(($1 * 2))", "echo 5", "exit 3 }", "((")
    assert [outcome.passed for outcome in outcomes] == [True, False, False, False]
    assert outcomes[1].exception == "exit code 1"
    assert task.problems[0].stop == ("\n}",)


FORK_BOMB = "f() { f | f & }; f; wait"
HOSTILE_SCRIPTS = [
    "kill -9 -1",
    "kill -9 $PPID",
    "kill -STOP $PPID",
    FORK_BOMB,
    "(setsid sleep 60 &) ; exit 1",
    "echo x > {outside}/made",
    "rm -f {outside}/secret",
    "ln -s {outside} door; echo x > door/made",
    "chmod 777 {outside}/secret",
    "cat {outside}/secret && echo 4",
]


def test_hostile_scripts(tmp_path: Path, pool: Pool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "secret").write_text("s")
    (outside / "secret").chmod(0o644)
    (problem,) = load(tmp_path, BASH).problems
    impatient = dataclasses.replace(problem, timeout=0.5)
    bodies = [body.replace("{outside}", str(outside)) + "\n" for body in HOSTILE_SCRIPTS]
    tests = [impatient.testing(problem.program(body)) for body in bodies]
    bomb = HOSTILE_SCRIPTS.index(FORK_BOMB)
    tests[bomb] = dataclasses.replace(tests[bomb], timeout=10.0)  # it ends long before
    if pool.sandbox.tier == "plain":  # nothing but the user's own limit would end it
        del tests[bomb], bodies[bomb]
    with Pool(workers=4, tier=pool.sandbox.tier, unsafe=True) as own:
        outcomes = own.run(tests)
        assert own.run([problem.testing(problem.program("echo 4"))])[0].passed
    passed = [body for body, found in zip(bodies, outcomes, strict=True) if found.passed]
    assert passed == []
    if pool.sandbox.tier != "plain":
        assert outcomes[bomb].exception == "too many processes", outcomes[bomb]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644


def test_every_program_gets_its_own_verdict(tmp_path: Path, pool: Pool) -> None:
    """Also those that come after one that was stopped before its verdict was there."""
    if pool.sandbox.tier == "plain":
        pytest.skip("nothing but the user's own limit would end the fork bomb")
    (problem,) = load(tmp_path, BASH).problems
    patient = dataclasses.replace(problem, timeout=10.0)
    bodies = [FORK_BOMB, "echo one >&2", "echo 4", "echo two >&2"]
    tests = [patient.testing(problem.program(f"{body}\n")) for body in bodies]
    with Pool(workers=1, tier=pool.sandbox.tier, unsafe=True) as own:
        outcomes = [own.submit(test) for test in tests]
        own.finish()
    found = [(future.result().kind, future.result().message) for future in outcomes]
    bomb = outcomes[0].result()
    assert bomb.exception == "too many processes"
    assert bomb.strays < 5000 and bomb.wall_seconds < 5  # it never gets out of hand
    assert found[1:] == [("exception", "one"), ("passed", ""), ("exception", "two")]


@pytest.mark.parametrize("language", PROGRAMS)
def test_languages_that_are_installed(tmp_path: Path, pool: Pool, language: str) -> None:
    tool = LANGUAGES[language].commands[0][0]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    prompt, right, tests = PROGRAMS[language]
    task = load(
        tmp_path,
        {"name": "a", "language": language, "prompt": prompt, "tests": tests, "stop_tokens": []},
    )
    good, bad = run(task, pool, right, right.replace("1", "2"))
    assert good.passed, good
    assert not bad.passed


def test_self_check_needs_working_tools(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load(tmp_path, BASH)
    assert self_check(task, pool).right == 2
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "bash").write_text("#!/bin/sh\nexit 7\n")
    (fake / "bash").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:/usr/bin:/bin")
    with (
        Pool(workers=1, tier=pool.sandbox.tier, unsafe=True, readable=(str(fake),)) as own,
        pytest.raises(SantagenError, match="a right program for bash"),
    ):
        self_check(load(tmp_path, BASH), own)
