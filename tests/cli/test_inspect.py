"""`santagen inspect`: every fact of a report, without torch, and refusals with their reasons."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.checkpoint.random_weights import random_model
from santagen.cli.inspect_memory import BLOCK_SIZE, fit
from santagen.config import EngineConfig, ModelConfig
from santagen.engine import memory
from santagen.engine.launch_limits import (
    BATCHED_TOKENS,
    ROWS,
    launch_limits,
    workspace_bytes,
)
from santagen.engine.memory import plan_cache
from santagen.model.attention.triton import TritonAttention
from tests.checkpoint.loading import change
from tests.cli.helpers import PROGRAM, Cli
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint
from tests.model_helpers import SHARED

FIXTURES = SHARED / "fixtures"
MANIFEST: list[dict[str, Any]] = (
    json.loads((FIXTURES / "MANIFEST.json").read_text())
    if (FIXTURES / "MANIFEST.json").is_file()
    else []
)
GIB = 2**30


def inspect_json(cli: Cli, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    ran = cli("inspect", *arguments, "--json")
    assert ran.code == code, ran.err
    return json.loads(ran.out)


class TestBundled:
    def test_the_table_is_on_stderr(self, cli: Cli) -> None:
        ran = cli("inspect", "--memory", "24GiB")
        assert (ran.code, ran.out) == (0, "")
        for words in (
            "santagen-tiny (bundled)", "8 layers of 256", "1 head of keys and values",
            "Linear, fused c_attn, tied head", "[384, 256], which is Linear",
            "6,839,808", "2,048 bytes per token", "24.00 GiB", "spelt with hyphens",
            "4091 <|endoftext|>", "runs         yes",
        ):  # fmt: skip
            assert words in ran.err
        assert "error" not in ran.err and "warning" not in ran.err

    def test_the_json_is_on_stdout(self, cli: Cli, bundled_model: Path) -> None:
        found = inspect_json(cli)
        assert found == inspect_json(cli, bundled_model) | {"model": found["model"]}
        assert found["runs"] and found["refusals"] == [] and found["notes"] == []
        assert found["parameters"]["total"] == 6_839_808
        size = (bundled_model / "model.safetensors").stat().st_size
        assert found["files"]["bytes"] == size
        assert found["files"]["kind"] == "safetensors, one file"
        assert found["weights"]["bytes"] == {"bfloat16": 2 * 6_839_808}
        assert found["kv_cache"]["bytes_per_token"] == 2 * 8 * 64 * 2
        assert found["memory"] is None and found["quantization"] is None
        tokenizer = found["tokenizer"]
        assert tokenizer["fim"] == "hyphen" and tokenizer["fim_ids"]["middle"] == 4093
        assert tokenizer["eos"] == [{"id": 4091, "token": "<|endoftext|>"}]
        assert tokenizer["vocab_size"] == tokenizer["model_rows"] == 4096
        assert tokenizer["rows_without_token"] == tokenizer["tokens_without_row"] == 0

    def test_no_torch_and_quick(self, bundled_model: Path, tmp_path: Path) -> None:
        pickled, packed = tmp_path / "bin", tmp_path / "gptq"
        pickled.mkdir()
        write_checkpoint(pickled, Spec(file="pytorch_model.bin"))
        packed.mkdir()
        write_checkpoint(packed, Spec(file="pytorch_model.bin", dtype="F16", gptq=GPTQSpec()))
        for folder in (bundled_model, pickled, packed):
            code = (
                "import sys; from santagen.cli.app import run_program\n"
                "code = run_program(['inspect', sys.argv[1], '--memory', '1G'])\n"
                "slow = {'torch', 'transformers', 'datasets', 'huggingface_hub'}\n"
                "print(code, slow & set(sys.modules))"
            )
            run = [sys.executable, "-c", code, str(folder)]
            child = subprocess.run(run, capture_output=True, text=True, check=True)
            assert child.stdout == "0 set()\n", child.stderr

        def seconds() -> float:
            """Processor time, which a busy machine stretches little."""
            before = os.times()
            subprocess.run([*PROGRAM, "inspect"], check=True, capture_output=True)
            after = os.times()
            mine = (after.children_user, after.children_system)
            return sum(mine) - before.children_user - before.children_system

        assert min(seconds() for _ in range(5)) < 0.6  # 0.35 s


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        (Spec(), {"orientation": "Linear, [out, in]", "attention": "fused, c_attn"}),
        (Spec(conv1d=True, split=True), {
            "orientation": "Conv1D, [in, out]", "attention": "split, q_attn and kv_attn"}),
        (Spec(config={"tie_word_embeddings": False}, head="both"), {
            "head": "of its own", "head_stored": "wte and lm_head"}),
        (Spec(head="lm_head"), {"head": "tied to the embedding", "head_stored": "lm_head"}),
        (Spec(prefix="", shards=3), {"names": "without the leading transformer."}),
    ],
)  # fmt: skip
def test_layouts(cli: Cli, tmp_path: Path, spec: Spec, facts: dict[str, str]) -> None:
    weights = write_checkpoint(tmp_path, spec)
    found = inspect_json(cli, tmp_path)
    assert {key: found["layout"][key] for key in facts} == facts
    assert "h.0.attn" in found["layout"]["orientation_why"]
    assert found["parameters"]["total"] == sum(value.size for value in weights.values())
    assert found["files"]["dtypes"].keys() == {"BF16"}
    assert len(found["files"]["list"]) == spec.shards
    assert sum(e["tensors"] for e in found["files"]["list"]) == (
        found["files"]["dtypes"]["BF16"]["tensors"]
    )
    assert found["notes"] == ["no tokenizer files: only rows of prompt_token_ids can run"]


def test_every_query_head_of_its_own_key_and_value(cli: Cli, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(config={"multi_query": False}))
    found = inspect_json(cli, tmp_path, "--dtype", "float32", "--max-model-len", "32")
    assert found["architecture"]["n_kv_head"] == 4
    assert found["kv_cache"] == {
        "dtype": "float32", "bytes_per_token": 2 * 2 * 64 * 4, "max_model_len": 32,
        "bytes_per_sequence": 32 * 2 * 2 * 64 * 4,
    }  # fmt: skip


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("gptq", "facts", "why"),
    [
        (GPTQSpec(), {"format": "v1", "act_order": False}, ["gptq", "7", "agrees"]),
        (GPTQSpec(form="v2", bits=3), {"format": "v2", "bits": 3}, ["gptq_v2", "4", "agrees"]),
        (GPTQSpec(sym=False, form="v1-word", act_order=True), {
            "format": "v1-word", "act_order": True, "g_idx": {"act-order": 8}},
            ["gptqmodel", "whole words"]),
        (GPTQSpec(sym=False, g_idx="zero", bits=8), {
            "format": "v1", "g_idx": {"in order (g_idx all zero)": 8}}, ["don't tell"]),
        (GPTQSpec(g_idx="absent", group_size=-1), {
            "group_size": -1, "g_idx": {"in order (no g_idx)": 8}}, ["agrees"]),
    ],
)  # fmt: skip
def test_gptq(
    cli: Cli, tmp_path: Path, file: str, gptq: GPTQSpec, facts: dict[str, Any], why: list[str]
) -> None:
    write_checkpoint(tmp_path, Spec(dtype="F16", gptq=gptq, file=file))
    found = inspect_json(cli, tmp_path)
    quantised = found["quantization"]
    assert {key: quantised[key] for key in facts} == facts
    assert all(word in quantised["format_why"] for word in why), quantised["format_why"]
    assert quantised["source"] == "config.json" and quantised["layers"] == 8
    dequantised = found["weights"]["bytes"]["dequantised to bfloat16"]
    assert found["weights"]["bytes"]["kept packed"] < dequantised
    assert found["weights"]["bytes"]["dequantised to bfloat16"] == 2 * found["parameters"]["total"]


def test_values_that_overrule_a_label_are_told(cli: Cli, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(dtype="F16", gptq=GPTQSpec(form="v2")))
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq"
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = cli("inspect", tmp_path)
    assert ran.code == 0
    assert "zero points v2: the stored zero points (8), against the label gptq" in ran.err
    assert "warning: GPTQ:" in ran.err and "the values are trusted" in ran.err


def test_a_tokenizer_larger_than_the_model(cli: Cli, tmp_path: Path, bundled_model: Path) -> None:
    write_checkpoint(tmp_path, Spec(config={"vocab_size": 4000}))
    shutil.copy(bundled_model / "tokenizer.json", tmp_path)
    found = inspect_json(cli, tmp_path)
    assert found["tokenizer"]["tokens_without_row"] == 96
    assert any("96 tokens" in note for note in found["notes"])
    write_checkpoint(tmp_path, Spec(config={"vocab_size": 4100}))
    assert inspect_json(cli, tmp_path)["tokenizer"]["rows_without_token"] == 4


def test_a_tokenizer_from_elsewhere(cli: Cli, tmp_path: Path, bundled_model: Path) -> None:
    write_checkpoint(tmp_path, Spec())
    found = inspect_json(cli, tmp_path, "--tokenizer", bundled_model)
    assert found["tokenizer"]["fim"] == "hyphen"


class TestMemory:
    """--memory answers as the engine would on such a GPU."""

    @pytest.mark.parametrize("total", [2 * GIB, GIB // 2, GIB // 16])
    @pytest.mark.parametrize("length", [None, 64, 1000])
    def test_the_same_numbers_as_the_engine(
        self, total: int, length: int | None, bundled_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = ModelConfig.from_directory(bundled_model)
        weights = 13_679_616
        monkeypatch.setattr(
            memory.torch.cuda, "mem_get_info", lambda device: (total - weights, total)
        )
        attention = TritonAttention()
        assert attention.block_size == BLOCK_SIZE  # told without torch
        settings = EngineConfig(max_model_len=length, max_num_seqs=None)
        device = torch.device("cuda")
        plan = plan_cache(settings, config, attention, torch.bfloat16, device)
        longest = length or config.n_positions
        found = fit(
            config, memory=total, utilization=0.9, weight_bytes=weights, value_bytes=2,
            length=longest,
        )  # fmt: skip
        assert (plan.max_num_seqs < ROWS) == (total < GIB)
        assert plan.max_num_seqs == found["rows"]
        blocks_a_row = -(-longest // BLOCK_SIZE)
        capped = min(found["cache_tokens"] // BLOCK_SIZE, found["rows"] * blocks_a_row)
        assert plan.shape.num_blocks - 1 == capped
        assert found["sequences"] == found["cache_tokens"] // BLOCK_SIZE // blocks_a_row

    def test_a_small_gpu_gets_smaller_launches(self) -> None:
        """15B weights of 4 bits on 12 GiB: with the defaults of a large GPU nothing is left."""
        config = random_model("starcoder").config
        weights, memory_bytes = 8 << 30, 12 << 30
        row_bytes = 8192 * config.kv_bytes_per_token(2)
        large = int(memory_bytes * 0.9) - weights
        assert workspace_bytes(config, ROWS, BATCHED_TOKENS, 8192) > large
        rows, tokens = launch_limits(config, large, 8192, row_bytes)
        assert rows < ROWS and tokens < BATCHED_TOKENS
        assert launch_limits(config, large, 8192, row_bytes, 7, 77) == (7, 77)
        assert launch_limits(config, 10 * large, 8192, row_bytes) == (ROWS, BATCHED_TOKENS)
        found = fit(
            config, memory=memory_bytes, utilization=0.9, weight_bytes=weights, value_bytes=2,
            length=8192,
        )  # fmt: skip
        assert found["sequences"] >= 1 and found["least_memory"] < memory_bytes

    def test_least_memory_holds_one_sequence_and_a_byte_less_does_not(
        self, bundled_model: Path
    ) -> None:
        config = ModelConfig.from_directory(bundled_model)

        def sequences(size: int) -> tuple[int, int]:
            found = fit(
                config, memory=size, utilization=0.5, weight_bytes=1000, value_bytes=2, length=999
            )
            return found["sequences"], found["least_memory"]

        least = sequences(GIB)[1]
        assert sequences(least)[0] == 1
        assert sequences(least - 4)[0] == 0

    def test_a_gpu_that_is_too_small(self, cli: Cli) -> None:
        ran = cli("inspect", "--memory", "20M")
        assert ran.code == 2
        assert "error: The model does not fit a GPU of 20,971,520 bytes" in ran.err
        assert "hint: " in ran.err and "runs         no" in ran.err
        found = inspect_json(cli, "--memory", "20M", code=2)
        assert found["refusals"][0]["part"] == "memory" and not found["runs"]

    def test_packed_weights_fit_more(self, cli: Cli, tmp_path: Path) -> None:
        write_checkpoint(tmp_path, Spec(dtype="F16", gptq=GPTQSpec()))
        plans = inspect_json(cli, tmp_path, "--memory", "64M")["memory"]["plans"]
        packed, dequantised = plans["kept packed"], plans["dequantised to bfloat16"]
        gained = packed["cache_bytes"] - dequantised["cache_bytes"]
        assert gained == dequantised["weight_bytes"] - packed["weight_bytes"] > 0


class TestRefused:
    def test_faults_of_several_parts_are_all_named(self, cli: Cli, tmp_path: Path) -> None:
        write_checkpoint(tmp_path, Spec())
        change(tmp_path, "transformer.h.1.mlp.c_fc.bias", None)
        (tmp_path / "tokenizer.json").write_text("{}")
        ran = cli("inspect", tmp_path, "--json")
        found = json.loads(ran.out)
        assert [refusal["part"] for refusal in found["refusals"]] == ["weights", "tokenizer"]
        assert "transformer.h.1.mlp.c_fc.bias" in found["refusals"][0]["message"]
        assert (ran.code, found["runs"]) == (2, False)
        assert found["architecture"]["n_layer"] == 2 and found["files"]["dtypes"]
        assert ran.err.count("error: ") == ran.err.count("hint: ") == 2

    def test_another_model_still_has_its_files_told(self, cli: Cli, tmp_path: Path) -> None:
        write_checkpoint(tmp_path, Spec())
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        ran = cli("inspect", tmp_path)
        assert ran.code == 2 and "'llama'" in ran.err
        assert "safetensors, one file" in ran.err and "can't be told" in ran.err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["no/such/folder"], "no model folder"),
            (["--max-model-len", "2000"], "1024 positions"),
            (["--max-model-len", "1"], "at least 2"),
            (["--gpu-memory-utilization", "1.5"], "at most 1"),
            (["--memory", "much"], "--memory"),
            (["--dtype", "int8"], "--dtype"),
            (["--revision", "v2"], "revision"),
        ],
    )
    def test_usage(self, cli: Cli, arguments: list[str], words: str) -> None:
        ran = cli("inspect", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: ") and words in ran.err


def test_settings_come_from_the_environment_and_files_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, Spec())
    config = tmp_path / "run.toml"
    config.write_text('[inspect]\nmemory = "1G"\n')
    monkeypatch.setenv("SANTAGEN_INSPECT_MODEL", str(tmp_path))
    found = inspect_json(cli, "--config", config)
    assert found["memory"]["bytes"] == GIB and found["model"] == str(tmp_path)
    shown = cli("inspect", "--config", config, "--show-config").out
    assert f"memory = {GIB}" in shown and "environment SANTAGEN_INSPECT_MODEL" in shown


@pytest.mark.skipif(not MANIFEST, reason="the shared fixtures are not beside this clone")
@pytest.mark.parametrize("entry", MANIFEST, ids=[e["name"] for e in MANIFEST])
def test_fixtures_are_what_their_manifest_says(cli: Cli, entry: dict[str, Any]) -> None:
    folder, what = FIXTURES / entry["name"], entry["what"]
    refused = entry["expected"] == "refused" and entry["when"] == "load"
    found = inspect_json(cli, folder, code=2 if refused else 0)
    assert found["files"]["bytes"] == sum(e["bytes"] for e in found["files"]["list"])
    if refused:
        messages = " ".join(refusal["message"] for refusal in found["refusals"])
        assert all(word in messages for word in entry["must_name"])
        return
    layout, files = found["layout"], found["files"]
    assert layout["orientation"].startswith("Conv1D" if "Conv1D" in what else "Linear")
    assert layout["attention"].startswith("split" if "split q_attn" in what else "fused")
    assert layout["head"] == ("of its own" if entry["name"] == "untied-head" else (
        "tied to the embedding"))  # fmt: skip
    kind = "pickled .bin" if "pytorch_model.bin" in what else "safetensors"
    assert files["kind"].startswith(kind) and ("3 shards" in files["kind"]) == ("shards" in what)
    if entry["kind"] == "gptq":
        quantised = found["quantization"]
        for key in ("bits", "group_size", "sym"):
            assert quantised[key] == entry[key]
        assert (quantised["desc_act"] or quantised["act_order"]) == entry["desc_act"]
        assert quantised["format"] == entry["zero_rule"]
    else:
        assert found["quantization"] is None
        dtype = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
        wanted = dtype.get(what.rpartition(", ")[2], "BF16")
        assert max(files["dtypes"], key=lambda d: files["dtypes"][d]["tensors"]) == wanted
    if entry.get("has_reference"):
        vocabulary = np.load(folder / "ref_logits.npz")["last_logits"].shape[1]
        assert found["architecture"]["vocab_size"] == vocabulary


def test_a_refused_quantisation_is_no_float_model(cli: Cli, tmp_path: Path) -> None:
    method = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    write_checkpoint(tmp_path, Spec(config=method))
    ran = cli("inspect", tmp_path)
    assert ran.code == 2 and "quantised    in a way that is refused" in ran.err, ran.err
    assert inspect_json(cli, tmp_path, code=2)["quantization"] == {"refused": True}
