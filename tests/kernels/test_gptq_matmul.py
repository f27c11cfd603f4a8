"""Packed GPTQ weights: the layout loses nothing, and the kernels equal the plain product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from santagen.kernels import gptq_matmul as gm
from santagen.kernels.gptq_layout import LEAST_DEPTH, smallest_layout
from santagen.kernels.gptq_packed import PackedWeight, repack
from tests.fixture_writer import GPTQSpec, pack, quantise

triton_kernels = pytest.importorskip("santagen.kernels.gptq_matmul_triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 3e-2}
# the interpreter cuts bfloat16 off where the GPU rounds
DTYPES = [t for t in TOLERANCE if DEVICE == "cuda" or t != torch.bfloat16]


SCALE_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device=DEVICE, dtype=dtype)


def make(
    spec: GPTQSpec, outputs: int, inputs: int, seed: int = 0
) -> tuple[PackedWeight, Tensor]:
    """A packed weight, and the [N, K] float32 one it stands for by the tests' own packer."""
    rng = np.random.default_rng(seed)
    stored, weight = quantise(np.zeros((outputs, inputs)), spec, rng)
    bits, group = spec.bits, inputs if spec.group_size == -1 else spec.group_size
    groups = stored["g_idx"][1] if "g_idx" in stored else np.arange(inputs) // group
    codes = unpacked(stored["qweight"][1].T, bits).T
    zeros = unpacked(stored["qzeros"][1], bits)
    assert spec.form == "v2", "zero points as they are"
    scales = torch.from_numpy(stored["scales"][1]).to(SCALE_DTYPES[spec.scales_dtype])
    packed = repack(
        *(torch.from_numpy(np.ascontiguousarray(part)).to(DEVICE) for part in (codes, zeros)),
        scales.to(DEVICE), torch.from_numpy(groups).to(DEVICE), bits,
    )  # fmt: skip
    return packed, torch.from_numpy(weight).to(DEVICE)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 [n, words] -> uint8 [n, values], bit by bit; the inverse of the tests' `pack`."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    stream = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(words), -1, bits)
    values = (stream << np.arange(bits)).sum(-1).astype(np.uint8)
    assert np.array_equal(pack(values.astype(np.int64), bits), words)
    return values


def restored(packed: PackedWeight) -> Tensor:
    """[N, K] float32 in the order of the inputs; fillers must weigh nothing."""
    weight, order = packed.dequantize(), packed.order
    if order is None:
        assert not weight[:, packed.inputs :].any()
        return weight[:, : packed.inputs]
    found = torch.zeros(packed.outputs, packed.inputs, device=weight.device)
    return found.index_add_(1, order.long(), weight)


FORMS = {
    "4 bits": (GPTQSpec(group_size=128, form="v2"), 192, 256),
    "4 bits, asym act-order": (
        GPTQSpec(group_size=128, form="v2", sym=False, act_order=True), 96, 256
    ),
    "4 bits, small groups": (GPTQSpec(group_size=32, form="v2", sym=False), 64, 160),
    "4 bits, groups of 24": (GPTQSpec(group_size=24, form="v2", sym=False), 40, 80),
    "4 bits, one group": (GPTQSpec(group_size=-1, form="v2", sym=False), 72, 176),
    "8 bits": (GPTQSpec(bits=8, group_size=64, form="v2", sym=False, act_order=True), 68, 128),
    "3 bits": (GPTQSpec(bits=3, group_size=64, form="v2", sym=False, act_order=True), 64, 192),
    "2 bits": (GPTQSpec(bits=2, group_size=128, form="v2", sym=False), 80, 256),
    "2 bits, small groups": (GPTQSpec(bits=2, group_size=16, form="v2", act_order=True), 48, 64),
}  # fmt: skip
FORMS |= {
    f"{name} scales": (
        GPTQSpec(group_size=32, form="v2", sym=False, scales_dtype=name), 64, 128
    ) for name in ("BF16", "F32")
}  # fmt: skip
ALL = pytest.mark.parametrize(("spec", "outputs", "inputs"), FORMS.values(), ids=FORMS)


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[GPTQSpec, int, int]:
    spec = GPTQSpec(
        bits=draw(st.sampled_from([2, 3, 4, 8])),
        group_size=draw(st.sampled_from([-1, 8, 16, 24, 32, 64, 100, 128])),
        act_order=draw(st.booleans()), sym=draw(st.booleans()), form="v2",
        zero_points=draw(st.sampled_from([(), (0,), (0, 1)])),
        scales_dtype=draw(st.sampled_from(sorted(SCALE_DTYPES))),
    )  # fmt: skip
    return spec, 32 * draw(st.integers(1, 4)), 32 * draw(st.integers(1, 8))


