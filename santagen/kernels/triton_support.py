"""Whether Triton can be used, and how. Imports none of it: a CPU installation of torch has none."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from torch import Tensor


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Kernels run in Triton's interpreter, in numpy: tests on machines without a GPU do that."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def runs_triton(x: Tensor) -> bool:
    """Kernels are launched for tensors like x: on CUDA with Triton, or in the interpreter."""
    return has_triton() and (x.device.type == "cuda" or interpreted())
