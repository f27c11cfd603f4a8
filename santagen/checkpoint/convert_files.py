"""The small files of a converted model, and how its folder takes its place.

config.json is rewritten for the standard layout, tokenizer files are carried over as they are. Code
and quantisation settings of the source stay behind. Knows nothing of tensors.
"""

from __future__ import annotations

import json
import os
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from santagen.config import ModelConfig, broken_link

CARRIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "generation_config.json", "chat_template.jinja", "LICENSE*",
)  # fmt: skip
# What belongs to the old layout, to code that is not carried over, or to the packed weights.
DROPPED = ("quantization_config", "auto_map", "attention_head_type", "dtype", "_name_or_path")


def carried_files(source: Path) -> list[Path]:
    """The files of `source` that stay as they are; refuses one that is a link to nothing."""
    names = (path.name for path in source.iterdir())  # glob passes over links to nothing
    found = [source / n for n in sorted(names) if any(fnmatchcase(n, c) for c in CARRIED)]
    for path in found:
        if path.is_symlink() and not path.exists():
            raise broken_link(path, "Mend the link, or take it away.")
    return [path for path in found if path.is_file()]


def standard_config(raw: dict[str, Any], config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json of the standard layout; what older files leave unsaid is said."""
    kept = {key: value for key, value in raw.items() if key not in DROPPED}
    return {
        "bos_token_id": None,  # absent would mean GPT-2's, which a model may have no row for
        "eos_token_id": None,
        **kept,
        "model_type": "gpt_bigcode",
        "architectures": ["GPTBigCodeForCausalLM"],
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_embd": config.n_embd,
        "n_head": config.n_head,
        "n_layer": config.n_layer,
        "n_inner": config.n_inner,
        "activation_function": config.activation,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "multi_query": config.multi_query,
        "scale_attn_weights": config.scale_attn_weights,
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def partial_path(target: Path) -> Path:
    """Where `target` is put together: beside it, so that a rename can't fail for the disk."""
    return target.with_name(f".{target.name}.santagen-partial")


def _aside_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.santagen-old")


def clear_traces(target: Path) -> None:
    """Tidy up after a conversion to `target` that was killed; an old folder comes back."""
    if partial_path(target).exists():
        shutil.rmtree(partial_path(target))
    _settle(target)


def replace(target: Path, partial: Path) -> None:
    """Give the finished folder its name; one that has it already goes, or stays if this fails."""
    _sync_folder(partial)
    try:
        if target.exists():
            os.replace(target, _aside_path(target))
        os.replace(partial, target)
        _sync_folder(target.parent)
    finally:
        _settle(target)


def _settle(target: Path) -> None:
    """Remove the folder that `target` has replaced, or put it back where nothing has."""
    aside = _aside_path(target)
    if aside.exists() and target.exists():
        shutil.rmtree(aside)
    elif aside.exists():
        os.replace(aside, target)


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a small file, to the disk itself."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
