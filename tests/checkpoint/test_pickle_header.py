"""Pickled files are described without torch, as torch loads them; hostile ones run nothing."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.checkpoint.layout import decide_layout
from santagen.checkpoint.pickle_header import read_bin_header
from santagen.checkpoint.reader import TORCH_NAMES, open_checkpoint
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from tests.fixture_writer import Spec, write_checkpoint

FORMS = {"zip": {}, "old": {"_use_new_zipfile_serialization": False}}
SHARED_STORAGE = torch.arange(24, dtype=torch.float32).reshape(6, 4)
TENSORS: dict[str, torch.Tensor] = {
    "bf16": torch.arange(6).to(torch.bfloat16).reshape(2, 3),
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "integers": torch.arange(5, dtype=torch.int32),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "whole": SHARED_STORAGE,
    "part": SHARED_STORAGE[2:4],
    "column": SHARED_STORAGE[:, :1],
    "turned": SHARED_STORAGE.t(),
    "repeated": torch.ones(1).expand(7),
}
OUT_OF_ORDER = {"column", "turned", "repeated"}


def save(folder: Path, table: Any, form: str = "zip") -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(table, path, **FORMS[form])
    return path


@pytest.mark.parametrize("form", FORMS)
def test_names_shapes_dtypes_and_bytes_are_those_torch_loads(tmp_path: Path, form: str) -> None:
    save(tmp_path, TENSORS, form)
    files = open_checkpoint(tmp_path, without_torch=True)
    assert files.names() == list(TENSORS)
    for name, tensor in TENSORS.items():
        info = files.info(name)
        assert getattr(torch, TORCH_NAMES[info.dtype]) == tensor.dtype
        assert info.shape == tuple(tensor.shape)
        if name in OUT_OF_ORDER:
            with pytest.raises(SantagenError, match=r"pytorch_model\.bin .* not in order"):
                files.read(name)
        else:
            assert torch.equal(files.read(name), tensor.detach())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_newer_dtypes_come_with_the_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    info = read_bin_header(save(tmp_path, {"a": torch.zeros(3).to(dtype)}))["a"]
    assert getattr(torch, TORCH_NAMES[info.dtype]) == dtype and info.shape == (3,)


def test_a_state_dict_with_its_metadata(tmp_path: Path) -> None:
    state = torch.nn.Linear(3, 2).state_dict()
    assert isinstance(state, OrderedDict) and hasattr(state, "_metadata")
    infos = read_bin_header(save(tmp_path, state))
    assert {name: info.shape for name, info in infos.items()} == {"weight": (2, 3), "bias": (2,)}


def test_shards_of_pickles(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path, Spec(dtype="F32"))
    (tmp_path / "model.safetensors").unlink()
    names = list(weights)
    shards = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
    for shard, part in shards.items():
        tensors = {name: torch.from_numpy(weights[name].copy()) for name in part}
        torch.save(tensors, tmp_path / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(str({"weight_map": weight_map}).replace("'", '"'))
    files = open_checkpoint(tmp_path, without_torch=True)
    for name in names:
        assert np.array_equal(files.read_array(name), weights[name])


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


class Named:
    """Pickles as a call of a name that is harmless, and yet not of this format."""

    def __reduce__(self) -> Any:
        return np.dtype, ("f4",)


def with_entry(path: Path, name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Replace one entry of a saved file."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    root = next(iter(entries)).split("/")[0]
    entries[f"{root}/{name}"] = data
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content, compression if entry.endswith(name) else None)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([torch.ones(2)], ["no table of tensors"]),
        ({"state": {"a": torch.ones(2)}}, ["state", "dict"]),
        ({"epoch": 3, "a": torch.ones(2)}, ["epoch", "int"]),
        ({"a": Hostile()}, ["posix.system"]),
        ({"a": Named()}, ["numpy.dtype"]),
    ],
)
def test_what_is_no_table_of_tensors(
    tmp_path: Path, table: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SantagenError) as caught:
        read_bin_header(save(tmp_path, table))
    for word in ["pytorch_model.bin", *words]:
        assert word in caught.value.message
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [0, 3, 100, -4, -200])
def test_short_files_are_named_with_their_bytes(tmp_path: Path, form: str, keep: int) -> None:
    path = save(tmp_path, TENSORS, form)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SantagenError, match=rf"pytorch_model\.bin \({path.stat().st_size:,} bytes"):
        read_bin_header(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: with_entry(path, "data/0", bytes(4)), ["needs 16 bytes and 4 are there"]),
        (lambda path: with_entry(path, "byteorder", b"big"), ["little-endian"]),
        (lambda path: with_entry(path, "data/0", bytes(16), zipfile.ZIP_DEFLATED), ["compressed"]),
        (lambda path: with_entry(path, "data.pkl", b"\x80\x02N"), ["cut short"]),
        (lambda path: path.write_bytes(pickle.dumps(5)), ["torch"]),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)), ["zip"]),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, spoil: Any, words: list[str]) -> None:
    path = save(tmp_path, {"a": torch.ones(4)})
    spoil(path)
    with pytest.raises(SantagenError) as caught:
        read_bin_header(path)
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint


def refusal(folder: Path, without_torch: bool) -> str:
    """What opening the model in `folder` is refused with."""
    config = ModelConfig.from_directory(folder)
    with pytest.raises(SantagenError) as caught:
        decide_layout(open_checkpoint(folder, without_torch=without_torch), config)
    assert caught.value.hint
    return caught.value.message


# What is no plain tensor with a name, made when it is wanted, and what is said of it.
ODD: dict[str, tuple[Callable[[], dict[Any, Any]], str]] = {
    "number as a name": (lambda: {5: torch.zeros(2)}, "the tensor 5,"),
    "tuple as a name": (lambda: {("a", 1): torch.zeros(2)}, "the tensor ('a', 1),"),
    "sparse": (lambda: {"a": torch.ones(2, 2).to_sparse()}, "_rebuild_sparse_tensor"),
    "sparse rows": (lambda: {"a": torch.ones(2, 2).to_sparse_csr()}, "_rebuild_sparse_tensor"),
    "without data": (lambda: {"a": torch.ones(2, device="meta")}, "_rebuild_meta_tensor"),
    "complex": (lambda: {"a": torch.ones(2, dtype=torch.complex64)}, "ComplexFloatStorage"),
    "a number": (lambda: {"a": 5}, "a, which is int"),
    "no value": (lambda: {"a": None}, "a, which is NoneType"),
}


@pytest.mark.filterwarnings("ignore")  # torch calls sparse rows a beta
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ODD)
def test_with_and_without_torch_the_same_is_refused(tmp_path: Path, case: str, form: str) -> None:
    weights = write_checkpoint(tmp_path, Spec(dtype="F32"))
    (tmp_path / "model.safetensors").unlink()
    odd, words = ODD[case]
    save(tmp_path, {k: torch.from_numpy(v.copy()) for k, v in weights.items()} | odd(), form)
    told = refusal(tmp_path, without_torch=True)
    assert "pytorch_model.bin" in told and words in told
    assert refusal(tmp_path, without_torch=False) == told


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_of_any_protocol_is_refused_quietly(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(), protocol))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SantagenError, match=r"pytorch_model\.bin .*posix\.system"):
            open_checkpoint(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_is_read_or_refused_alike_and_quietly(
    tmp_path: Path, protocol: int, form: str
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(4)}, path, pickle_protocol=protocol, **FORMS[form])
    for without_torch in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if protocol in (2, 3):
                files = open_checkpoint(tmp_path, without_torch=without_torch)
                assert np.array_equal(files.read_array("a"), np.ones(4))
                continue
            with pytest.raises(SantagenError, match=r"pytorch_model\.bin .*protocol 2 or 3"):
                open_checkpoint(tmp_path, without_torch=without_torch)
