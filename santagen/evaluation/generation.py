"""A task's samples from a model: its prompts, stops and length limit; answers as they end.

Works on a loaded `llm.LLM`, which the caller makes: nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from santagen.errors import SantagenError
from santagen.evaluation.files import Sample
from santagen.evaluation.problems import Problem
from santagen.evaluation.tasks import Task
from santagen.request import PromptRow, Request, RowFailure, SampleOutput, SamplingParams

if TYPE_CHECKING:
    from santagen.llm import LLM


@dataclass(frozen=True, slots=True)
class Settings:
    """How a task is sampled. `length_limit` bounds prompt and answer together, None leaves that to
    the model.
    """

    params: SamplingParams
    length_limit: int | None = None
    fim_mode: str = "psm"
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        sampling = {**dataclasses.asdict(self.params), "stop": list(self.params.stop)}
        return {"sampling": sampling, "length_limit": self.length_limit, "fim_mode": self.fim_mode}


def settings_for(
    task: Task,
    *,
    greedy: bool = False,
    temperature: float | None = None,
    top_p: float | None = None,
    n: int | None = None,
    max_tokens: int | None = None,
    length_limit: int | None = None,
    seed: int = 0,
    fim_mode: str = "psm",
) -> Settings:
    """The task's preset, changed by what is given; `greedy`: one sample at temperature 0."""
    preset = task.preset
    if greedy and (temperature or n not in (None, 1)):
        raise SantagenError(
            "--greedy is one sample at temperature 0.", "Leave --temperature and -n out."
        )
    limit = length_limit
    if limit is None and max_tokens is None:
        limit = preset.length_limit
    custom = length_limit is not None or max_tokens is not None
    params = SamplingParams(
        max_tokens=next(m for m in (max_tokens, limit, preset.max_tokens) if m is not None),
        temperature=0.0 if greedy else preset.temperature if temperature is None else temperature,
        top_p=1.0 if greedy else preset.top_p if top_p is None else top_p,
        n=n if n is not None else 1 if greedy or temperature == 0 else preset.n,
        seed=seed,
        stop=task.stops,
    )
    note = _length_note(limit, params.max_tokens) if custom else preset.note
    return Settings(params, limit, fim_mode, note)


def _length_note(limit: int | None, max_tokens: int) -> str:
    return (
        f"length limit {limit} including the prompt"
        if limit
        else f"at most {max_tokens} new tokens"
    )


def generate_samples(
    task: Task, llm: LLM, settings: Settings, done: Container[tuple[str, int]] = frozenset()
) -> Iterator[Sample | RowFailure]:
    """Every sample that is not in `done`, as soon as it ends; a RowFailure for a problem that can't
    be asked.
    """
    builder = llm.request_builder(settings.params, settings.fim_mode)
    rows = _rows(task, settings, done)
    requests = (_limited(request, settings, done) for request in builder.build_many(rows))
    for result in llm.engine.run(requests):
        yield _sample(result) if isinstance(result, SampleOutput) else result


def prompt_fields(task: Task, settings: Settings) -> Iterator[dict[str, Any]]:
    """The task's prompts as rows of `santagen generate`, which draws the same samples from them
    where its model, its FIM mode and its longest sequence are the same.
    """
    params = settings.params
    sampling = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "n": params.n,
        "seed": params.seed,
    }
    for problem in task.problems:
        stop = task.stops if problem.stop is None else problem.stop
        yield {"task_id": problem.task_id, **_text(problem), **sampling, "stop": list(stop)}


def _text(problem: Problem) -> dict[str, Any]:
    if problem.suffix is None:
        return {"prompt": problem.given}
    return {"prefix": problem.given, "suffix": problem.suffix}


def _rows(task: Task, settings: Settings, done: Container[tuple[str, int]]) -> Iterator[PromptRow]:
    for number, problem in enumerate(task.problems):
        if _wanted(problem.task_id, settings, done):
            overrides = {} if problem.stop is None else {"stop": problem.stop}
            where = (problem.task_id, number, 0, task.name)
            yield PromptRow(*where, **_text(problem), overrides=overrides)


def _wanted(task_id: str, settings: Settings, done: Container[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(index for index in range(settings.params.n) if (task_id, index) not in done)


def _limited(
    request: Request | RowFailure, settings: Settings, done: Container[tuple[str, int]]
) -> Request | RowFailure:
    """The request with the samples still wanted, and no longer than the limit allows."""
    if isinstance(request, RowFailure):
        return request
    params = request.params
    if settings.length_limit is not None:
        room = settings.length_limit - len(request.prompt_token_ids)
        if room < 1:
            return RowFailure(
                request.row_id,
                request.number,
                0,
                f"The prompt of {request.row_id} leaves no room for an answer.",
                f"Raise --length-limit above {len(request.prompt_token_ids)}, or set --max-tokens.",
            )
        params = dataclasses.replace(params, max_tokens=min(params.max_tokens, room))
    wanted = _wanted(str(request.row_id), settings, done)
    return dataclasses.replace(request, params=params, sample_indices=wanted)


def _sample(output: SampleOutput) -> Sample:
    extra = {
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "usage": {
            "prompt_tokens": len(output.request.prompt_token_ids),
            "completion_tokens": output.generated_tokens,
        },
    }
    return Sample(str(output.request.row_id), output.index, output.completion or "", extra=extra)
