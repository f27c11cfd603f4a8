"""What the checkpoint tests share: reading all weights, and spoiling a written checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.weights import Weights, open_weights
from santagen.config import ModelConfig
from tests.fixture_writer import read_safetensors, write_safetensors

CPU = torch.device("cpu")
MODULES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def open_float32(directory: Path) -> Weights:
    config = ModelConfig.from_directory(directory)
    return open_weights(directory, config, dtype=torch.float32, device=CPU)


def standard_weights(weights: Weights) -> dict[str, Tensor]:
    """Every tensor the model asks for, by its standard name."""
    config = weights.config
    embedding, head = "transformer.wte.weight", weights.head_weight_name
    found = {
        name: weights.get_rows(name, 0, config.vocab_size)
        for name in dict.fromkeys([embedding, head])
    }
    positions = "transformer.wpe.weight"
    found[positions] = weights.get_rows(positions, 0, config.n_positions)
    norms = ["transformer.ln_f"]
    for layer in range(config.n_layer):
        base = f"transformer.h.{layer}"
        norms += [f"{base}.ln_1", f"{base}.ln_2"]
        for module in MODULES:
            weight, bias = weights.get_linear(f"{base}.{module}")
            found |= {f"{base}.{module}.weight": weight, f"{base}.{module}.bias": bias}
    for norm in norms:
        found |= {
            f"{norm}.{part}": weights.get_tensor(f"{norm}.{part}") for part in ("weight", "bias")
        }
    return found


def change(folder: Path, name: str, value: Any, dtype: str = "I32") -> None:
    """Replace (or with None remove) one tensor of a written checkpoint."""
    tensors = read_safetensors(folder / "model.safetensors")
    if value is None:
        del tensors[name]
    else:
        tensors[name] = (dtype, value(tensors[name][1]) if callable(value) else value)
    write_safetensors(folder / "model.safetensors", tensors)


def settings_in(folder: Path, file: str, **changes: Any) -> None:
    """Write quantisation settings to quantize_config.json, or change those of config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    known = config.pop("quantization_config", {})
    if file == "config.json":
        path.write_text(json.dumps({**config, "quantization_config": {**known, **changes}}))
    elif file == "quantize_config.json":
        known.pop("quant_method", None)
        (folder / file).write_text(json.dumps({**known, **changes}))
    else:
        path.write_text(json.dumps(config))
