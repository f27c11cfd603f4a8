"""The errors santagen raises for what a user can cause, and what the errors of others mean.

Programming faults stay plain exceptions. This module does not print: the command line turns a
`SantagenError` into one message and one hint. It knows torch's errors by their names and texts, and
imports no torch.
"""

from __future__ import annotations

import re

# How torch, cuBLAS and Triton begin what they say of the GPU.
_OF_DEVICE = re.compile(r"(CUDA|HIP) (driver )?error\b|Triton Error \[\w+\]")
_NO_MEMORY = re.compile(r"out of memory|_ALLOC_FAILED")


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


def first_line(error: BaseException) -> str:
    """What an error says, without the advice that torch adds below; its type where it says
    nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no memory: torch's own error, or what the driver and the libraries
    beneath it say."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    line = first_line(error)
    return _is_of_device(error, line) and _NO_MEMORY.search(line) is not None


def is_device_failure(error: BaseException) -> bool:
    """Whether the device reported a fault after which this process can't use it any more."""
    return _is_of_device(error, first_line(error)) and not is_out_of_memory(error)


def _is_of_device(error: BaseException, line: str) -> bool:
    return isinstance(error, RuntimeError) and _OF_DEVICE.match(line) is not None


def of_device(error: BaseException) -> SantagenError | None:
    """For the user, an error of the device; None for any other."""
    line = first_line(error).rstrip(".")
    if is_out_of_memory(error):
        return SantagenError(
            f"The device ran out of memory ({line}).",
            "Free it of other work, lower --max-num-seqs or --gpu-memory-utilization, or spread "
            "the model over several GPUs.",
        )
    if is_device_failure(error):
        return SantagenError(
            f"The GPU failed, and this process can't use it any more ({line}).",
            "The system's log may say why (Xid, ECC), and santagen doctor whether it works again; "
            "SANTAGEN_DEBUG=1 shows where it happened.",
        )
    return None


def without_token(error: BaseException, token: str | None) -> tuple[str, BaseException | None]:
    """(what an error of the hub says, in one line; the error itself, or None where what lies
    behind may repeat the token) for the given token, the environment's or an earlier login's."""
    from huggingface_hub import get_token

    secrets = [secret for secret in (token, get_token()) if secret]
    reason = str(error).strip() or "no details"
    for secret in secrets:
        reason = reason.replace(secret, "***")
    return reason.splitlines()[0][:200], None if secrets else error


def many(count: int, word: str) -> str:
    """1 row, 2,000 rows"""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
