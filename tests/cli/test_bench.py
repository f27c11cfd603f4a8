"""`santagen bench`: what it measures, what it says, and what is in the way of a measurement."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.bench import measure as measuring
from santagen.bench import probes
from santagen.bench.card import model_card
from santagen.bench.cases import Case, Prompts, Repeat, Result, Spread, Timed, make_cases
from santagen.bench.limit import Limit, Rates
from santagen.bench.measure import Bench, bytes_read, run_timed
from santagen.bench.report import COLUMNS, shares_of_limit
from santagen.checkpoint.random_weights import SHAPES, RandomModel, random_model
from santagen.checkpoint.source import bundled_model
from santagen.cli.bench_options import BenchOptions, sizes
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import settings_of
from santagen.config import EngineConfig, ModelConfig
from santagen.engine import memory
from santagen.kernels.packed_linear import storage_key
from santagen.llm import LLM
from santagen.request import SamplingParams
from tests.checkpoint.loading import change, settings_in
from tests.cli.helpers import Cli, Ran
from tests.fixture_writer import Spec, write_checkpoint

TINY = {"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128,
        "vocab_size": 300}  # fmt: skip
SMALL = ["--prompt-len", "8", "--output-len", "24", "--warmup", "0", "--repeat", "2"]


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real probes, on small buffers."""
    from santagen.bench import probes

    monkeypatch.setattr(probes, "COPY_BYTES", {"cpu": 1 << 22, "cuda": 1 << 22})
    monkeypatch.setattr(probes, "PRODUCT_SIZE", {"cpu": 128, "cuda": 128})
    monkeypatch.setattr(probes, "WARM_SECONDS", 0.01)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "bench.json"


def tiny_llm(**settings: Any) -> LLM:
    config = ModelConfig.from_dict(TINY)
    return LLM(RandomModel(Path(), "tiny", config=config), device="cpu", **settings)


def tiny_bench(**settings: Any) -> Bench:
    return Bench(lambda: tiny_llm(**settings), temperature=0.8, top_p=0.95, repeat=1, warmup=0)


def table(ran: Ran) -> list[list[str]]:
    """The cells of the table's rows; a row's error is one cell."""
    lines = ran.err.splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("batch"))
    rows = itertools.takewhile(lambda line: line[:5].strip().isdecimal(), lines[first + 1 :])
    return [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]


# -- the command -----------------------------------------------------------------------------------


def test_the_bundled_model_is_measured_beside_the_limit(cli: Cli, output: Path) -> None:
    ran = cli("bench", "--batch-sizes", "1,3", "--device", "cpu", "--output-json", output, *SMALL)
    assert (ran.code, ran.out) == (0, ""), ran.err
    assert "6.84 M parameters" in ran.err and "4,096 bytes of KV per token" in ran.err
    assert "weights 26.1 MiB in float32" in ran.err
    assert "a decode step reads 25.1 MiB of weights" in ran.err
    rows = table(ran)
    assert [row[:3] for row in rows] == [["1", "8", "24"], ["3", "8", "24"]]
    assert all(len(row) == len(COLUMNS) for row in rows)

    found = json.loads(output.read_text())
    assert found["interrupted"] is False and found["model"]["parameters"] == 6839808
    for case, rows_together in zip(found["cases"], (1, 3), strict=True):
        assert case["prompt_tokens"] == rows_together * 8
        assert case["generated_tokens"] == rows_together * 24
        assert case["repeats"] == 2 and case["error"] is None and case["notes"] == []
        assert case["prefill"]["launches"] == 1 and case["decode"]["steps"] == 23
        for part in (case["prefill"], case["decode"]):
            assert 0 < part["share_of_limit"] < 1.5
            rate = part["tokens_per_second"]
            assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        step = case["decode"]["seconds_per_step"]
        seconds = case["whole"]["seconds"]
        assert step["median"] * 23 < seconds["max"]
        assert case["peak_memory_bytes"] > found["model"]["weight_bytes"]


