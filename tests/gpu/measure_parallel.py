"""Times several GPUs of one host against one, and checks that they compute the same.

    torchrun --standalone --nproc-per-node 2 -m tests.gpu.measure_parallel [--json FILE]
        [--parts sums equal shards groups tensor] [--shape starcoder] [--requests 8192]
        [--forms float gptq] [--batches 1 64 1024] [--device cuda]

    sums     one all-reduce of a decode step's hidden states: NCCL, torch's symmetric memory, and
             with the LayerNorm that follows: after the fastest of them, and in one kernel
    equal    shards against one GPU: float32 logits and tokens, graphs against eager launches
    shards   a decode step of the 15B shape in bf16 on one GPU and on all, beside the bound
    groups   8,192 requests of 256 + 256 on the 1.1B shape: one GPU, then all from one queue
    tensor   that decode step on all GPUs alone, also with packed GPTQ weights (4 bits, groups of
             128), and greedy rows; tests.gpu.measure_scaling compares several numbers of them

Weights are random and drawn on the device. Rank 0 prints. NVLink multicast stays off. `sums` and
`tensor` also run with `--device cpu`, in float32 and with a small --shape, to try them out; `sums`
then lets gloo add, and the bound is made of what this processor reaches in place of an H200.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from santagen.bench.probes import measure_rates, synchronize
from santagen.checkpoint.random_weights import random_model
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.kernels.layer_norm import add_layer_norm
from santagen.kernels.sum_layer_norm import FEW_ROWS
from santagen.llm import LLM
from santagen.parallel.cluster import Cluster
from santagen.parallel.row_queue import chunk_rows, draw_rows
from santagen.parallel.world import World
from santagen.request import SampleOutput
from tests.gpu.decode_steps import PROMPT, STEPS, Trace, compare, greedy_rows, step_seconds
from tests.gpu.measure import requests, run
from tests.gpu.random_gptq import quantised, settings
from tests.gpu.step_bound import H200, Storage, step_bound

BATCHES = (1, 64, 1024)
FORMS = ("float", "gptq")
GPTQ_BITS, GPTQ_GROUP = 4, 128
SUM_ROWS = (1, 8, 64, 256, 1024)
SUMS_IN_GRAPH = 50
SMALL = "santacoder"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["sums", "equal", "shards", "groups", "tensor"]
    parser.add_argument("--parts", nargs="+", default=parts[:-1], choices=parts)
    parser.add_argument("--shape", default="starcoder", help="of all but `equal` and `groups`")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS, help="of `tensor`")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="of `tensor`")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--requests", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    found = World.from_environment(os.environ)
    world = dataclasses.replace(found, tensor_parallel=found.size)
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
    cluster = Cluster.join(world, os.environ)
    cluster.meet()
    start = time.perf_counter()
    cluster.connect(device)
    bench = Bench(cluster, device, arguments.shape)
    nccl = f", NCCL {torch.cuda.nccl.version()}" if device.type == "cuda" else ""
    bench.say(f"{world.size} ranks on {device.type}, torch {torch.__version__}{nccl}")
    bench.say(f"connected and tried out in {time.perf_counter() - start:.1f} s")
    for part in arguments.parts:
        bench.say(f"\n== {part}")
        if part == "groups":
            bench.groups(arguments.requests)
        elif part == "tensor":
            bench.tensor(arguments.forms, arguments.batches)
        else:
            getattr(bench, part)()
        if arguments.json and world.rank == 0:
            arguments.json.write_text(json.dumps(bench.results, indent=2))
    cluster.leave()


def _norm(x: Tensor) -> Tensor:
    return add_layer_norm(x, x, None, x[0], x[0], 1e-5)[0]


class Bench:
    """One rank's part of the measurements; all ranks call the same methods in the same order."""

    def __init__(self, cluster: Cluster, device: torch.device, shape: str) -> None:
        self.cluster, self.device = cluster, device
        self.source = random_model(shape)
        cuda = device.type == "cuda"
        self.dtype = torch.bfloat16 if cuda else torch.float32
        self.rates = H200 if cuda else measure_rates(device, self.dtype)
        self.rank, self.size = cluster.world.rank, cluster.world.size
        self.parallel = cluster.tensor_parallel
        self.results: dict[str, Any] = {}
        self.sum_seconds: dict[int, float] = {}  # rows: seconds of the fastest all-reduce
        self._meetings = 0

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def meet(self) -> None:
        """All ranks get here before any goes on."""
        synchronize(self.device)
        self._meetings += 1
        self.cluster.barrier(f"bench{self._meetings}", self.size)

    # -- sums ----------------------------------------------------------------------------------

    def sums(self) -> None:
        if self.size == 1:
            self.say("one rank has nothing to add up")
            return
        width = self.source.config.n_embd
        names = ("NCCL", "one-shot", "two-shot", "then norm", "few", "many")
        self.say(f"{'rows':>6} {'KiB':>6} " + " ".join(f"{name + ' us':>12}" for name in names))
        for rows in SUM_ROWS:
            x = torch.ones(rows, width, dtype=self.dtype, device=self.device)
            times = [self._per_call(lambda x=x: dist.all_reduce(x))]  # type: ignore[misc]
            times += [self._symmetric(op, rows, width) for op in ("one_shot", "two_shot")]
            fastest = min(seconds for seconds in times if seconds)
            times += [fastest + self._per_call(lambda x=x: _norm(x)), *self._norms(x)]  # type: ignore[misc]
            self.sum_seconds[rows] = min(seconds for seconds in times if seconds)
            shown = [f"{t * 1e6:.1f}" if t else "-" for t in times]
            line = " ".join(f"{text:>12}" for text in shown)
            self.say(f"{rows:6} {x.nbytes // 1024:6} {line}")
            self.results.setdefault("sums", {})[rows] = times

    def _norms(self, x: Tensor) -> list[float | None]:
        """Seconds of both kernels of kernels.sum_layer_norm; None where one can't be."""
        shared = getattr(self.parallel.fast_sum, "shared", None)
        if shared is None or not shared.takes(x):
            return [None, None]
        from santagen.kernels.sum_layer_norm_triton import launch_few, launch_many

        times: list[float | None] = []
        for launch, most in ((launch_few, FEW_ROWS), (launch_many, len(x))):
            norm = partial(launch, shared, x, x, x[0], x[0], 1e-5)
            times.append(self._per_call(norm) if len(x) <= most else None)
        return times

    def _symmetric(self, op: str, rows: int, width: int) -> float | None:
        """Seconds of a sum through symmetric memory, its copy included; None where it can't be."""
        if self.device.type != "cuda":
            return None
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
        """Seconds of one call; on a GPU inside a replayed CUDA graph."""
        call()
        self.meet()
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(SUMS_IN_GRAPH):
                call()
            return (time.perf_counter() - start) / SUMS_IN_GRAPH
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
        self._report("bf16 shards: the same run again", 0.0, 0, again == graphs)
        alone = self._outputs(source, TensorParallel(), dtype="bfloat16")
        error, parted = compare(alone, graphs)
        self._report("bf16 shards against one GPU", error, parted, error < 0.15)

    def _report(self, what: str, error: float, parted: int, good: bool) -> None:
        self.say(f"{'ok   ' if good else 'WRONG'} {what}: {error:.2e} nats, {parted} rows part")
        self.results.setdefault("equal", {})[what] = [error, parted, good]

    def _outputs(self, source: Any, parallel: TensorParallel, **settings: Any) -> list[Trace]:
        llm = LLM(source, parallel=parallel, max_num_seqs=64, **settings)
        rows = greedy_rows(llm, 48, 200, 24)
        del llm
        self._free()
        return rows

    def _free(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.meet()

    # -- shards --------------------------------------------------------------------------------

    def shards(self) -> None:
        times: dict[int, dict[int, float]] = {}
        for ranks in (1, self.size):
            if ranks == 1 and self.rank:
                self.meet()
                continue
            start = time.perf_counter()
            parallel = TensorParallel() if ranks == 1 else self.parallel
            llm = LLM(self.source, parallel=parallel, max_num_seqs=max(BATCHES), max_model_len=512)
            self._say_ready(llm, f"{ranks} GPUs", start)
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

    def _say_ready(self, llm: LLM, what: str, start: float) -> None:
        self.say(f"{what}: ready in {time.perf_counter() - start:.1f} s")
        self.say("  " + "; ".join(llm.describe()))
        run(llm, requests(8, 64, 8, 0.0, llm.config.vocab_size, 1, seed=99))

    def _bound(
        self, config: ModelConfig, batch: int, ranks: int, storage: Storage | None = None
    ) -> float:
        """Seconds; of floats of this device's type unless stored in another way."""
        bits = 8 * self.dtype.itemsize
        return step_bound(
            config, self.rates, storage or Storage(bits, bits), batch=batch, ranks=ranks,
            context=PROMPT + STEPS / 2, sum_seconds=self.sum_seconds.get(batch, 0.0),
        )  # fmt: skip

    # -- tensor --------------------------------------------------------------------------------

    def tensor(self, forms: list[str], batches: list[int]) -> None:
        for form in forms:
            start = time.perf_counter()
            packed = form == "gptq"
            model: AbstractContextManager[None] = (
                quantised(settings(GPTQ_BITS, GPTQ_GROUP)) if packed else nullcontext()
            )
            with model:
                llm = LLM(
                    self.source, parallel=self.parallel, sharing=self.size,
                    device=self.device.type, quantization="gptq" if packed else "none",
                    max_num_seqs=max(batches), max_model_len=512,
                )  # fmt: skip
            self._say_ready(llm, f"{form} on {self.size}", start)
            value_bits = 8 * self.dtype.itemsize
            storage = Storage.gptq(GPTQ_BITS, GPTQ_GROUP, value_bits) if packed else None
            steps = []
            for batch in batches:
                seconds = step_seconds(llm, batch)
                bound = self._bound(llm.config, batch, self.size, storage)
                steps.append({"batch": batch, "seconds": seconds, "bound": bound})
                self.say(f"{batch:6} rows {seconds * 1e3:9.3f} ms, bound {bound * 1e3:9.3f} ms")
            self.results.setdefault("tensor", {})[form] = {
                "steps": steps,
                "rows": greedy_rows(llm, 16, 128, 24),
                "cached_tokens": llm.engine.stats.cached_tokens,
                "about": llm.describe(),
            }
            del llm
            self._free()

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


if __name__ == "__main__":
    main()
