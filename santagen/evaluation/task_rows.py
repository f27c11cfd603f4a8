"""A row of a task's data made into a Problem: what each kind of data calls its fields.

A row that lacks one, or holds something else there, raises one of UNREADABLE, which `tasks` turns
into a message with its place. Reads no files.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from santagen.evaluation.languages import find_language
from santagen.evaluation.problems import Problem, plan_test
from santagen.evaluation.task_sources import Row

UNREADABLE = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, SyntaxError,
    RecursionError, MemoryError,
)  # fmt: skip


def humaneval_problem(row: Row) -> Problem:
    prompt, entry = _text(row, "prompt"), _text(row, "entry_point")
    canonical = row.get("canonical_solution")
    return plan_test(
        Problem(
            str(row["task_id"]),
            prompt.rstrip(),
            prompt,
            None if canonical is None else _text(row, "canonical_solution"),
            _python(f"{_text(row, 'test')}\ncheck({entry})"),
            entry=(entry,),
        )
    )


def mbpp_problem(row: Row) -> Problem:
    text = _text(row, "text" if "text" in row else "prompt")
    tests = _texts(row, "test_list")
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    # The form InCoder was measured with: a docstring of the text and the first test.
    given = f'"""\n{text}\n{tests[0]}\n"""\n'
    test = _python("\n".join([setup, *tests]).replace("\r\n", "\n"))
    canonical = _text(row, "code").replace("\r\n", "\n") if "code" in row else None
    return plan_test(Problem(f"MBPP/{row['task_id']}", given, "", canonical, test))


def infilling_problem(row: Row) -> Problem:
    prompt, entry = _text(row, "prompt"), _text(row, "entry_point")
    return plan_test(
        Problem(
            str(row["task_id"]),
            prompt,
            prompt,
            _text(row, "canonical_solution"),
            _python(f"{_text(row, 'test')}\ncheck({entry})"),
            suffix=_text(row, "suffix"),
            entry=(entry,),
        )
    )


def mini_infilling_problem(row: Row) -> Problem:
    prefix = _text(row, "prefix")
    task_id, middle, suffix = str(row["task_id"]), _text(row, "middle"), _text(row, "suffix")
    return Problem(task_id, prefix, prefix, middle, "", suffix=suffix)


def multipl_e_problem(row: Row) -> Problem:
    name = _text(row, "language")
    language, prompt = find_language(name), _text(row, "prompt")
    return Problem(
        str(row["name"]),
        prompt.rstrip(),
        prompt,
        None,
        _text(row, "tests"),
        mode="command",
        file=language.file,
        commands=language.commands,
        timeout=language.timeout,
        language=name,
        stop=tuple(_texts(row, "stop_tokens") if row.get("stop_tokens") else ()),
    )


def infilling_name(task_id: str) -> str:
    """SingleLineInfilling/HumanEval/0/L0 -> infilling-single-line"""
    kinds = {"SingleLine": "single-line", "MultiLine": "multi-line", "RandomSpan": "random-span"}
    for word, name in kinds.items():
        if task_id.startswith(word):
            return f"infilling-{name}" + ("-light" if "Light" in task_id else "")
    return "infilling"


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"`{name}` is no text")
    value.encode()  # half a surrogate pair, which JSON can hold, is refused by a tokenizer
    return value


def _texts(row: Row, name: str) -> list[str]:
    value = row[name]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"`{name}` is no list of texts")
    return value


@lru_cache(maxsize=1024)  # the tests of infilling are those of a few programs
def _python(test: str) -> str:
    """The test, which has to be a program: no answer could pass it otherwise."""
    ast.parse(test)
    return test
