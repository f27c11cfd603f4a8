"""The CPU's block-wise attention against torch's own, and the promise that a row's bits don't
depend on company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from santagen.model.attention.base import CacheShape, Seqlen
from santagen.model.attention.cpu import CpuAttention
from santagen.model.attention.sdpa import SdpaAttention

SHAPES = [(4, 1, 64), (2, 1, 32), (3, 1, 16), (4, 4, 16), (16, 1, 128), (6, 2, 8)]


class Case:
    """Random contexts of several sequences, laid out in scattered blocks of one cache."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, lengths: list[int], block_size: int = 16
    ) -> None:
        generator = torch.Generator().manual_seed(heads * 1000 + dim + len(lengths))
        self.shape = CacheShape(
            1, 2 + sum(-(-n // block_size) for n in lengths), block_size, kv_heads, dim
        )
        self.scale = dim**-0.5
        self.lengths, self.block_size = lengths, block_size
        numbers = (torch.randperm(self.shape.num_blocks - 1, generator=generator) + 1).tolist()
        width = max(-(-n // block_size) for n in lengths)
        self.tables = torch.zeros(len(lengths), width, dtype=torch.int32)
        for row, n in enumerate(lengths):
            for column in range(-(-n // block_size)):
                self.tables[row, column] = numbers.pop()
        draw = lambda n, h: torch.randn(n, h, dim, generator=generator)  # noqa: E731
        self.query = [draw(n, heads) for n in lengths]
        self.key = [draw(n, kv_heads) for n in lengths]
        self.value = [draw(n, kv_heads) for n in lengths]

    def slots(self, row: int, start: int, stop: int) -> Tensor:
        position = torch.arange(start, stop)
        return (
            self.tables[row].long()[position // self.block_size] * self.block_size
            + position % self.block_size
        )

    def filled(self, backend: CpuAttention | SdpaAttention) -> tuple[Tensor, Tensor]:
        cache = backend.allocate(self.shape, torch.float32, torch.device("cpu"))
        layer = (cache[0][0], cache[1][0])
        for row, n in enumerate(self.lengths):
            backend.write(layer, self.key[row], self.value[row], self.slots(row, 0, n))
        return layer

    def prefill(
        self, backend: CpuAttention | SdpaAttention, rows: list[int], cached: list[int]
    ) -> list[Tensor]:
        """The attention of tokens cached[i]: of sequence rows[i], all in one packed call."""
        new = torch.tensor(
            [self.lengths[r] - c for r, c in zip(rows, cached, strict=True)], dtype=torch.int32
        )
        cu = torch.cat([torch.zeros(1, dtype=torch.int32), new.cumsum(0).int()])
        seqlen = Seqlen(new, torch.tensor(cached, dtype=torch.int32), cu, cu)
        longest = max(self.lengths[r] for r in rows)
        plan = backend.plan(seqlen, self.tables[rows], longest, decode=False)
        query = torch.cat([self.query[r][c:] for r, c in zip(rows, cached, strict=True)])
        key = torch.cat([self.key[r][c:] for r, c in zip(rows, cached, strict=True)])
        value = torch.cat([self.value[r][c:] for r, c in zip(rows, cached, strict=True)])
        out = backend.prefill(query, key, value, self.filled(backend), plan, self.scale)
        return list(out.split(new.tolist()))

    def decode(self, backend: CpuAttention | SdpaAttention, rows: list[int]) -> Tensor:
        """The attention of the last token of each of `rows`."""
        length = torch.tensor([self.lengths[r] for r in rows], dtype=torch.int32)
        seqlen = Seqlen(torch.ones_like(length), length - 1)
        plan = backend.plan(seqlen, self.tables[rows], int(length.max()), decode=True)
        query = torch.stack([self.query[r][-1] for r in rows])
        key = torch.stack([self.key[r][-1] for r in rows])
        value = torch.stack([self.value[r][-1] for r in rows])
        slots = torch.cat([self.slots(r, self.lengths[r] - 1, self.lengths[r]) for r in rows])
        cache = self.filled(backend)
        return backend.decode(query, key, value, cache, slots, plan, self.scale)


LENGTHS = [1, 37, 16, 70, 17, 130, 5]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_cpu_equals_sdpa(heads: int, kv_heads: int, dim: int) -> None:
    case = Case(heads, kv_heads, dim, LENGTHS)
    cpu, sdpa = CpuAttention(16), SdpaAttention(16)
    rows, cached = list(range(len(LENGTHS))), [0, 16, 15, 33, 16, 0, 4]
    for ours, theirs in zip(
        case.prefill(cpu, rows, cached), case.prefill(sdpa, rows, cached), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(
        case.decode(cpu, rows), case.decode(sdpa, rows), atol=2e-6, rtol=2e-5
    )


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("block_size", [16, 64])
def test_bits_do_not_depend_on_company(
    heads: int, kv_heads: int, dim: int, block_size: int
) -> None:
    case = Case(heads, kv_heads, dim, LENGTHS, block_size)
    cpu = CpuAttention(block_size)
    rows = list(range(len(LENGTHS)))
    together = case.prefill(cpu, rows, [0] * len(rows))
    batch = case.decode(cpu, rows)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(case.prefill(cpu, [row], [0])[0], together[row])
        assert torch.equal(case.decode(cpu, [row])[0], batch[row])
        # decode = prefill = prefill over any cached prefix
        assert torch.equal(batch[row], together[row][-1])
        for cached in {length - 1, length // 2, max(0, length - 5)}:
            assert torch.equal(case.prefill(cpu, [row], [cached])[0], together[row][cached:])


def test_shared_blocks_are_read_for_every_owner() -> None:
    case = Case(4, 1, 16, [40, 40, 40])
    case.tables[1:] = case.tables[0]
    case.key[1], case.key[2] = case.key[0], case.key[0]
    case.value[1], case.value[2] = case.value[0], case.value[0]
    sdpa, cpu = SdpaAttention(16), CpuAttention(16)
    torch.testing.assert_close(
        case.decode(cpu, [0, 1, 2]), case.decode(sdpa, [0, 1, 2]), atol=2e-6, rtol=2e-5
    )


def test_a_long_prefill_is_cut_into_groups() -> None:
    case = Case(2, 1, 16, [900, 300])
    cpu = CpuAttention(16)
    whole, other = case.prefill(cpu, [0, 1], [0, 0])
    torch.testing.assert_close(
        whole, case.prefill(SdpaAttention(16), [0], [0])[0], atol=2e-6, rtol=2e-5
    )
    assert torch.equal(case.prefill(cpu, [1], [0])[0], other)
