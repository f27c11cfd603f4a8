"""The weights as the model asks for them: Linear, this rank's slices, the run's dtype and device.

Reads each tensor (or the part this rank needs) when it is asked for and frees the file's copy at
once, so the peak of host memory is about one tensor above the model. What the file calls and
transposes is hidden here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.gptq import GPTQLinear, read_layer
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.inspection import inspect_checkpoint
from santagen.checkpoint.layout import Layout, linear_shape, module_of
from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig

Range = tuple[int, int]
Ranges = Sequence[Range]


class Weights:
    """Rank `rank` of `world_size` of one checkpoint.

    `notes` are remarks for the user, such as a label that the values overruled. `packed` asks the
    model to keep a GPTQ checkpoint's integers.
    """

    packed = False

    def __init__(
        self,
        files: TensorFiles,
        config: ModelConfig,
        layout: Layout,
        *,
        dtype: torch.dtype,
        device: torch.device,
        quantization: GPTQSettings | None = None,
        rank: int = 0,
        world_size: int = 1,
        process_group: Any = None,
    ) -> None:
        self.files, self.layout = files, layout
        self.config = replace(config, tie_word_embeddings=layout.tied)
        self.dtype, self.device = dtype, device
        self.quantization = quantization
        self.rank, self.world_size, self.process_group = rank, world_size, process_group
        self.notes: list[str] = [*config.notes, *(quantization.notes if quantization else ())]
        self.notes += [layout.note] if layout.note else []

    @property
    def head_weight_name(self) -> str:
        """The embedding of a tied model, lm_head.weight otherwise."""
        return self.layout.head_weight_name

    def get_tensor(self, name: str) -> Tensor:
        """A whole tensor, such as a norm's weight."""
        return self._place(self.files.read(self.layout.stored(name)))

    def get_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of an embedding; rows past its end are zeros."""
        stored = self.layout.stored(name)
        rows, width = self.files.info(stored).shape
        inside = max(start, min(stop, rows))
        part = self._place(self.files.read(stored, (slice(start, inside),)))
        if inside == stop:
            return part
        missing = torch.zeros(stop - inside, width, dtype=self.dtype, device=self.device)
        return torch.cat([part, missing])

    def get_linear(
        self, prefix: str, *, out: Ranges | None = None, inp: Range | None = None
    ) -> tuple[Tensor, Tensor]:
        """(weight [out, in], bias [out]) of a layer such as transformer.h.0.attn.c_attn.

        `out` lists output ranges to keep, in this order, `inp` an input range. c_attn is always Q,
        then K, then V, whether the file fuses it, splits it or interleaves its heads. GPTQ layers
        are dequantised.
        """
        if self.quantization is not None:
            layers = self.get_gptq(prefix, out=out, inp=inp)
            parts = [layer.dequantize(self.dtype) for layer in layers]
        elif self._interleaved(prefix):
            parts = [self._read_float(prefix, None, inp)[self._head_order(out)]]
        else:
            parts = [self._read_float(*piece, inp) for piece in self._pieces(prefix, out)]
        weight = self._place(parts[0] if len(parts) == 1 else torch.cat(parts))
        return weight, self.get_bias(prefix, out)

    def get_bias(self, prefix: str, out: Ranges | None = None) -> Tensor:
        """The bias [out] of a layer, in the order of `get_linear`'s rows."""
        if self._interleaved(prefix):
            bias = self.files.read(self.layout.stored(f"{prefix}.bias"))
            return self._place(bias[self._head_order(out)])
        parts = [
            self.files.read(self.layout.stored(f"{base}.bias"), (slice(*part),))
            for base, part in self._pieces(prefix, out)
        ]
        return self._place(torch.cat(parts))

    def get_gptq(
        self, prefix: str, *, out: Ranges | None = None, inp: Range | None = None
    ) -> list[GPTQLinear]:
        """A quantised layer's integers, its ranges joined along the outputs; the bias is not in it.

        One element; two where the file splits q_attn and kv_attn and they group their inputs
        differently.
        """
        if self._interleaved(prefix):
            whole = self._read_gptq(prefix, None, inp)
            order = self._head_order(out).to(self.device)
            return [whole.columns(order)]
        joined: list[GPTQLinear] = []
        for base, part in self._pieces(prefix, out):
            layer = self._read_gptq(base, part, inp)
            if joined and torch.equal(joined[-1].g_idx, layer.g_idx):
                joined[-1] = _join(joined[-1], layer)
            else:
                joined.append(layer)
        return joined

    def _read_gptq(self, base: str, out: Range | None, inp: Range | None) -> GPTQLinear:
        assert self.quantization is not None, f"{base} is not quantised"
        stored = self.layout.stored(base)
        return read_layer(
            self.files, stored, self.quantization, out=out, inp=inp, device=self.device
        )

    def _read_float(self, base: str, out: Range | None, inp: Range | None) -> Tensor:
        """[out, in] of one stored layer, in the file's dtype."""
        stored = self.layout.stored(f"{base}.weight")
        rows, columns = (slice(None) if part is None else slice(*part) for part in (out, inp))
        if self.layout.transposed:
            return self.files.read(stored, (columns, rows)).t()
        return self.files.read(stored, (rows, columns))

    def _pieces(self, prefix: str, out: Ranges | None) -> list[tuple[str, Range]]:
        """The stored layers and row ranges that make up the ranges `out` of a logical layer.

        Ranges that touch are read as one; in a split file c_attn's are cut at the seam of q_attn
        and kv_attn.
        """
        module = module_of(prefix)
        total = linear_shape(self.config, module)[0]
        ranges: list[Range] = []
        for start, stop in out if out is not None else [(0, total)]:
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, stop))
        if module != "attn.c_attn" or not self.layout.split:
            return [(prefix, part) for part in ranges]
        head, seam = prefix.removesuffix("c_attn"), self.config.n_embd
        pieces = []
        for start, stop in ranges:
            if start < seam:
                pieces.append((f"{head}q_attn", (start, min(stop, seam))))
            if stop > seam:
                pieces.append((f"{head}kv_attn", (max(start, seam) - seam, stop - seam)))
        return pieces

    def _interleaved(self, prefix: str) -> bool:
        return prefix.endswith("c_attn") and not self.config.multi_query

    def _head_order(self, out: Ranges | None) -> Tensor:
        """Rows of an interleaved file, n_head x [q, k, v], in the order all q, all k, all v."""
        heads, size = self.config.n_head, self.config.head_dim
        order = torch.arange(3 * heads * size).view(heads, 3, size).transpose(0, 1).reshape(-1)
        return order if out is None else torch.cat([order[start:stop] for start, stop in out])

    def _place(self, tensor: Tensor) -> Tensor:
        """To the run's dtype and device, in memory of its own."""
        if tensor.is_contiguous():
            return tensor.to(device=self.device, dtype=self.dtype)
        # One copy that turns and converts; `to` would keep the strides and leave a second to do.
        placed = torch.empty(tensor.shape, dtype=self.dtype, device=self.device)
        return placed.copy_(tensor)


def _join(one: GPTQLinear, two: GPTQLinear) -> GPTQLinear:
    """Two layers of the same inputs and groups, side by side."""
    codes, zeros, scales = (
        torch.cat([getattr(one, part), getattr(two, part)], dim=1)
        for part in ("codes", "zeros", "scales")
    )
    exact = torch.promote_types(one.scales_dtype, two.scales_dtype)
    return replace(one, codes=codes, zeros=zeros, scales=scales, scales_dtype=exact)


def open_weights(
    directory: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    process_group: Any = None,
) -> Weights:
    """Open a checkpoint; all that headers can tell is checked before any weight is read."""
    files, layout, settings = inspect_checkpoint(directory, config)
    return Weights(
        files, config, layout, dtype=dtype, device=device, quantization=settings, rank=rank,
        world_size=world_size, process_group=process_group,
    )  # fmt: skip
