"""A row of a task's data made into a Problem: what each kind of data calls its fields.

A row that lacks one raises KeyError, TypeError, AttributeError or IndexError, which `tasks` turns
into a message with its place. Reads no files.
"""

from __future__ import annotations

from santagen.evaluation.languages import find_language
from santagen.evaluation.problems import Problem, plan_test
from santagen.evaluation.task_sources import Row


def humaneval_problem(row: Row) -> Problem:
    test = f"{row['test']}\ncheck({row['entry_point']})"
    prompt = row["prompt"]
    return plan_test(
        Problem(
            str(row["task_id"]),
            prompt.rstrip(),
            prompt,
            row.get("canonical_solution"),
            test,
            entry=(row["entry_point"],),
        )
    )


def mbpp_problem(row: Row) -> Problem:
    text = row["text"] if "text" in row else row["prompt"]
    tests = list(row["test_list"])
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    # The form InCoder was measured with: a docstring of the text and the first test.
    given = f'"""\n{text}\n{tests[0]}\n"""\n'
    test = "\n".join([setup, *tests]).replace("\r\n", "\n")
    canonical = str(row["code"]).replace("\r\n", "\n") if "code" in row else None
    return plan_test(Problem(f"MBPP/{row['task_id']}", given, "", canonical, test))


def infilling_problem(row: Row) -> Problem:
    test = f"{row['test']}\ncheck({row['entry_point']})"
    return plan_test(
        Problem(
            str(row["task_id"]),
            row["prompt"],
            row["prompt"],
            row["canonical_solution"],
            test,
            suffix=row["suffix"],
            entry=(row["entry_point"],),
        )
    )


def mini_infilling_problem(row: Row) -> Problem:
    return Problem(
        str(row["task_id"]), row["prefix"], row["prefix"], row["middle"], "", suffix=row["suffix"]
    )


def multipl_e_problem(row: Row) -> Problem:
    language = find_language(str(row["language"]))
    return Problem(
        str(row["name"]),
        row["prompt"].rstrip(),
        row["prompt"],
        None,
        row["tests"],
        mode="command",
        file=language.file,
        commands=language.commands,
        timeout=language.timeout,
        language=str(row["language"]),
        stop=tuple(row.get("stop_tokens") or ()),
    )


def infilling_name(task_id: str) -> str:
    """SingleLineInfilling/HumanEval/0/L0 -> infilling-single-line"""
    kinds = {"SingleLine": "single-line", "MultiLine": "multi-line", "RandomSpan": "random-span"}
    for word, name in kinds.items():
        if task_id.startswith(word):
            return f"infilling-{name}" + ("-light" if "Light" in task_id else "")
    return "infilling"
