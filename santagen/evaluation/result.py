"""RESULT.json and RESULT.samples.jsonl: what a run found, and the journal that lets it go on.

    RESULT.samples.jsonl   while the run lasts, a line per sample when it is generated and one when
                           it is judged; at the end one per sample, in the task's order
    RESULT.json            the settings first ("complete": false), the whole result at the end

A line of the journal says how many seconds the run had taken by then, all its parts together, which
the final form leaves out.

Does no scoring. A secret is never among the settings (see io.manifest.scrub).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from santagen.config import read_json
from santagen.errors import SantagenError
from santagen.evaluation.files import Sample
from santagen.evaluation.runner import Verdict
from santagen.evaluation.statistics import GENERATED_AT, MOST
from santagen.evaluation.tasks import Task
from santagen.io.files import OutputLock, refused, write_all, write_atomically
from santagen.io.manifest import check_identity, scrub
from santagen.io.output_place import check_place, existing

FORMAT_VERSION = 1
MOST_SECONDS = 1e12  # of a run that a file can be believed about
ELAPSED = "elapsed"  # in the journal only


def samples_path(result: Path) -> Path:
    """RESULT.json -> RESULT.samples.jsonl"""
    name = result.name.removesuffix(".json")
    return result.with_name(f"{name}.samples.jsonl")


class ResultFile:
    """Opened for one run: `generated` and `judged` as samples come, `finish` once, `close` always.

    `verdicts` and `waiting` are what an earlier run left: judged samples, and generated ones
    without a verdict.
    """

    def __init__(self, path: Path, identity: dict[str, Any], head: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self._head = {"format_version": FORMAT_VERSION, **head}
        self._lock = OutputLock(path)
        self._fd = -1
        self._goes_on = False
        self._started = time.monotonic()
        self.seconds_before = 0.0  # of the run's earlier parts
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        self.waiting: dict[tuple[str, int], Sample] = {}
        self._lines: dict[tuple[str, int], int] = {}  # of the journal: the first of each sample

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, its earlier parts included. A part that goes on with
        a run and adds no line to it doesn't count.
        """
        if self._goes_on and self._fd < 0:
            return self.seconds_before
        return self.seconds_before + time.monotonic() - self._started

    def generating_before(self) -> float:
        """How long an earlier run had been generating when its last sample was there."""
        known = [*self.waiting.values(), *(verdict.sample for verdict in self.verdicts.values())]
        return max((float(sample.extra.get(GENERATED_AT, 0)) for sample in known), default=0.0)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        identity: dict[str, Any],
        head: dict[str, Any],
        resume: bool = False,
        overwrite: bool = False,
    ) -> ResultFile:
        """Take the files; raises SantagenError where they exist (unless told) or belong to another
        run.
        """
        check_place(path)
        made = cls(path, identity, head)
        made._lock.take()
        try:
            made._start(resume, overwrite)
        except BaseException:
            made.close()
            raise
        return made

    def _start(self, resume: bool, overwrite: bool) -> None:
        """Read what an earlier run left. Its files stay as they are until `_begin`."""
        journal = samples_path(self.path)
        if (self.path.exists() or journal.exists()) and not (resume or overwrite):
            raise existing(self.path)
        if resume and journal.exists() and not self.path.exists():
            raise SantagenError(
                f"{journal} is there without {self.path}, so it can't be gone on with.",
                "Bring the result back, move the samples away, or start again with --overwrite.",
            )
        self._goes_on = resume and self.path.exists()
        if self._goes_on:
            earlier = read_json(self.path, "start again with --overwrite")
            check_identity(self.path, earlier, self.identity)
            self.seconds_before = _number(earlier.get("seconds"))
            self._read_journal(journal)

    def _begin(self) -> None:
        """Open the journal, before the first line: a run that fails earlier costs nothing."""
        journal = samples_path(self.path)
        if not self._goes_on:
            journal.unlink(missing_ok=True)
        elif journal.exists():
            data = journal.read_bytes()
            os.truncate(journal, data.rfind(b"\n") + 1)  # a kill in the middle of a line
        self._write_result({"complete": False, "seconds": self.seconds_before})
        self._fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def _read_journal(self, journal: Path) -> None:
        if not journal.exists():
            return
        lines = journal.read_bytes().split(b"\n")[:-1]  # the last is empty, or torn by a kill
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                self.seconds_before = max(self.seconds_before, _number(row.pop(ELAPSED, 0.0)))
                self._recall(row)
                self._lines.setdefault((row["task_id"], row["index"]), number)
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
                raise SantagenError(
                    f"{journal}, line {number} is damaged ({type(error).__name__}: {error}).",
                    "Remove the line, and go on with --resume: its sample is made again.",
                ) from None

    def _recall(self, row: dict[str, Any]) -> None:
        """Take a row of the journal: a sample, or its verdict, which comes after it."""
        key = (row["task_id"], row["index"])
        if "class" in row:
            self.verdicts[key] = Verdict.from_json(row)
            self.waiting.pop(key, None)
        elif key not in self.verdicts:
            self.waiting[key] = Sample(
                *key, row["completion"], row.get("solution"), row.get("extra", {})
            )

    def check_wanted(self, wanted: Callable[[str, int], bool]) -> None:
        """Refuse a journal with a sample that this run doesn't want; names its line."""
        for (task_id, index), number in self._lines.items():
            if not wanted(task_id, index):
                raise SantagenError(
                    f"{samples_path(self.path)}, line {number} holds sample {index} of {task_id}, "
                    "which is none of this run.",
                    "Something else changed the file: remove that line, or start again with "
                    "--overwrite.",
                )

    def generated(self, sample: Sample) -> None:
        """A sample is there, not yet judged."""
        self._append({**sample.fields(), "extra": sample.extra})

    def judged(self, verdict: Verdict) -> None:
        """A sample has its verdict."""
        self._append(verdict.as_json())
        self.verdicts[verdict.sample.task_id, verdict.sample.index] = verdict

    def _append(self, row: dict[str, Any]) -> None:
        with self._explained():
            if self._fd < 0:
                self._begin()
            line = json.dumps({**row, ELAPSED: round(self.seconds, 3)}).encode() + b"\n"
            write_all(self._fd, line)

    @property
    def begun(self) -> bool:
        """Whether the files are this run's, or one's that it goes on with."""
        return self._fd >= 0 or self._goes_on

    def interrupt(self) -> None:
        """Note the time up to now, in a run that will be gone on with."""
        if self._fd >= 0:
            with self._explained():
                self._write_result({"complete": False, "seconds": round(self.seconds, 2)})

    def finish(self, task: Task, content: dict[str, Any]) -> None:
        """Write both files in their final form."""
        order = {problem.task_id: number for number, problem in enumerate(task.problems)}
        rows = sorted(
            self.verdicts.values(), key=lambda v: (order[v.sample.task_id], v.sample.index)
        )
        lines = (json.dumps(verdict.as_json()).encode() + b"\n" for verdict in rows)
        with self._explained():
            write_atomically(samples_path(self.path), lines)
            self._write_result({**content, "seconds": round(self.seconds, 2), "complete": True})

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the system refuses, as a message for the user."""
        try:
            yield
        except OSError as error:
            known = {*self.verdicts, *self.waiting}
            raise refused(self.path, error, len(known)) from None

    def _write_result(self, content: dict[str, Any]) -> None:
        whole = scrub({**self._head, **content, "identity": self.identity})
        write_atomically(self.path, [json.dumps(whole, indent=1).encode(), b"\n"])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < MOST_SECONDS else 0.0


def read_result(path: Path) -> dict[str, Any]:
    """A finished RESULT.json; raises SantagenError for anything else."""
    result = read_json(path, "give a result file that santagen eval -o wrote")
    if not isinstance(result.get("problems"), dict) or not isinstance(result.get("task"), str):
        unfinished = result.get("complete") is False
        raise SantagenError(
            f"{path} is {'an unfinished' if unfinished else 'no'} result of santagen eval.",
            "Finish it with --resume."
            if unfinished
            else "Give a file that santagen eval -o wrote.",
        )
    scores = {} if result.get("pass_at_k") is None else result["pass_at_k"]
    estimates = [*scores.values(), result.get("exact_match")] if isinstance(scores, dict) else [0]
    if not all(map(_is_estimate, estimates)):
        raise SantagenError(f"{path} is damaged: a score is no number.", "Score it again.")
    if not all(map(_is_summary, result["problems"].values())):
        raise SantagenError(
            f"{path} is damaged: a problem has no sensible counts.", "Score it again."
        )
    missing = result.get("missing") or []
    texts = isinstance(missing, list) and all(isinstance(task_id, str) for task_id in missing)
    if not (texts and _are_counts(result.get("classes", {}))):
        raise SantagenError(
            f"{path} is damaged: its classes or missing problems are unreadable.", "Score it again."
        )
    return result


def _is_estimate(found: Any) -> bool:
    """Whether a score is such as `summarise` writes; None where there was nothing to score."""
    if found is None:
        return True
    try:
        low, high = found["sampling_interval"]
        lowest, highest = found["problem_interval"]
        return all(0 <= share <= 1 for share in (found["value"], low, high, lowest, highest))
    except (KeyError, TypeError, ValueError):
        return False


def _is_summary(problem: Any) -> bool:
    """Whether counts are such as `summarise` writes."""
    try:
        n, c, classes = problem["n"], problem["c"], problem["classes"]
        exact, raised = problem.get("exact", 0), problem.get("exceptions", {})
        return (
            all(type(number) is int for number in (n, c, exact))
            and 0 <= c <= n >= exact >= 0 < n
            and _are_counts(classes)
            and _are_counts(raised)
            and sum(classes.values()) == n
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _are_counts(found: Any) -> bool:
    return isinstance(found, dict) and all(type(n) is int and 0 <= n < MOST for n in found.values())
