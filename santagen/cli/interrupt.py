"""Ctrl-C and SIGTERM end a run in order: the sample being written is finished first.

Within `Interrupts`, either signal raises KeyboardInterrupt in the main thread; within `shielded` it
waits until that block is left. A second signal is not held back any longer than the first.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # the exit code after one


class Interrupts(AbstractContextManager["Interrupts"]):
    """Turns SIGINT and SIGTERM into KeyboardInterrupt while the block runs."""

    def __init__(self) -> None:
        self._shields = 0
        self._pending = False
        self.last: int | None = None  # the signal that came last
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.last = number
        if self._shields:
            self._pending = True
        else:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on, and after the block: what must not be lost is done."""
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)
            self._previous[number] = signal.SIG_IGN

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Hold a signal back until the block is done."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._pending and not self._shields:  # not where the block failed: its error comes first
            self._pending = False
            raise KeyboardInterrupt
