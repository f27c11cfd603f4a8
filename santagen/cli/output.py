"""Where a command puts its data: a file or standard output. Not for the samples of generate."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError
from santagen.io.files import same_file, temporary_path, write_atomically
from santagen.io.records import escaped

WEIGHTS = re.compile(r"\.(safetensors|bin|pt)(\.index\.json)?$")


def output_path(output: str | None) -> Path | None:
    """The output file; None for standard output."""
    return None if output in (None, "-") else Path(str(output))


def refuse_read(
    flag: str, written: Iterable[Path], read: Iterable[Path | str], what: str = "read"
) -> None:
    """Refuse to write, with `flag`, a file that is also read, whatever its name there.

    Pipes and devices may be both. `what` ends the message: what the file is to the command.
    """
    files = [path for path in map(Path, read) if path.is_file()]
    for place in written:
        if any(same_file(place, path) for path in files):
            raise SantagenError(
                f"{flag} would replace {place}, which is {what}.", "Give it another name."
            )


def with_temporary(place: Path) -> list[Path]:
    """What `write_output` touches; of a directory, which it refuses, nothing."""
    return [place] if place.is_dir() else [place, temporary_path(place)]


def settings_files(options: Any) -> list[Path]:
    """The file of --config, and the model's and the tokenizer's own where they lie in folders.

    Other files in these folders may be outputs of earlier runs.
    """
    from santagen.checkpoint.source import SETTINGS, TOKENIZER_FILES

    config = getattr(options, "config", None)
    files = [] if config is None else [Path(config)]
    for name in ("model", "tokenizer", "random_weights"):
        given = getattr(options, name, None)
        folder = Path(given).expanduser() if given else None
        if folder is not None and folder.is_dir():
            files += [folder / known for known in (*SETTINGS, *TOKENIZER_FILES)]
            files += [path for path in folder.iterdir() if WEIGHTS.search(path.name)]
        elif folder is not None:
            files.append(folder)
    return files


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
