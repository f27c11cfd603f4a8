"""All that headers can tell of a checkpoint, checked: its files, its layout, its quantisation.

Needs no torch, but for pickled .bin files, whose headers torch reads.
"""

from __future__ import annotations

from pathlib import Path

from santagen.checkpoint.gptq_checks import check_modules
from santagen.checkpoint.gptq_settings import GPTQSettings, find_settings
from santagen.checkpoint.layout import Layout, decide_layout
from santagen.checkpoint.reader import TensorFiles, open_checkpoint
from santagen.config import ModelConfig


def inspect_checkpoint(
    directory: Path, config: ModelConfig
) -> tuple[TensorFiles, Layout, GPTQSettings | None]:
    """Files, layout and quantisation of a checkpoint; raises SantagenError for what can't run."""
    files = open_checkpoint(directory)
    settings = find_settings(directory, config, files)
    layout = decide_layout(files, config)
    if settings is not None:
        settings = check_modules(files, config, layout, settings)
    return files, layout, settings
