"""Says where the time of one decode step goes, on one GPU, with random weights.

    python -m tests.gpu.profile_step [--shape santacoder] [--packed] [--batches 1 64 1024]
        [--context 400] [--temperature 0.8]

A line per kernel: launches and microseconds a step, and its share of the step's time on the clock;
what is left is the device waiting between kernels. --packed: GPTQ 4 bit, groups of 128.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile

import santagen.llm
from santagen.checkpoint.random_weights import random_model
from santagen.engine.sequence import Sequence
from santagen.llm import LLM
from santagen.random_key import row_key
from tests.gpu.measure import requests
from tests.gpu.random_gptq import RandomGPTQWeights, settings

STEPS = 20
SHOWN = 14


def prepare(llm: LLM, batch: int, context: int, temperature: float) -> None:
    """Rows with prompts of `context` tokens, prefilled."""
    work = requests(batch, context, 4 * STEPS, temperature, llm.config.vocab_size, 1)
    for request in work:
        key = row_key(request.params.seed, request.row_id, 0)
        llm.engine.scheduler.add(Sequence(request, 0, key, request.params.max_tokens))
    while llm.engine.scheduler.waiting or llm.engine.scheduler.running < batch:
        step(llm)


def step(llm: LLM) -> None:
    launch = llm.engine.scheduler.schedule()
    assert launch is not None
    llm.engine.runner.launch(launch)


def steps(llm: LLM) -> float:
    """Seconds of one."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step(llm)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def report(llm: LLM, batch: int, context: int, temperature: float) -> None:
    prepare(llm, batch, context, temperature)
    steps(llm)
    whole = steps(llm) * 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        steps(llm)
    kernels = [
        (event.self_device_time_total / STEPS, event.count / STEPS, event.key)
        for event in found.key_averages()
        if event.self_device_time_total
    ]
    busy = sum(time_ for time_, _, _ in kernels)
    print(f"\nbatch {batch}, context {context}: {whole:,.0f} us a step, kernels {busy:,.0f} us")
    for time_, count, name in sorted(kernels, reverse=True)[:SHOWN]:
        print(f"{time_:10,.1f} us {time_ / whole:6.1%} {count:6.1f} x {name[:90]}")
    print(f"{whole - busy:10,.1f} us {1 - busy / whole:6.1%} between kernels", flush=True)
    llm.engine.scheduler.forget()
    llm.engine.runner.table.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="santacoder")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--context", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.8)
    given = parser.parse_args()
    if given.packed:
        santagen.llm.RandomWeights = RandomGPTQWeights.of(settings())  # type: ignore[misc]
    llm = LLM(
        random_model(given.shape), max_num_seqs=max(given.batches), max_model_len=1024,
        quantization="gptq" if given.packed else "auto",
    )  # fmt: skip
    for batch in given.batches:
        report(llm, batch, given.context, given.temperature)


if __name__ == "__main__":
    main()
