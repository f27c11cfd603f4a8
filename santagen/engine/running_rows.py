"""Which sequence holds which row of the device's row table, and what the host counts of each. No
torch.

Rows are [0, B), without holes when a launch is made. A sequence that leaves frees its blocks at
once; its row is filled from the tail by the next `close_holes`, of which the device hears with the
launch after it (`hand_over`).

    rows         a b c d e f     b and d leave
    closed       a e c f         moves (4, 1), (5, 3); rows [4, 6) are vacated

A staying sequence has as many tokens in the cache as its position says, in as many blocks as these
take. Who is admitted, and who is preempted, the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from santagen.engine.batch import Features
from santagen.engine.block_manager import BlockManager
from santagen.engine.sequence import PromptGroup, Sequence

SPARSE = 1.15  # numbers to a live block above which the blocks are brought together


class RunningRows:
    """Up to `capacity` rows, whose sequences own blocks of `blocks`; iterates over the sequences
    by row, those included that leave before the next launch."""

    def __init__(self, capacity: int, blocks: BlockManager) -> None:
        self.sequences: list[Sequence] = []
        self._blocks = blocks
        self._position = np.zeros(capacity, np.int64)  # where the next fed token stands
        self._left = np.zeros(capacity, np.int64)  # tokens still to be launched
        self._leaving: list[Sequence] = []
        self._moves: dict[int, int] = {}  # target row: the row where the device still has it
        self._device_size = 0  # rows that the device takes for live
        self._features: Features | None = None  # of all rows, until they change
        self._admissions = 0
        self._vacated = False  # rows have left since the blocks were last looked at

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    @property
    def staying(self) -> int:
        """How many of the sequences go on."""
        return len(self.sequences) - len(self._leaving)

    @property
    def features(self) -> Features:
        """What some of the rows asks of sampling."""
        if self._features is None:
            self._features = Features.of(self.sequences)
        return self._features

    @property
    def longest(self) -> int:
        """Tokens of the longest row, those of the launch that was counted last included."""
        return int(self._position[: len(self)].max())

    # -- who comes and goes --------------------------------------------------------------------

    def seat(self, sequence: Sequence, blocks: list[int]) -> None:
        """Put a sequence, with its prompt's `blocks`, into a new row at the end."""
        sequence.blocks, sequence.table = blocks, blocks.copy()
        sequence.row, sequence.admitted = len(self.sequences), self._admissions
        self._admissions += 1
        self.sequences.append(sequence)
        self._features = None

    def leave(self, sequence: Sequence) -> None:
        """Free its blocks, which later launches on the same stream may reuse, and soon its row."""
        self._blocks.release(sequence.blocks)
        sequence.blocks = []
        self._leaving.append(sequence)

    def close_holes(self) -> None:
        """Fill the rows of leaving sequences from the tail."""
        if not self._leaving:
            return
        left = {sequence.row for sequence in self._leaving}
        size, new_size = len(self), self.staying
        movers = [row for row in range(new_size, size) if row not in left]
        holes = sorted(row for row in left if row < new_size)
        for sequence in self._leaving:
            sequence.row = -1
        for source, target in zip(movers, holes, strict=True):
            self._move(source, target)
        for row in range(new_size, size):
            self._moves.pop(row, None)
        del self.sequences[new_size:]
        self._leaving.clear()
        self._features = None
        self._vacated = True

    def _move(self, source: int, target: int) -> None:
        sequence = self.sequences[target] = self.sequences[source]
        sequence.row = target
        self._position[target] = self._position[source]
        self._left[target] = self._left[source]
        # The launch may be put off (a drain): then a row can move twice before the device hears
        # of it.
        self._moves[target] = self._moves.pop(source, source)

    def hand_over(self) -> tuple[list[tuple[int, int]], range]:
        """(moves (from row, to row), rows vacated) since the last launch, for the one being
        made."""
        moves = [(source, target) for target, source in self._moves.items()]
        # Rows that this launch fills anew are not among the vacated: one scatter must not write a
        # place twice.
        vacated = range(len(self), self._device_size)
        self._moves.clear()
        self._device_size = len(self)
        return moves, vacated

    def clear(self) -> None:
        """No sequence has a row. Those that the device takes for live are vacated with the next
        launch."""
        self.sequences.clear()
        self._leaving.clear()
        self._moves.clear()
        self._features = None

    # -- tokens --------------------------------------------------------------------------------

    def start(self, sequences: list[Sequence]) -> np.ndarray:
        """Count the first token of newly seated sequences as launched.

        Returns which of them it is the last one of, [sequences] bool: these leave.
        """
        rows = [sequence.row for sequence in sequences]
        for sequence in sequences:
            prompt = sequence.request.prompt_token_ids
            self._position[sequence.row] = len(prompt) + sequence.launched
            sequence.launched += 1
            self._left[sequence.row] = sequence.limit - sequence.launched
        return self._retire(sequences, self._left[rows] == 0)

    def advance(self) -> np.ndarray:
        """Count one token more of every row as launched; returns what `start` does."""
        size = len(self)
        self._position[:size] += 1
        self._left[:size] -= 1
        for sequence in self.sequences:
            sequence.launched += 1
        return self._retire(self.sequences, self._left[:size] == 0)

    def _retire(self, sequences: list[Sequence], last: np.ndarray) -> np.ndarray:
        for i in np.flatnonzero(last).tolist():
            self.leave(sequences[i])
        return last

    # -- blocks --------------------------------------------------------------------------------

    def wanting(self) -> list[int]:
        """The rows whose next token starts a block, which they don't have yet; those of leaving
        sequences too, until `close_holes`."""
        return np.flatnonzero(self._position[: len(self)] % self._blocks.block_size == 0).tolist()

    def grow(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """Give each of these rows a block; returns the table's new entries (row, column, block).
        The caller has checked that there are enough."""
        entries = []
        for row in rows:
            own = self.sequences[row].blocks
            block = self._blocks.allocate()
            entries.append((row, len(own), block))
            own.append(block)
        return entries

    def compact(
        self, groups: Iterable[PromptGroup]
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """Bring the live blocks together, where too many others have come to lie among them.

        Returns (the table's changed entries (row, column, block), moves of blocks (from, to)).
        The blocks that `groups` hold are renumbered too.
        """
        if not self._vacated:
            return [], []
        self._vacated = False
        highest = max(max(sequence.blocks) for sequence in self.sequences)
        if highest <= SPARSE * self._blocks.referenced:
            return [], []
        number = self._blocks.compact()
        for group in groups:
            if group.blocks is not None:
                group.blocks = [number.get(block, block) for block in group.blocks]
        changed = []
        for sequence in self.sequences:
            for column, block in enumerate(sequence.blocks):
                if block in number:
                    sequence.blocks[column] = number[block]
                    changed.append((sequence.row, column, number[block]))
        return changed, list(number.items())

    def check_integrity(self) -> None:
        """For tests: rows are numbered right, and blocks are as many as positions ask for."""
        assert [s.row for s in self.sequences] == list(range(len(self)))
        assert set(map(id, self._leaving)) == {id(s) for s in self.sequences if not s.blocks}
        for sequence in self.sequences:
            wanted = -(-int(self._position[sequence.row]) // self._blocks.block_size)
            assert len(sequence.blocks) == wanted or not sequence.blocks
