"""The kernels of kernels.gptq_matmul. Importing this imports Triton.

Both work on transposed tiles: the weight [outputs, rows] is the first factor of tl.dot, so that it
is taken apart in registers and goes to the tensor cores without a trip through shared memory, and
the batch, padded to 8 only, is the second. A code less its zero point costs what a code alone does.
Scales come in after the sum over a tile; they share a load with the zero points, of the size that
is needed to be copied ahead of its use.
"""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from santagen.config import TANH_GELUS
from santagen.kernels.activation_triton import activate
from santagen.kernels.gptq_packed import PackedWeight
from santagen.kernels.triton_support import early_launch, has_hopper, interpreted


class Config(NamedTuple):
    """Of one launch: a program's outputs, its warps and loads in flight, and programs wanted."""

    block_n: int
    warps: int
    stages: int
    programs_per_sm: int  # K is shared out until there are about this many


# By BLOCK_M, a program's rows of x: the fastest in steps of a whole model on an H200, where
# programs of two launches share a multiprocessor. More than fit there cost a fifth.
CONFIGS = {
    8: Config(128, 4, 3, 5),
    16: Config(128, 4, 3, 3),
    32: Config(128, 4, 4, 2),
    64: Config(128, 4, 3, 2),
    128: Config(64, 4, 3, 2),
}
MAX_SPLITS = 16
SCALES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
INTERPRETED_SMS = 4


@triton.constexpr_function
def _take_pair(at: int, bits: int) -> str:
    """PTX: (code - zero) / 64 as bfloat16 of the fields at bit `at` of a register's halves, given
    another's zero * ZERO_UNIT. Exact.

    The smallest bfloat16 numbers are linear in their bits: 0 to 255 stand for multiples of 2^-133,
    so that a field is a number where it stands, and one product brings it up.
    """
    shift, place = at // 8 * 8, at % 8
    field, power = (2**bits - 1) << place, 254 - place  # of 2^(127 - place), biased
    return (
        f"{{ .reg .b32 t, up; shr.u32 t, $1, {shift}; and.b32 t, t, {field * 0x10001}; "
        f"mov.b32 up, {(power << 7) * 0x10001}; fma.rn.bf16x2 $0, t, up, $2; }}"
    )


@triton.jit
def _plane(
    words, minus, J: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr, PAIRS: tl.constexpr
):
    """Plane J of words [N, depth] less zero points as DTYPE, given what _minus makes of those;
    with PAIRS, two words to a register, a 64th of it."""
    if PAIRS:
        return tl.inline_asm_elementwise(
            _take_pair(J * BITS, BITS), "=r,r,r", [words, tl.broadcast_to(minus, words.shape)],
            dtype=tl.bfloat16, is_pure=True, pack=2,
        )
    code = (words.to(tl.int32) >> (J * BITS)) & (2**BITS - 1)
    return ((code | 0x4B000000).to(tl.float32, bitcast=True) + minus).to(DTYPE)  # of 2^23 + code


@triton.jit
def _scale(scaling, SCALE: tl.constexpr):
    """The scales [N] of PackedWeight's scalings, an integer each, as float32."""
    bits = scaling.to(tl.uint32) if tl.float32 == SCALE else (scaling & 0xFFFF).to(tl.uint16)
    return bits.to(SCALE, bitcast=True).to(tl.float32)


@triton.jit
def _minus(scaling, SCALE: tl.constexpr, PAIRS: tl.constexpr):
    """The zero points of the same, as `_plane` adds them: [N, 1]."""
    bits = scaling >> 32 if tl.float32 == SCALE else scaling >> 16
    minus = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    if not PAIRS:
        minus = minus.to(tl.float32) * 64.0 - 8388608.0
    return minus[:, None]


