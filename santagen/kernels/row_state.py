"""The two ends of a decode step: what the forward reads of the row table, and what a draw changes.

    decode_inputs   row table -> token, slot, position, context of rows [0, B)
    advance_rows    drawn tokens -> token, position, finish flag of rows [0, B)

Both read and write device state alone. `*_reference` are the plain torch twins, which the CPU runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from santagen.kernels.triton_support import runs_triton


def decode_inputs(data: Tensor, block_size: int, header: int) -> tuple[Tensor, ...]:
    """(token, position, context, slot): int32 [B] thrice, int64 [B].

    data [B, header + max_blocks] int32: rows of engine.rows.RowTable, columns token, position,
    finished first, its block table after `header` columns. A finished row has context 1 and slot 0.
    """
    if runs_triton(data):
        from santagen.kernels.row_state_triton import launch_inputs

        return launch_inputs(data, block_size, header)
    return decode_inputs_reference(data, block_size, header)


def decode_inputs_reference(data: Tensor, block_size: int, header: int) -> tuple[Tensor, ...]:
    """`decode_inputs` in plain torch."""
    token, position, finished = (data[:, column].contiguous() for column in range(3))
    column = header + (position // block_size).long().unsqueeze(1)
    block = data.gather(1, column).squeeze(1)
    done = finished != 0
    slot = torch.where(done, 0, block * block_size + position % block_size).long()
    return token, position, torch.where(done, 1, position + 1), slot


def advance_rows(data: Tensor, token: Tensor, ends: Tensor, ignore_eos: int) -> None:
    """Feed the drawn token [B] int64 next; rows that it ends, and finished ones, stay in place.

    data as above; `ends` [V] bool marks the ids that end a row unless its column `ignore_eos` is
    set; a token of -1 (logits not finite) ends every row.
    """
    if runs_triton(data):
        from santagen.kernels.row_state_triton import launch_advance

        launch_advance(data, token, ends, ignore_eos)
    else:
        advance_rows_reference(data, token, ends, ignore_eos)


def advance_rows_reference(data: Tensor, token: Tensor, ends: Tensor, ignore_eos: int) -> None:
    """`advance_rows` in plain torch."""
    finished = data[:, 2] != 0
    ended = (ends[token.clamp(min=0)] & (data[:, ignore_eos] == 0)) | (token < 0)
    data[:, 0] = token.clamp(min=0).int()
    data[:, 1] += (~finished).int()
    data[:, 2] = (finished | ended).int()
