"""Sums between the GPUs of one host through memory that each of them maps of the others.

    every rank:   x -> its own shared buffer | wait for all | read all buffers, add them up

A sum of a decode step is small, and NCCL's takes longer to begin than to run: 22 us against 7 for
the 12 KiB of one row of a 15B model on two H200, 96 against 49 for the 12 MiB of 1,024. Larger
ones, other types, other hosts are NCCL's. Uses torch's symmetric memory, without NVLink multicast.
"""

from __future__ import annotations

import os
from itertools import permutations

import torch
import torch.distributed as dist
from torch import Tensor

BUFFER_BYTES = 32 << 20
ONE_SHOT_BYTES = 1 << 20  # read from the other ranks, up to which every rank adds up all of it
ALIGNMENT = 16  # bytes
TYPES = (torch.bfloat16, torch.float32)


class SymmetricSum:
    """The sums of the default process group, all of whose ranks make it together."""

    def __init__(self, device: torch.device) -> None:
        from torch.distributed import _symmetric_memory as memory

        assert dist.group.WORLD is not None
        self._group, self._others = dist.group.WORLD.group_name, dist.get_world_size() - 1
        count = BUFFER_BYTES // torch.bfloat16.itemsize
        self._buffer = memory.empty((count,), dtype=torch.bfloat16, device=device)
        memory.rendezvous(self._buffer, self._group)

    def takes(self, x: Tensor) -> bool:
        return x.device.type == "cuda" and fits(x)

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x, in a tensor of its own; every rank calls this alike."""
        shared = self._buffer.view(x.dtype)[: x.numel()].view(x.shape)
        shared.copy_(x)
        if x.nbytes * self._others <= ONE_SHOT_BYTES:
            return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", self._group)
        return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group).clone()


def fits(x: Tensor) -> bool:
    """Whether shared memory can sum a tensor like x."""
    return 0 < x.nbytes <= BUFFER_BYTES and x.nbytes % ALIGNMENT == 0 and x.dtype in TYPES


def symmetric_sum(device: torch.device, same_host: bool) -> SymmetricSum | None:
    """Sums through shared memory where every rank of the default group finds that they are right,
    else None. Every rank calls this, also where it can't be."""
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # a fault in it takes GPUs along
    found = None
    if same_host and device.type == "cuda" and _peers_reach_each_other():
        try:
            found = SymmetricSum(device)
            # Every rank makes every sum, also after a wrong one: the others wait for it.
            found_right = [_is_right(found, device, count) for count in (8, 1 << 20, 1 << 22)]
            right = all(found_right)
        except (RuntimeError, ImportError, AttributeError):
            right = False  # this torch or this host has none: NCCL serves
        if not right:
            found = None
    agreed = torch.tensor([found is not None], dtype=torch.int32)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return found if bool(agreed) else None


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
