"""Standard error as a place for messages only: one that can't be written ends no run.

Within `best_effort`, whatever writes to sys.stderr (messages, progress, warnings, the libraries)
meets a stream that goes silent at the first fault: a full disk, a reader that has gone, a closed
terminal. Standard output, which carries data, is left as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class BestEffort:
    """A text stream whose first fault in writing is its last: what follows goes nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._broken = False

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self._try(self._stream.writelines, lines)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def isatty(self) -> bool:
        return not self._broken and not self._stream.closed and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, action: Any, *arguments: Any) -> None:
        if self._broken:
            return
        try:
            action(*arguments)
        except BlockingIOError:
            return  # a pipe that is full for now: the text waits in the buffer, or is lost
        except OSError:
            self._give_up()
        except ValueError:
            if not self._stream.closed:
                raise
            self._broken = True

    def _give_up(self) -> None:
        """Lead the descriptor nowhere too: what is buffered fails again at exit otherwise."""
        self._broken = True
        try:
            place = self._stream.fileno()
        except (OSError, ValueError):
            return  # a stream in memory
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, place)
        os.close(nowhere)


@contextmanager
def best_effort() -> Iterator[None]:
    """Have sys.stderr ignore faults in the block; a closed one (the shell's 2>&-) leads nowhere."""
    before = sys.stderr
    if before is None:
        # Its descriptor is free: held, no output file can become what libraries print to.
        with open(os.devnull, "w") as nowhere:
            sys.stderr = nowhere
            try:
                yield
            finally:
                sys.stderr = before
        return
    stream = BestEffort(before)
    sys.stderr = cast(TextIO, stream)
    try:
        yield
    finally:
        stream.flush()
        sys.stderr = before
