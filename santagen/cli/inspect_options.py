"""The options of `santagen inspect`, one line each; those it shares with generate are `cli.options`'."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.options import like_generate
from santagen.cli.settings import SIZE, SWITCH, TEXT, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class InspectOptions:
    """Everything `santagen inspect` can be told."""

    model: str | None = option("Model", TEXT, None, help="Local directory or hub id; the small bundled model without it.")
    revision: str | None = like_generate("revision")
    hf_token: str | None = like_generate("hf_token")
    tokenizer: str | None = like_generate("tokenizer")

    memory: int | None = option("What fits", SIZE, None, "--memory", help="Tell how many sequences fit a GPU of this memory, such as 24GiB.")
    max_model_len: int | None = like_generate("max_model_len", panel="What fits", help="Tokens of prompt and completion that a sequence may have.")
    dtype: str = like_generate("dtype", panel="What fits", help="Number format of a run; auto is what a GPU would use.")
    gpu_memory_utilization: float = like_generate("gpu_memory_utilization", panel="What fits", help="Share of the GPU's memory that a run may use.")

    json: bool = option("Run", SWITCH, False, "--json", help="Write everything as one JSON object on standard output.")
    config: str | None = like_generate("config")
    show_config: bool = like_generate("show_config")
