"""The weights as the model asks for them: Linear orientation, this rank's slices, the run's dtype and device.

Reads each tensor (or the part this rank needs) when it is asked for and frees the file's copy at once, so the peak of
host memory is about one tensor above the model. What the file calls and transposes is hidden here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.gptq import GPTQSettings, check_modules, dequantise, find_settings
from santagen.checkpoint.layout import ROOT, Layout, decide_layout
from santagen.checkpoint.reader import TensorFiles, open_checkpoint
from santagen.config import ModelConfig

Ranges = Sequence[tuple[int, int]]


class Weights:
    """Rank `rank` of `world_size` of one checkpoint. `notes` are remarks for the user (a label overruled, say)."""

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
        self.files, self.config, self.layout = files, config, layout
        self.dtype, self.device = dtype, device
        self.quantization = quantization
        self.rank, self.world_size, self.process_group = rank, world_size, process_group
        self.notes: list[str] = list(quantization.notes) if quantization is not None else []

    def get_tensor(self, name: str) -> Tensor:
        """A whole tensor, such as a norm's weight."""
        return self._place(self.files.read(self.layout.stored(name)))

    def get_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of an embedding; rows past its end are zeros."""
        stored = self.layout.stored(name)
        rows, width = self.files.info(stored).shape
        inside = min(stop, rows)
        if start >= inside:
            return torch.zeros(stop - start, width, dtype=self.dtype, device=self.device)
        part = self._place(self.files.read(stored, (slice(start, inside),)))
        missing = stop - inside
        return torch.nn.functional.pad(part, (0, 0, 0, missing)) if missing else part

    def get_linear(
        self, prefix: str, *, out: Ranges | None = None, inp: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(weight [out, in], bias [out]) of a layer such as transformer.h.0.attn.c_attn.

        `out` lists row ranges to keep, `inp` a column range. c_attn is always Q, then K, then V, whether the
        file fuses it, splits it into q_attn and kv_attn, or interleaves its heads.
        """
        head, _, leaf = prefix.rpartition(".")
        if self.layout.split and leaf == "c_attn":
            return self._joined(head, out, inp)
        if leaf == "c_attn" and not self.config.multi_query:
            return self._deinterleaved(prefix, out)
        weight = self._matrix(prefix, out, inp)
        bias = self.files.read(self.layout.stored(f"{prefix}.bias"))
        if out is not None:
            bias = torch.cat([bias[start:stop] for start, stop in out])
        return weight, self._place(bias)

    def _matrix(self, prefix: str, out: Ranges | None, inp: tuple[int, int] | None) -> Tensor:
        """[out, in] of one stored layer."""
        if self.quantization is not None:
            weight = dequantise(self.files, self.layout.stored(prefix), self.quantization)
            weight = weight if inp is None else weight[:, inp[0] : inp[1]]
            if out is not None:
                weight = torch.cat([weight[start:stop] for start, stop in out])
            return self._place(weight)
        stored = self.layout.stored(f"{prefix}.weight")
        columns = slice(None) if inp is None else slice(*inp)
        parts = []
        for rows in [slice(None)] if out is None else [slice(*pair) for pair in out]:
            if self.layout.transposed:
                parts.append(self.files.read(stored, (columns, rows)).t())
            else:
                parts.append(self.files.read(stored, (rows, columns)))
        return self._place(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _joined(
        self, head: str, out: Ranges | None, inp: tuple[int, int] | None
    ) -> tuple[Tensor, Tensor]:
        """c_attn from q_attn and kv_attn: each range lies in one of them, or is cut at their seam."""
        seam = self.config.n_embd
        total = seam + 2 * self.config.n_kv_head * self.config.head_dim
        weights, biases = [], []
        for start, stop in out if out is not None else [(0, total)]:
            for name, first, last, base in (
                ("q_attn", start, min(stop, seam), 0),
                ("kv_attn", max(start, seam), stop, seam),
            ):
                if first < last:
                    part = (first - base, last - base)
                    weights.append(self._matrix(f"{head}.{name}", [part], inp))
                    bias = self.files.read(self.layout.stored(f"{head}.{name}.bias"))
                    biases.append(self._place(bias[part[0] : part[1]]))
        return torch.cat(weights), torch.cat(biases)

    def _deinterleaved(self, prefix: str, out: Ranges | None) -> tuple[Tensor, Tensor]:
        """multi_query false: rows lie as n_head x [q, k, v]; the model wants all q, all k, all v."""
        heads, size = self.config.n_head, self.config.head_dim
        order = torch.arange(3 * heads * size).view(heads, 3, size).transpose(0, 1).reshape(-1)
        if out is not None:
            order = torch.cat([order[start:stop] for start, stop in out])
        weight = self._matrix(prefix, None, None).index_select(0, order.to(self.device))
        bias = self.files.read(self.layout.stored(f"{prefix}.bias"))[order]
        return weight, self._place(bias)

    def _place(self, tensor: Tensor) -> Tensor:
        """To the run's dtype and device, as memory of its own (a slice must not keep a file mapped)."""
        placed = tensor.to(device=self.device, dtype=self.dtype)
        return placed.clone(memory_format=torch.contiguous_format) if placed is tensor else placed.contiguous()


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
    """Open and check a checkpoint. Everything that headers can tell is checked before any weight is read."""
    files, layout, settings = inspect_checkpoint(directory, config)
    return Weights(
        files, config, layout, dtype=dtype, device=device, quantization=settings, rank=rank,
        world_size=world_size, process_group=process_group,
    )


def inspect_checkpoint(
    directory: Path, config: ModelConfig
) -> tuple[TensorFiles, Layout, GPTQSettings | None]:
    """Files, layout and quantisation of a checkpoint, checked; raises SantagenError for what can't run."""
    files = open_checkpoint(directory)
    settings = find_settings(directory, config, files)
    layout = decide_layout(files, config)
    if settings is not None:
        settings = check_modules(files, config, layout, settings)
    return files, layout, settings


__all__ = ["ROOT", "Weights", "inspect_checkpoint", "open_weights"]