@triton.jit(do_not_specialize=["rows", "outputs", "tiles", "splits"])
def _matmul_kernel(
    y_ptr, x_ptr, word_ptr, scaling_ptr, bias_ptr, part_ptr, counter_ptr,
    x_row, rows, outputs, tiles, splits,
    BITS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr, PAIRS: tl.constexpr,
    SCALE: tl.constexpr, UNROLL: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [tiles of N, tiles of M, splits of K]; the last program of a tile sums its shares."""
    if EARLY:
        gdc_wait()
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    d = tl.arange(0, DEPTH)
    in_n, in_m = n < outputs, m < rows
    x_at = x_ptr + m.to(tl.int64)[None, :] * x_row
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    first, end = split * tiles // splits, (split + 1) * tiles // splits
    for tile in tl.range(first, end):
        row = outputs.to(tl.int64) * tile
        at = word_ptr + row * DEPTH + (n * DEPTH)[:, None] + d[None, :]
        words = tl.load(at, mask=in_n[:, None], other=0)
        scaling = tl.load(scaling_ptr + row + n, mask=in_n, other=0)
        scale, minus = _scale(scaling, SCALE), _minus(scaling, SCALE, PAIRS)
        part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for j in tl.static_range(TILE // DEPTH):
            k = tile * TILE + j * DEPTH + d
            x = tl.load(x_at + k[:, None], mask=in_m[None, :], other=0.0)
            weight = _plane(words, minus, j, BITS, x.dtype, PAIRS)
            part = tl.dot(weight, x, part, input_precision=PRECISION)
        if PAIRS:
            scale *= 64.0
        acc += part * scale[:, None]
    if EARLY:
        gdc_launch_dependents()  # not sooner: its programs would take the place of these
    mask = in_n[:, None] & in_m[None, :]
    place = m[None, :] * outputs + n[:, None]
    last = True
    if splits > 1:
        size = rows * outputs
        tl.store(part_ptr + split * size + place, acc, mask=mask)
        counter_ptr += tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.debug_barrier()  # every thread's stores come before the count
        last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == splits - 1
        if last:
            tl.store(counter_ptr, 0)  # for the next launch
            acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for number in tl.range(0, splits, loop_unroll_factor=UNROLL):
                # The first-level cache may hold older ones.
                at = part_ptr + number * size + place
                acc += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    if last:
        if HAS_BIAS:
            bias = tl.load(bias_ptr + n, mask=in_n, other=0.0)
            acc += bias.to(tl.float32)[:, None]
        y = activate(acc, ACT)
        tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["outputs"])
def _dequantize_kernel(
    out_ptr, word_ptr, scaling_ptr, outputs, out_row,
    BITS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Grid [tiles of N, tiles of K]."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, DEPTH)
    in_n = n < outputs
    row = tile * outputs
    at = word_ptr + row * DEPTH + (n * DEPTH)[:, None] + d[None, :]
    words = tl.load(at, mask=in_n[:, None], other=0)
    scaling = tl.load(scaling_ptr + row + n, mask=in_n, other=0)
    scale, minus = _scale(scaling, SCALE), _minus(scaling, SCALE, False)
    out_at = out_ptr + n.to(tl.int64)[:, None] * out_row + tile * TILE + d[None, :]
    for j in tl.static_range(TILE // DEPTH):
        weight = _plane(words, minus, j, BITS, tl.float32, False) * scale[:, None]
        at = out_at + j * DEPTH
        tl.store(at, weight.to(out_ptr.dtype.element_ty), mask=in_n[:, None])


def launch(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    act: str | None,
    counters: Tensor | None,
    config: Config | None = None,
    splits: int | None = None,
) -> Tensor:
    """As kernels.gptq_matmul.gptq_matmul, in one launch, of an x that `weight.arrange` gave.

    `config` overrides CONFIGS and `splits` the number of shares of K.
    """
    rows, outputs = x.shape[0], weight.outputs
    tiles, _, depth = weight.words.shape
    assert x.stride(1) == 1 and rows * outputs < 2**31
    assert x.shape[1] == weight.packed_inputs
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    block_m = next((m for m in CONFIGS if m >= rows), max(CONFIGS))
    config = config or tile_config(block_m, weight)
    grid = (triton.cdiv(outputs, config.block_n), triton.cdiv(rows, block_m))
    if splits is None:
        wanted = _multiprocessors(x.device) * config.programs_per_sm
        splits = min(max(wanted // (grid[0] * grid[1]), 1), tiles, MAX_SPLITS)
    part = out
    if counters is None:  # an int32 pointer all the same: the kernel is compiled for any splits
        splits, counters = 1, torch.empty(1, dtype=torch.int32, device=x.device)
    if splits > 1:
        assert counters.numel() >= grid[0] * grid[1]
        part = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
    _matmul_kernel[*grid, splits](
        out, x, weight.words, _integers(weight), x if bias is None else bias, part,
        counters, x.stride(0), rows, outputs, tiles, splits,
        BITS=weight.bits, TILE=weight.tile, DEPTH=depth, BLOCK_M=block_m, BLOCK_N=config.block_n,
        HAS_BIAS=bias is not None, ACT="gelu_tanh" if act in TANH_GELUS else act or "",
        PAIRS=takes_pairs(weight, x), SCALE=SCALES[weight.scale_dtype],
        UNROLL=4 if block_m <= 16 else 1, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=config.warps, num_stages=config.stages, **early_launch(x.device),
    )  # fmt: skip
    return out


def dequantize(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """As PackedWeight.dequantize: [N, packed inputs]."""
    tiles, outputs, depth = weight.words.shape
    out = torch.empty((outputs, weight.packed_inputs), dtype=dtype, device=weight.words.device)
    _dequantize_kernel[triton.cdiv(outputs, 64), tiles](
        out, weight.words, _integers(weight), outputs, out.stride(0),
        BITS=weight.bits, TILE=weight.tile, DEPTH=depth, BLOCK_N=64,
        SCALE=SCALES[weight.scale_dtype], num_warps=4,
    )  # fmt: skip
    return out


def _integers(weight: PackedWeight) -> Tensor:
    """The scalings [tiles, N], each as one integer."""
    kind = torch.int64 if weight.scale_dtype == torch.float32 else torch.int32
    return weight.scalings.view(kind).squeeze(2)


def tile_config(block_m: int, weight: PackedWeight) -> Config:
    """The tile of a launch; a plane of 8 bits takes twice the registers."""
    config = CONFIGS[block_m]
    return config._replace(block_n=64) if weight.bits == 8 else config


def takes_pairs(weight: PackedWeight, x: Tensor) -> bool:
    """Whether two codes at once become bfloat16, by PTX that needs compute capability 9."""
    if interpreted() or x.dtype != torch.bfloat16 or weight.words.dtype != torch.int16:
        return False
    return has_hopper(x.device)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count
