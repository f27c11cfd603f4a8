"""Writes safetensors files tensor by tensor, and reads them back to compare.

    8 bytes: length n | n bytes: JSON header, padded to a multiple of 8 | data, in the same order

The library's own writer takes a whole file's tensors at once; here the header comes from shapes
that are known, so that one tensor is in memory. What the tensors mean is not known here.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from santagen.checkpoint.safetensors_header import DTYPE_BYTES, read_header
from santagen.errors import SantagenError

SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Entry:
    """A tensor to write; `dtype` is torch's name for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[SAFETENSORS_NAMES[self.dtype]]


def plan_shards(entries: list[Entry], max_bytes: int) -> dict[str, list[Entry]]:
    """File name -> its tensors, in order; one that is larger than `max_bytes` is a file's only."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = len(shards)
    return {f"model-{i:05}-of-{count:05}.safetensors": part for i, part in enumerate(shards, 1)}


class ShardWriter:
    """One file: its header at once, then the tensors in the header's order.

    `checksums` holds each tensor's CRC-32 as it was in memory. Leaving the block puts the file on
    the disk.
    """

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self.checksums: dict[str, int] = {}
        self._entries = entries
        self._file = path.open("wb")

    def __enter__(self) -> ShardWriter:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for entry in self._entries:
            header[entry.name] = {
                "dtype": SAFETENSORS_NAMES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [offset, offset + entry.nbytes],
            }
            offset += entry.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file.write(struct.pack("<Q", len(text)) + text)
        return self

    def write(self, entry: Entry, tensor: Tensor) -> None:
        """Append a tensor, which must be the one whose turn it is."""
        assert entry is self._entries[len(self.checksums)], f"it is not {entry.name}'s turn"
        found = (tuple(tensor.shape), str(tensor.dtype))
        assert found == (entry.shape, f"torch.{entry.dtype}"), f"{entry.name} is {found}"
        content = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        self._file.write(content)
        self.checksums[entry.name] = zlib.crc32(content)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                assert len(self.checksums) == len(self._entries), "tensors are missing"
                self._file.flush()
                os.fsync(self._file.fileno())


def verify_shard(path: Path, entries: list[Entry], checksums: dict[str, int]) -> None:
    """Compare a file with what was to be written: names, shapes, dtypes, and every byte.

    A SantagenError names the first tensor that differs.
    """
    infos, _ = read_header(path)
    wanted = {e.name: (SAFETENSORS_NAMES[e.dtype], e.shape) for e in entries}
    assert {n: (i.dtype, i.shape) for n, i in infos.items()} == wanted, f"{path.name}'s header"
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):  # so that the disk answers, not the kernel's memory of it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for entry in entries:
            file.seek(infos[entry.name].offset)
            if _checksum(file, entry.nbytes) != checksums[entry.name]:
                raise SantagenError(
                    f"{entry.name} in {path.name} reads back as other bytes than were written.",
                    "The disk or its driver is at fault: convert to another disk.",
                )


def _checksum(file: IO[bytes], count: int) -> int:
    """The CRC-32 of the next `count` bytes, or of what there is of them."""
    checksum = 0
    while count and (chunk := file.read(min(count, CHUNK_BYTES))):
        checksum = zlib.crc32(chunk, checksum)
        count -= len(chunk)
    return checksum
