"""A converted checkpoint is the same model, in transformers too; a failure leaves nothing behind.

Weights are compared with what an independent writer says they are, logits with a plain reference.
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from santagen.checkpoint import convert as convert_module
from santagen.checkpoint import convert_files, convert_shards
from santagen.checkpoint.convert import convert
from santagen.checkpoint.reader import TensorFiles
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from tests.checkpoint.loading import change, open_float32, standard_weights
from tests.fixture_writer import TINY, GPTQSpec, Spec, rounded, write_checkpoint
from tests.model_helpers import SHARED
from tests.reference_model import reference_logits

FIXTURES = SHARED / "fixtures"
MANIFEST: list[dict[str, Any]] = (
    json.loads((FIXTURES / "MANIFEST.json").read_text())
    if (FIXTURES / "MANIFEST.json").is_file()
    else []
)
SANTACODER = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadCustomModel"], "multi_query": None,
    "attention_head_type": "multiquery", "tie_word_embeddings": None, "n_inner": None,
    "auto_map": {"AutoConfig": "configuration_gpt2_mq.GPT2CustomConfig"},
}  # fmt: skip
LAYOUTS = {
    "linear": Spec(),
    "split": Spec(split=True, dtype="F32"),
    "conv1d": Spec(conv1d=True),
    "conv1d split in shards": Spec(conv1d=True, split=True, shards=3, dtype="F16"),
    "bin": Spec(file="pytorch_model.bin", conv1d=True),
    "bare": Spec(prefix="", head="both"),
    "only the head": Spec(head="lm_head"),
    "own head": Spec(config={"tie_word_embeddings": False}, head="both"),
    "every head its own": Spec(config={"multi_query": False}),
    "exact gelu, no scale": Spec(
        config={"activation_function": "gelu", "scale_attn_weights": False}
    ),
    "gptq": Spec(dtype="F16", gptq=GPTQSpec(act_order=True, sym=False)),
    "gptq split": Spec(dtype="F16", split=True, gptq=GPTQSpec(bits=3, form="v2")),
    "gptq, every head its own": Spec(
        dtype="F16", config={"multi_query": False}, gptq=GPTQSpec(act_order=True)
    ),
}


def transformers_logits(folder: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Logits [tokens, V] of a folder in transformers, float32; every tensor must be used."""
    from transformers import GPTBigCodeForCausalLM

    model, info = GPTBigCodeForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], info
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder, read by the safetensors library."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118
                assert name not in found
                found[name] = file.get_tensor(name)
    return found


@pytest.mark.parametrize("spec", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_becomes_the_same_model(tmp_path: Path, spec: Spec) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    weights = write_checkpoint(source, spec)
    done = convert(
        source, target, dtype="float32", dequantize=spec.gptq is not None, max_shard_bytes=50_000
    )
    assert done.dtype == "float32" and len(done.files) > 1
    assert sorted(done.files) == sorted(path.name for path in target.glob("*.safetensors"))
    read = standard_weights(open_float32(target))
    assert read.keys() == weights.keys()
    for name, value in weights.items():
        assert np.array_equal(read[name].numpy(), value), name

    config = ModelConfig.from_directory(source)
    held = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
    prompts = [[1, 2, 3, 95, 0, 7, 7], list(range(60))]
    for prompt, found in zip(prompts, transformers_logits(target, prompts), strict=True):
        wanted = reference_logits(held, config, prompt)
        # The weights are equal to the bit; the reference adds in another order.
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=3e-5)


@pytest.mark.skipif(not MANIFEST, reason="the shared fixtures are not beside this clone")
@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=e["name"]) for e in MANIFEST if e.get("has_reference")] or [None],
)
def test_fixtures_have_their_reference_logits_in_transformers(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    source, target = FIXTURES / entry["name"], tmp_path / "target"
    gptq = entry["kind"] == "gptq"
    convert(source, target, dequantize=gptq, dtype="float32" if gptq else "auto")
    reference = np.load(source / "ref_logits.npz")
    wanted = torch.from_numpy(reference["last_logits"])
    prompts = [reference[f"prompt_{i}"].tolist() for i in range(len(wanted))]
    found = torch.stack([logits[-1] for logits in transformers_logits(target, prompts)])
    # Logits of vocab-4099 reach -100, where float32 itself has steps of 8e-6; the products of a
    # GPTQ model were made in another order by the tool that made the reference.
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-4 if gptq else 1e-5)


