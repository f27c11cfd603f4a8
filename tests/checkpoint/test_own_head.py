"""A checkpoint whose config ties the head to the embedding, and whose values say otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from santagen.checkpoint.convert import convert
from santagen.checkpoint.inspection import Examination
from santagen.config import ModelConfig
from tests.checkpoint.loading import open_float32, standard_weights
from tests.checkpoint.test_convert import transformers_logits
from tests.fixture_writer import Spec, write_checkpoint
from tests.model_helpers import load_model, prefill_logits
from tests.reference_model import reference_logits

UNTIED = {"tie_word_embeddings": False}
SAID = "lm_head.weight is not the embedding that config.json ties it to"
PROMPTS = [[5, 17, 3, 88, 41], [95]]


@pytest.mark.parametrize("claim", [True, None], ids=["said", "by default"])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_head_of_its_own_is_used(tmp_path: Path, file: str, claim: bool | None) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    standard = write_checkpoint(source, Spec(dtype="F32", config=UNTIED, file=file))
    weights = {name: torch.from_numpy(value.copy()) for name, value in standard.items()}
    config = ModelConfig.from_directory(source)
    wanted = [reference_logits(weights, config, prompt) for prompt in PROMPTS]

    raw = json.loads((source / "config.json").read_text())
    raw.pop("tie_word_embeddings")
    raw |= {} if claim is None else {"tie_word_embeddings": claim}
    (source / "config.json").write_text(json.dumps(raw))
    opened = open_float32(source)
    assert not opened.layout.tied
    assert any(SAID in note for note in opened.notes)
    for found, logits in zip(prefill_logits(load_model(source), PROMPTS), wanted, strict=True):
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=0)

    examined = Examination.of(source)
    assert examined.layout is not None and SAID in examined.layout.note
    assert examined.facts()["parameters"]["head"] == standard["lm_head.weight"].size

    done = convert(source, target)
    assert any(SAID in note for note in done.notes)
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is False
    assert standard_weights(open_float32(target)).keys() == weights.keys()
    assert not open_float32(target).layout.note
    for found, logits in zip(transformers_logits(target, PROMPTS), wanted, strict=True):
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_the_same_numbers_in_another_dtype_are_tied(tmp_path: Path, file: str) -> None:
    standard = write_checkpoint(tmp_path, Spec(dtype="BF16", file=file))
    head = standard["transformer.wte.weight"].copy()
    write_checkpoint(tmp_path, Spec(dtype="BF16", file=file, extra={"lm_head.weight": head}))
    opened = open_float32(tmp_path)
    assert opened.files.info("lm_head.weight").dtype == "F32"
    assert opened.layout.tied and not opened.layout.note
    examined = Examination.of(tmp_path)
    assert examined.layout is not None and examined.layout.tied
    head[95, 63] += 1.0
    write_checkpoint(tmp_path, Spec(dtype="BF16", file=file, extra={"lm_head.weight": head}))
    assert not open_float32(tmp_path).layout.tied
