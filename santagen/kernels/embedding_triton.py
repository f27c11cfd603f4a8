"""The kernel of kernels.embedding. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize_on_alignment=["id_ptr", "position_ptr"])
def _embed_kernel(
    out_ptr, id_ptr, position_ptr, wte_ptr, wpe_ptr, width, wte_row, wpe_row, BLOCK: tl.constexpr
):
    """Grid [T, tiles of E]."""
    token = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = e < width
    row = tl.load(id_ptr + token).to(tl.int64)
    position = tl.load(position_ptr + token).to(tl.int64)
    first = tl.load(wte_ptr + row * wte_row + e, mask=mask).to(tl.float32)
    second = tl.load(wpe_ptr + position * wpe_row + e, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + token * width + e, (first + second).to(out_ptr.dtype.element_ty), mask=mask
    )


def launch(ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
    """As kernels.embedding.embed."""
    tokens, width = ids.shape[0], wte.shape[1]
    assert wte.stride(1) == wpe.stride(1) == 1 and ids.stride(0) == positions.stride(0) == 1
    out = torch.empty((tokens, width), dtype=wte.dtype, device=wte.device)
    if tokens == 0:
        return out
    block = min(triton.next_power_of_2(width), 1024)
    _embed_kernel[tokens, triton.cdiv(width, block)](
        out, ids, positions, wte, wpe, width, wte.stride(0), wpe.stride(0), BLOCK=block, num_warps=4
    )
    return out
