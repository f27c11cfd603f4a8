"""The errors santagen raises for what a user can cause. Programming faults stay plain exceptions.

This module does not print: the command line turns a `SantagenError` into one message and one hint.
"""

from __future__ import annotations


class SantagenError(Exception):
    """A fault a user can cause and mend: one sentence that names the thing, and how to mend it.

    `exit_code` is the process's exit status when the error ends the run (2: usage, configuration
    or environment; 1: the run finished but rows failed).
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class RowError(SantagenError):
    """One row of the input can't be used; the rows around it go on.

    `line` is the 1-based line of the row in its file (0 where there is none).
    """

    def __init__(self, message: str, hint: str = "", *, line: int = 0) -> None:
        super().__init__(message, hint, exit_code=1)
        self.line = line
