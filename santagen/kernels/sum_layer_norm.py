"""The sum of the ranks' rows and its LayerNorm in one kernel, through memory that GPUs share.

    sum = x of rank 0 + x of rank 1 + ...   in float32, rounded to x's type
    total = sum + residual, normed = LayerNorm(total)       as kernels.layer_norm has them

Every rank writes its rows into the others' memory and adds up what it finds in its own, in the
ranks' order: all get the same bits. Few rows travel as words of two numbers beside the number of
the call, and are there when that is: nothing else is waited for. Of many rows that would double the
bytes; each is followed by a flag. Both use two places in turn: a rank that writes a row of the next
call but one has ended the next, which the others began when they had ended this one.

Doesn't allocate what is shared: parallel.symmetric does. `sum_layer_norm_reference` is the plain
torch twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from santagen.kernels.layer_norm import MAX_WIDTH, add_layer_norm_reference

HALVES = (torch.bfloat16, torch.float16)
FEW_ROWS = 64
PAIRS = MAX_WIDTH // 2  # words of a row's place in `messages`


@dataclass(frozen=True)
class Shared:
    """What rank `rank` of `ranks` shares: its own memory, and where that of every rank lies.

    messages: int64 [2, FEW_ROWS, ranks, PAIRS]; numbers: [2, ranks, rows, MAX_WIDTH] of 16 bits;
    flags: int32 [ranks, rows]; `*_at`: int64 [ranks], addresses. The counts of calls, int32
    [FEW_ROWS] and [rows], are this rank's alone. All is zero at first.
    """

    rank: int
    ranks: int
    messages: Tensor
    messages_at: Tensor
    numbers: Tensor
    numbers_at: Tensor
    flags: Tensor
    flags_at: Tensor
    few_calls: Tensor
    many_calls: Tensor

    def takes(self, x: Tensor) -> bool:
        """Whether `sum_layer_norm` takes such an x [T, E]."""
        return (
            0 < x.shape[0] <= self.flags.shape[1]
            and x.dtype in HALVES
            and x.shape[1] <= MAX_WIDTH
            and x.shape[1] % 2 == 0
        )


def sum_layer_norm(
    shared: Shared,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(normed, total), both [T, E], of the ranks' x [T, E], which is contiguous; every rank calls
    this alike. Arguments as kernels.layer_norm.add_layer_norm's."""
    from santagen.kernels.sum_layer_norm_triton import launch_few, launch_many

    launch = launch_few if len(x) <= FEW_ROWS else launch_many
    return launch(shared, x, residual, weight, bias, eps, place)


def sum_layer_norm_reference(
    parts: Sequence[Tensor],
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sum_layer_norm` of the x of all ranks, in plain torch."""
    total = torch.stack(list(parts)).float().sum(0).to(parts[0].dtype)
    return add_layer_norm_reference(total, residual, None, weight, bias, eps, place)
