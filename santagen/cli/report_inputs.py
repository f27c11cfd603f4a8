"""What `santagen report` reads: results and their samples, outputs of generate and their manifests.

Which is which shows in the file itself. What a file lacks stays absent; a file that is neither is
refused. Large files of samples are read line by line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from santagen.config import read_json
from santagen.errors import SantagenError
from santagen.evaluation.compare import compare
from santagen.evaluation.result import read_result, samples_path
from santagen.evaluation.statistics import MOST, sample_statistics
from santagen.io import manifest
from santagen.io.output_place import errors_path
from santagen.report.model import Evaluation, Example, Generation, Report

HINT = "Give results of santagen eval, and outputs or manifests of santagen generate"


def read_report(paths: Iterable[str]) -> Report:
    """All inputs, lettered in their order; two results of one task are compared."""
    evaluations: list[Evaluation] = []
    generations: list[Generation] = []
    files = list(dict.fromkeys(_output_of(Path(path)) for path in paths))
    for number, path in enumerate(files):
        label = _letters(number)
        if _is_output(path):
            generations.append(_generation(path, label))
        else:
            evaluations.append(_evaluation(path, label))
    comparison, why = _comparison(evaluations)
    return Report(tuple(evaluations), tuple(generations), comparison, why)


def _letters(number: int) -> str:
    """0 -> A, 25 -> Z, 26 -> AA"""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _output_of(path: Path) -> Path:
    """The output that a manifest belongs to; any other file as it is."""
    if path.is_dir():
        raise SantagenError(f"{path} is a directory, not a result.", f"{HINT}.")
    if path.name.endswith(manifest.ENDING):
        return path.with_name(path.name.removesuffix(manifest.ENDING))
    return path


def _is_output(path: Path) -> bool:
    return path.suffix == ".jsonl" or manifest.manifest_path(path).exists()


def _evaluation(path: Path, label: str) -> Evaluation:
    result = manifest.scrub(read_result(path))
    samples = samples_path(path)
    statistics = result.get("generation")
    if not _is_statistics(statistics):
        raise SantagenError(
            f"{path} is damaged: how its samples came about is unreadable.", "Score it again."
        )
    examples: dict[str, Example] = {}
    if samples.is_file():
        examples = _examples(_rows(samples), result["problems"])
        if statistics is None:  # written by an older santagen, or scored from a file
            statistics = sample_statistics(_rows(samples))
    return Evaluation(label, str(path), result, examples, statistics)


def _is_statistics(found: Any) -> bool:
    """Whether they are such as `sample_statistics` makes; None where there are none."""
    try:
        known = found or {}
        series = ("counts",), ("samples", "tokens")
        numbers = ("width", "total", "longest"), ("width", "seconds")
        for name, lists, singles in zip(
            ("completion_tokens", "timeline"), series, numbers, strict=True
        ):
            part = known.get(name)
            if part and not _is_series(part, lists, singles):
                return False
        reasons = [known.get(name, {}) for name in ("finish_reasons", "stop_reasons")]
        return all(_is_quantity(count) for counts in reasons for count in counts.values())
    except (KeyError, TypeError, AttributeError):
        return False


def _is_series(part: dict[str, Any], lists: tuple[str, ...], singles: tuple[str, ...]) -> bool:
    """Numbers per bin, as many in each of `lists`, with what is said of them all."""
    bins = [part[name] for name in lists]
    if not all(isinstance(values, list) for values in bins):
        return False
    values = [value for each in bins for value in each] + [part[name] for name in singles]
    same = {len(each) for each in bins}
    return all(map(_is_quantity, values)) and part["width"] > 0 and len(same) == 1 and 0 not in same


def _is_quantity(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < MOST


def _examples(rows: Iterable[dict[str, Any]], problems: dict[str, Any]) -> dict[str, Example]:
    """Per problem the first sample of the class that most of its failed ones have, else the first
    that passed.
    """
    found: dict[str, tuple[int, Example]] = {}
    for row in rows:
        task_id, kind = str(row.get("task_id")), str(row.get("class"))
        classes = problems.get(task_id, {}).get("classes", {})
        rank = 0 if kind == "passed" else classes.get(kind, 0)
        if task_id not in found or rank > found[task_id][0]:
            text = row.get("completion", row.get("solution"))
            found[task_id] = rank, Example(kind, str(row.get("result")), str(text))
    return {task_id: example for task_id, (_, example) in found.items()}


def _generation(path: Path, label: str) -> Generation:
    place = manifest.manifest_path(path)
    record = manifest.scrub(read_json(place, HINT)) if place.exists() else None
    errors = errors_path(path)
    failed = sum(1 for _ in _rows(errors)) if errors.is_file() else None
    if not path.is_file() and record is None:
        raise SantagenError(f"{path} does not exist.", f"{HINT}.")
    statistics = sample_statistics(map(_answer, _rows(path))) if path.is_file() else None
    return Generation(label, str(path), record, statistics, failed)


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """A row's own fields; for an OpenAI batch row those of its answer."""
    response = row.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if not isinstance(body, dict):
        return row
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    return {"usage": body.get("usage"), "finish_reason": reason}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of lines. A last line that a kill tore is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SantagenError(
                    f"{path}, line {number}: not JSON ({error}).", f"{HINT}."
                ) from None
            if isinstance(row, dict):
                yield row


def _comparison(evaluations: list[Evaluation]) -> tuple[dict[str, Any] | None, str]:
    """The first two results compared, or why they can't be ("" where there is nothing to say)."""
    if len(evaluations) < 2:
        return None, ""
    if len(evaluations) > 2:
        return None, "it takes two results, and there are more"
    try:
        return compare(evaluations[0].result, evaluations[1].result).as_json(), ""
    except SantagenError as error:
        return None, f"{error.message[:1].lower()}{error.message[1:].rstrip('.')}"
