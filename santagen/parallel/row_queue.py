"""Who generates which row: groups draw the next rows from one counter that all of them share.

The rows of a run stand in input order in `numbers`. A group draws `chunk` of them at a time by one
atomic add on the store, when its engine has room, so that a group with long rows draws fewer. What
is drawn by a group only ever increases: it finds its rows in one pass over the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LARGEST_CHUNK = 256
CHUNKS_A_GROUP = 8  # at least, so that the last ones even out what the rows' lengths don't


@dataclass(frozen=True)
class RowPlan:
    """The rows that a run still has to generate.

    wanted    one bit per row of the input, packed: 1.25 MB for ten million rows
    rows      how many rows the input has
    partial   row number -> the samples that are left, where an earlier run wrote some of the row's
    """

    wanted: bytes = b""
    rows: int = 0
    partial: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: NDArray[np.int64], partial: dict[int, tuple[int, ...]]) -> RowPlan:
        """`numbers` of the rows, increasing."""
        rows = int(numbers[-1]) + 1 if len(numbers) else 0
        bits = np.zeros(rows, dtype=bool)
        bits[numbers] = True
        return cls(np.packbits(bits).tobytes(), rows, partial)

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the rows, in input order."""
        bits = np.unpackbits(np.frombuffer(self.wanted, np.uint8), count=self.rows)
        return np.flatnonzero(bits)


def chunk_rows(rows: int, groups: int, max_num_seqs: int, samples: int) -> int:
    """How many rows to draw at once: enough to pack a prefill, few enough to end together.

    `samples` is the usual number per row; `max_num_seqs` what a group runs at a time.
    """
    fair = rows // (groups * CHUNKS_A_GROUP)
    useful = max_num_seqs // 8 // max(samples, 1)
    return max(1, min(fair, useful, LARGEST_CHUNK))


def draw_rows(
    numbers: NDArray[np.int64], chunk: int, add: Callable[[int], int]
) -> Iterator[int]:
    """The row numbers that fall to the caller. `add(n)` adds to the shared counter, and returns it.

    A chunk is drawn when its first row is asked for.
    """
    while (start := add(chunk) - chunk) < len(numbers):
        yield from numbers[start : start + chunk].tolist()
