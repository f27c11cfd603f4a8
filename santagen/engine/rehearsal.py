"""Runs a few tokens that nobody reads, before the first request: a GPU loads most of its code at
first use, and the first request would wait for that a tenth of a second. The runner stays as new.
"""

from __future__ import annotations

from santagen.engine.block_manager import BlockManager
from santagen.engine.model_runner import ModelRunner
from santagen.engine.scheduler import Scheduler, SchedulerLimits
from santagen.engine.sequence import Sequence
from santagen.request import Request, SamplingParams

PROMPT_TOKENS, NEW_TOKENS = 128, 3


def rehearse(runner: ModelRunner, max_num_batched_tokens: int, max_len: int) -> None:
    """A prefill and decode steps of one greedy row, then of one sampled row."""
    shape = runner.shape
    length = min(PROMPT_TOKENS, max_len - NEW_TOKENS)
    for temperature, top_p in ((0.0, 1.0), (0.8, 0.95)):
        limits = SchedulerLimits(1, max_num_batched_tokens)
        scheduler = Scheduler(limits, BlockManager(shape.num_blocks, shape.block_size))
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, top_p=top_p)
        request = Request("rehearsal", 0, (0,) * max(1, length), params, (0,))
        scheduler.add(Sequence(request, 0, (0, 0), NEW_TOKENS))
        while (step := scheduler.schedule()) is not None:
            runner.launch(step).read()
        runner.table.clear()
