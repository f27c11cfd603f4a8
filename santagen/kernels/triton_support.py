"""Whether Triton can be used. It isn't imported here: a CPU installation of torch has none."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None
