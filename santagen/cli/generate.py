"""`santagen generate`: prompts in, one JSON line per sample out.

    settings -> PromptSet (validated whole) -> OutputWriter (opened) -> LLM (loaded) -> OutputWriter

Only the order of things and what is said about them is decided here; each step is another module's.
What is checked before is in cli.generate_inputs, what the processes of a larger run do in
cli.ranks.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from santagen.cli.console import Console, rank, report_error
from santagen.cli.degenerate import HINT, Degenerate
from santagen.cli.describe import command_line, plain_settings, resume_command, versions
from santagen.cli.generate_inputs import Inputs, read_inputs, said_if_slow
from santagen.cli.interrupt import INTERRUPTED, Interrupts, import_whole
from santagen.cli.labelled import many
from santagen.cli.model import engine_settings, numerics
from santagen.cli.options import GenerateOptions
from santagen.cli.output import output_path
from santagen.cli.progress import Progress, Tally, with_rate
from santagen.cli.rows_progress import RowsProgress, shows_rows
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError
from santagen.io.output_place import errors_path
from santagen.parallel.world import World, sizes
from santagen.request import PromptRow, Request, RowFailure, SampleOutput

if TYPE_CHECKING:
    from santagen.io.writer import OutputWriter
    from santagen.llm import LLM

SHOWN_FAILURES = 5
TOKENISED_TOGETHER = 64  # rows: more would keep a GPU waiting
# What a resumed run must share with the first, beside the model, the prompts and the sampling.
DECIDES_BYTES = (
    "quantization", "invariant", "block_size", "fim_mode", "truncate", "max_model_len",
    "limit", "shard", "keep", "format", "echo", "token_ids", "prompt_column", "split",
)  # fmt: skip


def run(settings: Resolved[GenerateOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    world = launched_world(os.environ)
    if options.dry_run and world.rank:
        return 0
    console = Console(options.quiet, options.verbose)
    if not options.dry_run:
        if world.size > 1:
            from santagen.cli.ranks import run_rank

            return run_rank(settings, world, console)
        launched = world.size if os.environ.get("WORLD_SIZE") else None
        asked = sizes(options.tensor_parallel_size, options.data_parallel_size, launched)
        if asked != (1, 1):
            from santagen.cli.launch import relaunch

            return relaunch(settings, *asked)
    with Interrupts() as interrupts:
        import_whole("numpy")
        inputs = read_inputs(options, console)
        if options.dry_run:
            from santagen.cli.dry_run import dry_run

            return dry_run(options, inputs, console)
        job = Job(settings, inputs, console, interrupts)
        try:
            return job.run()
        except Exception as error:
            job.say_kept(error)
            raise


def launched_world(environment: Mapping[str, str]) -> World:
    """As World.from_environment, whose fault is said here: the rank may be what is wrong."""
    try:
        return World.from_environment(environment)
    except SantagenError as error:
        if rank():
            report_error(error, any_rank=True)
        raise


class Job:
    """One run: opens the output, loads the model where anything is left to do, and writes."""

    def __init__(
        self,
        settings: Resolved[GenerateOptions],
        inputs: Inputs,
        console: Console,
        interrupts: Interrupts,
    ) -> None:
        self.settings, self.options = settings, settings.options
        self.inputs, self.console, self.interrupts = inputs, console, interrupts
        self.output = output_path(settings.options.output)
        self.failed: set[int] = set()  # row numbers
        self._begun = False  # whether the output holds samples of this run
        self.tally = Tally(0, inputs.params.max_tokens)
        self.degenerate = Degenerate()
        self.tokenised_together = TOKENISED_TOGETHER
        self.remarks: Counter[str] = Counter()  # of how many rows

    def run(self) -> int:
        started = time.monotonic()
        looking = f"looking at what {self.output} holds already"
        with said_if_slow(self.console, looking) if self.options.resume else nullcontext():
            writer = self._open_writer()
        self.output = writer.path  # None also where -o names a device or a pipe
        try:
            for failure in self.inputs.prompts.failures:
                self._fail(writer, failure)
            self.tally.samples_wanted = self._count(writer)
            stats = self._generate(writer) if self.tally.samples_wanted else {}
            with self.interrupts.shielded():
                seconds = time.monotonic() - started
                self._finish(writer, {"seconds": seconds, **stats})
        except KeyboardInterrupt:
            writer.close()
            self._begun = writer.begun
            self._say_interrupted()
            return INTERRUPTED
        finally:
            writer.close()
            self._begun = writer.begun
        self._say_finished(seconds, stats)
        return 1 if self.tally.failed_rows else 0

    def _open_writer(self) -> OutputWriter:
        from santagen.checkpoint.source import model_fingerprint
        from santagen.io.writer import OutputWriter

        options, inputs = self.options, self.inputs
        identity = {
            "model": model_fingerprint(inputs.source.path),
            "prompts": inputs.prompts.fingerprint,
            "sampling": dataclasses.asdict(inputs.params),
            **numerics(options, inputs.source),
            **{name: getattr(options, name) for name in DECIDES_BYTES},
        }
        info = {
            "model": inputs.source.name,
            "revision": inputs.source.revision,
            "command": shlex.join(["santagen", *command_line(self.settings, "generate")[0]]),
            "settings": plain_settings(options),
            "versions": versions(),
        }
        return OutputWriter.open(
            self.output,
            identity=identity,
            info=info,
            resume=options.resume,
            overwrite=options.overwrite,
            unordered=options.unordered,
            echo=options.echo,
            token_ids=options.token_ids,
            format=options.format,
        )

    def _left(self, writer: OutputWriter) -> Iterator[tuple[PromptRow, tuple[int, ...]]]:
        """As `_wanted`, for the pass before the model is loaded: shows how far it is."""
        with self._passing("finding what is left to draw") as progress:
            yield from self._wanted(writer, progress.over(self.inputs.prompts))

    def _passing(self, what: str) -> RowsProgress:
        return RowsProgress(what, len(self.inputs.prompts), shows_rows(self.options))

    def _wanted(
        self, writer: OutputWriter, prompts: Iterable[PromptRow]
    ) -> Iterator[tuple[PromptRow, tuple[int, ...]]]:
        """The rows that have samples left to draw, each with their indices."""
        for row in writer.checked(prompts, lambda row: len(self._samples_of(row))):
            left = tuple(i for i in self._samples_of(row) if (row.row_id, i) not in writer.done)
            if left:
                yield row, left

    def _to_do(self, writer: OutputWriter) -> Iterator[tuple[PromptRow, tuple[int, ...]]]:
        """Of these, the ones that this process generates."""
        return self._wanted(writer, self.inputs.prompts)

    def _samples_of(self, row: PromptRow) -> range:
        return range(row.overrides.get("n", self.inputs.params.n))

    def _count(self, writer: OutputWriter) -> int:
        """How many samples are left to draw."""
        if not len(writer.done):
            return self.inputs.prompts.samples(self.inputs.params.n)
        return sum(len(left) for _, left in self._left(writer))

    def _generate(self, writer: OutputWriter) -> dict[str, Any]:
        llm = self._load()
        for line in llm.describe():
            self.console.say(line)
        llm.engine.on_shrink = self.console.warn
        stats = llm.engine.stats
        started = time.monotonic()
        with Progress(self.tally, lambda: stats.generated_tokens, self._show_progress()):
            self._write_results(llm, writer)
        return with_rate(dataclasses.asdict(stats), time.monotonic() - started)

    def _load(self) -> LLM:
        from santagen.llm import LLM

        return LLM(self.inputs.source, **engine_settings(self.options))

    def _write_results(self, llm: LLM, writer: OutputWriter) -> None:
        try:
            for result in llm.engine.run(self._requests(llm, writer)):
                self._write_result(writer, result)
        except KeyboardInterrupt:
            if not self.interrupts.stalled:  # else nobody takes them
                for result in llm.engine.drain():
                    self._write_result(writer, result)
            raise

    def _write_result(self, writer: OutputWriter, result: SampleOutput | RowFailure) -> None:
        with self.interrupts.shielded():
            if isinstance(result, SampleOutput):
                writer.write(result)
                self.tally.add(result.generated_tokens)
                self.degenerate.add(result)
            else:
                self._fail(writer, result)

    def _finish(self, writer: OutputWriter, summary: dict[str, Any]) -> None:
        with self._passing("putting the samples into order") as progress:
            rows = progress.over(self.inputs.prompts)
            writer.finish(((row.row_id, row.number) for row in rows), summary)

    def _requests(self, llm: LLM, writer: OutputWriter) -> Iterator[Request | RowFailure]:
        """Tokenised as the engine asks for them."""
        options = self.options
        builder = llm.request_builder(self.inputs.params, options.fim_mode, options.truncate)
        left: dict[int, tuple[int, ...]] = {}

        def rows() -> Iterator[PromptRow]:
            for row, wanted in self._to_do(writer):
                left[row.number] = wanted
                yield row

        for request in builder.build_many(rows(), self.tokenised_together):
            wanted = left.pop(request.number)
            if isinstance(request, RowFailure):
                self.tally.samples_wanted -= len(wanted)
                yield request
            else:
                yield dataclasses.replace(request, sample_indices=wanted)
        self.remarks.update(builder.warnings)

    def _fail(self, writer: OutputWriter, failure: RowFailure) -> None:
        """Note a row that failed, once: each of its samples may."""
        if failure.number in self.failed:
            return
        self.failed.add(failure.number)
        writer.fail(failure)
        self.tally.failed_rows += 1
        self._say_failed(failure)

    def _say_failed(self, failure: RowFailure) -> None:
        shown = self.output is None or self.options.verbose
        if shown or self.tally.failed_rows <= SHOWN_FAILURES:
            self.console.warn(failure.error, failure.hint)

    def _show_progress(self) -> bool:
        options = self.options
        if options.progress is not None:
            return options.progress
        data_on_screen = self.output is None and sys.stdout.isatty()
        return not options.quiet and not data_on_screen

    def say_kept(self, error: Exception) -> None:
        """Before an error ends the run: what of it is safe, where the error doesn't say so."""
        told = getattr(error, "hint", "") + str(error)
        if self.output is None or not self._begun or "--resume" in told:
            return
        self.console.warn(
            self._done_safe(),
            f"Go on with: {resume_command(self.settings, 'generate')}",
        )

    def _done(self) -> str:
        return f"{self.tally.samples_done} of {many(self.tally.samples_wanted, 'sample')}"

    def _done_safe(self) -> str:
        verb = "is" if self.tally.samples_wanted == 1 else "are"
        return f"{self._done()} of this run {verb} safe in {self.output}."

    def _say_interrupted(self) -> None:
        output, done = self.output, self._done()
        if output is None:
            self.console.warn(f"interrupted after {done}.")
            return
        if not self._begun and not (self.options.resume and output.exists()):
            self.console.interrupted_before("sample", output)
            return
        self.console.warn(
            f"interrupted: {self._done_safe()}",
            f"Go on with: {resume_command(self.settings, 'generate')}",
        )

    def _say_finished(self, seconds: float, stats: dict[str, Any]) -> None:
        self.console.remarks(self.remarks)
        tally, output = self.tally, self.output
        tokens = stats.get("generated_tokens", 0)
        rate = f", {stats['tokens_per_second']:,.0f} tok/s" if tokens else ""
        self.console.say(
            f"{many(tally.samples_done, 'sample')}, {many(tokens, 'token')} in {seconds:.1f} s"
            + rate
            + (f", written to {output}" if output else "")
        )
        if degenerate := self.degenerate.warning():
            self.console.warn(degenerate, HINT)
        if tally.failed_rows:
            where = f", listed in {errors_path(output)}" if output else ""
            self.console.warn(f"{many(tally.failed_rows, 'row')} failed{where}.")
