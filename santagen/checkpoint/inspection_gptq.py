"""What is to be said of a GPTQ checkpoint: its settings, its form, and what each rests on.

Describes what gptq_settings.py found and gptq_checks.py checked; decides and refuses nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from santagen.checkpoint.gptq_settings import SETTINGS_FILE, GPTQSettings
from santagen.checkpoint.layout import ROOT, Layout
from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig, read_json

MANY_VALUES = 4  # more zero points than this are counted, not listed


def gptq_facts(
    directory: Path,
    files: TensorFiles,
    config: ModelConfig,
    layout: Layout | None,
    settings: GPTQSettings,
) -> dict[str, Any]:
    """Settings, form and how the form was told; without a sound `layout`, settings only."""
    facts: dict[str, Any] = {
        "method": "gptq",
        "bits": settings.bits,
        "group_size": settings.group_size,
        "sym": settings.sym,
        "desc_act": settings.desc_act,
        "source": settings.source,
        "notes": list(settings.notes),
    }
    if layout is None:
        return facts
    modules = [
        layout.stored(f"{ROOT}h.{layer}.{module}")
        for layer in range(config.n_layer)
        for module in layout.modules
    ]
    stored = Counter(_g_idx(files, module, settings) for module in modules)
    zeros = _stored_zeros(files, modules[0], settings.bits)
    return {
        **facts,
        "layers": len(modules),
        "act_order": stored["act-order"] > 0,
        "g_idx": dict(stored),
        "scales_dtype": files.info(f"{modules[0]}.scales").dtype,
        "format": settings.zero_rule,
        "format_why": _why(settings, _label(directory, config), zeros, modules[0]),
    }


def _g_idx(files: TensorFiles, module: str, settings: GPTQSettings) -> str:
    """Whether a layer's rows are grouped in input order, and what says so."""
    name = f"{module}.g_idx"
    if name not in files:
        return "in order (no g_idx)"
    index = files.read_array(name)
    if not index.any() and settings.groups(len(index)) > 1:
        return "in order (g_idx all zero)"
    size = len(index) if settings.group_size == -1 else settings.group_size
    in_order = np.array_equal(index, np.arange(len(index)) // size)
    return "in order" if in_order else "act-order"


def _stored_zeros(files: TensorFiles, module: str, bits: int) -> list[int]:
    """The distinct values in the packed zero points of a layer, as they are stored."""
    words = files.read_array(f"{module}.qzeros")  # [groups, N * bits / 32], a stream along N
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    fields = stream.reshape(-1, bits) @ (1 << np.arange(bits))
    return [int(value) for value in np.unique(fields)]


def _label(directory: Path, config: ModelConfig) -> str | None:
    """checkpoint_format as the settings spell it; None where nothing does."""
    places: list[Any] = [config.raw.get("quantization_config")]
    if (directory / SETTINGS_FILE).is_file():
        places.append(read_json(directory / SETTINGS_FILE, "download it again"))
    for settings in places:
        if isinstance(settings, dict):
            label = settings.get("checkpoint_format") or settings.get("format")
            if label:
                return str(label)
    return None


def _why(settings: GPTQSettings, label: str | None, zeros: list[int], module: str) -> str:
    """What told the form of the zero points."""
    said = f"the label {label}" if label else "no label, which means v1"
    if settings.zero_rule == "v1-word":
        return f"{said}; gptqmodel made it, which subtracts 1 from whole words of asymmetric files"
    if not settings.sym:
        return f"{said}; an asymmetric file's values don't tell"
    labelled = "v2" if label == "gptq_v2" else "v1"
    if labelled != settings.zero_rule:
        return f"the stored zero points ({zeros[0]}), against {said}"
    middle = 2 ** (settings.bits - 1)
    if zeros == [middle if settings.zero_rule == "v2" else middle - 1]:
        return f"{said}; the stored zero point {zeros[0]} of {module} agrees"
    shown = ", ".join(map(str, zeros)) if len(zeros) <= MANY_VALUES else f"{len(zeros)} values"
    return f"{said}; the stored zero points of {module} ({shown}) don't tell"
