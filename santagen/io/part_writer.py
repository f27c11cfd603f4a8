"""Writes one group's part file: lines as `OutputWriter` writes them, without its other files.

Rows that fail are kept for the group that writes OUT.errors.jsonl. No lock is taken: the group that
holds OUT.lock says when parts may be made.
"""

from __future__ import annotations

import os
from pathlib import Path

from santagen.io.output_files import OutputFiles
from santagen.io.parts import Lines, part_path, write_index
from santagen.io.writer import OutputWriter, explained
from santagen.request import RowFailure


class PartFile(OutputFiles):
    """A part that must not be there yet."""

    def begin(self) -> None:
        if not self.begun:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._fd = os.open(self.path, flags, 0o666)
            self.begun = True

    def end(self) -> None:
        """Leave the index that the merge reads beside it."""
        os.fsync(self._fd)
        write_index(Lines(self.path, self._index.columns(())))


class PartWriter(OutputWriter):
    """Made by `create`. `write` and `fail` take results; `end` leaves a whole part, `close` any."""

    _output: PartFile
    failures: list[RowFailure]

    @classmethod
    def create(
        cls, output: Path, group: int, *, model: str, echo: bool, token_ids: bool, format: str
    ) -> PartWriter:
        """Make the part of `group`, which must not be there yet."""
        file = PartFile(part_path(output, group), {}, format=format)
        writer = cls(file, model=model, echo=echo, token_ids=token_ids, format=format)
        writer.failures = []
        writer.begin()
        return writer

    @property
    def samples(self) -> int:
        return self._output.samples

    def fail(self, failure: RowFailure) -> None:
        self.failures.append(failure)

    def end(self) -> None:
        """All samples are written."""
        with explained(self._output):
            self._output.end()
        self.close()
