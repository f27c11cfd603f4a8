"""Rewrites a checkpoint of any supported layout as standard safetensors: Linear, fused, floats.

    SRC -> Weights (one tensor at a time) -> .DST.santagen-partial -> read back, compared -> DST

Everything is checked before the first byte is written, and DST appears in one step, whole or not at
all. One tensor is in memory at a time. The result is what transformers' GPTBigCodeForCausalLM
loads. Finding SRC on the hub, and saying what was done, are the command's business.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.convert_files import (
    carried_files,
    clear_traces,
    partial_path,
    replace,
    standard_config,
    write_file,
    write_json,
)
from santagen.checkpoint.convert_shards import (
    SAFETENSORS_NAMES,
    Entry,
    ShardWriter,
    plan_shards,
    verify_shard,
)
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.inspection import inspect_checkpoint
from santagen.checkpoint.layout import BUFFERS, FLOATS, FUSED, HEAD, ROOT, linear_shape
from santagen.checkpoint.reader import TensorFiles
from santagen.checkpoint.weights import Weights
from santagen.config import ModelConfig, read_json
from santagen.errors import SantagenError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
STORED_NAMES = {stored: name for name, stored in SAFETENSORS_NAMES.items()}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARTS = ("weight", "bias")
SPARE_BYTES = 1 << 20  # for directories and what the file system keeps of its own


@dataclass(frozen=True)
class Converted:
    """What was done: `source` describes the layout found, `files` are the weight files written."""

    source: str
    dtype: str
    dtype_why: str
    files: tuple[str, ...]
    carried: tuple[str, ...]
    nbytes: int
    notes: tuple[str, ...]


def convert(
    source: Path,
    destination: Path,
    *,
    dtype: str = "auto",
    dequantize: bool = False,
    max_shard_bytes: int = 5 << 30,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Converted:
    """Convert the model directory `source`; `say` hears of each file that is done.

    Raises SantagenError for what can't be read, converted or written, and then leaves
    `destination` as it was.
    """
    config = ModelConfig.from_directory(source)
    files, layout, settings = inspect_checkpoint(source, config)
    if settings is not None and not dequantize:
        raise SantagenError(
            f"{source.name} is a GPTQ checkpoint, and the standard layout holds no packed weights.",
            "Give --dequantize to write the weights as floats, or run the checkpoint as it is.",
        )
    name, why = _output_dtype(dtype, config, files, settings)
    weights = Weights(
        files, config, layout, dtype=DTYPES[name], device=torch.device("cpu"), quantization=settings
    )
    config = weights.config  # whose head is the stored one
    entries = [Entry(n, shape, name) for n, shape in _expected(config)]
    shards = plan_shards(entries, max_shard_bytes)
    total = sum(entry.nbytes for entry in entries)
    carried = carried_files(source)
    raw = read_json(source / "config.json", "download it again")
    settled = standard_config(raw, config, name)
    target = Path(os.path.realpath(destination))
    partial = partial_path(target)
    try:
        clear_traces(target)
        _check_destination(source, destination, overwrite)
        _check_room(target, total + sum(path.stat().st_size for path in carried))
        partial.mkdir()
        try:
            _write_shards(partial, shards, weights, say)
            _write_small_files(partial, settled, carried)
            _check_result(partial)
            replace(target, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise cannot_write(destination, error) from error
    return Converted(
        layout.describe(), name, why, tuple(shards), tuple(path.name for path in carried), total,
        tuple(weights.notes),
    )  # fmt: skip


def _output_dtype(
    choice: str, config: ModelConfig, files: TensorFiles, settings: GPTQSettings | None
) -> tuple[str, str]:
    """(dtype to write, why). auto keeps every stored value; a GPTQ product is rounded once."""
    if choice != "auto":
        return choice, "asked for"
    own = str(config.torch_dtype).removeprefix("torch.")
    if settings is not None and own in DTYPES:
        return own, "config.json's; --dtype float32 keeps the GPTQ products exact"
    stored = {
        info.dtype
        for name, info in files.infos()
        if info.dtype in FLOATS and not BUFFERS.fullmatch(name)
    }
    if len(stored) == 1 and stored <= set(STORED_NAMES):
        return STORED_NAMES[stored.pop()], "as stored"
    return "float32", f"for weights stored as {' and '.join(sorted(stored))}"


def _expected(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the standard layout, in the order they are written."""
    embd = config.n_embd
    wanted: list[tuple[str, tuple[int, ...]]] = [
        (f"{ROOT}wte.weight", (config.vocab_size, embd)),
        (f"{ROOT}wpe.weight", (config.n_positions, embd)),
    ]
    for layer in range(config.n_layer):
        base = f"{ROOT}h.{layer}."
        wanted += [(f"{base}{n}.{p}", (embd,)) for n in ("ln_1", "ln_2") for p in _PARTS]
        for module in FUSED:
            out, inp = linear_shape(config, module)
            wanted += [(f"{base}{module}.weight", (out, inp)), (f"{base}{module}.bias", (out,))]
    wanted += [(f"{ROOT}ln_f.{part}", (embd,)) for part in _PARTS]
    if not config.tie_word_embeddings:
        wanted.append((HEAD, (config.vocab_size, embd)))
    return wanted


