"""Which sums go through memory shared between GPUs, and that all else is the library's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from santagen.distributed import TensorParallel
from santagen.kernels.layer_norm import add_layer_norm
from santagen.kernels.sum_layer_norm import Shared
from santagen.model.layers import FastLayerNorm
from santagen.parallel import symmetric
from santagen.parallel.symmetric import BUFFER_BYTES, SymmetricSum, fits


class Doubled:
    """Takes one row, and says that it did."""

    def takes(self, x: Tensor) -> bool:
        return x.shape[0] == 1

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x

    def takes_norm(self, x: Tensor) -> bool:
        return x.shape[0] == 3

    def layer_norm(self, x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        return 3 * x, 4 * x


def test_what_the_fast_sum_takes_is_its_own() -> None:
    parallel = TensorParallel(0, 2, fast_sum=Doubled())
    assert torch.equal(parallel.all_reduce(torch.ones(1, 8)), torch.full((1, 8), 2.0))
    assert torch.equal(TensorParallel().all_reduce(torch.ones(1, 8)), torch.ones(1, 8))


@pytest.mark.parametrize(("rows", "normed_by"), [(1, "sum"), (2, "library"), (3, "norm")])
def test_a_layer_norm_adds_up_the_ranks_parts(
    rows: int, normed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda x, group: x.mul_(5))
    norm = FastLayerNorm.__new__(FastLayerNorm)
    torch.nn.Module.__init__(norm)
    norm.weight, norm.bias = (torch.nn.Parameter(torch.ones(8), False) for _ in range(2))
    norm.eps, norm.parallel = 1e-5, TensorParallel(0, 2, fast_sum=Doubled())
    norm.invariant = False
    x, residual = torch.randn(rows, 8), torch.randn(rows, 8)
    found = norm(x.clone(), residual)
    wanted = {
        "sum": add_layer_norm(2 * x, residual, None, norm.weight, norm.bias, 1e-5),
        "library": add_layer_norm(5 * x, residual, None, norm.weight, norm.bias, 1e-5),
        "norm": (3 * x, 4 * x),
    }[normed_by]
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_only_small_aligned_sums_on_a_gpu_are_taken() -> None:
    def like(count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(count, dtype=dtype, device="meta")

    most = BUFFER_BYTES // 2
    assert all(fits(x) for x in (like(8), like(most), like(4, torch.float32)))
    assert not any(fits(x) for x in (like(0), like(most + 8), like(3), like(8, torch.float16)))
    assert not SymmetricSum.__new__(SymmetricSum).takes(torch.ones(8))  # on the CPU


@pytest.mark.parametrize(
    ("setting", "error", "tried"),
    [
        (None, RuntimeError("no symmetric memory here"), 1),
        (None, ImportError("an old torch"), 1),
        ("1", None, 0),
        ("0", RuntimeError(), 1),
    ],
)
def test_where_memory_can_t_be_shared_the_library_sums(
    setting: str | None, error: Exception | None, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []

    def make(device: torch.device) -> None:
        asked.append(device)
        assert error is not None
        raise error

    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    if setting is not None:
        monkeypatch.setenv("NCCL_P2P_DISABLE", setting)
    monkeypatch.setattr(symmetric, "SymmetricSum", make)
    monkeypatch.setattr(symmetric, "_peers_reach_each_other", lambda: True)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda x, op: None)
    assert symmetric.symmetric_sum(torch.device("cuda"), same_host=True) is None
    assert len(asked) == tried


def test_which_rows_a_shared_layer_norm_takes() -> None:
    def like(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(rows, width, dtype=dtype, device="meta")

    whole = torch.empty(0, dtype=torch.int32, device="meta")
    flags = torch.empty(2, 100, dtype=torch.int32, device="meta")
    shared = Shared(0, 2, whole, whole, whole, whole, flags, whole, whole, whole)
    assert all(map(shared.takes, (like(1, 2), like(100, 512), like(6, 8192, torch.float16))))
    refused = (like(0, 2), like(101, 512), like(1, 8194), like(1, 3), like(1, 2, torch.float32))
    assert not any(map(shared.takes, refused))
