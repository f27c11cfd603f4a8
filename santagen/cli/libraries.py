"""What the libraries may say of themselves on stderr: nothing that our own messages say better.

torch's C++ side prints its stack where a process of a run is lost, and the hub's client a line per
attempt. What the user has set is left alone, and so is everything where SANTAGEN_DEBUG is set.
Must come before the libraries are imported; the processes that a run starts inherit it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from santagen.cli.console import debugging

QUIET = {
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


def quiet_libraries(environment: MutableMapping[str, str]) -> None:
    """Set the variables that the libraries read."""
    if not debugging(environment):
        for name, value in QUIET.items():
            environment.setdefault(name, value)
