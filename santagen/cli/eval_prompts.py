"""`santagen eval TASK --prompts-out FILE`: a task's prompts as a file for `santagen generate`.

Many processes may answer them; what they write is scored by `santagen eval` afterwards. No model is
loaded.
"""

from __future__ import annotations

import json
import shlex

from santagen.cli.console import Console
from santagen.cli.eval_inputs import chosen_task, sampling_of
from santagen.cli.eval_options import EvalOptions
from santagen.cli.labelled import many
from santagen.cli.output import write_output
from santagen.evaluation.generation import Settings, prompt_fields
from santagen.evaluation.tasks import Task


def write_prompts(options: EvalOptions, console: Console) -> int:
    """Write them, and say how to go on; returns the exit code."""
    task, _ = chosen_task(options)
    sampling = sampling_of(options, task, console)
    lines = [json.dumps(row).encode() + b"\n" for row in prompt_fields(task, sampling)]
    place = str(options.prompts_out)
    write_output("--prompts-out", place, lines)
    console.say(f"{many(len(lines), 'prompt')} written to {place}; generate and score with:")
    console.say("  " + shlex.join(_generating(place, sampling)))
    console.say("  " + shlex.join(_scoring(options, task)))
    return 0


def _generating(place: str, sampling: Settings) -> list[str]:
    words = ["santagen", "generate", place, "-m", "MODEL", "-o", "samples.jsonl"]
    if sampling.length_limit is not None:
        words += ["--max-model-len", str(sampling.length_limit)]
    if sampling.fim_mode != "psm":
        words += ["--fim-mode", sampling.fim_mode]
    return words


def _scoring(options: EvalOptions, task: Task) -> list[str]:
    words = ["santagen", "eval", "samples.jsonl", "--task", options.targets[0]]
    if options.problems is not None:
        words += ["--problems", options.problems]
    if options.limit is not None:
        words += ["--limit", str(options.limit)]
    for task_id in options.only:
        words += ["--only", task_id]
    if task.runs_programs:
        words.append("--allow-code-execution")
    return [*words, "-o", "result.json"]
