"""The options of `santagen generate`, one line each, in the order and panels of the help.

Other commands take some of them over with `like_generate`. How a value is read, and which source
wins, is `cli.settings`' business; what it does, the command's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from santagen.cli.settings import (
    ESCAPED_TEXTS,
    NUMBER,
    SIZE,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    choice,
    option,
)

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class GenerateOptions:
    """Everything `santagen generate` can be told."""

    prompts: tuple[str, ...] = option("Prompts", TEXTS, (), help="Files of prompts: .jsonl, .jsonl.gz, .json, - for JSONL on stdin, or a text file that is one prompt.")
    dataset: str | None = option("Prompts", TEXT, None, "--dataset", help="Read prompts from this data set: a hub name, or a local parquet or csv file.")
    split: str | None = option("Prompts", TEXT, None, "--split", help="Part of the data set to read, such as test; needed where it has several.")
    prompt_column: str | None = option("Prompts", TEXT, None, "--prompt-column", help="The field that holds the prompt.", shown_default="prompt")
    fim_mode: str = option("Prompts", choice("psm", "spm"), "psm", "--fim-mode", help="Order of an infilling prompt: prefix-suffix-middle or suffix-prefix-middle.")
    trim_overlap: bool = option("Prompts", SWITCH, False, "--trim-overlap", help="Cut from the end of an infilled text what repeats the start of the suffix; the record keeps it as trimmed_overlap.")

    model: str | None = option("Model", TEXT, None, "--model", "-m", help="Hub id or local directory.", shown_default="the small bundled model")
    revision: str | None = option("Model", TEXT, None, "--revision", help="Branch, tag or commit on the hub.")
    hf_token: str | None = option("Model", TEXT, None, "--hf-token", help="Token for the hub; HF_TOKEN works too.", secret=True)
    tokenizer: str | None = option("Model", TEXT, None, "--tokenizer", help="Directory or hub id of the tokenizer.", shown_default="the model's own")
    dtype: str = option("Model", choice("auto", "bfloat16", "float16", "float32"), "auto", "--dtype", help="Number format to compute in; auto is float32 on the CPU and the checkpoint's own on a GPU, bfloat16 for float16.")
    device: str = option("Model", choice("auto", "cuda", "cpu"), "auto", "--device", help="Where to run; auto is a GPU where torch sees one.")
    quantization: str = option("Model", choice("auto", "none", "gptq", "fp8"), "auto", "--quantization", help="A GPTQ model's weights: gptq keeps them packed, none dequantises them at load, auto chooses by memory and batch. fp8: any model's products in float8, on a GPU.")
    attention: str = option("Model", choice("auto", "flash", "triton", "torch"), "auto", "--attention", help="Attention backend; auto takes the fastest that works here, and says why no faster one does.")

    max_tokens: int = option("Sampling", SIZE, 256, "--max-tokens", "--max-new-tokens", help="Most tokens to generate per sample.")
    temperature: float = option("Sampling", NUMBER, 0.0, "--temperature", help="0 is greedy; higher is more varied.")
    top_p: float = option("Sampling", NUMBER, 1.0, "--top-p", help="Draw from the likeliest tokens that together reach this probability.")
    top_k: int = option("Sampling", WHOLE, 0, "--top-k", help="Draw from the K likeliest tokens; 0 is off.")
    min_p: float = option("Sampling", NUMBER, 0.0, "--min-p", help="Drop tokens less likely than this share of the likeliest; 0 is off.")
    repetition_penalty: float = option("Sampling", NUMBER, 1.0, "--repetition-penalty", help="Above 1 discourages tokens already seen; 1 is off.")
    n: int = option("Sampling", WHOLE, 1, "--n", "-n", help="Samples per prompt; more than 1 need a --temperature above 0.")
    seed: int = option("Sampling", WHOLE, 0, "--seed", help="Seed of every sample's random numbers.")
    stop: tuple[str, ...] = option("Sampling", ESCAPED_TEXTS, (), "--stop", help=r"End a sample at this text; \n, \t and \\ are decoded. Repeatable.")
    include_stop: bool = option("Sampling", SWITCH, False, "--include-stop", help="Keep the stop text in the completion.")
    ignore_eos: bool = option("Sampling", SWITCH, False, "--ignore-eos", help="Go on past end tokens, up to --max-tokens.")
    logprobs: int | None = option("Sampling", WHOLE, None, "--logprobs", help="Write each token's log-probability and those of the N likeliest tokens.")
    token_ids: bool = option("Sampling", SWITCH, False, "--token-ids", help="Write each completion's token ids.")
    echo: bool = option("Sampling", SWITCH, False, "--echo", help="Write each prompt beside its completion.")

    max_num_seqs: int | None = option("Limits", SIZE, None, "--max-num-seqs", help="Most samples that run at once.", shown_default="from the device")
    max_num_batched_tokens: int | None = option("Limits", SIZE, None, "--max-num-batched-tokens", help="Most prompt tokens in one prefill step.", shown_default="from the device")
    max_model_len: int | None = option("Limits", SIZE, None, "--max-model-len", help="Most tokens of prompt and completion together.", shown_default="the model's")
    gpu_memory_utilization: float = option("Limits", NUMBER, 0.9, "--gpu-memory-utilization", help="Share of the GPU's memory to use.")
    block_size: int | None = option("Limits", SIZE, None, "--block-size", help="Tokens per block of the key-value cache.", shown_default="the backend's")
    enforce_eager: bool = option("Limits", SWITCH, False, "--enforce-eager", help="Launch every step afresh, without CUDA graphs: starts sooner, runs slower.")
    invariant: bool = option("Limits", SWITCH, False, "--invariant", help="On CUDA, give a row the same bits whatever runs beside it; slower. On the CPU it is always so.")
    truncate: str = option("Limits", choice("error", "left"), "error", "--truncate", help="A prompt that is too long fails, or loses its start.")

    tensor_parallel_size: int | None = option("Parallel", SIZE, None, "--tensor-parallel-size", "-tp", help="GPUs, or processes, over which one copy of the model is cut.", shown_default="1")
    data_parallel_size: int | None = option("Parallel", SIZE, None, "--data-parallel-size", "-dp", help="Copies of the model that share the rows.", shown_default="1, or what torchrun started")
    shard: str | None = option("Parallel", TEXT, None, "--shard", help="I/N: take every N-th row from the I-th, counted from 0, for job arrays.")

    output: str | None = option("Run", TEXT, None, "--output", "-o", help="JSONL file to write.", shown_default="standard output")
    resume: bool = option("Run", SWITCH, False, "--resume", help="Go on with an output file that was interrupted.")
    overwrite: bool = option("Run", SWITCH, False, "--overwrite", help="Replace an output file that exists.")
    strict: bool = option("Run", SWITCH, False, "--strict", help="Stop before the model loads if any row is bad.")
    unordered: bool = option("Run", SWITCH, False, "--unordered", help="Leave samples in the order in which they finished.")
    limit: int | None = option("Run", SIZE, None, "--limit", help="Use the first rows only.")
    keep: tuple[str, ...] = option("Run", TEXTS, (), "--keep", help="Copy this field of each row to its samples. Repeatable.")
    format: str = option("Run", choice("jsonl", "openai-batch"), "jsonl", "--format", help="jsonl: a line per sample. openai-batch: a response of OpenAI's batch API per row.")
    config: str | None = option("Run", TEXT, None, "--config", help="TOML file of defaults for these options.", in_file=False)
    show_config: bool = option("Run", SWITCH, False, "--show-config", help="Print the settings in force and where they come from, then exit.", in_file=False)
    dry_run: bool = option("Run", SWITCH, False, "--dry-run", help="Check prompts, checkpoint and lengths without loading the weights.", in_file=False)
    progress: bool | None = option("Run", SWITCH, None, "--progress/--no-progress", help="Show progress on stderr.", shown_default="on")
    quiet: bool = option("Run", SWITCH, False, "--quiet", "-q", help="Print errors only.")
    verbose: bool = option("Run", SWITCH, False, "--verbose", "-v", help="Print more about the engine and every failed row.")


def like_generate(name: str, **changes: Any) -> Any:
    """For another command: the option that `generate` has under that name, but for changes."""
    found = GenerateOptions.__dataclass_fields__[name]
    return dataclasses.field(default=found.default, metadata={**found.metadata, **changes})
