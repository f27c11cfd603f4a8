"""Finds the weight files of a directory, checks their headers, and reads parts of tensors lazily.

safetensors (one file of any name, or shards with an index) and legacy pytorch_model*.bin
(weights_only). safetensors files are read with plain file reads, not mapped: what is in memory is
what was asked for. Headers need no torch; pickled files do. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from santagen.checkpoint.pickle_header import damaged, no_table, no_tensor, read_bin_header
from santagen.checkpoint.safetensors_header import AGAIN, DTYPE_BYTES, TensorInfo, read_header
from santagen.config import read_json
from santagen.errors import SantagenError

if TYPE_CHECKING:
    from torch import Tensor

Index = tuple[slice, ...]

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "U64": "uint64", "U32": "uint32", "U16": "uint16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
NUMPY_NAMES = {k: v for k, v in TORCH_NAMES.items() if not k.startswith(("BF", "F8"))}


OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".gguf")  # kinds of file that nothing here reads
COMPARED_NUMBERS = 4 << 20  # at once


class TensorFiles:
    """All tensors of a checkpoint by name. `metadata` is that of the safetensors headers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metadata: dict[str, str] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._pickled: dict[str, Mapping[str, Tensor]] = {}

    def names(self) -> list[str]:
        return list(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        return self._infos[name]

    def infos(self) -> Iterator[tuple[str, TensorInfo]]:
        return iter(self._infos.items())

    def read(self, name: str, index: Index | None = None) -> Tensor:
        """The tensor, or the part `index` of it, on the CPU in the file's dtype.

        `index` holds up to two slices of step 1. The result owns its memory; no more is read from
        disk.
        """
        import torch

        info = self._infos[name]
        if info.file in self._pickled:
            tensor = self._pickled[info.file][name].detach()
            return tensor[index or ...].clone(memory_format=torch.contiguous_format)
        buffer, shape = self._bytes(info, index)
        dtype = getattr(torch, TORCH_NAMES[info.dtype])
        if buffer.size == 0:  # an empty array has no stride to reinterpret
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(buffer).view(dtype).view(shape)

    def read_array(self, name: str, index: Index | None = None) -> np.ndarray:
        """As `read`, bfloat16 as float32; needs no torch where the file is a safetensors one.

        Raises SantagenError for float8, which numpy has no numbers for.
        """
        info = self._infos[name]
        if info.dtype not in NUMPY_NAMES and info.dtype != "BF16":
            raise SantagenError(
                f"{name} in {info.file} is of dtype {info.dtype}, which santagen can't read there.",
                "Convert the checkpoint to bfloat16, float16 or float32.",
            )
        if info.file in self._pickled:
            tensor = self.read(name, index)
            return (tensor.float() if info.dtype == "BF16" else tensor).numpy()
        buffer, shape = self._bytes(info, index)
        if info.dtype == "BF16":  # the upper half of a float32
            wide = buffer.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(shape)
        return buffer.view(NUMPY_NAMES[info.dtype]).reshape(shape)

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors hold the same numbers; taken for granted of pickled ones out of
        order when only headers were read."""
        one, two = self._infos[name], self._infos[other]
        if one.shape != two.shape:
            return False
        if any(info.offset < 0 and info.file not in self._pickled for info in (one, two)):
            return True
        same_place = (one.file, one.offset, one.dtype) == (two.file, two.offset, two.dtype)
        if same_place and one.offset >= 0:
            return True  # a tied pair of a .bin
        rows = one.shape[0] if one.shape else 1
        step = max(1, COMPARED_NUMBERS * rows // max(1, math.prod(one.shape)))
        for start in range(0, rows, step):
            part = (slice(start, start + step),)[: len(one.shape)]
            own, theirs = self.read_array(name, part), self.read_array(other, part)
            if not np.array_equal(own, theirs, equal_nan=True):
                return False
        return True

    def _bytes(self, info: TensorInfo, index: Index | None) -> tuple[np.ndarray, tuple[int, ...]]:
        """The bytes of a part of a tensor, and its shape: one read per contiguous run."""
        if info.offset < 0:
            raise SantagenError(
                f"{info.file} holds a tensor {list(info.shape)} whose elements are not in order.",
                "Save it again with save_pretrained, which writes tensors in order.",
            )
        cut = [part.indices(size) for part, size in zip(index or (), info.shape, strict=False)]
        cut += [(0, size, 1) for size in info.shape[len(cut) :]]
        shape = tuple(max(0, stop - start) for start, stop, _ in cut)
        width = DTYPE_BYTES[info.dtype]
        buffer = np.empty(int(np.prod(shape, dtype=np.int64)) * width, dtype=np.uint8)
        if buffer.size == 0:
            return buffer, shape
        row_bytes = int(np.prod(info.shape[1:], dtype=np.int64)) * width
        first = info.offset + (cut[0][0] * row_bytes if cut else 0)
        view = buffer.data
        descriptor = os.open(self.directory / info.file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            if shape[1:] == info.shape[1:]:
                _read_exactly(descriptor, view, first, info.file)
            else:  # a range of columns: [rows, columns] with a stride
                part = shape[1] * width
                first += cut[1][0] * width
                for row in range(shape[0]):
                    piece = view[row * part : (row + 1) * part]
                    _read_exactly(descriptor, piece, first + row * row_bytes, info.file)
        finally:
            os.close(descriptor)
        return buffer, shape


def _read_exactly(descriptor: int, into: memoryview, offset: int, file: str) -> None:
    """Fill `into` from `offset`; the kernel hands over at most 2 GiB a call."""
    while into:
        count = os.preadv(descriptor, [into], offset)
        if count == 0:
            raise SantagenError(f"{file} ended at byte {offset:,} while it was read.", AGAIN)
        into, offset = into[count:], offset + count


def open_checkpoint(directory: Path, *, without_torch: bool = False) -> TensorFiles:
    """Choose and check the weight files of `directory`; a SantagenError names the file at fault.

    `without_torch` takes of a pickled file no more than its header; tensors then come as arrays.
    """
    if not directory.is_dir():
        raise SantagenError(
            f"{directory} is not a directory.", "Give the folder that holds config.json."
        )
    files = TensorFiles(directory)
    add_bin = _add_bin_header if without_torch else _add_bin
    for pattern, single, add in (
        ("*.safetensors", "model.safetensors", _add_safetensors),
        ("pytorch_model*.bin", "pytorch_model.bin", add_bin),
    ):
        found = sorted(path.name for path in directory.glob(pattern) if path.is_file())
        indexes = sorted(path.name for path in directory.glob(f"{pattern}.index.json"))
        if single in found:  # as transformers does: the whole file before an index
            found, indexes = [single], []
        elif f"{single}.index.json" in indexes:
            indexes = [f"{single}.index.json"]
        if len(indexes) == 1:
            _add_sharded(files, directory / indexes[0], add)
            return files
        if len(found) > 1 or len(indexes) > 1:
            many = indexes or found
            raise SantagenError(
                f"{directory} holds {len(many)} weight files ({many[0]}, {many[1]}, ...) and no "
                f"{single}.index.json to tell which belong together.",
                "Download the index file too, or leave one weight file in the folder.",
            )
        if found:
            files._infos.update(add(files, found[0]))
            return files
    others = sorted(path.name for path in directory.iterdir() if path.suffix in OTHER_WEIGHTS)
    if others:
        raise SantagenError(
            f"{directory} holds no weights that santagen reads (*.safetensors or "
            f"pytorch_model*.bin), only {others[0]}.",
            "Take the model's safetensors files; a .bin file that torch saved can be renamed to "
            "pytorch_model.bin.",
        )
    raise SantagenError(
        f"{directory} holds no weights (*.safetensors or pytorch_model*.bin).",
        "Download the weight files into it, beside config.json.",
    )


def _add_sharded(files: TensorFiles, index: Path, add: Any) -> None:
    """Every tensor the index names, from the shard it names; also what a shard holds besides."""
    weight_map = read_json(index, f"download {index.name} again").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SantagenError(f"{index.name} has no weight_map.", AGAIN)
    shards: dict[str, dict[str, TensorInfo]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard not in shards:
            _check_shard_name(index, shard)
            shards[shard] = add(files, shard)
            for extra, info in shards[shard].items():
                files._infos.setdefault(extra, info)
        if name in shards[shard]:
            files._infos[name] = shards[shard][name]
    for name, shard in weight_map.items():
        if name in shards[shard] or _tied_name_is_there(name, files):
            continue
        raise SantagenError(
            f"{index.name} says that {name} is in {shard}, but that shard does not hold it.",
            "Index and shards are of different downloads: download both again.",
        )


def _check_shard_name(index: Path, shard: Any) -> None:
    plain = isinstance(shard, str) and shard not in ("", ".", "..") and "\\" not in shard
    if not plain or Path(shard).name != shard:
        raise SantagenError(
            f"{index.name} names the shard {shard!r}, which is not a plain file name.",
            "Shards lie beside the index: don't use this checkpoint unless you trust its source.",
        )
    if not os.path.isfile(index.parent / shard):  # a name no system takes is no file either
        raise SantagenError(
            f"{index.name} names the shard {shard}, which is not in {index.parent}.",
            "Download the missing shard.",
        )


def _tied_name_is_there(name: str, files: TensorFiles) -> bool:
    """Some indexes list both names of a tied embedding where the shards hold one of them.

    Whether the head may be tied is layout.py's question.
    """
    names = ("transformer.wte.weight", "wte.weight", "lm_head.weight")
    tied = name.endswith(("wte.weight", "lm_head.weight"))
    return tied and any(other in files for other in names)


def _add_safetensors(files: TensorFiles, file: str) -> dict[str, TensorInfo]:
    tensors, metadata = read_header(files.directory / file)
    files.metadata.update(metadata)
    return tensors


def _add_bin_header(files: TensorFiles, file: str) -> dict[str, TensorInfo]:
    return read_bin_header(files.directory / file)


def _add_bin(files: TensorFiles, file: str) -> dict[str, TensorInfo]:
    """The header is read first: what it refuses, any command refuses in the same words."""
    import torch

    path = files.directory / file
    infos = read_bin_header(path)
    with path.open("rb") as start:
        mappable = start.read(4) == b"PK\x03\x04"  # files of torch < 1.6 can't be mapped
    try:
        with warnings.catch_warnings():  # of old pickle protocols and storages, which are no news
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mappable)
    except Exception as error:  # torch raises many kinds for a damaged or hostile pickle
        raise damaged(path, error) from None
    if not isinstance(loaded, Mapping):
        raise no_table(file)
    tensors = {str(name): tensor for name, tensor in loaded.items()}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or not _is_as_told(tensor, infos.get(name)):
            what = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise no_tensor(file, name, what)
    files._pickled[file] = tensors
    return {name: infos[name] for name in tensors}


def _is_as_told(tensor: Tensor, info: TensorInfo | None) -> bool:
    """Whether torch made of a pickle what the header says."""
    import torch

    if info is None or tensor.layout != torch.strided:
        return False
    return tensor.dtype == getattr(torch, TORCH_NAMES[info.dtype]) and tensor.shape == info.shape
