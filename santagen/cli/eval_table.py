"""What `santagen eval` says at the end: a table of scores, or of a comparison. Text only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from santagen.cli.labelled import many
from santagen.evaluation.compare import Comparison

SHOWN_IDS = 5


def result_table(result: dict[str, Any]) -> list[str]:
    """The lines of one result."""
    problems = result["problems"]
    samples = sum(problem["n"] for problem in problems.values())
    tier = (result.get("sandbox") or {}).get("tier")
    where = f", sandbox {tier}" if tier else ""
    lines = [
        f"{result['task']}: {many(len(problems), 'problem')}, {many(samples, 'sample')}{where}"
    ]
    rows = [(f"pass@{k}", found) for k, found in result["pass_at_k"].items()]
    if result.get("exact_match"):
        rows.append(("exact match", result["exact_match"]))
    if rows:
        lines.append(f"  {'':12} {'%':>6}   {'95 %, samples':^16}   {'95 %, problems':^16}")
    for name, found in rows:
        lines.append(
            f"  {name:12} {100 * found['value']:6.2f}   {_interval(found['sampling_interval'])}"
            f"   {_interval(found['problem_interval'])}"
        )
    lines.append(f"  {_classes(result)}")
    if result["partial"]:
        lines.append(f"  partial: {_missing(result['missing'])}")
    in_process = [task_id for task_id, problem in problems.items() if problem.get("in_process")]
    if in_process:
        lines.append(f"  tested in the program's own process: {_ids(in_process)}")
    return lines


def comparison_table(found: Comparison, names: tuple[str, str]) -> list[str]:
    """The lines of a comparison: B minus A."""
    both = many(found.problems, "problem")
    lines = [f"{found.task}: {both} in both; A is {names[0]}, B is {names[1]}"]
    if found.partial:
        who = " and ".join(name.upper() for name in found.partial)
        verb = "is" if len(found.partial) == 1 else "are"
        lines.append(f"  {who} {verb} partial: compared over {both} only, not the whole task")
    head = f"{'A %':>7} {'B %':>7} {'B - A':>7}   {'95 %':^16}  {'p':>6}  better/worse/equal"
    lines.append(f"  {'':11} {head}")
    for item in found.differences:
        values = f"{100 * item.a:7.2f} {100 * item.b:7.2f} {100 * item.difference:+7.2f}"
        signs = f"{item.better}/{item.worse}/{item.equal}"
        lines.append(
            f"  {item.name:11} {values}   {_interval(item.interval)}  {item.p_value:6.4f}  {signs}"
        )
    if not found.differences:
        lines.append("  no score to compare: a problem has fewer samples than each --k")
    for label, ids in (("only in A", found.only_a), ("only in B", found.only_b)):
        if ids:
            lines.append(f"  {label}: {_ids(list(ids))}")
    if found.changed:
        shown = ", ".join(
            f"{task_id} {100 * gap:+.0f}" for task_id, gap in found.changed[:SHOWN_IDS]
        )
        lines.append(f"  largest changes of {found.changed_in}: {shown}")
    return lines


def _classes(result: dict[str, Any]) -> str:
    exceptions: Counter[str] = Counter()
    for problem in result["problems"].values():
        exceptions.update(problem.get("exceptions", {}))
    parts = []
    for name, count in sorted(
        result["classes"].items(), key=lambda item: (item[0] != "passed", -item[1])
    ):
        detail = ", ".join(f"{kind} {times}" for kind, times in exceptions.most_common(3))
        parts.append(f"{name} {count}" + (f" ({detail})" if name == "exception" and detail else ""))
    return ", ".join(parts) or "no samples"


def _missing(ids: list[str]) -> str:
    return f"no samples of {_ids(ids)}" if ids else "not all problems of the task were asked for"


def _ids(ids: list[str]) -> str:
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return ", ".join(ids[:SHOWN_IDS]) + more


def _interval(pair: Any) -> str:
    return f"{100 * pair[0]:6.2f} .. {100 * pair[1]:6.2f}"
