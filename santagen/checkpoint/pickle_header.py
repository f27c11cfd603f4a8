"""What a pytorch_model*.bin holds, read without torch: names, dtypes, shapes, places in the file.

    zip file (torch 1.6 and newer)     NAME/data.pkl, NAME/data/0, NAME/data/1, ... uncompressed
    older                              four pickles, the list of storage keys, then per storage
                                       8 bytes (its element count) and its data

The pickle is read by an unpickler that knows a handful of names and gives a plain record for each:
no code of the file runs and no tensor is built. Any other name is refused. Data is never read here.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from santagen.checkpoint.safetensors_header import DTYPE_BYTES, MAX_HEADER_BYTES, TensorInfo
from santagen.errors import SantagenError, first_line

SAFETENSORS_NAMES = {
    "double": "F64", "float": "F32", "half": "F16", "bfloat16": "BF16", "long": "I64",
    "int": "I32", "short": "I16", "char": "I8", "byte": "U8", "bool": "BOOL",
}  # fmt: skip
STORAGE_TYPES = {
    **{f"{'BFloat16' if n == 'bfloat16' else n.capitalize()}Storage": v
       for n, v in SAFETENSORS_NAMES.items()},
    "UntypedStorage": "U8",
}  # fmt: skip
DTYPE_NAMES = {
    **SAFETENSORS_NAMES, "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
OLD_MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOLS = (b"\x80\x02", b"\x80\x03")  # how a pickle begins
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., length of the name, of the extra field
# What a reader meets in a damaged or hostile pickle or zip file.
DAMAGED = (
    pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, ValueError, TypeError, KeyError,
    IndexError, AttributeError, OverflowError, NotImplementedError, RecursionError, MemoryError,
    struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class _Storage:
    """A persistent id: `count` elements of dtype `dtype` under `key`."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True)
class _Stored:
    """A tensor as the pickle describes it; offset and strides are in elements."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def is_contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return 0 in self.shape
            step *= size
        return True


@dataclass(frozen=True)
class _Named:
    """A storage type or a dtype, of which only the safetensors name matters."""

    dtype: str


def read_bin_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors by name; a SantagenError names a damaged file, or one that is no table of tensors.

    `offset` is -1 where a tensor's elements don't lie in order in the file.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            table, starts = _read_zip(file) if zipped else _read_old(file)
        return _infos(path.name, table, starts)
    except DAMAGED as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: BaseException) -> SantagenError:
    """What to tell of a file that can't be read."""
    return SantagenError(
        f"{path.name} ({path.stat().st_size:,} bytes) is cut short or not a file of plain tensors: "
        f"{first_line(error)[:160]}",
        "Download it again, or take the safetensors files of the model.",
    )


def no_table(file: str) -> SantagenError:
    """What to tell of a pickle that holds something else than a table."""
    return SantagenError(
        f"{file} holds no table of tensors.", "Take a file that save_pretrained wrote."
    )


def no_tensor(file: str, name: object, what: object) -> SantagenError:
    """What to tell of an entry that is no tensor, or one of a strange dtype."""
    return SantagenError(
        f"{file} holds {name}, which is {what} and no tensor santagen reads.",
        "Take a file that save_pretrained wrote, not a training checkpoint.",
    )


def _infos(file: str, table: Any, starts: dict[str, tuple[int, int]]) -> dict[str, TensorInfo]:
    if not isinstance(table, Mapping):
        raise no_table(file)
    infos = {}
    for name, item in table.items():
        if not isinstance(item, _Stored):
            raise no_tensor(file, name, type(item).__name__)
        infos[str(name)] = _info(file, str(name), item, starts)
    return infos


def _info(file: str, name: str, item: _Stored, starts: dict[str, tuple[int, int]]) -> TensorInfo:
    """The tensor's place, checked against the bytes its storage has in the file."""
    width = DTYPE_BYTES[item.dtype]
    start, size = starts[item.storage.key]
    reach = sum((n - 1) * s for n, s in zip(item.shape, item.strides, strict=True))
    needed = 0 if 0 in item.shape else (item.offset + reach + 1) * width
    promised = item.storage.count * DTYPE_BYTES[item.storage.dtype]
    if max(needed, promised) > size:
        raise ValueError(f"{name} needs {max(needed, promised):,} bytes and {size:,} are there")
    offset = start + item.offset * width if item.is_contiguous() else -1
    return TensorInfo(item.dtype, item.shape, file, offset)


