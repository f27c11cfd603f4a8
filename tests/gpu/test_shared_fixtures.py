"""Checkpoints that other tools wrote, in bfloat16 on CUDA: GPTQ packed and dequantised.

tests/checkpoint/test_shared_fixtures.py holds them to 1e-4 in float32 on the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from santagen.llm import LLM
from tests.checkpoint.test_shared_fixtures import LOADS, MANIFEST, ROOT
from tests.model_helpers import decode_logits, prefill_logits

RELATIVE = 2e-2  # of bfloat16
GPTQ = {entry["name"] for entry in MANIFEST if entry["kind"] == "gptq"}
WAYS = [
    (name, way)
    for name in LOADS
    for way in (("gptq", "none", "auto") if name in GPTQ else ("auto",))
]
pytestmark = pytest.mark.skipif(
    not MANIFEST, reason="the shared fixtures are not beside this clone"
)


def relative_errors(found: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Of the worst prompt: ||found - wanted|| / ||wanted||, and the same of the largest values."""
    difference = found.float().cpu() - wanted
    norms = difference.norm(dim=1) / wanted.norm(dim=1)
    return float(norms.max()), float((difference.abs().amax(1) / wanted.abs().amax(1)).max())


@pytest.mark.parametrize(("name", "quantization"), WAYS)
def test_logits_equal_the_reference(name: str, quantization: str) -> None:
    reference = np.load(ROOT / name / "ref_logits.npz")
    wanted = torch.from_numpy(reference["last_logits"])
    prompts = [reference[f"prompt_{i}"].tolist() for i in range(len(wanted))]
    llm = LLM(
        str(ROOT / name), dtype="bfloat16", quantization=quantization, max_num_seqs=len(prompts)
    )
    packed = any("kept packed" in line for line in llm.describe())
    assert packed == (quantization != "none" and name in GPTQ)
    model = llm.engine.runner.model
    prefilled = torch.stack([logits[-1] for logits in prefill_logits(model, prompts)])
    decoded = decode_logits(model, prompts)
    errors = [*relative_errors(prefilled, wanted), *relative_errors(decoded, wanted)]
    shown = "norm {:.4f}, largest {:.4f} (prefill); {:.4f}, {:.4f} (decode)".format(*errors)
    print(f"\n{name}, {'packed' if packed else 'dense'}: {shown}", end="")
    assert max(errors) < RELATIVE
