"""GPTQ files that are damaged, of a foreign kind or of unlike settings are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from santagen.checkpoint.reader import open_checkpoint
from santagen.errors import SantagenError
from tests.checkpoint.loading import change, open_float32, settings_in
from tests.fixture_writer import (
    GPTQSpec,
    Spec,
    read_safetensors,
    write_checkpoint,
    write_safetensors,
)

ASYM = GPTQSpec(sym=False)
P = "transformer.h.1.mlp.c_proj"
Q = "quantize_config.json"


def setting(file: str, **changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        whole = (folder / "config.json").read_text()
        settings_in(folder, file, **changes)
        if file == Q:
            (folder / "config.json").write_text(whole)

    return apply


def tensor(name: str, value: Any, dtype: str = "I32") -> Callable[[Path], None]:
    return lambda folder: change(folder, name, value, dtype)


def set_first(value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda old: np.concatenate([[value], old[1:]])


def other_config(quantization: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "quantization_config": quantization}))

    return apply


def parts(
    names: dict[str, str], shape: Callable[[int, int], tuple[int, int]] = lambda *same: same
) -> Callable[[Path], None]:
    """The qweight, qzeros ... of every layer renamed, those without a name left out; no settings.

    `shape` gives qweight's from [words, N].
    """

    def apply(folder: Path) -> None:
        path, renamed = folder / "model.safetensors", {}
        for name, (dtype, value) in read_safetensors(path).items():
            layer, _, part = name.rpartition(".")
            if part == "qweight":
                value = np.zeros(shape(*value.shape))
            if part not in PARTS:
                renamed[name] = (dtype, value)
            elif part in names:
                renamed[f"{layer}.{names[part]}"] = (dtype, value)
        write_safetensors(path, renamed)
        settings_in(folder, "nowhere")

    return apply


PARTS = ("qweight", "qzeros", "scales", "g_idx")
ALIKE = {part: part for part in PARTS[:3]}

REFUSED: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    **{
        method: (setting("config.json", quant_method=method), [method])
        for method in ("awq", "bitsandbytes", "marlin", "exl2", "fp8", "hqq", "auto-round", "new")
    },
    "load_in_8bit": (
        setting("config.json", quant_method=None, load_in_8bit=True), ["bitsandbytes"]
    ),
    "marlin flag": (setting("config.json", is_marlin_format=True), ["marlin"]),
    "marlin format": (setting(Q, checkpoint_format="marlin"), [Q, "marlin"]),
    "planar": (setting("config.json", checkpoint_format="gptq_p"), ["gptq_p"]),
    "planar by its other name": (setting("config.json", format="gptq_p"), ["gptq_p"]),
    "dynamic": (setting("config.json", dynamic={"+:h.0": {"bits": 8}}), ["dynamic"]),
    "quantised head": (setting("config.json", lm_head=True), ["lm_head"]),
    **{
        f"{key} as text": (setting("config.json", **{key: "false"}), [f"{key} 'false'", "true or"])
        for key in ("desc_act", "sym", "is_marlin_format", "load_in_4bit", "load_in_8bit")
    },
    "lm_head as text": (setting(Q, lm_head="false"), ["lm_head 'false'", Q]),
    "pack dtype": (setting("config.json", pack_dtype="int16"), ["int16"]),
    "bits": (setting("config.json", bits=5), ["bits 5"]),
    "bits as text": (setting("config.json", bits="4"), ["config.json says bits '4'", "whole"]),
    "bits of null": (setting("config.json", bits=None), ["config.json says no bits"]),
    "bits of 0": (setting("config.json", bits=0), ["bits 0", "whole number"]),
    "bits as text in one": (setting(Q, bits="4"), ["says bits 4 and", "json says bits '4'"]),
    "group size of null": (
        setting("config.json", group_size=None), ["without a group_size, which means one group"]
    ),
    "group size": (setting("config.json", group_size=0), ["group_size 0"]),
    "two formats": (setting("config.json", format="gptq_v2"), ["gptq_v2", "checkpoint_format"]),
    "group sizes": (setting(Q, group_size=64), ["group_size 32", "group_size 64"]),
    "desc_act": (setting(Q, desc_act=True), ["desc_act False", "desc_act True"]),
    "bits against tensors": (tensor("gptq_bits", np.array([8])), ["bits 4", "bits 8", "gptq_bits"]),
    "bits of no number": (tensor("gptq_bits", np.array([np.nan]), "F32"), ["gptq_bits", "nan"]),
    "scalar of two": (tensor("gptq_bits", np.array([8, 4])), ["gptq_bits", "[8, 4]"]),
    "bits against shapes": (setting("config.json", bits=8), ["c_attn.qweight", "[8, 96]"]),
    "groups against shapes": (
        setting("config.json", group_size=16), ["qzeros", "[2, 12]", "[4, 12]"]
    ),
    "no settings": (lambda folder: settings_in(folder, "nowhere"), [Q, "quantization_config"]),
    "old zeros": (tensor(f"{P}.zeros", np.ones((64, 1)), "F16"), [f"{P}.zeros", "2023"]),
    "unpacked zeros": (tensor(f"{P}.qzeros", np.ones((5, 64)), "F16"), [f"{P}.qzeros", "F16"]),
    "qweight of bytes": (tensor(f"{P}.qweight", np.ones((20, 64)), "U8"), [f"{P}.qweight", "U8"]),
    "old scales": (tensor(f"{P}.scales", np.ones((64, 1)), "F16"), [f"{P}.scales", "2023"]),
    "scales of integers": (tensor(f"{P}.scales", np.ones((5, 64))), [f"{P}.scales", "I32"]),
    "no scales": (tensor(f"{P}.scales", None), [f"{P}.scales"]),
    "no qzeros": (tensor(f"{P}.qzeros", None), [f"{P}.qzeros"]),
    "no bias": (tensor(f"{P}.bias", None), [f"{P}.bias"]),
    "g_idx too long": (tensor(f"{P}.g_idx", np.zeros(161)), [f"{P}.g_idx", "[161]", "[160]"]),
    "g_idx of floats": (tensor(f"{P}.g_idx", np.zeros(160), "F32"), [f"{P}.g_idx", "F32"]),
    "g_idx too big": (tensor(f"{P}.g_idx", set_first(5)), [f"{P}.g_idx", "group 5"]),
    "g_idx negative": (tensor(f"{P}.g_idx", set_first(-1)), [f"{P}.g_idx", "group -1"]),
    "g_idx empty": (tensor(f"{P}.g_idx", np.zeros((0,))), [f"{P}.g_idx", "[0]"]),
    "one value a zero point": (
        tensor(f"{P}.qzeros", np.ones((5, 64))), [f"{P}.qzeros", "not packed", "[5, 8]"]
    ),
    "desc_act as text": (setting("config.json", desc_act="false"), ["desc_act 'false'"]),
    "sym as text": (setting(Q, sym="true"), [Q, "sym 'true'"]),
    "group size of parts": (setting("config.json", group_size=32.5), ["32.5", "whole number"]),
    "settings of another kind": (other_config([4, 128]), ["quantization_config", "[4, 128]"]),
    "quantised head's weights": (tensor("lm_head.qweight", np.ones((8, 96))), ["lm_head.qweight"]),
    "marlin by its tensors": (parts({"qweight": "B", "scales": "s"}), ["c_attn.B", "marlin"]),
    "exl2 by its tensors": (
        parts({"qweight": "q_weight", "scales": "q_scale"}), ["q_weight", "exl2"]
    ),
    "bitsandbytes by its tensors": (
        parts({"qweight": "weight", "scales": "SCB"}), ["SCB", "bitsandbytes"]
    ),
    "awq by its shapes": (
        parts(ALIKE, lambda words, out: (words * 8, out // 8)), ["c_attn.qweight", "awq"]
    ),
    "one float layer": (
        lambda folder: [
            tensor(f"{P}.{part}", None)(folder) for part in ("qweight", "qzeros", "scales", "g_idx")
        ] and tensor(f"{P}.weight", np.ones((64, 160)), "F32")(folder),
        [f"{P}.weight"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_read_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: list[str]
) -> None:
    write_checkpoint(tmp_path, Spec(gptq=ASYM))
    open_float32(tmp_path)
    spoil(tmp_path)
    with pytest.raises(SantagenError) as caught:
        open_float32(tmp_path)
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint


def test_settings_at_fault_are_no_reason_to_quantise_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=ASYM))
    for bits in (None, "4", True, 0, 4.0, [4]):
        settings_in(tmp_path, "config.json", bits=bits)
        with pytest.raises(SantagenError, match=r"config\.json says") as caught:
            open_float32(tmp_path)
        assert "Set bits to what the weights were quantised with" in caught.value.hint
    settings_in(tmp_path, "config.json", bits=5)
    with pytest.raises(SantagenError, match=r"bits 5; santagen reads 2, 3, 4, 8") as caught:
        open_float32(tmp_path)
    assert caught.value.hint == "Quantise with 4 or 8 bits."


@pytest.mark.parametrize(("g_idx", "word"), [("zero", "is all zero"), ("absent", "is missing")])
def test_act_order_without_its_order_is_refused(tmp_path: Path, g_idx: str, word: str) -> None:
    write_checkpoint(tmp_path, Spec(gptq=replace(ASYM, act_order=True, g_idx=g_idx)))
    with pytest.raises(SantagenError, match=rf"h\.0\.attn\.c_attn\.g_idx {word}"):
        open_float32(tmp_path)


@pytest.mark.parametrize(("bits", "inner"), [(4, 60), (3, 48), (8, 62)])
def test_sizes_that_do_not_fill_words_are_refused(tmp_path: Path, bits: int, inner: int) -> None:
    write_checkpoint(tmp_path, Spec(gptq=replace(ASYM, bits=bits), config={"n_inner": 64}))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_inner": inner}))
    with pytest.raises(SantagenError, match=f"{inner}"):
        open_float32(tmp_path)


def test_settings_without_quantised_weights_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec())
    (tmp_path / Q).write_text('{"bits": 4, "group_size": 32}')
    with pytest.raises(SantagenError, match=r"quantize_config\.json .* not quantised"):
        open_float32(tmp_path)


@pytest.mark.parametrize("name", ["gptq_model-4bit-32g.pt", "gptq_model-4bit-32g.bin", "w.gguf"])
def test_weights_under_another_name_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"some")
    with pytest.raises(SantagenError, match=f"holds no weights.*only {name}") as caught:
        open_checkpoint(tmp_path)
    assert "pytorch_model.bin" in caught.value.hint