@given(case=cases(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_repacking_loses_nothing(case: tuple[GPTQSpec, int, int], seed: int) -> None:
    shares = 32 * (1 + seed % 300)  # several, and uneven ones
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("santagen.kernels.gptq_packed.ELEMENTS_AT_ONCE", shares)
        packed, weight = make(*case, seed=seed)
    assert torch.equal(restored(packed), weight)
    assert packed.tile * packed.bits // packed.words.element_size() // 8 >= LEAST_DEPTH


@given(case=cases(), first=st.integers(0, 31), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_slice_of_the_rows_keeps_their_groups(
    case: tuple[GPTQSpec, int, int], first: int, seed: int
) -> None:
    """What a rank of tensor parallelism holds: groups of unlike sizes, some of them empty."""
    spec, outputs, inputs = case
    rng = np.random.default_rng(seed)
    codes, zeros = (
        torch.from_numpy(rng.integers(0, 2**spec.bits, shape).astype(np.uint8))
        for shape in ((inputs, outputs), (6, outputs))
    )
    scales, groups = draw(6, outputs).cpu().half(), torch.from_numpy(rng.integers(0, 6, inputs))
    wanted = ((codes.float() - zeros[groups].float()) * scales[groups].float()).t()
    packed = repack(codes[first:], zeros, scales, groups[first:], spec.bits)
    assert torch.equal(restored(packed), wanted[:, first:])


def test_the_layout_is_the_smallest() -> None:
    assert smallest_layout([128] * 48, 4) == (4, 128)
    assert smallest_layout([32] * 4, 4) == (4, 32)
    assert smallest_layout([6144], 3) == (4, 128)
    assert smallest_layout([128] * 4, 2) == (2, 128)
    assert smallest_layout([64], 8) == (8, 64)
    assert smallest_layout([32] * 8, 2) == (4, 32)  # as small as (2, 64), which takes fillers
    assert smallest_layout([16] * 8, 4) == (8, 16)
    # 70 rows would fill 128, or 96 with three scales
    assert smallest_layout([70], 4) == (4, 32)


def test_the_layer_s_size_is_that_of_its_codes_and_scales() -> None:
    packed, _ = make(GPTQSpec(group_size=128, form="v2"), 256, 1024)
    assert packed.nbytes == 256 * 1024 // 2 + 8 * 256 * 4
    assert packed.order is None


@ALL
def test_the_twin_is_the_product_with_the_dequantised_weight(
    spec: GPTQSpec, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gm, "ELEMENTS_AT_ONCE", 32 * 300)  # several parts
    packed, weight = make(spec, outputs, inputs)
    x, bias = draw(8, inputs, seed=1), draw(outputs, seed=2)
    wanted = F.linear(x, weight, bias)
    torch.testing.assert_close(
        gm.gptq_matmul_reference(x, packed, bias), wanted, atol=1e-5, rtol=1e-5
    )


@pytest.mark.skipif(DEVICE != "cpu", reason="a promise of the CPU path")
@ALL
def test_the_twin_gives_a_row_the_same_bits_in_any_batch(
    spec: GPTQSpec, outputs: int, inputs: int
) -> None:
    packed, _ = make(spec, outputs, inputs)
    x, bias = draw(70, inputs, seed=1), draw(outputs, seed=2)
    whole = gm.gptq_matmul_reference(x, packed, bias, "gelu_new")
    for start, stop in ((0, 1), (3, 5), (10, 23), (2, 70)):
        part = gm.gptq_matmul_reference(x[start:stop], packed, bias, "gelu_new")
        assert torch.equal(part, whole[start:stop])


def check(
    packed: PackedWeight, x: Tensor, bias: Tensor | None, act: str | None = None, **launch: Any
) -> Tensor:
    wanted = gm.gptq_matmul_reference(
        x.float(), packed, None if bias is None else bias.float(), act
    )
    if launch:
        counters = gm.new_counters(packed.outputs, x.device)
        found = triton_kernels.launch(packed.arrange(x), packed, bias, act, counters, **launch)
        assert not counters.any()
    else:
        found = gm.gptq_matmul(x, packed, bias, act)
    error = TOLERANCE[x.dtype]
    assert found.dtype == x.dtype
    torch.testing.assert_close(found.float(), wanted, atol=error, rtol=error)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@ALL
def test_the_kernel_equals_the_twin(
    spec: GPTQSpec, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    packed, _ = make(spec, outputs, inputs)
    bias = draw(outputs, dtype=dtype, seed=2)
    for rows, other in ((1, None), (5, bias)):
        x = draw(rows, inputs + 16, dtype=dtype, seed=rows)[:, :inputs]  # strided rows
        check(packed, x, other)
        check(packed, x, other, splits=min(2, packed.words.shape[0]))


@pytest.mark.parametrize("rows", [16, 17, 33, 65, 130])
@pytest.mark.parametrize("name", ["4 bits, asym act-order", "4 bits, groups of 24", "8 bits"])
def test_every_number_of_rows(rows: int, name: str) -> None:
    spec, outputs, inputs = FORMS[name]
    packed, _ = make(spec, outputs, inputs)
    x, bias = draw(rows, inputs, seed=rows), draw(outputs, seed=2)
    check(packed, x, bias)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_the_activation_is_applied_to_the_sum(
    act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = make(*FORMS["4 bits"])
    x, bias = draw(3, 256, seed=1) * 3, draw(192, seed=2)
    check(packed, x, bias, act)
    check(packed, x, bias, act, splits=2)
    monkeypatch.setattr(gm, "FUSED_ROWS", 2)
    check(packed, x, bias, act)


@ALL
def test_many_rows_use_the_dequantised_weight(
    spec: GPTQSpec, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = make(spec, outputs, inputs)
    assert torch.equal(triton_kernels.dequantize(packed, torch.float32), packed.dequantize())
    monkeypatch.setattr(gm, "FUSED_ROWS", 2)
    check(packed, draw(3, inputs, seed=1), draw(outputs, seed=2))


def test_no_rows() -> None:
    packed, _ = make(*FORMS["4 bits"])
    assert gm.gptq_matmul(draw(1, 256)[:0], packed, None).shape == (0, 192)


def test_only_the_output_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element of the output is written, and none beside it: outputs are a view of poison."""
    spec, outputs, inputs = GPTQSpec(group_size=64, form="v2"), 72, 192  # no multiple of a tile
    packed, _ = make(spec, outputs, inputs)
    x = draw(5, inputs, seed=3)
    guards: list[Tensor] = []

    def poisoned(size: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        count = int(np.prod(size))
        whole = torch.full((count + 128,), float("nan"), dtype=dtype, device=device)
        guards.append(whole)
        return whole[64 : 64 + count].view(size)

    counters = gm.new_counters(outputs, x.device)
    wanted = gm.gptq_matmul_reference(x, packed, None)
    monkeypatch.setattr(triton_kernels.torch, "empty", poisoned)
    found = triton_kernels.launch(packed.arrange(x), packed, None, None, counters, splits=3)
    monkeypatch.undo()
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert len(guards) == 2 and not counters.any()
    for whole in guards:
        assert whole[:64].isnan().all() and whole[-64:].isnan().all()
        assert not whole[64:-64].isnan().any()


def test_a_row_has_the_same_bits_in_every_batch_of_its_size() -> None:
    packed, _ = make(*FORMS["4 bits, asym act-order"])
    x = draw(8, 256, seed=4)
    whole = gm.gptq_matmul(x, packed, None, counters=gm.new_counters(96, x.device))
    for rows in (1, 7):
        again = gm.gptq_matmul(x[:rows], packed, None, counters=gm.new_counters(96, x.device))
        assert torch.equal(again, whole[:rows])
