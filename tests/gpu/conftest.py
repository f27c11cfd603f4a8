"""Everything here needs a CUDA device and skips itself without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.random_model import SANTACODER, write_random_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of SantaCoder's width, weights large enough that tokens differ."""
    shape = {**SANTACODER, "n_layer": 2, "vocab_size": 1000}
    return write_random_model(tmp_path_factory.mktemp("random") / "model", shape, std=0.05)
