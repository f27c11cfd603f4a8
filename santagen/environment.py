"""Settings of torch's CPU libraries that can only be made before torch is imported.

    MKL_CBWR         strict reproducibility: a product's bits depend on no number of rows or threads
    GOMP_SPINCOUNT   how long an idle thread spins before it sleeps

The package makes them when it is imported, and leaves alone what the user has set. No torch here.
"""

from __future__ import annotations

import os
from pathlib import Path

MKL_MODE = "MKL_CBWR"
STRICT = "STRICT"
SPIN = "GOMP_SPINCOUNT"
# Longer than the gaps between two operations, and far shorter than a time slice: with the library's
# own 300,000 a thread whose fellow waits for a processor burns its own. Two threads beside other
# work took up to 10 times as long, on an idle machine the same.
SPINS = "10000"


def prepare_environment() -> None:
    """Set what is not set; MKL not on other makers' processors, where strict means slow."""
    os.environ.setdefault(SPIN, SPINS)
    if MKL_MODE not in os.environ and _is_intel():
        os.environ[MKL_MODE] = f"AUTO,{STRICT}"


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return False
