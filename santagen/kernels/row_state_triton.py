"""The kernels of kernels.row_state: a few rows a program. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # a program


@triton.jit(do_not_specialize=["rows"])
def _inputs_kernel(
    token_ptr, position_ptr, context_ptr, slot_ptr, data_ptr, rows, stride, block_size, header,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    at = data_ptr + row.to(tl.int64) * stride
    token = tl.load(at, mask=mask, other=0)
    position = tl.load(at + 1, mask=mask, other=0)
    finished = tl.load(at + 2, mask=mask, other=1) != 0
    block = tl.load(at + header + position // block_size, mask=mask, other=0).to(tl.int64)
    slot = tl.where(finished, 0, block * block_size + position % block_size)
    tl.store(token_ptr + row, token, mask=mask)
    tl.store(position_ptr + row, position, mask=mask)
    tl.store(context_ptr + row, tl.where(finished, 1, position + 1), mask=mask)
    tl.store(slot_ptr + row, slot, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _advance_kernel(
    data_ptr, token_ptr, ends_ptr, rows, stride, ignore_eos, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    at = data_ptr + row.to(tl.int64) * stride
    drawn = tl.load(token_ptr + row, mask=mask, other=0)
    token = tl.maximum(drawn, 0)
    position = tl.load(at + 1, mask=mask, other=0)
    finished = tl.load(at + 2, mask=mask, other=1) != 0
    ignored = tl.load(at + ignore_eos, mask=mask, other=0) != 0
    ends = tl.load(ends_ptr + token, mask=mask, other=0) != 0
    ended = (ends & (ignored == 0)) | (drawn < 0)
    tl.store(at, token.to(tl.int32), mask=mask)
    tl.store(at + 1, tl.where(finished, position, position + 1), mask=mask)
    tl.store(at + 2, (finished | ended).to(tl.int32), mask=mask)


def launch_inputs(data: Tensor, block_size: int, header: int) -> tuple[Tensor, ...]:
    """As kernels.row_state.decode_inputs."""
    rows = data.shape[0]
    assert data.stride(1) == 1
    # each aligned alike, whatever the number of rows: a kernel is compiled for an alignment
    shape = (3, triton.cdiv(rows, 4) * 4)
    token, position, context = torch.empty(shape, dtype=torch.int32, device=data.device)[:, :rows]
    slot = torch.empty(rows, dtype=torch.int64, device=data.device)
    _inputs_kernel[triton.cdiv(rows, ROWS),](
        token, position, context, slot, data, rows, data.stride(0), block_size, header,
        ROWS=ROWS, num_warps=1,
    )
    return token, position, context, slot


def launch_advance(data: Tensor, token: Tensor, ends: Tensor, ignore_eos: int) -> None:
    """As kernels.row_state.advance_rows."""
    rows = data.shape[0]
    assert data.stride(1) == token.stride(0) == 1
    _advance_kernel[triton.cdiv(rows, ROWS),](
        data, token, ends.view(torch.uint8), rows, data.stride(0), ignore_eos,
        ROWS=ROWS, num_warps=1,
    )
