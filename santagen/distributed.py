"""The process group a model is sharded over: who this rank is, and the sums and gathers between
ranks.

Does not start processes and does not decide what is sharded; with one rank every call is free. All
ranks of the group make the same calls in the same order, and get the same bits back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


class FastSum(Protocol):
    """A sum over the ranks for some tensors, and its LayerNorm (kernels.layer_norm) for some; every
    rank is asked for the same ones."""

    def takes(self, x: Tensor) -> bool: ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def takes_norm(self, x: Tensor) -> bool: ...

    def layer_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        place: Tensor | None,
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class TensorParallel:
    """Rank `rank` of `world_size`; `group` is a torch.distributed process group, None the default
    one; `fast_sum` a faster way for the sums that it takes (parallel.symmetric)."""

    rank: int = 0
    world_size: int = 1
    group: Any = None
    fast_sum: FastSum | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the ranks; x is lost."""
        if self.world_size == 1:
            return x
        if self.fast_sum is not None and self.fast_sum.takes(x):
            return self.fast_sum(x)
        torch.distributed.all_reduce(x, group=self.group)
        return x

    def ordered_sum(self, x: Tensor) -> Tensor:
        """As `all_reduce`, with bits of a row that no other row changes: in float32, in the ranks'
        order. Libraries add up more than two ranks in an order that follows the tensor's size."""
        if self.world_size <= 2:
            return self.all_reduce(x)
        first, *others = self._gather(x)
        total = first.float()
        for part in others:
            total += part
        return total.to(x.dtype)

    def gather_last(self, x: Tensor) -> Tensor:
        """Concatenate the ranks' [rows, n] to [rows, n * world_size]."""
        if self.world_size == 1:
            return x
        return self._gather(x).transpose(0, 1).reshape(x.shape[0], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """The ranks' [rows, n]: [world_size, rows, n]."""
        rows, width = x.shape
        parts = x.new_empty(self.world_size * rows, width)
        if hasattr(torch.distributed, "all_gather_single"):  # its name from torch 2.13 on
            torch.distributed.all_gather_single(parts, x.contiguous(), group=self.group)
        else:
            torch.distributed.all_gather_into_tensor(parts, x.contiguous(), group=self.group)
        return parts.view(self.world_size, rows, width)

    def exchange_rows(self, x: Tensor) -> Tensor:
        """From each rank's columns of all rows, [rows, n], to all columns of this rank's rows,
        [rows / world_size rounded up, n * world_size]; rows past the end are zero."""
        rows, width = x.shape
        start, stop = self.share(rows)
        size = stop - start
        sent = torch.nn.functional.pad(x, (0, 0, 0, size * self.world_size - rows)).contiguous()
        parts = torch.empty_like(sent)
        torch.distributed.all_to_all_single(parts, sent, group=self.group)
        return parts.view(self.world_size, size, width).transpose(0, 1).reshape(size, -1)

    def gather_rows(self, x: Tensor, size: int, rows: int) -> Tensor:
        """The first `rows` rows of the ranks' shares of `size` rows, the last of which may have
        fewer: [rows, ...]."""
        missing = size - x.shape[0]
        sent = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
        width = sent[0].numel()
        return self.gather_last(sent.reshape(1, size * width)).view(-1, *x.shape[1:])[:rows]

    def share(self, total: int) -> tuple[int, int]:
        """This rank's range of `total` rows in equal shares, the last ones possibly past the
        end."""
        size = -(-total // self.world_size)
        return self.rank * size, (self.rank + 1) * size

    def smallest(self, value: int) -> int:
        """The smallest of the ranks' numbers."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value])
        minimum = torch.distributed.ReduceOp.MIN
        torch.distributed.all_reduce(shared, minimum, group=self.group)
        return int(shared)

    def same_items(self, items: Iterable[Item], batch: int) -> Iterator[Item]:
        """Rank 0's items on every rank: the others' `items` are not looked at.

        They are sent when the first rank asks for the next one, up to `batch` together.
        """
        if self.world_size == 1:
            yield from items
            return
        source = iter(items)
        while True:
            part = [list(islice(source, batch)) if self.rank == 0 else None]
            torch.distributed.broadcast_object_list(
                part, src=0, group=self.group, device=torch.device("cpu")
            )
            if not part[0]:
                return
            yield from part[0]
