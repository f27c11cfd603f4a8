"""The options of `santagen convert`, one line each; see `cli.options`."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.settings import SIZE, SWITCH, TEXT, choice, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class ConvertOptions:
    """Everything `santagen convert` can be told."""

    src: str | None = option("Model", TEXT, None, help="The model to convert: a local directory or a hub id.")
    dst: str | None = option("Model", TEXT, None, help="The directory to write.")
    revision: str | None = option("Model", TEXT, None, "--revision", help="Branch, tag or commit of SRC on the hub.")
    hf_token: str | None = option("Model", TEXT, None, "--hf-token", help="Token for the hub; HF_TOKEN works too.", secret=True)

    dtype: str = option("Result", choice("auto", "bfloat16", "float16", "float32"), "auto", "--dtype", help="Number format to write; auto keeps the stored one.")
    dequantize: bool = option("Result", SWITCH, False, "--dequantize", help="Write a GPTQ model's weights as floats.")
    max_shard_size: int = option("Result", SIZE, 5 << 30, "--max-shard-size", help="Most bytes of a weight file, such as 500M.", shown_default="5G")

    overwrite: bool = option("Run", SWITCH, False, "--overwrite", help="Replace a model directory that exists.")
    config: str | None = option("Run", TEXT, None, "--config", help="TOML file of defaults for these options.", in_file=False)
    show_config: bool = option("Run", SWITCH, False, "--show-config", help="Print the settings in force and where they come from, then exit.", in_file=False)
    quiet: bool = option("Run", SWITCH, False, "--quiet", "-q", help="Print errors only.")
