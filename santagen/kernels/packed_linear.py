"""Products on the CPU by oneDNN, the weight packed once for it and the activation applied in its
registers.

A row's bits depend on no other row and on no number of threads, on any maker's processor: every sum
runs along K in one order. The two exceptions are kept out: a lone row is computed as two, and
weights of few outputs for their inputs, whose sums many threads would share, are not taken. Faster
than MKL with a separate activation, most of all at few rows. float32 only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.config import TANH_GELUS

_ACTIVATIONS: dict[str | None, tuple[str, str]] = {  # oneDNN's name and variant
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    **dict.fromkeys(TANH_GELUS, ("gelu", "tanh")),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}
NARROWEST = 1 / 4  # outputs to an input, at least: the MLP's second product has this
_EXACT_ROWS = 8  # numbers of rows up to which none are added
_STEPS = ((64, 4), (512, 8))  # (up to so many rows, a multiple of this)


def pack_weight(weight: Tensor) -> Tensor:
    """weight [N, K] as oneDNN likes it (an opaque tensor that only `packed_linear` takes), or
    itself where it can't be packed."""
    outputs, inputs = weight.shape
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not fits or outputs < NARROWEST * inputs or not torch.backends.mkldnn.is_available():
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)


def storage_key(tensor: Tensor) -> int:
    """The same for tensors that share their storage; a packed one has none, and is by itself."""
    return id(tensor) if tensor.is_mkldnn else tensor.data_ptr()


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str | None) -> Tensor:
    """act(x W^T + b) [M, N]; x [M, K] float32, weight by `pack_weight`, bias [N]; act a name of
    activation_function or None."""
    name, algorithm = _ACTIVATIONS[act]
    rows = x.shape[0]
    if rows == 1:
        x = x.expand(2, -1).contiguous()
    y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return y[:rows]


def rounded_rows(rows: int) -> int:
    """How many rows to compute for these: oneDNN takes a millisecond to prepare itself for each
    number of rows that it has not met, and a batch that shrinks meets them all."""
    if rows <= _EXACT_ROWS:
        return max(2, rows)
    multiple = next((multiple for most, multiple in _STEPS if rows <= most), 1)
    return -(-rows // multiple) * multiple


def add_rows(x: Tensor, rows: int) -> Tensor:
    """x [M, K] with zeros after it up to `rows` rows; x itself where it has as many."""
    return x if x.shape[0] == rows else F.pad(x, (0, 0, 0, rows - x.shape[0]))
