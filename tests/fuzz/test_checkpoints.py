"""Weight files and indexes with damage in them: read as they are, or refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.checkpoint.reader import open_checkpoint
from santagen.checkpoint.safetensors_header import MAX_HEADER_BYTES, read_header
from santagen.errors import SantagenError
from tests.fuzz.profile import fuzz

DTYPES = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1}
ODD = st.sampled_from(
    [None, -1, 2**63, 2**200, 1.5, True, "8", [], {}, [0], [0, -1], [[0]], "F31", "../x",
     [2**62, 2**62], [0, 2**70], [1] * 70]
)  # fmt: skip


def safetensors(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A right header with its data."""
    header: dict[str, Any] = {}
    at = 0
    for number in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = DTYPES[dtype]
        for n in shape:
            size *= n
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    if draw(st.booleans()):
        header["__metadata__"] = {"format": "pt"}
    return header, bytes(i % 2 for i in range(at))


def read_all(folder: Path) -> int:
    """Open, and read every tensor; a refusal must name a file. Returns the bytes read."""
    try:
        files = open_checkpoint(folder)
        return sum(files.read(name).nbytes for name in files.names())
    except SantagenError as error:
        assert "model" in error.message and error.hint
        return 0


@fuzz(150)
@given(tables())
def test_what_is_right_is_read_whole(
    tmp_path: Path, table: tuple[dict[str, Any], bytes]
) -> None:
    header, data = table
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(header, data))
    tensors, metadata = read_header(path)
    assert set(tensors) == set(header) - {"__metadata__"}
    assert metadata == header.get("__metadata__", {})
    assert sum(info.nbytes for info in tensors.values()) == len(data) == read_all(tmp_path)


@fuzz(300)
@given(tables(), st.data())
def test_a_damaged_header_is_refused_by_name(
    tmp_path: Path, table: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    header, content = table
    names = sorted(header)
    how = data.draw(st.sampled_from(["key", "entry", "cut", "flip", "length", "more"]))
    if names and how == "key":
        entry = header[data.draw(st.sampled_from(names))]
        entry[data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = data.draw(ODD)
    elif names and how == "entry":
        header[data.draw(st.sampled_from(names))] = data.draw(ODD)
    file = safetensors(header, content)
    if how == "cut":
        file = file[: data.draw(st.integers(0, len(file) - 1))]
    elif how == "flip":
        at = data.draw(st.integers(0, len(file) - 1))
        file = file[:at] + bytes([file[at] ^ data.draw(st.integers(1, 255))]) + file[at + 1 :]
    elif how == "length":
        length = data.draw(st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1, MAX_HEADER_BYTES + 1]))
        file = struct.pack("<Q", length) + file[8:]
    elif how == "more":
        file += data.draw(st.binary(min_size=1, max_size=9))
    (tmp_path / "model.safetensors").write_bytes(file)
    assert read_all(tmp_path) <= len(file)


@fuzz(200)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_header(tmp_path: Path, noise: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors(noise, b""))
    assert read_all(tmp_path) == 0


SHARD_NAMES = st.sampled_from(
    ["a.safetensors", "b.safetensors", "../secret.safetensors", "/etc/passwd", "..", ".", "",
     "sub/c.safetensors", "a.safetensors/", "a\\b", "\x00", "x" * 300, "nothing.safetensors",
     "link.safetensors\n", "~/a.safetensors", "C:\\a"]
) | ODD  # fmt: skip


@fuzz(300)
@given(
    st.dictionaries(st.sampled_from(["t0", "t1", "x", "", "wte.weight"]), SHARD_NAMES, max_size=4)
    | ODD,
    st.booleans(),
)
def test_an_index_leads_to_no_file_outside_its_folder(
    tmp_path: Path, weight_map: Any, whole: bool
) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    tensor = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    (folder / "a.safetensors").write_bytes(safetensors({"t0": tensor}, b"good"))
    (folder / "b.safetensors").write_bytes(safetensors({"t1": tensor}, b"good"))
    for outside in (tmp_path / "secret.safetensors", folder / "sub" / "c.safetensors"):
        outside.write_bytes(safetensors({"x": tensor}, b"evil"))
    index = {"weight_map": weight_map} if whole else weight_map
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    try:
        files = open_checkpoint(folder)
    except SantagenError as error:
        assert error.hint
        return
    assert whole and set(files.names()) <= {"t0", "t1"}
    assert all(bytes(files.read_array(name)) == b"good" for name in files.names())
    for name, shard in weight_map.items():
        assert name in files or name == "wte.weight", (name, shard)


def test_a_link_in_the_index_is_not_a_way_out(tmp_path: Path) -> None:
    """Hub caches are made of links, so links are followed; a name with a folder in it is not."""
    with pytest.raises(SantagenError, match="not a plain file name"):
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"t0": "sub/../../secret.safetensors"}})
        )
        open_checkpoint(tmp_path)
