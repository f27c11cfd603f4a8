"""Rows in float8 with a scale each: what a float8 product takes, made in one pass over memory.

    quantize_rows        act(x)                    -> q, scale
    norm_quantize_rows   LayerNorm(x + residual)   -> q, scale, sum

q is float8_e4m3fn, scale = max(|row|) / 448 in float32, row = q * scale. A row's bits depend on no
other row. `*_reference` are the plain torch twins. The product itself is `scaled_product`, torch's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.kernels.layer_norm import add_layer_norm_reference

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # of float8_e4m3fn
FAST_ROWS = 64  # from here on the library has its fast sums for every shape
SMALLEST = 1e-12  # largest value of a row from which on its scale is no longer made smaller


def quantize_rows(x: Tensor, gelu: bool = False) -> tuple[Tensor, Tensor]:
    """(q [M, K], scale [M, 1]) of x [M, K], or of its tanh GELU."""
    from santagen.kernels.fp8_triton import launch_quantize

    return launch_quantize(x, gelu)


def quantize_rows_reference(x: Tensor, gelu: bool = False) -> tuple[Tensor, Tensor]:
    """`quantize_rows` in plain torch."""
    value = F.gelu(x.float(), approximate="tanh") if gelu else x.float()
    scale = value.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return (value / scale).clamp(-LARGEST, LARGEST).to(FLOAT8), scale


def norm_quantize_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, scale, sum) of LayerNorm(sum), sum = x + residual; [M, K], [M, 1], [M, K].

    Without a residual the sum is x itself.
    """
    from santagen.kernels.fp8_triton import launch_norm_quantize

    return launch_norm_quantize(x, residual, weight, bias, eps)


def norm_quantize_rows_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`norm_quantize_rows` in plain torch; the normed row is rounded to x's type on the way."""
    normed, total = add_layer_norm_reference(x, residual, None, weight, bias, eps)
    return *quantize_rows_reference(normed), total


def scaled_product(
    q: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """bfloat16 [M, N] = (q * scale) (weight * weight_scale)^T + bias.

    q [M, K], weight [N, K] float8; scale [M, 1], weight_scale [N, 1] float32; K and N multiples of
    16. Needs a GPU with float8 products (compute capability 8.9 or more).
    """
    return torch._scaled_mm(
        q,
        weight.t(),
        scale_a=scale,
        scale_b=weight_scale.t(),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=len(q) >= FAST_ROWS,
    )
