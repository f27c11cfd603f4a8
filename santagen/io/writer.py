"""Writes samples and failures as they come: forms their lines and hands them to the output.

    OutputFiles     a file, with its errors, manifest and lock beside it (io.output_files)
    OutputStream    standard output, a pipe or a device (io.output_stream)

What a line holds is io.records' business. Touches no file itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from santagen.errors import SantagenError
from santagen.io import records
from santagen.io.files import refused
from santagen.io.line_index import Done
from santagen.io.output_files import OutputFiles
from santagen.io.output_place import is_stream
from santagen.io.output_stream import OutputStream
from santagen.request import PromptRow, RowFailure, RowId, SampleOutput

FORMATS = ("jsonl", "openai-batch")


class OutputWriter:
    """Made by `open`. `write` and `fail` take results, `finish` ends a full run, `close` any."""

    def __init__(
        self,
        output: OutputFiles | OutputStream,
        *,
        model: str = "",
        echo: bool = False,
        token_ids: bool = False,
        format: str = "jsonl",
    ) -> None:
        self._output = output
        self._model, self._format = model, format
        self._echo, self._token_ids = echo, token_ids
        self._open_rows: dict[int, list[SampleOutput]] = {}

    @property
    def path(self) -> Path | None:
        """The output file; None is a stream."""
        return self._output.path

    @property
    def done(self) -> Done:
        """The samples that an earlier run wrote: `(row_id, index) in writer.done`."""
        return self._output.done

    @property
    def begun(self) -> bool:
        """Whether the output is this run's: until then an earlier run's files are as they were."""
        return self._output.begun

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
        output: OutputFiles | OutputStream
        if path is None or str(path) == "-":
            output = OutputStream.open(None, resume=False)
        elif is_stream(path):
            output = OutputStream.open(path, resume)
        else:
            content = {**info, "identity": identity, "complete": False}
            output = OutputFiles(path, content, format=format, unordered=unordered)
            _open(output, resume, overwrite)
        model = str(info.get("model", ""))
        return cls(output, model=model, echo=echo, token_ids=token_ids, format=format)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def checked(
        self, rows: Iterable[PromptRow], samples: Callable[[PromptRow], int]
    ) -> Iterable[PromptRow]:
        """The rows of the input as they are, each of which wants `samples(row)` samples.

        Raises SantagenError on the way, or after the last row, where the output holds a sample that
        none of them wants.
        """
        return self._output.checked(rows, samples)

    def begin(self) -> None:
        """Take over the output now; from here on parts may be made. Otherwise the first sample
        does it."""
        with explained(self._output):
            self._output.begin()

    def write(self, sample: SampleOutput) -> None:
        """Append one sample (in the batch form: its row, once all its samples are there)."""
        number = sample.request.number
        shown = {"echo": self._echo, "token_ids": self._token_ids}
        if self._format == "jsonl":
            self._append(records.sample_record(sample, **shown), number, sample.index)
            return
        row = self._open_rows.setdefault(number, [])
        row.append(sample)
        if len(row) == sample.request.params.n:
            del self._open_rows[number]
            row.sort(key=lambda s: s.index)
            self._append(records.batch_record(row, self._model, **shown), number, 0, len(row))

    def _append(self, record: dict[str, Any], number: int, index: int, samples: int = 1) -> None:
        with explained(self._output):
            self._output.append(records.json_line(record), number, index, samples)

    def fail(self, failure: RowFailure) -> None:
        """Note a row that failed for OUT.errors.jsonl, once; a stream has no such file."""
        batch = self._format == "openai-batch"
        make = records.batch_failure_record if batch else records.failure_record
        with explained(self._output):
            self._output.fail(failure.number, records.json_line(make(failure)))

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
        with explained(self._output):
            self._output.finish(rows, summary, parts or {})
        self.close()

    def close(self) -> None:
        """Let go of the output; what was written stays and can be resumed. Can be called again."""
        self._output.close()


def _open(files: OutputFiles, resume: bool, overwrite: bool) -> None:
    try:
        with explained(files):
            files.open(resume, overwrite)
    except BaseException:
        files.close()
        raise


@contextmanager
def explained(output: OutputFiles | OutputStream) -> Iterator[None]:
    """What the system refuses, as a message for the user."""
    try:
        yield
    except OSError as error:
        raise refused(output.path, error, output.samples) from None