def test_random_weights_need_no_checkpoint(cli: Cli, tiny: Path) -> None:
    ran = cli("bench", "--random-weights", tiny, "--batch-sizes", "2", "--output-json", "-", *SMALL,
              "--device", "cpu", "--temperature", "0", "--top-p", "1", "-v")  # fmt: skip
    assert ran.code == 0, ran.err
    assert "ready after" in ran.err
    found = json.loads(ran.out)
    assert found["settings"]["temperature"] == 0 and found["settings"]["top_p"] == 1
    assert found["model"]["n_positions"] == 128
    assert [case["generated_tokens"] for case in found["cases"]] == [48]
    assert list(tiny.parent.iterdir()) == [tiny]


def test_every_combination_of_sizes_is_a_row(cli: Cli, tiny: Path) -> None:
    ran = cli("bench", "--random-weights", tiny.parent / "tiny.json", "--batch-sizes", "1,2",
              "--prompt-len", "4,8", "--output-len", "5", "--repeat", "1", "--warmup", "1",
              "--device", "cpu")  # fmt: skip
    assert ran.code == 0, ran.err
    sizes = [row[:3] for row in table(ran)]
    assert sizes == [["1", "4", "5"], ["2", "4", "5"], ["1", "8", "5"], ["2", "8", "5"]]


def test_quiet_leaves_the_data_only(cli: Cli, tiny: Path) -> None:
    ran = cli("bench", "--random-weights", tiny, "--batch-sizes", "1", "-q", "--output-json", "-",
              *SMALL, "--device", "cpu")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert len(json.loads(ran.out)["cases"]) == 1


def test_a_size_that_does_not_fit_is_a_row_and_the_others_go_on(cli: Cli, tiny: Path) -> None:
    ran = cli("bench", "--random-weights", tiny, "--batch-sizes", "4,1", "--max-num-seqs", "3",
              *SMALL, "--device", "cpu")  # fmt: skip
    assert ran.code == 1
    first, second = table(ran)
    assert first[3:] == ["4 rows are more than --max-num-seqs 3"]
    assert len(second) == len(COLUMNS)
    assert re.fullmatch(r"1 of 2 sizes in [\d.]+ s, 1 failed", ran.err.splitlines()[-1])


@pytest.mark.parametrize(
    "arguments", [["--max-model-len", "31"], ["--batch-sizes", "4,5", "--max-num-seqs", "3"]]
)
def test_sizes_that_failed_are_not_counted_as_measured(
    cli: Cli, tiny: Path, output: Path, arguments: list[str]
) -> None:
    ran = cli("bench", "--random-weights", tiny, "--batch-sizes", "1,2", *SMALL, *arguments,
              "--device", "cpu", "--output-json", output)  # fmt: skip
    assert ran.code == 1
    assert re.search(r"\n0 of 2 sizes in [\d.]+ s, 2 failed, written to ", ran.err)
    assert all(case["error"] for case in json.loads(output.read_text())["cases"])


