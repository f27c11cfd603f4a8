"""The GPTQ settings of a checkpoint: where they stand, and what is refused by name.

They come from config.json (quantization_config), quantize_config.json and the scalar tensors
gptq_bits and gptq_groupsize; those that disagree are refused. Needs no torch; whether the tensors
fit is gptq_checks.py's question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig, read_json
from santagen.config_values import shown
from santagen.errors import SantagenError

BITS = (2, 3, 4, 8)
COMPARED = ("bits", "group_size", "desc_act", "sym", "checkpoint_format")
FLAGS = ("desc_act", "sym", "is_marlin_format", "load_in_4bit", "load_in_8bit", "lm_head")
SETTINGS_FILE = "quantize_config.json"  # where config.json has none
TENSORS = "the tensors gptq_bits and gptq_groupsize"
ONE_PLACE = "Take settings and weights from the same place."
TAKE_GPTQ = "Take a GPTQ file of the model, or its float weights."
# A product inside a layer, as opposed to the head and the embeddings.
LAYER = re.compile(r"(^|\.)h\.\d+\.(attn|mlp)\.\w+\.(weight|qweight)$")
FOREIGN_PARTS = {  # tensors that only this method has
    "exl2": ("q_weight", "q_invperm", "q_scale_max"),
    "bitsandbytes": ("SCB", "absmax", "quant_map", "nested_absmax", "weight_format"),
    "hqq": ("W_q",),
    "compressed-tensors": ("weight_packed",),
}
REFUSED_METHODS = {
    "awq": "Quantise the float weights with GPTQ instead, or run them as they are.",
    "bitsandbytes": "Run the float weights: santagen does not quantise on load.",
    "marlin": "Take the ordinary GPTQ file of the model.",
    "gptq_marlin": "Take the ordinary GPTQ file of the model.",
    "fp8": "Run the bfloat16 weights.",
    **dict.fromkeys(
        ("exl2", "exl3", "hqq", "aqlm", "quanto", "eetq", "vptq", "quip", "spqr", "higgs"),
        TAKE_GPTQ,
    ),
    **dict.fromkeys(("compressed-tensors", "auto-round", "intel/auto-round", "torchao"), TAKE_GPTQ),
}


@dataclass(frozen=True)
class GPTQSettings:
    """How every quantised layer is packed.

    group_size is in inputs, -1 for one group. `zero_rule` says how z is stored: v1, v1-word or v2
    (see gptq.py), `by_word` whether it would be v1-word if v1 were asymmetric. `act_order` is what
    the tensors say, where they were looked at, and `desc_act` what the settings do. `source` names
    where the settings stood, `said` where each of them did (those that nothing says have defaults:
    `sym` is then True), `notes` what the user should know (a label overruled by the values).
    """

    bits: int
    group_size: int
    desc_act: bool
    sym: bool
    zero_rule: str
    source: str
    notes: tuple[str, ...] = ()
    by_word: bool = False
    act_order: bool | None = None
    said: Mapping[str, str] = field(default_factory=dict, compare=False)

    def groups(self, inputs: int) -> int:
        return 1 if self.group_size == -1 else -(-inputs // self.group_size)


def find_settings(directory: Path, config: ModelConfig, files: TensorFiles) -> GPTQSettings | None:
    """The GPTQ settings of a checkpoint, None for a float one; raises for any other method."""
    found: list[tuple[str, dict[str, Any]]] = []
    inline = config.raw.get("quantization_config")
    if isinstance(inline, dict):
        found.append(("config.json", inline))
    elif inline is not None:
        raise SantagenError(
            f"config.json's quantization_config is {inline!r}, not an object of settings.",
            "Download config.json again, or remove the entry if the weights are not quantised.",
        )
    path = directory / SETTINGS_FILE
    if path.is_file():
        found.append((SETTINGS_FILE, read_json(path, "download it again")))
    for where, settings in found:
        _check_flags(where, settings)
        _refuse_other_methods(where, settings)
    _refuse_foreign_tensors(files)
    scalars = _scalar_settings(files)
    if scalars:
        found.append((TENSORS, scalars))
    quantised = any(name.endswith(".qweight") for name in files.names())
    if not found:
        if quantised:
            raise SantagenError(
                f"{directory.name} holds GPTQ tensors, but neither config.json "
                f"(quantization_config) nor {SETTINGS_FILE} says with what bits and group_size.",
                f"Add the {SETTINGS_FILE} that the quantising tool wrote.",
            )
        return None
    if not quantised:
        raise SantagenError(
            f"{found[0][0]} has GPTQ settings, but the weights of {directory.name} are not "
            "quantised (no tensor is named .qweight).",
            "Take settings and weights from the same place, or remove the settings.",
        )
    found = [(where, _flattened(where, settings)) for where, settings in found]
    _refuse_conflicts(found)
    return _merged(found)


def _check_flags(where: str, settings: dict[str, Any]) -> None:
    for key in FLAGS:
        if not isinstance(settings.get(key), bool | None):
            raise SantagenError(
                f"{where} has {key} {shown(settings[key])}; it must be true or false.", ONE_PLACE
            )


def _refuse_other_methods(where: str, settings: dict[str, Any]) -> None:
    method = str(settings.get("quant_method") or settings.get("method") or "gptq").lower()
    forms = [str(settings.get(key) or "gptq").lower() for key in ("checkpoint_format", "format")]
    if settings.get("is_marlin_format"):
        method = "marlin"
    elif settings.get("load_in_8bit") or settings.get("load_in_4bit"):
        method = "bitsandbytes"
    for name in (method, *forms):
        if name in REFUSED_METHODS:
            raise SantagenError(
                f"{where} says the weights are quantised as {name}, which santagen does not read.",
                REFUSED_METHODS[name],
            )
    if method != "gptq":
        raise SantagenError(
            f"{where} has quant_method {method!r}, which santagen does not read.", TAKE_GPTQ
        )
    for form in forms:
        if form not in ("gptq", "gptq_v2"):
            raise SantagenError(
                f"{where} has checkpoint_format {form!r}, which packs values in an order santagen "
                "does not read.",
                "Quantise with checkpoint_format gptq or gptq_v2.",
            )
    for key, what in (
        ("dynamic", "settings that differ by module"),
        ("lm_head", "a quantised lm_head"),
    ):
        if settings.get(key):
            raise SantagenError(
                f"{where} has {key} set ({what}), which santagen does not read.",
                f"Quantise every layer alike, without {key}.",
            )
    if str(settings.get("pack_dtype") or "int32") != "int32":
        raise SantagenError(
            f"{where} has pack_dtype {settings['pack_dtype']!r}; santagen reads int32.",
            "Quantise with pack_dtype int32.",
        )


def _refuse_foreign_tensors(files: TensorFiles) -> None:
    """Other methods, old forms and layers that are not alike, told by the tensors alone."""
    methods = {part: name for name, parts in FOREIGN_PARTS.items() for part in parts}
    quantised = any(name.endswith(".qweight") for name in files.names())
    for name, info in files.infos():
        layer, _, part = name.rpartition(".")
        method = methods.get(part)
        if part == "B" and f"{layer}.s" in files:
            method = "marlin"
        elif part == "qweight" and _packed_by_awq(files, layer):
            method = "awq"
        if method:
            raise SantagenError(
                f"{name} in {info.file} is of weights quantised as {method}, which santagen does "
                "not read.",
                REFUSED_METHODS[method],
            )
        if part == "zeros":
            raise SantagenError(
                f"{name} in {info.file} is of the GPTQ form before April 2023 (zeros in place of "
                "qzeros).",
                "Quantise the model again with a current GPTQ tool.",
            )
        if part in ("qweight", "qzeros") and info.dtype != "I32":
            raise SantagenError(
                f"{name} in {info.file} is {info.dtype}: {part} not packed into int32 is a form "
                "that santagen does not read.",
                "Quantise the model again with a current GPTQ tool.",
            )
        if part == "qweight" and not LAYER.search(name):
            raise SantagenError(
                f"{name} in {info.file} is quantised, and santagen reads GPTQ in the layers' "
                "products only.",
                "Quantise the model with head and embeddings left as floats.",
            )
        if quantised and part == "weight" and LAYER.search(name):
            raise SantagenError(
                f"{name} in {info.file} is not quantised, but other layers are.",
                "Quantise every layer: no module may be left out (modules_in_block_to_quantize).",
            )


def _packed_by_awq(files: TensorFiles, layer: str) -> bool:
    """AWQ packs weights and zero points along the outputs; the scales are not packed."""
    shapes = []
    for part in ("qweight", "qzeros", "scales"):
        if f"{layer}.{part}" not in files:
            return False
        shapes.append(files.info(f"{layer}.{part}").shape)
    weight, zeros, scales = (shape[-1] if len(shape) == 2 else 0 for shape in shapes)
    return 0 < weight == zeros and weight < scales


def _scalar_settings(files: TensorFiles) -> dict[str, Any]:
    keys = {"gptq_bits": "bits", "gptq_groupsize": "group_size"}
    found = {}
    for name, key in keys.items():
        if name in files:
            values = files.read_array(name).reshape(-1)
            if len(values) != 1 or not float(values[0]).is_integer():
                raise SantagenError(
                    f"The tensor {name} is {values.tolist()}, not one number.", ONE_PLACE
                )
            found[key] = int(values[0])
    return found


def _flattened(where: str, settings: dict[str, Any]) -> dict[str, Any]:
    """With `format`, gptqmodel's second name of checkpoint_format, under the usual name."""
    one, two = (str(settings.get(key) or "").lower() for key in ("checkpoint_format", "format"))
    if one and two and one != two:
        raise SantagenError(
            f"{where} says checkpoint_format {one} and format {two}.",
            "Keep the one that belongs to the weights.",
        )
    return {**settings, "checkpoint_format": one or two or None}


