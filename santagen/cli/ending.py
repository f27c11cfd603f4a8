"""How a process ends that can't end in the usual way: others, or its GPU, are gone.

The libraries' farewells at exit wait for processes, or free memory of a device; where it has failed
they end the process by a signal, and the exit code says nothing. Reports nothing itself.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from santagen.errors import is_device_failure


def end_now(code: int) -> NoReturn:
    """End without the libraries' farewells."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the shell's >&-
            stream.flush()
    os._exit(code)


def end_if_lost(error: BaseException, code: int) -> None:
    """End now where a GPU of this process failed.

    To be called while the error is handled: its traceback keeps alive what is freed otherwise.
    """
    if is_device_failure(error) and uses_gpu():
        end_now(code)


def uses_gpu() -> bool:
    """Whether this process has a GPU open; loads no torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()
