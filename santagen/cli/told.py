"""What the ranks have told the user, for the launcher that started them: it says what is missing.

The launcher makes a note and names it in the environment; a rank that speaks adds a word to it.
Under another launcher there is no note, and nothing is written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SANTAGEN_LAUNCHER_NOTE"
ERROR = "error"  # why the run ended
ENDING = "ending"  # that it ended: it was interrupted, or is done


class Note:
    """What has been told so far."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, word: str) -> bool:
        return word in self._path.read_text().split()

    def __bool__(self) -> bool:
        return bool(self._path.read_text())


@contextmanager
def taking_note() -> Iterator[Note]:
    """Within the block, the processes that are started can `tell`."""
    with tempfile.TemporaryDirectory(prefix="santagen-") as folder:
        path = Path(folder, "told")
        path.touch()
        os.environ[VARIABLE] = str(path)
        try:
            yield Note(path)
        finally:
            del os.environ[VARIABLE]


def has_launcher() -> bool:
    """Whether santagen itself started this process as a rank."""
    return VARIABLE in os.environ


def tell(word: str) -> None:
    """Let the launcher know; it is lost where the launcher is gone."""
    path = Path(os.environ.get(VARIABLE, ""))
    if has_launcher() and path.is_file():
        with path.open("a") as file:
            file.write(f"{word}\n")
