"""The one-row product with its fused norm against its torch twin."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels.row_linear import (
    MAX_NUMBERS,
    row_linear,
    row_linear_reference,
    takes_row,
)

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter cuts bfloat16 off where the GPU rounds
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def draw(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return numbers.to(device=DEVICE, dtype=DTYPE)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(
    ("outputs", "width", "norm", "residual", "bias"),
    [
        (37, 256, True, True, True),
        (37, 768, True, False, True),
        (130, 2048, True, True, False),
        (61, 768, False, False, True),
        (34, 8192, False, False, False),
    ],
)
def test_row_linear(
    outputs: int, width: int, norm: bool, residual: bool, bias: bool, gelu: bool
) -> None:
    x = draw(1, width, seed=1)
    weight, shift = draw(outputs, width, seed=2, scale=width**-0.5), draw(outputs, seed=3)
    normed = None
    if norm:
        added = draw(1, width, seed=4) if residual else None
        normed = (added, draw(width, seed=5), draw(width, seed=6), 1e-5)
    arguments = (x, weight, shift if bias else None, gelu, normed)
    assert takes_row(x, weight, norm)
    y, total = row_linear(*arguments)
    wanted, wanted_total = row_linear_reference(*arguments)
    torch.testing.assert_close(y, wanted, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(total, wanted_total, atol=0, rtol=0)
    assert (total is x) == (not residual or not norm)


@pytest.mark.parametrize(("outputs", "width"), [(37, 768), (21, 6144)])
def test_a_weight_too_large_to_norm_beside(
    outputs: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from santagen.kernels import row_linear_triton

    monkeypatch.setattr(row_linear_triton, "MAX_NUMBERS", 100)
    x, weight = draw(1, width, seed=1), draw(outputs, width, seed=2, scale=width**-0.5)
    wanted = row_linear_reference(x, weight, None, False)[0]
    torch.testing.assert_close(row_linear(x, weight, None, False)[0], wanted, atol=1e-2, rtol=1e-2)
    large = torch.empty(MAX_NUMBERS // 256 + 1, 256, dtype=DTYPE, device=DEVICE)
    assert takes_row(draw(1, 256, seed=2), large, False)
    assert not takes_row(draw(1, 256, seed=2), large, True)


def test_what_it_leaves_to_the_matrix_library() -> None:
    weight = draw(8, 256, seed=1)
    assert not takes_row(draw(2, 256, seed=2), weight, False)
    assert not takes_row(draw(1, 256, seed=2).float(), weight.float(), False)
    assert not takes_row(draw(1, 96, seed=2), draw(8, 96, seed=3), False)
    assert not takes_row(draw(1, 16384, seed=2), draw(8, 16384, seed=3), True)
