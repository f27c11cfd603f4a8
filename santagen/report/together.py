"""The parts of the page that show all results together: their scores, and two of them compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from santagen.errors import many
from santagen.report import charts
from santagen.report.markup import Html, absent, figure, folded, table, tag
from santagen.report.model import Evaluation, Report

CHANGED = 15  # problems that the picture of a comparison shows


def scores(report: Report) -> Html | None:
    """pass@k and exact match of every result, with both intervals: a picture per task."""
    tasks = list(dict.fromkeys(evaluation.result["task"] for evaluation in report.evaluations))
    pictures = [
        _scores_of(
            task,
            [evaluation for evaluation in report.evaluations if evaluation.result["task"] == task],
            f"scores-{at}",
        )
        for at, task in enumerate(tasks, start=1)
    ]
    if not any(pictures):
        return None
    note = "Thick: the samples drawn again. Thin: the problems drawn again. Both 95 %."
    return tag("section", tag("h2", "Scores"), pictures, tag("p", note, class_="note"))


def _scores_of(task: str, evaluations: list[Evaluation], identifier: str) -> Html | None:
    found = [
        (evaluation, name, estimate)
        for name in _names(evaluations)
        for evaluation in evaluations
        if (estimate := _estimates(evaluation).get(name))
    ]
    if not found:
        return None
    rows = [
        charts.Span(
            f"{name}, {_named(evaluation)}",
            100 * estimate["value"],
            _percent(estimate["sampling_interval"]),
            _percent(estimate["problem_interval"]),
            f"{100 * estimate['value']:.1f}%",
        )
        for evaluation, name, estimate in found
    ]
    high = min(100, 10 * int(max(row.outer[1] for row in rows) / 10 + 1))
    said = "; ".join(f"{row.label} {row.shown}" for row in rows)
    cells = [
        [
            _named(evaluation), name, f"{100 * estimate['value']:.2f}",
            _interval(estimate["sampling_interval"]), _interval(estimate["problem_interval"]),
        ]
        for evaluation, name, estimate in found
    ]  # fmt: skip
    head = ("Result", "Score", "%", "95 %, samples drawn again", "95 %, problems drawn again")
    return figure(
        identifier, f"{task}: share of problems solved, in percent",
        charts.spans(f"{identifier}-picture", f"Scores of {task}: {said}", rows, 0, high),
        folded(f"Table of the scores of {task}", table(f"Scores of {task}", head, cells)),
    )  # fmt: skip


def _named(evaluation: Evaluation) -> str:
    return f"{evaluation.label} (partial)" if evaluation.result.get("partial") else evaluation.label


def comparison(report: Report) -> Html | None:
    """The second result less the first, over the problems that both have."""
    found = report.comparison
    if found is None:
        if not report.no_comparison:
            return None
        return tag(
            "section", tag("h2", "Comparison"), absent("The comparison", report.no_comparison)
        )
    a, b = (evaluation.label for evaluation in report.evaluations[:2])
    problems = many(found["problems"], "problem")
    return tag(
        "section",
        tag("h2", f"Comparison of {b} with {a}: {found['task']}"),
        tag("p", f"Paired by problem, over {problems} that both have."),
        _partial(found["partial"], {"a": a, "b": b}),
        _left_over(a, found["only_a"]),
        _left_over(b, found["only_b"]),
        _differences(found, a, b),
        _changed(found["changed"], found["changed_in"], a, b),
    )


def _differences(found: dict[str, Any], a: str, b: str) -> Html:
    """Each score's difference in percentage points, with its interval."""
    items = {f"pass@{k}": item for k, item in found["pass_at_k"].items()}
    if found["exact_match"]:
        items["exact match"] = found["exact_match"]
    rows = [
        charts.Span(
            f"{name}, {b} - {a}", 100 * item["difference"], _percent(item["interval"]),
            _percent(item["interval"]), f"{100 * item['difference']:+.1f} points",
        )
        for name, item in items.items()
    ]  # fmt: skip
    edge = max([5.0, *(abs(end) for row in rows for end in row.outer)])
    edge = 5.0 * int(edge / 5 + 0.999)
    said = "; ".join(f"{row.label} {row.shown}" for row in rows)
    cells = [
        [
            name, f"{100 * item['a']:.2f}", f"{100 * item['b']:.2f}",
            f"{100 * item['difference']:+.2f}", _interval(item["interval"]),
            f"{item['p_value']:.4f}", item["better"], item["worse"], item["equal"],
        ]
        for name, item in items.items()
    ]  # fmt: skip
    head = ("Score", f"{a} %", f"{b} %", f"{b} - {a}", "95 %", "p", "better", "worse", "equal")
    return figure(
        "comparison", f"{b} less {a}, in points",
        charts.spans("comparison-picture", f"Differences: {said}", rows, -edge, edge),
        folded("Table of the comparison", table("Comparison", head, cells)),
    )  # fmt: skip


def _partial(names: list[str], labels: dict[str, str]) -> Html | None:
    if not names:
        return None
    who = " and ".join(labels[name] for name in names)
    said = f"{who} {'is' if len(names) == 1 else 'are'} partial: this is not the whole task."
    return tag("p", said, class_="partial")


def _left_over(label: str, ids: list[str]) -> Html | None:
    if not ids:
        return None
    return tag("p", f"Only in {label}: {', '.join(ids[:10])}", " …" * (len(ids) > 10))


def _changed(changed: dict[str, float], score: str, a: str, b: str) -> Html:
    if not changed:
        return tag("p", "No problem's share of passes differs.")
    shown = [
        (task_id, 100 * gap, f"{100 * gap:+.0f}")
        for task_id, gap in list(changed.items())[:CHANGED]
    ]
    said = ", ".join(f"{task_id} {gap}" for task_id, _, gap in shown)
    cells = [[task_id, f"{100 * gap:+.1f}"] for task_id, gap in changed.items()]
    return figure(
        "changed", f"Problems that differ most, in points of {score} ({b} - {a})",
        charts.bars("changed-picture", f"Largest changes: {said}", shown),
        folded(f"Table of the {len(cells):,} problems that differ",
               table("Changed problems", ("Problem", f"{b} - {a}"), cells)),
    )  # fmt: skip


def _estimates(evaluation: Evaluation) -> dict[str, Any]:
    result = evaluation.result
    found = {f"pass@{k}": estimate for k, estimate in (result.get("pass_at_k") or {}).items()}
    if result.get("exact_match"):
        found["exact match"] = result["exact_match"]
    return found


def _names(evaluations: Iterable[Evaluation]) -> list[str]:
    return list(dict.fromkeys(name for item in evaluations for name in _estimates(item)))


def _percent(pair: Any) -> tuple[float, float]:
    return 100 * pair[0], 100 * pair[1]


def _interval(pair: Any) -> str:
    return f"{100 * pair[0]:.2f} to {100 * pair[1]:.2f}"
