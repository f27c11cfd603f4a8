"""`santagen eval`: a score for a model on a task, for a file of samples, or two results compared.

    task + sandbox -> self-check -> samples (LLM or file) -> Scorer -> RESULT.json, a table

What it refuses is `eval_checks`', the run itself `eval_run`'s.
"""

from __future__ import annotations

import os
from pathlib import Path

from santagen.cli.console import Console
from santagen.cli.eval_checks import check_comparison, check_options
from santagen.cli.eval_options import EvalOptions
from santagen.cli.eval_prompts import write_prompts
from santagen.cli.eval_run import Evaluation
from santagen.cli.eval_table import comparison_table
from santagen.cli.generate import launched_world
from santagen.cli.interrupt import Interrupts, import_whole
from santagen.cli.output import write_json
from santagen.cli.settings import Resolved
from santagen.evaluation.compare import compare
from santagen.evaluation.result import read_result


def run(settings: Resolved[EvalOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    if launched_world(os.environ).rank:
        return 0  # rank 0 speaks; an error here could end it before it has said why
    console = Console(options.quiet, options.verbose)
    import_whole("numpy")
    if options.compare:
        check_comparison(settings)
        return _compare(options, console)
    check_options(settings)
    if options.prompts_out is not None:
        return write_prompts(options, console)
    with Interrupts() as interrupts:
        return Evaluation(settings, console, interrupts).run()


def _compare(options: EvalOptions, console: Console) -> int:
    first, second = options.targets
    found = compare(read_result(Path(first)), read_result(Path(second)), options.k)
    for line in comparison_table(found, (first, second)):
        console.say(line)
    if options.output is not None:
        write_json("-o", options.output, found.as_json())
    return 0
