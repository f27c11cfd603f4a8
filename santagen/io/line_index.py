"""Where the lines of an output lie and which samples they hold, for resume and the final order.

    a line -> (row, sample index, offset, length), 32 bytes each

`row` is the row's number in the input. A line of an earlier run holds only the row's id; until the
input is read again, its row is -1 - k, where k counts the ids met. Nothing is written here.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from santagen.errors import SantagenError
from santagen.request import MAX_SAMPLES, PromptRow, RowId

FOREIGN_HINT = (
    "Something else changed the file: remove that line, start again with --overwrite, or give "
    "another -o."
)
CHANGED_HINT = "Something else changed the file: start again with --overwrite, or another -o."


class Done:
    """(row id, index) of the samples an earlier run wrote; the ids 3 and "3" are the same row."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._indices: list[int] = []  # of each row, one bit per index: small for a million rows
        self._samples = 0

    def add(self, row_id: RowId, index: int) -> int:
        """Returns k, the row's place among the ids met. Raises ValueError for a repeated sample."""
        if (row_id, index) in self:
            raise ValueError(f"sample {index} of {row_id} is repeated")
        place = self._places.setdefault(str(row_id), len(self._places))
        if place == len(self._indices):
            self._indices.append(0)
        self._indices[place] |= 1 << index
        self._samples += 1
        return place

    def place(self, row_id: RowId) -> int | None:
        return self._places.get(str(row_id))

    def indices(self, place: int) -> int:
        """Bit i says whether sample i of the row at `place` is there."""
        return self._indices[place]

    @property
    def rows(self) -> int:
        return len(self._places)

    def __contains__(self, sample: tuple[RowId, int]) -> bool:
        place = self.place(sample[0])
        return place is not None and self._indices[place] >> sample[1] & 1 == 1

    def __len__(self) -> int:
        return self._samples


class LineIndex:
    """`samples` lie in `size` bytes of whole lines; `done` are those that an earlier run left."""

    def __init__(self) -> None:
        self.done = Done()
        self.samples = 0
        self.size = 0
        self._path: Path | None = None  # of the earlier run's lines
        self._columns = (array("q"), array("q"), array("q"), array("q"))

    def add(self, row: int, index: int, length: int, samples: int = 1) -> None:
        """Note the next line of the file."""
        for column, value in zip(self._columns, (row, index, self.size, length), strict=True):
            column.append(value)
        self.size += length
        self.samples += samples

    def read(self, path: Path, format: str) -> None:
        """Index what an earlier run wrote, up to a torn last line."""
        self._path = path
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    row_id, indices = samples_of(json.loads(line), format)
                    places = [self.done.add(row_id, index) for index in indices]
                    self.add(-1 - places[0], indices[0], len(line), len(indices))
                except (ValueError, LookupError, TypeError, RecursionError):
                    raise SantagenError(
                        f"{path}, line {number} is no record of this run.", CHANGED_HINT
                    ) from None

    def checked(
        self, rows: Iterable[PromptRow], samples: Callable[[PromptRow], int], whole_rows: bool
    ) -> Iterator[PromptRow]:
        """Hands on the input's rows, each of which wants `samples` samples.

        Raises SantagenError, naming the line, for a sample of an earlier run that none of them
        wants: at its row, or after the last row where there is no such row. With `whole_rows` a
        line holds all samples of its row, or is refused.
        """
        met = bytearray(self.done.rows)
        for row in rows:
            place = self.done.place(row.row_id)
            if place is not None:
                met[place] = 1
                wanted, there = samples(row), self.done.indices(place)
                if there >> wanted or (whole_rows and there != (1 << wanted) - 1):
                    raise self._unwanted(place, row.row_id, wanted)
            yield row
        place = met.find(0)
        if place >= 0:
            line = self._lines_of(place)[0]
            raise SantagenError(
                f"{self._path}, line {line} belongs to a row that is not in the input.",
                FOREIGN_HINT,
            )

    def _unwanted(self, place: int, row_id: RowId, wanted: int) -> SantagenError:
        lines = self._lines_of(place)
        index = self._columns[1]
        line = next((line for line in lines if index[line - 1] >= wanted), lines[0])
        return SantagenError(
            f"{self._path}, line {line} holds other samples of row {row_id!r} than those from 0 "
            f"to {wanted - 1}.",
            FOREIGN_HINT,
        )

    def _lines_of(self, place: int) -> list[int]:
        """The numbers, from 1, of the lines of an earlier run's row."""
        row = np.frombuffer(self._columns[0], dtype=np.int64)
        return [int(line) + 1 for line in np.flatnonzero(row == -1 - place)]

    def columns(self, rows: Iterable[tuple[RowId, int]]) -> NDArray[np.int64]:
        """[4, lines]: row, index, offset, length. `rows` gives (row id, row number) of the input,
        and is read only where lines of an earlier run must be placed."""
        columns = np.array(self._columns, dtype=np.int64).reshape(4, -1)
        if len(self.done):
            number = np.full(self.done.rows, -1, dtype=np.int64)
            for row_id, where in rows:
                place = self.done.place(row_id)
                if place is not None:
                    number[place] = where
            if (number < 0).any():
                raise SantagenError(
                    "The output holds samples of rows that are not in the input.", CHANGED_HINT
                )
            row = columns[0]
            earlier = row < 0
            row[earlier] = number[-1 - row[earlier]]
        return columns

    def order(self, rows: Iterable[tuple[RowId, int]]) -> NDArray[np.int64]:
        """The lines sorted by row and index; `rows` as in `columns`."""
        row, index = self.columns(rows)[:2]
        return np.lexsort((index, row))

    def lines(self, fd: int, order: NDArray[np.int64]) -> Iterator[bytes]:
        """The file's lines in another order, one in memory at a time."""
        _, _, offset, length = self._columns
        for number in order:
            line = os.pread(fd, length[number], offset[number])
            if not line.endswith(b"\n"):
                raise SantagenError("The output was changed by something else.", CHANGED_HINT)
            yield line


def is_sorted(order: NDArray[np.int64]) -> bool:
    """Whether this permutation changes nothing."""
    return bool((np.diff(order) == 1).all())


def samples_of(record: dict[str, Any], format: str) -> tuple[RowId, list[int]]:
    """(row id, sample indices) of one line's record; a usual error where it is none."""
    if format == "jsonl":
        row_id, samples = record["task_id"], [record]
    else:
        row_id, samples = record["custom_id"], record["response"]["body"]["choices"]
    if type(row_id) not in (int, str):
        raise TypeError("the id is neither a number nor text")
    return row_id, [_index(sample) for sample in samples]


def _index(sample: dict[str, Any]) -> int:
    """The index of a record that has what every sample has."""
    index, _ = sample["index"], sample["finish_reason"]
    if type(index) is not int or not 0 <= index < MAX_SAMPLES:
        raise ValueError(f"{index!r} is no index of a sample")
    return index
