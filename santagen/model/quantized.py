"""Products whose GPTQ weights stay packed: the sharded layers of layers.py, with integers inside.

Act-order costs mlp.c_proj nothing: the outputs of c_fc, and their biases, are put in the order of
c_proj's groups once, at load. A product after a LayerNorm has its input written in its order by the
norm, attn.c_proj by the attention of a decode step where that can do it; else, and for a weight
with fillers, it is put in order first. How the integers are laid out and multiplied is
kernels.gptq_packed's and kernels.gptq_matmul's business, whether they stay packed is decided by
checkpoint.gptq_choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from santagen.checkpoint.gptq import GPTQLinear
from santagen.checkpoint.weights import Weights
from santagen.distributed import TensorParallel
from santagen.kernels.gptq_matmul import gptq_matmul, new_counters
from santagen.kernels.gptq_packed import PackedWeight, repack
from santagen.model.layers import FastLayerNorm


class QuantizedLinear(nn.Module):
    """y = act(x W^T + b), called as layers.Linear is; on the CPU a row's bits depend on no other.

    `parts` lie side by side along the outputs: two where a file's q_attn and kv_attn group their
    inputs differently, else one.
    """

    def __init__(
        self, parts: Sequence[PackedWeight], bias: Tensor | None, act: str | None = None
    ) -> None:
        super().__init__()
        self.parts, self.act = tuple(parts), act
        sizes = [part.outputs for part in parts]
        self.biases = (None,) * len(sizes) if bias is None else bias.split(sizes)
        self.counters = [new_counters(part.outputs, part.words.device) for part in parts]
        # where what comes before this product puts each of its outputs; the weight is then in order
        self.register_buffer("place", None, persistent=False)
        (first, *others), self.ordered = self.parts, self.parts
        if first.order is not None and not others and first.packed_inputs == first.inputs:
            self.place = first.order.argsort().int()
            self.ordered = (replace(first, order=None),)
        for number, part in enumerate(parts):  # seen by whoever counts a model's bytes
            for name in ("words", "scalings", "order"):
                self.register_buffer(f"{name}_{number}", getattr(part, name), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.parts)

    def _multiply(self, x: Tensor, parts: Sequence[PackedWeight]) -> Tensor:
        outs = [
            gptq_matmul(x, part, bias, self.act, counters)
            for part, bias, counters in zip(parts, self.biases, self.counters, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)

    def after_norm(
        self, norm: FastLayerNorm, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(this product of norm(x + residual), x + residual)."""
        normed, total = norm(x, residual, self.place)
        return self._multiply(normed, self.ordered), total


class QuantizedRowLinear(QuantizedLinear):
    """A product whose inputs are sharded: its output is this rank's part of a sum, with the bias on
    rank 0 alone."""

    def __init__(self, part: PackedWeight, bias: Tensor | None, parallel: TensorParallel) -> None:
        super().__init__([part], bias if parallel.rank == 0 else None)

    def of_ordered(self, x: Tensor) -> Tensor:
        """The product of an x whose elements lie where `place` says."""
        return self._multiply(x, self.ordered)


def load_column(
    prefix: str, weights: Weights, out: Sequence[tuple[int, int]], bias: bool = True
) -> QuantizedLinear:
    """The output ranges `out` of a layer, packed."""
    parts = [pack(layer) for layer in weights.get_gptq(prefix, out=out)]
    return QuantizedLinear(parts, weights.get_bias(prefix, out) if bias else None)


def load_row(
    prefix: str, weights: Weights, inp: tuple[int, int], parallel: TensorParallel
) -> QuantizedRowLinear:
    """The input range `inp` of a layer, packed; its rows keep their global groups."""
    (layer,) = weights.get_gptq(prefix, inp=inp)
    return QuantizedRowLinear(pack(layer), weights.get_bias(prefix), parallel)


def load_mlp(
    prefix: str, weights: Weights, own: tuple[int, int], act: str, parallel: TensorParallel
) -> tuple[QuantizedLinear, QuantizedRowLinear]:
    """(c_fc, c_proj) of the inner range `own`, c_fc's outputs in the order c_proj reads them in.

    Where a group does not fill its last tile, c_fc computes an output once more; it weighs 0.
    """
    second = pack(*weights.get_gptq(f"{prefix}.c_proj", inp=own))
    (up,) = weights.get_gptq(f"{prefix}.c_fc", out=[own])
    bias = weights.get_bias(f"{prefix}.c_fc", [own])
    if second.order is not None:
        up, bias = up.columns(second.order), bias.index_select(0, second.order)
        second = replace(second, order=None, inputs=second.packed_inputs)
    c_proj = QuantizedRowLinear(second, weights.get_bias(f"{prefix}.c_proj"), parallel)
    return QuantizedLinear([pack(up)], bias, act), c_proj


def pack(layer: GPTQLinear) -> PackedWeight:
    """A layer's integers in the layout of the products; its scales as exact as the file's."""
    scales = layer.scales.to(layer.scales_dtype)
    return repack(layer.codes, layer.zeros, scales, layer.g_idx, layer.bits)
