"""What a result of `santagen eval` records of its run, and what a resumed run must share with it.

Nothing is said to the user here, and nothing is run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santagen.cli.describe import plain_settings, versions
from santagen.cli.eval_options import EvalOptions
from santagen.evaluation.files import SampleFile, digest
from santagen.evaluation.generation import Settings
from santagen.evaluation.tasks import Task

if TYPE_CHECKING:
    from santagen.checkpoint.source import ModelSource

DECIDES_BYTES = ("quantization", "invariant", "block_size", "max_model_len")  # of samples
LIMITING = ("sandbox", "timeout", "memory")  # options that decide verdicts
# How a run was called, which says nothing about its result.
OF_THE_CALL = ("resume", "overwrite", "config", "show_config", "progress", "quiet", "verbose")


def head_of_model(
    options: EvalOptions, task: Task, sampling: Settings, source: ModelSource
) -> dict[str, Any]:
    """The first part of RESULT.json where a model makes the samples."""
    from santagen.checkpoint.source import model_fingerprint

    model = {
        "name": source.name,
        "revision": source.revision,
        "fingerprint": model_fingerprint(source.path),
    }
    settings = _settings(options) | sampling.as_json()
    settings |= {"preset": sampling.note, "prompts": task.form}
    return {**_head(task), "model": model, "settings": settings}


def head_of_samples(options: EvalOptions, task: Task, found: SampleFile) -> dict[str, Any]:
    """The same where a file holds them."""
    path = Path(options.targets[0])
    samples = {
        "file": str(path),
        "sha256": digest(path),
        "format": found.format,
        "echoes_removed": found.echoes,
    }
    return {**_head(task), "model": None, "samples": samples, "settings": _settings(options)}


def identity(
    options: EvalOptions,
    task: Task,
    head: dict[str, Any],
    sampling: Settings | None,
    numerics: dict[str, str | None],
) -> dict[str, Any]:
    """What a resumed run must share with the first. `head` is one of the above, `numerics`
    cli.model's (empty where no model runs).
    """
    chosen = "\0".join(problem.task_id for problem in task.problems)
    made = {} if sampling is None else {name: getattr(options, name) for name in DECIDES_BYTES}
    return {
        "task": task.name,
        "problems": task.fingerprint,
        "chosen": hashlib.sha256(chosen.encode()).hexdigest(),
        **{name: getattr(options, name) for name in LIMITING},
        **numerics,
        **made,
        "model": head["model"] and head["model"]["fingerprint"],
        "samples": (head.get("samples") or {}).get("sha256"),
        "sampling": None if sampling is None else sampling.as_json(),
    }


def _head(task: Task) -> dict[str, Any]:
    return {"task": task.name, "problems_from": task.source, "versions": versions()}


def _settings(options: EvalOptions) -> dict[str, Any]:
    settings = plain_settings(options)
    return {name: value for name, value in settings.items() if name not in OF_THE_CALL}
