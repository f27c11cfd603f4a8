"""The part files of a run of several groups: OUT.part-00001 and so on, beside OUT.

    group 0    OUT            group k    OUT.part-k         the same lines, as they end
                                         OUT.part-k.index   where they lie, once k is done

The end merges them into input order; a run that was cut short leaves them to the next one, which
takes their lines into OUT first, however many groups it has itself. Nothing here locks: whoever
holds OUT.lock owns the parts too.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from santagen.errors import SantagenError
from santagen.io.files import BUFFER_BYTES, beside, write_atomically
from santagen.io.line_index import CHANGED_HINT, Done, samples_of

LINES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Lines:
    """Whole lines of one file: `columns` [4, lines] int64 are row, index, offset and length."""

    path: Path
    columns: NDArray[np.int64]


def part_path(output: Path, group: int) -> Path:
    return beside(output, f".part-{group:05}")


def index_path(part: Path) -> Path:
    return beside(part, ".index")


def part_paths(output: Path) -> list[Path]:
    """The parts that lie beside `output`, in order."""
    name = re.compile(re.escape(output.name) + r"\.part-\d+")
    return sorted(path for path in output.parent.iterdir() if name.fullmatch(path.name))


def remove_parts(parts: Sequence[Path]) -> None:
    for part in parts:
        part.unlink(missing_ok=True)
        index_path(part).unlink(missing_ok=True)


def write_index(lines: Lines) -> None:
    """Leave a part's index beside it, for the merge."""
    write_atomically(index_path(lines.path), [lines.columns.tobytes()])


def read_index(part: Path) -> Lines:
    """What `write_index` left; raises SantagenError where the part is not as it says."""
    try:
        columns = np.frombuffer(index_path(part).read_bytes(), np.int64).reshape(4, -1)
        size = part.stat().st_size
    except (OSError, ValueError) as error:
        raise SantagenError(
            f"The part {part} of the output can't be read: {error}.",
            "Its folder must be one that every node shares; then run the command with --resume.",
        ) from None
    if size != int(columns[3].sum()):
        raise SantagenError(f"The part {part} of the output has changed.", CHANGED_HINT)
    return Lines(part, columns)


def take_in(output: Path, whole: int, done: Done, format: str) -> None:
    """Append what an earlier run's parts hold to the first `whole` bytes of `output`.

    `done` are the samples of `output`, and grows: a run that was killed in here has appended lines
    whose part is still there. Torn last lines are dropped. When this returns, the parts are gone.
    """
    parts = part_paths(output)
    with output.open("r+b", buffering=BUFFER_BYTES) as file:
        file.truncate(whole)
        file.seek(whole)
        for part in parts:
            file.writelines(_new_lines(part, done, format))
        file.flush()
        os.fsync(file.fileno())
    remove_parts(parts)


def _new_lines(part: Path, done: Done, format: str) -> Iterator[bytes]:
    with part.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row_id, indices = samples_of(json.loads(line), format)
                if (row_id, indices[0]) in done:
                    continue
                for index in indices:
                    done.add(row_id, index)
            except (ValueError, LookupError, TypeError, RecursionError):
                raise SantagenError(
                    f"{part}, line {number} is no record of this run.", CHANGED_HINT
                ) from None
            yield line


def merged(files: Sequence[Lines], ordered: bool = True) -> Iterator[bytes]:
    """The lines of all files by row and index, or file after file where not `ordered`."""
    files = [file for file in files if file.columns.shape[1]]
    columns = np.concatenate([file.columns for file in files], axis=1)
    source = np.repeat(np.arange(len(files)), [file.columns.shape[1] for file in files])
    order = np.lexsort((columns[1], columns[0])) if ordered else np.arange(len(source))
    maps = [_mapped(file.path) for file in files]
    try:
        for start in range(0, len(order), LINES_AT_ONCE):
            some = order[start : start + LINES_AT_ONCE]
            offsets = columns[2, some]
            ends = offsets + columns[3, some]
            for file, offset, end in zip(
                source[some].tolist(), offsets.tolist(), ends.tolist(), strict=True
            ):
                yield maps[file][offset:end]
    finally:
        for memory in maps:
            memory.close()


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
