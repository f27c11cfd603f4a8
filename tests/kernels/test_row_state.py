"""The row-state kernels against their twins, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels.row_state import (
    advance_rows,
    advance_rows_reference,
    decode_inputs,
    decode_inputs_reference,
)
from santagen.kernels.triton_support import has_triton, interpreted

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytestmark = pytest.mark.skipif(
    not has_triton() or not (torch.cuda.is_available() or interpreted()), reason="needs Triton"
)


def table(rows: int) -> torch.Tensor:
    """[rows + 5, 16 + 8] with distinct blocks; the rows past `rows` are poison."""
    generator = torch.Generator().manual_seed(rows)
    data = torch.randint(0, 1 << 20, (rows + 5, 24), generator=generator, dtype=torch.int32)
    data[:, 0] = torch.randint(0, 90, (rows + 5,), generator=generator)
    data[:, 1] = torch.randint(0, 8 * 64 - 1, (rows + 5,), generator=generator)
    data[:, 2:4] = torch.randint(0, 2, (rows + 5, 2), generator=generator)
    return data.to(DEVICE)


@pytest.mark.parametrize("rows", [1, 31, 32, 77])
def test_decode_inputs(rows: int) -> None:
    data = table(rows)[:rows]
    for ours, wanted in zip(
        decode_inputs(data, 64, 16), decode_inputs_reference(data, 64, 16), strict=True
    ):
        assert ours.dtype == wanted.dtype and torch.equal(ours, wanted)


@pytest.mark.parametrize("rows", [1, 31, 32, 77])
def test_advance_rows(rows: int) -> None:
    ours, wanted = table(rows), table(rows)
    generator = torch.Generator().manual_seed(1)
    token = torch.randint(-1, 90, (rows,), generator=generator).to(DEVICE)
    ends = (torch.rand(90, generator=generator) < 0.3).to(DEVICE)
    advance_rows(ours[:rows], token, ends, 3)
    advance_rows_reference(wanted[:rows], token, ends, 3)
    assert torch.equal(ours, wanted)
    assert not torch.equal(ours, table(rows))
