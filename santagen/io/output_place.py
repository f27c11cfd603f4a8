"""Where an output may go: a new file in a folder that is there, or a stream. Opens nothing."""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path

from santagen.errors import SantagenError
from santagen.io.files import beside, lock_path, real_path, temporary_path
from santagen.io.manifest import manifest_path
from santagen.io.parts import part_paths

# Names of open files: what they lead to may be a regular file, but its neighbours are not ours.
_OPEN_FILE = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/\w+/fd/\d+")


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
    if path.exists():
        raise existing(path)
    if parts := part_paths(path):
        raise existing(path, parts[0])


def existing(path: Path, part: Path | None = None) -> SantagenError:
    """What to tell of an output that is there, or a part of it, where nothing says what to do."""
    what = f"{path} exists." if part is None else f"{part}, a part of {path}, exists."
    return SantagenError(
        what,
        "Use --resume to go on with it, --overwrite to replace it, or another -o.",
    )


def own_files(output: Path) -> list[Path]:
    """All that a run with this output may write or remove: none of it may be what it reads."""
    if is_stream(output) or output.is_dir():
        return [output]
    files = [output, errors_path(output), manifest_path(output)]
    part = re.compile(re.escape(output.name) + r"\.part-\d+(\.index)?(\.tmp)?")
    found = output.parent.iterdir() if output.parent.is_dir() else ()
    parts = [path for path in found if part.fullmatch(path.name)]
    return [*files, *map(temporary_path, files), lock_path(output), *parts]


def errors_path(output: Path) -> Path:
    """Where the rows that failed are listed."""
    return beside(output, ".errors.jsonl")
