"""The row table: everything the device knows of the live samples, in one int32 matrix.

    row r:  | token | position | finished | ignore_eos | temperature | top_p | min_p | penalty |
    top_k | key lo | key hi | 0.. | block table ...

One matrix makes a hole's filling one row copy and a launch's changes one scatter. Floats and keys
lie in it as their 32 bits. Rows past the live ones are finished: they write to block 0 and draw
nothing. Host code builds records with numpy; device code reads columns as views.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from santagen.engine.batch import Step
from santagen.engine.sequence import Sequence

TOKEN, POSITION, FINISHED, IGNORE_EOS = 0, 1, 2, 3
TEMPERATURE, TOP_P, MIN_P, PENALTY = 4, 5, 6, 7
TOP_K, KEY = 8, 9
HEADER = 16
assert (TOKEN, POSITION, FINISHED) == (0, 1, 2), "kernels.row_state reads these columns"


class RowTable:
    """`capacity` rows with `max_blocks` entries of block table each."""

    def __init__(self, capacity: int, max_blocks: int, device: torch.device) -> None:
        self.capacity, self.max_blocks, self.device = capacity, max_blocks, device
        self.data = torch.zeros(capacity, HEADER + max_blocks, dtype=torch.int32, device=device)
        self.floats = self.data.view(torch.float32)
        self.block_table = self.data[:, HEADER:]
        self.clear()

    def clear(self) -> None:
        """No row is live."""
        self.data.zero_()
        self.data[:, FINISHED] = 1

    def apply(self, step: Step) -> None:
        """Moves first, then vacated rows, new blocks and new rows, in one scatter of 32-bit
        values."""
        if step.moves:
            source, target = to_device(np.array(step.moves, np.int64).T, self.device)
            self.data.index_copy_(0, target, self.data.index_select(0, source))
        width = HEADER + self.max_blocks
        where: list[np.ndarray] = []
        what: list[np.ndarray] = []
        if step.vacated:
            rows = np.arange(step.vacated.start, step.vacated.stop, dtype=np.int64)
            where.append(rows * width + FINISHED)
            what.append(np.ones(len(rows), np.int64))
        if step.new_blocks:
            row, column, block = np.array(step.new_blocks, np.int64).T
            where.append(row * width + HEADER + column)
            what.append(block)
        for item in step.prefill:
            for sequence in item.samples:
                record = self._record(sequence, len(item.tokens))
                first = sequence.row * width
                where.append(np.arange(first, first + len(record), dtype=np.int64))
                what.append(record)
        if where:
            index, value = to_device(
                np.stack([np.concatenate(where), np.concatenate(what)]), self.device
            )
            self.data.view(-1).index_copy_(0, index, value.int())

    def _record(self, sequence: Sequence, position: int) -> np.ndarray:
        """A row as it stands before its first token is drawn; later blocks come with their
        launches."""
        params = sequence.request.params
        header = np.zeros(HEADER, np.int32)
        header[POSITION] = position - 1  # where the last prompt token stands
        header[IGNORE_EOS] = params.ignore_eos
        header[TEMPERATURE : PENALTY + 1] = np.array(
            [params.temperature, params.top_p, params.min_p, params.repetition_penalty], np.float32
        ).view(np.int32)
        header[TOP_K] = min(params.top_k, 2**31 - 1)
        header[KEY : KEY + 2] = np.array(sequence.key, np.uint32).view(np.int32)
        return np.concatenate([header, np.array(sequence.table, np.int32)]).astype(np.int64)


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Host numbers on the device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
