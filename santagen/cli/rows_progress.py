"""How far a pass over the rows is, outside generation: reading, tokenising, looking, ordering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from santagen.cli.options import GenerateOptions
from santagen.cli.progress import Live
from santagen.io.read_count import ReadCount

Row = TypeVar("Row")
READING = "reading and checking every prompt"
PATIENCE_SECONDS = 0.5  # most passes are over by then: nothing flickers


class RowsProgress(Live):
    """Shows `what` is being done, and to how many of `total` rows it was."""

    patience = PATIENCE_SECONDS

    def __init__(self, what: str, total: int, enabled: bool) -> None:
        super().__init__(enabled)
        self.what, self.total, self.rows = what, total, 0

    def over(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, counted as they are asked for."""
        for row in rows:
            self.rows += 1
            yield row

    def reached(self) -> tuple[int, int]:
        return self.rows, self.total

    def line(self) -> str:
        if not self.rows:  # none may be needed
            return self.what
        return f"{self.what}: {self.rows:,} of {self.total:,} rows{percent(self.rows, self.total)}"


class ReadingProgress(Live):
    """Shows what `count` says; `size` is the input's in bytes, 0 where it isn't known."""

    patience = PATIENCE_SECONDS

    def __init__(self, count: ReadCount, size: int, enabled: bool) -> None:
        super().__init__(enabled)
        self.count, self.size = count, size

    def begun(self) -> bool:
        return self.count.rows > 0  # until then a library may show a download on the same line

    def reached(self) -> tuple[int, int]:
        return self.count.bytes, self.size

    def line(self) -> str:
        of = f" of {self.size / 1e6:,.1f}" if self.size else ""
        size = f"{self.count.bytes / 1e6:,.1f}{of} MB{percent(self.count.bytes, self.size)}"
        return f"{READING}: {self.count.rows:,} rows, {size}"


def percent(done: int, total: int) -> str:
    """ " (12 %)", or nothing where it can't be told."""
    return f" ({min(100, 100 * done // total)} %)" if total else ""


def input_size(options: GenerateOptions) -> int:
    """Bytes to be read where every input is a plain file of lines, else 0."""
    paths: Sequence[str] = options.prompts
    if options.dataset is not None or not all(path.lower().endswith(".jsonl") for path in paths):
        return 0
    try:
        return sum(Path(path).stat().st_size for path in paths)
    except OSError:  # told when it is opened
        return 0


def shows_rows(options: GenerateOptions) -> bool:
    """Whether passes over the rows are shown: they are before and after the data on stdout."""
    return not options.quiet if options.progress is None else options.progress
