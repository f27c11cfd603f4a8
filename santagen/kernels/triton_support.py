"""Whether Triton can be used, and how. Imports none of it: a CPU installation of torch has none."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# Kernels are timed, and compared with their twins, with products and sums fused, as Triton used to
# compile them; from 3.10 on it does so only when told, and 3.9 warns of that in every run.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Kernels run in Triton's interpreter, in numpy: tests on machines without a GPU do that."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def runs_triton(x: Tensor) -> bool:
    """Kernels are launched for tensors like x: on CUDA with Triton, or in the interpreter."""
    return has_triton() and (x.device.type == "cuda" or interpreted())


@cache
def has_hopper(device: torch.device) -> bool:
    """A CUDA device of compute capability 9 or more."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def early_launch(device: torch.device) -> dict[str, Any]:
    """Arguments of a kernel that may be launched before the one it follows has ended.

    Such a kernel calls gdc_wait before it reads or writes anything that another kernel does, and
    gdc_launch_dependents where the next one's programs may take up room. Few rows gain: what a
    launch costs is hidden. It needs compute capability 9.
    """
    return {"EARLY": True, "launch_pdl": True} if has_hopper(device) else {"EARLY": False}
