"""The grid of problems: a cell each, shaded by its share of passes, lettered by how others fail.

A cell is a link to the problem's row in the table behind the grid; with the page's script, hover,
focus or a tap shows that row beside the grid. The rows hold all there is to say, samples included.
"""

from __future__ import annotations

from typing import Any

from santagen.report.markup import Child, Html, folded, join, table, tag
from santagen.report.model import Evaluation, Example

STEPS = 5  # shades between no and every sample passed
TEXT_BUDGET = 600_000  # characters of samples on the page, in all
LETTERS = {
    "syntax": "S", "assertion": "A", "exception": "E", "timeout": "T", "memory": "M",
    "forged": "F", "different": "D",
}  # fmt: skip
WORDS = {
    "passed": "passed", "syntax": "no program: syntax error", "assertion": "a test's assertion",
    "exception": "an exception", "timeout": "too slow", "memory": "too much memory",
    "forged": "tried to forge its verdict", "different": "not the original text",
}  # fmt: skip


def problem_grid(evaluation: Evaluation, prefix: str) -> Html:
    """The grid with its legend, the place where a problem is shown, and the table."""
    problems: dict[str, Any] = evaluation.result["problems"]
    cells = [
        _cell(task_id, problem, f"{prefix}-p{at}")
        for at, (task_id, problem) in enumerate(problems.items())
    ]
    name = f"Problems of {evaluation.title}"
    shown = sorted({kind for problem in problems.values() for kind in problem["classes"]})
    note = None
    if not evaluation.examples:
        note = tag("p", "Samples are left out: their file is not beside the result.", class_="note")
    return join(
        [
            tag("p", _legend(shown), class_="legend"),
            tag("div", cells, class_="grid", role="group", aria_label=name),
            tag("div", class_="detail", role="status", hidden=True),
            note,
            folded(f"Table of the {len(problems):,} problems", _table(evaluation, prefix)),
        ]
    )


def shade(n: int, c: int) -> int:
    """0 where none passed, STEPS where all did, between them by the share."""
    return STEPS if c == n else 0 if c == 0 else 1 + int((STEPS - 1) * c / n)


def worst(problem: dict[str, Any]) -> str | None:
    """The class that most of the failed samples have."""
    failed = {kind: many for kind, many in problem["classes"].items() if kind != "passed"}
    return max(failed, key=lambda kind: (failed[kind], kind)) if failed else None


def _cell(task_id: str, problem: dict[str, Any], row: str) -> Html:
    kind = worst(problem)
    letter = "✓" if kind is None else LETTERS.get(kind, kind[:1].upper())
    said = f"{task_id}: {problem['c']} of {problem['n']} passed"
    said += f", most others {WORDS.get(kind, kind)}" if kind else ""
    level = shade(problem["n"], problem["c"])
    return tag("a", letter, href=f"#{row}", class_=f"cell s{level}", aria_label=said)


def _legend(kinds: list[str]) -> list[Child]:
    """What shades and letters mean."""
    parts: list[Child] = ["A cell is a problem. Fuller colour: more samples passed; ✓: all. "]
    parts.append("Letter: how most of the others failed: ")
    failing = [kind for kind in kinds if kind != "passed"]
    for at, kind in enumerate(failing):
        letter = LETTERS.get(kind, kind[:1].upper())
        parts += [", " if at else None, tag("b", letter), f" {WORDS.get(kind, kind)}"]
    return [*parts, "." if failing else "none."]


def _table(evaluation: Evaluation, prefix: str) -> Html:
    problems: dict[str, Any] = evaluation.result["problems"]
    most = max(200, min(2000, TEXT_BUDGET // max(1, len(problems))))
    rows: list[list[Child]] = []
    for task_id, problem in problems.items():
        classes = ", ".join(f"{kind} {many}" for kind, many in problem["classes"].items())
        raised = ", ".join(f"{k} {v}" for k, v in problem.get("exceptions", {}).items())
        if raised:
            classes += f" ({raised})"
        if problem.get("in_process"):
            classes += "; tested in the program's own process"
        passed = f"{problem['c']} of {problem['n']}"
        rows.append([task_id, passed, classes, _example(evaluation.examples.get(task_id), most)])
    head = ("Problem", "Passed", "How they ended", "A sample")
    ids = [f"{prefix}-p{at}" for at in range(len(rows))]
    return table(f"Problems of {evaluation.title}", head, rows, ids)


def _example(example: Example | None, most: int) -> Html | None:
    if example is None:
        return None
    text = example.completion
    cut = f" … and {len(text) - most:,} characters more" if len(text) > most else ""
    said = example.kind if example.result == "passed" else f"{example.kind} ({example.result})"
    return join(
        [
            tag("p", said[:300], class_="said"),
            tag("pre", text[:most] + cut, dir="ltr", class_="code"),
        ]
    )