def _tensors(weights: Weights) -> Iterator[Tensor]:
    """The tensors of `_expected`, in its order; each is read when it is asked for."""
    config = weights.config
    yield weights.get_rows(f"{ROOT}wte.weight", 0, config.vocab_size)
    yield weights.get_rows(f"{ROOT}wpe.weight", 0, config.n_positions)
    for layer in range(config.n_layer):
        base = f"{ROOT}h.{layer}."
        for norm in ("ln_1", "ln_2"):
            for part in _PARTS:
                yield weights.get_tensor(f"{base}{norm}.{part}")
        for module in FUSED:
            for tensor in weights.get_linear(f"{base}{module}"):
                yield _stored_order(tensor, module, config)
    for part in _PARTS:
        yield weights.get_tensor(f"{ROOT}ln_f.{part}")
    if not config.tie_word_embeddings:
        yield weights.get_rows(HEAD, 0, config.vocab_size)


def _stored_order(tensor: Tensor, module: str, config: ModelConfig) -> Tensor:
    """Without multi_query the standard c_attn is interleaved: n_head x [q, k, v]."""
    if config.multi_query or module != "attn.c_attn":
        return tensor
    # [all q, all k, all v] -> [3, heads, head_dim, ...] -> [heads, 3, head_dim, ...]
    blocks = tensor.view(3, config.n_head, config.head_dim, *tensor.shape[1:])
    return blocks.transpose(0, 1).reshape(tensor.shape)


def _write_shards(
    folder: Path, shards: dict[str, list[Entry]], weights: Weights, say: Callable[[str], None]
) -> None:
    """Write the files, then read each back from the disk and compare."""
    tensors = _tensors(weights)
    for file, entries in shards.items():
        with ShardWriter(folder / file, entries) as writer:
            for entry in entries:
                tensor = next(tensors)
                _check_values(entry, tensor)
                writer.write(entry, tensor)
                del tensor  # before the next one is read
        verify_shard(folder / file, entries, writer.checksums)
        say(f"wrote {file}: {sum(entry.nbytes for entry in entries):,} bytes of tensors")
    assert next(tensors, None) is None, "tensors are left over"
    if len(shards) > 1:
        weight_map = {entry.name: file for file, part in shards.items() for entry in part}
        total = sum(entry.nbytes for part in shards.values() for entry in part)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)


def _write_small_files(folder: Path, config: dict[str, Any], carried: list[Path]) -> None:
    write_json(folder / "config.json", config)
    for path in carried:
        write_file(folder / path.name, path.read_bytes())


def _check_values(entry: Entry, tensor: Tensor) -> None:
    if tensor.numel() and not all(bool(bound.isfinite()) for bound in torch.aminmax(tensor)):
        raise SantagenError(
            f"{entry.name} holds values that are not finite as {entry.dtype}.",
            "Try --dtype bfloat16 or float32; if it fails alike, the checkpoint is damaged.",
        )


def _check_destination(source: Path, destination: Path, overwrite: bool) -> None:
    if not destination.parent.is_dir():
        raise SantagenError(
            f"The folder {destination.parent} for {destination.name} does not exist.",
            "Create it first.",
        )
    if not destination.exists():
        return
    if destination.samefile(source):
        raise SantagenError(
            f"{destination} is the source itself.", "Name another folder to convert to."
        )
    if not overwrite:
        raise SantagenError(
            f"{destination} exists already.", "Name another folder, or give --overwrite."
        )
    entries = list(destination.iterdir()) if destination.is_dir() else None
    if entries is None or any(entry.is_dir() for entry in entries) or (
        entries and not (destination / "config.json").is_file()
    ):  # fmt: skip
        raise SantagenError(
            f"{destination} is not a model folder, so --overwrite does not replace it.",
            "Name another folder, or remove that one yourself.",
        )


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed + SPARE_BYTES:
        raise SantagenError(
            f"{target.name} takes {needed:,} bytes, and {target.parent} has {free:,} free.",
            "Free some space, name a folder on another disk, or take a smaller --dtype.",
        )


def _check_result(folder: Path) -> None:
    """What was written is the standard layout, by the rules that every checkpoint is read by."""
    _, layout, settings = inspect_checkpoint(folder, ModelConfig.from_directory(folder))
    assert settings is None and layout.has_wte, "the result is not in the standard layout"
    assert not (layout.transposed or layout.split or layout.bare or layout.quantised), layout


def cannot_write(destination: Path, error: OSError) -> SantagenError:
    """What to tell of the system's refusal."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = "Check the disk, or name another folder."
    if error.errno in NO_ROOM:
        hint = "Free some space, or name a folder on another disk."
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        hint = "Check the permissions, or name another folder."
    return SantagenError(f"Can't convert to {destination}: {reason}.", hint)
