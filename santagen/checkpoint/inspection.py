"""All that headers can tell of a checkpoint: its files, its layout, its quantisation, its sizes.

    inspect_checkpoint    checks everything, for who is about to load; the first fault is raised
    Examination           for who asks: goes on past a fault where it can, and keeps each of them

Reads headers, and of a GPTQ file the small integer tensors; never a weight. Needs no torch, but for
pickled .bin files that are about to be loaded. Tokenizer and memory are the command's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from santagen.checkpoint.gptq_checks import check_modules
from santagen.checkpoint.gptq_settings import SETTINGS_FILE, GPTQSettings, find_settings
from santagen.checkpoint.inspection_gptq import gptq_facts
from santagen.checkpoint.layout import (
    BUFFERS,
    FUSED,
    Layout,
    decide_layout,
    linear_shape,
)
from santagen.checkpoint.reader import TensorFiles, open_checkpoint
from santagen.checkpoint.source import refuse_broken_links
from santagen.config import ModelConfig
from santagen.errors import SantagenError

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
Result = TypeVar("Result")


def inspect_checkpoint(
    directory: Path, config: ModelConfig
) -> tuple[TensorFiles, Layout, GPTQSettings | None]:
    """Files, layout and quantisation of a checkpoint; raises SantagenError for what can't run."""
    files = _open(directory)
    settings = find_settings(directory, config, files)
    layout = decide_layout(files, config)
    if settings is not None:
        settings = check_modules(files, config, layout, settings)
    return files, layout, settings


def _open(directory: Path, *, without_torch: bool = False) -> TensorFiles:
    refuse_broken_links(directory)
    return open_checkpoint(directory, without_torch=without_torch)


@dataclass
class Examination:
    """What could be told of the checkpoint in `directory`; None where a fault hides it.

    `refusals` are (part, error): what a run would be refused for, in the order of a run.
    """

    directory: Path
    config: ModelConfig | None = None
    files: TensorFiles | None = None
    layout: Layout | None = None
    settings: GPTQSettings | None = None
    refusals: list[tuple[str, SantagenError]] = field(default_factory=list)

    @classmethod
    def of(cls, directory: Path) -> Examination:
        """Examine a model directory; what can be refused is kept, not raised."""
        found = cls(directory)
        found.config = found.attempt("config", lambda: ModelConfig.from_directory(directory))
        found.files = found.attempt("weights", lambda: _open(directory, without_torch=True))
        files, config = found.files, found.config
        if files is None or config is None:
            return found
        faults = len(found.refusals)
        found.settings = found.attempt("weights", lambda: find_settings(directory, config, files))
        if len(found.refusals) > faults:  # of a foreign method: the layout would only repeat it
            return found
        layout = found.layout = found.attempt("weights", lambda: decide_layout(files, config))
        settings = found.settings
        if layout is not None:
            found.config = replace(config, tie_word_embeddings=layout.tied)
        if layout is not None and settings is not None:
            checked = found.attempt(
                "weights", lambda: check_modules(files, config, layout, settings)
            )
            found.settings = checked or settings
        return found

    def attempt(self, part: str, step: Callable[[], Result]) -> Result | None:
        """The step's result; None, and a refusal, where it raises one."""
        try:
            return step()
        except SantagenError as error:
            self.refusals.append((part, error))
            return None

    def facts(self) -> dict[str, Any]:
        """Everything as JSON values; a part that can't be told is None."""
        return {
            "architecture": self.config and architecture_facts(self.config),
            "files": self.file_facts(),
            "layout": self.layout and {"summary": self.layout.describe(), **self.layout.facts()},
            "quantization": self._quantization(),
            "parameters": self.config and parameter_count(self.config),
        }

    def _quantization(self) -> dict[str, Any] | None:
        files, config, settings = self.files, self.config, self.settings
        if files is None or config is None:
            return None
        if settings is None:
            said = config.raw.get("quantization_config")
            quantised = said or (self.directory / SETTINGS_FILE).is_file()
            return {"refused": True} if quantised else None
        known = self.layout if not self.refusals else None
        return gptq_facts(self.directory, files, config, known, settings)

    def file_facts(self) -> dict[str, Any]:
        """The weight files: kind, sizes, and the tensors' dtypes where the headers can be read."""
        found = sorted(
            path
            for pattern in WEIGHT_PATTERNS
            for path in self.directory.glob(pattern)
            if path.is_file()
        )
        infos = dict(self.files.infos()) if self.files is not None else {}
        tensors = Counter(info.file for info in infos.values())
        used = [path for path in found if path.name in tensors] or found
        dtypes: dict[str, dict[str, int]] = {}
        for info in infos.values():
            entry = dtypes.setdefault(info.dtype, {"tensors": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["bytes"] += info.nbytes
        return {
            "kind": _kind([path.name for path in used]),
            "bytes": sum(path.stat().st_size for path in used),
            "list": [
                {"name": p.name, "bytes": p.stat().st_size, "tensors": tensors.get(p.name)}
                for p in used
            ],
            "unused": [path.name for path in found if path not in used],
            "dtypes": dtypes,
            "skipped_buffers": sum(bool(BUFFERS.fullmatch(name)) for name in infos),
        }


def _kind(names: list[str]) -> str:
    if not names:
        return "none"
    kind = "safetensors" if names[0].endswith(".safetensors") else "pickled .bin"
    return f"{kind}, {len(names)} shards" if len(names) > 1 else f"{kind}, one file"


def architecture_facts(config: ModelConfig) -> dict[str, Any]:
    """The shape and the maths, under the names of config.json."""
    names = (
        "model_type", "architectures", "n_layer", "n_embd", "n_head", "n_kv_head", "head_dim",
        "n_inner", "n_positions", "vocab_size", "activation", "layer_norm_epsilon", "multi_query",
        "scale_attn_weights", "tie_word_embeddings", "eos_token_ids", "torch_dtype",
    )  # fmt: skip
    values = {name: getattr(config, name) for name in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def parameter_count(config: ModelConfig) -> dict[str, int]:
    """Parameters by place; a tied head counts once. `unquantised` is what GPTQ leaves as floats."""
    embd = config.n_embd
    shapes = [linear_shape(config, module) for module in FUSED]
    matrices = config.n_layer * sum(out * inp for out, inp in shapes)
    biases = config.n_layer * sum(out for out, _ in shapes)
    norms = (4 * config.n_layer + 2) * embd
    head = 0 if config.tie_word_embeddings else config.vocab_size * embd
    embeddings = (config.vocab_size + config.n_positions) * embd
    return {
        "total": embeddings + head + matrices + biases + norms,
        "embeddings": embeddings,
        "head": head,
        "layers": matrices + biases + norms,
        "unquantised": embeddings + head + biases + norms,
    }


def run_dtype(config: ModelConfig) -> str:
    """What `--dtype auto` computes in on a GPU with bfloat16, which takes float16's place too."""
    own = str(config.torch_dtype).removeprefix("torch.")
    return "float32" if own == "float32" else "bfloat16"
