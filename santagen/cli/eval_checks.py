"""What `santagen eval` refuses before it reads, loads or runs anything.

Options that would say nothing to the run, and outputs that would replace a file that is read, or
one that exists. The result of a run itself is guarded by `evaluation.result`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from santagen.cli.eval_options import EvalOptions
from santagen.cli.output import refuse_read, settings_files, with_temporary
from santagen.cli.settings import Resolved, settings_of
from santagen.errors import SantagenError
from santagen.evaluation.result import samples_path
from santagen.evaluation.tasks import is_task
from santagen.io.files import lock_path, same_file
from santagen.parallel.world import World

GENERATING = ("Model", "Sampling", "Limits")  # panels whose options only a model's samples obey
# Options that --prompts-out has no use for.
IDLE_PANELS = ("Model", "Limits", "Sandbox")
IDLE = ("output", "samples_out", "resume", "k", "progress")
# All that --compare has a use for.
COMPARING = ("compare", "k", "output", "overwrite", "config", "show_config", "quiet", "verbose")


def check_options(settings: Resolved[EvalOptions]) -> None:
    """Raises SantagenError for a call that can't be meant, or would lose a file."""
    options = settings.options
    if len(options.targets) != 1:
        raise SantagenError(
            "eval takes one task or one file of samples.",
            "As in santagen eval humaneval -m MODEL, or santagen eval SAMPLES.jsonl.",
        )
    if options.resume and options.overwrite:
        raise SantagenError("--resume and --overwrite exclude each other.", "Give one of them.")
    if options.resume and options.output in (None, "-"):
        raise SantagenError("--resume needs a result file.", "Name it with -o RESULT.json.")
    _check_one_process(options)
    _check_idle_options(settings)
    _check_files(options)


def check_comparison(settings: Resolved[EvalOptions]) -> None:
    """The same for --compare."""
    options = settings.options
    if len(options.targets) != 2:
        raise SantagenError(
            "--compare takes two result files.", "As in santagen eval --compare A.json B.json."
        )
    for setting in settings_of(EvalOptions):
        if setting.name in _flags(settings) and setting.name not in COMPARING:
            raise SantagenError(
                f"{setting.flags[0]} says nothing to --compare, which reads two finished results.",
                "Leave it out.",
            )
    if options.output in (None, "-"):
        return
    output = Path(str(options.output))
    refuse_read("-o", with_temporary(output), [*options.targets, *settings_files(options)])
    _check_place("-o", output, options.overwrite)


def _check_one_process(options: EvalOptions) -> None:
    asked = {
        "torchrun started": World.from_environment(os.environ).size,
        "-tp asks for": options.tensor_parallel_size or 1,
        "-dp asks for": options.data_parallel_size or 1,
    }
    for who, processes in asked.items():
        if processes > 1:
            raise SantagenError(
                f"eval runs in one process, and {who} {processes}.",
                "Write the prompts with santagen eval TASK --prompts-out FILE, let several "
                "processes of santagen generate answer them, and score their output with eval.",
            )


def _flags(settings: Resolved[EvalOptions]) -> set[str]:
    return {name for name, origin in settings.origins.items() if origin.startswith("flag")}


def _check_idle_options(settings: Resolved[EvalOptions]) -> None:
    """Of the flags alone: a config file or the environment may hold what other runs need."""
    options, target = settings.options, settings.options.targets[0]
    given = _flags(settings)
    about_generating = given - {"hf_token"}  # which is for a task's problems too
    if "format" in given and options.samples_out is None:
        raise SantagenError(
            "--format is the form of --samples-out, which is absent.",
            "Name a file with --samples-out, or leave --format out.",
        )
    if options.prompts_out is not None:
        _check_only_prompts(about_generating, target)
    if is_task(target):
        if "task" in given and options.task != target:
            raise SantagenError(
                f"--task {options.task} is the task of a file of samples, and {target} is a task.",
                f"Use santagen eval {options.task}, or name the file.",
            )
        return
    for setting in settings_of(EvalOptions):
        if setting.panel in GENERATING and setting.name in about_generating:
            raise SantagenError(
                f"{setting.flags[0]} is about generating, and the samples of {target} are there "
                "already.",
                f"Leave it out, or name a task, as in santagen eval humaneval {setting.flags[0]}.",
            )


def _check_only_prompts(given: set[str], target: str) -> None:
    if not is_task(target):
        raise SantagenError(
            f"--prompts-out writes the prompts of a task, and {target} is a file.", "Name a task."
        )
    for setting in settings_of(EvalOptions):
        if setting.name in given and (setting.panel in IDLE_PANELS or setting.name in IDLE):
            raise SantagenError(
                f"{setting.flags[0]} says nothing to --prompts-out, which only writes prompts.",
                "Leave it out here, and give it to santagen generate or to the eval that scores.",
            )


def _check_files(options: EvalOptions) -> None:
    read: list[Path | str] = [*settings_files(options)]
    read += [options.problems] if options.problems is not None else []
    if not is_task(options.targets[0]):
        read.append(options.targets[0])
    output = None if options.output in (None, "-") else Path(str(options.output))
    own = [] if output is None else _files_of_result(output)
    refuse_read("-o", own, read)
    if options.prompts_out not in (None, "-"):
        prompts = Path(str(options.prompts_out))
        refuse_read("--prompts-out", with_temporary(prompts), read)
        _check_place("--prompts-out", prompts, options.overwrite)
    if options.samples_out is None:
        return
    place = Path(options.samples_out)
    inside = place.iterdir() if place.is_dir() else ()
    refuse_read("--samples-out", [*with_temporary(place), *inside], read)
    if any(same_file(place, path) for path in own):
        raise SantagenError(
            f"--samples-out {place} is a file of -o {output} itself.", "Give it another name."
        )
    again = options.resume or options.overwrite
    _check_place("--samples-out", place, again, folder=options.format == "multipl-e")


def _files_of_result(output: Path) -> list[Path]:
    if output.is_dir():
        return [output]
    files = [*with_temporary(output), *with_temporary(samples_path(output))]
    return [*files, lock_path(output)]


def _check_place(flag: str, place: Path, again: bool, folder: bool = False) -> None:
    """Whether a file, or the files of a folder, can be written at `place`."""
    if not place.parent.is_dir():
        raise SantagenError(
            f"The folder {place.parent} of {flag} does not exist.",
            f"Make it with: mkdir -p {shlex.quote(str(place.parent))}",
        )
    if place.exists() and place.is_dir() != folder:
        raise SantagenError(
            f"{flag} {place} is {'no' if folder else 'a'} directory.", "Give it another name."
        )
    if not again and place.exists() and not (folder and not any(place.iterdir())):
        raise SantagenError(
            f"{place} exists.", f"Use --overwrite to replace it, or another {flag}."
        )