def _refuse_conflicts(found: list[tuple[str, dict[str, Any]]]) -> None:
    for i, (first, one) in enumerate(found):
        for second, two in found[i + 1 :]:
            for key in COMPARED:
                a, b = one.get(key), two.get(key)
                if a is not None and b is not None and a != b:
                    raise SantagenError(
                        f"{says(first)} {key} {shown(a)} and {says(second)} {key} {shown(b)}.",
                        "Keep the one that belongs to the weights.",
                    )


def _merged(found: list[tuple[str, dict[str, Any]]]) -> GPTQSettings:
    where = " and ".join(name for name, _ in found)
    merged: dict[str, Any] = {}
    for _, settings in reversed(found):
        merged |= {key: value for key, value in settings.items() if value is not None}
    said = {
        key: " and ".join(name for name, settings in found if settings.get(key) is not None)
        for key in merged
    }
    bits, group = _bits(merged.get("bits"), said.get("bits", where)), merged.get("group_size", -1)
    if type(group) is not int or (group != -1 and group < 1):
        raise SantagenError(
            f"{says(said['group_size'])} group_size {shown(group)}; it must be -1 or a whole "
            "number above 0.",
            ONE_PLACE,
        )
    sym = bool(merged.get("sym", True))
    meta = merged.get("meta")
    tools = meta.get("quantizer") if isinstance(meta, dict) else None
    tools = tools if isinstance(tools, list) else [tools]
    by_word = any(str(tool).lower().startswith("gptqmodel") for tool in tools)
    rule = "v1-word" if by_word and not sym and bits != 3 else "v1"
    if merged.get("checkpoint_format") == "gptq_v2":
        rule = "v2"
    return GPTQSettings(
        bits, group, bool(merged.get("desc_act", False)), sym, rule, where,
        by_word=by_word and bits != 3, said=said,
    )  # fmt: skip


def _bits(bits: Any, where: str) -> int:
    """Refuse what is no number of bits, and one that santagen doesn't read."""
    known = ", ".join(map(str, BITS))
    if bits is None:
        raise SantagenError(
            f"{says(where)} no bits: nothing tells how the weights are packed.",
            f"Set bits to what the weights were quantised with ({known}).",
        )
    if type(bits) is not int or bits < 1:
        raise SantagenError(
            f"{says(where)} bits {shown(bits)}; it must be a whole number, one of {known}.",
            f"Set bits to what the weights were quantised with. {ONE_PLACE}",
        )
    if bits not in BITS:
        raise SantagenError(
            f"{says(where)} bits {bits}; santagen reads {known}.", "Quantise with 4 or 8 bits."
        )
    return bits


def says(where: str) -> str:
    """ "config.json" -> "config.json says"; of several places, or tensors, "... say"."""
    return f"{where} {'say' if ' and ' in where else 'says'}"
