"""The process group a model is sharded over: who this rank is, and the sums and gathers between
ranks.

Does not start processes and does not decide what is sharded; with one rank every call is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorParallel:
    """Rank `rank` of `world_size`; `group` is a torch.distributed process group (None with one
    rank)."""

    rank: int = 0
    world_size: int = 1
    group: Any = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.world_size > 1:
            torch.distributed.all_reduce(x, group=self.group)
        return x

    def gather_last(self, x: Tensor) -> Tensor:
        """Concatenate the ranks' [..., n] to [..., n * world_size]."""
        if self.world_size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)

    def share(self, total: int) -> tuple[int, int]:
        """This rank's range of `total` rows in equal shares, the last ones possibly past the
        end."""
        size = -(-total // self.world_size)
        return self.rank * size, (self.rank + 1) * size
