"""Residual sum, bias of the branch and LayerNorm in one pass over each row.

    sum = x + bias_of_x + residual          in float32, rounded once to x's type
    normed = (sum - mean) / sqrt(var + eps) * weight + bias      in float32 from the rounded sum

A row's bits depend on no other row. `add_layer_norm` launches the Triton kernel on CUDA, else it is
`add_layer_norm_reference`, the plain torch twin.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.kernels.triton_support import runs_triton

MAX_WIDTH = 8192  # of the Triton kernel, which holds a row in registers


def add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    bias_of_x: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(normed, sum), both [T, E] of x's type; rows of x and residual may be strided.

    Without residual and bias_of_x the sum is x itself, not a copy. With place [E] int32, a
    permutation, normed's element e is put at place[e].
    """
    if runs_triton(x) and x.shape[1] <= MAX_WIDTH:
        from santagen.kernels.layer_norm_triton import launch

        return launch(x, residual, bias_of_x, weight, bias, eps, place)
    return add_layer_norm_reference(x, residual, bias_of_x, weight, bias, eps, place)


def add_layer_norm_reference(
    x: Tensor,
    residual: Tensor | None,
    bias_of_x: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`add_layer_norm` in plain torch."""
    total = x.float()
    if bias_of_x is not None:
        total = total + bias_of_x.float()
    if residual is not None:
        total = total + residual.float()
    rounded = total.to(x.dtype)
    shape = (x.shape[-1],)
    normed = F.layer_norm(rounded.float(), shape, weight.float(), bias.float(), eps)
    normed = normed.to(x.dtype)
    if place is not None:
        normed = torch.empty_like(normed).index_copy_(1, place.long(), normed)
    return normed, x if residual is None and bias_of_x is None else rounded
