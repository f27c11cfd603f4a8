"""How Triton is set up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, warnings
warnings.simplefilter("error")
import santagen.kernels.triton_support
from triton import knobs
print(os.environ["TRITON_DEFAULT_FP_FUSION"], knobs.language.fp_fusion_enabled(None))
"""


@pytest.mark.parametrize(("given", "wanted"), [(None, "1 True"), ("0", "0 False")])
def test_products_and_sums_are_fused_unless_the_user_says_otherwise(
    given: str | None, wanted: str
) -> None:
    knobs = pytest.importorskip("triton.knobs")
    if not hasattr(knobs.language, "fp_fusion_enabled"):
        pytest.skip("this Triton always fuses")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_DEFAULT_FP_FUSION"}
    if given is not None:
        environment["TRITON_DEFAULT_FP_FUSION"] = given
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, encoding="utf-8",
        check=True,
    )  # fmt: skip
    assert found.stdout.split() == wanted.split() and not found.stderr
