"""What is asked of every engine that is measured: a decode step's time, and its greedy rows.

Rows are plain lists, so that those of several processes can be compared through JSON.
"""

from __future__ import annotations

import dataclasses

from santagen.llm import LLM
from santagen.request import SampleOutput, SamplingParams
from tests.gpu.measure import requests, run

PROMPT, STEPS = 129, 64  # whole blocks of the cache, and the token that a cached prompt still needs
ROUNDS, BEST = 2, 8
Trace = list[tuple[int, float, list[tuple[int, float]]]]  # token, its log-probability, the best few


def step_seconds(llm: LLM, batch: int, steps: int = STEPS) -> float:
    """One decode step of `batch` rows: runs of 1 + `steps` tokens less runs of one.

    The prompts are computed once; the runs that count find them in the cache.
    """
    long, short = (
        requests(batch, PROMPT, 1 + new, 0.0, llm.config.vocab_size, 1, seed=10 + batch)
        for new in (steps, 0)
    )
    run(llm, short)
    times = [(run(llm, long)[0], run(llm, short)[0]) for _ in range(ROUNDS)]
    return (min(long for long, _ in times) - min(short for _, short in times)) / steps


def greedy_rows(llm: LLM, count: int, prompt: int, new: int) -> list[Trace]:
    """What the model goes on with after `count` random prompts."""
    params = SamplingParams(max_tokens=new, ignore_eos=True, logprobs=BEST)
    work = [
        dataclasses.replace(request, params=params)
        for request in requests(count, prompt, new, 0.0, llm.config.vocab_size, 1)
    ]
    found = [sample for sample in llm.run(work) if isinstance(sample, SampleOutput)]
    assert len(found) == count
    rows = []
    for sample in sorted(found, key=lambda sample: sample.request.number):
        assert sample.logprobs is not None
        rows.append([(token.token_id, token.logprob, list(token.top)) for token in sample.logprobs])
    return rows


def compare(one: list[Trace], two: list[Trace]) -> tuple[float, int]:
    """(largest difference of log-probabilities up to where two rows part, rows that part).

    Where they part, the two tokens must have been as near: half their gap counts too.
    """
    worst, parted = 0.0, 0
    for a, b in zip(one, two, strict=True):
        for (token, logprob, best), (other, other_logprob, _) in zip(a, b, strict=True):
            if token != other:
                parted += 1
                worst = max(worst, (logprob - dict(best).get(other, -99.0)) / 2)
                break
            worst = max(worst, abs(logprob - other_logprob))
    return worst, parted
