"""The options of `santagen inspect`, one line each; see `cli.options`."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.settings import NUMBER, SIZE, SWITCH, TEXT, choice, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class InspectOptions:
    """Everything `santagen inspect` can be told."""

    model: str | None = option("Model", TEXT, None, help="Local directory or hub id; the small bundled model without it.")
    revision: str | None = option("Model", TEXT, None, "--revision", help="Branch, tag or commit on the hub.")
    hf_token: str | None = option("Model", TEXT, None, "--hf-token", help="Token for the hub; HF_TOKEN works too.", secret=True)
    tokenizer: str | None = option("Model", TEXT, None, "--tokenizer", help="Directory or hub id of the tokenizer.", shown_default="the model's own")

    memory: int | None = option("What fits", SIZE, None, "--memory", help="Tell how many sequences fit a GPU of this memory, such as 24GiB.")
    max_model_len: int | None = option("What fits", SIZE, None, "--max-model-len", help="Tokens of prompt and completion that a sequence may have.", shown_default="the model's")
    dtype: str = option("What fits", choice("auto", "bfloat16", "float16", "float32"), "auto", "--dtype", help="Number format of a run; auto is what a GPU would use.")
    gpu_memory_utilization: float = option("What fits", NUMBER, 0.9, "--gpu-memory-utilization", help="Share of the GPU's memory that a run may use.")

    json: bool = option("Run", SWITCH, False, "--json", help="Write everything as one JSON object on standard output.")
    config: str | None = option("Run", TEXT, None, "--config", help="TOML file of defaults for these options.", in_file=False)
    show_config: bool = option("Run", SWITCH, False, "--show-config", help="Print the settings in force and where they come from, then exit.", in_file=False)
