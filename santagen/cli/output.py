"""Where a command puts its data: a file or standard output. Not for the samples of generate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError
from santagen.io.files import write_atomically
from santagen.io.records import escaped


def output_path(output: str | None) -> Path | None:
    """The output file; None for standard output."""
    return None if output in (None, "-") else Path(str(output))


def print_json(report: dict[str, Any]) -> None:
    """One JSON object on standard output; no character in it is one that a terminal obeys."""
    print(escaped(json.dumps(report, indent=2, ensure_ascii=False)))


def write_output(flag: str, output: str, content: Iterable[bytes]) -> None:
    """Write the whole of what `flag` asks for; a file is replaced in one step.

    Raises SantagenError where the file can't be written.
    """
    path = output_path(output)
    if path is None:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(content)
        sys.stdout.buffer.flush()
        return
    with explained(flag, path):
        write_atomically(path, content)


def write_json(flag: str, output: str, content: dict[str, Any]) -> None:
    """As `write_output`, for one JSON object."""
    write_output(flag, output, [json.dumps(content, indent=1).encode(), b"\n"])


@contextmanager
def explained(flag: str, path: Path) -> Iterator[None]:
    """What the system refuses, as a message for the user."""
    try:
        yield
    except OSError as error:
        raise SantagenError(
            f"{flag} {path} can't be written: {error.strerror or error}.",
            "Check the folder's permissions and the room on its disk.",
        ) from None
