"""Activation functions for Triton kernels to call. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gelu_tanh(x):
    """x sigmoid(2 u) = x (1 + tanh(u)) / 2"""
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))


@triton.jit
def activate(y, ACT: tl.constexpr):
    """y under the function of that name: gelu, gelu_tanh, relu, silu, or "" for none."""
    if ACT == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        y = gelu_tanh(y)
    elif ACT == "relu":
        y = tl.maximum(y, 0.0)
    elif ACT == "silu":
        y = y / (1.0 + tl.exp(-y))
    return y
