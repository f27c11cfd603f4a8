"""Runs in every rank of one tensor-parallel group: models against themselves on one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from santagen.checkpoint.reader import TensorFiles
from santagen.checkpoint.weights import open_weights
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.engine import model_runner
from santagen.llm import LLM
from santagen.model.attention import Seqlen
from santagen.model.attention.cpu import CpuAttention
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.parallel.cluster import Cluster
from santagen.parallel.world import World
from santagen.request import Request, SampleOutput, SamplingParams
from tests.engine.padded_graphs import PaddedGraphs

CPU = torch.device("cpu")
BLOCK = 16
TOLERANCE = 1e-4  # of float32 logits


def join() -> Cluster:
    """One group of all ranks."""
    found = World.from_environment(os.environ)
    world = World(found.rank, found.size, found.local_rank, found.local_size, found.size)
    cluster = Cluster.join(world, os.environ)
    cluster.meet()
    cluster.connect(CPU)
    return cluster


def compare(directories: list[Path]) -> list[str]:
    """What differs between one rank and all of them, a line each."""
    torch.set_num_threads(1)
    cluster = join()
    parallel = cluster.tensor_parallel
    found = [line for path in directories for line in differences(path, parallel)]
    cluster.leave()
    return found


def differences(directory: Path, parallel: TensorParallel) -> Iterator[str]:
    config = ModelConfig.from_directory(directory)
    generator = torch.Generator().manual_seed(5)
    prompts = [
        torch.randint(0, config.vocab_size, (n,), generator=generator).tolist() for n in (1, 9, 20)
    ]
    sharded, mine = logits_and_greedy(directory, prompts, parallel)
    yield f"{directory.name} {sharded.double().sum()} {[s.token_ids for s in mine]}"
    if parallel.rank != 0:  # that they have the same is all to know of the others
        return
    alone, wanted = logits_and_greedy(directory, prompts, TensorParallel())
    error = float((alone - sharded).abs().max())
    if not error < TOLERANCE or not alone.abs().max() > 0.1:
        yield f"WRONG {directory.name}: logits are off by {error:.2e}"
    for one, two in zip(wanted, mine, strict=True):
        gap = gap_where_they_part(one, two)
        if gap > TOLERANCE:
            yield f"WRONG {directory.name}: greedy parts where the best lead by {gap:.2e}"


def logits_and_greedy(
    directory: Path, prompts: list[list[int]], parallel: TensorParallel
) -> tuple[Tensor, list[SampleOutput]]:
    """[prompts, V] after each prompt, and what the engine goes on with, with its two best."""
    llm = LLM(str(directory), device="cpu", parallel=parallel, num_blocks=16, max_num_seqs=4)
    logits = torch.cat([last_logits(llm, prompt) for prompt in prompts])
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=2)
    requests = [Request(i, i, tuple(ids), params) for i, ids in enumerate(prompts)]
    found = [result for result in llm.run(requests) if isinstance(result, SampleOutput)]
    assert len(found) == len(prompts)
    return logits, sorted(found, key=lambda sample: sample.request.number)


@torch.inference_mode()
def last_logits(llm: LLM, prompt: list[int]) -> Tensor:
    """[1, V] after a prompt, from the model alone."""
    model, size = llm.engine.runner.model, llm.plan.shape.block_size
    cache = model.attention.allocate(llm.plan.shape, torch.float32, CPU)
    count = torch.tensor([len(prompt)], dtype=torch.int32)
    cu = torch.tensor([0, len(prompt)], dtype=torch.int32)
    logits, _ = model(
        torch.tensor(prompt), torch.arange(len(prompt)), cu, list(zip(*cache, strict=True)),
        torch.tensor([[1]], dtype=torch.int32), size + torch.arange(len(prompt)),
        Seqlen(count, torch.zeros_like(count), cu, cu), len(prompt),
        lm_head_indices=torch.tensor([len(prompt) - 1]),
    )  # fmt: skip
    assert logits.shape == (1, llm.config.vocab_size)
    return logits


def gap_where_they_part(one: SampleOutput, two: SampleOutput) -> float:
    """By how much the best token led where the two first differ; 0 where they never do."""
    assert one.logprobs is not None and two.logprobs is not None
    for a, b in zip(one.logprobs, two.logprobs, strict=True):
        if a.token_id != b.token_id:
            return a.top[0][1] - a.top[1][1]
    return 0.0


def bytes_read(directory: Path) -> list[str]:
    """How many weights this rank reads from disk for its shard."""
    cluster = join()
    total = 0
    read = TensorFiles.read

    def counted(self: TensorFiles, *arguments: object, **settings: object) -> Tensor:
        nonlocal total
        tensor = read(self, *arguments, **settings)  # type: ignore[arg-type]
        total += tensor.numel()
        return tensor

    TensorFiles.read = counted  # type: ignore[method-assign]
    config = ModelConfig.from_directory(directory)
    parallel = cluster.tensor_parallel
    weights = open_weights(
        directory, config, dtype=torch.float32, device=CPU, rank=parallel.rank,
        world_size=parallel.world_size, process_group=parallel.group,
    )  # fmt: skip
    FlashSantacoderForCausalLM("", config, weights, CpuAttention(BLOCK))
    cluster.leave()
    return [str(total)]


def kv_heads(directory: Path) -> list[str]:
    """[heads, blocks' bytes] of this rank's cache."""
    cluster = join()
    llm = LLM(str(directory), device="cpu", parallel=cluster.tensor_parallel, num_blocks=8)
    cluster.leave()
    return [f"{llm.plan.shape.n_kv_head} {llm.plan.cache_bytes}"]


def sums(dtype: str) -> list[str]:
    """Sums and gathers inside inference mode, of the shapes a model makes."""
    cluster = join()
    parallel = cluster.tensor_parallel
    with torch.inference_mode():
        x = torch.ones(7, 5, dtype=getattr(torch, dtype)) * (parallel.rank + 1)
        gathered = parallel.gather_last(x)
        total = parallel.all_reduce(x)
    items = list(parallel.same_items(range(7) if parallel.rank == 0 else (), 3))
    smallest = parallel.smallest(10 + parallel.rank)
    cluster.leave()
    return [str([float(total.sum()), gathered[3].tolist(), list(gathered.shape), items, smallest])]


def rows_summed() -> list[str]:
    """Whether a row's sum has the same bits alone and among others, and is that of all ranks."""
    cluster = join()
    parallel = cluster.tensor_parallel
    every = [
        torch.randn(37, 640, generator=torch.Generator().manual_seed(rank))
        for rank in range(parallel.world_size)
    ]
    own = every[parallel.rank]
    whole = parallel.ordered_sum(own.clone())
    alone = torch.cat([parallel.ordered_sum(own[row : row + 1].clone()) for row in range(37)])
    right = torch.allclose(whole, torch.stack(every).sum(0), atol=1e-5)
    cluster.leave()
    return [f"{torch.equal(alone, whole)} {right}"]


def shared_draws(directory: Path) -> list[str]:
    """What each of two ways of drawing gives, a line each: every rank all rows, or its share."""
    torch.set_num_threads(1)
    cluster = join()
    prompts = [[7, 8, 9], [3], [5, 6] * 9, [2, 2], [11, 4, 1]]
    settings = [
        SamplingParams(max_tokens=9, ignore_eos=True),
        SamplingParams(max_tokens=7, ignore_eos=True, temperature=0.9, top_p=0.9, seed=3),
        SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, top_k=40, min_p=0.01),
        SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.7, repetition_penalty=1.4),
        SamplingParams(max_tokens=5, ignore_eos=True, repetition_penalty=1.2, logprobs=3),
    ]
    lines, exchanged, exchange = [], [], TensorParallel.exchange_rows

    def counted(self: TensorParallel, x: Tensor) -> Tensor:
        exchanged.append(len(x))
        return exchange(self, x)

    TensorParallel.exchange_rows = counted  # type: ignore[method-assign]
    for least in (1 << 30, 1):
        assert not exchanged
        model_runner.SHARED_ROWS = least
        llm = LLM(str(directory), device="cpu", parallel=cluster.tensor_parallel, max_num_seqs=8)
        llm.engine.runner.graphs = PaddedGraphs(llm, multiple=3)  # type: ignore[assignment]
        requests = [
            Request(i, i, tuple(ids), params)
            for i, (ids, params) in enumerate(zip(prompts, settings, strict=True))
        ]
        found = [result for result in llm.run(requests) if isinstance(result, SampleOutput)]
        found.sort(key=lambda sample: sample.request.number)
        lines.append(str([(s.token_ids, s.logprobs) for s in found]))
    assert max(exchanged) == 6, exchanged
    cluster.leave()
    return lines


def rows_exchanged() -> list[str]:
    """Columns of all rows made into all columns of a share of them, and shares into all rows."""
    cluster = join()
    parallel, size = cluster.tensor_parallel, cluster.world.size
    every = torch.arange(7.0 * 2 * size).view(7, 2 * size)
    own = parallel.exchange_rows(every[:, 2 * parallel.rank : 2 * parallel.rank + 2])
    share = -(-7 // size)
    first = parallel.rank * share
    right = torch.equal(own[: max(0, 7 - first)], every[first : first + share])
    whole = parallel.gather_rows(own[: max(0, min(share, 7 - first))], share, 7)
    ids = parallel.gather_rows(torch.arange(7)[first : first + share], share, 7)
    cluster.leave()
    return [f"{right} {torch.equal(whole, every)} {ids.tolist()}"]
