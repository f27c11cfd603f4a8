"""Whether a GPTQ checkpoint's tensors fit its settings: shapes, dtypes, groups, zero points.

Reads the small integer tensors (g_idx, qzeros) as arrays; needs no torch and unpacks no weight. The
settings themselves are found by gptq_settings.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from santagen.checkpoint.gptq_settings import ONE_PLACE, GPTQSettings, says
from santagen.checkpoint.layout import FLOATS, ROOT, Layout, linear_shape
from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig
from santagen.errors import SantagenError

AGAIN_QUANTISE = "Download the file again, or quantise the model again."


def check_modules(
    files: TensorFiles, config: ModelConfig, layout: Layout, settings: GPTQSettings
) -> GPTQSettings:
    """Check every layer's shapes and g_idx.

    Returns the settings with what the tensors tell: the zero rule, symmetry and act-order.
    """
    prefixes, act_order, uneven = [], False, ""
    for layer in range(config.n_layer):
        for module in layout.modules:
            prefix = layout.stored(f"{ROOT}h.{layer}.{module}")
            out, inp = linear_shape(config, module)
            _check_shapes(files, prefix, out, inp, settings)
            act_order |= _check_g_idx(files, prefix, inp, settings)
            prefixes.append(prefix)
            if inp % max(settings.group_size, 1) and f"{prefix}.g_idx" not in files:
                uneven = uneven or (
                    f"groups of {settings.group_size} don't divide the {inp} inputs of {prefix}, "
                    "and no g_idx says which belong together: the last group is taken as shorter"
                )
    notes = (*settings.notes, uneven) if uneven else settings.notes
    settings = replace(settings, act_order=act_order, notes=notes)
    return _confirm_zero_rule(files, prefixes, settings)


def _check_shapes(
    files: TensorFiles, prefix: str, out: int, inp: int, settings: GPTQSettings
) -> None:
    bits, groups = settings.bits, settings.groups(inp)
    for size, what, part in ((inp, "inputs", "qweight"), (out, "outputs", "qzeros")):
        if size * bits % 32:
            raise SantagenError(
                f"{prefix}.{part} packs {size} {what}, which {bits} bits don't fill into whole "
                "32-bit words.",
                "config.json does not belong to these weights.",
            )
    for part, wanted in (
        ("qweight", (inp * bits // 32, out)),
        ("qzeros", (groups, out * bits // 32)),
        ("scales", (groups, out)),
    ):
        info = files.info(f"{prefix}.{part}")
        if info.shape != wanted:
            old = ""
            if part == "scales" and info.shape == (out, 1):
                old = " (the form before April 2023 has [outputs, 1])"
            elif part == "qzeros" and info.shape == (groups, out):
                old = " (one value a zero point, not packed)"
            raise SantagenError(
                f"{prefix}.{part} in {info.file} has shape {list(info.shape)}{old}; {bits} bits "
                f"{_grouping(settings)} ask for {list(wanted)}.",
                ONE_PLACE,
            )
    info = files.info(f"{prefix}.scales")
    if info.dtype not in FLOATS:
        raise SantagenError(
            f"{prefix}.scales in {info.file} is of dtype {info.dtype}, not a float.", AGAIN_QUANTISE
        )


def _grouping(settings: GPTQSettings) -> str:
    if "group_size" not in settings.said:
        return f"without a group_size, which means one group ({settings.source}),"
    return f"with group_size {settings.group_size} ({settings.source})"


def _check_g_idx(files: TensorFiles, prefix: str, inp: int, settings: GPTQSettings) -> bool:
    """Every row's group exists; an act-order file must say which group each row is of.

    Returns whether the groups are anything but consecutive rows.
    """
    name, groups = f"{prefix}.g_idx", settings.groups(inp)
    index = None
    if name in files:
        info = files.info(name)
        if info.shape != (inp,) or info.dtype not in ("I32", "I64"):
            raise SantagenError(
                f"{name} in {info.file} is {info.dtype} {list(info.shape)}; {inp} inputs ask for "
                f"int32 [{inp}].",
                AGAIN_QUANTISE,
            )
        index = files.read_array(name)
        for value in (int(index.min()), int(index.max())):
            if not 0 <= value < groups:
                raise SantagenError(
                    f"{name} in {info.file} holds the group {value}; there are {groups} (0 to "
                    f"{groups - 1}).",
                    AGAIN_QUANTISE,
                )
    if settings.desc_act and groups > 1 and (index is None or not index.any()):
        state = "is missing" if index is None else "is all zero"
        raise SantagenError(
            f"{name} {state}, but {says(settings.said['desc_act'])} desc_act true: without it the "
            "group of each row is lost.",
            "Quantise the model again, or set desc_act to false if it was made without act-order.",
        )
    if index is None or not index.any():
        return False
    return not np.array_equal(index, np.arange(inp) // settings.group_size)


def group_index(
    files: TensorFiles, prefix: str, inputs: int, settings: GPTQSettings
) -> np.ndarray:
    """The group of each input, int64 [K]: g_idx, or input order where it is missing or all zero."""
    if f"{prefix}.g_idx" in files:
        index = files.read_array(f"{prefix}.g_idx")
        if index.any():
            return index.astype(np.int64)
    return np.arange(inputs) // (inputs if settings.group_size == -1 else settings.group_size)


def _confirm_zero_rule(
    files: TensorFiles, prefixes: list[str], settings: GPTQSettings
) -> GPTQSettings:
    """A symmetric file has one zero point, 2^(bits-1), so the value it stores tells its format.

    Where zero points differ the file is asymmetric, whatever `sym` says.
    """
    middle = 2 ** (settings.bits - 1)
    told = None
    for rule, value in (("v1", middle - 1), ("v2", middle)):
        if all(_all_equal(zeros, value, settings.bits) for zeros in _qzeros(files, prefixes)):
            told = rule
    if told is None:
        return _asymmetric(settings) if settings.sym else settings
    labelled = "v2" if settings.zero_rule == "v2" else "v1"
    if told == labelled:
        return settings
    stored = middle if told == "v2" else middle - 1
    where = settings.said.get("checkpoint_format")
    label = f"the format is {labelled} by {where}"
    if not where:
        label = f"no setting names the format, which means {labelled}"
    note = (
        f"GPTQ: {label}, but every zero point is stored as {stored}, as in a symmetric file of the "
        f"format {told}; the values are trusted"
    )
    return replace(settings, sym=True, zero_rule=told, notes=(*settings.notes, note))


def _asymmetric(settings: GPTQSettings) -> GPTQSettings:
    """The settings of a file whose zero points differ, though none says it is asymmetric."""
    note = (
        f"GPTQ: the weights are symmetric by {settings.said.get('sym')}, but their zero points "
        "differ; they are read as asymmetric"
    )
    notes = (*settings.notes, note) if "sym" in settings.said else settings.notes
    rule = "v1-word" if settings.by_word and settings.zero_rule == "v1" else settings.zero_rule
    return replace(settings, sym=False, zero_rule=rule, notes=notes)


def _qzeros(files: TensorFiles, prefixes: list[str]) -> Iterator[np.ndarray]:
    return (files.read_array(f"{prefix}.qzeros") for prefix in prefixes)


def _all_equal(qzeros: np.ndarray, value: int, bits: int) -> bool:
    """Whether every packed field holds `value`; compared as words, [groups, N * bits / 32]."""
    stream = sum(value << (bits * j) for j in range(32))  # 32 fields fill `bits` words
    words = [(stream >> (32 * i)) & 0xFFFFFFFF for i in range(bits)]
    pattern = np.resize(np.array(words, dtype=np.uint32), qzeros.shape[1])
    return bool((qzeros.view(np.uint32) == pattern).all())
