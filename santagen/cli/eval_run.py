"""One run of `santagen eval`: samples from a model or a file, verdicts, the result.

Only the order of things and what is said about them is decided here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from santagen.cli.console import Console
from santagen.cli.describe import resume_command
from santagen.cli.eval_inputs import chosen_task, require_consent, sampling_of
from santagen.cli.eval_options import EvalOptions
from santagen.cli.eval_progress import Counts, EvalProgress
from santagen.cli.eval_record import head_of_model, head_of_samples, identity
from santagen.cli.eval_table import result_table
from santagen.cli.interrupt import INTERRUPTED, Interrupts
from santagen.cli.labelled import many
from santagen.cli.model import engine_settings, find_model, numerics
from santagen.cli.output import explained, output_path, write_json
from santagen.cli.progress import Tally
from santagen.cli.settings import Resolved
from santagen.evaluation.execution import Pool
from santagen.evaluation.files import Sample, write_samples
from santagen.evaluation.generation import Settings, generate_samples
from santagen.evaluation.result import ResultFile
from santagen.evaluation.runner import Scorer, Verdict
from santagen.evaluation.self_check import SelfCheck, self_check
from santagen.evaluation.statistics import GENERATED_AT
from santagen.evaluation.summary import summarise
from santagen.evaluation.tasks import Task
from santagen.evaluation.workers import Limits
from santagen.request import RowFailure


class Evaluation:
    """One run: opens what it needs in an order that fails early, and closes all of it."""

    def __init__(
        self, settings: Resolved[EvalOptions], console: Console, interrupts: Interrupts
    ) -> None:
        self.settings, self.options = settings, settings.options
        self.console, self.interrupts = console, interrupts
        self.output = output_path(self.options.output)
        self.counts = Counts()
        self.failures: dict[str, str] = {}
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        self.result: ResultFile | None = None
        self.numerics: dict[str, str | None] = {}  # of the model; none for a file of samples

    def run(self) -> int:
        options = self.options
        task, self.samples_file = chosen_task(options)
        require_consent(options, task)
        self.sampling = None
        if self.samples_file is None:
            self.sampling = sampling_of(options, task, self.console)
        head = self._head(task)
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            if self.output is not None:
                self.result = ResultFile.open(
                    self.output,
                    identity=identity(options, task, head, self.sampling, self.numerics),
                    head=head,
                    resume=options.resume,
                    overwrite=options.overwrite,
                )
                stack.callback(self.result.close)
                self.result.check_wanted(self._wanted(task))
            try:
                pool = self._pool(task)
                if pool is not None:
                    stack.enter_context(pool)
                check = SelfCheck(task) if pool is None else self._self_check(task, pool)
                self._judge(check.task, Scorer(check.task, pool))
            except KeyboardInterrupt:
                if self.result is not None:
                    self.result.interrupt()
                self._say_interrupted()
                return INTERRUPTED
            with self.interrupts.shielded():
                self._finish(check, pool, head, time.monotonic() - started)
        return 1 if self.failures else 0

    # -- before the first sample ---------------------------------------------------------------

    def _head(self, task: Task) -> dict[str, Any]:
        if self.sampling is not None:
            self.source = find_model(self.options, self.console)
            self.numerics = numerics(self.options, self.source)
            return head_of_model(self.options, task, self.sampling, self.source)
        assert self.samples_file is not None
        if self.samples_file.echoes:
            self.console.warn(
                f"{self.samples_file.echoes} completions repeat their prompt; it was removed from "
                "them."
            )
        return head_of_samples(self.options, task, self.samples_file)

    def _wanted(self, task: Task) -> Callable[[str, int], bool]:
        """Whether sample `index` of `task_id` is one of this run."""
        if self.samples_file is not None:
            there = {(sample.task_id, sample.index) for sample in self.samples_file.samples}
            return lambda task_id, index: (task_id, index) in there
        assert self.sampling is not None
        chosen, n = task.by_id(), self.sampling.params.n
        return lambda task_id, index: task_id in chosen and 0 <= index < n

    def _pool(self, task: Task) -> Pool | None:
        if not task.runs_programs:
            return None
        options = self.options
        pool = Pool(
            workers=options.workers,
            limits=Limits(memory=options.memory),
            unsafe=options.unsafe,
            tier=None if options.sandbox == "auto" else options.sandbox,
            readable=task.readable,
        )
        for tier, reason in pool.sandbox.refused.items():
            self.console.warn(f"sandbox tier {tier} does not work here: {reason}")
        self.console.say(f"sandbox {pool.sandbox.tier}, {many(pool.workers, 'worker')}")
        return pool

    def _self_check(self, task: Task, pool: Pool) -> SelfCheck:
        check = self_check(task, pool)
        self.console.say(
            f"self-check: {check.right} right programs pass, {check.wrong} wrong ones fail"
        )
        for task_id, seconds in check.slow.items():
            self.console.warn(
                f"the right solution of {task_id} is slow: its programs get {seconds:g} s"
            )
        return check

    # -- samples and verdicts ------------------------------------------------------------------

    def _judge(self, task: Task, scorer: Scorer) -> None:
        earlier = self.result.verdicts if self.result is not None else {}
        wanted = {problem.task_id for problem in task.problems}
        for key, verdict in earlier.items():
            if key[0] in wanted:
                self._keep(verdict)
        left = dict(self.result.waiting) if self.result is not None else {}
        for sample in left.values():
            scorer.add(sample)
        done = {*self.verdicts, *left}
        if self.samples_file is not None:
            todo = [s for s in self.samples_file.samples if (s.task_id, s.index) not in done]
            tally, samples, tokens = Tally(len(todo), 1), iter(todo), lambda: 0
        else:
            assert self.sampling is not None
            tally = Tally(0, self.sampling.params.max_tokens)
            tally.samples_wanted = len(task.problems) * self.sampling.params.n - len(done)
            samples, tokens = self._generated(task, self.sampling, done, tally)
        show = not self.options.quiet if self.options.progress is None else self.options.progress
        progress = EvalProgress(tally, tokens, show, self.counts, self.options.k)
        progress.generating = self.sampling is not None
        with progress:
            for sample in samples:
                with self.interrupts.shielded():
                    if self.result is not None:
                        self.result.generated(sample)
                    scorer.add(sample)
                    self._take(scorer.ready())
            progress.generating = False
            for verdict in scorer.finish():
                self._take(iter([verdict]))

    def _generated(
        self, task: Task, sampling: Settings, done: set[tuple[str, int]], tally: Tally
    ) -> tuple[Iterator[Sample], Any]:
        """Samples of the model, and how to ask for the tokens so far. The model loads only where it
        is needed.
        """
        if not tally.samples_wanted:
            return iter(()), lambda: 0
        from santagen.llm import LLM

        llm = LLM(self.source, **engine_settings(self.options))
        for line in llm.describe():
            self.console.detail(line)
        llm.engine.on_shrink = self.console.warn

        before = 0.0 if self.result is None else self.result.generating_before()
        started = time.monotonic()

        def samples() -> Iterator[Sample]:
            for found in generate_samples(task, llm, sampling, done):
                if isinstance(found, RowFailure):
                    self.failures[str(found.row_id)] = found.error
                    tally.failed_rows += 1
                    tally.samples_wanted -= sampling.params.n
                    self.console.warn(found.error, found.hint)
                else:
                    tally.add(found.extra["usage"]["completion_tokens"])
                    found.extra[GENERATED_AT] = round(before + time.monotonic() - started, 3)
                    yield found

        return samples(), lambda: llm.engine.stats.generated_tokens

    def _take(self, verdicts: Iterator[Verdict]) -> None:
        for verdict in verdicts:
            self._keep(verdict)
            if self.result is not None:
                self.result.judged(verdict)

    def _keep(self, verdict: Verdict) -> None:
        self.verdicts[verdict.sample.task_id, verdict.sample.index] = verdict
        self.counts.add(verdict)

    # -- the end -------------------------------------------------------------------------------

    def _finish(
        self, check: SelfCheck, pool: Pool | None, head: dict[str, Any], seconds: float
    ) -> None:
        task = check.task
        greedy = self.sampling is not None and self.sampling.params.temperature == 0
        summary = summarise(task, self.verdicts.values(), greedy=greedy, ks=self.options.k)
        content = {
            **summary,
            "self_check": check.as_json(),
            "sandbox": None
            if pool is None
            else {**pool.sandbox.describe(), "workers": pool.workers},
            "failures": self.failures,
            "seconds": round(seconds, 2),
        }
        now = ""
        if self.result is not None:
            self.result.finish(task, content)
            if 0 < self.result.seconds_before < self.result.seconds:
                now = f" ({seconds:.1f} s of them now)"
            seconds = self.result.seconds
        elif self.options.output == "-":
            write_json("-o", "-", {**head, **content})
        if self.options.samples_out is not None:
            ordered = sorted(self.verdicts.values(), key=lambda v: v.sample.index)
            rank = {problem.task_id: number for number, problem in enumerate(task.problems)}
            ordered.sort(key=lambda v: rank[v.sample.task_id])
            place, samples = Path(self.options.samples_out), (v.sample for v in ordered)
            with explained("--samples-out", place):
                write_samples(place, samples, task, self.options.format)
        for line in result_table(content):
            self.console.say(line)
        self._say_left_out(content)
        where = f", written to {self.output}" if self.output is not None else ""
        self.console.say(f"{many(len(self.verdicts), 'sample')} in {seconds:.1f} s{now}{where}")

    def _say_left_out(self, content: dict[str, Any]) -> None:
        """A pass@k that was asked for and can't be had."""
        asked = self.settings.origins["k"] != "default"
        left_out = [k for k in self.options.k if str(k) not in content["pass_at_k"]]
        if asked and left_out:
            fewest = min((problem["n"] for problem in content["problems"].values()), default=0)
            names = ", ".join(f"pass@{k}" for k in left_out)
            self.console.warn(f"{names} left out: a problem has {many(fewest, 'sample')} only")

    def _say_interrupted(self) -> None:
        if self.result is None:
            self.console.warn("interrupted; nothing was written.")
            return
        if not self.result.begun:
            self.console.interrupted_before("verdict", self.result.path)
            return
        self.console.warn(
            f"interrupted: {len(self.verdicts)} verdicts are safe in {self.output}.",
            f"Go on with: {resume_command(self.settings, 'eval')}",
        )
