"""The ladder of recorded decode steps, with a recorder that only notes what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from santagen.engine.cuda_graph import DecodeGraphs, ladder


class Recording:
    replays = 0

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        Recording.replays += 1


@contextmanager
def recorded(graph: Recording, pool: str | None, **_: Any) -> Iterator[None]:
    yield


def test_a_step_runs_on_the_next_recorded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, replacement in (
        ("CUDAGraph", Recording), ("graph", recorded), ("synchronize", lambda: None),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, replacement)
    launched: list[int] = []

    def forward(size: int) -> Tensor:
        launched.append(size)
        return torch.full((size, 3), float(size))

    graphs = DecodeGraphs(forward, 20)
    assert graphs.sizes == ladder(20) == [1, 2, 4, 8, 16, 20]
    assert launched[0] == 20 and set(launched) == set(graphs.sizes)
    assert [graphs.rung(size) for size in (1, 3, 8, 9, 17, 20)] == [1, 4, 8, 16, 20, 20]
    logits = graphs.logits(graphs.rung(9))
    assert logits.shape == (16, 3) and Recording.replays == 1
