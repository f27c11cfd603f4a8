"""The leaders of a run of several processes: each generates the rows it draws, with its group.

    join -> inputs -> load everywhere -> OUT begun -> parts made -> rows drawn ... -> merge

Rank 0 also plans, speaks and merges. Nothing of an earlier output is touched before every rank has
its weights. How ranks join and end is in cli.ranks.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from santagen.cli.console import Console
from santagen.cli.degenerate import Degenerate
from santagen.cli.generate import TOKENISED_TOGETHER, Job
from santagen.cli.generate_inputs import Inputs
from santagen.cli.labelled import many
from santagen.cli.model import engine_settings
from santagen.cli.progress import Progress, with_rate
from santagen.errors import SantagenError
from santagen.io.parts import part_path
from santagen.parallel.row_queue import RowPlan, chunk_rows, draw_rows
from santagen.request import PromptRow, Request, RowFailure, SampleOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from santagen.cli.ranks import Rank
    from santagen.engine.llm_engine import EngineStats
    from santagen.io.part_writer import PartWriter
    from santagen.io.writer import OutputWriter
    from santagen.llm import LLM

VISIBLE_SECONDS = 30.0  # for a new file to be seen through a network file system


@dataclass(frozen=True)
class Result:
    """What a group tells rank 0 when its part is whole."""

    stats: dict[str, Any]  # EngineStats
    seconds: float  # from the first row drawn to the last sample written; idle after that
    samples: int
    failures: list[RowFailure]
    remarks: Counter[str]
    degenerate: Degenerate


class Leader(Job):
    """A leader of a group: generates the rows that it draws, with its group's shards."""

    def __init__(self, rank: Rank, inputs: Inputs) -> None:
        super().__init__(rank.settings, inputs, rank.console, rank.interrupts)
        self.rank, self.cluster, self.world = rank, rank.cluster, rank.cluster.world
        self.plan = RowPlan()
        self.stats: EngineStats  # from the moment the model is there

    def _ready(self, rows: int) -> LLM:
        """Load this group's model, and wait until every rank has its own."""
        llm = load_shard(self.rank, self.inputs.source)
        llm.engine.on_shrink = Console(any_rank=True).warn
        groups = self.world.data_parallel
        self.tokenised_together = draw_evenly(llm, groups, rows, self.inputs.params.n)
        self.stats = llm.engine.stats
        self.cluster.barrier("loaded", self.world.size)
        return llm

    def _requests(self, llm: LLM, writer: OutputWriter) -> Iterator[Request | RowFailure]:
        own = super()._requests(llm, writer)
        return self.cluster.tensor_parallel.same_items(own, self.tokenised_together)

    def _to_do(self, writer: OutputWriter) -> Iterator[tuple[PromptRow, tuple[int, ...]]]:
        numbers = self.plan.numbers()
        if self.world.data_parallel == 1:
            chosen = iter(numbers.tolist())
        else:
            chunk = self.tokenised_together
            chosen = draw_rows(numbers, chunk, lambda count: self.cluster.add("drawn", count))
        for row in self.inputs.prompts.select(chosen):
            yield row, self.plan.partial.get(row.number) or tuple(self._samples_of(row))


class OtherLeader(Leader):
    """The leader of a group other than the first: its samples go to a part."""

    def __init__(self, rank: Rank, inputs: Inputs, plan: RowPlan, rows: int) -> None:
        super().__init__(rank, inputs)
        self.plan, self.rows = plan, rows

    def run(self) -> int:
        cluster, group = self.cluster, self.world.group
        llm = self._ready(self.rows)
        cluster.receive("begun")
        self.rank.begun = True
        with self._open_part() as writer:
            cluster.barrier("parts", self.world.data_parallel)
            cluster.receive("go")
            cluster.watch.on_beat = self._send_tally
            started = time.monotonic()
            self._write_results(llm, writer)
            seconds = time.monotonic() - started
            writer.end()
        stats = dataclasses.asdict(self.stats)
        result = Result(
            stats, seconds, writer.samples, writer.failures, self.remarks, self.degenerate
        )
        cluster.publish(f"result/{group}", result)
        return 0  # as far as this group knows

    def _open_part(self) -> PartWriter:
        from santagen.io.part_writer import PartWriter

        assert self.output is not None, "groups are refused without an output file"
        options = self.options
        return PartWriter.create(
            self.output,
            self.world.group,
            model=self.inputs.source.name,
            echo=options.echo,
            token_ids=options.token_ids,
            format=options.format,
        )

    def _say_failed(self, failure: RowFailure) -> None:
        """Rank 0 says it when it merges."""

    def _send_tally(self) -> None:
        tally = self.tally
        counts = (tally.samples_wanted, tally.samples_done, tally.tokens_of_done)
        text = " ".join(map(str, (*counts, tally.failed_rows, self.stats.generated_tokens)))
        self.cluster.watch.board.set(f"tally/{self.world.group}", text)


