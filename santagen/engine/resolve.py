"""What a run's settings come to on this machine: the model's shape, its tokenizer, its device and
number format. Loads no weights."""

from __future__ import annotations

import torch

from santagen.checkpoint.random_weights import RandomModel
from santagen.checkpoint.source import ModelSource, resolve_tokenizer
from santagen.config import EngineConfig, ModelConfig
from santagen.errors import SantagenError
from santagen.io.tokenizer import Tokenizer, has_tokenizer

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def model_config(source: ModelSource) -> ModelConfig:
    """The shape of a model: a random one brings its own, any other has a config.json."""
    if isinstance(source, RandomModel):
        return source.config
    return ModelConfig.from_directory(source.path)


def load_tokenizer(
    settings: EngineConfig, source: ModelSource, config: ModelConfig
) -> Tokenizer | None:
    """The tokenizer of --tokenizer, else the model's own; None where the model has no tokenizer
    files."""
    path = source.path
    if settings.tokenizer is not None:
        path = resolve_tokenizer(settings.tokenizer, token=settings.hf_token).path
    elif isinstance(source, RandomModel) or not has_tokenizer(path):
        return None
    return Tokenizer.from_directory(path, config)


def choose_device(name: str) -> torch.device:
    """The device that --device names; auto is CUDA where torch sees it."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if name not in ("auto", "cuda"):
        raise SantagenError(f"--device {name} is not known.", "Choose auto, cuda or cpu.")
    if not torch.cuda.is_available():
        raise SantagenError(
            "--device cuda was asked for, but torch sees no CUDA device.",
            "Check the driver and that torch is a CUDA build, or use --device cpu.",
        )
    return torch.device("cuda", torch.cuda.current_device())


def choose_dtype(choice: str, config: ModelConfig, device: torch.device) -> tuple[torch.dtype, str]:
    """(dtype, note): auto is float32 on the CPU and the checkpoint's own on CUDA, float16 read as
    bfloat16."""
    if choice != "auto":
        if choice not in DTYPES:
            raise SantagenError(
                f"--dtype {choice} is not known.", f"Choose auto or one of {', '.join(DTYPES)}."
            )
        return DTYPES[choice], ""
    if device.type == "cpu":
        return torch.float32, ""
    own = DTYPES.get(str(config.torch_dtype).removeprefix("torch."), torch.bfloat16)
    if own == torch.float16 and torch.cuda.is_bf16_supported():
        return torch.bfloat16, "float16 weights run as bfloat16: this family overflows in float16"
    return own, ""
