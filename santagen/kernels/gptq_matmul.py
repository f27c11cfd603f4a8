"""y = act(x W^T + b) with W a packed GPTQ weight: see kernels.gptq_packed for its layout.

Two ways on CUDA, by the number of rows M of x, which is put in act-order's order first (reading
it through the order inside the product was slower at every M on an H200):

    up to FUSED_ROWS    one launch: integers are taken apart in registers, K is shared out over the
                        multiprocessors
    above               W dequantised into scratch memory that is freed at once, and cuBLAS

In the first the tensor cores multiply the exact integers, less their zero points, and each tile's
float32 sum is scaled; the second rounds the weights as a load with `--quantization none` does.
A row's bits depend on M through these ways and the tile alone, and nothing is summed in an order
that may change.
`gptq_matmul_reference` is the plain torch twin, and what runs on the CPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.kernels.activations import activated_linear, activation
from santagen.kernels.cpu_linear import cpu_linear
from santagen.kernels.gptq_packed import PackedWeight
from santagen.kernels.triton_support import runs_triton

FUSED_ROWS = 128
COUNTED_OUTPUTS, COUNTED_ROWS = 64, 128  # at least so large is a tile that has a counter
ELEMENTS_AT_ONCE = 2**20  # dequantised together by the twin: they stay in the caches
ROWS_AT_ONCE = 32  # outputs dequantised together are a multiple of it


def gptq_matmul(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    act: str | None = None,
    counters: Tensor | None = None,
) -> Tensor:
    """[M, N] of x's type from x [M, K], whose rows may be strided, and a bias [N].

    `act` is an activation_function's name. With `counters`, zeros of `new_counters` that no other
    stream uses meanwhile, K is shared out; the launch leaves them zero.
    """
    if not runs_triton(x):
        return gptq_matmul_reference(x, weight, bias, act)
    from santagen.kernels.gptq_matmul_triton import dequantize, launch

    x = weight.arrange(x)
    if x.shape[0] > FUSED_ROWS:
        return activated_linear(x, dequantize(weight, x.dtype), bias, act)
    return launch(x, weight, bias, act, counters)


def gptq_matmul_reference(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, act: str | None = None
) -> Tensor:
    """`gptq_matmul` in plain torch: a part of the outputs is dequantised and multiplied at a time.

    Which part does not depend on x, so on the CPU a row's bits depend on no other row.
    """
    x = weight.arrange(x)
    linear = cpu_linear if x.device.type == "cpu" else F.linear
    out = torch.empty(x.shape[0], weight.outputs, dtype=x.dtype, device=x.device)
    step = ELEMENTS_AT_ONCE // weight.packed_inputs // ROWS_AT_ONCE * ROWS_AT_ONCE
    step = max(step, ROWS_AT_ONCE)
    for start in range(0, weight.outputs, step):
        part = slice(start, start + step)
        dense = weight.dequantize(x.dtype, start, start + step)
        out[:, part] = linear(x, dense, None if bias is None else bias[part])
    function = activation(act)
    return out if function is None else function(out)


def new_counters(outputs: int, device: torch.device) -> Tensor:
    """What one layer of so many outputs needs to share out K."""
    tiles = -(-outputs // COUNTED_OUTPUTS) * -(-FUSED_ROWS // COUNTED_ROWS)
    return torch.zeros(tiles, dtype=torch.int32, device=device)
