"""One row times a weight, at the memory's speed: y = act(norm(x + residual) W^T + b).

A decode step of a single sequence does nothing but read weights. Here every program reads whole
weight rows, and norms x for itself while they are under way, so that the LayerNorm costs no launch.
More rows than one are the matrix library's business. `row_linear_reference` is the plain torch
twin.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from santagen.kernels.layer_norm import add_layer_norm_reference
from santagen.kernels.triton_support import runs_triton

MAX_WIDTH = 8192  # inputs of a normed product, held in registers
MAX_NUMBERS = 2048 * 8192  # of a normed product's weight: each of its many programs norms x
Norm = tuple[Tensor | None, Tensor, Tensor, float]  # residual [1, K], weight, bias [K], eps


def takes_row(x: Tensor, weight: Tensor, normed: bool) -> bool:
    """`row_linear` runs for x [M, K] and weight [N, K]: one row of a half-precision model."""
    rows, width = x.shape
    return (
        rows == 1
        and x.element_size() == 2
        and width % 256 == 0
        and not (normed and (width > MAX_WIDTH or weight.numel() > MAX_NUMBERS))
        and weight.is_contiguous()
        and runs_triton(x)
    )


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool, norm: Norm | None = None
) -> tuple[Tensor, Tensor]:
    """(y [1, N], sum [1, K]) of x [1, K], weight [N, K], bias [N]; `gelu` is the tanh form.

    With `norm`, sum = x + residual (rounded to x's type) and the product is of LayerNorm(sum);
    without, sum is x itself. Sums are float32, y is rounded once.
    """
    from santagen.kernels.row_linear_triton import launch

    return launch(x, weight, bias, gelu, norm)


def row_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool, norm: Norm | None = None
) -> tuple[Tensor, Tensor]:
    """`row_linear` in plain torch, the product in float32."""
    total = hidden = x
    if norm is not None:
        residual, scale, shift, eps = norm
        hidden, total = add_layer_norm_reference(x, residual, None, scale, shift, eps)
    y = F.linear(hidden.float(), weight.float(), None if bias is None else bias.float())
    return (F.gelu(y, approximate="tanh") if gelu else y).to(x.dtype), total