class RankZero(Leader):
    """The leader that also speaks, plans and merges."""

    def __init__(self, rank: Rank, inputs: Inputs, device: torch.device) -> None:
        super().__init__(rank, inputs)
        self.device = device
        self.shown = self.tally  # with the other groups' counts, where there are any
        self.generated_elsewhere = 0
        self.parts: dict[int, int] = {}  # group: samples
        rank.done = self._done_everywhere

    def _open_writer(self) -> OutputWriter:
        writer = super()._open_writer()
        if self.world.data_parallel > 1 and writer.path is None:
            writer.close()
            raise SantagenError(
                f"{self.output} is no regular file: several groups can't write parts of it.",
                "Name a file with -o OUT.jsonl.",
            )
        return writer

    def _count(self, writer: OutputWriter) -> int:
        if not len(writer.done):
            self.plan = RowPlan.of(self.inputs.prompts.numbers(), {})
            samples = super()._count(writer)
        else:
            samples = self._count_what_is_left(writer)
        if not samples:
            self.cluster.publish("rows", 0)
        return samples

    def _count_what_is_left(self, writer: OutputWriter) -> int:
        numbers, partial, samples = [], {}, 0
        for row, left in self._left(writer):
            numbers.append(row.number)
            samples += len(left)
            if len(left) < len(self._samples_of(row)):
                partial[row.number] = left
        self.plan = RowPlan.of(np.array(numbers, np.int64), partial)
        return samples

    def _generate(self, writer: OutputWriter) -> dict[str, Any]:
        cluster, groups = self.cluster, self.world.data_parallel
        rows = len(self.plan.numbers())
        if groups > 1:
            cluster.publish("plan", (self.inputs.prompts, self.plan))
        cluster.publish("rows", rows)
        cluster.connect(self.device)
        llm = self._ready(rows)
        self._begin(writer)
        self.console.say(f"{groups} x {self.world.tensor_parallel} processes, each with:")
        for line in llm.describe():
            self.console.say(line)
        started = time.monotonic()
        if groups > 1:
            self.shown = dataclasses.replace(self.tally)
            cluster.watch.on_beat = self._add_up
        with Progress(self.shown, self._generated_everywhere, self._show_progress()):
            self._write_results(llm, writer)
            own = time.monotonic() - started
            others: list[Result] = [cluster.receive(f"result/{k}") for k in range(1, groups)]
        seconds = time.monotonic() - started
        cluster.watch.on_beat = lambda: None
        total = dataclasses.asdict(self.stats)
        for group, other in enumerate(others, start=1):
            total = {name: total[name] + other.stats[name] for name in total}
            self.tally.samples_done += other.samples
            self.parts[group] = other.samples
            self.remarks.update(other.remarks)
            self.degenerate.update(other.degenerate)
            for failure in other.failures:
                self._fail(writer, failure)
        by_group = {
            "samples_by_group": [self.stats.samples, *(other.samples for other in others)],
            "seconds_by_group": [own, *(other.seconds for other in others)],
        }
        return with_rate(total, seconds) | by_group

    def _begin(self, writer: OutputWriter) -> None:
        """Take over the output, let the other leaders make their parts, and see that they did.

        One group alone leaves an earlier output as it is until its first sample.
        """
        cluster, groups = self.cluster, self.world.data_parallel
        if groups == 1:
            return
        writer.begin()
        self._tell_begun(writer)
        cluster.barrier("parts", groups)
        deadline = time.monotonic() + VISIBLE_SECONDS
        for group in range(1, groups):
            assert self.output is not None
            part = part_path(self.output, group)
            cluster.wait(lambda part=part: part.exists() or time.monotonic() > deadline)  # type: ignore[misc]
            if not part.exists():
                raise SantagenError(
                    f"{part} can't be seen by rank 0, though its group has made it.",
                    "The folder of -o must be one that every node shares.",
                )
        cluster.publish("go", True)

    def _add_up(self) -> None:
        """Bring what the progress shows up to date with the other groups."""
        board, own, shown = self.cluster.watch.board, self.tally, self.shown
        keys = [f"tally/{group}" for group in range(1, self.world.data_parallel)]
        keys = [key for key in keys if board.check([key])]
        totals = [0] * 5
        for value in board.multi_get(keys) if keys else []:
            totals = [a + int(b) for a, b in zip(totals, value.split(), strict=True)]
        wanted, done, tokens, failed, self.generated_elsewhere = totals
        shown.samples_wanted = own.samples_wanted + wanted
        shown.samples_done = own.samples_done + done
        shown.tokens_of_done = own.tokens_of_done + tokens
        shown.failed_rows = own.failed_rows + failed

    def _generated_everywhere(self) -> int:
        return self.stats.generated_tokens + self.generated_elsewhere

    def _finish(self, writer: OutputWriter, summary: dict[str, Any]) -> None:
        with self._passing("putting the samples into order") as progress:
            rows = ((row.row_id, row.number) for row in progress.over(self.inputs.prompts))
            writer.finish(rows, summary, self.parts)

    def _write_result(self, writer: OutputWriter, result: SampleOutput | RowFailure) -> None:
        try:
            super()._write_result(writer, result)
        finally:
            if writer.begun and not self.rank.begun:
                self._tell_begun(writer)

    def _tell_begun(self, writer: OutputWriter) -> None:
        """The output is this run's now: every rank may say so, and how to go on."""
        self.rank.begun = writer.begun
        self.cluster.publish("begun", True)

    def _done_everywhere(self) -> str:
        shown = self.shown
        if not shown.samples_wanted:
            return ""
        known = "at least " if self.world.data_parallel > 1 else ""  # others wrote on since
        return f"{known}{shown.samples_done:,} of {many(shown.samples_wanted, 'sample')}"

    def _say_interrupted(self) -> None:
        self.rank.say_interrupted()


def load_shard(rank: Rank, source: Any) -> LLM:
    """This rank's shard of the model, or all of it."""
    from santagen.llm import LLM

    cluster = rank.cluster
    parallel, sharing = cluster.tensor_parallel, cluster.world.local_size
    return LLM(source, parallel=parallel, sharing=sharing, **engine_settings(rank.options))


def draw_evenly(llm: LLM, groups: int, rows: int, n: int) -> int:
    """Have the engine hold few rows beyond those it runs; returns how many to prepare together.

    One group alone takes them as a run of one process does.
    """
    if groups == 1:
        return TOKENISED_TOGETHER
    chunk = chunk_rows(rows, groups, llm.plan.max_num_seqs, n)
    llm.engine.window = max(1, chunk * n)
    return chunk
