"""What `santagen eval` refuses before it reads, loads or runs anything.

Options that would say nothing to the run, and outputs that would replace a file that is read, or
one that exists. The result of a run itself is guarded by `evaluation.result`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from santagen.cli.eval_options import EvalOptions
from santagen.cli.settings import Resolved, settings_of
from santagen.errors import SantagenError
from santagen.evaluation.result import samples_path
from santagen.evaluation.tasks import is_task

GENERATING = ("Model", "Sampling", "Limits")  # panels whose options only a model's samples obey


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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SantagenError(
            "eval runs in one process.",
            "Generate with torchrun and santagen generate, then score the file with santagen eval.",
        )
    _check_idle_options(settings)
    _check_files(options)


def check_comparison(options: EvalOptions) -> None:
    """The same for --compare."""
    if len(options.targets) != 2:
        raise SantagenError(
            "--compare takes two result files.", "santagen eval --compare A.json B.json"
        )
    if options.output in (None, "-"):
        return
    output = Path(str(options.output))
    _check_not_read("-o", [output], options.targets)
    _check_place("-o", output, options.overwrite)


def _check_idle_options(settings: Resolved[EvalOptions]) -> None:
    """Of the flags alone: a config file or the environment may hold what other runs need."""
    options, target = settings.options, settings.options.targets[0]
    given = {name for name, origin in settings.origins.items() if origin.startswith("flag")}
    if "format" in given and options.samples_out is None:
        raise SantagenError(
            "--format is the form of --samples-out, which is absent.",
            "Name a file with --samples-out, or leave --format out.",
        )
    if is_task(target):
        if "task" in given and options.task != target:
            raise SantagenError(
                f"--task {options.task} is the task of a file of samples, and {target} is a task.",
                f"Use santagen eval {options.task}, or name the file.",
            )
        return
    for setting in settings_of(EvalOptions):
        if setting.panel in GENERATING and setting.name in given - {"hf_token"}:
            raise SantagenError(
                f"{setting.flags[0]} is about generating, and the samples of {target} are there "
                "already.",
                f"Leave it out, or name a task, as in santagen eval humaneval {setting.flags[0]}.",
            )


def _check_files(options: EvalOptions) -> None:
    read = [options.problems] if options.problems is not None else []
    if not is_task(options.targets[0]):
        read.append(options.targets[0])
    output = None if options.output in (None, "-") else Path(str(options.output))
    own = [] if output is None else [output, samples_path(output)]
    _check_not_read("-o", own, read)
    if options.samples_out is None:
        return
    place = Path(options.samples_out)
    _check_not_read("--samples-out", [place], read)
    if any(_same(place, path) for path in own):
        raise SantagenError(
            f"--samples-out {place} is a file of -o {output} itself.", "Give it another name."
        )
    again = options.resume or options.overwrite
    _check_place("--samples-out", place, again, folder=options.format == "multipl-e")


def _check_not_read(flag: str, written: Iterable[Path], read: Iterable[str]) -> None:
    for place in written:
        for path in map(Path, read):
            if _same(place, path):
                raise SantagenError(
                    f"{flag} would replace {place}, which is read.", "Give it another name."
                )


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _check_place(flag: str, place: Path, again: bool, folder: bool = False) -> None:
    """Whether a file, or the files of a folder, can be written at `place`."""
    if not place.parent.is_dir():
        raise SantagenError(
            f"The folder {place.parent} of {flag} does not exist.", f"mkdir -p {place.parent}"
        )
    if place.exists() and place.is_dir() != folder:
        raise SantagenError(
            f"{flag} {place} is {'no' if folder else 'a'} directory.", "Give it another name."
        )
    if not again and place.exists() and not (folder and not any(place.iterdir())):
        raise SantagenError(
            f"{place} exists.", f"Use --overwrite to replace it, or another {flag}."
        )
