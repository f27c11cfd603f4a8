"""Files that survive a kill, and what the system's refusals mean to a user.

    write_atomically   the whole new file or the old one
    write_all          every byte of a line, also to a slow reader
    OutputLock         OUT.lock, against a second run on the same output
    hold               an open file against a run that has another name for it
    refused            an OSError as a SantagenError

Knows nothing of what the files hold.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Iterable
from pathlib import Path

from santagen.errors import SantagenError, many

BUFFER_BYTES = 1 << 20
# What file systems without locks answer (Lustre without -o flock, some network shares).
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EROFS, errno.EPERM)
OTHER_FILE = "another -o"  # where a command says with -o what it writes


def beside(path: Path, ending: str) -> Path:
    """OUT.jsonl, ".lock" -> OUT.jsonl.lock"""
    return path.with_name(path.name + ending)


def real_path(path: Path) -> Path:
    """What a symbolic link points to, so that replacing it leaves the link alone."""
    return Path(os.path.realpath(path))


def same_file(one: Path, other: Path) -> bool:
    """Whether both name one file, by links too; one that is not there yet is known by its name."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return real_path(one) == real_path(other)


def temporary_path(path: Path) -> Path:
    """Where the new text of `path` is written, in the same folder so that a rename can't fail."""
    return beside(real_path(path), ".tmp")


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` in one step: a kill at any moment leaves it whole, old or new."""
    temporary = temporary_path(path)
    try:
        with temporary.open("wb", buffering=BUFFER_BYTES) as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real_path(path))
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk its room is needed
        raise


def write_all(fd: int, line: bytes) -> None:
    """Write the whole line, waiting where the reader of a non-blocking pipe is slow."""
    view = memoryview(line)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


def lock_path(output: Path) -> Path:
    return beside(real_path(output), ".lock")


def hold(fd: int, output: Path, other: str = OTHER_FILE) -> None:
    """Lock the open file itself until `fd` is closed; SantagenError where another process has,
    with the advice to wait or to choose `other`."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SantagenError(
            f"Another run is writing {output}.", f"Wait for it to end, or choose {other}."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


class OutputLock:
    """Held from `take` to `release` or the process's end: a kill leaves no more than a file."""

    def __init__(self, output: Path, other: str = OTHER_FILE) -> None:
        self._output, self._other = output, other
        # Beside the file itself: a run that names it by a symbolic link meets the same lock.
        self._path = lock_path(output)
        self._fd = -1

    def take(self) -> None:
        """Raises SantagenError where another process holds it."""
        while self._fd < 0:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                hold(fd, self._output, self._other)
            except BaseException:
                os.close(fd)
                raise
            if self._is_current(fd):
                self._fd = fd
            else:
                os.close(fd)

    def _is_current(self, fd: int) -> bool:
        """Whether the file still has its name: an earlier holder may just have removed it."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def refused(output: Path | None, error: OSError, kept: int) -> SantagenError:
    """What to tell of a failed write to `output` (None: a stream) that holds `kept` samples."""
    if isinstance(error, BrokenPipeError):
        return SantagenError(
            f"The reader of the output went away after {many(kept, 'sample')}.",
            "Write to a file with -o to keep them.",
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    message = f"Can't write {output or 'the output'}: {reason}."
    if output is None:
        hint = "Check what reads it, or write to a file with -o."
    elif error.errno in NO_ROOM:
        hint = "Free some space, then run the same command with --resume."
    elif error.errno in NO_PERMISSION:
        hint = "Check the permissions, or give another -o."
    elif kept:
        hint = "Check the disk, then run the same command with --resume."
    else:
        hint = "Give another -o."
    if output is not None and kept:
        message += f" {many(kept, 'sample')} {'is' if kept == 1 else 'are'} safe in it."
    return SantagenError(message, hint)
