"""Writes one group's part file: lines as `OutputWriter` writes them, without its other files.

Rows that fail are kept for the group that writes OUT.errors.jsonl. No lock is taken: the group that
holds OUT.lock says when parts may be made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from santagen.io.parts import Lines, part_path, write_index
from santagen.io.writer import OutputWriter
from santagen.request import RowFailure


class PartWriter(OutputWriter):
    """Made by `create`. `write` and `fail` take results; `end` leaves a whole part, `close` any."""

    failures: list[RowFailure]

    @classmethod
    def create(
        cls, output: Path, group: int, *, model: str, echo: bool, token_ids: bool, format: str
    ) -> PartWriter:
        """Make the part of `group`, which must not be there yet."""
        content: dict[str, Any] = {"model": model}
        path = part_path(output, group)
        writer = cls(path, content, echo=echo, token_ids=token_ids, format=format)
        writer.failures = []
        with writer._explained():
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
            writer._fd = os.open(path, flags, 0o666)
        writer._begun = True
        return writer

    @property
    def samples(self) -> int:
        return self._index.samples

    def fail(self, failure: RowFailure) -> None:
        self.failures.append(failure)

    def end(self) -> None:
        """All samples are written: leave the index that the merge reads."""
        assert self.path is not None
        with self._explained():
            os.fsync(self._fd)
            write_index(Lines(self.path, self._index.columns(())))
        self.close()
