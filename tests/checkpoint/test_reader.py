"""Files are found, checked against their headers, and read no further than asked."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.checkpoint import reader
from santagen.checkpoint.reader import TensorFiles, open_checkpoint
from santagen.errors import SantagenError
from tests.fixture_writer import Spec, write_bin, write_checkpoint, write_safetensors

VALUES = np.arange(60, dtype=np.float32).reshape(12, 5)
INTEGERS = np.arange(7) - 3
TENSORS = {
    "a": ("F32", VALUES), "b": ("BF16", VALUES), "c": ("I32", INTEGERS),
    "scalar": ("F32", np.array(2.5)),
    "empty": ("F32", np.zeros((0, 4))), "d": ("F16", VALUES[0]),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> TensorFiles:
    write_safetensors(tmp_path / "any.safetensors", TENSORS)
    return open_checkpoint(tmp_path)


def test_reads_tensors_and_parts_of_them(files: TensorFiles) -> None:
    values = torch.from_numpy(VALUES)
    assert files.names() == list(TENSORS)
    assert files.info("b").dtype == "BF16" and files.info("b").shape == (12, 5)
    assert files.metadata == {"format": "pt"}
    for name, dtype in (("a", torch.float32), ("b", torch.bfloat16)):
        for index in (
            None, (), (slice(2, 9),), (slice(None), slice(1, 4)), (slice(3, 5), slice(4, 5)),
            (slice(2, 2),), (slice(0, 3), slice(2, 2)), (slice(10, 99),),
        ):  # fmt: skip
            part = files.read(name, index)
            assert part.dtype == dtype
            assert torch.equal(part.float(), values[index or ...])
            assert np.array_equal(files.read_array(name, index), VALUES[index or ...])
    assert torch.equal(files.read("c"), torch.from_numpy(INTEGERS).int())
    assert np.array_equal(files.read_array("c", (slice(1, 3),)), [-2, -1])
    assert files.read("scalar").item() == 2.5 and files.read("scalar").shape == ()
    assert files.read("empty").shape == (0, 4)


def test_a_pickled_file_reads_the_same(tmp_path: Path) -> None:
    tensors = {name: item for name, item in TENSORS.items() if name in "abc"}
    for folder, options in (("zip", {}), ("old", {"_use_new_zipfile_serialization": False})):
        (tmp_path / folder).mkdir()
        write_bin(tmp_path / folder / "pytorch_model.bin", tensors, **options)
        files = open_checkpoint(tmp_path / folder)
        part = files.read("b", (slice(2, 4), slice(1, 3)))
        assert torch.equal(part.float(), torch.from_numpy(VALUES[2:4, 1:3]))
        assert files.info("b").dtype == "BF16"
        assert np.array_equal(files.read_array("c"), INTEGERS)
        assert np.array_equal(files.read_array("b"), VALUES)


def test_an_array_of_float8_is_refused(tmp_path: Path) -> None:
    header = {"f": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    text = json.dumps(header).encode()
    (tmp_path / "any.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0\0")
    with pytest.raises(SantagenError, match=r"f in any\.safetensors is of dtype F8_E4M3"):
        open_checkpoint(tmp_path).read_array("f")


def test_only_the_asked_bytes_are_read(files: TensorFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    real = os.preadv

    def counted(descriptor: int, buffers: list[Any], offset: int) -> int:
        counts.append(real(descriptor, buffers, offset))
        return counts[-1]

    monkeypatch.setattr(reader.os, "preadv", counted)
    files.read("a", (slice(2, 4),))
    assert counts == [2 * 5 * 4]
    counts.clear()
    files.read("a", (slice(2, 4), slice(1, 3)))
    assert counts == [2 * 4, 2 * 4]


def test_a_file_cut_while_it_is_read_is_named(files: TensorFiles) -> None:
    path = files.directory / "any.safetensors"
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(SantagenError, match=r"any\.safetensors ended"):
        files.read("d")


def test_safetensors_win_over_bin_and_a_whole_file_over_an_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"right": ("F32", VALUES)})
    write_safetensors(tmp_path / "adapter.safetensors", {"wrong": ("F32", VALUES)})
    write_bin(tmp_path / "pytorch_model.bin", {"wrong": ("F32", VALUES)})
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"wrong": "gone"}}')
    assert open_checkpoint(tmp_path).names() == ["right"]


def test_the_index_says_which_shard_holds_a_tensor(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors", {"a": ("F32", VALUES), "b": ("F32", VALUES)})
    write_safetensors(tmp_path / "two.safetensors", {"a": ("F32", VALUES + 1)})
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "odd-name.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(open_checkpoint(tmp_path).read("a"), torch.from_numpy(VALUES))
    index = {"weight_map": {"b": "one.safetensors", "a": "two.safetensors"}}
    (tmp_path / "odd-name.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(open_checkpoint(tmp_path).read("a"), torch.from_numpy(VALUES + 1))


def test_an_index_may_list_both_names_of_a_tied_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(shards=2))
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    assert "lm_head.weight" not in open_checkpoint(tmp_path)


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["0 bytes", "has 0"]),
        (b"\x02\0\0", ["has 3"]),
        (safetensors_bytes(b"{}", length=1 << 40), ["1099511627776", "has 10"]),
        (safetensors_bytes(b"{]"), ["no JSON object"]),
        (safetensors_bytes(b"[" * 100_000), ["no JSON object"]),
        (safetensors_bytes(b"[1]"), ["no JSON object"]),
        (safetensors_bytes(b"\xff\xfe"), ["no JSON object"]),
        (safetensors_bytes({"x": 3}), ["shape", "x"]),
        (safetensors_bytes(entry(shape=[-2])), ["shape", "x"]),
        (safetensors_bytes(entry(shape=[True, 2])), ["shape", "x"]),
        (safetensors_bytes(entry(offsets=[0]), bytes(8)), ["offsets", "x"]),
        (safetensors_bytes(entry(dtype="F4"), bytes(8)), ["dtype 'F4'"]),
        (safetensors_bytes(entry(shape=[3]), bytes(8)), ["8 bytes", "takes 12"]),
        (safetensors_bytes(entry(), bytes(5)), ["cut short", "describes 77", "has 74"]),
        (safetensors_bytes(entry(), bytes(9)), ["belong to nothing"]),
        (safetensors_bytes(entry(offsets=[4, 12]), bytes(12)), ["places x"]),
        (safetensors_bytes({**entry(), "y": entry()["x"]}, bytes(8)), ["places y"]),
    ],
)
def test_damaged_safetensors_are_named(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(SantagenError) as caught:
        open_checkpoint(tmp_path)
    for word in ["model.safetensors", *words]:
        assert word in caught.value.message


def index_of(weight_map: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_safetensors(folder / "one.safetensors", {"a": ("F32", VALUES)})
        text = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)

    return write


def two_without_index(folder: Path) -> None:
    for name in ("one.safetensors", "two.safetensors"):
        write_safetensors(folder / name, {"a": ("F32", VALUES)})


def truncated_bin(folder: Path) -> None:
    write_bin(folder / "pytorch_model.bin", {"a": ("F32", VALUES)})
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-200])


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def hostile_bin(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Hostile()}, protocol=2))


def training_bin(folder: Path) -> None:
    torch.save({"state": {"a": torch.ones(2)}}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda folder: None, ["no weights"]),
        (two_without_index, ["one.safetensors", "two.safetensors", "index"]),
        (index_of({"a": "gone.safetensors"}), ["gone.safetensors"]),
        (index_of({"a": "../one.safetensors"}), ["'../one.safetensors'"]),
        (index_of({"a": "/etc/passwd"}), ["'/etc/passwd'"]),
        (index_of({"a": ".."}), ["'..'"]),
        (index_of({"a": 3}), ["3"]),
        (index_of({}), ["weight_map"]),
        (index_of([1]), ["weight_map"]),
        (index_of({"a": "one.safetensors", "b": "one.safetensors"}), ["b is in one.safetensors"]),
        (
            index_of({"a": "one.safetensors", "lm_head.weight": "one.safetensors"}),
            ["lm_head.weight"],
        ),
        (truncated_bin, ["pytorch_model.bin", "bytes"]),
        (hostile_bin, ["pytorch_model.bin"]),
        (training_bin, ["pytorch_model.bin", "state", "dict"]),
    ],
)
def test_unusable_folders_are_refused(
    tmp_path: Path, write: Callable[[Path], None], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    with pytest.raises(SantagenError) as caught:
        open_checkpoint(tmp_path)
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "pwned").exists()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SantagenError, match="not a directory"):
        open_checkpoint(tmp_path / "nothing")


def test_headers_need_no_torch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(conv1d=True, split=True))
    code = (
        "import sys; from pathlib import Path\n"
        "from santagen.checkpoint.inspection import inspect_checkpoint\n"
        "from santagen.config import ModelConfig\n"
        "folder = Path(sys.argv[1])\n"
        "print(inspect_checkpoint(folder, ModelConfig.from_directory(folder))[1].describe())\n"
        "print('torch' in sys.modules)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    child = subprocess.run(run, capture_output=True, text=True, check=True)
    assert child.stdout.splitlines() == ["Conv1D (transposed), split q/kv, tied head", "False"]
