"""The input of a run as a whole: validated first, then handed out row by row.

    paths, dataset -> sources -> rows -> PromptSet: the failures, and an iterator over the good rows

The first pass reads every byte once (checking rows, finding repeated ids, fingerprinting); each
iteration reads the input again. Memory holds a few numbers per row, never the rows. Nothing is
tokenised here, and no file is written.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from santagen.errors import RowError, SantagenError
from santagen.io.read_count import ReadCount
from santagen.io.rows import RowReader, parse_row
from santagen.io.sources import Source, open_source
from santagen.request import PromptRow, RowFailure, SamplingParams

DUPLICATE_HINT = "Ids must be unique over the whole input: rename one row's id, or leave ids out."


def read_prompts(
    paths: Sequence[str],
    *,
    dataset: str | None = None,
    split: str | None = None,
    token: str | None = None,
    prompt_column: str | None = None,
    keep: Sequence[str] = (),
    limit: int | None = None,
    shard: tuple[int, int] | None = None,
    defaults: SamplingParams | None = None,
    count: ReadCount | None = None,
) -> PromptSet:
    """Open and validate the whole input; see PromptSet.

    `limit` takes the first rows and then `shard` (i, count) every count-th of them, both by row
    number. `token` is for a dataset of the hub. `defaults` are the settings that rows override, to
    find rows that contradict them. `count` is kept up to date meanwhile.
    Raises SantagenError for what concerns the input as a whole: a missing file, a cut gzip.
    """
    if limit is not None and limit < 0:
        raise SantagenError(f"--limit is {limit}.", "Give a number of rows, 0 or above.")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise SantagenError(
            f"--shard {shard[0]}/{shard[1]} is no shard.",
            "Write I/N with I from 0 to N - 1, as in 0/4, 1/4, 2/4 and 3/4.",
        )
    if split is not None and dataset is None:
        raise SantagenError("--split is given without --dataset.", "Name the data set too.")
    if not paths and dataset is None:
        raise SantagenError(
            "There are no prompts.", "Name a prompt file, - for stdin, or --dataset NAME."
        )
    if list(paths).count("-") > 1:
        raise SantagenError("stdin (-) is named more than once.", "Name it once.")
    wanted = [*keep, *([prompt_column] if prompt_column else [])]
    sources: list[Source] = [open_source(str(path), wanted) for path in paths]
    if dataset is not None:
        from santagen.io.dataset_source import DatasetSource

        sources.append(DatasetSource(dataset, split, wanted, token))
    return PromptSet(sources, RowReader(keep, prompt_column, defaults), limit, shard, count)


class PromptSet:
    """The rows of a run: `len()` and iteration are over the good ones of the limit and the shard.

    failures      the bad rows of the limit and the shard, in input order, each with its line
    total_rows    rows of the whole input, good and bad, before limit and shard
    fingerprint   sha256 (hex) of the input's bytes, decompressed; of one plain file it is the
                  file's own, of several inputs the digest of their digests

    Iterating is lazy and can be done again. Ids are compared over the whole limit, whatever the
    shard, so every shard agrees about which of two equal ids is the later one.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        reader: RowReader,
        limit: int | None = None,
        shard: tuple[int, int] | None = None,
        count: ReadCount | None = None,
    ) -> None:
        self._sources = list(sources)
        self._reader = reader
        self._limit = limit
        self._shard = shard
        self._first_row: list[int] = []  # of each source
        self._lines = array("Q")  # of each row within the limit
        self._rows_of_source: list[int] = []
        self._own_n: dict[int, int] = {}  # of rows that say how many samples they want
        self.total_rows = 0
        self.fingerprint = ""
        self.failures: list[RowFailure] = []
        self._validate(count or ReadCount())
        self._bad = {failure.number for failure in self.failures}
        self._length = len(range(len(self._lines))[self._as_slice()]) - len(self.failures)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[PromptRow]:
        for source, first, count in zip(
            self._sources, self._first_row, self._rows_of_source, strict=True
        ):
            number = first
            for line, payload in source.rows():
                if self._limit is not None and number >= self._limit:
                    return
                if number >= first + count or self._lines[number] != line:
                    raise _changed(source)
                if self._is_selected(number) and number not in self._bad:
                    try:
                        yield self._read(source, number, line, payload)
                    except RowError:
                        raise _changed(source) from None
                number += 1
            if number != first + count:
                raise _changed(source)

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the good rows of the limit and the shard, increasing."""
        chosen = np.arange(len(self._lines), dtype=np.int64)[self._as_slice()]
        return chosen[~np.isin(chosen, list(self._bad))] if self._bad else chosen

    def samples(self, n: int) -> int:
        """How many samples these rows want where a row that doesn't say wants `n`."""
        own = self._own_n.items()
        others = [k - n for row, k in own if self._is_selected(row) and row not in self._bad]
        return len(self) * n + sum(others)

    def select(self, numbers: Iterable[int]) -> Iterator[PromptRow]:
        """The good rows of these numbers, which increase; each is asked for when its row is wanted.

        One pass over the input, which parses no other row. Also works in another process, to which
        the set was pickled: all but these rows is left behind there.
        """
        wanted = iter(numbers)
        target = next(wanted, None)
        for source, first in zip(self._sources, self._first_row, strict=True):
            if target is None:
                return
            for number, (line, payload) in enumerate(source.rows(), start=first):
                if number != target:
                    continue
                try:
                    yield self._read(source, number, line, payload)
                except RowError:
                    raise _changed(source) from None
                target = next(wanted, None)
                if target is None:
                    return
        if target is not None:
            raise _changed(self._sources[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": array("Q"), "_bad": set(), "_own_n": {}, "failures": []}

    def _read(self, source: Source, number: int, line: int, payload: object) -> PromptRow:
        name, where = self._names(source, number, line)
        fields = parse_row(payload, where)
        row_id = self._reader.row_id(fields, number, where)
        return self._reader.read(fields, row_id, number, line, name, where, source.whole_file)

    def _is_selected(self, number: int) -> bool:
        return self._shard is None or number % self._shard[1] == self._shard[0]

    def _as_slice(self) -> slice:
        return slice(None) if self._shard is None else slice(self._shard[0], None, self._shard[1])

    def _validate(self, count: ReadCount) -> None:
        ids = array("Q")  # two words of a digest per row
        owners = array("Q")  # the number of the row each id belongs to
        digests = []
        for source in self._sources:
            digest = count.sha256()
            self._first_row.append(self.total_rows)
            for line, payload in source.rows(digest):
                if self._limit is None or self.total_rows < self._limit:
                    self._lines.append(line)
                    key = self._check(source, self.total_rows, line, payload)
                    if key is not None:
                        ids.frombytes(key)
                        owners.append(self.total_rows)
                self.total_rows += 1
                count.rows = self.total_rows
            self._rows_of_source.append(self.total_rows - self._first_row[-1])
            digests.append(digest)
        joined = b"".join(digest.digest() for digest in digests)
        self.fingerprint = (
            digests[0].hexdigest() if len(digests) == 1 else hashlib.sha256(joined).hexdigest()
        )
        self._refuse_repeated_ids(ids, owners)
        self.failures.sort(key=lambda failure: failure.number)

    def _check(self, source: Source, number: int, line: int, payload: object) -> bytes | None:
        """Validate one row; returns the digest of its id, or None where it has no readable one."""
        name, where = self._names(source, number, line)
        row_id = getattr(payload, "row_id", None)
        if row_id is None:
            row_id = number
        known = False
        try:
            fields = parse_row(payload, where)
            row_id = self._reader.row_id(fields, number, where)
            known = True
            row = self._reader.read(fields, row_id, number, line, name, where, source.whole_file)
            if "n" in row.overrides:
                self._own_n[number] = row.overrides["n"]
        except RowError as error:
            if self._is_selected(number):
                self.failures.append(RowFailure(row_id, number, line, error.message, error.hint))
        # As text, so that 3 and "3", which read the same in a result file, are the same id.
        return hashlib.blake2b(str(row_id).encode(), digest_size=16).digest() if known else None

    def _refuse_repeated_ids(self, ids: array[int], owners: array[int]) -> None:
        if not owners:
            return
        words = np.frombuffer(ids, dtype=np.uint64).reshape(-1, 2)
        numbers = np.frombuffer(owners, dtype=np.uint64)
        order = np.lexsort((numbers, words[:, 1], words[:, 0]))
        ordered = words[order]
        repeats = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1)) + 1
        if not len(repeats):
            return
        is_repeat = np.zeros(len(order), dtype=bool)
        is_repeat[repeats] = True
        # Each repeat's first row: the latest position at or before it that isn't a repeat itself.
        starts = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(len(order))))
        first_of = {
            int(numbers[order[at]]): int(numbers[order[starts[at]]]) for at in repeats.tolist()
        }
        self._add_repeats(first_of)

    def _add_repeats(self, first_of: dict[int, int]) -> None:
        """Fail each later row of `first_of` (number -> number of the first row with its id)."""
        failed = {failure.number for failure in self.failures}
        wanted = {n for n in first_of if self._is_selected(n) and n not in failed}
        for number, row_id in self._ids_of(wanted):
            _, where = self._names(*self._place_of(number))
            _, first = self._names(*self._place_of(first_of[number]))
            self.failures.append(
                RowFailure(
                    row_id,
                    number,
                    self._lines[number],
                    f"{where}: the id {row_id!r} is already that of {first}.",
                    DUPLICATE_HINT,
                )
            )

    def _ids_of(self, numbers: set[int]) -> Iterator[tuple[int, str | int]]:
        """Read the ids of a few rows again."""
        for source, first in zip(self._sources, self._first_row, strict=True):
            if not any(first <= number for number in numbers):
                continue
            for number, (line, payload) in enumerate(source.rows(), start=first):
                if number in numbers:
                    _, where = self._names(source, number, line)
                    fields = parse_row(payload, where)
                    yield number, self._reader.row_id(fields, number, where)

    def _place_of(self, number: int) -> tuple[Source, int, int]:
        """(source, number, line) of a row within the limit."""
        index = bisect_right(self._first_row, number) - 1
        return self._sources[index], number, self._lines[number]

    def _names(self, source: Source, number: int, line: int) -> tuple[str, str]:
        """What messages call a row's input and its place there."""
        name = source.name
        if source.is_list:
            first = self._first_row[bisect_right(self._first_row, number) - 1]
            name += f", item {number - first + 1}"
        return name, name if source.whole_file else f"{name}, line {line}"


def _changed(source: Source) -> SantagenError:
    return SantagenError(
        f"{source.name} changed while it was being read.",
        "Leave the input alone during a run; start again with --resume or --overwrite.",
    )
