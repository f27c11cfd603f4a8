"""The options of `santagen eval`, one line each; those it shares with generate are `cli.options`'."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from santagen.cli.options import like_generate
from santagen.cli.settings import NUMBER, SIZE, SWITCH, TEXT, TEXTS, WHOLE, Kind, choice, option

# fmt: off
# ruff: noqa: E501


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise ValueError("a whole number above 0")
    return int(value)


def _seconds(value: Any) -> float:
    seconds = NUMBER.parse(value)
    if not 0 < seconds < math.inf:
        raise ValueError("a number of seconds above 0")
    return float(seconds)


SECONDS = Kind("X", _seconds)
WHOLES = Kind("K", _positive, many=True)


@dataclass(frozen=True)
class EvalOptions:
    """Everything `santagen eval` can be told. None for a sampling setting means the task's preset."""

    targets: tuple[str, ...] = option("Task", TEXTS, (), help="A task (humaneval, mbpp, infilling, multipl-e, mini, mini-infilling), or a file of samples to score.")
    task: str | None = option("Task", TEXT, None, "--task", help="The task that a file of samples belongs to.", shown_default="from its ids")
    problems: str | None = option("Task", TEXT, None, "--problems", help="File of the task's problems.", shown_default="the task's own source")
    only: tuple[str, ...] = option("Task", TEXTS, (), "--only", help="Use this problem only. Repeatable.")
    limit: int | None = option("Task", SIZE, None, "--limit", help="Use the first problems only.")
    k: tuple[int, ...] = option("Task", WHOLES, (1, 10, 100), "--k", help="Report pass@K. Repeatable.", shown_default="1, 10, 100")
    compare: bool = option("Task", SWITCH, False, "--compare", help="Compare two result files, problem by problem.", in_file=False)

    model: str | None = like_generate("model")
    revision: str | None = like_generate("revision")
    hf_token: str | None = like_generate("hf_token")
    tokenizer: str | None = like_generate("tokenizer")
    dtype: str = like_generate("dtype")
    device: str = like_generate("device")
    quantization: str = like_generate("quantization")
    attention: str = like_generate("attention")

    greedy: bool = option("Sampling", SWITCH, False, "--greedy", help="One sample at temperature 0.")
    temperature: float | None = option("Sampling", NUMBER, None, "--temperature", help="0 is greedy; higher is more varied.", shown_default="the task's")
    top_p: float | None = option("Sampling", NUMBER, None, "--top-p", help="Draw from the likeliest tokens that together reach this probability.", shown_default="the task's")
    n: int | None = option("Sampling", WHOLE, None, "--n", "-n", help="Samples per problem.", shown_default="the task's")
    max_tokens: int | None = option("Sampling", SIZE, None, "--max-tokens", "--max-new-tokens", help="Most tokens to generate per sample.", shown_default="the task's")
    length_limit: int | None = option("Sampling", SIZE, None, "--length-limit", help="Most tokens of prompt and answer together.", shown_default="the task's")
    seed: int = like_generate("seed")
    fim_mode: str = like_generate("fim_mode", panel="Sampling")

    max_num_seqs: int | None = like_generate("max_num_seqs")
    max_num_batched_tokens: int | None = like_generate("max_num_batched_tokens")
    max_model_len: int | None = like_generate("max_model_len")
    gpu_memory_utilization: float = like_generate("gpu_memory_utilization")
    block_size: int | None = like_generate("block_size")
    enforce_eager: bool = like_generate("enforce_eager")
    invariant: bool = like_generate("invariant")

    tensor_parallel_size: int | None = like_generate("tensor_parallel_size", help="1: eval is one process. For more, see --prompts-out.")
    data_parallel_size: int | None = like_generate("data_parallel_size", help="1: eval is one process. For more, see --prompts-out.", shown_default="1")

    allow_code_execution: bool = option("Sandbox", SWITCH, False, "--allow-code-execution", help="Agree to run programs that a model wrote; HF_ALLOW_CODE_EVAL=1 works too.")
    sandbox: str = option("Sandbox", choice("auto", "namespaces", "bubblewrap", "plain"), "auto", "--sandbox", help="How programs are confined; auto takes the strongest that works.")
    unsafe: bool = option("Sandbox", SWITCH, False, "--unsafe", help="Accept limits without isolation where nothing better works.")
    workers: int | None = option("Sandbox", SIZE, None, "--workers", help="Programs that run at once.", shown_default="2 per core")
    timeout: float | None = option("Sandbox", SECONDS, None, "--timeout", help="Seconds a program may take.", shown_default="3, or the language's")
    memory: int = option("Sandbox", SIZE, 1 << 30, "--memory", help="Bytes a program may use.", shown_default="1G")

    output: str | None = option("Run", TEXT, None, "--output", "-o", help="Result to write, RESULT.json; - is standard output.")
    samples_out: str | None = option("Run", TEXT, None, "--samples-out", help="Write the samples to this file too.")
    prompts_out: str | None = option("Run", TEXT, None, "--prompts-out", help="Write the task's prompts as rows for santagen generate, and stop there; - is standard output.")
    format: str = option("Run", choice("samples", "evalplus", "bigcode", "multipl-e"), "samples", "--format", help="Form of --samples-out.")
    resume: bool = option("Run", SWITCH, False, "--resume", help="Go on with a result that was interrupted.")
    overwrite: bool = option("Run", SWITCH, False, "--overwrite", help="Replace a result that exists.")
    config: str | None = like_generate("config")
    show_config: bool = like_generate("show_config")
    progress: bool | None = like_generate("progress")
    quiet: bool = like_generate("quiet")
    verbose: bool = option("Run", SWITCH, False, "--verbose", "-v", help="Print more about the engine and the sandbox.")
