"""Writes OUT.jsonl so that nothing is lost and a killed run can go on: append and flush, then order at the end.

    OUT                 one line per sample, in the order they end; in input order after a clean finish
    OUT.errors.jsonl    one line per row that failed
    OUT.manifest.json   what the run is (io.manifest)
    OUT.lock            held while a run writes: a second run on the same output is refused

A kill at any moment leaves whole lines and at most one torn last line, which a resume drops. Standard output, pipes and
devices get the same lines as they come, and none of the files. What a line holds is io.records' business.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from santagen.errors import SantagenError
from santagen.io import records
from santagen.io.manifest import check_identity, manifest_path, read_manifest, write_atomically, write_manifest
from santagen.request import RowFailure, RowId, SampleOutput

COPY_BYTES = 1 << 20
FORMATS = ("jsonl", "openai-batch")


class Done:
    """(row id, index) of the samples an earlier run wrote; ids 3 and "3" are the same row."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()

    def add(self, row_id: RowId, index: int) -> None:
        self._seen.add((str(row_id), index))

    def __contains__(self, sample: tuple[RowId, int]) -> bool:
        return (str(sample[0]), sample[1]) in self._seen

    def __len__(self) -> int:
        return len(self._seen)


class OutputWriter:
    """Made by `open`; `write` and `fail` take results, `finish` ends a complete run, `close` any other."""

    def __init__(self, path: Path | None, settings: dict[str, Any], content: dict[str, Any]) -> None:
        self.path, self._settings, self._content = path, settings, content
        self.done = Done()
        self._fd = -1
        self._errors_fd = -1
        self._lock_fd = -1
        self._size = 0  # bytes in OUT
        # of every line of OUT: row number (-1: of an earlier run), sample index, offset, length
        self._index = (array("q"), array("q"), array("q"), array("q"))
        self._earlier_ids: list[str] = []
        self._failures: list[tuple[int, bytes]] = []
        self._open_rows: dict[int, list[SampleOutput]] = {}
        self._samples = 0

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
        """Check the output, take its lock, read what an earlier run left, write the first manifest.

        path None or "-" is standard output. Raises SantagenError where the output can't be used.
        """
        if format not in FORMATS:
            raise SantagenError(f"--format {format} is not known.", f"Choose one of {', '.join(FORMATS)}.")
        settings = {"unordered": unordered, "echo": echo, "token_ids": token_ids, "format": format}
        if path is not None and str(path) == "-":
            path = None
        content = {**info, "identity": identity, "complete": False}
        writer = cls(path, {**settings, "model": str(info.get("model", ""))}, content)
        try:
            writer._start(resume, overwrite)
        except OSError as error:
            writer.close()
            raise _unusable(path, error) from None
        except SantagenError:
            writer.close()
            raise
        return writer

    def __enter__(self) -> OutputWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- opening -------------------------------------------------------------------------------

    def _start(self, resume: bool, overwrite: bool) -> None:
        path = self.path
        if path is None:
            sys.stdout.flush()
            self._fd = os.dup(sys.stdout.fileno())
            return
        if path.is_dir():
            raise SantagenError(f"{path} is a directory.", "Give -o a file name.")
        if not path.parent.is_dir():
            raise SantagenError(f"The folder {path.parent} of the output does not exist.", f"mkdir -p {path.parent}")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            if resume:
                raise SantagenError(f"{path} is no regular file and can't be resumed.", "Leave --resume out.")
            self._fd = os.open(path, os.O_WRONLY)
            self.path = None
            return
        self._lock(path)
        if path.exists() and not (resume or overwrite):
            raise SantagenError(
                f"{path} exists.", "Use --resume to go on with it, --overwrite to replace it, or another -o."
            )
        earlier = read_manifest(path) if resume else None
        if resume and path.exists() and path.stat().st_size and earlier is None:
            raise SantagenError(
                f"{path} can't be resumed: there is no {manifest_path(path).name} beside it that says how it was made.",
                "Start again with --overwrite, or choose another -o.",
            )
        if earlier is not None:
            check_identity(path, earlier, self._content["identity"])
        if overwrite:
            for file in (path, errors_path(path), manifest_path(path)):
                file.unlink(missing_ok=True)
        write_manifest(path, self._content)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        if resume:
            self._read_earlier(path)
        # Rows that fail are met again by a resumed run, and reported again.
        self._errors_fd = os.open(errors_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    def _lock(self, path: Path) -> None:
        lock = path.with_name(path.name + ".lock")
        while True:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise SantagenError(
                    f"Another run is writing {path}.", "Wait for it to end, or choose another -o."
                ) from None
            # The holder removes the file: make sure that what is locked still has the name.
            if lock.exists() and os.fstat(fd).st_ino == lock.stat().st_ino:
                self._lock_fd = fd
                return
            os.close(fd)

    def _read_earlier(self, path: Path) -> None:
        """Index the whole lines; cut a torn last one off."""
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    self._note_earlier(json.loads(line), offset, len(line))
                except (ValueError, KeyError, TypeError):
                    raise SantagenError(
                        f"{path}, line {number} is no record of santagen.",
                        "The file was changed by something else: start again with --overwrite.",
                    ) from None
                offset += len(line)
        os.truncate(path, offset)
        self._size = offset

    def _note_earlier(self, record: dict[str, Any], offset: int, length: int) -> None:
        if self._settings["format"] == "jsonl":
            row_id, indices = record["task_id"], [int(record["index"])]
        else:
            row_id = record["custom_id"]
            indices = [int(choice["index"]) for choice in record["response"]["body"]["choices"]]
        for index in indices:
            self.done.add(row_id, index)
        self._earlier_ids.append(str(row_id))
        self._note(-1, indices[0], offset, length)

    def _note(self, *entry: int) -> None:
        for column, value in zip(self._index, entry, strict=True):
            column.append(value)

    # -- writing -------------------------------------------------------------------------------

    def write(self, sample: SampleOutput) -> None:
        """Append one sample (in the batch form: its row, once all its samples are there)."""
        self._samples += 1
        if self._settings["format"] == "jsonl":
            record = records.sample_record(
                sample, echo=self._settings["echo"], token_ids=self._settings["token_ids"]
            )
            self._append(sample, records.json_line(record))
            return
        number = sample.request.number
        row = self._open_rows.setdefault(number, [])
        row.append(sample)
        if len(row) == sample.request.params.n:
            del self._open_rows[number]
            row.sort(key=lambda s: s.index)
            self._append(row[0], records.json_line(records.batch_record(row, self._settings["model"])))

    def _append(self, sample: SampleOutput, line: bytes) -> None:
        self._write_all(self._fd, line)
        if self.path is not None:
            self._note(sample.request.number, sample.index, self._size, len(line))
            self._size += len(line)

    def fail(self, failure: RowFailure) -> None:
        """Append a row that failed to OUT.errors.jsonl (with standard output there is no such file)."""
        if self.path is None:
            return
        batch = self._settings["format"] == "openai-batch"
        make = records.batch_failure_record if batch else records.failure_record
        line = records.json_line(make(failure))
        self._failures.append((failure.number, line))
        self._write_all(self._errors_fd, line)

    def _write_all(self, fd: int, line: bytes) -> None:
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except BrokenPipeError:
            raise SantagenError(
                f"The reader of the output went away after {self._samples - 1} samples.",
                "Write to a file with -o to keep them.",
            ) from None
        except OSError as error:
            raise _unusable(self.path, error, self._samples - 1) from None

    # -- ending --------------------------------------------------------------------------------

    def finish(self, rows: Iterable[tuple[RowId, int]], summary: dict[str, Any]) -> None:
        """End a complete run: put OUT and the errors in input order, and complete the manifest.

        `rows` gives (row id, row number) of the input; it is read only if an earlier run's lines must be placed.
        """
        if self.path is None:
            return
        try:
            if not self._settings["unordered"]:
                self._order(rows)
            os.fsync(self._fd)
            errors = errors_path(self.path)
            if self._failures:
                self._failures.sort()
                write_atomically(errors, b"".join(line for _, line in self._failures))
            else:
                errors.unlink(missing_ok=True)
            counts = {"samples": len(self._index[0]), "failed_rows": len(self._failures)}
            write_manifest(
                self.path, {**self._content, "complete": True, "counts": counts, "run": summary}
            )
        except OSError as error:
            raise _unusable(self.path, error, self._samples) from None
        self.close()

    def _order(self, rows: Iterable[tuple[RowId, int]]) -> None:
        assert self.path is not None
        number, index, offset, length = (np.frombuffer(c, np.int64).copy() for c in self._index)
        if self._earlier_ids:
            place = {str(row_id): where for row_id, where in rows}
            number[: len(self._earlier_ids)] = [place[row_id] for row_id in self._earlier_ids]
        order = np.lexsort((index, number))
        if (np.diff(order) == 1).all():
            return
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb", buffering=COPY_BYTES) as file:
            for i in order.tolist():
                file.write(os.pread(self._fd, int(length[i]), int(offset[i])))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def close(self) -> None:
        """Let go of the output; what was written stays and can be resumed. Harmless after `finish`."""
        for name in ("_fd", "_errors_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)
        if self._lock_fd >= 0 and self.path is not None:
            self.path.with_name(self.path.name + ".lock").unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1


def errors_path(output: Path) -> Path:
    return output.with_name(output.name + ".errors.jsonl")


def _unusable(path: Path | None, error: OSError, samples: int = 0) -> SantagenError:
    """The error of a write that the system refused, with what helps."""
    where = path if path is not None else "the output"
    kept = f" {samples} samples are safe in it." if samples > 0 and path is not None else ""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "Free some space, then run the same command with --resume."
    elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        hint = "Check the permissions, or give another -o."
    else:
        hint = "Check the disk, then run the same command with --resume."
    return SantagenError(f"Can't write {where}: {reason}.{kept}", hint)
