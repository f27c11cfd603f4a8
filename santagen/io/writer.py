"""Writes OUT.jsonl so that nothing is lost and a killed run can go on: append, order at the end.

    OUT                 one line per sample: as they end, after a clean finish in input order
    OUT.errors.jsonl    one line per row that failed
    OUT.manifest.json   what the run is (io.manifest)
    OUT.part-*          of a run of several groups (io.parts)
    OUT.lock            held by the run that writes (io.files)

A kill at any moment leaves whole lines and at most one torn last line, which a resume drops. Until
the first sample is there, nothing of an earlier run is touched: a start that fails costs nothing.
Standard output, pipes and devices get the same lines as they come, and none of the other files.
What a line holds is io.records' business, and where it lies io.line_index'.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from santagen.errors import SantagenError
from santagen.io import records
from santagen.io.files import (
    OutputLock,
    beside,
    real_path,
    refused,
    temporary_path,
    write_all,
    write_atomically,
)
from santagen.io.line_index import Done, LineIndex, is_sorted
from santagen.io.manifest import (
    OVERWRITE_HINT,
    check_identity,
    manifest_path,
    read_manifest,
    write_manifest,
)
from santagen.io.parts import (
    Lines,
    merged,
    part_path,
    part_paths,
    read_index,
    remove_parts,
    take_in,
)
from santagen.request import RowFailure, RowId, SampleOutput

FORMATS = ("jsonl", "openai-batch")
# Names of open files: what they lead to may be a regular file, but its neighbours are not ours.
_OPEN_FILE = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/\w+/fd/\d+")


class OutputWriter:
    """Made by `open`. `write` and `fail` take results, `finish` ends a full run, `close` any."""

    def __init__(
        self,
        path: Path | None,
        content: dict[str, Any],
        *,
        unordered: bool = False,
        echo: bool = False,
        token_ids: bool = False,
        format: str = "jsonl",
    ) -> None:
        self.path = path  # None: a stream
        self._content = content  # of the manifest
        self._unordered, self._echo, self._token_ids = unordered, echo, token_ids
        self._format = format
        self._index = LineIndex()
        self._earlier: dict[str, Any] | None = None  # the manifest of the run that is resumed
        self._lock: OutputLock | None = None
        self._existed = False
        self._begun = False
        self._fd = -1
        self._errors_fd = -1
        self._put: Callable[[bytes], None] | None = None  # writes a line to a stream
        self._failures: dict[int, bytes] = {}
        self._open_rows: dict[int, list[SampleOutput]] = {}

    @property
    def done(self) -> Done:
        """The samples that an earlier run wrote: `(row_id, index) in writer.done`."""
        return self._index.done

    @property
    def begun(self) -> bool:
        """Whether the output is this run's: until then an earlier run's files are as they were."""
        return self._begun

    @classmethod
    def open(
        cls,
        path: Path | None,
        *,
        identity: dict[str, Any],
        info: dict[str, Any],
        resume: bool = False,
        overwrite: bool = False,
        unordered: bool = False,
        echo: bool = False,
        token_ids: bool = False,
        format: str = "jsonl",
    ) -> OutputWriter:
        """Check the output, take its lock and read what an earlier run left.

        `path` None or "-" is standard output. `identity` is what a resume must share with the first
        run, `info` whatever else the manifest says. Raises SantagenError where the output can't be
        used.
        """
        if format not in FORMATS:
            raise SantagenError(f"There is no format {format}.", f"Use {' or '.join(FORMATS)}.")
        if path is not None and str(path) == "-":
            path = None
        writer = cls(
            path,
            {**info, "identity": identity, "complete": False},
            unordered=unordered,
            echo=echo,
            token_ids=token_ids,
            format=format,
        )
        try:
            with writer._explained():
                if path is None:
                    writer._open_stdout()
                elif not writer._open_stream(path, resume):
                    writer._open_file(path, resume, overwrite)
        except BaseException:
            writer.close()
            raise
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refused(self.path, error, self._index.samples) from None

    # -- opening -----------------------------------------------------------------------------------

    def _open_stream(self, path: Path, resume: bool) -> bool:
        """Open a pipe, a device or an open file's name; False where `path` is none of these."""
        if not is_stream(path):
            return False
        if resume:
            raise SantagenError(
                f"{path} is no regular file: it can't be resumed.", "Leave --resume out."
            )
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._put = partial(write_all, self._fd)
        self.path = None
        return True

    def _open_stdout(self) -> None:
        if sys.stdout is None:  # the shell's >&-
            raise SantagenError("Standard output is closed.", "Write to a file with -o.")
        sys.stdout.flush()
        try:
            self._fd = os.dup(sys.stdout.fileno())
        except io.UnsupportedOperation:  # Python code has put an object of its own there
            buffer = sys.stdout.buffer
            self._put = lambda line: (buffer.write(line), buffer.flush())[1]
        else:
            self._put = partial(write_all, self._fd)

    def _open_file(self, path: Path, resume: bool, overwrite: bool) -> None:
        check_place(path)
        self._lock = OutputLock(path)
        self._lock.take()
        for file in (path, errors_path(path), manifest_path(path)):
            temporary_path(file).unlink(missing_ok=True)  # of a killed run
        parts = part_paths(path)
        self._existed = path.exists() or bool(parts)
        if not self._existed:
            return
        if not (resume or overwrite):
            refuse_existing(path)
        # Better refused now than at the first sample.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        if resume and (path.stat().st_size or parts):
            self._earlier = read_manifest(path)
            if self._earlier is None:
                raise SantagenError(
                    f"{path} can't be resumed: {manifest_path(path).name}, which says how it was "
                    "made, is not beside it.",
                    OVERWRITE_HINT,
                )
            check_identity(path, self._earlier, self._content["identity"])
            self._index.read(path, self._format)
            if parts:
                take_in(path, self._index.size, self._index.done, self._format)
                self._index = LineIndex()
                self._index.read(path, self._format)

    def begin(self) -> None:
        """Take over the output now; from here on parts may be made. Otherwise the first sample
        does it."""
        if self.path is not None and not self._begun:
            with self._explained():
                self._begin(self.path)

    def _begin(self, path: Path) -> None:
        """Take over the files, the output first: no sample may meet another run's manifest."""
        new = os.O_EXCL if not self._existed else 0
        self._fd = os.open(real_path(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | new, 0o666)
        self._existed = True
        os.ftruncate(self._fd, self._index.size)  # a torn last line, or all that is overwritten
        remove_parts(part_paths(path))  # what is overwritten; a resume has taken them in
        # Rows that fail are met again by a resumed run, and reported again.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._errors_fd = os.open(errors_path(path), flags, 0o666)
        for line in self._failures.values():
            write_all(self._errors_fd, line)
        earlier = self._earlier or {}
        runs = [*earlier.get("earlier_runs", []), *([earlier["run"]] if "run" in earlier else [])]
        run = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
        self._content |= {"run": run, "earlier_runs": runs}
        write_manifest(path, self._content)
        self._begun = True

    # -- writing -----------------------------------------------------------------------------------

    def write(self, sample: SampleOutput) -> None:
        """Append one sample (in the batch form: its row, once all its samples are there)."""
        number = sample.request.number
        if self._format == "jsonl":
            record = records.sample_record(sample, echo=self._echo, token_ids=self._token_ids)
            self._append(records.json_line(record), number, sample.index)
            return
        row = self._open_rows.setdefault(number, [])
        row.append(sample)
        if len(row) == sample.request.params.n:
            del self._open_rows[number]
            row.sort(key=lambda s: s.index)
            record = records.batch_record(row, str(self._content.get("model", "")))
            self._append(records.json_line(record), number, 0, len(row))

    def _append(self, line: bytes, number: int, index: int, samples: int = 1) -> None:
        with self._explained():
            if self.path is None:
                assert self._put is not None, "the output is closed"
                self._put(line)
                self._index.samples += samples
                return
            if not self._begun:
                self._begin(self.path)
            try:
                write_all(self._fd, line)
            except OSError:
                with suppress(OSError):  # the first error is the one to tell
                    os.ftruncate(self._fd, self._index.size)
                raise
            self._index.add(number, index, len(line), samples)

    def fail(self, failure: RowFailure) -> None:
        """Note a row that failed for OUT.errors.jsonl, once; a stream has no such file."""
        if self.path is None or failure.number in self._failures:
            return
        batch = self._format == "openai-batch"
        make = records.batch_failure_record if batch else records.failure_record
        line = self._failures[failure.number] = records.json_line(make(failure))
        if self._begun:
            with self._explained():
                write_all(self._errors_fd, line)

    # -- ending ------------------------------------------------------------------------------------

    def finish(
        self,
        rows: Iterable[tuple[RowId, int]],
        summary: dict[str, Any],
        parts: Mapping[int, int] | None = None,
    ) -> None:
        """End a complete run: OUT and the errors in input order, the manifest complete.

        `rows` gives (row id, row number) of the input; it is read only where an earlier run's lines
        must be placed. `summary` is what the manifest says of this run. `parts` are the groups that
        left a part, and how many samples are in it. A complete output to which nothing was added
        stays as it is.
        """
        if self.path is not None:
            with self._explained():
                self._finish_file(self.path, rows, summary, parts or {})
        self.close()

    def _finish_file(
        self,
        path: Path,
        rows: Iterable[tuple[RowId, int]],
        summary: dict[str, Any],
        parts: Mapping[int, int],
    ) -> None:
        errors = b"".join(self._failures[number] for number in sorted(self._failures))
        if parts:
            files = [part_path(path, group) for group in parts]
            every = [Lines(path, self._index.columns(rows)), *map(read_index, files)]
            write_atomically(path, merged(every, not self._unordered))
            remove_parts(files)
        elif not self._finish_alone(path, rows, errors):
            return
        if errors:
            write_atomically(errors_path(path), [errors])
        else:
            errors_path(path).unlink(missing_ok=True)
        samples = self._index.samples + sum(parts.values())
        counts = {"samples": samples, "failed_rows": len(self._failures)}
        run = {**self._content["run"], **summary}
        write_manifest(path, {**self._content, "complete": True, "counts": counts, "run": run})

    def _finish_alone(
        self, path: Path, rows: Iterable[tuple[RowId, int]], errors: bytes
    ) -> bool:
        """Put OUT in order; False where an earlier run left all as it should be."""
        order = None if self._unordered else self._index.order(rows)
        if order is not None and is_sorted(order):
            order = None  # it is in order as it is
        if not self._begun:
            if order is None and self._is_complete(path, errors):
                return False
            self._begin(path)
        if order is None:
            os.fsync(self._fd)
        else:
            write_atomically(path, self._index.lines(self._fd, order))
        return True

    def _is_complete(self, path: Path, errors: bytes) -> bool:
        """Whether an earlier run left just what this one would."""
        if self._earlier is None or not self._earlier.get("complete"):
            return False
        listed = errors_path(path)
        found = listed.read_bytes() if listed.exists() else b""
        return path.stat().st_size == self._index.size and found == errors

    def close(self) -> None:
        """Let go of the output; what was written stays and can be resumed. Can be called again."""
        for name in ("_fd", "_errors_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)
        self._put = None
        if self._lock is not None:
            self._lock.release()


def is_stream(path: Path) -> bool:
    """Whether `path` is a pipe, a device or an open file's name."""
    a_file = not path.exists() or path.is_dir() or stat.S_ISREG(path.stat().st_mode)
    return not a_file or _OPEN_FILE.fullmatch(str(path)) is not None


def check_place(path: Path) -> bool:
    """Refuse what can be no output file; False where `path` is a stream."""
    if is_stream(path):
        return False
    if path.is_dir():
        raise SantagenError(f"{path} is a directory.", "Give -o a file name.")
    folder = real_path(path).parent if path.is_symlink() else path.parent
    if folder.exists() and not folder.is_dir():
        raise SantagenError(f"{folder}, where {path.name} would go, is no folder.", "Check -o.")
    if not folder.is_dir():
        raise SantagenError(
            f"The folder {folder} of the output does not exist.",
            f"Make it with: mkdir -p {shlex.quote(str(folder))}",
        )
    return True


def refuse_existing(path: Path) -> None:
    """Refuse an output, or the parts of one, that an earlier run has left."""
    if path.exists() or part_paths(path):
        raise SantagenError(
            f"{path} exists.",
            "Use --resume to go on with it, --overwrite to replace it, or another -o.",
        )


def errors_path(output: Path) -> Path:
    """Where the rows that failed are listed."""
    return beside(output, ".errors.jsonl")
