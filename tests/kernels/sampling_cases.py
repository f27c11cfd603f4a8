"""Random sampling inputs for both forms of the sampler: every setting, ties, masks, odd sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SETTINGS = [  # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.8, 0, 0.95, 0.0),
    (1.3, 0, 0.3, 0.0),
    (0.8, 5, 1.0, 0.0),
    (0.7, 40, 0.9, 0.0),
    (1.0, 200, 0.99, 0.01),
    (1.1, 0, 1.0, 0.1),
    (1.0, 1, 1.0, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (2.0, 10**6, 0.5, 1.0),
    (1e-3, 3, 0.999, 0.5),
    (1e-30, 3, 0.5, 0.5),
    (0.0, 3, 0.5, 0.5),
]


def make_case(
    vocab_size: int, seed: int, spread: float = 3.0, ties: bool = False, masked: bool = False,
    rows: int = len(SETTINGS), device: str = "cpu",
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Positional and keyword arguments of `sample`; the settings repeat over the rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator) * spread
    if ties:
        logits = (logits * 2).round() / 2
    settings = [SETTINGS[row % len(SETTINGS)] for row in range(rows)]
    columns = zip(*settings, strict=True)
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in columns)
    allowed = torch.rand(vocab_size, generator=generator) < 0.7 if masked else None
    if allowed is not None:
        allowed[int(vocab_size * 0.9) :] = False
        allowed[0] = True
        logits[:, ~allowed] += 50  # an id without a token must never win
    arguments = (
        logits,
        torch.randint(0, 2048, (rows,), generator=generator),
        torch.randint(0, 2**32, (rows, 2), generator=generator),
        temperature,
        top_k.to(torch.int32),
        top_p,
        min_p,
    )
    moved = tuple(argument.to(device) for argument in arguments)
    return moved, {"allowed": None if allowed is None else allowed.to(device)}


CASES = [
    {"vocab_size": 1, "seed": 1},
    {"vocab_size": 7, "seed": 2},
    {"vocab_size": 130, "seed": 3, "ties": True},
    {"vocab_size": 384, "seed": 4, "masked": True},
    {"vocab_size": 1001, "seed": 5, "ties": True, "masked": True},
    {"vocab_size": 1100, "seed": 6, "spread": 0.05},
    {"vocab_size": 1100, "seed": 7, "spread": 0.0},
]
