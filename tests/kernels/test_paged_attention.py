"""The paged attention kernels against their torch twins, with poison around every context."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels import paged_attention as pa
from santagen.model.attention.triton import TritonAttention
from tests.kernels.attention_cases import make_paged, make_qkv, tolerance

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter has no bfloat16 product
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
Shape = tuple[int, int, int, int, torch.dtype]
SHAPES: list[Shape] = [  # heads, kv_heads, head size, block size, dtype
    (4, 1, 32, 16, torch.float32),
    (3, 1, 80, 32, torch.float32),
    (48, 1, 16, 64, torch.float32),
    (4, 4, 64, 16, torch.float16),
    (16, 1, 128, 256, HALF),
    (6, 2, 96, 48, HALF),
]


DECODE = [
    *((shape, splits, True) for shape, splits in zip(SHAPES, (1, 3, 1, 3, 1, 3), strict=True)),
    (SHAPES[0], 3, False),
    (SHAPES[4], 1, False),
    (SHAPES[4], 7, True),
]


@pytest.mark.parametrize(("shape", "splits", "fused"), DECODE, ids=str)
def test_decode(shape: Shape, splits: int, fused: bool) -> None:
    heads, kv_heads, size, block_size, dtype = shape
    lengths = [0, 1, 17, block_size, 2 * block_size + 1]
    paged = make_paged(lengths, kv_heads, size, block_size, dtype, DEVICE)
    q, k, v = make_qkv(len(lengths), heads, kv_heads, size, dtype, DEVICE)
    slot = torch.full((len(lengths),), -1, dtype=torch.int64, device=DEVICE)
    for row, length in enumerate(lengths[:-1]):
        if length:
            slot[row] = paged.slots(row, length - 1, length)
    arguments = (paged.block_table, paged.context_len, size**-0.5)
    new = {"k_new": k, "v_new": v, "slot": slot} if fused else {}
    caches = [paged.k_cache.clone(), paged.v_cache.clone()]
    if fused:  # what the step itself writes must not be read
        caches[0].flatten(0, 1)[slot[1:-1]] = torch.nan
        caches[1].flatten(0, 1)[slot[1:-1]] = torch.nan
    wanted_caches = [cache.clone() for cache in caches]
    out = torch.full((len(lengths), heads, size), torch.nan, dtype=dtype, device=DEVICE)
    counters = torch.zeros(99, dtype=torch.int32, device=DEVICE) if splits != 3 else None
    result = pa.paged_mqa_decode(
        q, *caches, *arguments, out, **new, num_splits=splits, counters=counters
    )
    wanted = pa.paged_mqa_decode_reference(q, *wanted_caches, *arguments, **new, num_splits=1)
    assert result is out
    torch.testing.assert_close(out, wanted, atol=tolerance(dtype), rtol=tolerance(dtype))
    assert (out[0] == 0).all()
    assert counters is None or not counters.any()
    for cache, other in zip(caches, wanted_caches, strict=True):
        assert torch.equal(cache.nan_to_num(9.0), other.nan_to_num(9.0))
    place = torch.randperm(heads * size, device=DEVICE).int()
    options = {**new, "num_splits": splits, "counters": counters, "place": place}
    ordered = pa.paged_mqa_decode(q, *caches, *arguments, **options)
    assert torch.equal(ordered.flatten(1)[:, place.long()], out.flatten(1))
    wanted = pa.paged_mqa_decode_reference(q, *wanted_caches, *arguments, **options)
    torch.testing.assert_close(ordered, wanted, atol=tolerance(dtype), rtol=tolerance(dtype))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[4], SHAPES[5]], ids=str)
def test_prefill(shape: Shape) -> None:
    heads, kv_heads, size, block_size, dtype = shape
    queries = [3, 1, 40, block_size + 2]
    lengths = [3, 2 * block_size, 55, block_size + 2]  # whole prompts, and tails of cached ones
    paged = make_paged(lengths, kv_heads, size, block_size, dtype, DEVICE)
    q, _, _ = make_qkv(sum(queries), heads, kv_heads, size, dtype, DEVICE)
    cu = torch.tensor([0, 3, 4, 44, sum(queries)], dtype=torch.int32, device=DEVICE)
    arguments = (
        q, paged.k_cache, paged.v_cache, paged.block_table, cu, paged.context_len, max(queries) + 9,
        size**-0.5,
    )
    wanted = pa.paged_prefill_reference(*arguments)
    out = pa.paged_prefill(*arguments)
    torch.testing.assert_close(out, wanted, atol=tolerance(dtype), rtol=tolerance(dtype))


@pytest.mark.parametrize("tokens", [0, 1, 19])
def test_write_kv(tokens: int) -> None:
    caches = [torch.full((4, 16, 2, 80), float(number), device=DEVICE) for number in range(2)]
    wanted = [cache.clone() for cache in caches]
    _, k, v = make_qkv(tokens, 4, 2, 80, torch.float32, DEVICE)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(3))[:tokens].to(DEVICE)
    slots[1::3] = -1
    pa.write_kv(k, v, *caches, slots)
    pa.write_kv_reference(k, v, *wanted, slots)
    assert all(torch.equal(cache, other) for cache, other in zip(caches, wanted, strict=True))
    assert (caches[0] != 0).any() == (tokens > 0)


def test_a_row_is_attended_alone_as_in_company() -> None:
    lengths = [33, 5, 70]
    paged = make_paged(lengths, 1, 32, 16, torch.float32, DEVICE)
    q, _, _ = make_qkv(3, 4, 1, 32, torch.float32, DEVICE)
    caches = (paged.k_cache, paged.v_cache)
    together = pa.paged_mqa_decode(
        q, *caches, paged.block_table, paged.context_len, 0.2, num_splits=2
    )
    alone = pa.paged_mqa_decode(
        q[2:], *caches, paged.block_table[2:], paged.context_len[2:], 0.2, num_splits=2
    )
    assert torch.equal(alone[0], together[2])


def test_the_number_of_splits() -> None:
    assert pa.choose_num_splits(1024, 1, 2048, 132) == 1
    assert pa.choose_num_splits(256, 1, 2048, 132) == 1
    assert pa.choose_num_splits(64, 1, 2048, 132) == 5
    assert pa.choose_num_splits(1, 1, 2048, 132) == 32
    assert pa.choose_num_splits(1, 16, 65, 132) == 2
    assert pa.choose_num_splits(0, 1, 0, 132) == 1


def test_counters_are_enough_though_another_thread_adds_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The warm-up plans several forwards at once."""
    backend, zeros = TritonAttention(), torch.zeros

    def zeros_while_another_plans(*arguments: object, **settings: object) -> torch.Tensor:
        monkeypatch.undo()
        try:
            return zeros(*arguments, **settings)
        finally:
            backend._zeros(1, torch.device("cpu"))

    monkeypatch.setattr(torch, "zeros", zeros_while_another_plans)
    assert len(backend._zeros(5000, torch.device("cpu"))) >= 5000
    assert len(backend._zeros(5000, torch.device("cpu"))) >= 5000
