"""The product whose bits do not depend on the number of rows, against its twin and itself."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels.invariant_linear import invariant_linear, invariant_linear_reference

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter cuts bfloat16 off where the GPU rounds
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def draw(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return numbers.to(device=DEVICE, dtype=DTYPE)


@pytest.mark.parametrize(("gelu", "bias"), [(True, True), (False, False)])
@pytest.mark.parametrize("out_dtype", [DTYPE, torch.float32], ids=str)
def test_it_equals_its_twin(gelu: bool, bias: bool, out_dtype: torch.dtype) -> None:
    x, weight = draw(70, 200, seed=1), draw(90, 200, seed=2, scale=200**-0.5)
    arguments = (x, weight, draw(90, seed=3) if bias else None, gelu, out_dtype)
    y, wanted = invariant_linear(*arguments), invariant_linear_reference(*arguments)
    assert y.dtype == out_dtype
    torch.testing.assert_close(y, wanted, atol=1e-2, rtol=1e-2)
    assert invariant_linear(x[:0], *arguments[1:]).shape == (0, 90)


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    x, weight = draw(600, 256, seed=1), draw(48, 256, seed=2, scale=1 / 16)
    whole = invariant_linear(x, weight, None, False, torch.float32)
    for first, last in ((0, 1), (17, 18), (5, 69), (130, 330), (64, 65)):
        part = invariant_linear(x[first:last], weight, None, False, torch.float32)
        assert torch.equal(part, whole[first:last])
