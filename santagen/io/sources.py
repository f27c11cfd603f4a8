"""Where prompt rows come from: lines, JSON lists, whole text files, standard input, datasets.

A source yields (line, payload) pairs as often as it is asked, holding one row at a time where the
format allows it, and feeds the bytes it reads to a digest. It doesn't know what a row means
(`io.rows` does), so a row that is broken is yielded like any other.

    payload: bytes     one line, still to be parsed as JSON
             BadRow    what could not even be read as text
             other     an already parsed value: a dict, where all is well
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from santagen.errors import SantagenError

BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
KINDS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


# Raw control characters (VT, FF, tab) may stand inside strings; NaN and infinities are no JSON.
DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def _whole_number(digits: str) -> int | float:
    """Infinity, as for 1e999, where there are more digits than int() takes."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class Digest(Protocol):
    """A hash such as hashlib's."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class BadRow:
    """A row that can't be read at all, and the id to report it under (None: its number)."""

    error: str
    hint: str
    row_id: str | None = None


class _Patient:
    """Reads past what DECODER stops at: a row fails for a NaN, but not for a number so long that
    int() refuses it, which may stand in a field that means nothing here."""

    def __init__(self) -> None:
        self._constants: list[str] = []
        self.decoder = json.JSONDecoder(
            strict=False, parse_constant=self._constants.append, parse_int=_whole_number
        )

    def checked(self, value: Any) -> Any:
        if not self._constants:
            return value
        return BadRow(
            f"the row can't be read as JSON: {self._constants[0]} is not a JSON value.",
            "Mend the row: null says that there is no value.",
        )


def decode_line(text: str) -> Any:
    """The JSON value of a line, or a BadRow; raises as json does where it ends nowhere."""
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        patient = _Patient()
        return patient.checked(patient.decoder.decode(text))


