"""Kernel tests run in Triton's interpreter where there is no GPU; no other test does."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import INTERPRET


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setenv(INTERPRET, "1")
