"""Asks MKL, torch's CPU matrix library, for bits that depend on no number of rows or threads.

It must be asked before its first product, hence when the package is imported; imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

MKL_MODE = "MKL_CBWR"
STRICT = "STRICT"


def make_strict() -> None:
    """Turn strict reproducibility on, unless the user has chosen a mode.

    Left alone on other makers' processors, for which MKL knows one slow mode only.
    """
    if MKL_MODE not in os.environ and _is_intel():
        os.environ[MKL_MODE] = f"AUTO,{STRICT}"


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return False
