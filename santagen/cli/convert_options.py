"""The options of `santagen convert`, one line each; those it shares with generate are `cli.options`'."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.options import like_generate
from santagen.cli.settings import SIZE, SWITCH, TEXT, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class ConvertOptions:
    """Everything `santagen convert` can be told."""

    src: str | None = option("Model", TEXT, None, help="The model to convert: a local directory or a hub id.")
    dst: str | None = option("Model", TEXT, None, help="The directory to write.")
    revision: str | None = like_generate("revision", help="Branch, tag or commit of SRC on the hub.")
    hf_token: str | None = like_generate("hf_token")

    dtype: str = like_generate("dtype", panel="Result", help="Number format to write; auto keeps the stored one.")
    dequantize: bool = option("Result", SWITCH, False, "--dequantize", help="Write a GPTQ model's weights as floats.")
    max_shard_size: int = option("Result", SIZE, 5 << 30, "--max-shard-size", help="Most bytes of a weight file, such as 500M.", shown_default="5G")

    overwrite: bool = option("Run", SWITCH, False, "--overwrite", help="Replace a model directory that exists.")
    config: str | None = like_generate("config")
    show_config: bool = like_generate("show_config")
    quiet: bool = like_generate("quiet")
