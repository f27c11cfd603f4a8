"""What `santagen eval` works on: a task and how it is sampled, or a file, and consent to run them.

Nothing is generated, run or written here.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from santagen.cli.console import Console
from santagen.cli.eval_options import EvalOptions
from santagen.cli.labelled import many
from santagen.errors import SantagenError
from santagen.evaluation.files import SampleFile, read_samples
from santagen.evaluation.generation import Settings, settings_for
from santagen.evaluation.tasks import Task, guess_task, holds_problems, is_task, load_task

SAMPLING = (
    "greedy", "temperature", "top_p", "n", "max_tokens", "length_limit", "seed", "fim_mode",
)  # fmt: skip
MULTIPL_E = ("multipl-e", "multiple")  # its result files hold their problems


def require_consent(options: EvalOptions, task: Task) -> None:
    """Programs that a model wrote run only where somebody said so."""
    if (
        not task.runs_programs
        or options.allow_code_execution
        or os.environ.get("HF_ALLOW_CODE_EVAL") == "1"
    ):
        return
    raise SantagenError(
        f"Scoring {task.name} runs programs that a model wrote.",
        "Read them, or trust the sandbox, and agree with --allow-code-execution.",
    )


def chosen_task(options: EvalOptions) -> tuple[Task, SampleFile | None]:
    """The task with the problems asked for, and their samples where a file is to be scored."""
    target = options.targets[0]
    problems = Path(options.problems) if options.problems is not None else None
    file = None if is_task(target) else Path(target)
    if file is not None and not file.exists():
        raise SantagenError(
            f"{target} is neither a task nor a file.",
            "Tasks are humaneval, mbpp, infilling, multipl-e, mini and mini-infilling.",
        )
    name = target if file is None else options.task or guess_task(file)
    if problems is None and file is not None and name in MULTIPL_E and holds_problems(file):
        problems = file
    whole = load_task(name, problems, options.hf_token)
    task = whole.only(options.only or None, options.limit)
    if options.timeout is not None:
        changed = (dataclasses.replace(p, timeout=options.timeout) for p in task.problems)
        task = dataclasses.replace(task, problems=tuple(changed))
    if file is None:
        return task, None
    # Against the whole task: a file by order has its problems at their places.
    return task, _of_chosen(read_samples(file, whole), task, target)


def sampling_of(options: EvalOptions, task: Task, console: Console) -> Settings:
    """How the task is sampled, which is said."""
    found = settings_for(task, **{name: getattr(options, name) for name in SAMPLING})
    params = found.params
    console.say(
        f"{task.name}: {many(len(task.problems), 'problem')} from {task.source}, n {params.n}, "
        f"temperature {params.temperature:g}, top_p {params.top_p:g}, {found.note}"
    )
    console.say(f"{task.name}: prompts {task.form}; answers end at {task.stops_in_words}")
    return found


def _of_chosen(found: SampleFile, task: Task, target: str) -> SampleFile:
    chosen = task.by_id()
    samples = tuple(sample for sample in found.samples if sample.task_id in chosen)
    if not samples:
        raise SantagenError(
            f"{target} holds no samples of the problems asked for.", "Change --only or --limit."
        )
    return dataclasses.replace(found, samples=samples)