class TestResult:
    """What lies in the new folder."""

    @pytest.fixture
    def source(self, tmp_path: Path, bundled_model: Path) -> Path:
        """SantaCoder's form with everything that may lie beside it."""
        folder = tmp_path / "source"
        folder.mkdir()
        write_checkpoint(folder, Spec(conv1d=True, split=True))
        config = {**TINY, **SANTACODER, "torch_dtype": "float16", "dtype": "float16"}
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps({**config, "n_inner": 160}))
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (folder / name).write_bytes((bundled_model / name).read_bytes())
        (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
        (folder / "LICENSE.txt").write_text("terms")
        for name in ("modeling_gpt2_mq.py", "optimizer.pt", "model.safetensors.index.json"):
            (folder / name).write_text("{}")
        return folder

    def test_config_and_carried_files(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "target"
        done = convert(source, target)
        carried = {
            "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
            "generation_config.json", "LICENSE.txt",
        }  # fmt: skip
        assert set(done.carried) == carried
        names = {path.name for path in target.iterdir()}
        assert names == carried | {"config.json", "model.safetensors"}
        for name in carried:
            assert (target / name).read_bytes() == (source / name).read_bytes()
        config = json.loads((target / "config.json").read_text())
        assert config["model_type"] == "gpt_bigcode"
        assert config["architectures"] == ["GPTBigCodeForCausalLM"]
        assert config["torch_dtype"] == "bfloat16" and "dtype" not in config
        assert config["multi_query"] is True and config["tie_word_embeddings"] is True
        assert (config["vocab_size"], config["n_inner"], config["eos_token_id"]) == (96, 160, 0)
        assert not {"auto_map", "attention_head_type", "quantization_config"} & config.keys()

    def test_transformers_loads_the_tokenizer_too(self, source: Path, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        convert(source, tmp_path / "target")
        assert len(AutoTokenizer.from_pretrained(tmp_path / "target")) == 4096
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype="auto")
        assert type(model).__name__ == "GPTBigCodeForCausalLM" and model.dtype == torch.bfloat16

    def test_no_quantisation_is_left(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        write_checkpoint(source, Spec(dtype="F16", gptq=GPTQSpec()))
        (source / "quantize_config.json").write_text('{"bits": 4, "group_size": 32}')
        convert(source, tmp_path / "target", dequantize=True)
        names = {path.name for path in (tmp_path / "target").iterdir()}
        assert names == {"config.json", "model.safetensors"}
        assert "quantization_config" not in (tmp_path / "target" / "config.json").read_text()

    def test_what_config_leaves_unsaid_is_not_gpt2_s(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        write_checkpoint(source, Spec())
        config = json.loads((source / "config.json").read_text())
        del config["eos_token_id"]
        (source / "config.json").write_text(json.dumps(config))
        convert(source, tmp_path / "target")
        written = json.loads((tmp_path / "target" / "config.json").read_text())
        assert written["eos_token_id"] is None and written["bos_token_id"] is None

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_dtype(self, source: Path, tmp_path: Path, dtype: str) -> None:
        done = convert(source, tmp_path / "target", dtype=dtype)
        assert (done.dtype, done.dtype_why) == (dtype, "asked for")
        found = tensors_of(tmp_path / "target")
        assert {tensor.dtype for tensor in found.values()} == {getattr(torch, dtype)}
        assert done.nbytes == sum(tensor.nbytes for tensor in found.values())
        name = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]
        kept = standard_weights(open_float32(source))["transformer.wpe.weight"].numpy()
        wpe = found["transformer.wpe.weight"].float().numpy()
        assert np.array_equal(wpe, rounded(kept, name))

    @pytest.mark.parametrize(
        ("spec", "name", "dtype", "why"),
        [
            (Spec(dtype="F32"), "", "float32", "as stored"),
            (Spec(dtype="F16"), "", "float16", "as stored"),
            (Spec(), "F16", "float32", "BF16 and F16"),
            (Spec(), "F64", "float32", "BF16 and F64"),
            (Spec(dtype="F16", gptq=GPTQSpec()), "", "float16", "as stored"),
        ],
    )
    def test_auto_dtype(self, tmp_path: Path, spec: Spec, name: str, dtype: str, why: str) -> None:
        source = tmp_path / "source"
        source.mkdir()
        write_checkpoint(source, spec)
        if name:
            change(source, "transformer.ln_f.bias", lambda old: old, name)
        done = convert(source, tmp_path / "target", dequantize=True)
        assert done.dtype == dtype and why in done.dtype_why

    def test_gptq_takes_the_dtype_of_the_settings(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        spec = Spec(dtype="F16", gptq=GPTQSpec(), config={"torch_dtype": "bfloat16"})
        weights = write_checkpoint(source, spec)
        assert convert(source, tmp_path / "target", dequantize=True).dtype == "bfloat16"
        name = "transformer.h.1.mlp.c_fc.weight"
        found = tensors_of(tmp_path / "target")[name].float().numpy()
        assert np.array_equal(found, rounded(weights[name], "BF16"))  # rounded once

    @pytest.mark.parametrize("limit", [1, 20_000, 70_000, 1 << 30])
    def test_shards(self, source: Path, tmp_path: Path, limit: int) -> None:
        done = convert(source, tmp_path / "target", max_shard_bytes=limit)
        found = tensors_of(tmp_path / "target")
        index = tmp_path / "target" / "model.safetensors.index.json"
        if limit == 1 << 30:
            assert done.files == ("model.safetensors",) and not index.exists()
            return
        content = json.loads(index.read_text())
        assert content["metadata"]["total_size"] == done.nbytes
        assert content["weight_map"].keys() == found.keys()
        for file in done.files:
            with safe_open(tmp_path / "target" / file, "pt") as opened:
                names = list(opened.keys())
            assert {content["weight_map"][name] for name in names} == {file}
            size = sum(found[name].nbytes for name in names)
            assert size <= limit or len(names) == 1
        assert len(done.files) == (len(found) if limit == 1 else len(done.files))


def test_one_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a tensor is read, those before it are gone: a layer's weight and its parts at most."""
    source = tmp_path / "source"
    source.mkdir()
    write_checkpoint(source, Spec(config={"n_layer": 6}, conv1d=True, split=True))
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    real = TensorFiles.read

    def read(self: TensorFiles, name: str, index: Any = None) -> torch.Tensor:
        nonlocal most
        tensor = real(self, name, index)
        alive[:] = [ref for ref in alive if ref() is not None]
        alive.append(weakref.ref(tensor))
        most = max(most, sum(held.nbytes for ref in alive if (held := ref()) is not None))
        return tensor

    monkeypatch.setattr(TensorFiles, "read", read)
    convert(source, tmp_path / "target", dtype="float32")
    largest = 160 * 64 * 2
    assert largest <= most <= 2 * largest


class Broken:
    """Ways a conversion may fail between its first byte and its last."""

    @staticmethod
    def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
        def write(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "")

        monkeypatch.setattr(convert_shards.ShardWriter, "write", write)

    @staticmethod
    def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
        def write(*_: Any) -> None:
            raise PermissionError(errno.EACCES, "")

        monkeypatch.setattr(convert_module, "write_file", write)
        monkeypatch.setattr(convert_module, "write_json", write)

    @staticmethod
    def lying_disk(monkeypatch: pytest.MonkeyPatch) -> None:
        real = convert_shards.ShardWriter.__exit__

        def flip(self: convert_shards.ShardWriter, *error: Any) -> None:
            real(self, *error)
            path = Path(self._file.name)
            content = bytearray(path.read_bytes())
            content[-1] ^= 1  # of the tensor written last
            path.write_bytes(content)

        monkeypatch.setattr(convert_shards.ShardWriter, "__exit__", flip)

    @staticmethod
    def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
        def check(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(convert_module, "_check_result", check)

    @staticmethod
    def rename(monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.replace

        def replace(old: Path, new: Path) -> None:
            if str(old).endswith("partial"):
                raise OSError(errno.EIO, "")
            real(old, new)

        monkeypatch.setattr(convert_files.os, "replace", replace)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Broken.full_disk, ["No space left", "target"]),
        (Broken.no_permission, ["Permission denied", "target"]),
        (Broken.lying_disk, ["ln_f.bias in model.safetensors", "other bytes"]),
        (Broken.rename, ["Input/output error", "target"]),
        (Broken.interrupt, []),
    ],
)
def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    words: list[str],
    existing: bool,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    write_checkpoint(source, Spec())
    if existing:
        target.mkdir()
        write_checkpoint(target, Spec(seed=1))
    before = snapshot(tmp_path)
    spoil(monkeypatch)
    with pytest.raises(SantagenError if words else KeyboardInterrupt) as caught:
        convert(source, target, overwrite=existing)
    assert snapshot(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == (
        {"source", "target"} if existing else {"source"}
    )
    if isinstance(caught.value, SantagenError):
        assert all(word in caught.value.message for word in words) and caught.value.hint
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda s: change(s, "transformer.h.1.ln_2.bias", None), {}, ["h.1.ln_2.bias"]),
        (lambda s: change(s, "transformer.wpe.weight", lambda old: np.append(
            old[:-1], np.full((1, 64), np.nan)).reshape(64, 64), "BF16"), {},
            ["wpe.weight", "not finite"]),
        (lambda s: change(s, "transformer.wpe.weight", lambda old: old * 1e6, "BF16"),
            {"dtype": "float16"}, ["wpe.weight", "not finite as float16"]),
        (lambda s: os.truncate(s / "model.safetensors", 20_000), {}, ["cut short", "20000"]),
        (lambda s: (s / "config.json").write_text('{"model_type": "llama"}'), {}, ["'llama'"]),
    ],
)  # fmt: skip
def test_a_bad_source_leaves_nothing(
    tmp_path: Path, spoil: Callable[[Path], Any], options: dict[str, Any], words: list[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_checkpoint(source, Spec())
    spoil(source)
    with pytest.raises(SantagenError) as caught:
        convert(source, tmp_path / "target", **options)
    assert all(word in caught.value.message for word in words) and caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.skipif(not MANIFEST, reason="the shared fixtures are not beside this clone")
@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=e["name"]) for e in MANIFEST if e["expected"] == "refused"] or [None],
)
def test_broken_fixtures_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    with pytest.raises(SantagenError) as caught:
        convert(FIXTURES / entry["name"], tmp_path / "target", dequantize=True)
    assert all(word in caught.value.message for word in entry["must_name"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_link_to_nothing_is_named(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_checkpoint(source, Spec())
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to("gone.json")
    with pytest.raises(SantagenError, match=f"{name} is a link to gone.json, which is not there"):
        convert(source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_gptq_asks_for_dequantize(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_checkpoint(source, Spec(dtype="F16", gptq=GPTQSpec()))
    with pytest.raises(SantagenError, match="GPTQ") as caught:
        convert(source, tmp_path / "target")
    assert "--dequantize" in caught.value.hint
    assert not (tmp_path / "target").exists()


class TestDestination:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        folder = tmp_path / "source"
        folder.mkdir()
        write_checkpoint(folder, Spec())
        return folder

    def test_too_little_space(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = SimpleNamespace(free=300_000)
        monkeypatch.setattr(convert_module.shutil, "disk_usage", lambda path: free)
        with pytest.raises(SantagenError, match=r"takes [\d,]+ bytes, .* 300,000 free"):
            convert(source, tmp_path / "target")
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_an_existing_folder_is_kept_or_replaced(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "target"
        target.mkdir()
        write_checkpoint(target, Spec(seed=1))
        (target / "old.bin").touch()
        before = snapshot(target)
        with pytest.raises(SantagenError, match="exists already") as caught:
            convert(source, target)
        assert "--overwrite" in caught.value.hint and snapshot(target) == before
        convert(source, target, overwrite=True)
        assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors"}
        assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}

    def test_overwrite_replaces_model_folders_only(self, source: Path, tmp_path: Path) -> None:
        file, other, nested = tmp_path / "file", tmp_path / "other", tmp_path / "nested"
        file.touch()
        other.mkdir()
        (other / "thesis.txt").touch()
        (nested / "data").mkdir(parents=True)
        (nested / "config.json").touch()
        for place in (file, other, nested):
            with pytest.raises(SantagenError, match="is not a model folder"):
                convert(source, place, overwrite=True)
        assert (other / "thesis.txt").exists() and (nested / "data").exists()

    def test_the_source_and_a_folder_that_is_not_there(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(SantagenError, match="is the source itself"):
            convert(source, source, overwrite=True)
        with pytest.raises(SantagenError, match=r"nowhere .* does not exist"):
            convert(source, tmp_path / "nowhere" / "target")

    def test_a_link_keeps_pointing_to_the_folder(self, source: Path, tmp_path: Path) -> None:
        real, link = tmp_path / "real", tmp_path / "link"
        real.mkdir()
        link.symlink_to(real)
        convert(source, link, overwrite=True)
        assert link.is_symlink() and (real / "model.safetensors").is_file()

    def test_traces_of_a_killed_run_are_cleared(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "target"
        partial, aside = (
            tmp_path / f".target.santagen-{ending}" for ending in ("partial", "old")
        )
        for folder in (partial, aside):
            folder.mkdir()
            (folder / "config.json").touch()
        with pytest.raises(SantagenError, match="exists already"):  # the old folder is back
            convert(source, target)
        assert (target / "config.json").exists() and not aside.exists()
        aside.mkdir()
        partial.mkdir()
        convert(source, target, overwrite=True)
        assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}
