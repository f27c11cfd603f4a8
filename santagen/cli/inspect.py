"""`santagen inspect`: what a model directory holds, what a run would make of it, and what fits.

Headers, settings and tokenizer files are read; no weight is, and torch is not imported. The report
is a table on stderr, or one JSON object on standard output. Exit code 2 where a run would be
refused, with the reasons.
"""

from __future__ import annotations

from typing import Any

from santagen.checkpoint.inspection import DTYPE_BYTES, Examination, run_dtype
from santagen.checkpoint.inspection_hub import headers_source
from santagen.checkpoint.source import ModelSource
from santagen.cli.console import Console, report_error
from santagen.cli.inspect_memory import fit, sequence_length, too_small
from santagen.cli.inspect_options import InspectOptions
from santagen.cli.inspect_table import table
from santagen.cli.output import print_json
from santagen.cli.settings import Resolved
from santagen.config import ModelConfig
from santagen.engine.packed_size import packed_bytes
from santagen.errors import SantagenError
from santagen.io.tokenizer import Tokenizer, has_tokenizer


def run(settings: Resolved[InspectOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    if not 0 < options.gpu_memory_utilization <= 1:
        raise SantagenError(
            f"--gpu-memory-utilization is {options.gpu_memory_utilization}; it must be above 0 and "
            "at most 1.",
            "0.9 is the default.",
        )
    with headers_source(options.model, revision=options.revision, token=options.hf_token) as source:
        found = Examination.of(source.path)
        report = build_report(source, found, options)
    console = Console()
    if options.json:
        print_json(report)
    else:
        for line in table(report):
            console.say(line)
    for note in report["notes"]:
        console.warn(note)
    for _, error in found.refusals:
        report_error(error)
    return 2 if found.refusals else 0


def build_report(
    source: ModelSource, found: Examination, options: InspectOptions
) -> dict[str, Any]:
    """All facts as JSON values. Refusals that come to light here are added to `found`."""
    facts = found.facts()
    sizes = _sizes(found, facts, options) if found.config is not None else {}
    tokenizer = found.attempt("tokenizer", lambda: _tokenizer_facts(source, found.config, options))
    return {
        "model": source.name,
        "revision": source.revision,
        "runs": not found.refusals,
        "refusals": [
            {"part": part, "message": error.message, "hint": error.hint}
            for part, error in found.refusals
        ],
        "notes": _notes(found, facts, tokenizer),
        **facts,
        **sizes,
        "tokenizer": tokenizer,
    }


def _sizes(found: Examination, facts: dict[str, Any], options: InspectOptions) -> dict[str, Any]:
    """Weights and cache in the dtype of a run, and what fits --memory."""
    config = found.config
    assert config is not None, "sizes come from config.json"
    length = sequence_length(config, options.max_model_len)
    dtype = run_dtype(config) if options.dtype == "auto" else options.dtype
    width = DTYPE_BYTES[dtype]
    weights = {dtype: facts["parameters"]["total"] * width}
    if facts["quantization"] is not None and (packed := packed_bytes(found, dtype)) is not None:
        weights = {f"dequantised to {dtype}": weights[dtype], "kept packed": packed}
    per_token = config.kv_bytes_per_token(width)
    sizes: dict[str, Any] = {
        "weights": {"dtype": dtype, "bytes": weights},
        "kv_cache": {
            "dtype": dtype,
            "bytes_per_token": per_token,
            "max_model_len": length,
            "bytes_per_sequence": length * per_token,
        },
        "memory": None,
    }
    if options.memory is not None:
        share = options.gpu_memory_utilization
        plans = {
            name: fit(
                config, memory=options.memory, utilization=share, weight_bytes=size,
                value_bytes=width, length=length,
            )
            for name, size in weights.items()
        }  # fmt: skip
        sizes["memory"] = {"bytes": options.memory, "utilization": share, "plans": plans}
        refusal = too_small(options.memory, list(plans.values()))
        if refusal is not None:
            found.refusals.append(("memory", refusal))
    return sizes


def _tokenizer_facts(
    source: ModelSource, config: ModelConfig | None, options: InspectOptions
) -> dict[str, Any] | None:
    """Spelling, end tokens, and ids that only one of tokenizer and model has; None without one."""
    if options.tokenizer is not None:
        with headers_source(options.tokenizer, token=options.hf_token) as other:
            tokenizer = Tokenizer.from_directory(other.path, config)
    elif has_tokenizer(source.path):
        tokenizer = Tokenizer.from_directory(source.path, config)
    else:
        return None
    names = {number: token for token, number in tokenizer.vocabulary.items()}
    fim = tokenizer.fim
    facts: dict[str, Any] = {
        **tokenizer.facts(),
        "eos": [{"id": number, "token": names.get(number)} for number in tokenizer.eos_ids],
        "fim_ids": fim and {w: getattr(fim, w) for w in ("prefix", "middle", "suffix", "pad")},
    }
    if config is not None:
        rows = config.vocab_size
        facts["model_rows"] = rows
        facts["rows_without_token"] = int(rows - tokenizer.known_ids_mask(rows).sum())
        facts["tokens_without_row"] = sum(number >= rows for number in names)
    return facts


def _notes(
    found: Examination, facts: dict[str, Any], tokenizer: dict[str, Any] | None
) -> list[str]:
    """What is no fault and yet should be known before a run."""
    config, notes = found.config, list(found.config.notes if found.config else ())
    notes += found.settings.notes if found.settings else ()
    notes += [found.layout.note] if found.layout and found.layout.note else []
    if facts["files"]["unused"]:
        notes.append(f"not read: {', '.join(facts['files']['unused'])}")
    if config is not None and str(config.torch_dtype).removeprefix("torch.") == "float16":
        notes.append("float16 weights run as bfloat16: this family overflows in float16")
    if tokenizer is None:
        if not any(part == "tokenizer" for part, _ in found.refusals):
            notes.append("no tokenizer files: only rows of prompt_token_ids can run")
        return notes
    if tokenizer["fim"] is None:
        notes.append("the tokenizer has no FIM tokens: infilling rows can't run")
    if not tokenizer["end_ids"]:
        notes.append("no end token is known: samples end at a stop string or by length")
    if tokenizer.get("tokens_without_row"):
        notes.append(
            f"{tokenizer['tokens_without_row']:,} tokens of the tokenizer have no row in the "
            "model: prompts that need them fail"
        )
    return notes
