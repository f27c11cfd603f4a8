"""What a bench would be refused for once its model is loaded, told before: nothing is shown yet.

Reads headers and tokenizer files and asks how much memory is free; reads no weight and allocates
none of that memory. What only loading can tell, LLM tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from santagen.bench.cases import Case
from santagen.cli.bench_options import BenchOptions
from santagen.cli.model import engine_settings
from santagen.config import EngineConfig, ModelConfig
from santagen.errors import SantagenError

if TYPE_CHECKING:
    import torch

    from santagen.checkpoint.source import ModelSource


def bench_settings(options: BenchOptions, cases: list[Case]) -> dict[str, Any]:
    """The engine's settings; without --max-num-seqs the largest batch fits just so."""
    settings = engine_settings(options)
    if settings["max_num_seqs"] is None:
        settings["max_num_seqs"] = max(case.batch_size for case in cases)
    return settings


def check_run(
    options: BenchOptions,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    cases: list[Case],
) -> ModelConfig:
    """Refuse, as a SantagenError, what the checkpoint, the engine or the machine won't have.

    Returns the model's shape, with the head that is stored.
    """
    from santagen.engine.memory import MAX_ROWS, plan_cache
    from santagen.engine.resolve import load_tokenizer
    from santagen.model.attention import select_attention

    largest = max(case.batch_size for case in cases)
    if options.max_num_seqs is None and largest > MAX_ROWS:
        raise SantagenError(
            f"--batch-sizes {largest} is more than {MAX_ROWS}, the most sequences that run "
            "together.",
            "Give smaller sizes.",
        )
    config = _check_weights(options, source, device, dtype)
    settings = EngineConfig(**bench_settings(options, cases))
    load_tokenizer(settings, source, config)
    attention = select_attention(
        settings.attention, device, dtype, config, settings.block_size, settings.invariant
    )
    plan_cache(settings, config, attention.backend, dtype, device)
    return config


def _check_weights(
    options: BenchOptions, source: ModelSource, device: torch.device, dtype: torch.dtype
) -> ModelConfig:
    """That the files are those of a model that runs, and can be had as --quantization says."""
    from santagen.checkpoint.gptq_choice import check_choice
    from santagen.checkpoint.inspection import Examination
    from santagen.checkpoint.random_weights import RandomModel
    from santagen.model.fp8 import check_fp8

    packed = None
    if isinstance(source, RandomModel):
        config = source.config
    else:
        found = Examination.of(source.path)
        for _, error in found.refusals:
            raise error
        assert found.config is not None, "an examination without refusals has a config"
        config, packed = found.config, found.settings
    check_choice(options.quantization, packed)
    if options.quantization == "fp8":
        check_fp8(config, dtype, device)
    return config