def _read_zip(file: IO[bytes]) -> tuple[Any, dict[str, tuple[int, int]]]:
    """(the pickled object, key -> (first byte, bytes) of every storage)."""
    archive = zipfile.ZipFile(file)
    pickles = [e for e in archive.infolist() if e.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MAX_HEADER_BYTES:
        raise ValueError(f"{len(pickles)} data.pkl of a fit size are in it, not 1")
    root = pickles[0].filename.removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("its numbers are not little-endian")
    starts = {}
    for entry in archive.infolist():
        if entry.filename.startswith(f"{root}data/"):
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
            key = entry.filename.removeprefix(f"{root}data/")
            starts[key] = (_first_byte(file, entry.header_offset), entry.file_size)
    with archive.open(pickles[0]) as stream:
        return _Unpickler(_of_fit_protocol(io.BytesIO(stream.read()))).load(), starts


def _of_fit_protocol(file: IO[bytes]) -> IO[bytes]:
    """The file, where a pickle begins that torch too will read without running code."""
    place = file.tell()
    start = file.read(2)
    file.seek(place)
    if start not in PROTOCOLS:
        raise ValueError("it is not pickled by protocol 2 or 3, which are all that is read safely")
    return file


def _first_byte(file: IO[bytes], header: int) -> int:
    file.seek(header)
    signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise ValueError(f"no entry begins at byte {header:,}")
    return header + LOCAL_HEADER.size + int(name) + int(extra)


def _read_old(file: IO[bytes]) -> tuple[Any, dict[str, tuple[int, int]]]:
    """As `_read_zip`, for files of torch before 1.6."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if _Unpickler(file).load() != OLD_MAGIC:
        raise ValueError("it does not begin as a file of torch")
    _Unpickler(file).load()  # the protocol's version
    if not _Unpickler(file).load()["little_endian"]:
        raise ValueError("its numbers are not little-endian")
    unpickler = _Unpickler(_of_fit_protocol(file))
    table = unpickler.load()
    starts = {}
    for key in _Unpickler(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        bytes_there = count * DTYPE_BYTES[unpickler.storages[key].dtype]
        start = file.tell()
        if not 0 <= bytes_there <= size - start:
            raise ValueError(f"a storage needs {bytes_there:,} bytes and {size - start:,} are left")
        starts[key] = (start, bytes_there)
        file.seek(bytes_there, io.SEEK_CUR)
    return table, starts


class _Unpickler(pickle.Unpickler):
    """Gives records in place of tensors, and refuses every name it does not know."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        known: Callable[..., Any] | None = KNOWN.get((module, name))
        if known is not None:
            return known
        if module in ("torch", "torch.storage") and name in STORAGE_TYPES:
            return _Named(STORAGE_TYPES[name])
        if module == "torch" and name in DTYPE_NAMES:
            return _Named(DTYPE_NAMES[name])
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_type, key, _, count, *view = pid
        if kind != "storage" or any(part is not None for part in view):
            raise pickle.UnpicklingError("it refers to something that is no storage")
        self.storages[str(key)] = _Storage(storage_type.dtype, str(key), _count(count))
        return self.storages[str(key)]


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *others: Any) -> _Stored:
    """torch._utils._rebuild_tensor_v2; version 3 has the dtype among the others."""
    if not isinstance(storage, _Storage) or len(shape) != len(strides):
        raise ValueError("a tensor without a storage")
    named = [other.dtype for other in others if isinstance(other, _Named)]
    sizes = tuple(map(_count, shape))
    dtype = named[0] if named else storage.dtype
    return _Stored(storage, dtype, _count(offset), sizes, tuple(map(_count, strides)))


def _parameter(tensor: Any, *others: Any) -> Any:
    return tensor


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}
