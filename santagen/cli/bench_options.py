"""The options of `santagen bench`, one line each; the engine's are those of `cli.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from santagen.cli.options import like_generate
from santagen.cli.settings import NUMBER, SIZE, TEXT, WHOLE, Kind, option

# fmt: off
# ruff: noqa: E501

WANTED = "sizes with commas between them, as in 1,16,1k"


def sizes(text: str) -> tuple[int, ...]:
    """ "1,16,1k" -> (1, 16, 1000); raises ValueError for what SIZE refuses."""
    return tuple(_size(part) for part in text.split(","))


def _size(part: str) -> int:
    try:
        return int(SIZE.parse(part))
    except ValueError as error:
        raise ValueError(f"{WANTED}; {part!r} must be {error}") from None


def _sizes_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(WANTED)
    sizes(str(value))
    return str(value)


SIZES = Kind("SIZE,...", _sizes_text)


@dataclass(frozen=True)
class BenchOptions:
    """Everything `santagen bench` can be told."""

    batch_sizes: str | None = option("Work", SIZES, None, "--batch-sizes", help="Sequences that run together.", shown_default="1,16,64,256,1024, on the CPU 1,8,32")
    prompt_len: str | None = option("Work", SIZES, None, "--prompt-len", help="Tokens of each prompt; several are measured one after the other.", shown_default="256, on the CPU 64")
    output_len: str | None = option("Work", SIZES, None, "--output-len", help="New tokens of each sequence; several are measured one after the other.", shown_default="256, on the CPU 32")
    temperature: float = option("Work", NUMBER, 0.8, "--temperature", help="0 is greedy.")
    top_p: float = option("Work", NUMBER, 0.95, "--top-p", help="Draw from the likeliest tokens that together reach this probability.")
    repeat: int = option("Work", SIZE, 3, "--repeat", help="Times each size is measured; the table shows the median, least and most.")
    warmup: int = option("Work", WHOLE, 1, "--warmup", help="Times each size runs before it is measured.")

    model: str | None = like_generate("model")
    random_weights: str | None = option("Model", TEXT, None, "--random-weights", help="Draw weights of this shape in place of reading a model: a config.json, a directory with one, santacoder, starcoder, granite-20b or granite-34b.")
    revision: str | None = like_generate("revision")
    hf_token: str | None = like_generate("hf_token")
    dtype: str = like_generate("dtype")
    device: str = like_generate("device")
    quantization: str = like_generate("quantization")
    attention: str = like_generate("attention")

    max_num_seqs: int | None = like_generate("max_num_seqs", shown_default="the largest batch")
    max_num_batched_tokens: int | None = like_generate("max_num_batched_tokens")
    max_model_len: int | None = like_generate("max_model_len")
    gpu_memory_utilization: float = like_generate("gpu_memory_utilization")
    block_size: int | None = like_generate("block_size")
    enforce_eager: bool = like_generate("enforce_eager")
    invariant: bool = like_generate("invariant")

    output_json: str | None = option("Run", TEXT, None, "--output-json", help="Write everything measured to this file, replacing it; - is standard output.")
    config: str | None = like_generate("config")
    show_config: bool = like_generate("show_config")
    quiet: bool = like_generate("quiet", help="Print errors only, no table.")
    verbose: bool = like_generate("verbose", help="Print more about the engine.")
