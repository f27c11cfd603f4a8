"""Checkpoints that other tools wrote, in every layout: each does what its manifest says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from santagen.errors import SantagenError
from santagen.llm import LLM
from santagen.request import Request, SampleOutput, SamplingParams
from tests.model_helpers import SHARED, decode_logits, load_model, prefill_logits

ROOT = SHARED / "fixtures"
MANIFEST: list[dict[str, Any]] = (
    json.loads((ROOT / "MANIFEST.json").read_text()) if (ROOT / "MANIFEST.json").is_file() else []
)
LOADS = [e["name"] for e in MANIFEST if e.get("has_reference") and e["expected"] != "refused"]
REFUSED = [e for e in MANIFEST if e["expected"] == "refused"]

pytestmark = pytest.mark.skipif(
    not MANIFEST, reason="the shared fixtures are not beside this clone"
)


@pytest.mark.parametrize("name", LOADS)
def test_logits_and_greedy_equal_the_reference(name: str) -> None:
    reference = np.load(ROOT / name / "ref_logits.npz")
    prompts = [reference[f"prompt_{i}"].tolist() for i in range(len(reference["last_logits"]))]
    model = load_model(ROOT / name)
    last = torch.stack([logits[-1] for logits in prefill_logits(model, prompts)])
    wanted = torch.from_numpy(reference["last_logits"])
    assert float((last - wanted).abs().max()) < 1e-4
    assert float((decode_logits(model, prompts) - wanted).abs().max()) < 1e-4

    safe = reference["greedy_safe_len"].tolist()
    llm = LLM(str(ROOT / name), device="cpu")
    params = SamplingParams(max_tokens=reference["greedy_ids"].shape[1], ignore_eos=True)
    requests = [Request(i, i, tuple(ids), params) for i, ids in enumerate(prompts)]
    for output in llm.run(requests):
        assert isinstance(output, SampleOutput)
        i = output.request.number
        assert list(output.token_ids)[: safe[i]] == reference["greedy_ids"][i][: safe[i]].tolist()


@pytest.mark.parametrize("entry", REFUSED, ids=[e["name"] for e in REFUSED])
def test_broken_checkpoints_are_refused_by_name(entry: dict[str, Any]) -> None:
    with pytest.raises(SantagenError) as caught:
        llm = LLM(str(ROOT / entry["name"]), device="cpu")
        assert entry.get("when") == "run", "it loaded"
        list(llm.run([Request(0, 0, (1, 2, 3), SamplingParams(max_tokens=4))]))
    for word in entry.get("must_name") or []:
        assert word in caught.value.message, f"{word!r} is not in {caught.value.message!r}"
    assert caught.value.hint
