"""What lets a process whose GPU has failed go on to say so and to write what it has."""

from __future__ import annotations

import torch


def outlive_frees() -> None:
    """Have torch only warn where freeing pinned memory finds the GPU failed.

    Otherwise it ends the process there, by SIGABRT: it notes on the GPU until when the memory was
    in use, and can't raise from a destructor. Releases that don't know the setting stay so.
    """
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    try:
        if change is not None:
            change("pinned_free_catch_all:True")
    except (RuntimeError, ValueError):
        return  # how a release says that it doesn't know the setting
