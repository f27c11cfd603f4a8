"""Standard output, a pipe or a device as the output: lines as they come, and no other file.

Nothing is put in order, nothing can be resumed, and rows that fail are listed nowhere.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError
from santagen.io.files import refused, write_all
from santagen.io.line_index import Done
from santagen.request import PromptRow, RowId


class OutputStream:
    """Made by `open`; has the methods of OutputFiles, of which most have nothing to do."""

    path = None
    begun = False

    def __init__(self, put: Callable[[bytes], None], fd: int = -1) -> None:
        self.done = Done()
        self.samples = 0
        self._put: Callable[[bytes], None] | None = put
        self._fd = fd

    @classmethod
    def open(cls, path: Path | None, resume: bool) -> OutputStream:
        """Open the pipe, device or open file's name `path`; None is standard output."""
        if path is not None and resume:
            raise SantagenError(
                f"{path} is no regular file: it can't be resumed.", "Leave --resume out."
            )
        try:
            if path is None:
                return cls._stdout()
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise refused(path, error, 0) from None
        return cls(partial(write_all, fd), fd)

    @classmethod
    def _stdout(cls) -> OutputStream:
        if sys.stdout is None:  # the shell's >&-
            raise SantagenError("Standard output is closed.", "Write to a file with -o.")
        sys.stdout.flush()
        try:
            fd = os.dup(sys.stdout.fileno())
        except io.UnsupportedOperation:  # Python code has put an object of its own there
            buffer = sys.stdout.buffer
            return cls(lambda line: (buffer.write(line), buffer.flush())[1])
        return cls(partial(write_all, fd), fd)

    def checked(
        self, rows: Iterable[PromptRow], samples: Callable[[PromptRow], int]
    ) -> Iterable[PromptRow]:
        """There is nothing of an earlier run."""
        return rows

    def begin(self) -> None:
        """There is nothing to take over."""

    def append(self, line: bytes, number: int, index: int, samples: int) -> None:
        assert self._put is not None, "the output is closed"
        self._put(line)
        self.samples += samples

    def fail(self, number: int, line: bytes) -> None:
        """A stream has no list of errors."""

    def finish(
        self, rows: Iterable[tuple[RowId, int]], summary: dict[str, Any], parts: Mapping[int, int]
    ) -> None:
        """The lines are there already."""

    def close(self) -> None:
        self._put = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
