"""Kernel tests run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import torch

# Read when triton is first imported, so before any test module is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
