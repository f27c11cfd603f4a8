"""How far a run is, from its first second on: rows, tokens per second and the time left.

On a terminal one line is redrawn (by rich); elsewhere a plain line is printed every few seconds. A
thread of its own looks at the counts, so that a long step of the engine doesn't hide time passing.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from santagen.cli.console import is_terminal, rank
from santagen.cli.labelled import many

FIRST_SECONDS = 1.0  # the first plain line comes early, the others seldom
PLAIN_SECONDS = 5.0
REDRAW_SECONDS = 0.25


@dataclass(slots=True)
class Tally:
    """The counts of one run. Samples count when they are finished, tokens when they are drawn."""

    samples_wanted: int
    max_tokens: int  # the usual limit of a sample, the guess of its length until one has finished
    samples_done: int = 0
    tokens_of_done: int = 0
    failed_rows: int = 0

    def add(self, generated_tokens: int) -> None:
        self.samples_done += 1
        self.tokens_of_done += generated_tokens

    def seconds_left(self, tokens: int, seconds: float) -> float | None:
        """Time left if the rest run as long as the finished ones; None before the first token."""
        if tokens <= 0 or seconds <= 0:
            return None
        mean = self.tokens_of_done / self.samples_done if self.samples_done else self.max_tokens
        expected = mean * self.samples_wanted - tokens
        # The short ones finish first: what still runs at the end is longer than the mean so far.
        at_least = mean / 2 * (self.samples_wanted - self.samples_done)
        return max(expected, at_least) * seconds / tokens


def with_rate(stats: dict[str, Any], seconds: float) -> dict[str, Any]:
    """An engine's totals with the seconds they took, and tokens per second."""
    rate = stats["generated_tokens"] / seconds
    return {**stats, "generation_seconds": seconds, "tokens_per_second": rate}


def duration(seconds: float | None) -> str:
    """1:02:03, or -:-- for what can't be told yet."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Live(ABC):
    """Shows `line()` while the block runs, on rank 0 where `enabled`."""

    patience = 0.0  # seconds before a terminal's line appears

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled and rank() == 0
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def line(self) -> str:
        """The state in words."""

    @abstractmethod
    def reached(self) -> tuple[int, int]:
        """(done, of how many) for the bar; of 0 where that isn't known."""

    def begun(self) -> bool:
        """Whether a terminal's line is ours yet."""
        return True

    def __enter__(self) -> Self:
        if self._enabled:
            target = self._redraw if is_terminal() else self._print_lines
            self._thread = threading.Thread(target=target, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _print_lines(self) -> None:
        wait = FIRST_SECONDS
        while not self._stop.wait(wait):
            if sys.stderr is not None:
                print(self.line(), file=sys.stderr, flush=True)
            wait = PLAIN_SECONDS

    def _redraw(self) -> None:
        if self.patience and self._stop.wait(self.patience):
            return
        while not self.begun():
            if self._stop.wait(REDRAW_SECONDS):
                return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # stdout carries data
        )
        with bar:
            task = bar.add_task(self.line(), total=None)
            while True:
                done, total = self.reached()
                bar.update(
                    task,
                    description=self.line(),
                    completed=done,
                    total=total or None,
                    refresh=True,
                )
                if self._stop.wait(REDRAW_SECONDS):
                    return


class Progress(Live):
    """Shows `tally` while the block runs. `tokens` says how many were generated so far."""

    def __init__(self, tally: Tally, tokens: Callable[[], int], enabled: bool = True) -> None:
        super().__init__(enabled)
        self._tally = tally
        self._tokens = tokens

    def reached(self) -> tuple[int, int]:
        return self._tally.samples_done, self._tally.samples_wanted

    def line(self) -> str:
        tally, tokens = self._tally, self._tokens()
        seconds = time.monotonic() - self._started
        rate = tokens / seconds if seconds > 0 else 0.0
        parts = [
            f"{tally.samples_done}/{tally.samples_wanted} samples",
            many(tokens, "token"),
            f"{rate:,.0f} tok/s",
            f"{duration(seconds)} elapsed",
            f"{duration(tally.seconds_left(tokens, seconds))} left",
        ]
        if tally.failed_rows:
            parts.insert(1, f"failed rows: {tally.failed_rows}")
        return ", ".join(parts)
