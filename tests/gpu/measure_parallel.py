"""Times several GPUs of one host against one, and checks that they compute the same.

    torchrun --standalone --nproc-per-node 2 -m tests.gpu.measure_parallel [--json FILE]
        [--parts sums equal shards groups] [--shape starcoder] [--requests 8192]

    sums     one all-reduce of a decode step's hidden states: NCCL, and torch's symmetric memory
    equal    shards against one GPU: float32 logits and tokens, graphs against eager launches
    shards   a decode step of the 15B shape in bf16 on one GPU and on all, beside the bound
    groups   8,192 requests of 256 + 256 on the 1.1B shape: one GPU, then all from one queue

Weights are random and drawn on the device. Rank 0 prints. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from santagen.checkpoint.random_weights import random_model
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.llm import LLM
from santagen.parallel.cluster import Cluster
from santagen.parallel.row_queue import chunk_rows, draw_rows
from santagen.parallel.world import World
from santagen.request import SampleOutput, SamplingParams
from tests.gpu.measure import requests, run

BATCHES = (1, 64, 1024)
PROMPT, STEPS = 128, 64
READ_BYTES, FLOPS = 4.2e12, 785e12  # of an H200, a second: what the bound is made of
SUMS_IN_GRAPH = 50
SMALL = "santacoder"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["sums", "equal", "shards", "groups"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--shape", default="starcoder", help="of `shards`")
    parser.add_argument("--requests", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    found = World.from_environment(os.environ)
    world = dataclasses.replace(found, tensor_parallel=found.size)
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    cluster = Cluster.join(world, os.environ)
    cluster.meet()
    start = time.perf_counter()
    cluster.connect(device)
    bench = Bench(cluster, device)
    bench.say(f"{world.size} GPUs, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    bench.say(f"connected and tried out in {time.perf_counter() - start:.1f} s")
    for part in arguments.parts:
        bench.say(f"\n== {part}")
        if part == "shards":
            bench.shards(arguments.shape)
        elif part == "groups":
            bench.groups(arguments.requests)
        else:
            getattr(bench, part)()
        if arguments.json and world.rank == 0:
            arguments.json.write_text(json.dumps(bench.results, indent=2))
    cluster.leave()


class Bench:
    """One rank's part of the measurements; all ranks call the same methods in the same order."""

    def __init__(self, cluster: Cluster, device: torch.device) -> None:
        self.cluster, self.device = cluster, device
        self.rank, self.size = cluster.world.rank, cluster.world.size
        self.parallel = cluster.tensor_parallel
        self.results: dict[str, Any] = {}
        self.sum_seconds: dict[int, float] = {}  # rows: seconds of one all-reduce
        self._meetings = 0

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def meet(self) -> None:
        """All ranks get here before any goes on."""
        torch.cuda.synchronize()
        self._meetings += 1
        self.cluster.barrier(f"bench{self._meetings}", self.size)

    # -- sums ----------------------------------------------------------------------------------

    def sums(self) -> None:
        width = 6144
        self.say(f"{'rows':>6} {'KiB':>8} {'NCCL us':>9} {'one-shot us':>12} {'two-shot us':>12}")
        for rows in (1, 8, 64, 256, 1024):
            x = torch.ones(rows, width, dtype=torch.bfloat16, device=self.device)
            times = [self._per_call(lambda x=x: dist.all_reduce(x))]  # type: ignore[misc]
            times += [self._symmetric(op, rows, width) for op in ("one_shot", "two_shot")]
            self.sum_seconds[rows] = times[0] or 0.0
            shown = [f"{t * 1e6:.1f}" if t else "-" for t in times]
            kib = rows * width / 512
            self.say(f"{rows:6} {kib:8.0f} {shown[0]:>9} {shown[1]:>12} {shown[2]:>12}")
            self.results.setdefault("sums", {})[rows] = times

    def _symmetric(self, op: str, rows: int, width: int) -> float | None:
        """Seconds of a sum through symmetric memory, its copy included; None where it can't be."""
        try:
            from torch.distributed import _symmetric_memory as memory

            group = dist.group.WORLD.group_name
            shared = memory.empty((rows, width), dtype=torch.bfloat16, device=self.device)
            memory.rendezvous(shared, group)
            own = torch.full_like(shared, self.rank + 1.0)

            def add() -> torch.Tensor:
                shared.copy_(own)
                if op == "one_shot":
                    return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group)
                return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group)

            total = add()
            torch.cuda.synchronize()
            wanted = self.size * (self.size + 1) / 2
            assert bool((total == wanted).all()), f"{op} gave a wrong sum"
            return self._per_call(add)
        except (RuntimeError, ImportError, AttributeError) as error:
            self.say(f"{op} can't run here: {str(error).splitlines()[0]}")
            return None

    def _per_call(self, call: Callable[[], object]) -> float:
        """Seconds of one call inside a replayed CUDA graph."""
        call()
        self.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(SUMS_IN_GRAPH):
                call()
        for _ in range(3):
            graph.replay()
        self.meet()
        start = time.perf_counter()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / (10 * SUMS_IN_GRAPH)

    # -- equality ------------------------------------------------------------------------------

    def equal(self) -> None:
        two_layers = dataclasses.replace(random_model(SMALL).config, n_layer=2)
        source = dataclasses.replace(random_model(SMALL), config=two_layers)
        alone = self._outputs(source, TensorParallel(), dtype="float32")
        shards = self._outputs(source, self.parallel, dtype="float32")
        error, parted = compare(alone, shards)
        self._report("float32 shards against one GPU", error, parted, error < 1e-3)
        graphs = self._outputs(source, self.parallel, dtype="bfloat16")
        eager = self._outputs(source, self.parallel, dtype="bfloat16", enforce_eager=True)
        error, parted = compare(graphs, eager)
        self._report("bf16 shards: graphs against eager", error, parted, error < 0.15)
        again = self._outputs(source, self.parallel, dtype="bfloat16")
        same = [s.token_ids for s in again] == [s.token_ids for s in graphs]
        self._report("bf16 shards: the same run again", 0.0, 0, same)
        alone = self._outputs(source, TensorParallel(), dtype="bfloat16")
        error, parted = compare(alone, graphs)
        self._report("bf16 shards against one GPU", error, parted, error < 0.15)

    def _report(self, what: str, error: float, parted: int, good: bool) -> None:
        self.say(f"{'ok   ' if good else 'WRONG'} {what}: {error:.2e} nats, {parted} rows part")
        self.results.setdefault("equal", {})[what] = [error, parted, good]

    def _outputs(
        self, source: Any, parallel: TensorParallel, **settings: Any
    ) -> list[SampleOutput]:
        llm = LLM(source, parallel=parallel, max_num_seqs=64, **settings)
        params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2)
        work = [
            dataclasses.replace(request, params=params)
            for request in requests(48, 200, 24, 0.0, llm.config.vocab_size, 1)
        ]
        found = [sample for sample in llm.run(work) if isinstance(sample, SampleOutput)]
        del llm
        self._free()
        return sorted(found, key=lambda sample: sample.request.number)

    def _free(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        self.meet()

    # -- shards --------------------------------------------------------------------------------

    def shards(self, shape: str) -> None:
        source = random_model(shape)
        times: dict[int, dict[int, float]] = {}
        for ranks in (1, self.size):
            if ranks == 1 and self.rank:
                self.meet()
                continue
            start = time.perf_counter()
            parallel = TensorParallel() if ranks == 1 else self.parallel
            llm = LLM(source, parallel=parallel, max_num_seqs=max(BATCHES), max_model_len=512)
            self.say(f"{ranks} GPUs: ready in {time.perf_counter() - start:.1f} s")
            self.say("  " + "; ".join(llm.describe()))
            run(llm, requests(8, 64, 8, 0.0, llm.config.vocab_size, 1, seed=99))
            times[ranks] = {batch: step_seconds(llm, batch) for batch in BATCHES}
            config = llm.config
            del llm
            self._free()
        if self.rank == 0:
            self._print_shards(config, times)

    def _print_shards(self, config: ModelConfig, times: dict[int, dict[int, float]]) -> None:
        """Each step beside its bound: the bytes and products of a shard, and the sums."""
        names = ("1 GPU ms", "bound", f"{self.size} GPUs ms", "bound", "gain", "of bounds")
        self.say(f"{'batch':>6} " + " ".join(f"{name:>9}" for name in names))
        for batch in BATCHES:
            one, many = times[1][batch] * 1e3, times[self.size][batch] * 1e3
            least = [self._bound(config, batch, ranks) * 1e3 for ranks in (1, self.size)]
            row = (one, least[0], many, least[1], one / many, least[0] / least[1])
            self.say(f"{batch:6} " + " ".join(f"{number:9.2f}" for number in row))
            self.results.setdefault("shards", {})[batch] = [one, least[0], many, least[1]]

    def _bound(self, config: ModelConfig, batch: int, ranks: int) -> float:
        """Seconds a step can't beat: weights or products of a shard, whole K/V, 2 L + 1 sums."""
        embd, layers = config.n_embd, config.n_layer
        layer = embd * (2 * embd + 2 * config.n_inner)
        key_value = 2 * embd * config.head_dim  # on every rank
        weights = (layers * layer + config.vocab_size * embd) / ranks + layers * key_value
        context = PROMPT + STEPS / 2
        cache = batch * context * config.kv_bytes_per_token(2)
        sums = (2 * layers + 1) * self.sum_seconds.get(batch, 0.0) if ranks > 1 else 0.0
        products = max(2 * weights / READ_BYTES, 2 * weights * batch / FLOPS)
        return products + cache / READ_BYTES + sums

    # -- groups --------------------------------------------------------------------------------

    def groups(self, count: int) -> None:
        source = random_model(SMALL)
        llm = LLM(source, max_num_seqs=1024, max_model_len=1024)
        vocab = llm.config.vocab_size
        run(llm, requests(64, 64, 8, 0.8, vocab, 1, seed=98))
        work = requests(count, 256, 256, 0.8, vocab, 1)
        self.meet()
        alone: dict[int, SampleOutput] = {}
        start = time.perf_counter()
        if self.rank == 0:
            alone = {s.request.number: s for s in llm.run(work) if isinstance(s, SampleOutput)}
        one = time.perf_counter() - start
        self.meet()
        chunk = chunk_rows(count, self.size, llm.plan.max_num_seqs, 1)
        llm.engine.window = chunk
        again = requests(count, 256, 256, 0.8, vocab, 1, seed=2)  # nothing of it is cached
        numbers = np.arange(count)
        self.meet()
        start = time.perf_counter()
        drawn = draw_rows(numbers, chunk, lambda n: self.cluster.add("bench-rows", n))
        results = llm.run(again[number] for number in drawn)
        mine = sum(s.generated_tokens for s in results if isinstance(s, SampleOutput))
        own = time.perf_counter() - start
        self.meet()
        many = time.perf_counter() - start
        self.cluster.publish(f"bench-share{self.rank}", (mine, own))
        if self.rank:
            return
        shares = [self.cluster.receive(f"bench-share{rank}") for rank in range(self.size)]
        tokens = sum(tokens for tokens, _ in shares)
        assert tokens == sum(s.generated_tokens for s in alone.values())
        self.say(f"1 GPU: {one:.2f} s, {tokens / one:,.0f} tok/s")
        self.say(f"{self.size} GPUs: {many:.2f} s, {tokens / many:,.0f} tok/s")
        self.say(f"gain {one / many:.3f}")
        self.say("each: " + "; ".join(f"{n:,} tokens in {s:.2f} s" for n, s in shares))
        self.results["groups"] = {"one": one, "many": many, "shares": shares, "requests": count}


def step_seconds(llm: LLM, batch: int) -> float:
    """One decode step of `batch` rows: a long run less one that ends with its prefill."""
    vocab = llm.config.vocab_size
    best = []
    for attempt in range(2):
        seeds = (10 + 2 * attempt, 11 + 2 * attempt)  # other prompts, so that none is cached
        long, _ = run(llm, requests(batch, PROMPT, 1 + STEPS, 0.0, vocab, 1, seed=seeds[0]))
        short, _ = run(llm, requests(batch, PROMPT, 1, 0.0, vocab, 1, seed=seeds[1]))
        best.append((long - short) / STEPS)
    return min(best)


def compare(one: list[SampleOutput], two: list[SampleOutput]) -> tuple[float, int]:
    """(largest difference of log-probabilities up to where two rows part, rows that part).

    Where they part, the two tokens must have been as near: half their gap counts too.
    """
    worst, parted = 0.0, 0
    for a, b in zip(one, two, strict=True):
        assert a.logprobs is not None and b.logprobs is not None
        for x, y in zip(a.logprobs, b.logprobs, strict=True):
            if x.token_id != y.token_id:
                parted += 1
                worst = max(worst, (x.logprob - dict(x.top).get(y.token_id, -99.0)) / 2)
                break
            worst = max(worst, abs(x.logprob - y.logprob))
    return worst, parted


if __name__ == "__main__":
    main()
