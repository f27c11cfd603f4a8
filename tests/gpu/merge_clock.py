"""How long a run's parts were being merged: while the file that replaces OUT grew.

Seen from outside, every POLL_SECONDS; 0 where nothing was merged or it went by between two looks.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from santagen.io.files import temporary_path

POLL_SECONDS = 0.002


class MergeClock:
    """Watches within `with`; then `seconds` is the time of the last merge."""

    def __init__(self, output: Path) -> None:
        self.seconds = 0.0
        self._growing = temporary_path(output)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MergeClock:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        begun = None
        while not self._over.wait(POLL_SECONDS):
            now = time.perf_counter()
            if self._growing.exists():
                begun = begun or now
            elif begun is not None:
                self.seconds, begun = now - begun, None
