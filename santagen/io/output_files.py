"""OUT and the files beside it, so that nothing is lost and a killed run can go on.

    OUT                 one line per sample: as they end, after a clean finish in input order
    OUT.errors.jsonl    one line per row that failed
    OUT.manifest.json   what the run is (io.manifest)
    OUT.part-*          of a run of several groups (io.parts)
    OUT.lock            held by the run that writes, as OUT itself is (io.files)

A kill at any moment leaves whole lines and at most one torn last line, which a resume drops. Until
`begin`, nothing of an earlier run is touched: a start that fails costs nothing. What a line holds
is the caller's business, and where it lies io.line_index'. Errors of the system pass as OSError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError
from santagen.io.files import (
    OutputLock,
    hold,
    real_path,
    temporary_path,
    write_all,
    write_atomically,
)
from santagen.io.line_index import CHANGED_HINT, Done, LineIndex, is_sorted
from santagen.io.manifest import (
    OVERWRITE_HINT,
    check_identity,
    manifest_path,
    read_manifest,
    write_manifest,
)
from santagen.io.output_place import check_place, errors_path, refuse_existing
from santagen.io.parts import (
    Lines,
    merged,
    part_path,
    part_paths,
    read_index,
    remove_parts,
    take_in,
)
from santagen.request import PromptRow, RowId


class OutputFiles:
    """`open`, `append` lines, `finish` a full run, `close` any. `content` is the manifest's."""

    def __init__(
        self, path: Path, content: dict[str, Any], *, format: str, unordered: bool = False
    ) -> None:
        self.path = path
        self.begun = False  # whether the output is this run's
        self._content, self._format, self._unordered = content, format, unordered
        self._index = LineIndex()
        self._earlier: dict[str, Any] | None = None  # the manifest of the run that is resumed
        self._lock: OutputLock | None = None
        self._existed = False
        self._fd = -1
        self._errors_fd = -1
        self._failures: dict[int, bytes] = {}

    @property
    def done(self) -> Done:
        return self._index.done

    @property
    def samples(self) -> int:
        return self._index.samples

    def checked(
        self, rows: Iterable[PromptRow], samples: Callable[[PromptRow], int]
    ) -> Iterable[PromptRow]:
        """As LineIndex.checked."""
        return self._index.checked(rows, samples, self._format == "openai-batch")

    def open(self, resume: bool, overwrite: bool) -> None:
        """Check the place, take the lock and read what an earlier run left."""
        path = self.path
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
        if resume and not path.exists():
            self._read_manifest()  # a resume that is refused makes no OUT where only parts are
        # Better refused now than at the first sample.
        self._open_output()
        if resume and (path.stat().st_size or parts):
            self._read_earlier(bool(parts))

    def _read_manifest(self) -> None:
        path = self.path
        self._earlier = read_manifest(path)
        if self._earlier is None:
            raise SantagenError(
                f"{path} can't be resumed: {manifest_path(path).name}, which says how it was "
                "made, is not beside it.",
                OVERWRITE_HINT,
            )
        check_identity(path, self._earlier, self._content["identity"])

    def _read_earlier(self, parts: bool) -> None:
        self._read_manifest()
        path = self.path
        self._index.read(path, self._format)
        if parts:
            take_in(path, self._index.size, self._index.done, self._format)
            self._index = LineIndex()
            self._index.read(path, self._format)

    def begin(self) -> None:
        """Take over the files, the output first: no sample may meet another run's manifest."""
        if self.begun:
            return
        path = self.path
        if self._fd < 0:
            self._open_output(0 if self._existed else os.O_EXCL)
        self._existed = True
        self._check_unchanged(os.fstat(self._fd).st_size)
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
        self.begun = True

    def _open_output(self, new: int = 0) -> None:
        """Open OUT and hold it, so that a run is kept off that knows it by a hard link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | new
        self._fd = os.open(real_path(self.path), flags, 0o666)
        hold(self._fd, self.path)

    def _check_unchanged(self, size: int) -> None:
        """Refuse to go on where OUT is another file by now, or not `size` bytes long: something
        else wrote it, on a file system without locks or heedless of them."""
        ours = os.fstat(self._fd)
        there = self.path.exists() and os.path.samestat(ours, self.path.stat())
        if not there or ours.st_size != size:
            raise SantagenError(f"{self.path} was changed by something else.", CHANGED_HINT)

    def append(self, line: bytes, number: int, index: int, samples: int) -> None:
        """Append the line of row `number` that holds `samples` samples from `index` on."""
        self.begin()
        try:
            write_all(self._fd, line)
        except OSError:
            with suppress(OSError):  # the first error is the one to tell
                os.ftruncate(self._fd, self._index.size)
            raise
        self._index.add(number, index, len(line), samples)

    def fail(self, number: int, line: bytes) -> None:
        """List the row `number`, once."""
        if number in self._failures:
            return
        self._failures[number] = line
        if self.begun:
            write_all(self._errors_fd, line)

    def finish(
        self, rows: Iterable[tuple[RowId, int]], summary: dict[str, Any], parts: Mapping[int, int]
    ) -> None:
        """OUT and the errors in input order, the manifest complete; as OutputWriter.finish."""
        path = self.path
        if self.begun:
            self._check_unchanged(self._index.size)
        errors = b"".join(self._failures[number] for number in sorted(self._failures))
        if parts:
            files = [part_path(path, group) for group in parts]
            every = [Lines(path, self._index.columns(rows)), *map(read_index, files)]
            write_atomically(path, merged(every, not self._unordered))
            remove_parts(files)
        elif not self._finish_alone(rows, errors):
            return
        if errors:
            write_atomically(errors_path(path), [errors])
        else:
            errors_path(path).unlink(missing_ok=True)
        samples = self._index.samples + sum(parts.values())
        counts = {"samples": samples, "failed_rows": len(self._failures)}
        run = {**self._content["run"], **summary}
        write_manifest(path, {**self._content, "complete": True, "counts": counts, "run": run})

    def _finish_alone(self, rows: Iterable[tuple[RowId, int]], errors: bytes) -> bool:
        """Put OUT in order; False where an earlier run left all as it should be."""
        order = None if self._unordered else self._index.order(rows)
        if order is not None and is_sorted(order):
            order = None  # it is in order as it is
        if order is None and not self.begun and self._is_complete(errors):
            return False
        self.begin()
        if order is None:
            os.fsync(self._fd)
        else:
            write_atomically(self.path, self._index.lines(self._fd, order))
        return True

    def _is_complete(self, errors: bytes) -> bool:
        """Whether an earlier run left just what this one would."""
        if self._earlier is None or not self._earlier.get("complete"):
            return False
        listed = errors_path(self.path)
        found = listed.read_bytes() if listed.exists() else b""
        return self.path.stat().st_size == self._index.size and found == errors

    def close(self) -> None:
        """Let go of the files and the lock; can be called again."""
        for name in ("_fd", "_errors_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)
        if self._lock is not None:
            self._lock.release()
