"""On the CPU a row's bits depend on no other row, on no place and on no number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from santagen.environment import MKL_MODE, SPIN, prepare_environment
from santagen.kernels.activations import activation
from santagen.kernels.cpu_linear import PADDED_ROWS, cpu_linear, row_multiple

SHAPES = [(96, 288), (256, 384), (256, 1024), (1024, 256), (1536, 384), (2048, 40)]


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("width", "outputs"), SHAPES)
def test_a_row_of_a_product_has_the_same_bits_in_any_company(width: int, outputs: int) -> None:
    x, weight, bias = draw(200, width), draw(outputs, width), draw(outputs)
    torch.set_num_threads(2)
    whole = cpu_linear(x, weight, bias)
    torch.testing.assert_close(whole, F.linear(x, weight, bias), atol=1e-3, rtol=1e-4)
    for threads in (2, 1) if row_multiple() == 1 else (2,):
        torch.set_num_threads(threads)
        for rows in (*range(1, 34), 48, 64, 100, 164):
            part = cpu_linear(x[7 : 7 + rows], weight, bias)
            assert torch.equal(part, whole[7 : 7 + rows]), (threads, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("width", "outputs"), [(64, 288), (256, 1024), (2048, 256)])
def test_half_formats_too(width: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = draw(40, width).to(dtype), draw(outputs, width).to(dtype)
    torch.set_num_threads(2)
    whole = cpu_linear(x, weight, None)
    for rows in (1, 2, 3, 7, 16):
        assert torch.equal(cpu_linear(x[:rows], weight, None), whole[:rows]), rows


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu", "relu"])
@pytest.mark.parametrize("width", [41, 64, 72, 1000])
def test_an_activation_has_the_same_bits_at_any_place(name: str, width: int) -> None:
    act = activation(name)
    assert act is not None
    row = draw(1, width)
    wanted = act(row.clone())
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (2, 33, 100, 257):
            found = act(row.expand(rows, width).contiguous())
            assert torch.equal(found, wanted.expand(rows, width)), (threads, rows)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MKL_MODE, "AVX2")
    monkeypatch.setenv(SPIN, "7")
    prepare_environment()
    assert os.environ[SPIN] == "7" and row_multiple() == PADDED_ROWS
    monkeypatch.setenv(MKL_MODE, "AVX2,STRICT")
    assert row_multiple() == 1
    monkeypatch.delenv(SPIN)
    prepare_environment()
    assert int(os.environ[SPIN]) < 300_000
