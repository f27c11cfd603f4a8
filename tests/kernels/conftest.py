"""Kernel tests run in Triton's interpreter where there is no GPU; no other test does."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRET = "TRITON_INTERPRET"

# Triton reads it when a kernel is defined, so it must be set before any test module is imported.
if not torch.cuda.is_available():
    os.environ.setdefault(INTERPRET, "1")


def pytest_collection_finish() -> None:
    if not torch.cuda.is_available():
        os.environ.pop(INTERPRET, None)


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setenv(INTERPRET, "1")
