"""Which sums go through memory shared between GPUs, and that all else is the library's."""

from __future__ import annotations

import torch
from torch import Tensor

from santagen.distributed import TensorParallel
from santagen.parallel.symmetric import BUFFER_BYTES, SymmetricSum, fits


class Doubled:
    """Takes one row, and says that it did."""

    def takes(self, x: Tensor) -> bool:
        return x.shape[0] == 1

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x


def test_what_the_fast_sum_takes_is_its_own() -> None:
    parallel = TensorParallel(0, 2, fast_sum=Doubled())
    assert torch.equal(parallel.all_reduce(torch.ones(1, 8)), torch.full((1, 8), 2.0))
    assert torch.equal(TensorParallel().all_reduce(torch.ones(1, 8)), torch.ones(1, 8))


def test_only_small_aligned_sums_on_a_gpu_are_taken() -> None:
    def like(count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(count, dtype=dtype, device="meta")

    most = BUFFER_BYTES // 2
    assert all(fits(x) for x in (like(8), like(most), like(4, torch.float32)))
    assert not any(fits(x) for x in (like(0), like(most + 8), like(3), like(8, torch.float16)))
    assert not SymmetricSum.__new__(SymmetricSum).takes(torch.ones(8))  # on the CPU