def test_ctrl_c_keeps_what_was_measured(
    cli: Cli, tiny: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Bench.measure

    def interrupted_at_two(self: Bench, case: Case) -> Result:
        if case.batch_size == 2:
            raise KeyboardInterrupt
        return measure(self, case)

    monkeypatch.setattr(Bench, "measure", interrupted_at_two)
    ran = cli("bench", "--random-weights", tiny, "--batch-sizes", "1,2,3", "--output-json", output,
              *SMALL, "--device", "cpu")  # fmt: skip
    assert ran.code == 130
    assert "interrupted after 1 of 3 sizes" in ran.err and "Traceback" not in ran.err
    found = json.loads(output.read_text())
    assert found["interrupted"] is True
    assert [case["batch_size"] for case in found["cases"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--batch-sizes", "1,x"], "--batch-sizes"),
        (["--batch-sizes", "0"], "'0' must be at least 1"),
        (["--batch-sizes", "2.9"], "'2.9' must be a whole number"),
        (["--batch-sizes", "4,1.5"], "'1.5' must be a whole number"),
        (["--prompt-len", "8.9"], "'8.9' must be a whole number"),
        (["--output-len", "8.0,1e3"], "'8.0' must be a whole number"),
        (["--output-len", "8,1e3"], "'1e3' must be a number, or a size"),
        (["--batch-sizes", "1,,2"], "'' must be a number, or a size"),
        (["--repeat", "0"], "--repeat"),
        (["--warmup", "-1"], "--warmup"),
        (["--output-len", "1"], "--output-len 1 holds no decode step"),
        (["--prompt-len", "1000", "--output-len", "100"], "1024 positions"),
        (["--random-weights", "llama"], "llama"),
        (["--output-json", "absent/b.json"], "absent/b.json"),
        (["--output-json", "."], "folder"),
        (["--top-p", "2", "--batch-sizes", "1"], "top_p"),
        (["-q", "-v"], "exclude"),
        (["-m", "x", "--random-weights", "santacoder"], "-m and --random-weights exclude"),
        (["-m", "./absent"], "absent"),
    ],
)
def test_usage_faults_end_with_2_and_a_hint(cli: Cli, arguments: list[str], word: str) -> None:
    ran = cli("bench", "--device", "cpu", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert word in ran.err and "error: " in ran.err
    assert ran.err.count("\nhint: ") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--gpu-memory-utilization", "0"], "--gpu-memory-utilization is 0.0"),
        (["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization is nan"),
        (["--batch-sizes", "1,99999999"], "--batch-sizes 99999999 is more than 65536"),
        (["--max-num-seqs", "99999999"], "--max-num-seqs 99999999 is more than 65536"),
        (["--max-model-len", "1025"], "--max-model-len 1025 is more than"),
        (["--block-size", "7"], "--block-size 7 does not suit"),
        (["--quantization", "fp8"], "--quantization fp8 needs a CUDA device"),
        (["--quantization", "gptq"], "the model's weights are not quantised"),
        (["--quantization", "gptq", "--random-weights", "santacoder"], "are not quantised"),
        (["--attention", "flash"], "--attention flash needs a CUDA device"),
        (["-m", "damaged"], "which is no weight santagen reads"),
        (["-m", "empty"], "holds no weights"),
        (["-m", "awq"], "quantised as awq"),
        (["-m", "no-tokenizer"], "tokenizer.json"),
    ],
)
def test_what_can_be_told_before_is_told_before_anything_is_measured(
    cli: Cli, tmp_path: Path, arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("damaged", "empty", "awq", "no-tokenizer"):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name, Spec())
    change(tmp_path / "damaged", "transformer.wpe.weight", np.zeros((64, 64)))  # of int32
    (tmp_path / "empty" / "model.safetensors").unlink()
    settings_in(tmp_path / "awq", "config.json", quant_method="awq")
    (tmp_path / "no-tokenizer" / "tokenizer.json").write_text("{}")

    def measured(*arguments: Any) -> None:
        raise AssertionError("the device was measured")

    monkeypatch.setattr(probes, "measure_rates", measured)
    monkeypatch.chdir(tmp_path)
    ran = cli("bench", "--device", "cpu", "--prompt-len", "4", "--output-len", "4", *arguments)
    assert (ran.code, ran.out) == (2, "") and word in ran.err
    assert "fits in" not in ran.err and ran.err.count("\nhint: ") <= 1
    assert ran.err.splitlines()[-1].startswith("hint: ")


def test_no_file_that_is_read_is_replaced(cli: Cli, tmp_path: Path) -> None:
    model = Path(shutil.copytree(bundled_model(), tmp_path / "model"))
    config, link = tmp_path / "run.toml", tmp_path / "link.json"
    config.write_text("[bench]\n")
    link.hardlink_to(model / "config.json")
    before = {path: path.read_bytes() for path in [config, *model.iterdir()]}
    read = [path for path in model.iterdir() if path.suffix not in (".md", ".jsonl")]
    for output in (config, link, *read):
        ran = cli("bench", "--config", config, "-m", model, "--output-json", output)
        assert ran.code == 2 and f"--output-json would replace {output}, which is" in ran.err
    ran = cli("bench", "--random-weights", link, "--output-json", link)
    assert ran.code == 2 and "which is read" in ran.err
    assert {path: path.read_bytes() for path in before} == before


def test_weights_larger_than_the_memory_are_refused_before_they_are_drawn(
    cli: Cli, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("weights were drawn")

    monkeypatch.setattr("santagen.llm.RandomWeights", draw)
    monkeypatch.setattr(memory, "available_ram", lambda: 20 << 30)
    ran = cli("bench", "--random-weights", "starcoder", "--batch-sizes", "1", "--device", "cpu",
              "--dtype", "bfloat16", "--output-json", output, *SMALL)  # fmt: skip
    assert (ran.code, ran.out) == (2, "") and not output.exists()
    assert len(ran.err.splitlines()) == 2
    assert ran.err.startswith("error: The model (random weights, shape starcoder) takes 28.")
    assert "20.0 GiB of memory" in ran.err and "\nhint: " in ran.err


def test_the_card_counts_what_the_weights_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "available_ram", lambda: 1000)
    monkeypatch.setattr(probes, "CPU_SHARE", 0.5)
    cpu = torch.device("cpu")
    assert [probes.usable_memory(cpu, 0.9, size) for size in (0, 600, 1000, 1001)] == [
        500, 800, 1000, 1000
    ]  # fmt: skip


def test_torchrun_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = cli("bench")
    assert ran.code == 2 and "one process" in ran.err


def test_settings_come_from_a_file_and_the_environment(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[bench]\nbatch-sizes = 4\nprompt-len = '1k,2K'\n")
    monkeypatch.setenv("SANTAGEN_BENCH_REPEAT", "7")
    shown = cli("bench", "--config", config, "--show-config").out
    assert 'batch_sizes = "4"' in shown and 'prompt_len = "1k,2K"' in shown
    assert "repeat = 7" in shown
    config.write_text(shown)
    assert cli("bench", "--config", config, "--show-config").out.count('"1k,2K"') == 1


def test_every_engine_option_of_generate_is_one_of_bench() -> None:
    # Prompts are ids, so no tokenizer; one process, so nothing of the panel Parallel.
    engine = {field.name for field in dataclasses.fields(EngineConfig)} - {"tokenizer"}
    shared = [s for s in settings_of(GenerateOptions) if s.panel in ("Model", "Limits")]
    theirs = {s.name: s.flags for s in shared if s.name in engine}
    ours = {s.name: s.flags for s in settings_of(BenchOptions)}
    assert {name: ours.get(name) for name in theirs} == theirs


def test_a_list_of_sizes_takes_what_a_size_takes() -> None:
    assert sizes("1,4k, 1.5k,32K") == (1, 4000, 1500, 32768)


# -- cases and prompts -----------------------------------------------------------------------------


def test_defaults_depend_on_the_device_and_fit_the_model() -> None:
    config = ModelConfig.from_dict({**TINY, "n_positions": 300})
    assert make_cases("cpu", config) == [Case(n, 64, 32) for n in (1, 8, 32)]
    assert make_cases("cuda", config) == [Case(n, 150, 150) for n in (1, 16, 64, 256, 1024)]


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_no_prompt_comes_twice(length: int) -> None:
    prompts = Prompts(vocab_size=300)
    params = SamplingParams(max_tokens=1)
    calls = [prompts.requests(Case(32, length, 8), params) for _ in range(9)]
    found = [request for requests in calls for request in requests]
    assert len({request.prompt_token_ids for request in found}) == len(found) == 288
    assert len({request.row_id for request in found}) == len(found)
    assert {len(request.prompt_token_ids) for request in found} == {length}
    assert all(0 <= token < 300 for request in found for token in request.prompt_token_ids)


def test_no_repeat_is_answered_by_the_prefix_table() -> None:
    bench = Bench(tiny_llm, temperature=0.8, top_p=0.95, repeat=3, warmup=1)
    result = bench.measure(Case(4, 70, 4))  # more than a block of 64
    assert result.error is None and result.notes() == []
    assert bench.llm.engine.stats.cached_tokens == 0
    repeats, rest = divmod(bench.llm.engine.stats.prompt_tokens, 2 * 4 * 70)
    assert repeats >= 4 and rest == 0  # more on a busy machine: a disturbed one is measured again


def test_a_repeated_prompt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Prompts.requests

    def always_the_same(self: Prompts, case: Case, params: SamplingParams) -> Any:
        return requests(Prompts(self.vocab_size), case, params)

    monkeypatch.setattr(Prompts, "requests", always_the_same)
    result = tiny_bench().measure(Case(4, 70, 4))
    assert result.notes() == ["256 prompt tokens came from the prefix table"]


# -- measuring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 7, 8, 9, 64])
def test_all_rows_of_a_batch_run_together(batch_size: int) -> None:
    # Small prefills: the last prompts of a batch are admitted while the others wait in their rows.
    llm = tiny_llm(max_num_seqs=batch_size, max_num_batched_tokens=4)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    found = run_timed(llm, Prompts(300).requests(Case(batch_size, 4, 4), params))
    assert (found.prefills, found.decodes) == (batch_size, 3)
    assert found.generated_tokens == 4 * batch_size


def test_rows_that_wait_for_others_are_told() -> None:
    # One block of 64 tokens a row, but admission keeps blocks back for the rows that run.
    result = tiny_bench(num_blocks=5).measure(Case(4, 4, 40))
    assert result.steps == 2 * 39
    assert "did not all run together" in result.notes()[0]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), MemoryError()])
