"""Finds the weight files of a directory, checks their headers and byte counts, and reads slices lazily.

safetensors (one file of any name, or shards with an index) and legacy pytorch_model*.bin (weights_only). Headers are
read without torch, so that `inspect` can answer at once. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santagen.config import read_json
from santagen.errors import SantagenError

if TYPE_CHECKING:
    from torch import Tensor

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8,
}
AGAIN = "Download the file again."
Index = tuple[slice, ...]


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor; dtype is safetensors' name (F32, BF16, I32, ...)."""

    dtype: str
    shape: tuple[int, ...]
    file: str

    @property
    def nbytes(self) -> int:
        size = DTYPE_BYTES[self.dtype]
        for n in self.shape:
            size *= n
        return size


class TensorFiles:
    """All tensors of a checkpoint by name. `metadata` is that of the safetensors headers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metadata: dict[str, str] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._handles: dict[str, Any] = {}
        self._bins: dict[str, dict[str, Tensor]] = {}

    def names(self) -> list[str]:
        return list(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        return self._infos[name]

    def infos(self) -> Iterator[tuple[str, TensorInfo]]:
        return iter(self._infos.items())

    def read(self, name: str, index: Index | None = None) -> Tensor:
        """The tensor, or the part `index` of it, on the CPU in the file's dtype; reads no more than that."""
        file = self._infos[name].file
        if file in self._bins:
            tensor = self._bins[file][name]
            return tensor if index is None else tensor[index]
        if file not in self._handles:
            from safetensors import safe_open

            self._handles[file] = safe_open(self.directory / file, framework="pt", device="cpu")
        handle = self._handles[file]
        if index is None:
            return handle.get_tensor(name)
        return handle.get_slice(name)[index]


def open_checkpoint(directory: Path) -> TensorFiles:
    """Choose and check the weight files of `directory`; raises SantagenError naming the file at fault."""
    if not directory.is_dir():
        raise SantagenError(f"{directory} is not a directory.", "Give the folder that holds config.json.")
    files = TensorFiles(directory)
    for pattern, index_name, single, add in (
        ("*.safetensors", "model.safetensors.index.json", "model.safetensors", _add_safetensors),
        ("pytorch_model*.bin", "pytorch_model.bin.index.json", "pytorch_model.bin", _add_bin),
    ):
        index = directory / index_name
        found = sorted(directory.glob(pattern))
        if index.is_file():
            _add_sharded(files, index, add)
            return files
        if len(found) > 1 and directory / single in found:
            found = [directory / single]
        if len(found) > 1:
            raise SantagenError(
                f"{directory} holds {len(found)} weight files ({found[0].name}, {found[1].name}, ...) and no "
                f"{index_name}.",
                "Add the index file, or leave one weight file.",
            )
        if found:
            add(files, found[0].name)
            return files
    raise SantagenError(
        f"{directory} holds no weights (*.safetensors or pytorch_model*.bin).",
        "Download the weight files into it, beside config.json.",
    )


def _add_sharded(files: TensorFiles, index: Path, add: Any) -> None:
    weight_map = read_json(index, f"download {index.name} again").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise SantagenError(f"{index} has no usable weight_map.", AGAIN)
    for shard in dict.fromkeys(weight_map.values()):
        if shard != Path(shard).name or shard in ("", ".", ".."):
            raise SantagenError(
                f"{index.name} names the shard {shard!r}, which is not a plain file name.",
                "Shards lie beside the index; don't trust this checkpoint.",
            )
        if not (files.directory / shard).is_file():
            raise SantagenError(
                f"{index.name} names the shard {shard}, which is not in {files.directory}.",
                "Download the missing shard.",
            )
        add(files, shard)
    for name, shard in weight_map.items():
        if name not in files or files.info(name).file != shard:
            if name == "transformer.wte.weight" and "lm_head.weight" in files:
                continue  # a tie written down by its other name
            raise SantagenError(
                f"{index.name} says that {name} is in {shard}, but that shard does not hold it.",
                "Index and shards are of different downloads: download both again.",
            )


def _add_safetensors(files: TensorFiles, file: str) -> None:
    header, data_bytes = read_header(files.directory / file)
    for name, entry in header.items():
        if name == "__metadata__":
            files.metadata.update({k: v for k, v in entry.items() if isinstance(v, str)})
            continue
        files._infos[name] = _checked(file, name, entry, data_bytes)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """(parsed header, bytes of data behind it) of a safetensors file, with both checked against its size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= length <= size - 8:
            raise SantagenError(
                f"{path.name} is not a safetensors file: its header would take {length:,} bytes and the file has "
                f"{size:,}.",
                AGAIN,
            )
        try:
            header = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise ValueError("no object")
        except ValueError:
            raise SantagenError(f"{path.name} is not a safetensors file: its header is not JSON.", AGAIN) from None
    ends = []
    for name, entry in header.items():
        if name != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            if not (isinstance(offsets, list) and len(offsets) == 2):
                raise SantagenError(f"{path.name} has no data offsets for {name}.", AGAIN)
            ends.append(offsets[1])
    wanted, there = max(ends, default=0), size - 8 - length
    if wanted > there:
        raise SantagenError(
            f"{path.name} is cut short: its header describes {wanted + 8 + length:,} bytes and the file has {size:,}.",
            AGAIN,
        )
    return header, there


def _checked(file: str, name: str, entry: dict[str, Any], data_bytes: int) -> TensorInfo:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    begin, end = entry["data_offsets"]
    if dtype not in DTYPE_BYTES or not isinstance(shape, list):
        raise SantagenError(f"{file} gives {name} the unknown dtype {dtype!r}.", "Convert it to bfloat16.")
    info = TensorInfo(dtype, tuple(shape), file)
    if end - begin != info.nbytes or begin < 0:
        raise SantagenError(
            f"{file} gives {name} {end - begin:,} bytes, but {dtype} {list(shape)} takes {info.nbytes:,}.", AGAIN
        )
    return info


def _add_bin(files: TensorFiles, file: str) -> None:
    import torch

    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
        torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
        torch.uint8: "U8", torch.bool: "BOOL",
    }
    path = files.directory / file
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many kinds for a damaged or hostile pickle
        raise SantagenError(
            f"{file} ({path.stat().st_size:,} bytes) can't be read as plain tensors: {str(error).splitlines()[0][:200]}.",
            "Download it again, or convert it to safetensors.",
        ) from None
    if not isinstance(tensors, dict):
        raise SantagenError(f"{file} holds no table of tensors.", "Convert it to safetensors.")
    tensors = {k: v for k, v in tensors.items() if isinstance(v, torch.Tensor)}
    files._bins[file] = tensors
    for name, tensor in tensors.items():
        files._infos[name] = TensorInfo(names.get(tensor.dtype, "F32"), tuple(tensor.shape), file)
