"""What `santagen generate` checks before any weight is read: options, output, every prompt, model.

Nothing is written, and no tokenizer is loaded: what only shows there fails its row later.
"""

from __future__ import annotations

import dataclasses
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from santagen.cli.console import Console
from santagen.cli.model import find_model
from santagen.cli.options import GenerateOptions
from santagen.cli.output import output_path, refuse_read, settings_files
from santagen.cli.rows_progress import READING, ReadingProgress, input_size, shows_rows
from santagen.errors import SantagenError, many
from santagen.io.prompts import PromptSet, read_prompts
from santagen.io.read_count import ReadCount
from santagen.request import SamplingParams

if TYPE_CHECKING:
    from santagen.checkpoint.source import ModelSource

SLOW_SECONDS = 1.5  # of silence


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known before any model is looked at."""

    params: SamplingParams
    prompts: PromptSet
    source: ModelSource


def sampling_params(options: GenerateOptions) -> SamplingParams:
    """The settings of rows that override nothing."""
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    return SamplingParams(**{name: getattr(options, name) for name in names})


def read_inputs(options: GenerateOptions, console: Console) -> Inputs:
    """Check the options against each other, validate every prompt, find the model."""
    check_together(options)
    params = sampling_params(options)
    seen, shown = ReadCount(), shows_rows(options)
    # What is silent without progress is said once; with progress, nothing is.
    said = nullcontext() if shown else said_if_slow(console, READING)
    with said, ReadingProgress(seen, input_size(options), shown):
        prompts = read_prompts(
            list(options.prompts),
            dataset=options.dataset,
            split=options.split,
            token=options.hf_token,
            prompt_column=options.prompt_column,
            keep=options.keep,
            limit=options.limit,
            shard=parse_shard(options.shard),
            defaults=params,
            count=seen,
        )
    if options.strict and prompts.failures:
        first = prompts.failures[0]
        count = len(prompts.failures)
        raise SantagenError(
            f"{count} of {many(count + len(prompts), 'row')} {'is' if count == 1 else 'are'} bad; "
            f"the first: {first.error}",
            first.hint or "Mend them, or run without --strict to use the others.",
        )
    if not prompts.total_rows:
        console.warn("The input holds no rows.", "Check what writes it, and its path.")
    for path in options.prompts:
        if path.lower().endswith(".csv"):
            console.warn(
                f"{path} is taken as one prompt, the whole file.",
                f"For a prompt of each row: --dataset {shlex.quote(path)} --prompt-column NAME",
            )
    return Inputs(params, prompts, find_model(options, console))


def check_together(options: GenerateOptions) -> None:
    """Refuse options that exclude each other, and an output that can't be used."""
    if options.resume and options.overwrite:
        raise SantagenError("--resume and --overwrite exclude each other.", "Give one of them.")
    if options.resume and output_path(options.output) is None:
        raise SantagenError("--resume needs an output file.", "Name it with -o OUT.jsonl.")
    if options.output is not None:
        refuse_own_input(options)
        if not options.dry_run:
            check_output(options.output, options.resume or options.overwrite)
    if options.quiet and options.verbose:
        raise SantagenError("--quiet and --verbose exclude each other.", "Give one of them.")


@contextmanager
def said_if_slow(console: Console, message: str) -> Iterator[None]:
    """Say what is going on where it takes more than a moment."""
    timer = threading.Timer(SLOW_SECONDS, console.say, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_output(output: str, may_exist: bool) -> None:
    """Refuse an unusable output before a model is fetched; opening it looks again."""
    from santagen.io.output_place import check_place, refuse_existing

    path = output_path(output)
    if path is not None and check_place(path) and not may_exist:
        refuse_existing(path)


def refuse_own_input(options: GenerateOptions) -> None:
    """An output that is a file of the input, or has one beside it that is, would destroy it."""
    from santagen.io.output_place import own_files

    path = output_path(options.output)
    if path is None:
        return
    prompts = [prompt for prompt in options.prompts if prompt != "-"]
    dataset = [] if options.dataset is None else [options.dataset]
    written = own_files(path)
    refuse_read("-o", written, [*prompts, *dataset], "one of the prompt files")
    refuse_read("-o", written, settings_files(options))


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """ "1/4" -> (1, 4)."""
    if text is None:
        return None
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise SantagenError(
            f"--shard {text} is no shard.", "Write I/N, as in 0/4, 1/4, 2/4 and 3/4."
        )
    return int(index), int(count)