def _decode_element(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, or a BadRow, and where it ends."""
    try:
        return DECODER.raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:
        patient = _Patient()
        value, end = patient.decoder.raw_decode(text, at)
        return patient.checked(value), end


class Source(Protocol):
    """One input. `name` is for messages; `whole_file` says that its row is the file's text, and
    `is_list` that rows may share a line, so that a message counts them too."""

    name: str
    whole_file: bool
    is_list: bool

    def rows(self, digest: Digest | None = None) -> Iterator[tuple[int, Any]]:
        """(line from 1, payload) of each row; SantagenError where the input can't be read."""
        ...


@dataclass
class FileSource:
    """A file, or what stdin or a pipe was spooled to. `kind` is one of KINDS, or "" for text."""

    name: str
    path: Path
    kind: str
    spool: Any = None  # keeps the temporary file of a pipe alive
    whole_file: bool = False
    is_list: bool = False

    def __post_init__(self) -> None:
        self.whole_file = self.kind == ""
        self.is_list = self.kind in (".json", ".json.gz")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spool": None}  # the process that made it keeps it

    def rows(self, digest: Digest | None = None) -> Iterator[tuple[int, Any]]:
        try:
            with self._open() as file:
                if self.kind.startswith(".jsonl"):
                    yield from _lines(file, digest)
                elif self.kind:
                    yield from _json_list(file, self.name, digest)
                else:
                    yield 1, _whole_text(file, self.name, digest)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SantagenError(
                f"{self.name} is a broken gzip file: {error}.",
                "It may be cut short: fetch or write it again (gzip -t tests it).",
            ) from None
        except OSError as error:
            raise SantagenError(
                f"{self.name} can't be read: {error.strerror or error}.",
                "Check that the file exists and that you may read it.",
            ) from None

    def _open(self) -> BinaryIO:
        if self.kind.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        file = open(self.path, "rb")  # noqa: SIM115  (the caller closes it)
        if self.kind and file.read(2) == GZIP_MAGIC:
            file.close()
            raise SantagenError(
                f"{self.name} is compressed with gzip although its name doesn't say so.",
                "Decompress it first, as in: gunzip -c FILE | santagen generate -"
                if self.spool is not None
                else f"Rename it to end in {self.kind}.gz, or decompress it first.",
            )
        file.seek(0)
        return file


def open_source(path: str, wanted: Sequence[str] = ()) -> Source:
    """The source behind one PROMPTS argument; raises SantagenError when there is no such file.

    `wanted` names columns of a parquet file to read beside those that rows are known to have.
    """
    if path == "-":
        return _standard_input()
    if not path:
        raise SantagenError(
            "The name of a prompt file is empty.", "Check the shell variable that holds it."
        )
    place = Path(path)
    if place.is_dir():
        raise SantagenError(
            f"{path} is a directory, not a file of prompts.",
            f"Name the files in it, as in {place / '*.jsonl'}.",
        )
    if not place.exists():
        raise SantagenError(
            f"The prompt file {path} does not exist.",
            "Check the path; prompts from the hub are given with --dataset NAME.",
        )
    lower = place.name.lower()
    if lower.endswith(".parquet"):
        from santagen.io.dataset_source import DatasetSource

        return DatasetSource(path, wanted=wanted)
    kind = next((kind for kind in KINDS if lower.endswith(kind)), "")
    if not place.is_file():  # a pipe can be read only once
        try:
            with open(place, "rb") as pipe:
                return _spooled(pipe, path, kind)
        except OSError as error:
            raise SantagenError(
                f"{path} can't be read: {error.strerror or error}.", "Give a file or a pipe."
            ) from None
    if not os.access(place, os.R_OK):
        raise SantagenError(
            f"{path} can't be read: permission denied.", "Check the file's permissions."
        )
    return FileSource(path, place, kind)


def _standard_input() -> FileSource:
    if sys.stdin is None:  # the shell's <&-
        raise SantagenError("stdin is closed.", "Pipe the rows into it, or name a file.")
    try:
        return _spooled(sys.stdin.buffer, "stdin", ".jsonl")
    except OSError as error:
        raise SantagenError(
            f"stdin can't be read: {error.strerror or error}.",
            f"Pipe JSON lines into it; they are copied to {tempfile.gettempdir()} first.",
        ) from None


def _spooled(stream: BinaryIO, name: str, kind: str) -> FileSource:
    """Copy a stream to a temporary file, so that it can be validated first and read again later."""
    spool = tempfile.NamedTemporaryFile(prefix="santagen-prompts-")  # noqa: SIM115
    shutil.copyfileobj(stream, spool)
    spool.flush()
    return FileSource(name, Path(spool.name), kind, spool)


def _lines(file: BinaryIO, digest: Digest | None) -> Iterator[tuple[int, bytes]]:
    # A binary file splits on LF alone, so U+2028, U+0085, VT and FF stay inside their row.
    for number, line in enumerate(file, start=1):
        if digest is not None:
            digest.update(line)
        if line.startswith(BOM):  # also where files were concatenated
            line = line[len(BOM) :]
        if line.strip():
            yield number, line


def _whole_text(file: BinaryIO, name: str, digest: Digest | None) -> dict[str, Any] | BadRow:
    data = file.read()
    if digest is not None:
        digest.update(data)
    data = data.removeprefix(BOM)
    try:
        return {"id": name, "prompt": data.decode("utf-8")}
    except UnicodeDecodeError as error:
        return BadRow(
            f"the file is not UTF-8 text (byte {error.start}).",
            "Convert it to UTF-8; rows of prompts come in .jsonl, .jsonl.gz, .json or .parquet.",
            name,
        )


def _json_list(file: BinaryIO, name: str, digest: Digest | None) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list one by one, each with the line it begins on."""
    data = file.read()
    if digest is not None:
        digest.update(data)
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SantagenError(
            f"{name} is not UTF-8 text (line {line}).", "Convert it to UTF-8."
        ) from None
    del data
    try:
        yield from _elements(text)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")  # "... starting at"
        raise SantagenError(
            f"{name} is not a JSON list of prompts: {fault} at line {error.lineno}, "
            f"column {error.colno}.",
            "A .json file holds one list, [row, row, ...]; one row per line is .jsonl.",
        ) from None
    except RecursionError as error:
        raise SantagenError(
            f"{name} is not a JSON list of prompts: {error}.", "Mend the file, or use .jsonl."
        ) from None


def _elements(text: str) -> Iterator[tuple[int, Any]]:
    at, line, counted = _skip_space(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise json.JSONDecodeError("expected '['", text, at)
    at = _skip_space(text, at + 1)
    closed = text[at : at + 1] == "]"
    while not closed:
        line += text.count("\n", counted, at)
        counted = at
        value, at = _decode_element(text, at)
        yield line, value
        at = _skip_space(text, at)
        mark = text[at : at + 1]
        if mark not in (",", "]"):
            raise json.JSONDecodeError("expected ',' or ']'", text, at)
        closed = mark == "]"
        at = at if closed else _skip_space(text, at + 1)
    at = _skip_space(text, at + 1)
    if at != len(text):
        raise json.JSONDecodeError("unexpected text after the list", text, at)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
