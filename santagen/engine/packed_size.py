"""Device memory of a GPTQ checkpoint's weights where they stay packed, from its headers.

The layout is kernels.gptq_layout's, and what is put together is as in model.quantized. Needs no
torch; reads headers and g_idx.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from santagen.checkpoint.gptq_checks import group_index
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.inspection import DTYPE_BYTES, Examination, parameter_count
from santagen.checkpoint.layout import ROOT
from santagen.checkpoint.reader import TensorFiles
from santagen.kernels.gptq_layout import PackedSize


def packed_bytes(found: Examination, dtype: str) -> int | None:
    """Bytes with everything that is not quantised in `dtype`; None where they can't be told.

    q_attn and kv_attn are one where they group their inputs alike; mlp.c_fc has an output for each
    input of mlp.c_proj, whose order is laid into it.
    """
    files, config, layout, settings = found.files, found.config, found.layout, found.settings
    if files is None or config is None or layout is None or settings is None:
        return None
    if any(part == "weights" for part, _ in found.refusals):
        return None
    total = DTYPE_BYTES[dtype] * parameter_count(config)["unquantised"]
    for layer in range(config.n_layer):
        parts = {
            module: _part(files, layout.stored(f"{ROOT}h.{layer}.{module}"), settings)
            for module in layout.modules
        }
        down, up = parts.pop("mlp.c_proj"), parts["mlp.c_fc"]
        total += down.outputs * down.size.output_bytes
        if down.size.ordered:
            parts["mlp.c_fc"] = replace(up, outputs=down.size.packed_inputs)
        query, rest = parts.pop("attn.q_attn", None), parts.get("attn.kv_attn")
        if query is not None and rest is not None:
            if np.array_equal(query.groups, rest.groups):
                parts["attn.kv_attn"] = replace(rest, outputs=query.outputs + rest.outputs)
            else:
                total += query.nbytes(alone=False) + parts.pop("attn.kv_attn").nbytes(alone=False)
        total += sum(part.nbytes() for part in parts.values())
    return total


@dataclass(frozen=True)
class _Part:
    """A stored layer: the group of each input, what that makes of it, and its outputs."""

    groups: np.ndarray
    size: PackedSize
    outputs: int

    def nbytes(self, alone: bool = True) -> int:
        """`alone` with its input, which what comes before can then write in its order."""
        nbytes, size = self.outputs * self.size.output_bytes, self.size
        if size.ordered:
            places = size.inputs if alone and size.inputs == size.packed_inputs else 0
            nbytes += 4 * (size.packed_inputs + places)
        return nbytes


def _part(files: TensorFiles, module: str, settings: GPTQSettings) -> _Part:
    words, outputs = files.info(f"{module}.qweight").shape
    groups = group_index(files, module, words * 32 // settings.bits, settings)
    scale_bytes = 4 if files.info(f"{module}.scales").dtype in ("F32", "F64") else 2
    return _Part(groups, PackedSize.of(groups, settings.bits, scale_bytes), outputs)
