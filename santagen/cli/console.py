"""Messages for people: always on stderr, plain text, from rank 0 only. Data never passes here.

A message is one line; a warning or an error may add a hint line. Nothing is buffered, and nothing
is coloured unless stderr is a terminal that wants it. Names and texts of others can't steer that
terminal: control characters are shown as escapes, and what looks like a hub token is left out.
What can't be written is lost: cli.stderr sees to it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from santagen.cli.labelled import many
from santagen.errors import SantagenError, of_device

DEBUG_VARIABLE = "SANTAGEN_DEBUG"
CPP_STACK = "\nException raised from"  # where torch's own message ends
# Line ends and tabs are our own; the last two ranges turn the direction of what follows.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")


def rank() -> int:
    """This process's rank under torchrun, 0 without it."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def debugging(environment: Mapping[str, str]) -> bool:
    """Whether SANTAGEN_DEBUG asks for tracebacks."""
    return environment.get(DEBUG_VARIABLE, "") not in ("", "0")


def is_terminal() -> bool:
    """Whether stderr can redraw a line."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Console:
    """What the user asked to hear: errors only (quiet), the usual, or more (verbose).

    `any_rank`: this process speaks for the run although it is not rank 0.
    """

    quiet: bool = False
    verbose: bool = False
    any_rank: bool = False

    def say(self, message: str) -> None:
        if not self.quiet:
            _line(harmless(message), self.any_rank)

    def detail(self, message: str) -> None:
        if self.verbose:
            _line(harmless(message), self.any_rank)

    def remarks(self, rows_of: Mapping[str, int]) -> None:
        """What was odd about some rows, each remark once."""
        for remark, rows in rows_of.items():
            self.warn(f"{remark} ({many(rows, 'row')})")

    def warn(self, message: str, hint: str = "") -> None:
        """What must be heard although the run goes on."""
        _labelled("warning", "33", message, hint, self.any_rank)

    def interrupted_before(self, what: str, output: Path | None) -> None:
        """That a run ended before the first `what`, and how `output` is: nothing was written."""
        where = ""
        if output is not None:
            where = f": {output} {'is as it was' if output.exists() else 'was not made'}"
        self.warn(f"interrupted before the first {what}{where}.", "Run the same command again.")


def report_error(error: BaseException, any_rank: bool = False) -> None:
    """One message and one hint on stderr; the traceback only where SANTAGEN_DEBUG is set.

    Ranks other than 0 keep it to themselves unless `any_rank`.
    """
    if debugging(os.environ):
        import traceback

        for line in traceback.format_exception(error):
            _line(harmless(line).rstrip("\n"), any_rank=True)
    known = error if isinstance(error, SantagenError) else of_device(error)
    if known is not None:
        _labelled("error", "31", known.message, known.hint, any_rank)
        return
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        shown = str(error.filename)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        message = f"{shown} can't be used: {error.strerror}."
        hint = f"Check the name and its permissions; {DEBUG_VARIABLE}=1 shows where it happened."
        _labelled("error", "31", message, hint, any_rank)
        return
    text = " ".join(str(error).partition(CPP_STACK)[0].split())
    _labelled(
        "error",
        "31",
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        f"This looks like a fault in santagen; {DEBUG_VARIABLE}=1 shows where it happened.",
        any_rank,
    )


def harmless(text: str) -> str:
    """The text with nothing in it that a terminal obeys, and no hub token."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], _TOKEN.sub("hf_***", text))


def _labelled(label: str, colour: str, message: str, hint: str, any_rank: bool) -> None:
    if is_terminal() and not os.environ.get("NO_COLOR"):
        label = f"\x1b[{colour};1m{label}\x1b[0m"
    _line(f"{label}: {harmless(message)}", any_rank)
    if hint:
        _line(f"hint: {harmless(hint)}", any_rank)


def _line(text: str, any_rank: bool) -> None:
    if sys.stderr is None:  # the shell's 2>&-: print would turn to stdout, which is for data
        return
    if any_rank or rank() == 0:
        print(text, file=sys.stderr, flush=True)
