"""What the commands that run a model share: finding it once, and the engine's settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from santagen.cli.console import Console
from santagen.cli.interrupt import ENGINE, import_whole
from santagen.config import EngineConfig

if TYPE_CHECKING:
    from santagen.checkpoint.source import ModelSource


class ModelOptions(Protocol):
    """The options that name a model."""

    @property
    def model(self) -> str | None: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def hf_token(self) -> str | None: ...


def find_model(options: ModelOptions, console: Console) -> ModelSource:
    """The model's directory, downloaded where needed; says so when it is the bundled one."""
    from santagen.checkpoint.source import resolve_model

    if options.model is None:
        console.say("no -m given: using the small model that ships with santagen")
    return resolve_model(options.model, revision=options.revision, token=options.hf_token)


def engine_settings(options: object) -> dict[str, Any]:
    """The options that are the engine's, under EngineConfig's names; the model itself is left
    out."""
    names = [field.name for field in dataclasses.fields(EngineConfig) if field.name != "model"]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def numerics(options: Any, source: ModelSource) -> dict[str, str | None]:
    """What else decides the bytes, as it will be in force: "device", "dtype", "tokenizer"."""
    import_whole(*ENGINE)
    from santagen.checkpoint.source import resolve_tokenizer, tokenizer_fingerprint
    from santagen.config import ModelConfig
    from santagen.engine.resolve import choose_device, choose_dtype

    device = choose_device(options.device)
    dtype, _ = choose_dtype(options.dtype, ModelConfig.from_directory(source.path), device)
    tokenizer = source
    if options.tokenizer is not None:
        tokenizer = resolve_tokenizer(options.tokenizer, token=options.hf_token)
    return {
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "tokenizer": tokenizer_fingerprint(tokenizer.path),
    }
