"""Every layout comes to the standard weights, in whole and in slices; what fits none is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.checkpoint.inspection import inspect_checkpoint
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from tests.checkpoint.loading import open_float32, standard_weights
from tests.fixture_writer import Spec, write_checkpoint, write_safetensors
from tests.model_helpers import load_model, prefill_logits
from tests.reference_model import reference_logits

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadCustomModel"]}
MHA = {"multi_query": False}
SQUARE = {"n_inner": 64, "n_head": 2}  # kv_attn and c_fc are square
UNTIED = {"tie_word_embeddings": False}
LAYOUTS = {
    "linear fused": Spec(),
    "linear split": Spec(split=True),
    "conv1d fused": Spec(conv1d=True),
    "conv1d split": Spec(conv1d=True, split=True, config=GPT2),
    "square fused": Spec(config=SQUARE),
    "square fused conv1d": Spec(config=SQUARE, conv1d=True),
    "square split": Spec(config=SQUARE, split=True),
    "square split conv1d": Spec(config=SQUARE | GPT2, split=True, conv1d=True),
    "inner null": Spec(config={"n_inner": None}),
    "float16": Spec(dtype="F16"),
    "float32": Spec(dtype="F32"),
    "sharded": Spec(shards=3),
    "odd file name": Spec(file="gptq_model-4bit-128g.safetensors"),
    "bin": Spec(file="pytorch_model.bin"),
    "bin conv1d split": Spec(file="pytorch_model.bin", conv1d=True, split=True),
    "bare names": Spec(prefix=""),
    "only lm_head": Spec(head="lm_head"),
    "bare, only lm_head": Spec(head="lm_head", prefix=""),
    "wte and lm_head": Spec(head="both"),
    "untied": Spec(config=UNTIED),
    "interleaved heads": Spec(config=MHA),
    "buffers": Spec(
        extra={
            "transformer.h.0.attn.bias": np.ones((1, 1, 4, 4)),
            "transformer.h.1.attn.masked_bias": np.array(-1e4),
            "transformer.h.0.attn.rotary_emb.inv_freq": np.ones(4),
        }
    ),
}
ALL = pytest.mark.parametrize("spec", LAYOUTS.values(), ids=LAYOUTS)


def rewrite_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@ALL
def test_every_layout_comes_to_the_standard_weights(tmp_path: Path, spec: Spec) -> None:
    wanted = write_checkpoint(tmp_path, spec)
    found = standard_weights(open_float32(tmp_path))
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(found[name], torch.from_numpy(weight.copy())), name
        assert found[name].is_contiguous()


@pytest.mark.parametrize(
    "spec", [LAYOUTS[k] for k in ("conv1d split", "interleaved heads", "untied")]
)
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "silu"])
def test_the_model_agrees_with_the_plain_forward(tmp_path: Path, spec: Spec, act: str) -> None:
    config = {**spec.config, "activation_function": act, "scale_attn_weights": act != "relu"}
    standard = write_checkpoint(tmp_path, replace(spec, config=config))
    weights = {name: torch.from_numpy(value.copy()) for name, value in standard.items()}
    prompts = [[5, 17, 3, 88, 41, 2, 2, 9], [95]]
    logits = prefill_logits(load_model(tmp_path), prompts)
    for prompt, found in zip(prompts, logits, strict=True):
        wanted = reference_logits(weights, ModelConfig.from_directory(tmp_path), prompt)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@ALL
def test_slices_are_parts_of_the_whole(tmp_path: Path, spec: Spec) -> None:
    write_checkpoint(tmp_path, spec)
    weights = open_float32(tmp_path)
    for module, inp in (
        ("attn.c_attn", None), ("attn.c_attn", (3, 40)), ("attn.c_proj", (16, 48)),
        ("mlp.c_fc", None), ("mlp.c_proj", (7, 61)),
    ):  # fmt: skip
        prefix = f"transformer.h.1.{module}"
        whole, whole_bias = weights.get_linear(prefix)
        last = whole.shape[0]
        for out in (
            None,
            [(0, last)],
            [(16, 48), (60, last)],
            [(0, 5), (5, 62)],
            [(63, last), (1, 3)],
        ):
            rows = torch.cat([torch.arange(*pair) for pair in out or [(0, last)]])
            part, bias = weights.get_linear(prefix, out=out, inp=inp)
            columns = slice(*inp) if inp else slice(None)
            assert torch.equal(part, whole[rows][:, columns])
            assert torch.equal(bias, whole_bias[rows])


def test_embedding_rows_past_the_end_are_zero(tmp_path: Path) -> None:
    standard = write_checkpoint(tmp_path, Spec(head="lm_head"))
    weights = open_float32(tmp_path)
    table = torch.from_numpy(standard["transformer.wte.weight"])
    rows = weights.get_rows("transformer.wte.weight", 90, 100)
    assert torch.equal(rows[:6], table[90:])
    assert not rows[6:].any() and rows.shape == (10, 64)
    assert not weights.get_rows("transformer.wte.weight", 98, 100).any()


def test_dtype_is_the_runs(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(dtype="F32"))
    weights = open_float32(tmp_path)
    weights.dtype = torch.bfloat16
    assert weights.get_linear("transformer.h.0.mlp.c_fc")[1].dtype == torch.bfloat16
    assert weights.get_tensor("transformer.ln_f.bias").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        (Spec(), ("Linear", "c_attn.weight is [96, 64]", "fused", "tied", "wte")),
        (
            Spec(conv1d=True, split=True),
            ("Conv1D", "kv_attn.weight is [64, 32]", "split", "tied", "wte"),
        ),
        (Spec(config=UNTIED), ("Linear", "", "fused", "of its own", "wte and lm_head")),
        (
            Spec(config=SQUARE | GPT2 | {"n_head": 2}, conv1d=True, split=True),
            ("Conv1D", "GPT2LMHeadCustomModel", "split", "tied", "wte"),
        ),
    ],
)
def test_the_layout_says_what_it_found_and_why(tmp_path: Path, spec: Spec, facts: Any) -> None:
    write_checkpoint(tmp_path, spec)
    found = inspect_checkpoint(tmp_path, ModelConfig.from_directory(tmp_path))[1].facts()
    keys = ("orientation", "orientation_why", "attention", "head", "head_stored")
    for key, fact in zip(keys, facts, strict=True):
        assert fact in found[key], (key, found)


@pytest.mark.parametrize(
    ("spec", "changes", "words"),
    [
        (Spec(), {"n_layer": 3}, ["transformer.h.2."]),
        (Spec(), {"n_layer": 1}, ["transformer.h.1."]),
        (Spec(), {"n_inner": 161}, ["transformer.h.0.mlp.c_fc.weight", "[160, 64]", "[161, 64]"]),
        (Spec(conv1d=True), {"n_inner": 161}, ["mlp.c_fc.weight", "[64, 160]", "[64, 161]"]),
        (Spec(), {"vocab_size": 97}, ["transformer.wte.weight", "[96, 64]", "[97, 64]"]),
        (Spec(head="both"), {"vocab_size": 95}, ["[96, 64]", "[95, 64]"]),
        (Spec(), {"tie_word_embeddings": False}, ["lm_head.weight"]),
        (Spec(head="lm_head"), {"tie_word_embeddings": False}, ["transformer.wte.weight"]),
        (Spec(config=MHA, conv1d=True), {}, ["multi_query", "Conv1D"]),
        (Spec(), MHA, ["transformer.h.0.attn.c_attn.weight", "[96, 64]"]),
        (Spec(extra={"transformer.h.0.attn.rope": np.ones(3)}), {}, ["transformer.h.0.attn.rope"]),
        (Spec(extra={"lm_head.bias": np.ones(96)}), {}, ["lm_head.bias"]),
        (Spec(dtype="I32"), {}, ["I32", "transformer.wte.weight"]),
    ],
)
def test_what_fits_no_layout_is_refused(
    tmp_path: Path, spec: Spec, changes: dict[str, Any], words: list[str]
) -> None:
    write_checkpoint(tmp_path, spec)
    rewrite_config(tmp_path, **changes)
    with pytest.raises(SantagenError) as caught:
        open_float32(tmp_path)
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint


def mixed(folder: Path, change: Any) -> None:
    """A standard float32 checkpoint whose tensors `change` has altered."""
    standard = write_checkpoint(folder, Spec())
    tensors = {name: ("F32", value) for name, value in standard.items()}
    change(tensors)
    write_safetensors(folder / "model.safetensors", tensors)


def test_layers_of_two_orientations_are_refused(tmp_path: Path) -> None:
    name = "transformer.h.1.mlp.c_proj.weight"

    def turn(tensors: dict[str, Any]) -> None:
        tensors[name] = ("F32", tensors[name][1].T)

    mixed(tmp_path, turn)
    with pytest.raises(SantagenError, match=r"h\.1\.mlp\.c_proj\.weight .*Conv1D, but .*Linear"):
        open_float32(tmp_path)


def test_fused_and_split_layers_together_are_refused(tmp_path: Path) -> None:
    def split_one(tensors: dict[str, Any]) -> None:
        fused = tensors["transformer.h.1.attn.c_attn.weight"][1]
        tensors["transformer.h.1.attn.kv_attn.weight"] = ("F32", fused[64:])

    mixed(tmp_path, split_one)
    with pytest.raises(SantagenError, match=r"h\.1\.attn\.kv_attn beside .*h\.0\.attn\.c_attn"):
        open_float32(tmp_path)
