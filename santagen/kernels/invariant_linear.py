"""y = act(x W^T + b) with the same bits for a row whatever rows stand beside it.

Matrix libraries choose another kernel, and with it another order of sums, for another number of
rows. Here every output is one sum over K in steps of one fixed size, never split; only the tiles'
outer sizes follow the number of rows, which no sum sees. `invariant_linear_reference` is the plain
torch twin, equal within rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def invariant_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool, out_dtype: torch.dtype
) -> Tensor:
    """[M, N] of out_dtype from x [M, K], weight [N, K], bias [N]; `gelu` is the tanh form.

    Sums are float32. Needs Triton.
    """
    from santagen.kernels.invariant_linear_triton import launch

    return launch(x, weight, bias, gelu, out_dtype)


def invariant_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool, out_dtype: torch.dtype
) -> Tensor:
    """`invariant_linear` in plain torch, the product in float32."""
    y = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return (F.gelu(y, approximate="tanh") if gelu else y).to(out_dtype)
