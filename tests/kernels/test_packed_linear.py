"""oneDNN's products on the CPU: right, and a row's bits depend on no other row and no thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from santagen.kernels.activations import activation
from santagen.kernels.packed_linear import add_rows, pack_weight, packed_linear, rounded_rows

NEEDED = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here"
)
SHAPES = [(96, 288), (256, 384), (256, 1024), (1024, 256), (1536, 384), (50, 33), (64, 4099)]


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@NEEDED
@pytest.mark.parametrize("act", [None, "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_it_is_the_product_and_the_activation(act: str | None) -> None:
    x, weight, bias = draw(37, 96), draw(288, 96, seed=2), draw(288, seed=3)
    wanted = F.linear(x.double(), weight.double(), bias.double())
    function = activation(act)
    wanted = wanted if function is None else function(wanted)
    found = packed_linear(x, pack_weight(weight), bias, act)
    torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=1e-5)
    plain = packed_linear(x, pack_weight(weight), None, None)
    torch.testing.assert_close(plain, F.linear(x, weight), atol=2e-5, rtol=1e-5)


@NEEDED
@pytest.mark.parametrize(("width", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_any_company(width: int, outputs: int) -> None:
    x, bias = draw(200, width), draw(outputs)
    weight = pack_weight(draw(outputs, width, seed=2))
    assert weight.is_mkldnn
    torch.set_num_threads(2)
    whole = packed_linear(x, weight, bias, "gelu_new")
    for threads in (2, 1, 3):
        torch.set_num_threads(threads)
        for rows in (*range(1, 34), 48, 64, 100, 164):
            part = packed_linear(x[7 : 7 + rows], weight, bias, "gelu_new")
            assert torch.equal(part, whole[7 : 7 + rows]), (threads, rows)


@NEEDED
def test_no_rows_are_no_rows() -> None:
    assert packed_linear(draw(0, 96), pack_weight(draw(288, 96)), None, "relu").shape == (0, 288)


def test_what_cannot_be_packed_stays_as_it_is() -> None:
    for weight in (draw(288, 96).bfloat16(), draw(20, 96)):  # narrow: threads would share its sums
        assert pack_weight(weight) is weight


def test_a_shrinking_batch_meets_few_numbers_of_rows() -> None:
    numbers = {rounded_rows(rows) for rows in range(1, 257)}
    assert len(numbers) < 50 and min(numbers) == 2
    assert all(rows <= rounded_rows(rows) <= 4 * rows / 3 for rows in range(2, 3000))
    x = draw(5, 3)
    assert add_rows(x, 5) is x
    assert torch.equal(add_rows(x, 8), torch.cat([x, torch.zeros(3, 3)]))
