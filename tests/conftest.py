"""What every test gets: no network (child processes neither), few threads, the optional fixtures.

`shared/` is a folder that may lie beside the repository; tests that need it skip without it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.offline import sitecustomize  # noqa: F401  (importing it blocks the network)

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# Before torch is imported. More threads wait for each other on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "tests" / "offline"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
import torch  # noqa: E402

INTERPRET = "TRITON_INTERPRET"
# Triton reads it when a kernel is defined, so before any test module is imported; the tests in
# tests/kernels set it again for themselves (see their conftest), no other test does.
if not torch.cuda.is_available():
    os.environ.setdefault(INTERPRET, "1")


def pytest_collection_finish() -> None:
    if not torch.cuda.is_available():
        os.environ.pop(INTERPRET, None)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith("SANTAGEN_") or name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The optional folder of large fixtures; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared/ folder beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The small trained model that ships inside the package."""
    import santagen

    return Path(santagen.__file__).parent / "assets"
