"""GPTQ files of every form come to exactly the integers that were packed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from santagen.checkpoint.gptq import unpack, unpack_zeros
from santagen.checkpoint.gptq_settings import GPTQSettings
from tests.checkpoint.loading import change, open_float32, settings_in, standard_weights
from tests.fixture_writer import GPTQSpec, Spec, pack, pack_zeros, write_checkpoint

MHA = {"multi_query": False}
ASYM = GPTQSpec(sym=False)
FORMS = {
    "4 bits": Spec(gptq=GPTQSpec()),
    "2 bits act-order": Spec(gptq=GPTQSpec(bits=2, act_order=True)),
    "3 bits asym": Spec(gptq=replace(ASYM, bits=3, act_order=True)),
    "8 bits one group": Spec(gptq=GPTQSpec(bits=8, group_size=-1)),
    "v1, zero points of 0": Spec(gptq=replace(ASYM, zero_points=(0, 3))),
    "v1-word, zero points of 0": Spec(gptq=replace(ASYM, form="v1-word", zero_points=(0, 15))),
    "v1-word, 2 bits": Spec(gptq=replace(ASYM, form="v1-word", bits=2)),
    "v1-word, 8 bits": Spec(gptq=replace(ASYM, form="v1-word", bits=8, zero_points=(0, 1))),
    "v2 asym": Spec(gptq=replace(ASYM, form="v2")),
    "v2 sym": Spec(gptq=GPTQSpec(form="v2")),
    "split": Spec(split=True, gptq=ASYM),
    "split, two act-orders": Spec(split=True, gptq=replace(ASYM, act_order=True)),
    "group that does not divide": Spec(gptq=replace(ASYM, group_size=48)),
    "zero g_idx": Spec(gptq=replace(ASYM, g_idx="zero")),
    "no g_idx": Spec(gptq=replace(ASYM, g_idx="absent")),
    "bf16 scales": Spec(gptq=replace(ASYM, scales_dtype="BF16")),
    "bin": Spec(gptq=ASYM, file="pytorch_model.bin"),
    "odd name, bare": Spec(gptq=ASYM, file="gptq_model-4bit-32g.safetensors", prefix=""),
    "interleaved heads": Spec(config=MHA, gptq=ASYM),
}
ALL = pytest.mark.parametrize("spec", FORMS.values(), ids=FORMS)


@given(
    bits=st.sampled_from([2, 3, 4, 8]), blocks=st.integers(1, 4), columns=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_unpacking_undoes_packing(bits: int, blocks: int, columns: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**bits, (columns, 32 * blocks))
    packed = torch.from_numpy(pack(values, bits).T.copy())
    assert torch.equal(unpack(packed, bits), torch.from_numpy(values.T).to(torch.uint8))


@given(
    bits=st.sampled_from([2, 3, 4, 8]), form=st.sampled_from(["v1", "v1-word", "v2"]),
    small=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_zero_points_of_every_form(bits: int, form: str, small: bool, seed: int) -> None:
    form = "v1" if bits == 3 and form == "v1-word" else form
    zeros = np.random.default_rng(seed).integers(0, 2 if small else 2**bits, (3, 64))
    packed = torch.from_numpy(pack_zeros(zeros, bits, form))
    assert torch.equal(unpack_zeros(packed, bits, form), torch.from_numpy(zeros).to(torch.uint8))


@st.composite
def gptq_specs(draw: Callable[..., Any]) -> Spec:
    """Any mix of bits, group, order, symmetry, format, layout and sizes that packing allows."""
    bits = draw(st.sampled_from([2, 3, 4, 8]))
    sym = draw(st.booleans())
    forms = ["v1", "v2"] if bits == 3 or sym else ["v1", "v1-word", "v2"]
    act_order = draw(st.booleans())
    gptq = GPTQSpec(
        bits=bits,
        group_size=draw(st.sampled_from([-1, 8, 24, 32, 64, 128])),
        act_order=act_order,
        sym=sym,
        form=draw(st.sampled_from(forms)),
        g_idx="stored" if act_order else draw(st.sampled_from(["stored", "zero", "absent"])),
        zero_points=draw(st.sampled_from([(), (0,), (0, 1)])),
        scales_dtype=draw(st.sampled_from(["F16", "BF16", "F32"])),
    )
    split = draw(st.booleans())
    unit = 32 if bits == 3 else 16
    shape = {
        "n_head": draw(st.sampled_from([1, 2, 4])), "n_layer": 1, "n_embd": 128,
        "n_inner": unit * draw(st.integers(1, 12)),
        "multi_query": split or draw(st.booleans()),
    }  # fmt: skip
    return Spec(config=shape, split=split, gptq=gptq, seed=draw(st.integers(0, 999)))


@given(spec=gptq_specs())
@settings(max_examples=40, deadline=None)
def test_any_mix_loads_exactly(tmp_path_factory: pytest.TempPathFactory, spec: Spec) -> None:
    folder = tmp_path_factory.mktemp("mix")
    try:
        check_exact(folder, spec)
    finally:
        shutil.rmtree(folder)


@ALL
def test_every_form_loads_exactly(tmp_path: Path, spec: Spec) -> None:
    check_exact(tmp_path, spec)


def check_exact(folder: Path, spec: Spec) -> None:
    wanted = write_checkpoint(folder, spec)
    weights = open_float32(folder)
    found = standard_weights(weights)
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(found[name], torch.from_numpy(weight.copy())), name
    assert [n for n in weights.notes if "taken as shorter" not in n] == []


@ALL
def test_slices_are_parts_of_the_whole(tmp_path: Path, spec: Spec) -> None:
    """What tensor parallelism asks for: output ranges, and rows that need not fill a word."""
    write_checkpoint(tmp_path, spec)
    weights = open_float32(tmp_path)
    for module, inp in (
        ("attn.c_attn", None), ("attn.c_proj", (16, 48)), ("attn.c_proj", (3, 61)),
        ("mlp.c_fc", None), ("mlp.c_proj", (80, 160)), ("mlp.c_proj", (33, 70)),
    ):  # fmt: skip
        prefix = f"transformer.h.1.{module}"
        whole, whole_bias = weights.get_linear(prefix)
        last = whole.shape[0]
        for out in (None, [(16, 48), (60, last)], [(0, 5), (5, 62)], [(63, last), (1, 3)]):
            rows = torch.cat([torch.arange(*pair) for pair in out or [(0, last)]])
            part, bias = weights.get_linear(prefix, out=out, inp=inp)
            columns = slice(*inp) if inp else slice(None)
            assert torch.equal(part, whole[rows][:, columns])
            assert torch.equal(bias, whole_bias[rows])


def test_a_row_range_keeps_the_global_group_of_its_rows(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=replace(ASYM, act_order=True)))
    weights = open_float32(tmp_path)
    prefix = "transformer.h.0.mlp.c_proj"
    (whole,) = weights.get_gptq(prefix)
    (part,) = weights.get_gptq(prefix, inp=(80, 160))
    assert whole.act_order and part.act_order
    assert torch.equal(part.g_idx, whole.g_idx[80:])
    assert torch.equal(part.codes, whole.codes[80:])
    assert torch.equal(part.scales, whole.scales) and part.scales.shape[0] == 5
    assert part.codes.dtype == torch.uint8 and part.zeros.dtype == torch.uint8


def test_rows_in_order_are_told_from_act_order(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=ASYM))
    weights = open_float32(tmp_path)
    for inp in (None, (80, 160), (33, 70)):
        (layer,) = weights.get_gptq("transformer.h.0.mlp.c_proj", inp=inp)
        assert not layer.act_order


def test_split_layers_join_where_they_group_alike(tmp_path: Path) -> None:
    for name, act_order, count in (("in-order", False, 1), ("act-order", True, 2)):
        folder = tmp_path / name
        folder.mkdir()
        write_checkpoint(folder, Spec(split=True, gptq=replace(ASYM, act_order=act_order)))
        weights = open_float32(folder)
        layers = weights.get_gptq("transformer.h.0.attn.c_attn")
        assert len(layers) == count
        joined = torch.cat([layer.dequantize() for layer in layers])
        assert torch.equal(joined, weights.get_linear("transformer.h.0.attn.c_attn")[0])


def test_dequantising_rounds_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=ASYM))
    (layer,) = open_float32(tmp_path).get_gptq("transformer.h.0.mlp.c_fc")
    assert torch.equal(layer.dequantize(torch.bfloat16), layer.dequantize().bfloat16())


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "I32"])
def test_scalar_settings_are_read_in_any_dtype(tmp_path: Path, dtype: str) -> None:
    write_checkpoint(tmp_path, Spec(gptq=GPTQSpec(group_size=64)))
    settings_in(tmp_path, "nowhere")
    change(tmp_path, "gptq_bits", np.array(4), dtype)
    change(tmp_path, "gptq_groupsize", np.array([64]), dtype)
    found = open_float32(tmp_path).quantization
    assert found is not None and (found.bits, found.group_size) == (4, 64)


@pytest.mark.parametrize("file", ["both", "quantize_config.json", "tensors"])
def test_settings_are_read_wherever_they_stand(tmp_path: Path, file: str) -> None:
    wanted = write_checkpoint(tmp_path, Spec(gptq=replace(ASYM, bits=8)))
    whole = (tmp_path / "config.json").read_text()
    if file == "tensors":
        change(tmp_path, "gptq_bits", np.array([8]))
        change(tmp_path, "gptq_groupsize", np.array(32))
    else:
        settings_in(tmp_path, "quantize_config.json")
    settings_in(tmp_path, "nowhere")
    if file == "both":
        (tmp_path / "config.json").write_text(whole)
    weights = open_float32(tmp_path)
    assert isinstance(weights.quantization, GPTQSettings)
    assert (weights.quantization.bits, weights.quantization.group_size) == (8, 32)
    found, _ = weights.get_linear("transformer.h.0.mlp.c_fc")
    assert torch.equal(found, torch.from_numpy(wanted["transformer.h.0.mlp.c_fc.weight"].copy()))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("form", "label"), [("v1", "gptq_v2"), ("v2", "gptq"), ("v2", None)])
def test_symmetric_values_overrule_the_label(
    tmp_path: Path, bits: int, form: str, label: str | None
) -> None:
    wanted = write_checkpoint(tmp_path, Spec(gptq=GPTQSpec(bits=bits, form=form)))
    settings_in(tmp_path, "config.json", checkpoint_format=label)
    weights = open_float32(tmp_path)
    found, _ = weights.get_linear("transformer.h.0.mlp.c_fc")
    assert torch.equal(found, torch.from_numpy(wanted["transformer.h.0.mlp.c_fc.weight"].copy()))
    (note,) = weights.notes
    assert form in note and "trusted" in note


@pytest.mark.parametrize(("form", "label"), [("v1", "gptq_v2"), ("v2", "gptq")])
def test_one_zero_point_tells_the_format_whatever_sym_says(
    tmp_path: Path, form: str, label: str
) -> None:
    wanted = write_checkpoint(tmp_path, Spec(gptq=GPTQSpec(form=form)))
    settings_in(tmp_path, "config.json", checkpoint_format=label, sym=False)
    weights = open_float32(tmp_path)
    found, _ = weights.get_linear("transformer.h.1.mlp.c_proj")
    assert torch.equal(found, torch.from_numpy(wanted["transformer.h.1.mlp.c_proj.weight"].copy()))
    assert weights.quantization is not None and weights.quantization.sym
    assert len(weights.notes) == 1 and "trusted" in weights.notes[0]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["v1", "v1-word", "v2"])
@pytest.mark.parametrize("sym", [True, None])
def test_unlike_zero_points_are_asymmetric_whatever_sym_says(
    tmp_path: Path, sym: bool | None, form: str, bits: int
) -> None:
    form = "v1" if bits == 3 and form == "v1-word" else form
    gptq = GPTQSpec(bits=bits, form=form, sym=False, zero_points=(0, 3))
    wanted = write_checkpoint(tmp_path, Spec(gptq=gptq))
    settings_in(tmp_path, "config.json", sym=sym)
    weights = open_float32(tmp_path)
    found, _ = weights.get_linear("transformer.h.0.mlp.c_fc")
    assert torch.equal(found, torch.from_numpy(wanted["transformer.h.0.mlp.c_fc.weight"].copy()))
    assert weights.quantization is not None and not weights.quantization.sym
    assert [("zero points differ" in note) for note in weights.notes] == [True] * (sym is True)


@pytest.mark.parametrize(("form", "label"), [("v1", "GPTQ"), ("v2", "GPTQ_V2")])
def test_the_label_s_case_does_not_matter(tmp_path: Path, form: str, label: str) -> None:
    wanted = write_checkpoint(tmp_path, Spec(gptq=replace(ASYM, form=form)))
    settings_in(tmp_path, "config.json", checkpoint_format=label, format=label.lower())
    found, _ = open_float32(tmp_path).get_linear("transformer.h.0.mlp.c_fc")
    assert torch.equal(found, torch.from_numpy(wanted["transformer.h.0.mlp.c_fc.weight"].copy()))


def second_file(folder: Path, **settings: Any) -> None:
    """A quantize_config.json beside the settings of config.json."""
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, **settings}))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("form", "label", "words"),
    [
        ("v2", None, "no setting names the format, which means v1, but"),
        ("v2", "gptq", "the format is v1 by config.json, but"),
        ("v1", "gptq_v2", "the format is v2 by config.json, but"),
    ],
)
def test_a_note_names_only_who_said_it(
    tmp_path: Path, form: str, label: str | None, words: str, second: bool
) -> None:
    write_checkpoint(tmp_path, Spec(gptq=GPTQSpec(form=form)))
    settings_in(tmp_path, "config.json", checkpoint_format=label)
    if second:
        second_file(tmp_path)
    (note,) = open_float32(tmp_path).notes
    assert f"GPTQ: {words} every zero point" in note


def test_who_said_a_thing_that_is_not_so_is_named_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=ASYM))
    settings_in(tmp_path, "config.json", sym=None)
    second_file(tmp_path, sym=True)
    (note,) = open_float32(tmp_path).notes
    assert "symmetric by quantize_config.json, but" in note


@pytest.mark.parametrize(("group_size", "g_idx", "said"), [
    (48, "absent", True), (48, "stored", False), (32, "absent", False), (-1, "absent", False),
])  # fmt: skip
def test_uneven_groups_that_nothing_confirms_are_told(
    tmp_path: Path, group_size: int, g_idx: str, said: bool
) -> None:
    form = GPTQSpec(group_size=group_size, form="v2", g_idx=g_idx)
    write_checkpoint(tmp_path, Spec(dtype="F16", gptq=form))
    notes = open_float32(tmp_path).notes
    assert any("the last group is taken as shorter" in note for note in notes) == said
