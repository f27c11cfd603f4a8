"""GPTQ: finds a checkpoint's settings, refuses what only looks like it, and unpacks its integers exactly.

Per layer of K inputs and N outputs: qweight int32 [K*b/32, N], qzeros int32 [groups, N*b/32], scales [groups, N],
g_idx int32 [K] or none. The b-bit values lie as one little-endian bit stream along K (qweight) or N (qzeros).

    weight[k, n] = (q[k, n] - z[g_idx[k], n]) * scales[g_idx[k], n]

How z is stored: "v1" keeps z - 1 in each field, "v1-word" subtracted 1 from every field of a whole 32-bit word, borrows
included (gptqmodel's asymmetric 2, 4 and 8 bit files), "v2" keeps z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from santagen.checkpoint.layout import FUSED, SPLIT, Layout, linear_shape
from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig, read_json
from santagen.errors import SantagenError

BITS = (2, 3, 4, 8)
COMPARED = ("bits", "group_size", "desc_act", "sym", "checkpoint_format")
REFUSED_METHODS = {
    "awq": "quantise the float checkpoint with GPTQ instead, or run it unquantised",
    "bitsandbytes": "run the float checkpoint; santagen does not quantise on load by bitsandbytes",
    "marlin": "take the ordinary GPTQ file of the model",
    "exl2": "take a GPTQ file of the model",
    "exl3": "take a GPTQ file of the model",
    "fp8": "run the bfloat16 checkpoint",
    "hqq": "take a GPTQ file of the model",
    "aqlm": "take a GPTQ file of the model",
    "quanto": "take a GPTQ file of the model",
    "compressed-tensors": "take a GPTQ file of the model",
}


@dataclass(frozen=True)
class GPTQSettings:
    """group_size -1 is one group. `zero_rule` is v1, v1-word or v2; `source` says where the settings stood."""

    bits: int
    group_size: int
    desc_act: bool
    sym: bool
    zero_rule: str
    source: str
    notes: tuple[str, ...] = ()


def find_settings(directory: Path, config: ModelConfig, files: TensorFiles) -> GPTQSettings | None:
    """The GPTQ settings of a checkpoint, None for a float one; other methods and conflicts are refused."""
    found: list[tuple[str, dict[str, Any]]] = []
    inline = config.raw.get("quantization_config")
    if isinstance(inline, dict):
        found.append(("config.json", inline))
    path = directory / "quantize_config.json"
    if path.is_file():
        found.append(("quantize_config.json", read_json(path, "download it again")))
    for where, settings in found:
        _refuse_other_methods(where, settings)
    _refuse_old_forms(files)
    if not found and "gptq_bits" in files and "gptq_groupsize" in files:
        scalars = {
            "bits": int(files.read("gptq_bits")), "group_size": int(files.read("gptq_groupsize"))
        }
        found.append(("the tensors gptq_bits and gptq_groupsize", scalars))
    quantised = any(name.endswith(".qweight") for name in files.names())
    if not found:
        if quantised:
            raise SantagenError(
                f"{directory.name} holds GPTQ tensors, but neither config.json (quantization_config) nor "
                "quantize_config.json says with what bits and group_size.",
                "Add the quantize_config.json that the quantising tool wrote.",
            )
        return None
    if not quantised:
        raise SantagenError(
            f"{found[0][0]} has GPTQ settings, but the weights of {directory.name} are not quantised (no .qweight).",
            "Take settings and weights from the same place, or remove the settings.",
        )
    _refuse_conflicts(found)
    return _read(found)


def _refuse_other_methods(where: str, settings: dict[str, Any]) -> None:
    method = str(settings.get("quant_method") or settings.get("method") or "gptq").lower()
    form = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
    if settings.get("is_marlin_format"):
        method = "marlin"
    for name in (method, form):
        if name in REFUSED_METHODS:
            raise SantagenError(
                f"{where} says the weights are quantised as {name}, which santagen does not read.",
                f"Remedy: {REFUSED_METHODS[name]}.",
            )
    if method != "gptq":
        raise SantagenError(
            f"{where} has quant_method {method!r}, which santagen does not read.", "Take a GPTQ or float checkpoint."
        )
    if form not in ("gptq", "gptq_v2"):
        raise SantagenError(
            f"{where} has checkpoint_format {form!r}, which packs values in an order santagen does not read.",
            "Quantise with the format gptq or gptq_v2.",
        )
    if settings.get("dynamic"):
        raise SantagenError(
            f"{where} has `dynamic` settings (bits or groups that differ by module), which santagen does not read.",
            "Quantise all modules alike.",
        )
    if settings.get("lm_head"):
        raise SantagenError(
            f"{where} says that lm_head is quantised, which santagen does not read.", "Quantise without lm_head."
        )


def _refuse_old_forms(files: TensorFiles) -> None:
    for name, info in files.infos():
        if name.endswith(".zeros"):
            raise SantagenError(
                f"{name} in {info.file} is of the GPTQ form before April 2023 (`zeros` in place of `qzeros`).",
                "Quantise the model again with a current GPTQ tool.",
            )
        if name.endswith(".qzeros") and info.dtype != "I32":
            raise SantagenError(
                f"{name} in {info.file} is {info.dtype}: unpacked qzeros are an old form that santagen does not read.",
                "Quantise the model again with a current GPTQ tool (qzeros packed as int32).",
            )
        if name.endswith(".qweight") and info.dtype != "I32":
            raise SantagenError(
                f"{name} in {info.file} is {info.dtype}; GPTQ packs into int32.", "Quantise with pack_dtype int32."
            )


def _refuse_conflicts(found: list[tuple[str, dict[str, Any]]]) -> None:
    (first, one), *others = found
    for second, two in others:
        for key in COMPARED:
            a, b = (s.get(key, s.get("format") if key == "checkpoint_format" else None) for s in (one, two))
            if a is not None and b is not None and a != b:
                raise SantagenError(
                    f"{first} says {key} {a} and {second} says {key} {b}.",
                    "Keep the one that belongs to the weights.",
                )


def _read(found: list[tuple[str, dict[str, Any]]]) -> GPTQSettings:
    where = found[0][0]
    merged: dict[str, Any] = {}
    for _, settings in reversed(found):
        merged.update({k: v for k, v in settings.items() if v is not None})
    bits, group = merged.get("bits"), merged.get("group_size", -1)
    if bits not in BITS:
        raise SantagenError(f"{where} has bits {bits!r}; santagen reads {BITS}.", "Quantise with 4 or 8 bits.")
    if isinstance(group, bool) or not isinstance(group, int) or (group != -1 and group < 1):
        raise SantagenError(
            f"{where} has group_size {group!r}; it must be -1 or above 0.", "Take settings and weights from one place."
        )
    form = str(merged.get("checkpoint_format") or merged.get("format") or "gptq")
    sym = bool(merged.get("sym", True))
    meta = merged.get("meta")
    tools = meta.get("quantizer", []) if isinstance(meta, dict) else []
    tools = [tools] if isinstance(tools, str) else tools
    by_word = any(str(tool).lower().startswith("gptqmodel") for tool in tools)
    rule = "v2" if form == "gptq_v2" else "v1-word" if by_word and not sym and bits != 3 else "v1"
    return GPTQSettings(bits, group, bool(merged.get("desc_act", False)), sym, rule, where)


def check_modules(
    files: TensorFiles, config: ModelConfig, layout: Layout, settings: GPTQSettings
) -> GPTQSettings:
    """Check every quantised layer's shapes and g_idx; returns the settings with the zero rule confirmed."""
    stored: set[int] = set()
    for layer in range(config.n_layer):
        for module in SPLIT if layout.split else FUSED:
            prefix = layout.stored(f"transformer.h.{layer}.{module}")
            _check_module(files, prefix, linear_shape(config, module), settings)
            if settings.sym and len(stored) < 2:
                zeros = unpack_columns(files.read(f"{prefix}.qzeros"), settings.bits)
                stored |= set(zeros.unique().tolist())
    middle = 2 ** (settings.bits - 1)
    if settings.sym and len(stored) == 1:
        value = stored.pop()
        told = {middle - 1: "v1", middle: "v2"}.get(value)
        labelled = "v2" if settings.zero_rule == "v2" else "v1"
        if told is not None and told != labelled:
            note = (
                f"GPTQ: the label says format {labelled}, but the symmetric zero points are stored as {value}, which is "
                f"{told}: the values are trusted"
            )
            return replace(settings, zero_rule=told, notes=(*settings.notes, note))
    return settings


