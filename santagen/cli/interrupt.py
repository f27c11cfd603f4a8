"""Ctrl-C, SIGTERM and a closed terminal end a run in order: the sample being written is finished
first.

Within `Interrupts`, each of these signals raises KeyboardInterrupt in the main thread; within
`shielded` it waits until that block is left. One that comes STALLED seconds after the first does
not: the block may wait for a reader that reads no more.
`import_whole` is for libraries that no signal may meet half loaded.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

STALLED = 1.0  # a launcher passes one on sooner
INTERRUPTED = 130  # the exit code after one
ENGINE = ("numpy", "torch", "safetensors", "tokenizers")  # what running a model loads


def ending_signals() -> list[signal.Signals]:
    """What ends a run. A terminal that closes does not where nohup says to go on."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    return signals[: 2 if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else 3]


class Interrupts(AbstractContextManager["Interrupts"]):
    """Turns the signals that end a run into KeyboardInterrupt while the block runs."""

    def __init__(self) -> None:
        self._shields = 0
        self._pending = False
        self._first = 0.0  # when the pending one came
        self.stalled = False  # whether a block was given up
        self.last: int | None = None  # the signal that came last
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in ending_signals():
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.last = number
        if number == signal.SIGHUP:  # the shell and the system may both tell of it
            signal.signal(number, signal.SIG_IGN)
        now = time.monotonic()
        if self._shields and not self.stalled:
            self._first = self._first if self._pending else now
            self.stalled = self._pending and now - self._first >= STALLED
            self._pending = True
        if self.stalled or not self._shields:
            self._pending = False
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


def import_whole(*modules: str) -> None:
    """Import what is not imported yet; a signal waits until it is, a second one does not.

    A KeyboardInterrupt inside these imports ends the process (torch's C++ side), is lost, or leaves
    a module behind that lacks half of its names (numpy).
    """
    missing = [name for name in modules if name not in sys.modules]
    if not missing or threading.current_thread() is not threading.main_thread():
        for name in missing:
            import_module(name)
        return
    before = {number: signal.getsignal(number) for number in ending_signals()}
    came: list[int] = []

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in came:
            signal.raise_signal(sent)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            release()

    for number in before:
        signal.signal(number, hold)
    try:
        for name in missing:
            import_module(name)
    finally:
        if len(came) < 2:
            release()
