"""Weights that no file holds: random numbers of a model's shape, drawn on the device.

For measurements, which need a model's shape and not what it learned. A tensor depends on its name
and shape alone, so that every rank of every world size sees slices of one model. Nothing is read
or written but a config.json where one is named. Only float models in the fused Linear layout; a
config's quantisation is left out, and said so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.layout import HEAD, ROOT, Layout, linear_shape, module_of
from santagen.checkpoint.source import ModelSource
from santagen.checkpoint.weights import Range, Ranges, Weights
from santagen.config import ModelConfig, read_json
from santagen.errors import SantagenError

STD = 0.02  # the family's initializer_range

_WIDE = {"n_embd": 6144, "n_head": 48, "n_positions": 8192, "vocab_size": 49152}
SHAPES: dict[str, dict[str, int]] = {
    "santacoder": {
        "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_positions": 2048, "vocab_size": 49280,
    },
    "starcoder": {**_WIDE, "n_layer": 40},
    "granite-20b": {**_WIDE, "n_layer": 52},
    "granite-34b": {**_WIDE, "n_layer": 88},
}  # fmt: skip


@dataclass(frozen=True)
class RandomModel(ModelSource):
    """A model that exists as a shape alone. `path` is where its config.json lies, if anywhere."""

    config: ModelConfig = field(kw_only=True)


def random_model(name: str) -> RandomModel:
    """The shape that `name` stands for: a config.json, a directory with one, or one of SHAPES.

    What exists on disk wins over a named shape. Raises SantagenError where it is none of them.
    """
    path = Path(name).expanduser()
    if path.is_file():
        config = ModelConfig.from_dict(read_json(path, "name a config.json"), str(path))
        return RandomModel(path.parent, f"random weights of {name}", config=config)
    if (path / "config.json").is_file():
        config = ModelConfig.from_directory(path)
        return RandomModel(path, f"random weights of {name}", config=config)
    if name not in SHAPES:
        raise SantagenError(
            f"--random-weights {name} is no config.json, no directory with one and no known shape.",
            f"Known shapes are {', '.join(SHAPES)}.",
        )
    raw = {"model_type": "gpt_bigcode", "torch_dtype": "bfloat16", **SHAPES[name]}
    config = ModelConfig.from_dict(raw, name)
    return RandomModel(Path(), f"random weights, shape {name}", config=config)


class RandomWeights(Weights):
    """The part of `Weights` that a float model asks for, without files behind it."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
        process_group: Any = None,
    ) -> None:
        tied = config.tie_word_embeddings
        self.config, self.dtype, self.device = config, dtype, device
        self.layout = Layout(
            transposed=False, split=False, tied=tied, bare=False, has_wte=True, has_head=not tied,
            quantised=False, why="random weights are made that way",
        )  # fmt: skip
        self.quantization = None
        self.rank, self.world_size, self.process_group = rank, world_size, process_group
        self.notes = [*config.notes]
        if config.raw.get("quantization_config"):
            self.notes.append("random weights are not quantised, whatever config.json says")

    def get_tensor(self, name: str) -> Tensor:
        """A norm's weight [n_embd], near 1, or its bias, near 0."""
        drawn = self._draw(name, self.config.n_embd)
        return self._place(drawn + 1 if name.endswith(".weight") else drawn)

    def get_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of an embedding or the head; rows past its end are zeros."""
        config = self.config
        rows = {
            f"{ROOT}wte.weight": config.vocab_size,
            f"{ROOT}wpe.weight": config.n_positions,
            HEAD: config.vocab_size,
        }[name]
        table = self._draw(name, rows, config.n_embd)[start:stop]
        missing = stop - start - len(table)
        return self._place(torch.nn.functional.pad(table, (0, 0, 0, missing)))

    def get_linear(
        self, prefix: str, *, out: Ranges | None = None, inp: Range | None = None
    ) -> tuple[Tensor, Tensor]:
        """(weight [out, in], bias [out]); see `Weights.get_linear`."""
        weight = self._draw(f"{prefix}.weight", *self._shape(prefix))
        if inp is not None:
            weight = weight[:, slice(*inp)]
        return self._place(_ranges(weight, out)), self.get_bias(prefix, out)

    def get_bias(self, prefix: str, out: Ranges | None = None) -> Tensor:
        return self._place(_ranges(self._draw(f"{prefix}.bias", self._shape(prefix)[0]), out))

    def _shape(self, prefix: str) -> tuple[int, int]:
        return linear_shape(self.config, module_of(prefix))

    def _draw(self, name: str, *size: int) -> Tensor:
        """The whole tensor of that name, float32 on the device: normal, of deviation STD."""
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(size, generator=generator, device=self.device).mul_(STD)


def _ranges(tensor: Tensor, out: Ranges | None) -> Tensor:
    if out is None:
        return tensor
    return torch.cat([tensor[start:stop] for start, stop in out])