def _check_module(
    files: TensorFiles, prefix: str, shape: tuple[int, int], settings: GPTQSettings
) -> None:
    out, inp = shape
    bits = settings.bits
    for size, what in ((inp, "inputs"), (out, "outputs")):
        if size * bits % 32:
            raise SantagenError(
                f"{prefix} has {size} {what}, which {bits} bits don't pack into whole 32-bit words.",
                "config.json does not belong to these weights.",
            )
    group = inp if settings.group_size == -1 else settings.group_size
    groups = -(-inp // group)
    for part, wanted in (
        ("qweight", (inp * bits // 32, out)),
        ("qzeros", (groups, out * bits // 32)),
        ("scales", (groups, out)),
    ):
        info = files.info(f"{prefix}.{part}")
        if info.shape != wanted:
            raise SantagenError(
                f"{prefix}.{part} in {info.file} has shape {list(info.shape)}; {bits} bits with group_size "
                f"{settings.group_size} ({settings.source}) ask for {list(wanted)}.",
                "Take settings and weights from the same place.",
            )
    name = f"{prefix}.g_idx"
    if name not in files:
        return
    if files.info(name).shape != (inp,):
        raise SantagenError(
            f"{name} has shape {list(files.info(name).shape)}; {inp} inputs ask for [{inp}].", "Download it again."
        )
    index = files.read(name)
    for value in (int(index.min()), int(index.max())):
        if not 0 <= value < groups:
            raise SantagenError(
                f"{name} holds the group {value}; there are {groups} groups (0 to {groups - 1}).",
                "The file is damaged: download it again or quantise the model again.",
            )


def unpack_rows(packed: Tensor, bits: int) -> Tensor:
    """int32 [n, m] -> uint8 [n * 32 / bits, m]: the bit stream runs down the rows."""
    words = packed.to(torch.int64) & 0xFFFFFFFF
    rows = packed.shape[0] * 32 // bits
    first = torch.arange(rows) * bits
    word, shift = first // 32, (first % 32).unsqueeze(1)
    low = words[word] >> shift
    over = shift.squeeze(1) + bits > 32  # 3 bits: a value may lie across two words
    if over.any():
        more = words[(word + 1).clamp(max=packed.shape[0] - 1)] << (32 - shift)
        low = torch.where(over.unsqueeze(1), low | more, low)
    return (low & (2**bits - 1)).to(torch.uint8)


def unpack_columns(packed: Tensor, bits: int) -> Tensor:
    """int32 [n, m] -> uint8 [n, m * 32 / bits]: the bit stream runs along the columns."""
    return unpack_rows(packed.t(), bits).t()


def unpack_zeros(qzeros: Tensor, bits: int, rule: str) -> Tensor:
    """qzeros -> zero points uint8 [groups, N], undoing the format's minus one."""
    if rule == "v1-word":
        ones = sum(1 << (bits * j) for j in range(32 // bits))
        words = ((qzeros.to(torch.int64) & 0xFFFFFFFF) + ones) & 0xFFFFFFFF
        return unpack_columns(words, bits)
    stored = unpack_columns(qzeros, bits)
    return stored if rule == "v2" else (stored + 1) & (2**bits - 1)


def group_index(files: TensorFiles, prefix: str, inputs: int, settings: GPTQSettings) -> Tensor:
    """The group of each input row [K]: g_idx, or row order where it is missing or (old files) all zero."""
    group = inputs if settings.group_size == -1 else settings.group_size
    in_order = torch.arange(inputs) // group
    if f"{prefix}.g_idx" not in files:
        return in_order
    index = files.read(f"{prefix}.g_idx").long()
    return index if bool(index.any()) else in_order


def dequantise(files: TensorFiles, prefix: str, settings: GPTQSettings) -> Tensor:
    """float32 [out, in] of one quantised layer."""
    codes = unpack_rows(files.read(f"{prefix}.qweight"), settings.bits)  # [K, N]
    zeros = unpack_zeros(files.read(f"{prefix}.qzeros"), settings.bits, settings.zero_rule)
    scales = files.read(f"{prefix}.scales").float()
    index = group_index(files, prefix, codes.shape[0], settings)
    weight = (codes.float() - zeros.float()[index]).mul_(scales[index])
    return weight.t()