def test_out_of_memory_is_a_row_and_the_engine_starts_anew(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tiny_bench()
    first = bench.llm
    run = measuring.run_timed

    def failing(llm: LLM, requests: list[Any]) -> Timed:
        if len(requests) == 3:
            next(iter(llm.run(requests)))  # leaves rows behind
            raise error
        return run(llm, requests)

    monkeypatch.setattr(measuring, "run_timed", failing)
    assert bench.measure(Case(3, 8, 4)).error == "out of memory"
    assert bench.measure(Case(2, 8, 4)).error is None
    assert bench.llm is not first


def test_a_fault_of_the_program_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(llm: LLM, requests: list[Any]) -> Timed:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(measuring, "run_timed", failing)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        tiny_bench().measure(Case(1, 8, 4))


def test_a_cache_too_small_is_told_before_the_run() -> None:
    result = tiny_bench(num_blocks=4).measure(Case(2, 70, 4))
    assert result.error is not None
    assert "4 blocks of KV cache are needed, and there is room for 3" in result.error
    assert "max-model-len" in str(tiny_bench(max_model_len=20).measure(Case(1, 20, 4)).error)


def test_a_run_too_short_to_tell_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.cycle([0.0, 2.0, 3.0, 4.0])  # the short run takes 2, the long one 1
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    result = tiny_bench().measure(Case(1, 8, 4))
    assert result.repeats == [] and "raise --output-len" in str(result.error)


def test_a_disturbed_repeat_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    result = tiny_bench().measure(Case(1, 8, 5))
    assert [repeat.step_seconds for repeat in result.repeats] == [0.25]


def test_the_weights_of_a_step_leave_out_tables_that_are_looked_up() -> None:
    untied = {**TINY, "tie_word_embeddings": False}
    for raw, looked_up in ((TINY, 128), (untied, 128 + 300)):
        config = ModelConfig.from_dict(raw)
        llm = LLM(RandomModel(Path(), "tiny", config=config), device="cpu", max_num_seqs=2)
        card = model_card(config, "tiny", "float32", 4)
        read = bytes_read(llm.engine.runner.model)
        assert read == card.weight_bytes - looked_up * 64 * 4
        assert read > 4 * card.products


# -- limits, by hand -------------------------------------------------------------------------------


def test_the_limit_of_santacoder_is_the_one_measured_by_hand() -> None:
    """On 4.2 TB/s and 785 TFLOP/s: 0.535 ms at batch 1, 4.12 ms at 1,024, context 400."""
    card = model_card(random_model("santacoder").config, "santacoder", "bfloat16", 2)
    limit = Limit(card, Rates(4.2e12, 4.1e12, 785e12), card.products * 2)
    assert limit.decode_step(1, 400) == pytest.approx(0.535e-3, rel=2e-3)
    assert limit.decode_step(64, 400) == pytest.approx(0.608e-3, rel=2e-3)
    assert limit.decode_step(1024, 400) == pytest.approx(4.12e-3, rel=2e-3)
    assert limit.prefill_flop(4096 * 256, 4096) == pytest.approx(2.14e15, rel=2e-3)
    assert limit.prefill(256, 1, 1) == pytest.approx(2 * card.layer_products * 256 / 785e12, 2e-2)


def test_shares_are_the_limit_over_the_median() -> None:
    card = model_card(ModelConfig.from_dict(TINY), "tiny", "float32", 4)
    limit = Limit(card, Rates(1e9, 1e9, 1e12), 10**6)
    result = Result(Case(2, 8, 5))
    for seconds in (1.0, 3.0, 2.0):
        short = Timed(seconds, 16, 2, 1, 0, 0, 0)
        result.repeats.append(Repeat(short, dataclasses.replace(
            short, seconds=seconds + 4.0, generated_tokens=10, decodes=4)))  # fmt: skip
    assert result.step_seconds == Spread(1.0, 1.0, 1.0)
    assert result.decode_rate.median == 2.0 and result.prefill_rate.max == 16.0
    shares = shares_of_limit(result, limit)
    kv = card.kv_bytes_per_token / 1e9
    assert shares["decode"] == pytest.approx(1e-3 + 2 * (8 + 2.5) * kv)
    assert shares["prefill"] == pytest.approx((1e-3 + 16 * kv) / 2)


# -- random weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        ("santacoder", 1.12e9, 12288),
        ("starcoder", 15.5e9, 20480),
        ("granite-20b", 20.1e9, 26624),
        ("granite-34b", 33.7e9, 45056),
    ],
)
def test_named_shapes(name: str, parameters: float, kv_bytes: int) -> None:
    assert name in SHAPES
    card = model_card(random_model(name).config, name, "bfloat16", 2)
    assert card.parameters == pytest.approx(parameters, rel=5e-3)
    assert card.kv_bytes_per_token == kv_bytes


def test_a_directory_s_config_is_a_shape(tmp_path: Path, bundled_model: Path) -> None:
    assert random_model(str(bundled_model)).config == ModelConfig.from_directory(bundled_model)


def test_the_card_counts_what_is_loaded() -> None:
    for raw in (TINY, {**TINY, "tie_word_embeddings": False, "multi_query": False, "n_inner": 96}):
        config = ModelConfig.from_dict(raw)
        llm = LLM(RandomModel(Path(), "tiny", config=config), device="cpu", max_num_seqs=2)
        parts = llm.engine.runner.model.parameters()
        loaded = {storage_key(p): p.numel() for p in parts}
        assert sum(loaded.values()) == model_card(config, "tiny", "float32", 4).parameters


def test_what_fits_leaves_room_for_the_weights() -> None:
    card = model_card(ModelConfig.from_dict(TINY), "tiny", "float32", 4)
    room = card.weight_bytes + 7 * 100 * card.kv_bytes_per_token
    assert card.sequences_that_fit(room, 100) == 7
    assert card.sequences_that_fit(room - 1, 100) == 6
    assert card.sequences_that_fit(card.weight_bytes // 2, 100) == 0
