"""Decode forwards recorded once per batch size and replayed: launching a step costs the host one
call.

A graph reads the row table alone (tokens, positions, block tables, finish flags), so replaying it
always sees the present rows. Sizes form a ladder; a step runs on the next size up, whose extra
rows are finished ones that write to block 0 and are not read. All graphs share one memory pool.
Prefill and sampling are not recorded here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
STEPS = ((1024, 128), (1 << 30, 256))  # (up to, step) above SMALL: an eighth is padding at most


def ladder(largest: int) -> list[int]:
    """Batch sizes to record, up to and including `largest`."""
    sizes = [size for size in SMALL if size < largest]
    start = SMALL[-1]
    for limit, step in STEPS:
        sizes += range(start + step, min(limit + 1, largest), step)
        start = limit
    return [*sizes, largest]


class DecodeGraphs:
    """`forward(size)` gives logits of rows [0, size); it must read device state only."""

    def __init__(self, forward: Callable[[int], Tensor], largest: int) -> None:
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.sizes = ladder(largest)
        pool = None
        forward(largest)  # loads every kernel and sizes the library workspaces
        for size in reversed(self.sizes):  # the largest first: smaller ones fit into its memory
            forward(size)
            graph = torch.cuda.CUDAGraph()
            # thread_local: the communication library's own threads may call CUDA meanwhile
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = forward(size)
            pool = pool or graph.pool()
            self._graphs[size] = graph, logits
        torch.cuda.synchronize()

    def rung(self, size: int) -> int:
        """The recorded size that serves a step of so many rows."""
        return next(rung for rung in self.sizes if rung >= size)

    def logits(self, rung: int) -> Tensor:
        """What forward(rung) gives; overwritten by the next call."""
        graph, logits = self._graphs[rung]
        graph.replay()
        return logits
