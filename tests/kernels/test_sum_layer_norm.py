"""The sum of the ranks' rows with its LayerNorm against its torch twin.

Ranks are processes that share memory, each in Triton's interpreter, also where there is a GPU. On
GPUs every run tries the sums out before it uses them (parallel.symmetric).
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from santagen.kernels.layer_norm import MAX_WIDTH
from santagen.kernels.sum_layer_norm import FEW_ROWS, PAIRS, Shared, sum_layer_norm_reference
from tests.conftest import INTERPRET

pytest.importorskip("triton")

MOST_ROWS, EPS = 5, 1e-5
# rows, width, with a residual, with a permutation
CALLS = [(1, 96, True, False), (2, 96, False, True), (1, 96, True, True), (1, 1030, True, False)]


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def arguments(call: int, ranks: int) -> tuple[list[Tensor], tuple[Any, ...]]:
    """(the ranks' x, all other arguments) of a call."""
    rows, width, has_residual, has_place = CALLS[call]
    parts = [draw(rows, width, seed=100 * call + rank) + 3 for rank in range(ranks)]
    residual = draw(rows, width, seed=100 * call + 50) if has_residual else None
    weight, bias = draw(width, seed=call + 7), draw(width, seed=call + 8)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(call))
    return parts, (residual, weight, bias, EPS, order.int() if has_place else None)


def sum_as_rank(rank: int, ranks: int, many: bool, memory: list[list[Tensor]], sent: Any) -> None:
    """Every call twice; late or early beside the other ranks, and never all alike."""
    from santagen.kernels import sum_layer_norm_triton as kernels

    there = [torch.tensor([each[i].data_ptr() for each in memory]) for i in range(3)]
    messages, numbers, flags = memory[rank]
    calls = [torch.zeros(n, dtype=torch.int32) for n in (FEW_ROWS, MOST_ROWS)]
    shared = Shared(
        rank, ranks, messages, there[0], numbers, there[1], flags, there[2], *calls
    )  # fmt: skip
    launch = kernels.launch_many if many else kernels.launch_few
    found = []
    for turn in range(2):
        for call in range(len(CALLS)):
            time.sleep(0.05 * ((rank + call + turn) % ranks))
            parts, others = arguments(call, ranks)
            found.append(launch(shared, parts[rank], *others))
    sent.put((rank, [[x.tolist() for x in pair] for pair in found]))


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_gets_the_sum_and_its_layer_norm(
    ranks: int, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERPRET, "1")  # for the processes started here
    spawn = multiprocessing.get_context("spawn")
    memory = [
        [
            torch.zeros(2, FEW_ROWS, ranks, PAIRS, dtype=torch.int64).share_memory_(),
            torch.zeros(2, ranks, MOST_ROWS, MAX_WIDTH, dtype=torch.half).share_memory_(),
            torch.zeros(ranks, MOST_ROWS, dtype=torch.int32).share_memory_(),
        ]
        for _ in range(ranks)
    ]
    sent = spawn.Queue()
    started = [
        spawn.Process(target=sum_as_rank, args=(rank, ranks, many, memory, sent), daemon=True)
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    try:
        found = dict(sent.get(timeout=120) for _ in started)
    finally:
        for process in started:
            process.kill()
    assert all(found[rank] == found[0] for rank in range(ranks))  # the same bits
    for number, (normed, total) in enumerate(found[0]):
        parts, others = arguments(number % len(CALLS), ranks)
        wanted, wanted_total = sum_layer_norm_reference(parts, *others)
        assert torch.equal(torch.tensor(total).half(), wanted_total)
        torch.testing.assert_close(torch.tensor(normed).half(), wanted, rtol=4e-3, atol=4e-3)
