"""`santagen eval`: a score for a model on a task, for a file of samples, or two results compared.

    task + sandbox -> self-check -> samples (LLM or file) -> Scorer -> RESULT.json, a table

Checks what was asked for; the run itself is `eval_run`'s.
"""

from __future__ import annotations

import os
from pathlib import Path

from santagen.cli.console import Console
from santagen.cli.describe import show_config
from santagen.cli.eval_options import EvalOptions
from santagen.cli.eval_run import Evaluation, write_json
from santagen.cli.eval_table import comparison_table
from santagen.cli.interrupt import Interrupts
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError
from santagen.evaluation.compare import compare
from santagen.evaluation.result import read_result


def run(settings: Resolved[EvalOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    if options.show_config:
        print(show_config(settings, "eval"))
        return 0
    console = Console(options.quiet, options.verbose)
    if options.compare:
        return _compare(options, console)
    _check_options(options)
    with Interrupts() as interrupts:
        return Evaluation(settings, console, interrupts).run()


def _compare(options: EvalOptions, console: Console) -> int:
    if len(options.targets) != 2:
        raise SantagenError(
            "--compare takes two result files.", "santagen eval --compare A.json B.json"
        )
    first, second = options.targets
    found = compare(read_result(Path(first)), read_result(Path(second)), options.k)
    for line in comparison_table(found, (first, second)):
        console.say(line)
    if options.output is not None:
        write_json(options.output, found.as_json())
    return 0


def _check_options(options: EvalOptions) -> None:
    if len(options.targets) != 1:
        raise SantagenError(
            "eval takes one task or one file of samples.",
            "As in santagen eval humaneval -m MODEL, or santagen eval SAMPLES.jsonl.",
        )
    if options.resume and options.overwrite:
        raise SantagenError("--resume and --overwrite exclude each other.", "Give one of them.")
    if options.resume and options.output in (None, "-"):
        raise SantagenError("--resume needs a result file.", "Name it with -o RESULT.json.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SantagenError(
            "eval runs in one process.",
            "Generate with torchrun and santagen generate, then score the file with santagen eval.",
        )
