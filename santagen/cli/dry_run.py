"""`santagen generate --dry-run`: everything that can be known without the weights.

Prompts are validated and tokenised and the checkpoint's headers are read; nothing is generated or
written.
"""

from __future__ import annotations

from santagen.cli.console import Console
from santagen.cli.generate_inputs import Inputs
from santagen.cli.interrupt import ENGINE, import_whole
from santagen.cli.model import engine_settings
from santagen.cli.options import GenerateOptions
from santagen.cli.rows_progress import RowsProgress, shows_rows
from santagen.config import EngineConfig, ModelConfig
from santagen.io.requests import RequestBuilder
from santagen.request import RowFailure


def dry_run(options: GenerateOptions, inputs: Inputs, console: Console) -> int:
    """Report on the input and the model; exit code 1 where rows would fail."""
    import_whole(*ENGINE)
    from santagen.checkpoint.gptq_choice import check_choice, describe
    from santagen.checkpoint.inspection import inspect_checkpoint
    from santagen.engine.resolve import load_tokenizer

    source = inputs.source
    config = ModelConfig.from_directory(source.path)
    *_, gptq = inspect_checkpoint(source.path, config)
    check_choice(options.quantization, gptq)
    builder = RequestBuilder(
        load_tokenizer(EngineConfig(**engine_settings(options)), source, config),
        vocab_size=config.vocab_size,
        max_len=min(options.max_model_len or config.n_positions, config.n_positions),
        defaults=inputs.params,
        fim_mode=options.fim_mode,
        truncate=options.truncate,
    )
    failures = list(inputs.prompts.failures)
    rows = samples = tokens = longest = truncated = 0
    with RowsProgress("tokenising", len(inputs.prompts), shows_rows(options)) as progress:
        for request in builder.build_many(progress.over(inputs.prompts)):
            if isinstance(request, RowFailure):
                failures.append(request)
                continue
            rows += 1
            samples += len(request.sample_indices)
            tokens += len(request.prompt_token_ids)
            longest = max(longest, len(request.prompt_token_ids))
            truncated += request.truncated_tokens > 0
    for note in config.notes:
        console.warn(note)
    console.remarks(builder.warnings)
    for failure in failures:
        console.warn(failure.error, failure.hint)
    for line in (
        f"model {source.name}: {config.n_layer} layers of {config.n_embd}, "
        f"{config.n_positions:,} positions",
        *([f"{describe(gptq)}; --quantization {options.quantization}"] if gptq else []),
        f"rows: {rows:,} would run, {len(failures):,} would fail, {truncated:,} would be truncated",
        f"prompt tokens: {tokens:,}, at most {longest:,} in one prompt",
        f"samples: {samples:,}",
    ):
        console.say(line)
    return 1 if failures else 0
