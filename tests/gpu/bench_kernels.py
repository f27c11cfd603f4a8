"""Checks every kernel against its torch twin on the GPU, then times it, in one table.

    python -m tests.gpu.bench_kernels [--only sampler decode prefill norm] [--budget 230]

Times are of CUDA graph replays, the median of several; data rotate over enough layers that the L2
cache holds none of them. A case that fails prints its error as a row and the rest goes on; what
does not start within the budget (seconds) is listed as skipped. A row marked * is the choice that
the code makes by itself.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from santagen.kernels import paged_attention as pa
from santagen.kernels import sampling_triton as st
from santagen.kernels.layer_norm import add_layer_norm, add_layer_norm_reference
from santagen.kernels.paged_decode_triton import decode, tile_config
from santagen.kernels.paged_prefill_triton import prefill
from santagen.kernels.sampling import sample_reference
from tests.kernels.attention_cases import make_paged, make_qkv
from tests.kernels.sampling_cases import make_case

Config = tuple[int, int, int]
DEVICE, HALF = "cuda", torch.bfloat16
START = time.perf_counter()
COMPILE_ONLY = False
LAYER_BYTES = 4e8  # of caches that a timing walks through


class Table:
    """Prints rows as they come, and survives a row that fails."""

    def __init__(self, budget: float, shard: tuple[int, int] = (0, 1)) -> None:
        self.budget, self.failed, self.skipped = budget, 0, 0
        self.shard, self.count = shard, 0

    def row(self, name: str, case: str, work: Callable[[], str]) -> None:
        self.count += 1
        if self.count % self.shard[1] != self.shard[0]:
            return
        if time.perf_counter() - START > self.budget:
            self.skipped += 1
            print(f"{name:<8} {case:<58} skipped: the time is up", flush=True)
            return
        try:
            text = work()
        except Exception as error:
            self.failed += 1
            text = f"FAILED {type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        elapsed = time.perf_counter() - START
        print(f"{name:<8} {case:<58} {text}   [{elapsed:.0f} s]", flush=True)


def time_us(calls: list[Callable[[], Any]], replays: int = 7) -> float:
    """Median microseconds of one call, from replays of a graph of all of them."""
    if COMPILE_ONLY:
        calls[0]()
        return 1.0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times)


def speed(us: float, size: float) -> str:
    return f"{us:9.1f} us  {size / us / 1e6:6.2f} TB/s"


def close(result: Tensor, wanted: Tensor, bound: float) -> str:
    error = float((result.float() - wanted.float()).abs().max())
    if not error <= bound:
        raise AssertionError(f"off by {error:.3g}, more than {bound:.3g}")
    return f"ok, off by {error:.2g}"


# ---- sampler


def settings(rows: int, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    columns = (
        torch.randint(0, 2048, (rows,), generator=generator),
        torch.randint(0, 2**32, (rows, 2), generator=generator),
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.zeros(rows),
    )
    return tuple(column.to(DEVICE) for column in columns)


def check_sampler(vocab_size: int, rows: int, splits: int | None, **case: Any) -> str:
    arguments, keywords = make_case(vocab_size, 3, rows=rows, device=DEVICE, **case)
    tokens = st.sample_triton(*arguments, **keywords, splits=splits)
    wanted = sample_reference(*arguments, **keywords)
    other = int((tokens != wanted).sum())
    if other > rows // 1000:  # a near-tie in a thousand rows may fall otherwise
        where = (tokens != wanted).nonzero()[:5].flatten().tolist()
        raise AssertionError(f"{other} of {rows} tokens differ, rows {where}")
    return f"ok, {rows - other} of {rows} equal"


def time_sampler(rows: int, flat: bool, sampled: tuple[float, int, float], **options: Any) -> str:
    generator = torch.Generator(DEVICE).manual_seed(1)
    spread = 0.5 if flat else 2.9  # random weights; about 1 nat at a batch of trained ones
    logits = torch.randn(rows, 49280, device=DEVICE, generator=generator) * spread
    if not flat:
        logits[:, ::9000] += 14.0
    columns = settings(rows, *sampled)
    promises = {
        "any_random": sampled[0] > 0,
        "any_top_k": sampled[1] > 0,
        "any_top_p": sampled[2] < 1,
        "any_min_p": False,
    }
    us = time_us([lambda: st.sample_triton(logits, *columns, **promises, **options)] * 10)
    return speed(us, logits.numel() * 4)


def bench_sampler(table: Table) -> None:
    for rows, splits, case in (
        (280, 0, {}), (280, 3, {}), (28, None, {"masked": True}), (140, 0, {"ties": True}),
    ):
        name = f"check V 49280, {rows} rows, splits {splits} {case}"
        table.row("sampler", name, lambda a=(rows, splits, case): check_sampler(49280, *a[:2],
        **a[2]))
    table.row("sampler", "check V 4099, 140 rows", lambda: check_sampler(4099, 140, 0))
    top_p = (0.8, 0, 0.95)
    for rows in (1, 64, 1024):
        for label, flat, sampled in (
            ("T 0.8 top_p 0.95 flat", True, top_p), ("T 0.8 top_p 0.95 1 nat", False, top_p),
            ("T 0.8 alone", True, (0.8, 0, 1.0)), ("greedy", True, (0.0, 0, 1.0)),
            ("top_k 50 top_p 0.95", True, (0.8, 50, 0.95)),
        ):
            if rows == 1 and label in ("T 0.8 alone", "T 0.8 top_p 0.95 1 nat"):
                continue
            table.row(
                "sampler", f"*B {rows} {label}",
                lambda a=(rows, flat, sampled): time_sampler(*a),
            )
    default = st.ROW_CONFIG
    for config in ((1024, 8, 64), (2048, 16, None), (4096, 16, None), (2048, 8, 80), (4096, 32,
    None)):

        def with_config(config: tuple[int, int, int | None] = config) -> str:
            st.ROW_CONFIG = config
            try:
                return time_sampler(1024, True, top_p)
            finally:
                st.ROW_CONFIG = default

        table.row("sampler", f" B 1024 flat, tile, warps, registers {config}", with_config)
    for rows, splits in ((64, 2), (64, 0), (1, 25), (128, 2)):
        table.row(
            "sampler", f" B {rows} T 0.8 top_p 0.95 flat, splits {splits}",
            lambda a=(rows, splits): time_sampler(a[0], True, top_p, splits=a[1]),
        )


# ---- decode attention


class DecodeCase:
    """`layers` caches of the same contexts, in blocks drawn at random."""

    def __init__(self, batch: int, context: int, block_size: int, heads: int = 16) -> None:
        generator = torch.Generator(DEVICE).manual_seed(2)
        self.heads, self.batch, self.context = heads, batch, context
        per_row = -(-context // block_size)
        count = batch * per_row + 1
        shape = (2, count, block_size, 1, 128)
        layer_bytes = 2 * count * block_size * 256
        self.layers = max(1, min(200, int(LAYER_BYTES / layer_bytes)))
        self.caches = [
            torch.randn(shape, device=DEVICE, generator=generator, dtype=HALF).unbind(0)
            for _ in range(self.layers)
        ]
        order = torch.randperm(count - 1, device=DEVICE, generator=generator) + 1
        self.table = order.view(batch, per_row).to(torch.int32)
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
        last = context - 1
        self.slot = self.table[:, last // block_size].long() * block_size + last % block_size
        self.q, self.k, self.v = make_qkv(batch, heads, 1, 128, HALF, DEVICE)
        self.bytes = batch * context * 512
        self.counters = torch.zeros(batch, dtype=torch.int32, device=DEVICE)

    def run(self, layer: int, splits: int, config: Config, counted: bool) -> Tensor:
        return decode(
            self.q, *self.caches[layer], self.table, self.lengths, 128**-0.5, None, self.k, self.v,
            self.slot, splits, self.counters if counted else None, config,
        )

    def check(self, out: Tensor) -> str:
        rows = slice(0, min(self.batch, 8))
        wanted = pa.paged_mqa_decode_reference(
            self.q[rows], *self.caches[0], self.table[rows], self.lengths[rows], 128**-0.5,
            k_new=self.k[rows], v_new=self.v[rows], slot=self.slot[rows] * 0 - 1, num_splits=1,
        )
        return close(out[rows], wanted, 0.02)

    def time(self, splits: int, config: Config, counted: bool) -> str:
        note = self.check(self.run(0, splits, config, counted))
        calls = [lambda n=n: self.run(n, splits, config, counted) for n in range(self.layers)]
        us = time_us(calls * max(1, 12 // self.layers))
        return f"{speed(us, self.bytes)}  {note}"

    def time_flash(self, append: bool) -> str:
        from flash_attn import flash_attn_with_kvcache

        q = self.q.unsqueeze(1)
        extra = {"k": self.k.unsqueeze(1), "v": self.v.unsqueeze(1)} if append else {}
        lengths = self.lengths - 1 if append else self.lengths

        def call(layer: int) -> Tensor:
            return flash_attn_with_kvcache(
                q, *self.caches[layer], cache_seqlens=lengths, block_table=self.table,
                softmax_scale=128**-0.5, causal=True, **extra,
            )

        calls = [lambda n=n: call(n) for n in range(self.layers)]
        return speed(time_us(calls * max(1, 12 // self.layers)), self.bytes)


def check_decode() -> str:
    """Odd shapes, poison outside every context, lengths that differ, with and without the write."""
    notes = []
    for heads, kv_heads, size, block_size, dtype, splits in (
        (16, 1, 128, 256, HALF, 1), (48, 1, 128, 64, HALF, 3), (6, 2, 96, 48, HALF, 2),
        (4, 4, 64, 16, torch.float16, 3), (3, 1, 80, 32, torch.float32, 1),
    ):
        lengths = [0, 1, 17, 255, 256, 257, 700]
        paged = make_paged(lengths, kv_heads, size, block_size, dtype, DEVICE)
        q, k, v = make_qkv(len(lengths), heads, kv_heads, size, dtype, DEVICE)
        slot = torch.full((len(lengths),), -1, dtype=torch.int64, device=DEVICE)
        for row in range(1, len(lengths)):
            slot[row] = paged.slots(row, lengths[row] - 1, lengths[row])
        for new in ({}, {"k_new": k, "v_new": v, "slot": slot}):
            caches = (paged.k_cache.clone(), paged.v_cache.clone())
            tail = (paged.block_table, paged.context_len, size**-0.5)
            out = torch.full((len(lengths), heads, size), torch.nan, dtype=dtype, device=DEVICE)
            counters = torch.zeros(99, dtype=torch.int32, device=DEVICE) if new else None
            pa.paged_mqa_decode(q, *caches, *tail, out, **new, num_splits=splits, counters=counters)
            wanted_caches = (paged.k_cache.clone(), paged.v_cache.clone())
            wanted = pa.paged_mqa_decode_reference(
                q, *wanted_caches, *tail, **new, num_splits=1
            )
            notes.append(close(out, wanted, 1e-4 if dtype == torch.float32 else 0.03))
            for cache, other in zip(caches, wanted_caches, strict=True):
                assert torch.equal(cache.nan_to_num(9.0), other.nan_to_num(9.0)), "cache differs"
    return f"{len(notes)} cases {max(notes)}"


def bench_decode(table: Table) -> None:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    table.row("decode", "check odd shapes", check_decode)
    few = ((64, 4, 3), (32, 4, 4), (64, 4, 5))
    many = ((32, 4, 4), (64, 4, 3), (64, 4, 2), (32, 4, 3), (128, 4, 2), (32, 2, 4))
    cases = [
        (1, 400, 256, 16, few), (16, 400, 256, 16, few), (64, 400, 256, 16, few),
        (256, 400, 256, 16, many[:4]), (1024, 400, 256, 16, many), (1024, 512, 256, 16, many[:2]),
        (2048, 260, 256, 16, many[:2]), (4096, 512, 256, 16, many[:4]),
        (1024, 400, 64, 16, many[:2]), (1024, 400, 16, 16, many[:2]), (64, 400, 16, 16, few[:1]),
        (256, 400, 256, 48, ((32, 4, 3), (64, 4, 2), (64, 4, 3), (32, 8, 3))),
        (1, 1900, 256, 16, few[:1]), (132, 400, 256, 16, few),
    ]
    for batch, context, block_size, heads, configs in cases:
        made: list[DecodeCase] = []

        def case(
            made: list[DecodeCase] = made,
            shape: tuple[int, int, int, int] = (batch, context, block_size, heads),
        ) -> DecodeCase:
            if not made:
                made.append(DecodeCase(*shape))
            return made[0]

        chosen = pa.choose_num_splits(batch, 1, max(context, 512), processors)
        for config in configs:
            tries = [(chosen, False)]
            if batch <= 64:
                tries = [(chosen, True), (chosen, False), (max(1, chosen // 2), True), (1, False)]
            if config == (64, 4, 5):
                tries = tries[-1:]
            for count, counted in tries:
                own = config == tile_config(HALF, heads, batch * count) and count == chosen
                name = f"{'*' if own else ' '}B {batch} ctx {context} block {block_size} H {heads}"
                table.row(
                    "decode",
                    f"{name} {config} splits {count}{' counted' if counted else ''}",
                    lambda c=case, a=(count, config, counted): c().time(*a),
                )
        if block_size == 256 and heads == 16 and FLASH:
            name = f" B {batch} ctx {context} block {block_size} FA2"
            table.row("decode", name, lambda c=case: c().time_flash(False))
            table.row("decode", f"{name} with append", lambda c=case: c().time_flash(True))


# ---- prefill attention, norm, cache write


def time_prefill(sequences: int, length: int, config: tuple[int, int, int, int] | None) -> str:
    paged = make_paged([length] * sequences, 1, 128, 256, HALF, DEVICE)
    q, _, _ = make_qkv(sequences * length, 16, 1, 128, HALF, DEVICE)
    cu = torch.arange(sequences + 1, dtype=torch.int32, device=DEVICE) * length
    tail = (paged.block_table, cu, paged.context_len, length, 128**-0.5)
    caches = (paged.k_cache, paged.v_cache)
    one = pa.paged_prefill_reference(
        q[:length], *caches, paged.block_table[:1], cu[:2], paged.context_len[:1], length, 128**-0.5
    )
    note = close(prefill(q, *caches, *tail, config)[:length], one, 0.03)
    us = time_us([lambda: prefill(q, *caches, *tail, config)] * 5)
    flop = 4 * sequences * 16 * 128 * length * (length + 1) / 2
    return f"{us:9.1f} us  {flop / us / 1e6:6.0f} TFLOP/s  {note}"


def bench_prefill(table: Table) -> None:
    for sequences, length in ((64, 256), (8, 2048)):
        for config in (None, (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3)):
            name = f"{' ' if config else '*'}{sequences} x {length} {config or 'default'}"
            table.row(
                "prefill", name, lambda a=(sequences, length, config): time_prefill(*a)
            )


def time_norm(rows: int, width: int) -> str:
    draw = torch.Generator(DEVICE).manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=draw, dtype=HALF)

    layers = [(new(rows, width), new(rows, width)) for _ in range(max(1, min(24, 60000 // rows)))]
    branch, weight, bias = new(width), new(width), new(width)
    result = add_layer_norm(*layers[0], branch, weight, bias, 1e-5)
    wanted = add_layer_norm_reference(*layers[0], branch, weight, bias, 1e-5)
    note = close(result[0], wanted[0], 0.04)
    assert torch.equal(result[1], wanted[1]), "the sum differs"
    us = time_us([lambda p=p: add_layer_norm(*p, branch, weight, bias, 1e-5) for p in layers])
    return f"{speed(us, rows * width * 8)}  {note}"


def bench_norm(table: Table) -> None:
    for rows, width in ((1, 2048), (64, 2048), (1024, 2048), (1024, 6144), (16384, 2048)):
        table.row("norm", f"*T {rows} E {width}", lambda a=(rows, width): time_norm(*a))


def compile_all(workers: int, only: list[str]) -> None:
    """Fill Triton's disk cache from several processes, each running its share of the rows once."""
    command = [sys.executable, "-m", "tests.gpu.bench_kernels", "--only", *only, "--shard"]
    children = [
        subprocess.Popen(
            [*command, str(number), str(workers)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(workers)
    ]
    for child in children:
        child.wait()
    print(f"compiled in {time.perf_counter() - START:.0f} s", flush=True)


def main() -> None:
    global COMPILE_ONLY
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["decode", "sampler", "norm", "prefill"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--budget", type=float, default=230)
    parser.add_argument("--workers", type=int, default=10, help="processes that compile beforehand")
    parser.add_argument("--shard", type=int, nargs=2, help="compile only this part of the rows")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_kernels needs a CUDA device.")
    package = "flash_attn" if FLASH else "no flash_attn"
    print(torch.cuda.get_device_name(0), torch.__version__, package)
    if arguments.shard:
        COMPILE_ONLY = True
    elif arguments.workers > 1:
        compile_all(arguments.workers, arguments.only)
    table = Table(arguments.budget, tuple(arguments.shard or (0, 1)))
    benches = {
        "decode": bench_decode,
        "sampler": bench_sampler,
        "norm": bench_norm,
        "prefill": bench_prefill,
    }
    for name in arguments.only:
        benches[name](table)
        torch.cuda.empty_cache()
    print(f"{table.failed} failed, {table.skipped} skipped, {time.perf_counter() - START:.0f} s")


try:
    import flash_attn  # noqa: F401

    FLASH = True
except ImportError:
    FLASH = False

if __name__ == "__main__":
    main()
