"""Which sums go through memory shared between GPUs, and that all else is the library's."""

from __future__ import annotations

import torch
from torch import Tensor

from santagen.distributed import TensorParallel
from santagen.parallel.symmetric import BUFFER_BYTES, SymmetricSum


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
    sums = SymmetricSum.__new__(SymmetricSum)
    meta = torch.device("meta")
    assert not sums.takes(torch.ones(4, 8))  # on the CPU
    large = torch.empty(BUFFER_BYTES // 2 + 8, dtype=torch.bfloat16, device=meta)
    for x in (large, torch.empty(3, device=meta), torch.empty(0, device=meta)):
        assert not sums.takes(x)
