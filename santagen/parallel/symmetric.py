"""Sums between the GPUs of one host through memory that each of them maps of the others.

    every rank:   x -> the others' memory | wait for theirs | add all up

A sum of a decode step is small, and NCCL's takes longer to begin than to run. Where a LayerNorm
follows, the sum is part of its kernel (kernels.sum_layer_norm); others are torch's operations on
its symmetric memory, without NVLink multicast. Larger ones, other types, other hosts are NCCL's.
"""

from __future__ import annotations

import os
from itertools import permutations

import torch
import torch.distributed as dist
from torch import Tensor

from santagen.kernels.layer_norm import MAX_WIDTH
from santagen.kernels.sum_layer_norm import (
    FEW_ROWS,
    PAIRS,
    Shared,
    sum_layer_norm,
    sum_layer_norm_reference,
)
from santagen.kernels.triton_support import has_triton

BUFFER_BYTES = 32 << 20
NORM_ROWS = 1024  # that a rank writes to others, up to which a LayerNorm does the sum
ONE_SHOT_BYTES = 1 << 20  # read from the other ranks, up to which every rank adds up all of it
ALIGNMENT = 16  # bytes
TYPES = (torch.bfloat16, torch.float32)


class SymmetricSum:
    """The sums of the default process group, all of whose ranks make it together. `shared` is what
    LayerNorms do their sums with, None without Triton."""

    def __init__(self, device: torch.device) -> None:
        assert dist.group.WORLD is not None
        self._group = dist.group.WORLD.group_name
        self._rank, self._others = dist.get_rank(), dist.get_world_size() - 1
        self._buffer = self._allocate((BUFFER_BYTES // 2,), torch.bfloat16, device)[0]
        self.shared = self._share(device) if has_triton() else None

    def _allocate(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """(zeros that the other ranks can write to, int64 [ranks]: the addresses of theirs)."""
        from torch.distributed import _symmetric_memory as memory

        own = memory.empty(shape, dtype=dtype, device=device).zero_()
        torch.cuda.synchronize(device)  # before another rank can write to it
        there = memory.rendezvous(own, self._group).buffer_ptrs
        return own, torch.tensor(there, dtype=torch.int64, device=device)

    def _share(self, device: torch.device) -> Shared:
        ranks, rows = self._others + 1, NORM_ROWS // self._others
        messages = self._allocate((2, FEW_ROWS, ranks, PAIRS), torch.int64, device)
        numbers = self._allocate((2, ranks, rows, MAX_WIDTH), torch.bfloat16, device)
        flags = self._allocate((ranks, rows), torch.int32, device)
        calls = (torch.zeros(n, dtype=torch.int32, device=device) for n in (FEW_ROWS, rows))
        return Shared(self._rank, ranks, *messages, *numbers, *flags, *calls)

    def takes(self, x: Tensor) -> bool:
        return x.device.type == "cuda" and fits(x)

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x, in a tensor of its own; every rank calls this alike."""
        shared = self._buffer.view(x.dtype)[: x.numel()].view(x.shape)
        shared.copy_(x)
        if x.nbytes * self._others <= ONE_SHOT_BYTES:
            return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", self._group)
        return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group).clone()

    def takes_norm(self, x: Tensor) -> bool:
        """Whether `layer_norm` takes an x [T, E]."""
        return x.device.type == "cuda" and self.shared is not None and self.shared.takes(x)

    def layer_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        place: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """kernels.layer_norm.add_layer_norm of the sum of the ranks' x."""
        assert self.shared is not None
        return sum_layer_norm(self.shared, x.contiguous(), residual, weight, bias, eps, place)


def fits(x: Tensor) -> bool:
    """Whether shared memory can sum a tensor like x."""
    return 0 < x.nbytes <= BUFFER_BYTES and x.nbytes % ALIGNMENT == 0 and x.dtype in TYPES


def symmetric_sum(device: torch.device, same_host: bool) -> SymmetricSum | None:
    """Sums through shared memory where every rank of the default group finds that they are right,
    else None. Every rank calls this, also where it can't be."""
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # a fault in it takes GPUs along
    found = None
    direct = os.environ.get("NCCL_P2P_DISABLE", "0") == "0"  # GPUs may write to each other
    if same_host and device.type == "cuda" and direct and _peers_reach_each_other():
        try:
            found = SymmetricSum(device)
            # Every rank makes every sum, also after a wrong one: the others wait for it.
            found_right = [_is_right(found, device, count) for count in (8, 1 << 20, 1 << 22)]
            found_right += [_norms_right(found, device, rows) for rows in (1, FEW_ROWS + 1)]
            right = all(found_right)
        except _missing():
            right = False  # this torch, Triton or host has none: NCCL serves
        if not right:
            found = None
    agreed = torch.tensor([found is not None], dtype=torch.int32)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return found if bool(agreed) else None


def _missing() -> tuple[type[Exception], ...]:
    """What says that shared memory, or its kernels, can't be had here."""
    errors: tuple[type[Exception], ...] = (RuntimeError, ImportError, AttributeError)
    if has_triton():
        from triton.errors import TritonError

        errors += (TritonError,)
    return errors


def _peers_reach_each_other() -> bool:
    devices = range(torch.cuda.device_count())
    return all(torch.cuda.can_device_access_peer(a, b) for a, b in permutations(devices, 2))


def _is_right(sums: SymmetricSum, device: torch.device, count: int) -> bool:
    """Sums of `count` numbers come out right, launched one by one and from a CUDA graph."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((count,), rank + 1.0, dtype=torch.bfloat16, device=device)
    wanted = size * (size + 1) / 2
    right = bool((sums(x) == wanted).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        twice = sums(sums(x))  # of sums that are the same on every rank
    for factor in (1, 2):
        x.fill_(factor * (rank + 1.0))
        graph.replay()
        right &= bool((twice == factor * size * wanted).all())
    return right


def _norms_right(sums: SymmetricSum, device: torch.device, rows: int) -> bool:
    """LayerNorms of sums come out right and with the same bits on every rank, launched one by one
    and from a CUDA graph."""
    rank, size, width = dist.get_rank(), dist.get_world_size(), 2048
    row = torch.arange(rows * width, device=device).view(rows, width).bfloat16() / 1024
    x = row * (rank + 1)
    if not sums.takes_norm(x):
        return True
    weight, bias = row[0], row[-1]
    parts = [row * (one + 1) for one in range(size)]
    wanted = sum_layer_norm_reference(parts, row, weight, bias, 1e-5)
    graph = torch.cuda.CUDAGraph()
    found = [sums.layer_norm(x, row, weight, bias, 1e-5, None)]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found += [sums.layer_norm(x, row, weight, bias, 1e-5, None) for _ in range(3)]
    for _ in range(2):
        graph.replay()
    right = True
    for normed, total in found:
        first = normed.clone()
        dist.broadcast(first, 0)
        right &= torch.equal(normed, first) and torch.equal(total, wanted[1])
        right &= torch.allclose(normed, wanted[0], 0.02, 0.02)
    return right
