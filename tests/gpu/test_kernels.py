"""Kernels at real sizes and in CUDA graphs; tests/kernels has the rest, and runs on a GPU too."""

from __future__ import annotations

import pytest
import torch

from santagen.kernels import paged_attention as pa
from santagen.kernels.philox import gumbel_all
from santagen.kernels.sampling import sample, sample_reference
from tests.kernels.attention_cases import make_paged, make_qkv
from tests.kernels.sampling_cases import make_case

pytest.importorskip("triton")


@pytest.mark.parametrize("rows", [1, 28, 420])
def test_the_sampler_at_real_size(rows: int) -> None:
    arguments, keywords = make_case(49280, 21, rows=rows, masked=True, device="cuda")
    tokens = sample(*arguments, **keywords)
    wanted = sample_reference(*arguments, **keywords)
    logits, position, key, temperature = arguments[:4]
    for row in (tokens != wanted).nonzero().flatten().tolist():
        own = slice(row, row + 1)
        score = logits[row] / temperature[row] + gumbel_all(position[own], key[own], 49280)[0]
        gap = float((score[tokens[row]] - score[wanted[row]]).abs())
        assert gap < 1e-5, f"row {row} draws {tokens[row]}, not {wanted[row]}: {gap} apart"


@pytest.mark.parametrize("rows", [14, 140])
def test_a_captured_draw_reads_its_settings_anew(rows: int) -> None:
    first, _ = make_case(5000, 22, rows=rows, device="cuda")
    second, _ = make_case(5000, 23, rows=rows, device="cuda")
    buffers = [argument.clone() for argument in first]
    sample(*buffers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sample(*buffers)
    for arguments in (first, second):
        for buffer, argument in zip(buffers, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        assert torch.equal(tokens, sample_reference(*arguments))


def test_shares_are_combined_in_one_launch_every_time() -> None:
    """Many rows and launches, so that a program that read a share too early would show."""
    rows = 200
    lengths = [1 + 37 * row % 1500 for row in range(rows)]
    paged = make_paged(lengths, 1, 128, 64, torch.bfloat16, "cuda")
    caches = (paged.k_cache, paged.v_cache)
    counters = torch.zeros(rows, dtype=torch.int32, device="cuda")
    for seed in range(20):
        q, _, _ = make_qkv(rows, 16, 1, 128, torch.bfloat16, "cuda", seed=seed)
        tail = (paged.block_table, paged.context_len, 0.09)
        two = pa.paged_mqa_decode(q, *caches, *tail, num_splits=16)
        for _ in range(10):
            one = pa.paged_mqa_decode(q, *caches, *tail, num_splits=16, counters=counters)
            torch.testing.assert_close(one, two, atol=1e-2, rtol=1e-2)
    assert not counters.any()


@pytest.mark.parametrize("splits", [1, 8])
def test_a_captured_decode_reads_its_lengths_anew(splits: int) -> None:
    lengths = [700, 1, 256, 0, 513]
    paged = make_paged(lengths, 1, 128, 256, torch.bfloat16, "cuda")
    q, k, v = make_qkv(len(lengths), 16, 1, 128, torch.bfloat16, "cuda")
    caches = (paged.k_cache, paged.v_cache)
    length, slot = torch.zeros_like(paged.context_len), torch.full((5,), -1, device="cuda")

    def step() -> torch.Tensor:
        return pa.paged_mqa_decode(
            q, *caches, paged.block_table, length, 0.09, k_new=k, v_new=v, slot=slot,
            num_splits=splits,
        )

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for shorter in (200, 0):
        length.copy_((paged.context_len - shorter).clamp_(min=0))
        graph.replay()
        wanted = pa.paged_mqa_decode_reference(
            q, *caches, paged.block_table, length, 0.09, k_new=k, v_new=v, slot=slot
        )
        torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)


def test_decode_past_32_bit_offsets() -> None:
    """The last block of a cache of more than 2^31 elements."""
    blocks = 2**31 // (256 * 128) + 8
    cache = torch.zeros((blocks, 256, 1, 128), dtype=torch.bfloat16, device="cuda")
    q, k, v = make_qkv(1, 16, 1, 128, torch.bfloat16, "cuda")
    cache[blocks - 1].normal_()
    table = torch.tensor([[blocks - 1]], dtype=torch.int32, device="cuda")
    length = torch.tensor([100], dtype=torch.int32, device="cuda")
    slot = torch.tensor([(blocks - 1) * 256 + 99], device="cuda")
    arguments = (q, cache, cache, table, length, 0.09)
    new = {"k_new": k, "v_new": k, "slot": slot}
    out = pa.paged_mqa_decode(*arguments, **new, num_splits=1)
    assert torch.equal(cache[blocks - 1, 99], k[0])
    wanted = pa.paged_mqa_decode_reference(*arguments, **new)
    torch.testing.assert_close(out, wanted, atol=2e-2, rtol=2e-2)
    pa.write_kv(v, v, cache, cache, slot)
    assert torch.equal(cache[blocks - 1, 99], v[0])
