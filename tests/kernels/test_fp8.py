"""Rows in float8 against their torch twins."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels.fp8 import (
    norm_quantize_rows,
    norm_quantize_rows_reference,
    quantize_rows,
    quantize_rows_reference,
)

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter cuts bfloat16 off where the GPU rounds
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def draw(*shape: int, seed: int) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device=DEVICE, dtype=DTYPE)


def assert_same(q: torch.Tensor, scale: torch.Tensor, other: tuple[torch.Tensor, ...]) -> None:
    wanted, wanted_scale = other[0].float() * other[1], other[1]
    torch.testing.assert_close(scale, wanted_scale, atol=0, rtol=2e-3)
    found = q.float() * scale
    if DEVICE == "cpu":
        # the interpreter loses the carry of a mantissa that rounds up to the next power of two
        carried = other[0].float().abs().log2().frac() == 0
        assert (~carried).float().mean() > 0.7
        found = torch.where(carried, wanted, found)
    # at most one step of float8 (an eighth) apart, where a value lies between two
    torch.testing.assert_close(found, wanted, atol=float(scale.max()) / 256, rtol=0.13)
    assert ((found - wanted).abs() > 1e-3 * wanted.abs()).float().mean() < 0.05


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("width", [64, 1000])
def test_quantize_rows(gelu: bool, width: int) -> None:
    x = draw(5, width + 8, seed=width)[:, :width]
    x[2] = 0
    x[3] *= 100
    q, scale = quantize_rows(x, gelu)
    assert_same(q, scale, quantize_rows_reference(x, gelu))
    assert not q[2].float().any() and q.float().abs().amax(dim=1)[3] == 448


@pytest.mark.parametrize("residual", [False, True])
def test_norm_quantize_rows(residual: bool) -> None:
    x, other = draw(4, 640, seed=1), draw(4, 640, seed=2) if residual else None
    arguments = (x, other, draw(640, seed=3), draw(640, seed=4), 1e-5)
    q, scale, total = norm_quantize_rows(*arguments)
    wanted = norm_quantize_rows_reference(*arguments)
    assert_same(q, scale, wanted)
    assert torch.equal(total, wanted[2]) and (total is x) == (not residual)
