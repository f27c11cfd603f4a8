"""`santagen bench`: how fast a model runs here, beside what the hardware allows.

    checks -> card -> probes of the device -> LLM -> one table row per case -> JSON

Only the order of things and what is said about them is decided here; `santagen.bench` measures.
The table goes to standard error like every table; data is what --output-json asks for.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from santagen.bench import report
from santagen.bench.card import ModelCard, in_words, model_card
from santagen.bench.cases import Case, Result, make_cases
from santagen.bench.limit import Limit, Rates
from santagen.cli.bench_checks import bench_settings, check_run
from santagen.cli.bench_options import BenchOptions, sizes
from santagen.cli.console import Console
from santagen.cli.describe import plain_settings, versions
from santagen.cli.interrupt import ENGINE, INTERRUPTED, Interrupts, import_whole
from santagen.cli.model import find_model
from santagen.cli.output import (
    output_path,
    refuse_read,
    settings_files,
    with_temporary,
    write_json,
)
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError
from santagen.request import SamplingParams

if TYPE_CHECKING:
    from santagen.bench.measure import Bench
    from santagen.checkpoint.source import ModelSource


def run(settings: Resolved[BenchOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    check_options(options)
    with Interrupts() as interrupts:
        return Job(options, Console(options.quiet, options.verbose), interrupts).run()


def check_options(options: BenchOptions) -> None:
    """What can be told before anything is loaded or measured."""
    if options.quiet and options.verbose:
        raise SantagenError("--quiet and --verbose exclude each other.", "Give one of them.")
    if options.model is not None and options.random_weights is not None:
        raise SantagenError(
            "-m and --random-weights exclude each other: one reads weights, the other draws them.",
            "Give one of them; --random-weights takes a model's directory for its shape alone.",
        )
    SamplingParams(temperature=options.temperature, top_p=options.top_p)  # refuses what can't be
    if options.warmup < 0:
        raise SantagenError(f"--warmup is {options.warmup}; it can't be negative.", "0 is none.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SantagenError("bench runs in one process.", "Start it without torchrun.")
    output = output_path(options.output_json)
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise SantagenError(
            f"--output-json {output} can't be written: it is a folder, or its folder is missing.",
            "Name a file in a folder that exists.",
        )
    if output is not None:
        refuse_read("--output-json", with_temporary(output), settings_files(options))


class Job:
    """One bench: what is known of it, in the order in which it becomes known."""

    def __init__(self, options: BenchOptions, console: Console, interrupts: Interrupts) -> None:
        self.options, self.console, self.interrupts = options, console, interrupts
        self.results: list[Result] = []
        self.interrupted = False
        self.started = time.monotonic()

    def run(self) -> int:
        import_whole(*ENGINE)
        from santagen.bench.probes import device_name, measure_rates

        source = self._source()
        card, device, dtype, cases = self._plan(source)
        rates = measure_rates(device, dtype)
        name = device_name(device)
        self.console.say(report.rates_line(rates, name, card.dtype))
        bench = self._bench(source, cases)
        limit = self._limit(bench, card, rates)
        try:
            self._measure(bench, cases, limit)
        except KeyboardInterrupt:
            self.interrupted = True
        with self.interrupts.shielded():
            self._finish(limit, name, len(cases))
        if self.interrupted:
            return INTERRUPTED
        return 1 if any(result.error is not None for result in self.results) else 0

    def _source(self) -> ModelSource:
        options = self.options
        if options.random_weights is None:
            return find_model(options, self.console)
        from santagen.checkpoint.random_weights import random_model

        return random_model(options.random_weights)

    def _plan(self, source: ModelSource) -> tuple[ModelCard, Any, Any, list[Case]]:
        """The card, shown; the torch device and dtype; what is to be measured."""
        from santagen.bench.probes import usable_memory
        from santagen.engine.memory import refuse_too_large
        from santagen.engine.resolve import choose_device, choose_dtype, model_config

        options, config = self.options, model_config(source)
        device = choose_device(options.device)
        dtype, _ = choose_dtype(options.dtype, config, device)
        chosen = (options.batch_sizes, options.prompt_len, options.output_len)
        cases = make_cases(device.type, config, *(sizes(c) if c else () for c in chosen))
        if device.type == "cpu" and options.random_weights is not None:
            refuse_too_large(source.name, config, dtype)  # a checkpoint may be packed: LLM knows
        config = check_run(options, source, device, dtype, cases)
        card = model_card(config, source.name, str(dtype).removeprefix("torch."), dtype.itemsize)
        lengths = {case.length for case in cases} | {config.n_positions}
        memory = usable_memory(device, options.gpu_memory_utilization, card.weight_bytes)
        for line in card.lines(memory, tuple(sorted(lengths))):
            self.console.say(line)
        return card, device, dtype, cases

    def _bench(self, source: ModelSource, cases: list[Case]) -> Bench:
        from santagen.bench.measure import Bench
        from santagen.llm import LLM

        options, settings = self.options, bench_settings(self.options, cases)
        return Bench(
            lambda: LLM(source, **settings),
            temperature=options.temperature,
            top_p=options.top_p,
            repeat=options.repeat,
            warmup=options.warmup,
        )

    def _limit(self, bench: Bench, card: ModelCard, rates: Rates) -> Limit:
        """Loads the model: its weights as they lie in memory decide the limit."""
        from santagen.bench.measure import bytes_read

        started = time.monotonic()
        llm = bench.llm
        for line in llm.describe():
            self.console.say(line)
        self.console.detail(f"ready after {time.monotonic() - started:.1f} s")
        read = bytes_read(llm.engine.runner.model)
        self.console.say(f"a decode step reads {in_words(read)} of weights")
        return Limit(card, rates, read)

    def _measure(self, bench: Bench, cases: list[Case], limit: Limit) -> None:
        self.console.say(report.header())
        for case in cases:
            result = bench.measure(case)
            self.results.append(result)
            self.console.say(report.row(result, limit))
            for note in result.notes():
                self.console.warn(note)

    def _finish(self, limit: Limit, device: str, wanted: int) -> None:
        seconds = time.monotonic() - self.started
        place = self.options.output_json
        if place is not None:
            self._write(place, limit, device, seconds)
        failed = sum(result.error is not None for result in self.results)
        done = f"{len(self.results) - failed} of {wanted} sizes in {seconds:.1f} s"
        done += f", {failed} failed" if failed else ""
        where = f", written to {place}" if output_path(place) is not None else ""
        if self.interrupted:
            self.console.warn(f"interrupted after {done}{where}.")
        else:
            self.console.say(f"{done}{where}")

    def _write(self, place: str, limit: Limit, device: str, seconds: float) -> None:
        content = {
            "versions": versions(),
            "settings": plain_settings(self.options),
            "device": {
                "name": device,
                **dataclasses.asdict(limit.rates),
                "bandwidth": limit.rates.bandwidth,
            },
            "model": {**limit.card.as_json(), "bytes_read_per_step": limit.read_bytes},
            "cases": [report.as_json(result, limit) for result in self.results],
            "seconds": seconds,
            "interrupted": self.interrupted,
        }
        write_json("--output-json", place, content)
