"""A safetensors file's header, checked against the file's size; the standard library suffices.

    8 bytes: length n, little-endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | data

Nothing of the data is read here.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
MAX_HEADER_BYTES = 100_000_000
AGAIN = "Download the file again."


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor; dtype is safetensors' name (F32, BF16, I32, ...).

    `offset` is where its bytes begin in the file, -1 where the format doesn't tell (pickled files).
    """

    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """(tensors by name, metadata) of a safetensors file; a SantagenError names a damaged one."""
    header, data_start, size = _parse(path)
    metadata = header.pop("__metadata__", None) or {}
    tensors = {name: _tensor(path.name, name, entry, data_start) for name, entry in header.items()}
    end = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != end:
            raise SantagenError(
                f"{path.name} places {name} at byte {info.offset:,}, where byte {end:,} is next.",
                AGAIN,
            )
        end += info.nbytes
    if size != end:
        fault = "is cut short" if size < end else "has bytes that belong to nothing"
        raise SantagenError(
            f"{path.name} {fault}: its header describes {end} bytes and the file has {size}.",
            AGAIN,
        )
    return tensors, {k: v for k, v in metadata.items() if isinstance(v, str)}


def _parse(path: Path) -> tuple[dict[str, Any], int, int]:
    """(header, first byte of the data, bytes of the file)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise SantagenError(
                f"{path.name} is cut short or no safetensors file: its header would take "
                f"{length} bytes and the file has {size}.",
                AGAIN,
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict | None):
        raise SantagenError(
            f"{path.name} ({size:,} bytes) is no safetensors file: its header is no JSON object.",
            AGAIN,
        )
    return header, 8 + length, size


def _tensor(file: str, name: str, entry: Any, data_start: int) -> TensorInfo:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _counts(shape) or not _counts(span) or len(span) != 2:
        raise SantagenError(f"{file} has no usable shape and data offsets for {name}.", AGAIN)
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise SantagenError(
            f"{file} stores {name} with dtype {dtype!r}, which santagen does not read.",
            "Convert the checkpoint to bfloat16, float16 or float32.",
        )
    info = TensorInfo(dtype, tuple(shape), file, data_start + span[0])
    if span[1] - span[0] != info.nbytes:
        raise SantagenError(
            f"{file} gives {name} {span[1] - span[0]:,} bytes, but {dtype} {shape} takes "
            f"{info.nbytes:,}.",
            AGAIN,
        )
    return info


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
