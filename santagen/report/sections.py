"""The parts of the page, each from one thing that is shown. A picture whose data is absent is left
out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from santagen.report import charts
from santagen.report.generated import statistics
from santagen.report.grid import problem_grid
from santagen.report.markup import Child, Html, absent, figure, folded, join, table, tag
from santagen.report.model import Evaluation, Generation, Report

CHANGED = 15  # problems that the picture of a comparison shows


# -- all results together ----------------------------------------------------------------------


def scores(report: Report) -> Html | None:
    """pass@k and exact match of every result, with both intervals."""
    found = [
        (evaluation, name, estimate)
        for name in _names(report.evaluations)
        for evaluation in report.evaluations
        if (estimate := _estimates(evaluation).get(name))
    ]
    if not found:
        return None
    many = len(report.evaluations) > 1
    rows = [
        charts.Span(
            f"{name}, {evaluation.label}" if many else name,
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
            evaluation.label, name, f"{100 * estimate['value']:.2f}",
            _interval(estimate["sampling_interval"]), _interval(estimate["problem_interval"]),
        ]
        for evaluation, name, estimate in found
    ]  # fmt: skip
    head = ("Result", "Score", "%", "95 %, samples drawn again", "95 %, problems drawn again")
    return tag(
        "section",
        tag("h2", "Scores"),
        figure(
            "scores", "Share of problems solved, in percent",
            charts.spans("scores-picture", f"Scores with intervals: {said}", rows, 0, high),
            tag("p", "Thick: the samples drawn again. Thin: the problems drawn again. Both 95 %.",
                class_="note"),
            folded("Table of scores", table("Scores", head, cells)),
        ),
    )  # fmt: skip


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
    rows = [
        charts.Span(
            f"pass@{k}, {b} - {a}", 100 * item["difference"], _percent(item["interval"]),
            _percent(item["interval"]), f"{100 * item['difference']:+.1f} points",
        )
        for k, item in found["pass_at_k"].items()
    ]  # fmt: skip
    edge = max([5.0, *(abs(end) for row in rows for end in row.outer)])
    edge = 5.0 * int(edge / 5 + 0.999)
    said = "; ".join(f"{row.label} {row.shown}" for row in rows)
    cells = [
        [
            f"pass@{k}", f"{100 * item['a']:.2f}", f"{100 * item['b']:.2f}",
            f"{100 * item['difference']:+.2f}", _interval(item["interval"]),
            f"{item['p_value']:.4f}", item["better"], item["worse"], item["equal"],
        ]
        for k, item in found["pass_at_k"].items()
    ]  # fmt: skip
    head = ("Score", f"{a} %", f"{b} %", f"{b} - {a}", "95 %", "p", "better", "worse", "equal")
    return tag(
        "section",
        tag("h2", f"Comparison of {b} with {a}"),
        tag("p", f"Paired by problem, over {found['problems']:,} problems."),
        _left_over(a, found["only_a"]),
        _left_over(b, found["only_b"]),
        figure(
            "comparison", f"{b} less {a}, in points",
            charts.spans("comparison-picture", f"Differences: {said}", rows, -edge, edge),
            folded("Table of the comparison", table("Comparison", head, cells)),
        ),
        _changed(found["changed"], a, b),
    )  # fmt: skip


def _left_over(label: str, ids: list[str]) -> Html | None:
    return (
        tag("p", f"Only in {label}: {', '.join(ids[:10])}", " …" * (len(ids) > 10)) if ids else None
    )


def _changed(changed: dict[str, float], a: str, b: str) -> Html:
    if not changed:
        return tag("p", "No problem's share of passes differs.")
    shown = [
        (task_id, 100 * gap, f"{100 * gap:+.0f}")
        for task_id, gap in list(changed.items())[:CHANGED]
    ]
    said = ", ".join(f"{task_id} {gap}" for task_id, _, gap in shown)
    cells = [[task_id, f"{100 * gap:+.1f}"] for task_id, gap in changed.items()]
    return figure(
        "changed", f"Problems that differ most, in points of pass@1 ({b} - {a})",
        charts.bars("changed-picture", f"Largest changes: {said}", shown),
        folded(f"Table of the {len(cells):,} problems that differ",
               table("Changed problems", ("Problem", f"{b} - {a}"), cells)),
    )  # fmt: skip


# -- one input ---------------------------------------------------------------------------------


def evaluation_section(evaluation: Evaluation, prefix: str) -> Html:
    result = evaluation.result
    return tag(
        "section",
        tag("h2", f"{evaluation.label}: {result['task']}", id=prefix),
        _facts(evaluation),
        tag("h3", "Problems"),
        problem_grid(evaluation, prefix),
        _classes(result, prefix),
        *statistics(evaluation.statistics, prefix),
        folded("Settings", _settings(_result_settings(result))),
        aria_labelledby=prefix,
    )


def generation_section(run: Generation, prefix: str) -> Html:
    manifest = run.manifest
    parts: list[Child]
    if manifest is None:
        parts = [absent("The run's record", "its manifest is not beside the output")]
    else:
        parts = [_run_facts(manifest)]
    if run.failed_rows:
        parts.append(tag("p", f"{run.failed_rows:,} rows failed."))
    settings = {} if manifest is None else {k: v for k, v in manifest.items() if k != "identity"}
    return tag(
        "section",
        tag("h2", f"{run.label}: generation", id=prefix),
        tag("p", run.file, class_="file"),
        parts,
        *statistics(run.statistics, prefix),
        folded("Settings", _settings(settings)) if settings else None,
        aria_labelledby=prefix,
    )


def _facts(evaluation: Evaluation) -> Html:
    result = evaluation.result
    model = _part(result, "model").get("name")
    samples = sum(problem["n"] for problem in result["problems"].values())
    tier = _part(result, "sandbox").get("tier")
    rows: list[tuple[str, Child]] = [
        ("File", evaluation.file),
        ("Model", model or "not known: a file of samples was scored"),
        ("Problems", f"{len(result['problems']):,}"),
        ("Samples", f"{samples:,}"),
        ("Sandbox", tier or "none: no program was run"),
        ("Seconds", _rounded(result.get("seconds"))),
    ]
    partial = None
    if result.get("partial"):
        missing = result.get("missing") or []
        why = f"no samples of {', '.join(missing[:10])}" if missing else "not all were asked for"
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        partial = tag("p", tag("b", "Partial: "), f"{why}{more}.", class_="partial")
    return join([partial, _definitions(rows)])


def _run_facts(manifest: dict[str, Any]) -> Html:
    run, counts = _part(manifest, "run"), _part(manifest, "counts")
    rows: list[tuple[str, Child]] = [
        ("Model", manifest.get("model")),
        ("Complete", "yes" if manifest.get("complete") else "no"),
        ("Samples", _rounded(counts.get("samples"))),
        ("Started", run.get("started")),
        ("Seconds", _rounded(run.get("seconds"))),
        ("Tokens generated", _rounded(run.get("generated_tokens"))),
        ("Tokens per second", _rounded(run.get("tokens_per_second"))),
    ]
    return _definitions([(name, value) for name, value in rows if value not in (None, "")])


def _classes(result: dict[str, Any], prefix: str) -> Html | None:
    counts: dict[str, int] = result["classes"] if "classes" in result else _added_up(result)
    total = sum(counts.values())
    if not total:
        return None
    order = sorted(counts.items(), key=lambda item: (item[0] != "passed", -item[1], item[0]))
    rows = [(kind, float(many), f"{many:,} ({100 * many / total:.1f}%)") for kind, many in order]
    raised = _added_up(result, "exceptions")
    cells: list[list[Child]] = [[kind, f"{many:,}"] for kind, many in order]
    cells += [[f"exception {name}", f"{many:,}"] for name, many in raised.items()]
    said = ", ".join(f"{kind} {many}" for kind, many in order)
    return figure(
        f"{prefix}-classes", "How samples ended",
        charts.bars(f"{prefix}-classes-picture", f"Classes: {said}", rows),
        folded("Table of classes", table("Classes", ("Class", "Samples"), cells)),
    )  # fmt: skip


def _added_up(result: dict[str, Any], name: str = "classes") -> dict[str, int]:
    totals: dict[str, int] = {}
    for problem in result["problems"].values():
        for kind, many in problem.get(name, {}).items():
            totals[kind] = totals.get(kind, 0) + many
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


# -- settings ----------------------------------------------------------------------------------

_NOT_SETTINGS = frozenset(
    ("problems", "classes", "pass_at_k", "exact_match", "generation", "identity", "missing")
)


def _result_settings(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in _NOT_SETTINGS}


def _settings(values: dict[str, Any]) -> Html:
    rows = [[name, value] for name, value in _flat(values) if value not in ("None", "[]", "{}")]
    return table("Settings and versions", ("Name", "Value"), rows)


def _flat(values: dict[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value) if isinstance(value, str) else repr(value)


def _definitions(rows: Iterable[tuple[str, Child]]) -> Html:
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in rows])


def _estimates(evaluation: Evaluation) -> dict[str, Any]:
    result = evaluation.result
    found = {f"pass@{k}": estimate for k, estimate in result.get("pass_at_k", {}).items()}
    if result.get("exact_match"):
        found["exact match"] = result["exact_match"]
    return found


def _names(evaluations: Iterable[Evaluation]) -> list[str]:
    return list(dict.fromkeys(name for item in evaluations for name in _estimates(item)))


def _part(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """A part that is an object, empty where it isn't there."""
    found = whole.get(name)
    return found if isinstance(found, dict) else {}


def _percent(pair: Any) -> tuple[float, float]:
    return 100 * pair[0], 100 * pair[1]


def _interval(pair: Any) -> str:
    return f"{100 * pair[0]:.2f} to {100 * pair[1]:.2f}"


def _rounded(value: Any) -> str | None:
    return f"{value:,.1f}".removesuffix(".0") if isinstance(value, (int, float)) else None
