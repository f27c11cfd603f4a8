"""Gets a device ready for the first request, which would wait for all of this: kernels are
compiled or loaded, several at a time, before the decode graphs are captured, and a few tokens that
nobody reads go the whole way after it. The runner stays as new. CUDA alone needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from santagen.engine import rows as columns
from santagen.engine.batch import Features
from santagen.engine.block_manager import BlockManager
from santagen.engine.model_runner import ModelRunner
from santagen.engine.scheduler import Scheduler, SchedulerLimits
from santagen.engine.sequence import Sequence
from santagen.model.attention import Seqlen
from santagen.request import Request, SamplingParams

PROMPT_TOKENS, NEW_TOKENS = 128, 3
DECODED = (1, 8, 64)  # rows, besides all: shares of a context and tiles follow their number
DRAWS = (
    Features(),
    Features(random=True, top_p=True),
    Features(random=True, top_k=True, top_p=True, min_p=True),
)


def load_kernels(runner: ModelRunner, max_context: int) -> None:
    """Launch what a run launches, each chain in a thread of its own: compiling takes the time."""
    forwards = [
        lambda: _prefill(runner),
        *(lambda size=size: _decode(runner, size, max_context) for size in _sizes(runner)),
    ]
    if runner.model.transformer.parallel.world_size > 1:
        forwards = [_one_by_one(forwards)]  # ranks sum in the same order
    draws = [
        lambda count=count, features=features: _draw(runner, count, features)
        for count in {1, runner.table.capacity}
        for features in DRAWS
    ]

    def run(chain: Callable[[], None]) -> None:
        if runner.device.type == "cuda":  # a thread starts on the first device
            torch.cuda.set_device(runner.device)
        with torch.inference_mode():
            chain()

    # The CPU's attention keeps the slots of a forward from layer to layer, and compiles nothing.
    threads = os.cpu_count() or 1 if runner.device.type == "cuda" else 1
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(run, chain) for chain in (*forwards, *draws)]:
            future.result()


def _one_by_one(chains: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for chain in chains:
            chain()

    return run


def _sizes(runner: ModelRunner) -> list[int]:
    capacity = runner.table.capacity
    return [*(size for size in DECODED if size < capacity), capacity]


def _decode(runner: ModelRunner, size: int, max_context: int) -> None:
    runner.decode_logits(size, max_context)


def _prefill(runner: ModelRunner) -> None:
    """A prompt in block 0, which no sequence ever has."""
    size, device = runner.shape.block_size, runner.device
    table = runner.table.block_table[:1]  # all of block 0
    place = torch.arange(min(PROMPT_TOKENS, table.shape[1] * size), device=device)
    bounds = torch.tensor([0, len(place)], dtype=torch.int32, device=device)
    seqlen = Seqlen(bounds[1:], bounds[:1], bounds, bounds, max_q=len(place), has_prefix=False)
    runner.model(
        torch.zeros_like(place), place, bounds, runner.layers, table, place % size, seqlen,
        len(place), lm_head_indices=place[-1:],
    )  # fmt: skip


def _draw(runner: ModelRunner, count: int, features: Features) -> None:
    data = runner.table.data[:count]
    logits = torch.zeros(count, runner.sampler.vocab_size, device=runner.device)
    runner.sampler.draw(logits, data, data[:, columns.POSITION] + 1, range(count), features)


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
