"""Products and activations on the CPU with the same bits for a row, whatever rows stand beside it.

MKL takes other code paths for few rows and shares a sum among threads, unless its strict mode of
conditional numerical reproducibility is on (santagen.environment asks for it): then every number of
rows and of threads gives the same bits, at the same speed. Where it is not in force, rows are
padded to a multiple of 16, which covers most shapes.

Element-wise functions are vectorised but for the last elements of a thread's share, which take a
scalar form that rounds otherwise. So shares are cut where a vector ends.

Serves what kernels.packed_linear does not take: the head, other number formats, packed GPTQ.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.environment import MKL_MODE, STRICT

PADDED_ROWS = 16
VECTORS = 64  # elements; a multiple of any vector loop's step
GRAIN = 16384  # elements up to which torch takes one thread, for every activation of a model


def row_multiple() -> int:
    """What the number of a product's rows has to be a multiple of."""
    return 1 if os.environ.get(MKL_MODE, "").endswith(STRICT) else PADDED_ROWS


def cpu_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b [M, N]; x [M, K], weight [N, K], bias [N]."""
    rows = x.shape[0]
    missing = -rows % row_multiple()
    if rows == 1 and x.dtype != torch.float32:
        missing = max(missing, 1)  # one row of a half format is not MKL's
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return F.linear(x, weight, bias)[:rows]


def cpu_activation(
    act_: Callable[[Tensor], Tensor], y: Tensor, grain: int = GRAIN
) -> Tensor:
    """act(y) of y [M, N], a row's bits independent of its place; `act_` works in place, y is lost.

    grain: elements up to which torch takes one thread for `act_`.
    """
    rows, width = y.shape
    if width % VECTORS:
        return cpu_activation(act_, F.pad(y, (0, -width % VECTORS)), grain)[:, :width]
    flat = y.reshape(-1)
    # A call on a multiple of T * grain elements gives each of T threads whole grains; what is
    # left is done by one.
    count, whole = flat.numel(), torch.get_num_threads() * grain
    shared = count // whole * whole
    bounds = [*({0, shared} if shared else {0}), *range(shared + grain, count, grain), count]
    for start, stop in pairwise(sorted(bounds)):
        act_(flat[start:stop])
    return flat.view(rows, width)
