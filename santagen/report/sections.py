"""The parts of the page that show one input each.

A picture whose data is absent is left out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from santagen.errors import many
from santagen.report import charts
from santagen.report.generated import statistics
from santagen.report.grid import problem_grid
from santagen.report.markup import Child, Html, absent, figure, folded, join, table, tag
from santagen.report.model import Evaluation, Generation

LARGEST = 1e15  # of the facts that are numbers


def evaluation_section(evaluation: Evaluation, prefix: str) -> Html:
    """A result of eval; `prefix` begins the ids of its elements."""
    result = evaluation.result
    return tag(
        "section",
        tag("h2", evaluation.title, id=prefix),
        _facts(evaluation),
        tag("h3", "Problems"),
        problem_grid(evaluation, prefix),
        _classes(evaluation, prefix),
        *statistics(evaluation.statistics, prefix, evaluation.title),
        folded("Settings", _settings(_result_settings(result), evaluation.title)),
        aria_labelledby=prefix,
    )


def generation_section(run: Generation, prefix: str) -> Html:
    """A run of generate, in the same way."""
    manifest = run.manifest
    parts: list[Child]
    if manifest is None:
        parts = [absent("The run's record", "its manifest is not beside the output")]
    else:
        parts = [_run_facts(manifest)]
    if run.failed_rows:
        parts.append(tag("p", f"{many(run.failed_rows, 'row')} failed."))
    settings = {} if manifest is None else {k: v for k, v in manifest.items() if k != "identity"}
    return tag(
        "section",
        tag("h2", run.title, id=prefix),
        tag("p", run.file, class_="file"),
        parts,
        *statistics(run.statistics, prefix, run.title),
        folded("Settings", _settings(settings, run.title)) if settings else None,
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


def _classes(evaluation: Evaluation, prefix: str) -> Html | None:
    result, title = evaluation.result, evaluation.title
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
        charts.bars(f"{prefix}-classes-picture", f"Classes of {title}: {said}", rows),
        folded("Table of classes", table(f"Classes of {title}", ("Class", "Samples"), cells)),
    )  # fmt: skip


def _added_up(result: dict[str, Any], name: str = "classes") -> dict[str, int]:
    totals: dict[str, int] = {}
    for problem in result["problems"].values():
        for kind, count in problem.get(name, {}).items():
            totals[kind] = totals.get(kind, 0) + count
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


# -- settings ----------------------------------------------------------------------------------

_NOT_SETTINGS = frozenset(
    ("problems", "classes", "pass_at_k", "exact_match", "generation", "identity", "missing")
)


def _result_settings(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in _NOT_SETTINGS}


def _settings(values: dict[str, Any], title: str) -> Html:
    rows = [[name, value] for name, value in _flat(values) if value not in ("None", "[]", "{}")]
    return table(f"Settings and versions of {title}", ("Name", "Value"), rows)


def _flat(values: dict[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value) if isinstance(value, str) else repr(value)


def _definitions(rows: Iterable[tuple[str, Child]]) -> Html:
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in rows])


def _part(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """A part that is an object, empty where it isn't there."""
    found = whole.get(name)
    return found if isinstance(found, dict) else {}


def _rounded(value: Any) -> str | None:
    """A number for people; None for what is none, or is too large to be one."""
    known = type(value) in (int, float) and abs(value) < LARGEST
    return f"{value:,.1f}".removesuffix(".0") if known else None
