"""The repetition penalty of kernels.sampling as a Triton kernel. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _penalty_kernel(
    logits_ptr, logits_row, seen_ptr, seen_row, penalty_ptr, penalty_step, vocab_size,
    BLOCK: tl.constexpr,
):
    """Grid [B, tiles of V]."""
    row = tl.program_id(0).to(tl.int64)
    penalty = tl.load(penalty_ptr + row * penalty_step)
    if penalty != 1.0:
        v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = v < vocab_size
        word = tl.load(seen_ptr + row * seen_row + (v >> 5), mask=inside, other=0)
        seen = inside & (((word >> (v & 31)) & 1) != 0)
        x = tl.load(logits_ptr + row * logits_row + v, mask=seen, other=0.0)
        x = tl.where(x > 0, tl.div_rn(x, penalty), x * penalty)
        tl.store(logits_ptr + row * logits_row + v, x, mask=seen)


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """As kernels.sampling.apply_repetition_penalty, in place; penalty 1 touches nothing."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == seen.stride(1) == 1
    if rows:
        block = min(4096, triton.next_power_of_2(vocab_size))
        _penalty_kernel[rows, triton.cdiv(vocab_size, block)](
            logits, logits.stride(0), seen, seen.stride(0), penalty, penalty.stride(0), vocab_size,
            BLOCK=block, num_warps=8,
        )
    return logits
