"""The fused LayerNorm and the fused embedding against their torch twins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from santagen.kernels.embedding import embed, embed_reference
from santagen.kernels.layer_norm import add_layer_norm, add_layer_norm_reference

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# the interpreter cuts bfloat16 off where the GPU rounds
DTYPES = [t for t in TOLERANCE if DEVICE == "cuda" or t != torch.bfloat16]


def draw(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device=DEVICE, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "residual", "bias"),
    [(5, 48, True, True), (1, 2048, True, False), (3, 1030, False, True), (2, 8192, False, False)],
)
def test_add_layer_norm(
    dtype: torch.dtype, rows: int, width: int, residual: bool, bias: bool
) -> None:
    x = draw(rows, width + 16, dtype=dtype, seed=1)[:, :width] * 3 + 5  # a mean far from zero
    other = draw(rows, width, dtype=dtype, seed=2) if residual else None
    branch = draw(width, dtype=dtype, seed=3) if bias else None
    weight, shift = draw(width, dtype=dtype, seed=4), draw(width, dtype=dtype, seed=5)
    arguments = (x, other, branch, weight, shift, 1e-5)
    normed, total = add_layer_norm(*arguments)
    wanted, wanted_total = add_layer_norm_reference(*arguments)
    assert torch.equal(total, wanted_total)
    torch.testing.assert_close(normed, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert (total is x) == (not residual and not bias)
    assert add_layer_norm(x[:0], None, None, weight, shift, 1e-5)[0].shape == (0, width)


def test_the_twin_is_layer_norm() -> None:
    x, other = draw(4, 32, dtype=torch.float32, seed=1), draw(4, 32, dtype=torch.float32, seed=2)
    weight, shift = draw(32, dtype=torch.float32, seed=3), draw(32, dtype=torch.float32, seed=4)
    normed, total = add_layer_norm_reference(x, other, shift, weight, shift, 1e-5)
    assert torch.equal(total, x + shift + other)
    assert torch.equal(normed, F.layer_norm(total, (32,), weight, shift, 1e-5))


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_normed_elements_go_to_their_places(rows: int) -> None:
    shapes = ((rows, 48), (48,), (48,))
    x, weight, bias = (draw(*shape, dtype=torch.float32, seed=7) for shape in shapes)
    place = torch.randperm(48, generator=torch.Generator().manual_seed(1)).int().to(DEVICE)
    plain, _ = add_layer_norm(x, x, None, weight, bias, 1e-5)
    for form in (add_layer_norm, add_layer_norm_reference):
        normed, total = form(x, x, None, weight, bias, 1e-5, place)
        torch.testing.assert_close(normed[:, place.long()], plain, atol=1e-5, rtol=1e-5)
        assert torch.equal(total, x + x) and not torch.equal(normed, plain)


def test_embed() -> None:
    wte = draw(50, 1500, dtype=torch.float32, seed=1)
    wpe = draw(20, 1500, dtype=torch.float32, seed=2)
    ids = torch.tensor([0, 49, 7], device=DEVICE)
    positions = torch.tensor([19, 0, 3], device=DEVICE, dtype=torch.int32)
    out = embed(ids, positions, wte, wpe)
    assert torch.equal(out, embed_reference(ids, positions, wte, wpe))
    assert embed(ids[:0], positions[:0], wte, wpe).shape == (0, 1500)
