"""`santagen bench` on a GPU: a small shape, whole, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from santagen.bench.cases import Case
from santagen.bench.measure import Bench
from santagen.bench.probes import measure_rates
from santagen.checkpoint.random_weights import RandomModel
from santagen.cli.app import run_program
from santagen.config import ModelConfig
from santagen.llm import LLM
from tests.gpu.random_model import SANTACODER

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = {"model_type": "gpt_bigcode", "torch_dtype": "bfloat16", **SANTACODER, "n_layer": 4,
         "vocab_size": 8000}  # fmt: skip


def test_a_small_shape_is_measured_in_bfloat16(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SHAPE))
    arguments = ["bench", "--random-weights", str(tmp_path), "--batch-sizes", "1,96"]
    arguments += ["--prompt-len", "300", "--output-len", "65", "--output-json", "-"]
    code = run_program(arguments)
    out, err = capfd.readouterr()
    print(err)
    assert code == 0, err
    found = json.loads(out)
    assert found["model"]["dtype"] == "bfloat16"
    one, many = found["cases"]
    for case in (one, many):
        assert case["error"] is None and case["notes"] == []
        assert case["decode"]["steps"] == 64
        assert case["generated_tokens"] == case["batch_size"] * 65
        for part in (case["prefill"], case["decode"]):
            assert 0 < part["share_of_limit"] < 1.1
        assert found["model"]["weight_bytes"] < case["peak_memory_bytes"]
    # A step of 96 rows reads the same weights as a step of one: far less than 96 times its time.
    steps = [case["decode"]["seconds_per_step"]["median"] for case in (one, many)]
    assert steps[1] < 10 * steps[0]


def test_rates_are_those_of_a_gpu() -> None:
    device = torch.device("cuda")
    half, single = (measure_rates(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert half.bandwidth > 1e11  # a CPU's memory reaches less
    assert half.flop_per_second > single.flop_per_second > 1e12


def test_out_of_device_memory_is_a_row_and_the_engine_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = RandomModel(Path(), "small", config=ModelConfig.from_dict(SHAPE))
    bench = Bench(
        lambda: LLM(model, max_num_seqs=8), temperature=0.8, top_p=0.95, repeat=1, warmup=0
    )
    first, launch = bench.llm, bench.llm.engine.runner.launch

    def greedy(step: object) -> object:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return launch(step)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(first.engine.runner, "launch", greedy)
        error = bench.measure(Case(4, 16, 4)).error
        assert error is not None and "no memory left for 1 sequences" in error
    result = bench.measure(Case(4, 16, 4))
    assert result.error is None and bench.llm is not first
